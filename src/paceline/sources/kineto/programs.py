"""Steps of data-parallel ranks on the host as programs: computes cut at launches and waits.

:mod:`paceline.graph.program` makes a graph of them. A profile shows when the host launched a
collective (``c10d::``) and when gloo ended it. The waits of the host are found in
:mod:`paceline.sources.kineto.waits`. Between launches, waits and ends of passes the host computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.errors import TraceError
from paceline.sources.kineto.events import Profile
from paceline.sources.kineto.hybrid import hybrid_groups
from paceline.sources.kineto.marks import HostStep, Mark, host_steps
from paceline.sources.kineto.ops import RankOp
from paceline.sources.kineto.waits import Place, wait_places
from paceline.trace import OpKind

HOW_TO = (
    "profile with ProfilerActivity.CPU from before the step's forward until after its optimizer, "
    "after init_process_group"
)


def has_program(profile: Profile) -> bool:
    """Whether a profile has the host's launches of a data-parallel job, and no pipeline.

    Gloo does not name the group of a collective. So if groups have only some of the ranks, the
    group is unknown, except for hybrid sharding (:mod:`paceline.sources.kineto.hybrid`).
    """
    whole = {tuple(sorted(group.ranks)) for group in profile.groups}
    piped = profile.transfers or any(item.action in ("F", "B") for item in profile.ranges)
    if profile.host is None or piped:
        return False
    return hybrid_groups(profile) is not None or (
        len(whole) == 1 and len(next(iter(whole))) == profile.world_size > 1
    )


def program_ops(profiles: Sequence[Profile]) -> dict[int, list[RankOp]]:
    """Rank -> its computes, collectives and updates with their places in the program.

    Raises:
        TraceError: a rank launched no collective, or has no step with the others' program.
    """
    steps: list[HostStep] = []
    for profile in profiles:
        of_rank = host_steps(profile, profile.steps)
        if not any(step.launches for step in of_rank):
            raise TraceError(
                f"{profile.path} has no c10d:: operator with a gloo: range that exchanges "
                f"parameters or gradients, so the waits of its rank are unknown; {HOW_TO}"
            )
        steps += of_rank
    alike: dict[tuple[tuple[str, OpKind, int], ...], list[HostStep]] = defaultdict(list)
    for step in steps:
        alike[step.signature].append(step)
    _check_alike(profiles, steps, max(alike, key=lambda signature: len(alike[signature])))
    units = _unit_numbers(steps)
    ops: dict[int, list[RankOp]] = {profile.rank: [] for profile in profiles}
    for group in alike.values():
        places = wait_places(group)
        for step in group:
            ops[step.rank] += _Program(step, places, units).ops()
    return ops


def _check_alike(
    profiles: Sequence[Profile],
    steps: Sequence[HostStep],
    usual: tuple[tuple[str, OpKind, int], ...],
) -> None:
    """Refuse a rank with no step like those of the others: it ran another program."""
    for profile in profiles:
        own = [step.signature for step in steps if step.rank == profile.rank]
        if not own or usual in own:
            continue
        at = next(
            (n for n, (a, b) in enumerate(zip(own[0], usual, strict=False)) if a != b),
            min(len(own[0]), len(usual)),
        )
        raise TraceError(
            f"rank {profile.rank} ran another program than most ranks: its mark {at} of a step "
            f"is {_words(own[0], at)}, theirs {_words(usual, at)}; give files of one run. Ranks "
            "with other numbers of microbatches can be recorded with paceline.record"
        )


def _words(signature: tuple[tuple[str, OpKind, int], ...], at: int) -> str:
    if at >= len(signature):
        return "the end of the step"
    what, kind, microbatch = signature[at]
    of = f" of microbatch {microbatch}" if microbatch >= 0 else ""
    return f"the {what} of {kind.label}{of}"


def _unit_numbers(steps: Sequence[HostStep]) -> dict[str, int]:
    """FSDP unit -> its number, in the order of the first step's launches."""
    names = dict.fromkeys(unit for step in steps[:1] for unit in step.units if unit)
    return {name: number for number, name in enumerate(names)}


