"""The marks of one rank's step on the host: begins and ends of passes, and launches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.kineto.events import (
    AUTOGRAD,
    OPERATOR,
    Collective,
    Host,
    Profile,
    Span,
    Times,
    UnitRange,
)
from paceline.sources.kineto.host import running_end
from paceline.sources.kineto.loads import behind_waits
from paceline.trace import OpKind

#: A run with fewer operators than this share of the longest run's is no forward.
SHORT_SHARE: Final = 0.3

#: Collectives by their use in a data-parallel job; a name begins with one of these.
_KINDS: Final = (
    ("reduce", OpKind.GRADS_REDUCE_SCATTER),
    ("allreduce", OpKind.GRADS_REDUCE_SCATTER),
    ("allgather", OpKind.PARAMS_ALL_GATHER),
    ("broadcast", OpKind.PARAMS_ALL_GATHER),
)
#: Other collectives in which ranks wait for each other; they count only between a step's passes.
_AMID: Final = (
    ("alltoall", OpKind.EXPERT_COMM),
    ("barrier", OpKind.GRADS_REDUCE_SCATTER),
)
#: In these, one rank waits for all others, or all others wait for one rank.
_ROOTED: Final = ("gather", "scatter")


class Mark(NamedTuple):
    """A moment that the step of every rank has.

    Attributes:
        at_s: its time, seconds.
        what: ``begin`` or ``end`` of a pass, or a ``launch``.
        kind: kind of the pass or of the launched op.
        microbatch: microbatch of the pass; -1 = none.
        launch: index of the launch in the step, -1 = none.
    """

    at_s: float
    what: str
    kind: OpKind
    microbatch: int
    launch: int = -1


@dataclass(frozen=True, eq=False)
class HostStep:
    """One step of one rank.

    Attributes:
        rank: global rank.
        step: its number.
        marks: its marks in the order of the program.
        launches: the launched ops, by launch.
        units: [launch] FSDP unit, '' if no range names one.
        groups: [launch] the lowest rank of its group, -1 = all ranks.
        host: the host's events in all of the file.
        bounds: the step's bounds in ``host``.
        place: [bound of ``bounds``] (the mark it follows, number of bounds between the two).
    """

    rank: int
    step: int
    marks: tuple[Mark, ...]
    launches: tuple[Collective, ...]
    units: tuple[str, ...]
    groups: tuple[int, ...]
    host: Host
    bounds: slice
    place: npt.NDArray[np.int64]

    def bounds_of(self, mark: int) -> range:
        """The bounds in ``host`` that follow a mark, up to the next."""
        low, high = np.searchsorted(self.place[:, 0], [mark, mark + 1]).tolist()
        return range(self.bounds.start + low, self.bounds.start + high)

    @property
    def signature(self) -> tuple[tuple[str, OpKind, int], ...]:
        """The marks without their times; equal for steps that ran the same program."""
        return tuple((mark.what, mark.kind, mark.microbatch) for mark in self.marks)


def launched_kind(name: str) -> OpKind | None:
    """The kind of a collective by its plain name; None without parameters and gradients.

    The sizes of tensors are unknown, so any sum over the group counts as one of gradients.
    """
    return next((kind for start, kind in _KINDS if name.startswith(start)), None)


def host_steps(profile: Profile, steps: Sequence[Span]) -> list[HostStep]:
    """The marks of each step of a rank.

    Raises:
        TraceError: a step has unequal numbers of forwards and backwards.
    """
    host = profile.host
    assert host is not None
    return [_host_step(profile, host, step) for step in steps]


def _host_step(profile: Profile, host: Host, step: Span) -> HostStep:
    window = [step.start_s, step.end_s]
    marks = _passes(profile, host, slice(*np.searchsorted(host.start_s, window).tolist()), step)
    computed = Span(marks[0].at_s, max(m.at_s for m in marks if m.kind <= OpKind.BACKWARD_COMPUTE))
    kinds = {
        item: kind
        for item in host.launches
        if step.start_s <= item.launch_s < step.end_s
        and (kind := _kind_amid(profile, item, computed)) is not None
    }
    launches = tuple(kinds)
    for number, (item, kind) in enumerate(kinds.items()):
        behind_scatter = item.name == "allreduce" and item.group  # the sum over replicas (HSDP)
        kind = OpKind.SEPARATE_GRADS_ALL_REDUCE if behind_scatter else kind
        marks.append(Mark(item.launch_s, "launch", kind, -1, number))
    marks.sort(key=lambda mark: mark.at_s)  # stable: ends before begins
    ranges = sorted((*host.gathers, *host.reduces))
    units = [range_at(item.launch_s, ranges) for item in launches]
    members = {group.name: min(group.ranks) for group in profile.groups}
    low, high = np.searchsorted(host.bound_s, window).tolist()
    behind = np.searchsorted([mark.at_s for mark in marks], host.bound_s[low:high]) - 1
    first = np.searchsorted(behind, behind)
    return HostStep(
        rank=profile.rank,
        step=step.number,
        marks=tuple(marks),
        launches=launches,
        units=tuple("" if unit is None else unit.unit for unit in units),
        groups=tuple(members.get(item.group, -1) for item in launches),
        host=host,
        bounds=slice(low, high),
        place=np.stack([behind, np.arange(high - low) - first], axis=1),
    )


def _kind_amid(profile: Profile, item: Collective, computed: Span) -> OpKind | None:
    """The kind of a collective of a step whose passes lie within ``computed``.

    Raises:
        TraceError: it is between the passes, and not all ranks wait for each other in it.
    """
    kind = launched_kind(item.name)
    if kind is not None or not computed.start_s < item.launch_s < computed.end_s:
        return kind
    if item.name in _ROOTED:
        raise TraceError(
            f"{profile.path}: a {item.name} between a step's passes, in which not all ranks wait "
            "for each other. Such waits are not read: record the job with paceline.record, or "
            "leave such steps out with --steps"
        )
    return next((kind for start, kind in _AMID if item.name.startswith(start)), None)


def range_at(at_s: float, ranges: Sequence[UnitRange]) -> UnitRange | None:
    """The range that is around a moment; ranges by start, none inside another."""
    at = bisect_right(ranges, at_s, key=lambda item: item.start_s) - 1
    return ranges[at] if at >= 0 and at_s < ranges[at].end_s else None


def _passes(profile: Profile, host: Host, rows: slice, step: Span) -> list[Mark]:
    """Begin and end of each forward, backward and of the optimizer.

    A backward is a run of the autograd engine's operators and FSDP's callback after them. A forward
    is the run of operators before a backward.
    """
    start_s, end_s, backward, chosen = _operators(profile, host, rows)
    start_s, end_s, backward = start_s[chosen], end_s[chosen], backward[chosen]
    bounds = np.flatnonzero(np.append(True, np.diff(backward.astype(np.int8)) != 0))
    last = np.append(bounds[1:], len(backward))
    runs = [(bool(backward[a]), int(a), int(b)) for a, b in zip(bounds, last, strict=True) if b > a]
    waits = _waits(profile, host, step)
    runs = [(back, a if back else behind_waits(start_s, a, b, waits), b) for back, a, b in runs]
    longest = max((b - a for back, a, b in runs if not back), default=0)
    passes: list[tuple[bool, int, int]] = []
    for back, a, b in runs:
        if back and passes and passes[-1][0]:
            passes[-1] = (True, passes[-1][1], b)
        elif back or b - a >= SHORT_SHARE * longest:
            passes.append((back, a, b))
    if passes and not passes[-1][0]:  # what follows the last backward is no forward
        passes.pop()
    _check_passes(profile, step, passes)
    marks: list[Mark] = []
    until_s = -np.inf
    for number, (back, a, b) in enumerate(passes):
        kind = OpKind.BACKWARD_COMPUTE if back else OpKind.FORWARD_COMPUTE
        # Rounded times of one moment may be in the wrong order.
        begin_s, until_s = max(until_s, float(start_s[a])), float(end_s[a:b].max())
        marks.append(Mark(begin_s, "begin", kind, number // 2))
        for load in profile.loads:
            if begin_s < load.start_s and load.end_s < until_s:
                marks.append(Mark(load.start_s, "end", kind, number // 2))
                marks.append(Mark(load.end_s, "begin", kind, number // 2))
        marks.append(Mark(until_s, "end", kind, number // 2))
    return marks + _updates(profile, step, marks[-1].at_s)


def _waits(profile: Profile, host: Host, step: Span) -> list[Span]:
    """Barriers and loads of a step; a forward does not begin in front of them."""
    barriers = [Span(item.launch_s, item.end_s) for item in host.launches if item.name == "barrier"]
    waits = sorted((*barriers, *profile.loads))
    return [wait for wait in waits if step.start_s <= wait.start_s < step.end_s]


def _operators(
    profile: Profile, host: Host, rows: slice
) -> tuple[Times, Times, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Start, end and direction of a step's events, and which of them may belong to a pass."""
    start_s, end_s, code = host.start_s[rows], host.end_s[rows], host.code[rows]
    autograd = code == AUTOGRAD
    backward = start_s < running_end(end_s, autograd)
    backward |= autograd
    chosen = np.isin(code, (OPERATOR, AUTOGRAD))
    for span in (*profile.optimizer, *profile.cleared, *profile.loads):
        low, high = np.searchsorted(start_s, [span.start_s, span.end_s])
        chosen[low:high] = False
    for tail in host.tails:
        # Also the range itself: it may end with a wait, after the last operator.
        low, high = np.searchsorted(start_s, [tail.start_s, tail.end_s])
        backward[low:high] = chosen[low:high] = True
    return start_s, end_s, backward, chosen


def _check_passes(profile: Profile, step: Span, passes: Sequence[tuple[bool, int, int]]) -> None:
    forwards = sum(not back for back, _, _ in passes)
    if not passes or 2 * forwards != len(passes) or passes[0][0]:
        raise TraceError(
            f"{profile.path}, step {step.number}: {forwards} forwards, {len(passes) - forwards} "
            "backwards; a step without pipeline needs a backward after each forward. Profile "
            "whole steps, or leave the step out with --steps"
        )


def _updates(profile: Profile, step: Span, computed_s: float) -> list[Mark]:
    """Begin and end of the optimizers' updates after the last pass; earlier ones are part of it."""
    spans = [
        span
        for span in profile.optimizer
        if computed_s <= (span.start_s + span.end_s) / 2 < step.end_s
    ]
    if not spans:
        return []
    begin_s, end_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
    return [
        Mark(max(begin_s, computed_s), "begin", OpKind.OPTIMIZER, -1),
        Mark(min(end_s, step.end_s), "end", OpKind.OPTIMIZER, -1),
    ]
