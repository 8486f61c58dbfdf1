"""Distinction of culprits and victims in a slow job, from the calls of a window.

A call's transfer begins when its last member arrives, so it takes as long as the call of the member
that waited least. No clocks are compared. A group is slow at communication if its transfers exceed
1.1 times the median of comparable groups (Falcon, 4.3). A rank is slow at computation if the time
between its calls exceeds that of ranks with the same calls by this ratio, and others wait for it. A
rank that is late because it waited itself has no such excess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Ratio to the median of comparable groups or ranks that is suspicious (Falcon, 4.3).
SUSPICIOUS_RATIO = 1.1
#: Least loss of a suspect, as a share of a step.
MIN_SHARE = 0.01
#: Others wait for a member that waits less than half the median of a call's members. This must hold
#: for a suspect in at least this share of some group's calls (by chance, in a quarter).
_WAITS, _OFTEN = 0.5, 0.4
#: A gap between factors separates suspects: share of the excess, and least gap.
_APART, _APART_LEAST = 0.25, 0.05


@dataclass(frozen=True)
class Suspect:
    """A slow worker, group or link.

    Attributes:
        kind: "compute", "communication", "data-loading", or "host": other work of its host that no
            operation shows.
        ranks: global ranks, ascending; empty where a trace does not number them.
        place: name of the place.
        factor: ratio to its peers. For a trace, the slowdown S_w of the job if only this were as
            measured and all else ideal.
        share: approximate share of the step time lost to it.
        text: the evidence.
        steps: the few steps that hold most of the loss; empty if the slowness lasts.
        since_step: its first slow step, where the job became slow before; None otherwise.
    """

    kind: Literal["compute", "communication", "data-loading", "host"]
    ranks: tuple[int, ...]
    place: str
    factor: float
    share: float
    text: str
    steps: tuple[int, ...] = ()
    since_step: int | None = None

    @property
    def name(self) -> str:
        """Place and operation: "ranks 24-31; compute"; its steps or its begin, if they differ."""
        when = "" if self.since_step is None else f" since step {self.since_step:,}"
        when = f" in {name_steps(self.steps)} only" if self.steps else when
        return f"{self.place}; {self.kind.replace('-', ' ')}{when}"

    def explain(self) -> str:
        """Place, operation and evidence."""
        return f"{self.name}: {self.text}"

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "place": self.place,
            "factor": self.factor,
            "share": self.share,
            "text": self.text,
            "steps": list(self.steps),
            "since_step": self.since_step,
        }


@dataclass(frozen=True, eq=False)
class Transfers:
    """Calls of a window with all members of their group.

    Attributes:
        group: [call] index into ``names`` and ``members``.
        op: [call] its operation; sends and their recvs are one.
        size: [call] bytes.
        seconds: [call] transfer time: the end minus the latest start of the members.
        names: name of each group.
        members: ranks of each group, ascending.
    """

    group: Ints
    op: Ints
    size: Ints
    seconds: Floats
    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Work:
    """Time of ranks between their calls in the same window.

    Attributes:
        rank: [rank] ascending.
        label: [rank] number of the ranks with the same calls, and thus the same work.
        seconds: [rank] time per step outside calls.
        waited_for: [rank] largest share, over its groups, of calls in which others wait for it; 0
            without a group.
    """

    rank: Ints
    label: Ints
    seconds: Floats
    waited_for: Floats


def find_suspects(
    transfers: Transfers, work: Work, step_s: float, steps: int
) -> tuple[Suspect, ...]:
    """The suspects of a window, the costliest first; may be empty.

    Args:
        transfers: calls of the window.
        work: the ranks' time between calls.
        step_s: the step time in the window, seconds.
        steps: number of steps in the window.
    """
    if step_s <= 0:  # a delayed device runs many calls at once, with a common begin
        return ()
    suspects = [*_slow_ranks(work, step_s), *_slow_groups(transfers, step_s * steps)]
    return tuple(sorted(suspects, key=lambda suspect: -suspect.share))


def _slow_ranks(work: Work, step_s: float) -> list[Suspect]:
    usual = np.full(len(work.rank), np.inf)
    peers = np.zeros(len(work.rank), dtype=np.int64)
    for label in np.unique(work.label):
        peer_ranks = work.label == label
        if peer_ranks.sum() > 1:
            usual[peer_ranks] = lower_median(work.seconds[peer_ranks])
            peers[peer_ranks] = peer_ranks.sum()
    factor = work.seconds / np.maximum(usual, 1e-12)
    share = (work.seconds - usual) / step_s
    slow = (factor > SUSPICIOUS_RATIO) & (share >= MIN_SHARE) & (work.waited_for >= _OFTEN)
    return [
        _slow_suspect(alike, work, usual, peers, share)
        for alike in alike_groups(np.flatnonzero(slow), factor)
    ]


def alike_groups(indices: Ints, factor: Floats) -> list[Ints]:
    """Groups of indices with similar factors, the largest factors first.

    A gap of a quarter of the excess and of 5% separates them, as two faults have two factors.
    """
    ordered = indices[np.argsort(-factor[indices], kind="stable")]
    excess = factor[ordered] - 1
    gap = -np.diff(excess)
    cuts = np.flatnonzero((gap > _APART * excess[:-1]) & (gap > _APART_LEAST)) + 1
    return [np.sort(group) for group in np.split(ordered, cuts) if len(group)]


def _slow_suspect(alike: Ints, work: Work, usual: Floats, peers: Ints, share: Floats) -> Suspect:
    """Groups of ranks with similar slowness."""
    ranks = tuple(work.rank[alike].tolist())
    middle = float(np.median(work.seconds[alike] / np.maximum(usual[alike], 1e-12)))
    text = (
        f"{middle:.2f}x as long between calls as the median of the "
        f"{spoken_span(peers[alike])} ranks that make the same calls "
        f"({_ms(work.seconds[alike])} a step instead of {_ms(usual[alike])}); others wait for "
        f"{'them' if len(ranks) > 1 else 'it'} in {work.waited_for[alike].min():.0%} of the calls"
    )
    return Suspect("compute", ranks, name_ranks(ranks), middle, float(share[alike].max()), text)


def _slow_groups(transfers: Transfers, window_s: float) -> list[Suspect]:
    """Groups by the total time of their calls, relative to comparable groups."""
    n_members = np.array([len(members) for members in transfers.members])[transfers.group]
    label = number(transfers.op, transfers.size, n_members)
    actual, usual = np.zeros(len(transfers.names)), np.zeros(len(transfers.names))
    peers = np.zeros(len(transfers.names), dtype=np.int64)
    for one_label in np.unique(label):
        same_calls = label == one_label
        group, seconds = transfers.group[same_calls], transfers.seconds[same_calls]
        groups, calls = np.unique(group, return_counts=True)
        if len(groups) < 2:
            continue
        middles = np.array(
            [float(np.median(seconds[group == member_group])) for member_group in groups]
        )
        actual[groups] += calls * middles
        usual[groups] += calls * lower_median(middles)
        peers[groups] = np.maximum(peers[groups], len(groups))
    share = (actual - usual) / window_s
    slow = np.flatnonzero((actual > SUSPICIOUS_RATIO * usual) & (share >= MIN_SHARE))
    return [
        Suspect(
            "communication",
            transfers.members[at],
            f"{name_ranks(transfers.members[at])} (group {transfers.names[at]})",
            float(actual[at] / usual[at]),
            float(share[at]),
            f"its transfers take {actual[at] / usual[at]:.2f}x as long as the median of the "
            f"{peers[at]} groups with the same calls",
        )
        for at in slow.tolist()
    ]


def waited_for(call: Ints, rank: Ints, group: Ints, waited_s: Floats) -> dict[int, float]:
    """Rank -> largest share, over its groups, of calls in which others wait for it.

    Args:
        call: [row] the call, ascending; one row per member.
        rank: [row] the member.
        group: [row] its group.
        waited_s: [row] seconds that the member waited for the last to arrive.
    """
    first = np.flatnonzero(np.diff(call, prepend=-1))
    sizes = np.diff(np.append(first, len(call)))
    ordered = waited_s[np.lexsort((waited_s, call))]
    # The upper median: of two members, that of the waiting one.
    middle = np.repeat(ordered[first + sizes // 2], sizes)
    late = waited_s < _WAITS * middle
    pair = number(rank, group)
    share = np.bincount(pair, weights=late) / np.bincount(pair)
    largest: dict[int, float] = {}
    for member, at in {*zip(rank.tolist(), pair.tolist(), strict=True)}:
        largest[member] = max(largest.get(member, 0.0), float(share[at]))
    return largest


def number(*columns: Ints) -> Ints:
    """[row] numbers from 0, equal for equal rows."""
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, place = np.unique(column, return_inverse=True)
        _, numbers = np.unique(
            numbers * (int(place.max(initial=0)) + 1) + place, return_inverse=True
        )
    return numbers


def lower_median(values: Floats) -> float:
    """The lower median, as one of two values may be slow."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def spans(ranks: Iterable[int]) -> str:
    """Ranks in short form: "0-7, 12"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more runs" if len(texts) > 8 else "")


def name_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks in words: "rank 3", "ranks 24-31"."""
    return f"rank{'s' * (len(ranks) != 1)} {spans(ranks)}"


def name_steps(steps: tuple[int, ...]) -> str:
    """Steps in words: "step 176", "steps 176, 180"."""
    return f"step{'s' * (len(steps) != 1)} {spans(steps)}"


def spoken_span(values: Ints) -> str:
    """From the least to the most: "4", "4 to 8"."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def _ms(values: Floats) -> str:
    return f"{float(np.median(values)) * 1e3:.3g} ms"
