"""Synthesised traces with known causes: a schedule, durations, the simulator, and the truth kept.

Draws of one cause do not depend on the others' settings, so two jobs with one seed differ only in
what was asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GraphError, SynthError
from paceline.graph import Durations, StepGraph, build_graph
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.simulate import Timeline, timeline
from paceline.trace import Job, OpKind, Trace

#: Seconds of each kind in a healthy job, about those of a small dense model.
BASE_S: dict[OpKind, float] = {
    OpKind.FORWARD_COMPUTE: 0.060,
    OpKind.BACKWARD_COMPUTE: 0.120,
    OpKind.FORWARD_SEND: 0.001,
    OpKind.FORWARD_RECV: 0.001,
    OpKind.BACKWARD_SEND: 0.001,
    OpKind.BACKWARD_RECV: 0.001,
    OpKind.PARAMS_ALL_GATHER: 0.020,
    OpKind.GRADS_REDUCE_SCATTER: 0.040,
    OpKind.GC: 0.0,
    OpKind.LAYERNORM_GRADS_ALL_REDUCE: 0.0001,
    OpKind.EMBEDDING_GRADS_ALL_REDUCE: 0.010,
    OpKind.SEPARATE_GRADS_ALL_REDUCE: 0.005,
    OpKind.OPTIMIZER_CLIP_MAIN_GRAD: 0.004,
    OpKind.OPTIMIZER: 0.020,
}


@dataclass(frozen=True)
class SlowWorker:
    """A worker whose computes take ``factor`` times as long."""

    dp: int
    pp: int
    factor: float


@dataclass(frozen=True)
class SlowLink:
    """A link from stage ``pp`` to the next one, of one replica, whose transfers take longer."""

    dp: int
    pp: int
    factor: float


@dataclass(frozen=True)
class SlowNic:
    """A NIC that slows the data-parallel collectives of its worker's stage.

    Attributes:
        dp, pp: the worker.
        factor: how much longer the collectives take.
        probability: share of the steps in which it does (1: slow, less: flapping).
    """

    dp: int
    pp: int
    factor: float
    probability: float = 1.0


@dataclass(frozen=True)
class SynthSpec:
    """The job to synthesise.

    Attributes:
        dp, pp, tp, vpp: degrees of parallelism; ``vpp`` chunks per stage.
        microbatches: microbatches of every replica, or one number per replica.
        steps: number of steps.
        schedule: "gpipe", "1f1b" or "interleaved"; None: interleaved where ``vpp`` > 1, else 1f1b.
        overlap: gradients are reduced during the backward pass.
        noops: record no-op sends and recvs; None: where ``vpp`` > 1.
        noise: coefficient of variation of every duration.
        seed: seed of all draws.
        slow_workers, slow_links, slow_nics: see their classes.
        slow_last_stage: factors of the last stage's forward and backward computes.
        sequence_imbalance: coefficient of variation of the cost of a microbatch, the same in
            forward and backward and on all stages.
        gc_pauses: (probability per forward compute, seconds added to it).
        launch_delay: (seconds, probability per step and replica) before the first forward compute
            of the first stage, as a slow data loader causes.
        clock_skew_s: standard deviation of the workers' clock offsets, seconds.
    """

    dp: int = 8
    pp: int = 4
    microbatches: int | tuple[int, ...] = 16
    steps: int = 10
    tp: int = 1
    vpp: int = 1
    schedule: str | None = None
    overlap: bool = False
    noops: bool | None = None
    noise: float = 0.01
    seed: int = 0
    slow_workers: tuple[SlowWorker, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()
    slow_nics: tuple[SlowNic, ...] = ()
    slow_last_stage: tuple[float, float] | None = None
    sequence_imbalance: float = 0.0
    gc_pauses: tuple[float, float] | None = None
    launch_delay: tuple[float, float] | None = None
    clock_skew_s: float = 0.0
    base_s: dict[OpKind, float] = field(default_factory=lambda: dict(BASE_S), repr=False)

    def __post_init__(self) -> None:
        for name in ("dp", "pp", "steps", "tp", "vpp"):
            _require(
                getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}"
            )
        counts = self.replica_microbatches
        _require(
            len(counts) == self.dp, f"{len(counts)} numbers of microbatches for {self.dp} dp ranks"
        )
        _require(min(counts) >= 1, f"microbatches must be at least 1, not {min(counts)}")
        _require(
            self.schedule is None or self.schedule in SCHEDULES,
            f"there is no schedule {self.schedule!r}; known are {', '.join(SCHEDULES)}",
        )
        for name in ("noise", "sequence_imbalance", "clock_skew_s"):
            value = getattr(self, name)
            _require(0 <= value < np.inf, f"{name} must be at least 0, not {value}")
        self._check_causes()

    def _check_causes(self) -> None:
        causes: tuple[SlowWorker | SlowLink | SlowNic, ...]
        causes = (*self.slow_workers, *self.slow_links, *self.slow_nics)
        for cause in causes:
            last = self.pp - 1 if isinstance(cause, SlowLink) and self.vpp == 1 else self.pp
            what = type(cause).__name__
            _require(0 <= cause.dp < self.dp, f"{what}: there is no dp rank {cause.dp}")
            _require(0 <= cause.pp < last, f"{what}: no such stage or link: {cause.pp}")
            _require(0 < cause.factor < np.inf, f"{what}: factor {cause.factor} is not positive")
        for factor in self.slow_last_stage or ():
            _require(0 < factor < np.inf, f"slow last stage: factor {factor} is not positive")
        chances = [nic.probability for nic in self.slow_nics]
        chances += [self.gc_pauses[0]] if self.gc_pauses else []
        chances += [self.launch_delay[1]] if self.launch_delay else []
        for chance in chances:
            _require(0 <= chance <= 1, f"a probability lies between 0 and 1, not {chance}")
        seconds = [self.gc_pauses[1]] if self.gc_pauses else []
        seconds += [self.launch_delay[0]] if self.launch_delay else []
        for value in seconds:
            _require(0 <= value < np.inf, f"seconds must be at least 0, not {value}")

    @property
    def replica_microbatches(self) -> tuple[int, ...]:
        """[dp] microbatches of each replica."""
        if isinstance(self.microbatches, int):
            return (self.microbatches,) * self.dp
        return tuple(self.microbatches)

    @property
    def job(self) -> Job:
        """Degrees of parallelism of the job."""
        return Job(self.dp, self.pp, self.tp, 1, self.vpp, name="synthesised")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SynthError(message)


def synthesize(spec: SynthSpec) -> Trace:
    """A trace of the job; ``truth`` holds what was injected.

    Raises:
        SynthError: the spec contradicts itself.
    """
    graph = _graph(spec)
    durations, truth = _durations(spec, graph)
    delays, delayed = _delays(spec, graph)
    truth["launch_delays"] = delayed
    line = timeline(durations, delays=delays)
    offset = _rng(spec, "clock").normal(0.0, spec.clock_skew_s, (spec.dp, spec.pp))
    if spec.clock_skew_s:
        truth["clock_offsets_s"] = offset.tolist()
    return _trace(spec, line, offset, truth)


def _rng(spec: SynthSpec, cause: str) -> np.random.Generator:
    """Draws for one cause, independent of all others."""
    return np.random.default_rng([spec.seed, *cause.encode()])


def _graph(spec: SynthSpec) -> StepGraph:
    name = spec.schedule or ("interleaved" if spec.vpp > 1 else "1f1b")
    counts = spec.replica_microbatches
    distinct = list(dict.fromkeys(counts))
    try:
        variants = [
            replica_ops(
                SCHEDULES[name], spec.pp, n, spec.vpp, overlap=spec.overlap, noops=spec.noops
            )
            for n in distinct
        ]
        return build_graph(variants, np.array([distinct.index(n) for n in counts]), spec.job)
    except GraphError as error:
        raise SynthError(str(error)) from None


def _lognormal(
    rng: np.random.Generator, cv: float, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Factors of mean 1 and the given coefficient of variation."""
    sigma = np.sqrt(np.log1p(cv * cv))
    factors: npt.NDArray[np.float64] = rng.standard_normal(shape)
    factors *= sigma
    factors -= sigma * sigma / 2
    return np.exp(factors, out=factors)


