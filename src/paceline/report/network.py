"""Predictions and searches of networks as lines for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.plan.network_findings import findings
from paceline.plan.network_search import NetworkSearch, gpu_seconds
from paceline.plan.network_step import NetworkPrediction
from paceline.report.prices import price_text
from paceline.units import GIB, dollars, gib, in_gib

SCHEMA = 1
_LISTED = 10


def prediction_lines(prediction: NetworkPrediction) -> list[str]:
    """One prediction: step, parts, memory, limits."""
    gpu, step = prediction.cluster.gpu, prediction.step_time_s
    lines = [
        f"{prediction.network.name}, {prediction.strategy.describe()}, {gpu.name}",
        *(f"it CANNOT RUN: {reason}; the prediction if it could:" for reason in prediction.limits),
        f"step: {step:.4g} s, {prediction.samples_per_s:,.0f} samples/s",
    ]
    for name, seconds in sorted(prediction.breakdown.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<18} {seconds:9.4g} s  {seconds / step:4.0%}")
    fit = "fits" if prediction.fits else "does NOT fit"
    lines.append(f"memory: {gib(prediction.memory_bytes)} of {in_gib(gpu.memory_bytes)}, {fit}")
    for name, size in sorted(prediction.memory.items(), key=lambda item: -item[1]):
        if size:
            lines.append(f"  {name:<18} {size / GIB:9.2f} GiB")
    rows = findings(prediction)
    if rows:
        lines += ["findings:", *(f"  {row.text}" for row in rows)]
    return [*lines, *(f"note: {note}" for note in prediction.notes)]


def prediction_mapping(prediction: NetworkPrediction) -> dict[str, Any]:
    """The same for ``--json``."""
    strategy = prediction.strategy
    return {
        "schema": SCHEMA,
        "network": prediction.network.name,
        "strategy": {
            "name": strategy.name,
            "gpus": strategy.gpus,
            "split": strategy.split,
            "global_batch": strategy.global_batch,
            "spatial_until": strategy.spatial_until,
            "microbatches": strategy.microbatches,
            "precision": strategy.precision,
            "channels_last": strategy.channels_last,
            "gradient_precision": strategy.gradient_precision,
            "library": strategy.library,
            "sync_batchnorm": strategy.sync_batchnorm,
        },
        "gpu": prediction.cluster.gpu.name,
        "step_time_s": prediction.step_time_s,
        "samples_per_s": prediction.samples_per_s,
        "breakdown_s": dict(prediction.breakdown),
        "memory_bytes": dict(prediction.memory),
        "fits": prediction.fits,
        "limits": list(prediction.limits),
        "findings": [
            {"what": row.what, "seconds": row.seconds, "bytes": row.size_bytes, "text": row.text}
            for row in findings(prediction)
        ],
        "notes": list(prediction.notes),
    }


def search_lines(
    result: NetworkSearch, samples: float | None = None, top: int = _LISTED
) -> list[str]:
    """A search: the best strategy by each measure, the fastest ones, and the left-out ones."""
    lines = []
    for label, row in (
        ("fastest", result.fastest),
        ("cheapest", result.cheapest),
        ("fewest GPUs", result.fewest_gpus),
    ):
        lines.append(f"{label + ':':<13}{_row(row, samples)}")
    if result.why_not_data:
        lines.append(result.why_not_data)
    lines += ["", "speed against GPU time (Pareto):", *_rows(result.pareto[:top], samples)]
    lines += ["", "the fastest:", *_rows(result.rows[:top], samples)]
    if samples is not None:
        lines += ["", price_text(result.fastest.cluster)]
    if result.refused:
        lines += ["", "left out:", *(f"  {reason}" for reason in result.refused.values())]
    return lines


def _rows(rows: Sequence[NetworkPrediction], samples: float | None) -> list[str]:
    return [f"  {_row(row, samples)}" for row in rows]


def _row(row: NetworkPrediction, samples: float | None) -> str:
    text = f"{row.strategy.describe()}: {row.step_time_s:.4g} s, {row.samples_per_s:,.0f} samples/s"
    if samples is None:
        return text
    hours = samples / row.samples_per_s / 3600
    price = row.cluster.price_per_gpu_hour
    cost = "" if price is None else f", {dollars(hours * row.strategy.gpus * price)}"
    time = f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
    return f"{text}, {time}{cost}"


def search_mapping(result: NetworkSearch, top: int = _LISTED) -> dict[str, Any]:
    """The same for ``--json``."""
    return {
        "schema": SCHEMA,
        "fastest": prediction_mapping(result.fastest),
        "cheapest": prediction_mapping(result.cheapest),
        "fewest_gpus": prediction_mapping(result.fewest_gpus),
        "pareto": [prediction_mapping(row) for row in result.pareto],
        "rows": [
            {**prediction_mapping(row), "gpu_seconds_per_sample": gpu_seconds(row)}
            for row in result.rows[:top]
        ],
        "left_out": dict(result.refused),
        "why_not_data": result.why_not_data,
    }
