"""The cost of compute from a profile: seconds of operators, interpolated between measured ones.

Between measured shapes the rate (FLOP/s of products and attention, byte/s of the rest) is
interpolated in logarithms. Beyond them, the roofline is multiplied by the nearest measured shape's
ratio of time to roofline.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.compute import ComputeCost, roofline
from paceline.model.efficiency import Efficiency
from paceline.model.operators import Operator
from paceline.model.profile import OperatorProfile, Timing, load_profile

Array = npt.NDArray[np.float64]

#: Shapes beyond the measured range by less than this factor are still interpolated, without a note.
_MARGIN = 1.1
#: Number of measured shapes in one interpolation.
_NEIGHBOURS = 12


def operator_class(op: Operator) -> str:
    """Class of an operator. Operators of one class run the same kernels and differ only in shape.

    The forward products of all linear layers are one class, all norms another, and so on. The
    backward pass has its own classes.
    """
    name, _, suffix = op.name.rpartition("-")
    if suffix not in ("backward", "dgrad", "wgrad"):
        name, suffix = op.name, ""
    if op.part == "gemm":
        name = "product"
    elif name.startswith("norm-"):
        name = "norm"
    elif name.endswith("-activation"):
        name = "activation"
    elif name.startswith("residual-") or name == "shared-add":
        name = "residual"
    return f"{name}-{suffix}" if suffix else name


def one_of_batch(op: Operator) -> Operator:
    """For a batch of experts with separate kernels, one expert's product; others unchanged."""
    if op.part != "gemm" or op.batch == 1:
        return op
    n = op.batch
    kernels = max(1, op.kernels // n)
    return op._replace(batch=1, flops=op.flops / n, bytes=op.bytes / n, kernels=kernels)


def shape_of(op: Operator) -> dict[str, float]:
    """Properties that decide an operator's rate within its class."""
    if op.part == "gemm":
        return {"m": op.m, "n": op.n, "k": op.k}
    if op.part == "attention" and op.n:
        return {"batch": op.batch, "m": op.m, "n": op.n, "k": op.k}
    if op.part == "attention":
        # Tokens times heads, and keys per query: FLOPs per byte grow with the sequence.
        return {"bytes": op.bytes, "FLOP/byte": op.flops / max(op.bytes, 1.0)}
    return {"bytes": op.bytes}


def _amount(op: Operator) -> float:
    """Unit of the rate."""
    return op.bytes if op.part == "memory" else op.flops


class _Curve:
    """The measured rate of one class over its shape, both in logarithms (base 2)."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        self.timings = tuple(timings)
        self.axes = tuple(shape_of(self.timings[0].operator))
        points = [list(shape_of(timing.operator).values()) for timing in self.timings]
        self.points: Array = np.log2(np.array(points, dtype=np.float64))
        rates = [_amount(timing.operator) / timing.seconds for timing in self.timings]
        self.rates: Array = np.log2(np.array(rates, dtype=np.float64))
        self.low, self.high = self.points.min(axis=0), self.points.max(axis=0)

    def beyond(self, at: Array) -> list[int]:
        """Axes on which a point lies outside the measured range."""
        margin = math.log2(_MARGIN)
        return np.flatnonzero((at < self.low - margin) | (at > self.high + margin)).tolist()

    def nearest(self, at: Array) -> Timing:
        return self.timings[int(np.square(self.points - at).sum(axis=1).argmin())]

    def rate(self, at: Array) -> float:
        """Interpolated rate [1/s]: a plane fitted to the neighbours, weighted by their nearness.

        A slight regularisation to a flat plane resolves undetermined slopes. The rate stays within
        the neighbours' rates.
        """
        distances = np.square(self.points - at).sum(axis=1)
        near = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        if distances[near[0]] < 1e-9:  # measured: the mean of equal shapes
            return float(2.0 ** self.rates[distances < 1e-9].mean())
        weights = 1 / np.square(distances[near] + 1e-2)
        weights /= weights.sum()
        x = np.column_stack([np.ones(len(near)), self.points[near] - at])
        ridge = np.diag([0.0, *([0.02] * len(at))])
        normal = x.T @ (weights[:, None] * x) + ridge
        value = np.linalg.solve(normal, x.T @ (weights * self.rates[near]))[0]
        return float(2.0 ** np.clip(value, self.rates[near].min(), self.rates[near].max()))


class _Note(NamedTuple):
    """A place where a prediction left the profile: class, axis of its shape, value."""

    what: str
    axis: str
    value: float


class ProfileCost:
    """Seconds of an operator, from a profile; a :data:`~paceline.model.compute.ComputeCost`."""

    def __init__(self, profile: OperatorProfile, fallback: ComputeCost) -> None:
        self.profile, self.fallback = profile, fallback
        grouped: dict[str, list[Timing]] = defaultdict(list)
        by_part: dict[str, list[Timing]] = defaultdict(list)
        for timing in profile.timings:
            grouped[operator_class(timing.operator)].append(timing)
            by_part[timing.operator.part].append(timing)
        self._curves = {name: _Curve(timings) for name, timings in grouped.items()}
        self._by_part = by_part
        self._seconds_of: dict[Operator, tuple[float, tuple[_Note, ...]]] = {}
        self._notes: dict[tuple[str, str], tuple[float, float]] = {}

    def __call__(self, op: Operator) -> float:
        """Seconds of ``op``; records a note if it lies outside the profile."""
        if op not in self._seconds_of:
            single = one_of_batch(op)
            seconds, notes = self._seconds_and_notes(single)
            repeats = op.batch if single is not op else 1
            self._seconds_of[op] = seconds * repeats, notes
        seconds, notes = self._seconds_of[op]
        for subject, axis, value in notes:
            low, high = self._notes.get((subject, axis), (value, value))
            self._notes[subject, axis] = min(low, value), max(high, value)
        return seconds

    @property
    def outside(self) -> list[str]:
        """Requested properties that the profile does not cover, as text."""
        return [self._say(*key, *span) for key, span in sorted(self._notes.items())]

    def with_launches(self, cluster: Cluster) -> Cluster:
        """``cluster`` with the launch time of the profiled host.

        On a CPU an operator's seconds include the host's part.
        """
        launch_s = 0.0 if self.profile.device_kind == "cpu" else self.profile.launch_s
        return replace(cluster, efficiency=replace(cluster.efficiency, launch_s=launch_s))

    def reset(self) -> None:
        """Clear the notes; call it between two predictions."""
        self._notes.clear()

    def _seconds_and_notes(self, op: Operator) -> tuple[float, tuple[_Note, ...]]:
        name = operator_class(op)
        curve = self._curves.get(name)
        if curve is None:
            return self.fallback(op) * self._part_ratio(op), (_Note(name, "", 0.0),)
        shape = shape_of(op)
        at = np.log2(np.maximum(list(shape.values()), 1e-9))
        notes = [_Note(name, curve.axes[i], shape[curve.axes[i]]) for i in curve.beyond(at)]
        if op.flops and op.precision != self.profile.precision:
            notes.append(_Note(name, op.precision, 0.0))
        if notes:
            return self.fallback(op) * self._ratio(curve.nearest(at)), tuple(notes)
        return _amount(op) / curve.rate(at), ()

    def _ratio(self, timing: Timing) -> float:
        """Measured over modelled seconds."""
        return timing.seconds / self.fallback(timing.operator)

    def _part_ratio(self, op: Operator) -> float:
        """The ratio of the timing with the same part and the nearest amount of work."""
        timings = self._by_part.get(op.part)
        if not timings:
            return 1.0
        amount = math.log(max(_amount(op), 1.0))
        return self._ratio(
            min(timings, key=lambda timing: abs(math.log(_amount(timing.operator)) - amount))
        )

    def _say(self, subject: str, axis: str, low: float, high: float) -> str:
        if not axis:
            return f"{subject} (not profiled)"
        curve = self._curves[subject]
        if axis not in curve.axes:
            return f"{subject} in {axis} (profiled: {self.profile.precision})"
        i = curve.axes.index(axis)
        least, most = float(2.0 ** curve.low[i]), float(2.0 ** curve.high[i])
        range_text = _short(low) if low == high else f"{_short(low)} to {_short(high)}"
        return f"{subject}: {axis} {range_text} (profiled: {_short(least)} to {_short(most)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if round(value) < 1e6 else f"{value:.3g}"


def profile_cost(profile: OperatorProfile, fallback: ComputeCost) -> ProfileCost:
    """The cost of compute from a profile.

    Args:
        profile: the measured operators.
        fallback: cost to scale outside the measured range, usually the roofline of the GPU.
    """
    return ProfileCost(profile, fallback)


def cost_from_profile(path: str | Path, cluster: Cluster) -> tuple[ProfileCost, list[str]]:
    """The cost of compute from a file, and warnings if the file comes from another machine.

    Raises:
        ModelError: the file is not a profile.
    """
    profile = load_profile(path)
    cost = profile_cost(profile, roofline(cluster.gpu, cluster.efficiency))
    return cost, profile.mismatches(cluster)


def cluster_from_profile(profile: OperatorProfile) -> Cluster:
    """The profiled machine: one node of one device, with measured peaks.

    Shares of peaks are 1 if the profile measured the reached rates. The network is never used and
    gets the bandwidth of the memory. On a CPU an operator's seconds include the host's part, so
    launching adds nothing.
    """
    on_cpu = profile.device_kind == "cpu"
    source = f"measured, {profile.path or 'paceline profile'}, {profile.date}"
    gpu = Gpu(
        name=profile.device,
        peak_flops={profile.precision: profile.peak_flops},
        memory_bytes=profile.memory_bytes,
        memory_bandwidth=profile.memory_bandwidth,
        sms=profile.processors,
        source=source,
    )
    shares = dict.fromkeys(
        ("gemm", "gemm_fp8", "attention", "attention_backward", "batched", "memory"), 1.0
    )
    return Cluster(
        name=profile.device,
        gpu=gpu,
        node=Node(gpus=1, bandwidth=profile.memory_bandwidth, latency_s=0.0, source=source),
        network=Network(nics=1, nic_bandwidth=profile.memory_bandwidth, latency_s=0.0),
        efficiency=Efficiency(**shares, kernel_s=0.0, launch_s=0.0 if on_cpu else profile.launch_s),
    )