def _durations(spec: SynthSpec, graph: StepGraph) -> tuple[Durations, dict[str, Any]]:
    durations = Durations.empty(graph, spec.steps)
    noise = _rng(spec, "noise")
    for v, block in enumerate(durations.blocks):
        ops = graph.variant_ops(v)
        base = np.array([spec.base_s[OpKind(int(kind))] for kind in graph.kind[ops]])
        base[graph.noop[ops]] = 0.0
        block[:] = base[:, None, None]
        if spec.noise:
            block *= _lognormal(noise, spec.noise, block.shape)
    _share_transfers(durations)
    causes: list[dict[str, Any]] = []
    _slow_computes(spec, durations, causes)
    _slow_transfers(spec, durations, causes)
    _pauses(spec, durations, causes)
    return durations, {"seed": spec.seed, "spec": _plain(spec), "causes": causes}


def _plain(spec: SynthSpec) -> dict[str, Any]:
    """The spec as JSON can hold it."""
    values = asdict(replace(spec, base_s={}))
    values["base_s"] = {kind.label: seconds for kind, seconds in spec.base_s.items()}
    return values


def _share_transfers(durations: Durations) -> None:
    """The members of a transfer end together: all take the time of the first."""
    graph = durations.graph
    for v, block in enumerate(durations.blocks):
        pairs = graph.variant_pairs(v)
        block[pairs[:, 1]] = block[pairs[:, 0]]
    for members in graph.dp_groups:
        _set_group(durations, members, durations.row(members[0])[:, 0])


