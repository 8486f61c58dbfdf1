"""Steps of data-parallel GPUs whose stream waits are recorded, as programs of the main stream.

The computes of the stream are cut after an event that a collective waits for, and before an event
that waits for a collective. The module :mod:`paceline.sources.kineto.streams` finds these events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from paceline.errors import TraceError
from paceline.sources.kineto.events import Span
from paceline.sources.kineto.ops import RankOp
from paceline.sources.kineto.streams import MainStream
from paceline.trace import OpKind

_PASSES: Final = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)


def streamed_ops(
    ops: Sequence[RankOp], stream: MainStream, steps: Sequence[Span], updates: Sequence[Span]
) -> list[RankOp]:
    """A rank's ops with their places in the program.

    Args:
        ops: its passes and collectives.
        stream: its main stream.
        steps: its steps on the host.
        updates: ``Optimizer.step`` ranges on the host.

    Raises:
        TraceError: waits contradict launches.
    """
    by_step: dict[int, list[RankOp]] = defaultdict(list)
    for op in ops:
        by_step[op.step].append(op)
    program: list[RankOp] = []
    for step in steps:
        program += _Step(by_step[step.number], stream, step, updates).program()
    return program


class _Step:
    """One step, to be turned into a program; ``row`` counts the events of the main stream."""

    def __init__(
        self, ops: Sequence[RankOp], stream: MainStream, step: Span, updates: Sequence[Span]
    ) -> None:
        self._stream = stream
        low, high = np.searchsorted(stream.launch_s, [step.start_s, step.end_s]).tolist()
        passes = sorted((op for op in ops if op.kind in _PASSES), key=lambda op: op.launch_s)
        own_updates = [span for span in updates if step.start_s <= span.start_s < step.end_s]
        self._rows = range(low, high)
        self._owners = [
            _owner(launch_s, passes, own_updates) for launch_s in stream.launch_s[low:high].tolist()
        ]
        self._issued: dict[int, list[RankOp]] = defaultdict(list)
        self._awaited: dict[int, list[int]] = defaultdict(list)
        for op in sorted(ops, key=lambda op: op.launch_s):
            bound = stream.bounds.get(op.kernel)
            if bound is not None:
                issued = min(max(low, bound.behind + 1), high)
                self._issued[issued].append(op)
                if low <= bound.before < issued:
                    raise TraceError(
                        f"step {step.number}: something waits for the kernel with correlation "
                        f"{op.kernel} before its launch; is the profile damaged?"
                    )
                if low <= bound.before < high:
                    self._awaited[bound.before].append(op.kernel)
        self._number = step.number
        self._ops: list[RankOp] = []
        self._parts: Counter[OpKind | _Owner] = Counter()

    def program(self) -> list[RankOp]:
        """The ops in the order of the program, which ``issued`` numbers."""
        low, high = self._rows.start, self._rows.stop
        begin, places = low, dict[int, int]()
        for row in range(low, high + 1):
            turns = row in (low, high) or self._owners[row - low] != self._owners[row - low - 1]
            if not (turns or self._issued[row] or self._awaited[row]):
                continue
            self._compute(begin, row)
            begin = row
            for op in self._issued[row]:
                places[op.kernel] = len(self._ops)
                self._add(op, op.kind)
            for kernel in self._awaited[row]:
                place = places[kernel]
                self._ops[place] = self._ops[place]._replace(awaited=len(self._ops) - 1)
        return self._ops

    def _compute(self, begin: int, end: int) -> None:
        """Add the compute of the main stream from one row up to another."""
        owner = self._owners[begin - self._rows.start] if begin < end else None
        if owner is None:
            return
        start_s = float(self._stream.start_s[begin])
        until_s = float(self._stream.end_s[begin:end].max())
        op = RankOp(owner.kind, self._number, start_s, until_s, microbatch=owner.microbatch)
        self._add(op, owner)

    def _add(self, op: RankOp, counted: OpKind | _Owner | None) -> None:
        assert counted is not None  # with_direction sets it
        self._ops.append(op._replace(part=self._parts[counted], issued=len(self._ops)))
        self._parts[counted] += 1


class _Owner(NamedTuple):
    """A pass, or the optimizer's update."""

    kind: OpKind
    microbatch: int


def _owner(launch_s: float, passes: Sequence[RankOp], updates: Sequence[Span]) -> _Owner | None:
    """Owner of an event of the main stream; None if nothing in the step owns it.

    Kernels after a pass belong to the next pass, unless that waits for its data first. Kernels
    after the last backward belong to it.
    """
    if any(span.start_s <= launch_s < span.end_s for span in updates):
        return _Owner(OpKind.OPTIMIZER, -1)
    if not passes or any(span.end_s <= launch_s for span in updates):
        return None
    place = min(bisect_left(passes, launch_s, key=lambda op: op.launch_s), len(passes) - 1)
    kind = passes[place].kind
    if launch_s < passes[place].loaded_s:
        return None
    assert kind is not None
    return _Owner(kind, sum(op.kind == kind for op in passes[:place]))