class _Program:
    """Turns one step of one rank into operations."""

    def __init__(
        self, step: HostStep, places: Sequence[Place | None], units: Mapping[str, int]
    ) -> None:
        self._step, self._units = step, units
        self._waits: dict[Place, list[int]] = defaultdict(list)
        for launch, place in enumerate(places):
            if place is not None:
                self._waits[place].append(launch)
        self._ops: list[RankOp] = []
        self._launched: dict[int, int] = {}  # launch -> its place in ops
        self._pass: Mark | None = None
        self._open_s = 0.0
        self._parts: dict[tuple[OpKind, int], int] = defaultdict(int)

    def ops(self) -> list[RankOp]:
        """The operations in the order of the program, which ``issued`` numbers."""
        by_mark: dict[int, list[int]] = defaultdict(list)
        for behind, number in sorted(self._waits):
            by_mark[behind].append(number)
        for number in by_mark[-1]:
            self._wait(-1, number)
        for at, mark in enumerate(self._step.marks):
            if mark.what == "begin":
                self._pass, self._open_s = mark, mark.at_s
            elif mark.what == "end":
                self._cut(mark.at_s)
                self._pass = None
            else:
                self._launch(mark)
            for number in by_mark[at]:
                self._wait(at, number)
        return self._ops

    def _cut(self, at_s: float) -> None:
        """End the open compute."""
        if self._pass is None:
            return
        key = (self._pass.kind, self._pass.microbatch)
        self._add(key[0], key[1], self._parts[key], self._open_s, max(self._open_s, at_s))
        self._parts[key] += 1

    def _add(
        self, kind: OpKind, microbatch: int, number: int, start_s: float, end_s: float
    ) -> None:
        op = RankOp(kind, self._step.step, start_s, end_s, microbatch=microbatch)
        self._ops.append(op._replace(part=number, issued=len(self._ops)))

    def _launch(self, mark: Mark) -> None:
        self._cut(mark.at_s)
        item, unit = self._step.launches[mark.launch], self._step.units[mark.launch]
        bucket = (mark.kind, -1)
        number = self._units.get(unit, self._parts[bucket])
        self._parts[bucket] += 1
        self._launched[mark.launch] = len(self._ops)
        self._add(mark.kind, -1, number, item.launch_s, max(item.launch_s, item.end_s))
        group = self._step.groups[mark.launch]
        self._ops[-1] = self._ops[-1]._replace(group=group)
        self._open_s = mark.at_s

    def _wait(self, at: int, number: int) -> None:
        """Add a wait before the bound that is ``number`` bounds behind a mark."""
        launches = self._waits[at, number]
        idle_s, back_s = self._around(at, number)
        # A thread that waits right after a launch computes nothing in between.
        if at < 0 or self._step.marks[at].what != "launch" or number > 0:
            self._cut(idle_s)
        end_s = max(self._step.launches[launch].end_s for launch in launches)
        self._open_s = max(idle_s, min(back_s, end_s))
        for launch in launches:
            place = self._launched[launch]
            self._ops[place] = self._ops[place]._replace(awaited=len(self._ops) - 1)

    def _around(self, at: int, number: int) -> tuple[float, float]:
        """Begin and end of the thread's idle time before a bound, seconds."""
        step, host = self._step, self._step.host
        marks = step.marks
        low_s = marks[at].at_s if at >= 0 else -np.inf
        high_s = marks[at + 1].at_s if at + 1 < len(marks) else np.inf
        rows = step.bounds_of(at)
        if number >= len(rows):  # this step has fewer bounds here than usual
            return (high_s, high_s) if np.isfinite(high_s) else (low_s, low_s)
        row = rows[number]
        return max(low_s, float(host.bound_s[row - 1])), float(host.bound_s[row])
