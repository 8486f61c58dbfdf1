"""Merge events of ranks into events of the job.

In synchronous training all ranks slow down together, so onsets close in time are one event of the
job. Step times alone cannot name the cause. A call log or a trace can
(:mod:`paceline.detect.locate`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.detect.event import Estimate, Event, back, estimates, recurring
from paceline.detect.missing_calls import Waiting
from paceline.detect.stacks import Stacks
from paceline.detect.validation_command import validation_command
from paceline.detect.who import Suspect, name_ranks
from paceline.units import duration

#: Largest distance in steps between events of one kind that are merged.
MERGE_STEPS = 20


@dataclass(frozen=True)
class JobEvent:
    """Events of several ranks that belong together.

    Attributes:
        kind: kind of the :class:`Event`; or "hang", a step that does not end.
        step: the step of the first event.
        since_step: the median of the events' ``since_step``.
        ranks: ranks of the events; hang: ranks that did not arrive.
        of: number of ranks of the job.
        factor: the median of the events' factors.
        lost_s: the largest loss of a rank, as ranks lose time in parallel; hang: the time waited.
        healthy_s: the median of the events' healthy step times.
        before_factor: the median of the events' ``before_factor``.
        planned: whether the plan explains the change; always False, as such changes are no events.
        suspects: slow ranks, groups and links, the costliest first. Empty if none stands out; None
            without data about them.
        slow_before: workers that are slow, but were as slow before the event: no suspects.
        advice: recommended action and its gain, in words.
        gpus: number of GPUs of the job, which all wait; None: one for each of several ranks.
        estimate, refined: medians of the events' estimates.
        bursts_up_to: the least of the events' values.
        bursts_every: the largest of the events' values.
        waiting: hang: calls that some members have not made.
        stacks: hang: stacks of the job's processes on this host; None if not read.
        together: whether all ranks became slow together, so that step times cannot tell who is.
    """

    kind: str
    step: int
    since_step: int
    ranks: tuple[int, ...]
    of: int
    factor: float
    lost_s: float
    healthy_s: float = np.nan
    before_factor: float = np.nan
    planned: bool = False
    suspects: tuple[Suspect, ...] | None = None
    slow_before: tuple[Suspect, ...] = ()
    advice: str | None = None
    gpus: int | None = None
    estimate: Estimate | None = None
    refined: Estimate | None = None
    bursts_up_to: int = 0
    bursts_every: int = 0
    waiting: tuple[Waiting, ...] = ()
    stacks: Stacks | None = None
    together: bool = False

    def details(self) -> list[str]:
        """Further lines about a hang: calls in which ranks wait, then the ranks' stacks."""
        lines = [call.explain() for call in self.waiting]
        return lines if self.stacks is None else [*lines, *self.stacks.lines()]

    def suspect_lines(self) -> list[str]:
        """The evidence on each suspect, then on workers that were slow before."""
        before = [f"slow before the change, too: {s.explain()}" for s in self.slow_before]
        return [*(suspect.explain() for suspect in self.suspects or ()), *before]

    def explain(self, lost_by: str = "so far", *, says_unknown: bool = True) -> str:
        """The event in words and numbers.

        Args:
            lost_by: the end of the counted loss.
            says_unknown: say that the cause is unknown, if it is.
        """
        head = f"step {self.step:,}:"
        if (len(self.ranks) < self.of or self.of == 1) and not self.together:
            head += self._place
        if self.kind == "onset":
            phrases = [
                f"{head} {self.factor:.2f}x slower since step {self.since_step:,}",
                *([self.who] if says_unknown or self.suspects is not None else []),
                f"{duration(self.lost_s)} lost {lost_by}",
            ]
            return "; ".join([*phrases, *([self.advice] if self.advice else [])])
        if self.kind in ("worsening", "partial-relief"):
            verb = "slower still" if self.kind == "worsening" else "partly relieved"
            lost = f"{duration(self.lost_s)} lost {lost_by}"
            return (
                f"{head} {verb} since step {self.since_step:,}: {self.factor:.2f}x, "
                f"{self.before_factor:.2f}x the level before; {lost}"
            )
        if self.kind == "faster":
            return (
                f"{head} faster since step {self.since_step:,}: {self.factor:.2f}x the former "
                "healthy time"
            )
        if self.kind == "relief":
            if np.isnan(self.factor):
                return f"{head} {back(self.since_step, self.before_factor)}"
            over = f"{head} healthy again since step {self.since_step:,}"
            lost = f"{duration(self.lost_s)} lost{recurring(self.bursts_up_to, self.bursts_every)}"
            return f"{over}, after {self.factor:.2f}x on average; {lost}"
        if self.kind == "hang":
            late = len(self.ranks) < self.of
            who = f"{self._ranks} did not arrive" if late else "no rank has reported its time"
            over = f"step {self.step:,} has not ended after {duration(self.lost_s)}"
            return f"{over}: a hang, or a long checkpoint or evaluation; {who}"
        if self.kind == "silent":
            return f"step {self.step:,}:{self._place} no sample since step {self.since_step:,}"
        return f"step {self.step:,}:{self._place} impossible duration: clock jumped"

    def at_stake_s(self, steps: int = 1000) -> float | None:
        """Seconds that further steps lose at this level; None if unknown or not slow."""
        if self.kind not in ("onset", "worsening", "partial-relief") or np.isnan(self.healthy_s):
            return None
        return (factor_of(self) - 1) * self.healthy_s * steps

    def gpu_hours(self, seconds: float | None) -> float | None:
        """GPU-hours of some seconds; None if the number of GPUs is unknown."""
        gpus = self.gpus or (self.of if self.of > 1 else None)
        return None if seconds is None or gpus is None else seconds * gpus / 3600

    def stake(self, steps: int = 1000) -> str | None:
        """The loss of further steps at this level, in words; None if unknown or not slow."""
        seconds = self.at_stake_s(steps)
        if seconds is None:
            return None
        hours = self.gpu_hours(seconds)
        of_gpus = "" if hours is None else f" ({hours:,.3g} GPU-hours)"
        return f"{steps:,} more steps at this level lose {duration(seconds)}{of_gpus}"

    @property
    def _ranks(self) -> str:
        all_ranks = len(self.ranks) == self.of and self.of > 1
        return "all ranks" if all_ranks else name_ranks(self.ranks)

    @property
    def _place(self) -> str:
        """``" rank 3:"``; "" if the log has only rank 0, as the name tells nothing."""
        return "" if self.of == 1 and self.ranks == (0,) else f" {self._ranks}:"

    @property
    def who(self) -> str:
        """The slow ranks and their slow operations, in words."""
        if self.suspects is None and self.together:
            return f"who: unknown, as ranks that wait are slow together; {self._how_to_know}"
        if self.suspects is None:
            question = "why" if len(self.ranks) < self.of else "who"
            return f"{question}: unknown, {self._how_to_know}"
        if not self.suspects and self.slow_before:
            places = "; ".join(suspect.place for suspect in self.slow_before)
            return f"who: no rank became slower than its peers; slow before, too: {places}"
        nobody = "nobody stands out" if self.gpus != 1 else "the only rank, which has no peer"
        return "; ".join(suspect.name for suspect in self.suspects) or f"who: {nobody}"

    @property
    def _how_to_know(self) -> str:
        ranks = self.gpus or (self.of if self.of > 1 else None)
        return f"run {validation_command(ranks)}"

    def to_mapping(self) -> dict[str, Any]:
        """The event as JSON values; only a hang has ``waiting`` and ``stacks``.

        ``slow_before`` is there if a worker was slow before.
        """
        hang = {
            "waiting": [call.to_mapping() for call in self.waiting],
            "stacks": None if self.stacks is None else self.stacks.to_mapping(),
        }
        before = [suspect.to_mapping() for suspect in self.slow_before]
        return {
            "kind": self.kind,
            "step": self.step,
            "since_step": self.since_step,
            "ranks": list(self.ranks),
            "of": self.of,
            "factor": None if np.isnan(self.factor) else self.factor,
            "before_factor": None if np.isnan(self.before_factor) else self.before_factor,
            "planned": self.planned,
            "lost_s": self.lost_s,
            "at_stake_s_per_1000_steps": self.at_stake_s(),
            "lost_gpu_hours": self.gpu_hours(self.lost_s),
            "at_stake_gpu_hours_per_1000_steps": self.gpu_hours(self.at_stake_s()),
            "who": None if self.suspects is None else [s.to_mapping() for s in self.suspects],
            "advice": self.advice,
            **estimates(self.estimate, self.refined),
            "bursts_up_to": self.bursts_up_to,
            "bursts_every": self.bursts_every,
            "text": self.explain(),
            **(hang if self.kind == "hang" else {}),
            **({"slow_before": before} if before else {}),
        }


