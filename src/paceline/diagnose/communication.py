"""Communication that a step waits for, and communication that hides behind computes.

A part is a unit (FSDP) or a bucket (DDP) of one kind of collective on one stage. Its *exposed*
seconds are the time that the simulated step would lose if the part's transfers took 0 s. The rest
of its transfer time is hidden. Exposed seconds of several parts do not add up: where two run side
by side, neither shortens the step alone. *Waited* seconds do add up. A program waits for the part's
transfer or for peers that join it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.finding import Finding
from paceline.graph import Durations, Measured, ReplicaOps, StepGraph
from paceline.graph.program_steps import program_steps
from paceline.simulate import Rules, all_lanes, step_times, timeline
from paceline.trace import OpKind
from paceline.trace.kinds import DP_KINDS, LOCAL_KINDS, PEER_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Most values (op x lane x rule) that one analysis simulates, about one second of work. A longer
#: job is simulated in fewer steps.
MAX_VALUES = 250_000_000


@dataclass(frozen=True)
class Exposure:
    """One part's seconds per step, means over the simulated steps.

    Attributes:
        kind: label of the collective.
        stage: pipeline stage.
        chunk: model chunk, -1 = unknown.
        part: unit or bucket; None = all of the kind on the stage.
        count: collectives per step.
        transfer_s: transfer time of the slowest member, summed over the collectives.
        exposed_s: time that the step would lose if the transfers took 0 s.
        waited_s: time that a worker's program waits for them, mean over the workers.
    """

    kind: str
    stage: int
    chunk: int
    part: int | None
    count: int
    transfer_s: float
    exposed_s: float
    waited_s: float

    @property
    def hidden_s(self) -> float:
        """Transfer seconds that do not lengthen the step."""
        return max(0.0, self.transfer_s - self.exposed_s)


@dataclass(frozen=True)
class Communication:
    """Exposed and hidden communication of a job whose programs are recorded.

    Attributes:
        step_s: simulated step time, mean over the simulated steps.
        exposed_s: seconds that the step would lose if all collectives took 0 s.
        by_kind: exposure of each kind on each stage.
        by_part: exposure of each unit and bucket.
        findings: findings about the arrangement of the communication, by cost; no stragglers.
        all_reduces: whether gradients are reduced to all ranks; then the kind
            ``grads-reduce-scatter`` has another name for people.
    """

    step_s: float
    exposed_s: float
    by_kind: tuple[Exposure, ...]
    by_part: tuple[Exposure, ...]
    findings: tuple[Finding, ...] = ()
    all_reduces: bool = False


class Simulated:
    """The steps to simulate, and their times without some of the transfers."""

    def __init__(self, measured: Measured, n_rules: int) -> None:
        n_ops, n_dp = measured.graph.n_ops, measured.graph.n_dp
        most = max(1, MAX_VALUES // (n_ops * n_dp * max(n_rules, 1)))
        n_steps = measured.durations.n_steps
        index = np.unique(np.linspace(0, n_steps - 1, min(n_steps, most)).astype(np.int64))
        whole = len(index) == n_steps
        self.index = index
        self.durations = measured.durations if whole else measured.durations.of_steps(index)
        self.graph: StepGraph = measured.graph
        self.step_s = self.of([np.empty(0, dtype=np.int64)])[0]

    def of(self, vanishing: Sequence[Ints]) -> Array:
        """[set, step] step times if the ops of a set took 0 s."""
        keep = np.ones((len(vanishing), self.graph.n_ops), dtype=bool)
        for rule, ops in enumerate(vanishing):
            keep[rule, ops] = False
        lanes = all_lanes(self.graph, len(self.index)).repeated(len(vanishing))
        rules = Rules(keep, np.zeros(self.graph.n_ops))
        return step_times(self.durations, rules, lanes).reshape(len(vanishing), -1)

    def with_durations(self, durations: Durations) -> Array:
        """[step] step times with other durations."""
        lanes = all_lanes(self.graph, len(self.index))
        return step_times(durations, Rules.own(self.graph), lanes)


def exposures(measured: Measured, simulated: Simulated, waits: Waits) -> Communication:
    """The exposed, hidden and waited seconds of each part."""
    graph = measured.graph
    parts, kinds = parts_of(graph), kinds_of(graph)
    everything = np.concatenate(list(kinds.values()))
    sets = [*parts.values(), *kinds.values(), everything]
    shrunk = simulated.step_s - simulated.of(sets)
    exposed = [max(0.0, float(seconds.mean())) for seconds in shrunk]
    transfers = _transfers(simulated.durations)

    def row(kind: int, stage: int, chunk: int, part: int | None, ops: Ints, at: int) -> Exposure:
        first = ops[graph.variant[ops] == graph.variant[ops[0]]]
        return Exposure(
            kind=OpKind(kind).label,
            stage=stage,
            chunk=chunk,
            part=part,
            count=len(first),
            transfer_s=float(transfers[first].sum()),
            exposed_s=exposed[at],
            waited_s=waits.mean_s(ops),
        )

    by_part = [row(*key, ops, at) for at, (key, ops) in enumerate(parts.items())]
    by_kind = [
        row(kind, stage, -1, None, ops, len(parts) + at)
        for at, ((kind, stage), ops) in enumerate(kinds.items())
    ]
    step_s = float(simulated.step_s.mean())
    return Communication(
        step_s, exposed[-1], tuple(by_kind), tuple(by_part), all_reduces=graph.all_reduces
    )


def parts_of(graph: StepGraph) -> dict[tuple[int, int, int, int], Ints]:
    """(kind, stage, chunk, part) -> its ops of all variants; units and buckets, not layers."""
    keys = np.stack([graph.kind, graph.pp, graph.chunk, graph.part], axis=1)
    groups = _grouped(keys, np.isin(graph.kind, [int(kind) for kind in DP_KINDS]))
    return {(kind, stage, chunk, part): ops for (kind, stage, chunk, part), ops in groups}


def kinds_of(graph: StepGraph) -> dict[tuple[int, int], Ints]:
    """(kind, stage) -> its ops of all variants."""
    keys = np.stack([graph.kind, graph.pp], axis=1)
    groups = _grouped(keys, np.isin(graph.kind, [int(kind) for kind in DP_KINDS | PEER_KINDS]))
    return {(kind, stage): ops for (kind, stage), ops in groups}


def _grouped(keys: npt.NDArray[Any], chosen: npt.NDArray[np.bool_]) -> list[tuple[list[int], Ints]]:
    """The chosen ops by their rows of ``keys`` [op, field]."""
    wide = np.flatnonzero(chosen)
    distinct, number = np.unique(keys[wide].astype(np.int64), axis=0, return_inverse=True)
    number = number.reshape(-1)
    return [(key, wide[number == at]) for at, key in enumerate(distinct.tolist())]


def _transfers(durations: Durations) -> Array:
    """[op] mean over the steps of the slowest member's transfer; 0 for computes."""
    graph = durations.graph
    seconds = np.zeros(graph.n_ops)
    for members in graph.dp_groups:
        slowest = np.max([durations.row(op).max(axis=1) for op in members.tolist()], axis=0)
        seconds[members] = max(0.0, float(slowest.mean()))
    return seconds


