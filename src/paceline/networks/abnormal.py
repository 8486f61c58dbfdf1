"""Abnormal runs: measured over predicted time, compared with a band.

The band has two parts: the calibration's spread on left-out runs, and the spread of repeated runs,
which grows with the GPUs. A run beyond the band is abnormal. If a series has a clearly abnormal
run, a narrower band applies to its other runs: one cause acts on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.networks.calibrate import NetworkCalibration, sample_key
from paceline.networks.limits import violations
from paceline.networks.runs import NetworkRun
from paceline.networks.split_memory import paging, step_memory
from paceline.networks.terms import split_of

Z = 2.5  # standard deviations; 1 of 160 normal runs lies beyond on this side
# Repeated runs: up to 10% apart below 256 GPUs, up to 30% above (ABCI, the same jobs run twice).
_NOISE, _QUIET_GPUS, _NOISE_PER_DOUBLING = 0.05, 64, 0.025
# From here on a run counts for its whole series; one odd run on a busy network does not.
_CLEAR_Z = 3.5
_SERIES_Z = 1.0  # for the narrower band: noise of repetition only
_FAST = 2.0  # a run faster than predicted is odd only at twice the band


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run compared with its prediction.

    Attributes:
        predicted_s: step time.
        ratio: measured over predicted; None if not measured.
        band: largest ratio of a normal run.
        abnormal: whether it is abnormal; None if not measured.
        reason: text for users; "" for a normal run within the calibrated range.
    """

    predicted_s: float
    ratio: float | None
    band: float
    abnormal: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run's numbers before the verdict."""

    run: NetworkRun
    compute_s: float
    communication_s: float
    band: float
    outside: tuple[str, ...]
    paged: str  # why it runs only with paged memory; "" if it fits

    @property
    def predicted_s(self) -> float:
        return self.compute_s + self.communication_s

    @property
    def ratio(self) -> float | None:
        return None if self.run.step_s is None else self.run.step_s / self.predicted_s


def check_runs(runs: Sequence[NetworkRun], calibration: NetworkCalibration) -> list[Check]:
    """Each of ``runs`` compared with its prediction; their ``status`` is not used."""
    seen = [_seen(run, calibration) for run in runs]
    clear: dict[tuple[object, ...], _Seen] = {}
    for item in seen:
        worst = clear.get(item.run.series)
        if _is_clear(item) and (worst is None or (item.ratio or 0) > (worst.ratio or 0)):
            clear[item.run.series] = item
    return [_check(item, clear.get(item.run.series)) for item in seen]


def noise(gpus: int) -> float:
    """Standard deviation of the logarithm of step times of repeated runs."""
    doublings = max(0.0, math.log2(max(gpus, 1) / _QUIET_GPUS))
    return _NOISE + _NOISE_PER_DOUBLING * doublings


def outside(run: NetworkRun, calibration: NetworkCalibration) -> tuple[str, ...]:
    """Properties of the run that lie outside the calibrated runs."""
    coverage, strategy = calibration.coverage, run.strategy
    # A measured row beyond a limit has another network or strategy than stated.
    reasons = [f"beyond its limit, {text}" for text in violations(run.network, strategy)]
    if run.network.name not in coverage.networks:
        reasons.append(f"no run of {run.network.name}")
    if strategy.name not in coverage.strategies:
        reasons.append(f"no run of {strategy.name}")
    elif strategy.gpus > coverage.most_gpus:
        reasons.append(f"none above {coverage.most_gpus} GPUs")
    most = coverage.samples.get(sample_key(run))
    if most is not None and strategy.samples > most * (1 + 1e-9):
        reasons.append(f"at most {most:g} samples a replica")
    return tuple(reasons)


def _seen(run: NetworkRun, calibration: NetworkCalibration) -> _Seen:
    compute, communication = split_of(calibration.terms(run))
    coverage = calibration.coverage
    spread = calibration.spread
    if run.network.name not in coverage.networks:
        spread = max(spread, calibration.spread_network)
    if run.strategy.name not in coverage.strategies:
        spread = max(spread, calibration.spread_strategy)
    band = math.exp(Z * math.hypot(spread, noise(run.strategy.gpus)))
    paged = ""
    if not run.strategy.is_pipeline:
        memory = step_memory(run.network, run.strategy)
        paged = paging(memory, calibration.cluster.gpu.memory_bytes)
    return _Seen(run, compute, communication, band, outside(run, calibration), paged)


def _is_slow(item: _Seen) -> bool:
    return item.ratio is not None and item.ratio > item.band


def _is_clear(item: _Seen) -> bool:
    return item.ratio is not None and math.log(item.ratio) > math.log(item.band) * _CLEAR_Z / Z


def _check(item: _Seen, worst: _Seen | None) -> Check:
    ratio, abnormal, reason = item.ratio, None, ""
    if ratio is not None:
        abnormal, reason = False, ""
        narrow = math.exp(_SERIES_Z * noise(item.run.strategy.gpus))
        if _is_slow(item):
            paged = f"; {item.paged}" if item.paged else ""
            abnormal, reason = True, f"{_times(ratio)} slower than predicted{_phase(item)}{paged}"
        elif ratio < 1 / (item.band * _FAST):
            abnormal, reason = True, f"{_times(1 / ratio)} faster than predicted{_phase(item)}"
        elif worst is not None and ratio > narrow:
            gpus = worst.run.strategy.gpus
            reason = (
                f"{_times(ratio)} slower than predicted, in a series that is "
                f"{_times(worst.ratio or 0)} slower on {gpus} GPUs"
            )
            abnormal = True
    if item.outside:
        note = f"outside the calibrated runs: {'; '.join(item.outside)}"
        reason = f"{reason} ({note})" if reason else note
    return Check(
        predicted_s=item.predicted_s,
        ratio=ratio,
        band=item.band,
        abnormal=abnormal,
        reason=reason,
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x"


def _phase(item: _Seen) -> str:
    """Text on the measured phase with the largest excess."""
    run = item.run
    phases = [
        ("computation", run.compute_s, item.compute_s),
        ("communication", run.communication_s, item.communication_s),
    ]
    if not all(measured for _, measured, _ in phases):
        return "; its phases were not measured"
    slow = [
        (name, measured or 0.0, predicted)
        for name, measured, predicted in phases
        if (measured or 0.0) > predicted * item.band
    ]
    slow = slow or [max(((n, m or 0.0, p) for n, m, p in phases), key=lambda x: x[1] - x[2])]
    texts = [f"{name} {m:.3g} s, not {p:.3g} s" for name, m, p in slow]
    return f": {' and '.join(texts)}"
