"""The job: its degrees of parallelism."""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from paceline.errors import TraceError

MAX_NAME = 60  # longest name of a job, in characters


def place_of(replica: int, pp: int, peers: int) -> tuple[int, ...]:
    """The place of a worker: (dp, pp), or (dp, pp, peer) if peers are apart."""
    dp, peer = divmod(int(replica), peers)
    return (dp, int(pp)) if peers == 1 else (dp, int(pp), peer)


def place_name(place: Sequence[int]) -> str:
    """``dp 3, stage 0`` for (dp, pp); ``dp 3, stage 0, peer 1`` for (dp, pp, peer)."""
    dp, pp, *peers = (int(number) for number in place)
    return f"dp {dp}, stage {pp}" + "".join(f", peer {peer}" for peer in peers)


#: How a device is named if the job's work is on the host: by the local rank, for no GPU is known.
LOCAL_RANK = "local rank "


def device_name(host: str, device: str) -> str:
    """``node-7, GPU 3``, ``node-7, local rank 3`` or ``node-7``; empty without a host."""
    if not (host and device):
        return host
    return f"{host}, {device if device.startswith(LOCAL_RANK) else f'GPU {device}'}"


@dataclass(frozen=True)
class Job:
    """Degrees of parallelism of one training job.

    Attributes:
        dp_size: data-parallel ranks, each with its own workers in the trace.
        pp_size: pipeline stages.
        tp_size: tensor-parallel ranks.
        dsp_size: further ranks that share a data-parallel group (sequence or context parallel).
        vpp_size: model chunks per stage (virtual pipeline).
        world_size: number of all ranks; 0 = the product of the degrees.
        name: the job's name for users.
        peers: number of tensor- and context-parallel ranks of a (dp, pp) that a trace shows apart;
            1 = one rank represents all. With several, a replica is the pipeline of one
            data-parallel rank and peer, numbered dp * peers + peer, with peer = tp + tp_size * cp.
    """

    dp_size: int
    pp_size: int
    tp_size: int = 1
    dsp_size: int = 1
    vpp_size: int = 1
    world_size: int = 0
    name: str = ""
    peers: int = 1

    def __post_init__(self) -> None:
        for field in ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "peers"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                shown = reprlib.repr(value)
                raise TraceError(f"the job's {field} must be a whole number >= 1, not {shown}")
        if isinstance(self.world_size, bool) or not isinstance(self.world_size, int):
            shown = reprlib.repr(self.world_size)
            raise TraceError(f"the job's world_size must be a whole number, not {shown}")
        if self.world_size < 0:
            raise TraceError(f"the job's world_size must not be negative ({self.world_size})")
        if self.world_size == 0:
            object.__setattr__(self, "world_size", self.ranks)
        if self.peers not in (1, self.tp_size * self.dsp_size):
            raise TraceError(
                f"the job shows {self.peers} ranks of each (dp, stage) apart, but has tp "
                f"{self.tp_size} x dsp {self.dsp_size} of them"
            )

    @property
    def ranks(self) -> int:
        """Product of the degrees, which ``world_size`` should equal."""
        return self.dp_size * self.pp_size * self.tp_size * self.dsp_size

    @property
    def replicas(self) -> int:
        """Number of pipelines in a trace: one per data-parallel rank and peer."""
        return self.dp_size * self.peers

    @property
    def workers(self) -> int:
        """Number of workers (replica, pp) in a trace."""
        return self.replicas * self.pp_size

    def place(self, replica: int, pp: int) -> tuple[int, ...]:
        """The place of a worker: (dp, pp), or (dp, pp, peer) if peers are apart."""
        return place_of(replica, pp, self.peers)

    def worker_at(self, place: Sequence[int]) -> tuple[int, int]:
        """(replica, pp) of a place (dp, pp) or (dp, pp, peer); the default is peer 0."""
        dp, pp, *peer = (int(number) for number in place)
        return dp * self.peers + (peer[0] if peer else 0), pp

    def replica_name(self, replica: int) -> str:
        """``dp 3``, or ``dp 3, peer 1``."""
        dp, peer = divmod(int(replica), self.peers)
        return f"dp {dp}" if self.peers == 1 else f"dp {dp}, peer {peer}"

    def worker_name(self, replica: int, pp: int) -> str:
        """``dp 3, stage 0``, or ``dp 3, stage 0, peer 1``."""
        return place_name(self.place(replica, pp))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "job") -> Job:
        """The job that a YAML or JSON mapping describes.

        ``dp_size`` and ``pp_size`` are required, the other degrees default to 1. ``trial_name`` or
        ``name`` is the job's name. Other keys are ignored.

        Raises:
            TraceError: a degree is missing or not a positive whole number.
        """
        if not isinstance(values, Mapping):
            raise TraceError(f"{where} is no mapping of degrees but {reprlib.repr(values)}")
        missing = [key for key in ("dp_size", "pp_size") if values.get(key) is None]
        if missing:
            raise TraceError(f"{where} lacks {' and '.join(missing)}; give the degrees of the job")
        known = {f.name for f in fields(cls)} - {"name"}
        degrees = {key: values[key] for key in known if values.get(key) is not None}
        name = str(values.get("name") or values.get("trial_name") or "")
        # Control characters would reach the terminal.
        name = "".join(c for c in name if unicodedata.category(c)[0] != "C")[:MAX_NAME]
        try:
            return cls(name=name, **degrees)
        except TraceError as error:
            raise TraceError(f"{where}: {error}") from None

    def to_mapping(self) -> dict[str, Any]:
        """The mapping for ``from_mapping``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.peers == 1:
            del values["peers"]
        return values