@dataclass(frozen=True)
class Waits:
    """Seconds that each worker's program waits for each op.

    Attributes:
        graph: the ops.
        seconds: seconds waited for each op, summed over its variant's replicas, mean over the
            steps.
        start, end: simulated start and end of every op.
    """

    graph: StepGraph
    seconds: Array
    start: Durations
    end: Durations

    @classmethod
    def of(cls, programs: Sequence[ReplicaOps], durations: Durations) -> Waits:
        """The waits in a simulation of the steps without launch delays."""
        graph, line = durations.graph, timeline(durations)
        seconds = np.zeros(graph.n_ops)
        for v, ops in enumerate(programs):
            first = int(graph.variant_ops(v).start)
            for stage in range(graph.n_pp):
                for op, stood in _stood(ops, stage, line.end.block(v)).items():
                    seconds[first + op] = float(stood.sum(axis=1).mean())
        return cls(graph, seconds, line.start, line.end)

    def mean_s(self, ops: Ints) -> float:
        """Seconds that a worker's program waits for these ops in a step, mean over the workers."""
        return float(self.seconds[ops].sum()) / self.graph.n_dp


def _stood(ops: ReplicaOps, stage: int, end: Array) -> Mapping[int, Array]:
    """Op -> [step, dp] seconds that the program waits for it.

    A wait lasts from the end of the last compute, or of the previous wait, to the op's end.
    """
    free = np.zeros(end.shape[1:])
    local = np.isin(ops.kind, [int(kind) for kind in LOCAL_KINDS]).tolist()
    stood: dict[int, Array] = {}
    for step in program_steps(ops, stage):
        op = step if step >= 0 else ~step
        if step < 0:
            stood[op] = np.maximum(end[op] - free, 0.0)
        elif not local[op]:
            continue
        free = np.maximum(free, end[op])
    return stood
