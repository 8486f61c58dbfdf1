"""Search over all strategies, splits and numbers of GPUs of a network.

Paper: ParaDL, 4.1 ("suggesting the best strategy for a given CNN, dataset and resource budget").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import PlanError
from paceline.model.cluster import Cluster
from paceline.networks.compute import ComputeConstants
from paceline.networks.factors import Factors
from paceline.networks.layer import LayerNetwork
from paceline.networks.limits import spatial_end, violations
from paceline.networks.strategy import PURE, STRATEGIES, Strategy, divisors
from paceline.plan.network_step import NetworkPrediction, predict_network
from paceline.units import in_gib

MOST_COUNTS = 16  # most numbers of GPUs in one search; a range is thinned to powers of two
_MICROBATCHES = 8
_ENDS = 2  # ends tried for a spatial split, besides the furthest
_LARGEST_SPLIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSearch:
    """Result of a search.

    Attributes:
        rows: predictions that fit, the most samples per second first.
        refused: strategy -> the first reason why it was left out.
        why_not_data: a line if data parallelism is not the fastest; "" if it is.
    """

    rows: tuple[NetworkPrediction, ...]
    refused: dict[str, str]
    why_not_data: str

    @property
    def fastest(self) -> NetworkPrediction:
        """The row with the most samples per second."""
        return self.rows[0]

    @property
    def cheapest(self) -> NetworkPrediction:
        """The row with the least GPU time per sample."""
        return min(self.rows, key=gpu_seconds)

    @property
    def fewest_gpus(self) -> NetworkPrediction:
        """The fastest row among those with the fewest GPUs."""
        return min(self.rows, key=lambda row: (row.strategy.gpus, -row.samples_per_s))

    @property
    def pareto(self) -> tuple[NetworkPrediction, ...]:
        """Rows that no other beats in both samples per second and GPU time per sample."""
        front: list[NetworkPrediction] = []
        for row in self.rows:
            if not front or gpu_seconds(row) < gpu_seconds(front[-1]) * (1 - 1e-9):
                front.append(row)
        return tuple(front)


def gpu_seconds(row: NetworkPrediction) -> float:
    """GPU-seconds of one sample."""
    return row.strategy.gpus / row.samples_per_s


def search_networks(
    network: LayerNetwork,
    cluster: Cluster,
    gpus: Sequence[int],
    *,
    batch_per_gpu: int | None = None,
    global_batch: int | None = None,
    factors: Factors | None = None,
    software: ComputeConstants | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkSearch:
    """Predict every strategy and split, and keep what fits.

    Args:
        network: its layers.
        cluster: the machines.
        gpus: numbers of GPUs to try.
        batch_per_gpu: samples of a GPU in a step; or
        global_batch: samples of all GPUs in a step.
        factors: factors of a calibration.
        software: constants of its kernels; None = the GPU's constants.
        options: fields of ``Strategy`` for all candidates: precision, optimizer, ...

    Raises:
        PlanError: no batch, or nothing fits; the message says why.
    """
    for name, value in (("per GPU", batch_per_gpu), ("of a step", global_batch)):
        if value is not None and value < 1:
            raise PlanError(f"a batch {name} has 1 sample at least, not {value}")
    samples = global_batch if batch_per_gpu is None else batch_per_gpu
    if samples is None or None not in (batch_per_gpu, global_batch):
        raise PlanError("give either a batch per GPU or a global batch")
    rows: list[NetworkPrediction] = []
    refused: dict[str, str] = {}
    for count in thinned(gpus):
        batch = samples if batch_per_gpu is None else samples * count
        for strategy in candidates(network, count, batch, options or {}):
            reasons = violations(network, strategy)
            if not reasons:
                row = predict_network(
                    network, strategy, cluster, factors=factors, software=software
                )
                if row.fits:
                    rows.append(row)
                    continue
                reasons = (memory_reason(row),)
            refused.setdefault(strategy.name, reasons[0])
    if not rows:
        text = "; ".join(refused.values()) or "no GPU count has a strategy"
        raise PlanError(f"nothing fits: {text}")
    rows.sort(key=lambda row: (-row.samples_per_s, row.strategy.gpus))
    return NetworkSearch(
        rows=tuple(rows), refused=refused, why_not_data=_why_not_data(rows, refused)
    )


def thinned(gpus: Sequence[int]) -> list[int]:
    """At most ``MOST_COUNTS`` numbers: both ends, and powers of two between them."""
    counts = sorted(set(gpus))
    if len(counts) <= MOST_COUNTS:
        return counts
    return [n for n in counts if n in (counts[0], counts[-1]) or not n & (n - 1)]


def candidates(
    network: LayerNetwork, gpus: int, batch: int, options: Mapping[str, Any]
) -> Iterator[Strategy]:
    """Strategies on ``gpus`` GPUs that the batch allows, pure ones first."""
    splits = [n for n in divisors(gpus) if 1 < n < gpus and n <= _LARGEST_SPLIT]
    for name in STRATEGIES:
        if name != "data" and gpus == 1:
            continue
        for split in (0,) if name in PURE else splits:
            group = {"data": 1}.get(name, split or gpus)
            uneven = name.endswith("pipeline") and batch % (gpus // group)
            if batch < gpus // group or uneven:
                continue
            for until in _ends(network, group) if name.endswith("spatial") else (None,):
                fields = {
                    "split": split,
                    "spatial_until": until,
                    "microbatches": _microbatches(batch // (gpus // group))
                    if name.endswith("pipeline")
                    else 1,
                    "gradients": "buckets" if name.startswith("data") else "packed",
                    "exchange": "ring" if options.get("library") == "mpi" else "tree",
                }
                yield Strategy(name=name, gpus=gpus, global_batch=batch, **{**fields, **options})


def _microbatches(samples: int) -> int:
    return max((n for n in range(1, _MICROBATCHES + 1) if not samples % n), default=1)


def _ends(network: LayerNetwork, split: int) -> tuple[int | None, ...]:
    """Ends of a spatial split: the furthest, and the first layers that shrink the image."""
    last = spatial_end(network, (split,))
    shrinking = [
        index
        for index, layer in enumerate(network.layers[: last + 1])
        if layer.kind == "pool" and index < last
    ]
    whole = last == spatial_end(network)
    return (None if whole else last, *shrinking[:_ENDS])


def memory_reason(row: NetworkPrediction) -> str:
    """Parts of the memory: "data: 18.7 GiB of 16.0 GiB, activations 17.0 GiB"."""
    what, size = max(row.memory.items(), key=lambda item: item[1])
    room = row.cluster.gpu.memory_bytes
    return (
        f"{row.strategy.name}: {in_gib(row.memory_bytes)} of {in_gib(room)}, {what} {in_gib(size)}"
    )


def _why_not_data(rows: Sequence[NetworkPrediction], refused: dict[str, str]) -> str:
    best = rows[0]
    if best.strategy.name == "data":
        return ""
    same = [
        row
        for row in rows
        if row.strategy.name == "data" and row.strategy.gpus == best.strategy.gpus
    ]
    if not same:
        reason = refused.get("data", f"data: a step of {best.strategy.global_batch} samples")
        return f"why not data parallelism: {reason}"
    data = same[0]
    gradients = sum(s for name, s in data.breakdown.items() if name.startswith("gradients"))
    return (
        f"why not data parallelism: {data.step_time_s:.3g} s a step, not {best.step_time_s:.3g} s; "
        f"its gradient exchange takes {gradients:.3g} s"
    )