def _set_group(
    durations: Durations, members: npt.NDArray[np.int64], per_step: npt.NDArray[np.float64]
) -> None:
    for op in members:
        durations.row(op)[:] = per_step[:, None]


def _computes(graph: StepGraph, variant: int) -> npt.NDArray[np.bool_]:
    return graph.kind[graph.variant_ops(variant)] <= OpKind.BACKWARD_COMPUTE


def _slow_computes(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    for worker in spec.slow_workers:
        v = int(graph.replica_variant[worker.dp])
        ops = np.flatnonzero(_computes(graph, v) & (graph.pp[graph.variant_ops(v)] == worker.pp))
        durations.block(v)[ops, :, graph.dp_index[worker.dp]] *= worker.factor
        causes.append({"cause": "slow-worker", **asdict(worker)})
    if spec.slow_last_stage:
        kinds = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
        for kind, factor in zip(kinds, spec.slow_last_stage, strict=True):
            for v, block in enumerate(durations.blocks):
                span = graph.variant_ops(v)
                block[(graph.kind[span] == kind) & (graph.pp[span] == spec.pp - 1)] *= factor
        forward, backward = spec.slow_last_stage
        causes.append({"cause": "slow-last-stage", "forward": forward, "backward": backward})
    if spec.sequence_imbalance:
        _imbalance(spec, durations)
        causes.append({"cause": "sequence-imbalance", "cv": spec.sequence_imbalance})


def _imbalance(spec: SynthSpec, durations: Durations) -> None:
    """One cost per microbatch, step and replica, on all its computes."""
    graph = durations.graph
    most = max(spec.replica_microbatches)
    cost = _lognormal(_rng(spec, "sequence"), spec.sequence_imbalance, (most, spec.steps, spec.dp))
    for v, block in enumerate(durations.blocks):
        ops = np.flatnonzero(_computes(graph, v))
        microbatch = graph.microbatch[graph.variant_ops(v)][ops]
        block[ops] *= cost[microbatch][:, :, graph.variant_dps[v]]


def _slow_transfers(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    for link in spec.slow_links:
        v, dp = int(graph.replica_variant[link.dp]), int(graph.dp_index[link.dp])
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v) + span.start
        ends = {link.pp, (link.pp + 1) % spec.pp}
        p2p = graph.kind[pairs[:, 0]] <= OpKind.BACKWARD_RECV
        joined = [set(stages) == ends for stages in graph.pp[pairs].tolist()]
        slow = pairs[p2p & np.array(joined, dtype=bool)].ravel() - span.start
        durations.block(v)[slow, :, dp] *= link.factor
        causes.append({"cause": "slow-link", **asdict(link)})
    for number, nic in enumerate(spec.slow_nics):
        hit = _rng(spec, f"nic{number}").random(spec.steps) < nic.probability
        for members in graph.dp_groups:
            clip = graph.kind[members[0]] == OpKind.OPTIMIZER_CLIP_MAIN_GRAD
            if not clip and graph.pp[members[0]] == nic.pp:
                times = durations.row(members[0])[:, 0]
                _set_group(durations, members, np.where(hit, times * nic.factor, times))
        name = "slow-nic" if nic.probability == 1 else "flapping-nic"
        causes.append({"cause": name, **asdict(nic), "steps": np.flatnonzero(hit).tolist()})


def _pauses(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Garbage collection stops the interpreter: some forwards, launched from Python, get longer."""
    if not spec.gc_pauses:
        return
    probability, seconds = spec.gc_pauses
    rng, n_pauses = _rng(spec, "gc"), 0
    for v, block in enumerate(durations.blocks):
        ops = np.flatnonzero(durations.graph.kind[durations.graph.variant_ops(v)] == 0)
        hit = rng.random((len(ops), *block.shape[1:])) < probability
        block[ops] += hit * seconds
        n_pauses += int(hit.sum())
    causes.append(
        {"cause": "gc-pauses", "probability": probability, "seconds": seconds, "pauses": n_pauses}
    )


def _delays(spec: SynthSpec, graph: StepGraph) -> tuple[Durations | None, list[list[float]]]:
    """Launch delays, and what was injected as [step, dp, seconds]."""
    if not spec.launch_delay:
        return None, []
    seconds, probability = spec.launch_delay
    hit = _rng(spec, "delay").random((spec.steps, spec.dp)) < probability
    delays = Durations.empty(graph, spec.steps)
    first = (graph.kind == OpKind.FORWARD_COMPUTE) & (graph.pp == 0) & (graph.seq == 0)
    for op in np.flatnonzero(first).tolist():
        dps = graph.variant_dps[int(graph.variant[op])]
        delays.row(op)[:] = hit[:, dps] * seconds
    return delays, [[int(step), int(dp), seconds] for step, dp in np.argwhere(hit)]


def _trace(
    spec: SynthSpec, line: Timeline, offset: npt.NDArray[np.float64], truth: dict[str, Any]
) -> Trace:
    """The timeline as each worker's clock would have recorded it."""
    graph, job = line.graph, spec.job
    counts = np.zeros((spec.steps, spec.dp, spec.pp, len(OpKind)), dtype=np.int32)
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        cell = graph.pp[ops] * len(OpKind) + graph.kind[ops]
        size = spec.pp * len(OpKind)
        counts[:, dps] = np.bincount(cell, minlength=size).reshape(spec.pp, len(OpKind))
    n_rows = int(counts.sum())
    dp, pp = np.mgrid[: spec.dp, : spec.pp]
    trace = Trace(
        job=job,
        steps=np.arange(spec.steps, dtype=np.int64),
        counts=counts,
        chunk=np.empty(n_rows, dtype=np.int16),
        microbatch=np.empty(n_rows, dtype=np.int32),
        start=np.empty(n_rows),
        end=np.empty(n_rows),
        step_start_s=np.full(spec.steps, np.nan),
        rank=(pp * spec.dp + dp) * spec.tp,
        truth=truth,
    )
    rows = trace.lane_rows()
    for v, dps in enumerate(graph.variant_dps):
        ops = graph.variant_ops(v)
        shift = offset[dps][:, graph.pp[ops]]  # [dp, op]
        for step in range(spec.steps):
            place = rows[step, dps][:, None] + np.arange(ops.stop - ops.start)
            trace.chunk[place] = graph.chunk[ops]
            trace.microbatch[place] = graph.microbatch[ops]
            trace.start[place] = line.start.block(v)[:, step].T + shift
            trace.end[place] = line.end.block(v)[:, step].T + shift
    first = np.minimum.reduceat(trace.start, rows[:, 0])
    per_step = counts.sum(axis=(1, 2, 3), dtype=np.int64)
    zero = np.repeat(first, per_step)
    trace.start[:] -= zero
    trace.end[:] -= zero
    return trace
