"""Specification of a synthesised trace: the job and its causes of slowness."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from paceline.errors import SynthError
from paceline.graph.schedules import SCHEDULES
from paceline.graph.zero_bubble import SPLIT_CHUNKS, SPLIT_SCHEDULES
from paceline.synth.layers import Layers
from paceline.trace import Job, OpKind
from paceline.trace.seqlens import SeqLens

#: Healthy seconds of each kind, similar to a small dense model's.
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
    OpKind.TENSOR_COMM: 0.001,
    OpKind.EXPERT_COMM: 0.001,
    OpKind.CONTEXT_COMM: 0.001,
    OpKind.WEIGHT_COMPUTE: 0.060,
}

#: Largest number of operations; more would exceed any machine's memory.
MOST_OPS = 10**9

#: Largest factor, variation and number of seconds; with larger ones, times lose digits or overflow.
LARGEST = 1e6

#: Largest numbers of chunks per stage and of ranks in a trace file.
MOST_CHUNKS, MOST_RANKS = 2**15, 2**31

#: Attention's share of the computes. Causal attention over s tokens has s / (6 h) times the FLOPs
#: of a layer's other products, for hidden size h. That is 0.4 for s = 10K and h = 4,096, and thus
#: 0.3 of all.
SEQUENCE_MIX = 0.3


#: Fields of a spec with causes of slowness.
CAUSES = (
    *("slow_workers", "slow_links", "slow_nics", "slow_peers", "slow_last_stage"),
    *("sequence_imbalance", "stage_factors", "seqlens", "gc_pauses", "launch_delay"),
)


@dataclass(frozen=True)
class SlowWorker:
    """A worker whose computes take ``factor`` times as long.

    Attributes:
        dp, pp: the worker.
        factor: ratio of its computes' times to the healthy ones.
        peer: its number among the tensor- and context-parallel ranks of (dp, pp); None: all of
            them, as on a slow node.
    """

    dp: int
    pp: int
    factor: float
    peer: int | None = None


@dataclass(frozen=True)
class SlowPeers:
    """A slow connection, such as NVLink, between the peers of a (dp, pp).

    It slows their tensor- and context-parallel collectives.

    Attributes:
        dp, pp: the workers.
        factor: ratio of the collectives' times to the healthy ones.
    """

    dp: int
    pp: int
    factor: float


@dataclass(frozen=True)
class SlowLink:
    """A link from stage ``pp`` to the next, in one replica, whose transfers take longer."""

    dp: int
    pp: int
    factor: float


@dataclass(frozen=True)
class SlowNic:
    """A NIC that slows the data- and expert-parallel collectives of its worker.

    Attributes:
        dp, pp: the worker.
        factor: ratio of the collectives' times to the healthy ones.
        probability: share of the steps in which it is slow (1: always, less: flapping).
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
        microbatches: number of every replica's microbatches, or one number per replica.
        steps: number of steps.
        schedule: "gpipe", "1f1b" or "interleaved"; None: interleaved if ``vpp`` > 1, else 1f1b.
            "zb-h1", "zbv", "dualpipev" and "dualpipe" split the backward.
        layers: layers and communication within passes; None: passes are not divided.
        overlap: whether gradients are reduced during the backward.
        noops: whether to record no-op sends and recvs; None: if ``vpp`` > 1.
        noise: coefficient of variation of every duration.
        seed: seed of all draws.
        slow_workers, slow_links, slow_nics, slow_peers: slow parts of the job.
        slow_last_stage: factors of the last stage's forward and backward computes.
        sequence_imbalance: coefficient of variation of the cost of a microbatch, the same in
            forward and backward and on all stages.
        stage_factors: [pp] factors of each stage's forward and backward computes; None: all 1.
        seqlens: sequences of every microbatch, with costs by
            :func:`paceline.synth.sequences.microbatch_costs`; None: all cost the same.
        sequence_mix: share of the computes' time that grows with the squares of the sequence
            lengths (attention), over all microbatches; the rest grows with the tokens.
        gc_pauses: (probability per forward compute, seconds added to it).
        launch_delay: (seconds, probability per step and dp rank) of a delay before the first
            stage's first forward compute, as by a slow data loader.
        clock_skew_s: standard deviation of the workers' clock offsets, seconds.
        base_s: healthy seconds of each kind.
    """

    dp: int = 8
    pp: int = 4
    microbatches: int | tuple[int, ...] = 16
    steps: int = 10
    tp: int = 1
    vpp: int = 1
    schedule: str | None = None
    layers: Layers | None = None
    overlap: bool = False
    noops: bool | None = None
    noise: float = 0.01
    seed: int = 0
    slow_workers: tuple[SlowWorker, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()
    slow_nics: tuple[SlowNic, ...] = ()
    slow_peers: tuple[SlowPeers, ...] = ()
    slow_last_stage: tuple[float, float] | None = None
    sequence_imbalance: float = 0.0
    stage_factors: tuple[tuple[float, float], ...] | None = None
    seqlens: SeqLens | None = field(default=None, repr=False)
    sequence_mix: float = SEQUENCE_MIX
    gc_pauses: tuple[float, float] | None = None
    launch_delay: tuple[float, float] | None = None
    clock_skew_s: float = 0.0
    base_s: dict[OpKind, float] = field(default_factory=lambda: dict(BASE_S), repr=False)

    def __post_init__(self) -> None:
        self._check_size()
        self._check_schedule()
        for name in ("noise", "sequence_imbalance", "clock_skew_s"):
            _check_amount(getattr(self, name), name)
        _require(
            isinstance(self.seed, int | np.integer) and self.seed >= 0,
            f"seed must be a whole number of at least 0, not {self.seed}",
        )
        self._check_causes()
        self._check_stage_factors()
        self._check_seqlens()

    def _check_size(self) -> None:
        for name in ("dp", "pp", "steps", "tp", "vpp"):
            value = getattr(self, name)
            _require(isinstance(value, int), f"{name} must be a whole number, not {value!r}")
            _require(value >= 1, f"{name} must be at least 1, not {value}")
        several = np.ravel(self.microbatches).tolist()
        _require(
            all(isinstance(n, int) for n in several),
            f"microbatches are whole numbers, not {self.microbatches!r}",
        )
        # Checked before all numbers are listed, as a mistyped one may be a billion.
        each = max(1, several[0]) if len(several) == 1 else 1
        _check_ops(self, self.dp * each)
        counts = self.replica_microbatches
        _require(
            len(counts) == self.dp, f"{len(counts)} numbers of microbatches for {self.dp} dp ranks"
        )
        _require(min(counts) >= 1, f"microbatches must be at least 1, not {min(counts)}")
        _check_ops(self, sum(counts))
        _require(self.vpp <= MOST_CHUNKS, f"vpp must be at most {MOST_CHUNKS}, not {self.vpp}")
        _require(
            self.job.ranks <= MOST_RANKS, f"{self.job.ranks} ranks are too many to be numbered"
        )

    def _check_schedule(self) -> None:
        names = (*SCHEDULES, *SPLIT_SCHEDULES)
        _require(
            self.schedule is None or self.schedule in names,
            f"there is no schedule {self.schedule!r}; known are {', '.join(names)}",
        )
        if self.split:
            chunks = SPLIT_CHUNKS[str(self.schedule)]
            _require(
                self.vpp == chunks,
                f"{self.schedule} has {chunks} chunks per stage (vpp), not {self.vpp}",
            )
            _require(self.layers is None, f"{self.schedule} does not support layers")
        if self.layers is not None:
            self.layers.check_ranks(self.dp)
            _require(
                len(set(self.replica_microbatches)) == 1,
                "with layers, all replicas need the same number of microbatches, as they meet in "
                "every pass",
            )
            _require(not self.overlap, "layers define their own overlap; leave overlap out")

    def _check_causes(self) -> None:
        causes: tuple[SlowWorker | SlowLink | SlowNic | SlowPeers, ...]
        causes = (*self.slow_workers, *self.slow_links, *self.slow_nics, *self.slow_peers)
        for worker in self.slow_workers:
            _require(
                worker.peer is None or 0 <= worker.peer < self.job.peers,
                f"SlowWorker: there is no peer {worker.peer}; this job has {self.job.peers}, and "
                "only layers with tensor or context parallelism have several",
            )
        _require(
            not self.slow_peers or self.job.peers > 1,
            "SlowPeers: the job has no peers; give it layers, and tensor or context parallelism",
        )
        for cause in causes:
            last = self.pp - 1 if isinstance(cause, SlowLink) and self.vpp == 1 else self.pp
            what = type(cause).__name__
            _require(0 <= cause.dp < self.dp, f"{what}: there is no dp rank {cause.dp}")
            _require(0 <= cause.pp < last, f"{what}: no such stage or link: {cause.pp}")
            _check_factor(cause.factor, what)
        for factor in self.slow_last_stage or ():
            _check_factor(factor, "slow last stage")
        chances = [nic.probability for nic in self.slow_nics]
        chances += [self.gc_pauses[0]] if self.gc_pauses else []
        chances += [self.launch_delay[1]] if self.launch_delay else []
        for chance in chances:
            _require(0 <= chance <= 1, f"a probability lies between 0 and 1, not {chance}")
        seconds = [self.gc_pauses[1]] if self.gc_pauses else []
        seconds += [self.launch_delay[0]] if self.launch_delay else []
        for value in seconds:
            _check_amount(value, "seconds")

    def _check_stage_factors(self) -> None:
        if self.stage_factors is None:
            return
        n = len(self.stage_factors)
        _require(n == self.pp, f"{n} pairs of stage factors for {self.pp} stages")
        for pair in self.stage_factors:
            _require(
                len(pair) == 2 and all(0 < factor < np.inf for factor in pair),
                f"stage factors are two positive numbers, forward and backward, not {pair}",
            )
            for factor in pair:
                _check_factor(factor, "stage factors")

    def _check_seqlens(self) -> None:
        _require(
            0 <= self.sequence_mix <= 1,
            f"sequence_mix lies between 0 and 1, not {self.sequence_mix}",
        )
        if self.seqlens is None:
            return
        have, counts = self.seqlens.counts, np.array(self.replica_microbatches)
        _require(
            have.shape == (self.steps, self.dp),
            f"sequence lengths of {have.shape[0]} steps and {have.shape[1]} dp ranks for a job of "
            f"{self.steps} steps and {self.dp} dp ranks",
        )
        wrong = np.argwhere(have != counts)
        if len(wrong):
            step, dp = wrong[0]
            _require(
                False,
                f"sequence lengths of {have[step, dp]} microbatches in step {step}, dp rank {dp}, "
                f"which has {counts[dp]}",
            )

    @property
    def replica_microbatches(self) -> tuple[int, ...]:
        """[dp] microbatches of each replica."""
        if isinstance(self.microbatches, int | np.integer):
            return (int(self.microbatches),) * self.dp
        return tuple(self.microbatches)

    @property
    def job(self) -> Job:
        """Degrees of parallelism of the job."""
        if self.layers is None:
            return Job(self.dp, self.pp, self.tp, 1, self.vpp, name="synthesised")
        peers = self.layers.peers(self.tp)
        dsp = self.layers.cp
        return Job(self.dp, self.pp, self.tp, dsp, self.vpp, name="synthesised", peers=peers)

    @property
    def split(self) -> bool:
        """Whether the schedule splits the backward."""
        return self.schedule in SPLIT_SCHEDULES

    @property
    def without_causes(self) -> SynthSpec:
        """The same job without causes of slowness; other draws are the same."""
        usual: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in CAUSES}
        if self.layers is not None:
            usual["layers"] = replace(self.layers, expert_imbalance=0.0)
        return replace(self, **usual)

    def to_mapping(self) -> dict[str, Any]:
        """The spec as JSON values, without the sequence lengths."""
        values = asdict(replace(self, base_s={}, seqlens=None))
        values["base_s"] = {kind.label: seconds for kind, seconds in self.base_s.items()}
        return values


def _check_ops(spec: SynthSpec, microbatches: int) -> None:
    """Refuse a job with too many ops, from its total number of ``microbatches``."""
    # Forward and backward, each with a send and a recv.
    n_ops = 6 * microbatches * spec.pp * spec.vpp * spec.steps
    if spec.layers is not None:
        n_inner = 2 * len(spec.layers.inner_kinds(spec.tp)) + 3
        n_ops *= spec.layers.layers * n_inner * spec.layers.peers(spec.tp)
    _require(n_ops <= MOST_OPS, f"a trace of over {MOST_OPS:,} operations is too large")


def _check_factor(factor: float, what: str) -> None:
    _require(factor > 0, f"{what}: factor {factor} is not positive")
    _require(factor <= LARGEST, f"{what}: factor {factor} is above {LARGEST:,.0f}")


def _check_amount(value: float, what: str) -> None:
    _require(value >= 0, f"{what} must be at least 0, not {value}")
    _require(value <= LARGEST, f"{what} must be at most {LARGEST:,.0f}, not {value}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SynthError(message)
