"""From events of ranks to events of the job.

In synchronous training all ranks slow down together: onsets close in time are one event of the job.
Who caused it step times alone cannot say; that takes compute or transfer times, a call log, or a
trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.detect.detector import Event

#: Onsets (reliefs) so many steps apart belong together.
MERGE_STEPS = 20


@dataclass(frozen=True)
class JobEvent:
    """Events of several ranks that belong together.

    Attributes:
        kind: as of an :class:`Event`.
        step: the step in which the first was sure.
        since_step: the median of their estimated begins.
        ranks: whose.
        of: ranks of the job.
        factor: the median of their factors.
        lost_s: the largest loss: the job waits for the slowest, ranks wait side by side.
    """

    kind: str
    step: int
    since_step: int
    ranks: tuple[int, ...]
    of: int
    factor: float
    lost_s: float

    def explain(self) -> str:
        """The event in words and numbers."""
        whole = len(self.ranks) == self.of and self.of > 1
        who = "all ranks" if whole else f"rank{'s' * (len(self.ranks) > 1)} {spans(self.ranks)}"
        head = f"step {self.step:,}: {who}"
        if self.kind == "onset":
            why = (
                ""
                if len(self.ranks) < self.of
                else "; step times cannot tell which of them is the cause"
            )
            return (
                f"{head}: {self.factor:.2f}x slower since step {self.since_step:,}; "
                f"{self.lost_s:.3g} s lost so far{why}"
            )
        if self.kind == "relief":
            return (
                f"{head}: healthy again since step {self.since_step:,}, after {self.factor:.2f}x; "
                f"{self.lost_s:.3g} s lost"
            )
        if self.kind == "silent":
            return f"{head}: no sample since step {self.since_step:,}"
        return f"{head}: a duration that is not above 0: the clock jumped"

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "kind": self.kind,
            "step": self.step,
            "since_step": self.since_step,
            "ranks": list(self.ranks),
            "of": self.of,
            "factor": None if np.isnan(self.factor) else self.factor,
            "lost_s": self.lost_s,
            "text": self.explain(),
        }


def job_events(events: Iterable[Event], ranks: int) -> list[JobEvent]:
    """Merge the events of ranks, in the order of their steps."""
    groups: list[list[Event]] = []
    latest: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda e: (e.step, e.rank)):
        group = latest.get(event.kind)
        near = group is not None and event.step - group[-1].step <= MERGE_STEPS
        again = group is not None and any(event.rank == other.rank for other in group)
        if group is None or not near or again:
            group = latest[event.kind] = []
            groups.append(group)
        group.append(event)
    return [_merged(group, ranks) for group in groups]


def _merged(group: list[Event], ranks: int) -> JobEvent:
    return JobEvent(
        kind=group[0].kind,
        step=group[0].step,
        since_step=int(np.median([event.since_step for event in group])),
        ranks=tuple(sorted(event.rank for event in group)),
        of=ranks,
        factor=float(np.median([event.factor for event in group])),
        lost_s=max(event.lost_s for event in group),
    )


def spans(ranks: Iterable[int]) -> str:
    """Ranks as people write them: "0-7, 12"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more runs" if len(shown) > 8 else "")
