"""The machines that a plan runs on: GPU, node, network, price.

``cluster_presets`` has known clusters, ``cluster_yaml`` reads and writes a user's own. Units:
FLOP/s without sparsity, bytes (decimal prefixes), byte/s in ONE direction, seconds.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError

if TYPE_CHECKING:
    from paceline.model.calibration import Calibration
    from paceline.model.efficiency import Efficiency

PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "nvfp4")
TOPOLOGIES = ("switch", "mesh", "pcie")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU (or one accelerator package), by its datasheet.

    Attributes:
        name: its name.
        peak_flops: dense FLOP/s (no sparsity) per precision of the matrix multiplications. "fp32"
            is plain fp32, not TF32. A precision that is missing is not supported.
        memory_bytes: size of its memory.
        memory_bandwidth: byte/s of its memory.
        sms: streaming multiprocessors (compute units).
        source: source of the numbers.
    """

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bandwidth: float
    sms: int
    source: str = ""

    def __post_init__(self) -> None:
        _check_text(self, "name", "the GPU")
        if not isinstance(self.peak_flops, Mapping) or not self.peak_flops:
            raise ModelError(
                f"the GPU's peak_flops must map a precision to FLOP/s ({{bf16: 312e12}}), not "
                f"{reprlib.repr(self.peak_flops)}",
                fields=("peak_flops",),
            )
        for precision, peak in self.peak_flops.items():
            if precision not in PRECISIONS:
                raise ModelError(
                    f"the GPU's peak_flops names the precision {reprlib.repr(precision)}; known "
                    f"are {', '.join(PRECISIONS)}",
                    fields=("peak_flops",),
                )
            subject = f"the GPU's peak_flops for {precision}"
            _check_value(peak, "peak_flops", subject, "FLOP/s")
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))
        _check_number(self, "memory_bytes", "the GPU", "bytes")
        _check_number(self, "memory_bandwidth", "the GPU", "byte/s")
        _check_count(self, "sms", "the GPU")

    def peak(self, precision: str) -> float:
        """Dense peak [FLOP/s] at a precision.

        Raises:
            ModelError: this GPU does not support the precision.
        """
        try:
            return self.peak_flops[precision]
        except KeyError:
            raise ModelError(
                f"the GPU {self.name} has no {precision}; it supports "
                f"{', '.join(self.peak_flops)}: choose one, or give its peak_flops in the cluster"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The GPUs that share a fast interconnect (NVLink, Infinity Fabric, PCIe).

    Attributes:
        gpus: GPUs in it.
        bandwidth: byte/s per GPU in one direction, all of its links together.
        latency_s: seconds per hop of a collective inside the node, without the data.
        topology: "switch" (any GPU reaches any other at full bandwidth) or "pcie" (shared bus). Or
            "mesh": the bandwidth is divided among links to each of the others.
        host_bandwidth: byte/s in one direction between a GPU and its host's memory while all GPUs
            of the node copy; None = unknown.
        source: source of the numbers.
    """

    gpus: int
    bandwidth: float
    latency_s: float
    topology: str = "switch"
    host_bandwidth: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _check_count(self, "gpus", "the node")
        _check_number(self, "bandwidth", "the node", "byte/s")
        _check_number(self, "latency_s", "the node", "seconds", zero=True)
        if self.host_bandwidth is not None:
            _check_number(self, "host_bandwidth", "the node", "byte/s")
        if self.topology not in TOPOLOGIES:
            raise ModelError(
                f"the node's topology must be {', '.join(TOPOLOGIES[:-1])} or {TOPOLOGIES[-1]}, "
                f"not {reprlib.repr(self.topology)}",
                fields=("topology",),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between the nodes.

    Attributes:
        nics: network adapters per node.
        nic_bandwidth: byte/s of each adapter in one direction.
        latency_s: seconds per hop between nodes, without the data.
        oversubscription: how many times more bandwidth the nodes have than the core (1 = none).
        source: source of the numbers.
    """

    nics: int
    nic_bandwidth: float
    latency_s: float
    oversubscription: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        _check_count(self, "nics", "the network")
        _check_number(self, "nic_bandwidth", "the network", "byte/s")
        _check_number(self, "latency_s", "the network", "seconds", zero=True)
        _check_number(self, "oversubscription", "the network", "(1 = none)")
        if self.oversubscription < 1:
            raise ModelError(
                f"the network's oversubscription must be >= 1 (1 = none), not "
                f"{self.oversubscription:g}",
                fields=("oversubscription",),
            )

    @property
    def node_bandwidth(self) -> float:
        """byte/s that leave (or enter) one node when all nodes send at once."""
        return self.nics * self.nic_bandwidth / self.oversubscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs, with the network between them.

    Attributes:
        name: its name.
        gpu: one of its GPUs.
        node: interconnect of the GPUs in a node.
        network: the network between nodes.
        price_per_gpu_hour: dollars; None = unknown.
        price_source: source of the price, with its date.
        efficiency: reached shares of the peaks.
        calibration: the runs behind the efficiencies; None = not calibrated.
    """

    name: str
    gpu: Gpu
    node: Node
    network: Network
    price_per_gpu_hour: float | None = None
    price_source: str = ""
    efficiency: Efficiency = field(default_factory=lambda: _default_efficiency())
    calibration: Calibration | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        _check_text(self, "name", "the cluster")
        for member, kind in (("gpu", Gpu), ("node", Node), ("network", Network)):
            if not isinstance(getattr(self, member), kind):
                value = reprlib.repr(getattr(self, member))
                raise ModelError(
                    f"the cluster's {member} must be a {kind.__name__}, not {value}",
                    fields=(member,),
                )
        if self.price_per_gpu_hour is not None:
            _check_number(self, "price_per_gpu_hour", "the cluster", "dollars", zero=True)

    def nodes(self, gpus: int) -> int:
        """Nodes that these GPUs take."""
        return -(-gpus // self.node.gpus)


def _default_efficiency() -> Any:
    from paceline.model.efficiency import Efficiency

    return Efficiency()


def _check_text(owner: object, name: str, subject: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, str) or not value.strip():
        raise ModelError(
            f"{subject}'s {name} must be a text, not {reprlib.repr(value)}", fields=(name,)
        )


def _check_count(owner: object, name: str, subject: str) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(
            f"{subject}'s {name} must be a whole number >= 1, not {reprlib.repr(value)}",
            fields=(name,),
        )


def _check_number(owner: object, name: str, subject: str, unit: str, *, zero: bool = False) -> None:
    """A finite number above 0 (or from 0 on)."""
    _check_value(getattr(owner, name), name, f"{subject}'s {name}", unit, zero=zero)


def _check_value(value: object, field: str, subject: str, unit: str, *, zero: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):  # type: ignore[operator]  # a number, if good
        least = ">= 0" if zero else "> 0"
        raise ModelError(
            f"{subject} must be a number {least} [{unit}], not {reprlib.repr(value)}",
            fields=(field,),
        )
