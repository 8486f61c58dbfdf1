"""Prometheus' data about GPUs: the answer to a range query, or one output of an exporter's page.

DCGM's fields and xpu_timer's (:mod:`paceline.sources.telemetry.xpu_timer`) are known.

DCGM's names and labels are those of dcgm-exporter 4.2 (``etc/default-counters.csv`` at 00d6d34). A
GPU is named by the labels ``gpu`` and ``Hostname``, or ``instance`` in place of ``Hostname``. Blank
values are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.telemetry import xpu_timer
from paceline.sources.telemetry.table import REASON_BITS, Gpu, Telemetry, telemetry_of

#: Nanoseconds by DCGM's ``dcgm_fields.h``; dcgm-exporter's file of counters said microseconds until
#: its pull request 589.
_NS = 1e-9

#: DCGM's field -> (metric, value of one unit).
FIELDS: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", 0.01),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_mhz", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_c", 1.0),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie_generation", 1.0),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie_width", 1.0),
    "DCGM_FI_DEV_POWER_VIOLATION": ("power_violation_s", _NS),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("thermal_violation_s", _NS),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1.0),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows", 1.0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1.0),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("nvlink_errors", 1.0),
    "DCGM_FI_DEV_XID_ERRORS": ("xid", 1.0),
}
_REASONS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
#: DCGM's values from here on mean "blank" (dcgm_structs.h): 32-bit ones, and 64-bit ones. Times may
#: be larger than the first.
_BLANK, _BLANK_TIME = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0
_SERIES = re.compile(
    r"^((?:DCGM_FI|XPU_TIMER)_\w+)\{([^}]*)\}\s+(\S+)(?:\s+(\d+))?\s*$", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MS = 1e-3


def matches(head: str) -> bool:
    """Whether a file begins with DCGM's fields or xpu_timer's."""
    return "DCGM_FI_" in head or "XPU_TIMER_" in head


def load(path: Path) -> Telemetry:
    """Read a file.

    Raises:
        TraceError: it is damaged, or has no field that is known here.
    """
    text = path.read_text(encoding="utf-8-sig")
    is_json = text.lstrip().startswith(("{", "["))
    hangs: dict[Gpu, tuple[float, float]] = {}
    series = _of_json(text, path, hangs) if is_json else _of_page(text, path, hangs)
    rows = list(xpu_timer.fastest(series))
    note = xpu_timer.hang_note({gpu: value for gpu, (_, value) in hangs.items()})
    if not rows and not hangs:
        known = ", ".join([*FIELDS, xpu_timer.FLOPS, xpu_timer.HANG])
        raise TraceError(f"{path} has no field that is known; known are {known}")
    return telemetry_of(rows, [note] if note else [])


def _of_json(
    text: str, path: Path, hangs: dict[Gpu, tuple[float, float]]
) -> Iterator[tuple[Gpu, str, float, float]]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no JSON: {error}") from None
    for part in answer if isinstance(answer, list) else [answer]:
        data = part.get("data") if isinstance(part, dict) else None
        result = data.get("result") if isinstance(data, dict) else None
        if not isinstance(result, list):
            raise TraceError(f"{path} is no answer of Prometheus: it lacks data.result")
        for series in result:
            yield from _of_series(series, path, hangs)


def _of_series(
    series: Any, path: Path, hangs: dict[Gpu, tuple[float, float]]
) -> Iterator[tuple[Gpu, str, float, float]]:
    try:
        labels = {name: str(value) for name, value in series["metric"].items()}
        points = series["values"] if "values" in series else [series["value"]]
        samples = [(float(time_s), float(value)) for time_s, value in points]
        name = labels["__name__"]
        for time_s, value in xpu_timer.fresh(samples) if name == xpu_timer.FLOPS else samples:
            yield from _values(name, labels, time_s, value, hangs)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise TraceError(
            f"{path}: a series needs metric with __name__, and values of [time, value]; ask for "
            "the fields themselves, not for rate() of them"
        ) from None


def _of_page(
    text: str, path: Path, hangs: dict[Gpu, tuple[float, float]]
) -> Iterator[tuple[Gpu, str, float, float]]:
    taken_s = path.stat().st_mtime
    for name, labels, value, at_ms in _SERIES.findall(text):
        time_s = float(at_ms) * _MS if at_ms else taken_s
        # Older exporters do not name the host, so the file's name is used.
        named = {"Hostname": path.stem, **dict(_LABEL.findall(labels))}
        try:
            yield from _values(name, named, time_s, float(value), hangs)
        except (ValueError, OverflowError):
            raise TraceError(f"{path}: {name} has the value {value[:40]!r}, no number") from None


def _values(
    name: str,
    labels: Mapping[str, str],
    time_s: float,
    value: float,
    hangs: dict[Gpu, tuple[float, float]],
) -> Iterator[tuple[Gpu, str, float, float]]:
    """Rows of a value; ``hangs`` keeps the last value of the metric for hangs, by rank."""
    is_time = FIELDS.get(name, ("", 0.0))[1] == _NS
    if not value < (_BLANK_TIME if is_time else _BLANK):
        return
    if name == xpu_timer.FLOPS and xpu_timer.is_product(labels):
        yield xpu_timer.gpu_of(labels), xpu_timer.FASTEST, time_s, value
    elif name == xpu_timer.HANG:
        gpu = xpu_timer.gpu_of(labels)
        hangs[gpu] = max(hangs.get(gpu, (time_s, value)), (time_s, value))
    host = labels.get("Hostname") or labels.get("instance", "").rpartition(":")[0] or "?"
    gpu = Gpu(host, labels.get("gpu") or labels.get("device", "?").removeprefix("nvidia"))
    if name in _REASONS:
        for bit, reason in REASON_BITS.items():
            yield gpu, reason, time_s, float(bool(int(value) & bit))
    elif name in FIELDS:
        metric, unit = FIELDS[name]
        yield gpu, metric, time_s, value * unit
