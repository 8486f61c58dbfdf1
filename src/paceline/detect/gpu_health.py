"""A GPU's telemetry, compared with the job's other GPUs in the same time.

It supplements the job's own times and never replaces them. A GPU at lower clocks may wait for
another, and one with normal telemetry may be slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.sources.telemetry.table import METRICS, Gpu, Samples, Telemetry

#: A clock or link below this share of the others' median counts as lower.
LOWER = 0.95
#: A temperature this many degrees above the others' median counts as higher.
HOTTER_C = 10.0
#: Least excess of the throttled share of time over the others'.
MORE_OFTEN = 0.1
#: A less utilised GPU has low clocks for that reason.
IDLE = 0.3

_LOWER = {
    "matmul_tflops": "fastest matrix products {:,.0f} TFLOPS",
    "sm_clock_mhz": "SM clock {:,.0f} MHz",
    "memory_clock_mhz": "memory clock {:,.0f} MHz",
    "pcie_generation": "PCIe generation {:.0f}",
    "pcie_width": "PCIe width {:.0f}",
}
_HOTTER = {"temperature_c": "{:.0f} C", "memory_temperature_c": "memory at {:.0f} C"}
_THROTTLED = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
    "sw_thermal_slowdown": "software thermal slowdown",
    "sw_power_cap": "software power cap",
    "thermal_violation_s": "throttled by heat",
    "power_violation_s": "throttled by power",
}
_COUNTED = {
    "ecc_uncorrected": "uncorrectable ECC errors",
    "remapped_rows": "rows remapped for uncorrectable errors",
    "nvlink_errors": "NVLink CRC errors",
    "pcie_replays": "PCIe replays",
    "ecc_corrected": "corrected ECC errors",
}
#: Errors that count without a comparison.
_ALWAYS = ("ecc_uncorrected", "remapped_rows")


@dataclass(frozen=True)
class Sign:
    """A difference between a GPU and the others.

    Attributes:
        metric: name in ``METRICS``.
        value: this GPU's median of a gauge, share of the time, or count.
        others: median of the other GPUs; None without others.
        before: the same GPU's value before the window; None if unknown.
        text: the difference in words.
    """

    metric: str
    value: float
    others: float | None
    before: float | None
    text: str


@dataclass(frozen=True)
class GpuHealth:
    """A GPU and its signs, in order of importance."""

    gpu: Gpu
    signs: tuple[Sign, ...]

    def explain(self) -> str:
        """The GPU and its signs in words."""
        return f"{self.gpu}: {'; '.join(sign.text for sign in self.signs) or 'like the others'}"


def gpu_health(
    telemetry: Telemetry,
    *,
    gpus: Sequence[Gpu] = (),
    begin_s: float = -math.inf,
    end_s: float = math.inf,
) -> tuple[GpuHealth, ...]:
    """GPUs with their differences from the others.

    Args:
        telemetry: samples of the job's GPUs.
        gpus: requested GPUs; without any, all GPUs with a sign.
        begin_s: begin of the window, seconds since 1970.
        end_s: end of the window.
    """
    window = {key: s.between(begin_s, end_s) for key, s in telemetry.of.items()}
    earlier = {key: s.between(-math.inf, begin_s) for key, s in telemetry.of.items()}
    values, before = _values(window), _values(earlier)
    judged = [GpuHealth(gpu, _signs(gpu, values, before)) for gpu in gpus or telemetry.gpus]
    return tuple(health for health in judged if gpus or health.signs)


def _values(samples: dict[tuple[Gpu, str], Samples]) -> dict[str, dict[Gpu, float]]:
    """Metric -> GPU -> its value in a window."""
    values: dict[str, dict[Gpu, float]] = {}
    for (gpu, metric), of in samples.items():
        value = _value(metric, of)
        if value is not None:
            values.setdefault(metric, {})[gpu] = value
    return values


def _value(metric: str, samples: Samples) -> float | None:
    kind = METRICS[metric]
    if not len(samples.value) or (kind in ("time", "counter") and len(samples.value) < 2):
        return None
    if kind == "gauge":
        return float(np.median(samples.value))
    if kind == "flag":
        return float(samples.value.mean())
    if kind == "code":
        return float(samples.value[-1])
    rise = float(np.maximum(np.diff(samples.value), 0.0).sum())  # a counter restarts at a reset
    return rise / float(np.ptp(samples.time_s)) if kind == "time" else rise


def _signs(
    gpu: Gpu, values: dict[str, dict[Gpu, float]], before: dict[str, dict[Gpu, float]]
) -> tuple[Sign, ...]:
    busy = values.get("utilization", {}).get(gpu, 1.0)
    signs = [_error_code(gpu, values)]
    if busy < IDLE:
        signs.append(Sign("utilization", busy, None, None, f"{busy:.0%} busy"))
    order = (*_COUNTED, *_THROTTLED, *_LOWER, *_HOTTER)
    signs += [
        _sign(gpu, metric, values[metric], before.get(metric, {}).get(gpu))
        for metric in order
        if gpu in values.get(metric, {}) and not (busy < IDLE and metric.endswith("clock_mhz"))
    ]
    return tuple(sign for sign in signs if sign is not None)


def _error_code(gpu: Gpu, values: dict[str, dict[Gpu, float]]) -> Sign | None:
    code = values.get("xid", {}).get(gpu, 0.0)
    return Sign("xid", code, None, None, f"last error XID {code:.0f}") if code else None


def _sign(gpu: Gpu, metric: str, values: dict[Gpu, float], before: float | None) -> Sign | None:
    """A sign if the GPU's value differs from the others', or is an error."""
    value = values[gpu]
    rest = [other for name, other in values.items() if name != gpu]
    others = float(np.median(rest)) if rest else None
    if not _is_apart(metric, value, others):
        return None
    form = _form(metric)
    compared = [] if others is None else [f"others {form(others)}"]
    if before is not None and METRICS[metric] == "gauge":
        compared.append(f"before {form(before)}")
    told = _told(metric, value)
    text = f"{told} ({'; '.join(compared)})" if compared else told
    return Sign(metric, value, others, before, text)


def _is_apart(metric: str, value: float, others: float | None) -> bool:
    if metric in _ALWAYS:
        return value > 0
    if others is None:  # hardware throttling counts alone; other reasons need a comparison
        return metric.startswith("hw_") and value > MORE_OFTEN
    if metric in _LOWER:
        return value < LOWER * others
    if metric in _HOTTER:
        return value > others + HOTTER_C
    if metric in _THROTTLED:
        return value > others + MORE_OFTEN
    return value > max(2 * others, 0.0)


def _told(metric: str, value: float) -> str:
    for table in (_LOWER, _HOTTER):
        if metric in table:
            return table[metric].format(value)
    if metric in _THROTTLED:
        return f"{_THROTTLED[metric]} {value:.0%} of the time"
    return f"{value:,.0f} {_COUNTED[metric]}"


def _form(metric: str) -> Callable[[float], str]:
    return "{:.0%}".format if metric in _THROTTLED else "{:,.0f}".format
