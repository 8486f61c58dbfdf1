"""The split of a network's training: dimension, GPUs, exchange.

Paper: ParaDL, section 3 (strategies) and 4.5 (ends of spatial splits, leaders, segments).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.networks.saved import NETWORK_PRECISIONS

PURE = ("data", "spatial", "pipeline", "filter", "channel")
STRATEGIES = (*PURE, "data+filter", "data+spatial", "data+pipeline")
GRADIENTS = ("packed", "per tensor", "buckets", "none")
EXCHANGES = ("ring", "tree", "leader", "segmented")
LIBRARIES = ("nccl", "mpi")
SCHEDULES = ("gpipe", "1f1b")

#: Optimizer -> number of tensors of the weights' size that it keeps besides weight and gradient.
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}
#: Bytes per element of an exchanged gradient.
GRADIENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to train on ``gpus`` GPUs; the samples of a step are ``global_batch``.

    Attributes:
        name: one of ``STRATEGIES``.
        gpus: number of all GPUs.
        split: number of GPUs that share one sample; all GPUs if data are not split, 1 with "data".
        global_batch: samples of one step.
        grid: parts of each spatial dimension, with the product ``split``; () = only the first
            dimension.
        spatial_until: last layer (index) that is split by space; None = the last possible layer.
        gradients: form of the exchange: one packed buffer, tensor by tensor, DDP's buckets during
            the backward pass, or none if each GPU trains its own weights.
        exchange: algorithm of the exchange: a ring over all; a tree (NCCL from 2.4 on); one leader
            GPU per node; or segments. A tree's latency grows with the logarithm. Segments join the
            GPUs of equal rank in their groups.
        library: communication library: NCCL, or MPI through the hosts' memory.
        halo_library: library for halos and gathers of a spatial split; "" = ``library``.
        optimizer: one of ``OPTIMIZERS``.
        zero: ZeRO stage: 0 nothing, 1 optimizer, 2 also gradients, 3 also parameters (FSDP) are
            sharded.
        sync_batchnorm: statistics of a batch cover all its GPUs (SyncBatchNorm).
        microbatches: microbatches of a pipeline (the paper's segments S).
        schedule: schedule of a pipeline.
        recompute: activations between a stage's ends are recomputed.
        bucket_bytes: size of DDP's buckets (PyTorch: 25 MiB).
        precision: "fp32", "tf32", or "amp" (autocast to half).
        channels_last: layout of images in memory; otherwise channels first.
        gradient_precision: precision of exchanged gradients: "fp32", DDP's default, or the
            precision of its hooks ``fp16_compress_hook`` and ``bf16_compress_hook``.

    Raises:
        ModelError: the numbers do not match; the message names the nearest ones that do.
    """

    name: str
    gpus: int
    global_batch: int
    split: int = 0
    grid: tuple[int, ...] = ()
    spatial_until: int | None = None
    gradients: str = "packed"
    exchange: str = "ring"
    library: str = "nccl"
    halo_library: str = ""
    optimizer: str = "momentum"
    zero: int = 0
    sync_batchnorm: bool = False
    microbatches: int = 1
    schedule: str = "gpipe"
    recompute: bool = False
    bucket_bytes: int = 25 * 2**20
    precision: str = "fp32"
    channels_last: bool = False
    gradient_precision: str = "fp32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "halo_library", self.halo_library or self.library)
        for field, choices in (
            ("name", STRATEGIES),
            ("gradients", GRADIENTS),
            ("exchange", EXCHANGES),
            ("library", LIBRARIES),
            ("halo_library", LIBRARIES),
            ("optimizer", tuple(OPTIMIZERS)),
            ("schedule", SCHEDULES),
            ("zero", (0, 1, 2, 3)),
            ("precision", NETWORK_PRECISIONS),
            ("gradient_precision", tuple(GRADIENT_BYTES)),
        ):
            value = getattr(self, field)
            if value not in choices:
                what = "strategy" if field == "name" else field
                known = ", ".join(map(str, choices))
                raise ModelError(
                    f"no {what.replace('_', ' ')} {value!r}; choose {known}", fields=(field,)
                )
        for field in ("channels_last", "sync_batchnorm", "recompute"):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ModelError(f"{field} must be true or false, not {value!r}", fields=(field,))
        for field in ("gpus", "global_batch", "microbatches", "bucket_bytes"):
            _check_count(field, getattr(self, field))
        object.__setattr__(self, "split", self._checked_split())
        self._check_batch()
        self._check_grid()
        if self.zero and self.replicas == 1:
            raise ModelError(f"zero {self.zero} shares out replicas, and {self.name} has one")

    def _checked_split(self) -> int:
        whole = {"data": 1}.get(self.name, self.gpus)
        if self.name in PURE:
            if self.split not in (0, whole):
                raise ModelError(
                    f"{self.name} on {self.gpus} GPUs has a split of {whole}, not {self.split}"
                    + ("; for less, combine it with data" if self.name != "data" else ""),
                    fields=("split",),
                )
            return whole
        if not self.split:
            raise ModelError(
                f"{self.name} needs a split: how many GPUs share a sample; legal are "
                f"{_some(divisors(self.gpus))}",
                fields=("split",),
            )
        _check_count("split", self.split)
        if self.gpus % self.split:
            raise ModelError(
                f"a split of {self.split} does not divide {self.gpus} GPUs; the nearest that do "
                f"are {_nearest(self.split, divisors(self.gpus))}",
                fields=("split",),
            )
        return self.split

    def _check_batch(self) -> None:
        if self.global_batch < self.replicas:
            raise ModelError(
                f"{self.global_batch} samples a step leave some of {self.replicas} replicas "
                f"without any: at most {self.global_batch * self.split} GPUs, or a batch of at "
                f"least {self.replicas}",
                fields=("global_batch",),
            )
        if self.is_pipeline and self.global_batch % self.replicas:
            legal = [self.replicas * (self.global_batch // self.replicas + up) for up in (0, 1)]
            raise ModelError(
                f"{self.global_batch} samples a step do not divide among {self.replicas} "
                f"pipelines; the nearest that do are {_some(legal)}",
                fields=("global_batch",),
            )
        if self.is_pipeline and self.samples % self.microbatches:
            legal = [n for n in range(1, int(self.samples) + 1) if not self.samples % n]
            raise ModelError(
                f"{self.microbatches} microbatches do not divide the {self.samples:g} samples of "
                f"a replica; the nearest that do are {_nearest(self.microbatches, legal)}",
                fields=("microbatches",),
            )

    def _check_grid(self) -> None:
        if not self.grid:
            return
        if not self.is_spatial:
            raise ModelError(f"{self.name} does not split space; leave out the grid")
        if not 1 <= len(self.grid) <= 3 or min(self.grid) < 1:
            raise ModelError(f"a grid has 1 to 3 dimensions of 1 or more parts, not {self.grid}")
        if math.prod(self.grid) != self.split:
            raise ModelError(
                f"the grid {'x'.join(map(str, self.grid))} has {math.prod(self.grid)} parts, the "
                f"split {self.split}; choose one with as many",
                fields=("grid",),
            )

    @property
    def replicas(self) -> int:
        """Number of groups with separate samples (the paper's p1)."""
        return self.gpus // self.split

    @property
    def samples(self) -> float:
        """Samples of one replica in a step; a mean if the batch does not divide."""
        return self.global_batch / self.replicas

    @property
    def busiest_samples(self) -> int:
        """Samples of the replica with the most."""
        return -(-self.global_batch // self.replicas)

    @property
    def is_spatial(self) -> bool:
        """Whether samples are split by space."""
        return self.name.endswith("spatial")

    @property
    def is_pipeline(self) -> bool:
        """Whether layers are distributed over stages."""
        return self.name.endswith("pipeline")

    @property
    def splits_weights(self) -> str:
        """The split of weights: "filter", "channel", or "" without one."""
        last = self.name.rpartition("+")[2]
        return last if last in ("filter", "channel") else ""

    def parts(self, dimensions: int) -> tuple[int, ...]:
        """Parts of each spatial dimension of a layer."""
        grid = self.grid or (self.split,)
        return (*grid, 1, 1, 1)[:dimensions]

    def describe(self) -> str:
        """Text for users: "data+filter on 64 GPUs, 4 a sample, batch 1,024, amp"."""
        each = f", {self.split} a sample" if 1 < self.split < self.gpus else ""
        how = "" if self.precision == "fp32" else f", {self.precision}"
        how += ", channels last" if self.channels_last else ""
        return f"{self.name} on {self.gpus:,} GPUs{each}, batch {self.global_batch:,}{how}"


def divisors(number: int) -> list[int]:
    """Divisors of ``number``, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if not number % n]
    return sorted({*small, *(number // n for n in small)})


def _check_count(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = field.replace("_", " ")
        raise ModelError(f"{what} must be a whole number >= 1, not {value!r}", fields=(field,))


def _nearest(value: int, legal: list[int]) -> str:
    below = [n for n in legal if n < value][-1:]
    above = [n for n in legal if n > value][:1]
    return " and ".join(map(str, (*below, *above)))


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
