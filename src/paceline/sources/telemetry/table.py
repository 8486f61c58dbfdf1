"""Samples of GPUs' health, from any tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
#: A gauge has a level. A flag is 0 or 1. A time counts the seconds in which a state held. A counter
#: counts events. A code is the number of the last error.
Kind = Literal["gauge", "flag", "time", "counter", "code"]


class Gpu(NamedTuple):
    """A GPU: its host, and its number there."""

    host: str
    number: str

    def __str__(self) -> str:
        return f"{self.host} GPU {self.number}"


#: Reasons for lower clocks, bit by bit: ``nvmlClocksEventReason*`` of NVML (nvml.h of CUDA 12.4),
#: which DCGM's field 112 repeats.
REASON_BITS: Mapping[int, str] = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
#: Metric -> kind.
METRICS: Mapping[str, Kind] = {
    "utilization": "gauge",
    "sm_clock_mhz": "gauge",
    "memory_clock_mhz": "gauge",
    "power_w": "gauge",
    "power_limit_w": "gauge",
    "matmul_tflops": "gauge",
    "temperature_c": "gauge",
    "memory_temperature_c": "gauge",
    "pcie_generation": "gauge",
    "pcie_width": "gauge",
    **dict.fromkeys(REASON_BITS.values(), "flag"),
    "power_violation_s": "time",
    "thermal_violation_s": "time",
    "ecc_corrected": "counter",
    "ecc_uncorrected": "counter",
    "remapped_rows": "counter",
    "pcie_replays": "counter",
    "nvlink_errors": "counter",
    "xid": "code",
}


@dataclass(frozen=True, eq=False)
class Samples:
    """A metric of a GPU over time.

    Attributes:
        time_s: [sample] seconds since 1970, ascending.
        value: [sample] in the unit of the metric's name.
    """

    time_s: Array
    value: Array

    def between(self, begin_s: float, end_s: float) -> Samples:
        """The samples from ``begin_s`` on and before ``end_s``."""
        rows = slice(*np.searchsorted(self.time_s, (begin_s, end_s)))
        return Samples(self.time_s[rows], self.value[rows])


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Samples of GPUs.

    Attributes:
        of: (GPU, metric) -> samples.
        notes: doubts about the files.
    """

    of: Mapping[tuple[Gpu, str], Samples]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, in order."""
        return tuple(sorted({gpu for gpu, _ in self.of}, key=_by_number))


def telemetry_of(
    rows: Iterable[tuple[Gpu, str, float, float]], notes: Iterable[str] = ()
) -> Telemetry:
    """Telemetry from rows (GPU, metric, time, value) in any order; missing values are left out."""
    columns: dict[tuple[Gpu, str], list[tuple[float, float]]] = {}
    for gpu, metric, time_s, value in rows:
        if np.isfinite(time_s) and np.isfinite(value):
            columns.setdefault((gpu, metric), []).append((time_s, value))
    return Telemetry(
        {key: _samples(pairs) for key, pairs in columns.items()}, tuple(dict.fromkeys(notes))
    )


def joined(parts: Iterable[Telemetry]) -> Telemetry:
    """Several files as one; of two samples at the same time, that of the later file counts."""
    parts = list(parts)
    by_key: dict[tuple[Gpu, str], list[tuple[float, float]]] = {}
    for part in parts:
        for key, samples in part.of.items():
            pairs = zip(samples.time_s.tolist(), samples.value.tolist(), strict=True)
            by_key.setdefault(key, []).extend(pairs)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Telemetry({key: _samples(pairs) for key, pairs in by_key.items()}, notes)


def _samples(pairs: list[tuple[float, float]]) -> Samples:
    table = np.array(sorted(dict(pairs).items()), dtype=np.float64)
    return Samples(table[:, 0], table[:, 1])


def _by_number(gpu: Gpu) -> tuple[str, int, str]:
    return gpu.host, int(gpu.number) if gpu.number.isdecimal() else -1, gpu.number