def factor_of(event: Event | JobEvent) -> float:
    """The factor of the level that an event begins, refined where that is known."""
    return event.factor if event.refined is None else event.refined.factor


def job_events(events: Iterable[Event], ranks: int) -> list[JobEvent]:
    """Merge the events of ranks, in the order of their steps."""
    groups: list[list[Event]] = []
    latest: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda e: (e.step, e.rank)):
        group = latest.get(event.kind)
        near = group is not None and event.step - group[-1].step <= MERGE_STEPS
        repeated = group is not None and any(event.rank == member.rank for member in group)
        if group is None or not near or repeated:
            group = latest[event.kind] = []
            groups.append(group)
        group.append(event)
    return [_merge(group, ranks) for group in groups]


def _merge(group: list[Event], ranks: int) -> JobEvent:
    return JobEvent(
        kind=group[0].kind,
        step=group[0].step,
        since_step=int(np.median([event.since_step for event in group])),
        ranks=tuple(sorted(event.rank for event in group)),
        of=ranks,
        factor=float(np.median([event.factor for event in group])),
        lost_s=max(event.lost_s for event in group),
        healthy_s=float(np.median([event.healthy_s for event in group])),
        before_factor=float(np.median([event.before_factor for event in group])),
        planned=all(event.planned for event in group),
        estimate=_median([event.estimate for event in group]),
        refined=_median([event.refined for event in group]),
        bursts_up_to=min(event.bursts_up_to for event in group),
        bursts_every=max(event.bursts_every for event in group),
    )


def _median(estimates: list[Estimate | None]) -> Estimate | None:
    """The median of the known estimates, as ranks that wait for each other are equally slow."""
    given = [estimate for estimate in estimates if estimate is not None]
    if not given:
        return None
    rows = np.array([(e.factor, e.low, e.high, e.samples) for e in given])
    factor, low, high, samples = np.median(rows, axis=0).tolist()
    return Estimate(factor, low, high, int(samples))
