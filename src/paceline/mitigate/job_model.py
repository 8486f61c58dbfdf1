"""A job with fail-slows: its simulated step time for any placement and any shares.

The healthy duration of an op is the lower median over replicas of their medians. Fail-slows
multiply durations: computes by their machine's factor, transfers by the factors of their link or
NICs. A data-parallel collective is a ring over the replicas of its stage, in their order. It is as
slow as the slowest link or NIC of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.errors import MitigateError, RemedyError, SynthError
from paceline.graph import Durations, Measured, StepGraph, build_graph, from_trace
from paceline.mitigate.fault import COMPUTE, LINK, NIC, Fault, Worker
from paceline.remedies.regraph import ops_of
from paceline.remedies.remedy import predicted_step_s
from paceline.remedies.resize import Resizer, resizer
from paceline.remedies.typical import some_replicas
from paceline.synth import SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.trace.job import place_name
from paceline.trace.kinds import DP_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Values laid out at once in a simulation: 64 MB.
MAX_VALUES = 1 << 23

_MAX_GRAPHS = 64

#: The reason why microbatches of a recorded program cannot move.
OF_PROGRAMS = (
    "launches and waits were recorded, or computes of a worker run at once: the program of a "
    "replica with another number of microbatches is not known, and if each pass gathers or "
    "reduces, all replicas need the same number"
)

#: The reason why microbatches cannot move if groups of replicas communicate in each of them.
OF_GROUPS = (
    "groups of replicas, such as tensor-parallel peers, communicate in each microbatch: other "
    "numbers of microbatches are not simulated for them"
)


@dataclass(frozen=True)
class Setting:
    """The changes that mitigation has made to a job.

    Attributes:
        counts: [replica] microbatches of each.
        moved: (machine, its present place) of each moved machine, ascending.
        replaced: names of the fail-slows whose machines were replaced.
    """

    counts: tuple[int, ...]
    moved: tuple[tuple[Worker, Worker], ...] = ()
    replaced: frozenset[str] = frozenset()

    def swap(self, machine: Worker, place: Worker) -> Setting:
        """The setting after the machine swaps places with the machine at ``place``."""
        at = dict(self.moved)
        here = at.get(machine, machine)
        there = next((machine_ for machine_, place_ in at.items() if place_ == place), place)
        at[machine], at[there] = place, here
        moved = tuple(
            sorted((machine_, place_) for machine_, place_ in at.items() if machine_ != place_)
        )
        return replace(self, moved=moved)


@dataclass(frozen=True, eq=False)
class _Factors:
    """Factors of one candidate: [replica, ...] of distinct replicas, and of the stages' rings.

    Attributes:
        counts: [replica] microbatches.
        rows: [replica, 3, pp] factors of computes, of the link to the next stage, of NICs.
        ring: [pp] factors of collectives over a stage's replicas.
        lane: [replica] the distinct replica that it equals.
    """

    counts: Ints
    rows: Array
    ring: Array
    lane: Ints


class JobModel:
    """The typical step of a job for any fail-slows and settings. Results are cached."""

    def __init__(self, measured: Measured, *, dp: int | None = None, scale: float = 1.0) -> None:
        """Make the model from the graph and durations of a trace.

        Args:
            measured: the trace; its replicas represent all replicas of the job.
            dp: replicas of the job, if the trace shows fewer.
            scale: factor on all durations.

        Raises:
            MitigateError: ``dp`` or ``scale`` has an impossible value.
        """
        if (dp is not None and dp < 1) or not 0 < scale < np.inf:
            raise MitigateError("a job needs one replica or more, and a scale above 0")
        graph = measured.graph
        _check_program(graph)
        #: If groups of some replicas communicate, every replica is simulated, not only distinct
        #: ones.
        self._all = graph if graph.has_families or graph.peers > 1 else None
        self.peers = graph.peers
        self.dp = graph.n_dp // self.peers if dp is None else dp
        if self.peers > 1 and self.dp * self.peers != graph.n_dp:
            raise MitigateError("a job whose peers are shown apart keeps the replicas of its trace")
        self.replicas = self.dp * self.peers
        self.pp = graph.n_pp
        variant = int(np.bincount(graph.replica_variant).argmax())
        self._replica = _typical_replica(measured, variant, scale)
        self.unit = 1
        self._resizer: Resizer | None = None
        #: The reason why other numbers of microbatches cannot be simulated; "" = they can.
        self.fixed = ""
        try:
            if not graph.of_whole_passes:
                raise RemedyError(OF_PROGRAMS)
            if self._all is not None:
                raise RemedyError(OF_GROUPS)
            self._resizer = resizer(self._replica)
            self.unit = self._resizer.unit
            usual = int(self._resizer.counts[0])
        except RemedyError as error:
            self.fixed = str(error)
            usual = int(measured.microbatches[0])
        counts = (
            measured.microbatches
            if not self.fixed and dp is None
            else np.full(self.replicas, usual)
        )
        self.plain = Setting(tuple(counts.tolist()))
        self._lanes: dict[int, Durations] = {}
        self._graphs: dict[tuple[tuple[int, int], ...], StepGraph] = {}
        self._alone_s: dict[bytes, Array] = {}
        self._columns_of: dict[int, Ints] = {}
        self._simulated_s: dict[bytes, float] = {}  # settings with equal replicas are alike
        self._cache: dict[tuple[Setting, frozenset[Fault]], float] = {}

    @classmethod
    def of_spec(cls, spec: SynthSpec, *, step_s: float | None = None) -> JobModel:
        """A healthy job made by :mod:`paceline.synth`.

        Args:
            spec: its shape and durations; its causes of slowness and its noise are ignored.
            step_s: the healthy step time to scale all durations to, seconds.

        Raises:
            SynthError: the spec contradicts itself.
        """
        counts = spec.replica_microbatches
        if min(counts) != max(counts):
            raise SynthError("give one number of microbatches for all replicas")
        healthy = SynthSpec(
            dp=1, pp=spec.pp, tp=spec.tp, vpp=spec.vpp, microbatches=counts[0], steps=1, noise=0.0,
            schedule=spec.schedule, overlap=spec.overlap, noops=spec.noops, base_s=spec.base_s,
            stage_factors=spec.stage_factors,
        )  # fmt: skip
        measured = from_trace(synthesize(healthy))
        model = cls(measured, dp=spec.dp)
        if step_s is None:
            return model
        return cls(measured, dp=spec.dp, scale=step_s / model.healthy_s)

    @cached_property
    def healthy_s(self) -> float:
        """Seconds of a step without fail-slows."""
        return self.step_s(self.plain, frozenset())

    def n_ops(self, n: int) -> int:
        """Number of ops of a replica with ``n`` microbatches."""
        return self._lane(n).graph.n_ops

    def step_s(self, setting: Setting, faults: frozenset[Fault]) -> float:
        """Seconds of a step with these fail-slows, which may include replaced machines."""
        key = (setting, frozenset(f for f in faults if f.name not in setting.replaced))
        if key not in self._cache:
            self.check(faults)
            factors = self._factors(setting, faults)
            replica_key = factors.counts.tobytes() + factors.rows.tobytes() + factors.ring.tobytes()
            if replica_key not in self._simulated_s:
                self._simulated_s[replica_key] = float(self._steps_of([factors])[0])
            self._cache[key] = self._simulated_s[replica_key]
        return self._cache[key]

    def steps_s(self, settings: Sequence[Setting], faults: frozenset[Fault]) -> Array:
        """[setting] seconds of a step. Many settings at once cost little more than one."""
        self.check(faults)
        return self._steps_of([self._factors(setting, faults) for setting in settings])

    def _steps_of(self, candidates: Sequence[_Factors]) -> Array:
        lanes_of: dict[int, int] = {}
        for factors in candidates:
            for n, lanes in zip(*np.unique(factors.counts, return_counts=True), strict=True):
                lanes_of[int(n)] = max(lanes_of.get(int(n), 0), int(lanes))
        values = sum(self._lane(n).graph.n_ops * lanes for n, lanes in lanes_of.items())
        at_once = max(1, MAX_VALUES // values)
        batches = [candidates[i : i + at_once] for i in range(0, len(candidates), at_once)]
        return np.concatenate([self._simulate(batch, lanes_of) for batch in batches])

    def replica_s(self, n: int, setting: Setting, faults: frozenset[Fault]) -> Array:
        """[replica] seconds of each replica alone with ``n`` microbatches."""
        factors = self._factors(replace(setting, counts=self.plain.counts), faults)
        key = n.to_bytes(8) + factors.rows.tobytes() + factors.ring.tobytes()
        if key not in self._alone_s:
            lane = self._lane(n)
            durations = Durations.empty(lane.graph, len(factors.rows))
            table = lane.values[:, None] * self._of_ops(lane.graph, factors).T
            durations.block(0)[:, :, 0] = table
            self._alone_s[key] = predicted_step_s(durations)
        return self._alone_s[key][factors.lane]

    def check(self, faults: frozenset[Fault]) -> None:
        """Check that the machines belong to the job.

        Raises:
            MitigateError: a machine does not belong to the job.
        """
        for machine in (machine for fault in faults for machine in fault.machines):
            self._check_place(machine)
        for fault in faults:
            between = {self.worker_at(machine)[0] for machine in fault.machines}
            if self._all is not None and (fault.kind == NIC or len(between) > 1):
                raise MitigateError(
                    f"{fault.name}: collectives join groups of some replicas only, so the ones "
                    "that pass a slow NIC or link between replicas are not known"
                )

    def _check_place(self, place: Worker) -> None:
        limits = (self.dp, self.pp) if self.peers == 1 else (self.dp, self.pp, self.peers)
        if len(place) == 2 and self.peers > 1:
            raise MitigateError(
                f"which of the {self.peers} peers of dp {place[0]}, stage {place[1]}? "
                "name it: dp, stage, peer"
            )
        if len(place) != len(limits) or not all(
            0 <= n < limit for n, limit in zip(place, limits, strict=True)
        ):
            apart = f", peers 0 to {self.peers - 1}" if self.peers > 1 else ""
            raise MitigateError(
                f"there is no worker {place_name(place)}; the job has dp 0 to {self.dp - 1}, "
                f"stages 0 to {self.pp - 1}{apart}"
            )

    def worker_at(self, place: Worker) -> tuple[int, int]:
        """(replica, pp) of a place."""
        dp, pp, *peer = place
        return dp * self.peers + (peer[0] if peer else 0), pp

    def factor_of(self, fault: Fault, slowdown: float) -> float:
        """The factor of the fail-slow that makes the healthy step ``slowdown`` times as long.

        Step times show the slowdown of the job. The result is the factor of one machine.

        Raises:
            MitigateError: no factor makes the step that long.
        """
        low, high = 1.0, 2.0
        while self._slowdown(fault, high) < slowdown:
            high *= 2
            if high > 1e4:
                raise MitigateError(
                    f"{fault.name} cannot make the step {slowdown:.2f} times as long"
                )
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self._slowdown(fault, middle) < slowdown else (low, middle)
            )
        return high

    def _slowdown(self, fault: Fault, factor: float) -> float:
        slow = frozenset([replace(fault, factor=factor)])
        return float(self.steps_s([self.plain], slow)[0]) / self.healthy_s

    def _factors(self, setting: Setting, faults: frozenset[Fault]) -> _Factors:
        rows = np.ones((self.replicas, 3, self.pp))
        ring = np.ones(self.pp)
        at = dict(setting.moved)
        for fault in faults:
            if fault.name in setting.replaced:
                continue
            places = [self.worker_at(at.get(machine, machine)) for machine in fault.machines]
            dp, pp = places[0]
            if fault.kind == LINK:
                self._slow_link(rows, ring, places[0], places[1], fault.factor)
                continue
            kind = 0 if fault.kind == COMPUTE else 2
            rows[dp, kind, pp] = max(rows[dp, kind, pp], fault.factor)
            if fault.kind == NIC and self.dp > 1:
                ring[pp] = max(ring[pp], fault.factor)
        ends = np.maximum(rows[:, 2], np.roll(rows[:, 2], -1, axis=1))
        rows[:, 1] = np.maximum(rows[:, 1], ends)
        # Most replicas are healthy, so only the rows of the others are compared.
        slow = np.flatnonzero((rows != 1).any(axis=(1, 2)))
        _, sort = np.unique(rows[slow].reshape(-1, 3 * self.pp), axis=0, return_inverse=True)
        key = np.array(setting.counts, dtype=np.int64) * (self.replicas + 1)
        key[slow] += 1 + sort.reshape(-1)
        if self._all is not None:
            every = np.arange(self.replicas)
            return _Factors(key // (self.replicas + 1), rows, ring, every)
        _, first, lane = np.unique(key, return_index=True, return_inverse=True)
        return _Factors(key[first] // (self.replicas + 1), rows[first], ring, lane)

    def _slow_link(
        self, rows: Array, ring: Array, a: tuple[int, int], b: tuple[int, int], factor: float
    ) -> None:
        """Factor between two places that exchange data: neighbours in a pipeline or in a ring."""
        (dp, pp), (other_dp, other_pp) = a, b
        if dp == other_dp:
            for low, high in ((pp, other_pp), (other_pp, pp)):
                if (low + 1) % self.pp == high:
                    rows[dp, 1, low] = max(rows[dp, 1, low], factor)
        elif pp == other_pp and (dp - other_dp) % self.dp in (1, self.dp - 1):
            ring[pp] = max(ring[pp], factor)

    def _lane(self, n: int) -> Durations:
        """One healthy replica with ``n`` microbatches."""
        if n not in self._lanes:
            if self._resizer is None:
                self._lanes[n] = self._replica.durations
            else:
                self._lanes[n] = self._resizer.durations(np.array([n]))
        return self._lanes[n]

    def _graph(self, lanes_of: dict[int, int]) -> StepGraph:
        """The graph of ``most[n]`` replicas of n microbatches each."""
        key = tuple(lanes_of.items())
        if key not in self._graphs:
            variants = np.repeat(np.arange(len(lanes_of)), list(lanes_of.values()))
            if self._all is not None:
                graph = self._all
            elif self._resizer is None:
                graph = some_replicas(self._replica.graph, np.zeros(len(variants), dtype=np.int64))
            else:
                ops = [self._resizer.ops(0, n) for n in lanes_of]
                graph = build_graph(ops, variants, self._replica.job)
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.clear()
            self._graphs[key] = graph
        return self._graphs[key]

    def _simulate(self, candidates: Sequence[_Factors], lanes_of: dict[int, int]) -> Array:
        graph = self._graph(lanes_of)
        durations = Durations.empty(graph, len(candidates))
        for v, n in enumerate(lanes_of):
            lane, block = self._lane(n), durations.block(v)
            for i, factors in enumerate(candidates):
                mine = np.flatnonzero(factors.counts == n)
                if len(mine):  # otherwise 0 s: no replica waits for it
                    # A candidate with fewer distinct replicas repeats its last one, which changes
                    # nothing.
                    mine = mine[np.minimum(np.arange(lanes_of[n]), len(mine) - 1)]
                    block[:, i] = lane.values[:, None] * self._of_ops(lane.graph, factors)[mine].T
        return predicted_step_s(durations)

    def _of_ops(self, graph: StepGraph, factors: _Factors) -> Array:
        """[replica, op] factors."""
        if graph.n_ops not in self._columns_of:  # a job's graphs differ only in microbatches
            self._columns_of[graph.n_ops] = self._column_of(graph)
        of_ops: Array = self._columns(factors)[:, self._columns_of[graph.n_ops]]
        return of_ops

    def _columns(self, factors: _Factors) -> Array:
        """[replica, column] 1; computes, links (by lower stage), rings by stage; embedding."""
        n = len(factors.rows)
        ring = np.broadcast_to(factors.ring, (n, self.pp))
        ends = np.maximum(factors.rows[:, 2, 0], factors.rows[:, 2, -1])[:, None]
        tables = (np.ones((n, 1)), factors.rows[:, 0], factors.rows[:, 1], ring, ends)
        return np.concatenate(tables, axis=1)

    def _column_of(self, graph: StepGraph) -> Ints:
        """[op] the column of its factor."""
        kind, pp = graph.kind, graph.pp.astype(np.int64)
        index = np.zeros(graph.n_ops, dtype=np.int64)
        computes = (kind <= OpKind.BACKWARD_COMPUTE) | (kind == OpKind.WEIGHT_COMPUTE)
        index[computes] = (1 + pp)[computes]
        up = (kind == OpKind.FORWARD_SEND) | (kind == OpKind.BACKWARD_RECV)
        index[up] = (1 + self.pp + pp)[up]
        down = (kind == OpKind.FORWARD_RECV) | (kind == OpKind.BACKWARD_SEND)
        index[down] = (1 + self.pp + (pp - 1) % self.pp)[down]
        spans = np.isin(kind, [int(member) for member in DP_KINDS])
        index[spans] = (1 + 2 * self.pp + pp)[spans]
        index[kind == OpKind.EMBEDDING_GRADS_ALL_REDUCE] = 1 + 3 * self.pp
        return index


def _check_program(graph: StepGraph) -> None:
    """Raise MitigateError if replicas of a recorded program cannot be simulated separately."""
    if graph.programmed and graph.n_variants > 1:
        raise MitigateError(
            "replicas run different programs; paceline remedy predicts the gain of single changes"
        )


def _typical_replica(measured: Measured, variant: int, scale: float) -> Measured:
    """One step of one replica: for each op the lower median over replicas of their medians.

    With two replicas, the mean would count a slow one as half healthy. The median of all values
    would lie at random between the two.
    """
    graph = measured.graph
    of_replica = np.median(measured.durations.block(variant), axis=1)
    middle = (of_replica.shape[1] - 1) // 2
    typical = np.partition(of_replica, middle, axis=1)[:, middle] * scale
    replica_graph = some_replicas(graph, graph.variant_dps[variant][:1])
    if graph.n_variants > 1:
        variant_of_replica = np.zeros(1, dtype=np.int64)
        replica_graph = build_graph([ops_of(graph, variant)], variant_of_replica, measured.job)
    durations = Durations.empty(replica_graph, 1)
    durations.values[:] = typical
    return replace(measured, graph=replica_graph, durations=durations)
