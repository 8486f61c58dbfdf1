"""What one rank's PyTorch profile says of a pipeline's step: the types of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Span(NamedTuple):
    """A range on the host; ``number`` is a step's. Seconds."""

    start_s: float
    end_s: float
    number: int = -1


class Range(NamedTuple):
    """A range of ``torch.distributed.pipelining``; ``stage`` -1 where it names none. Seconds."""

    start_s: float
    end_s: float
    stage: int
    action: str
    microbatch: int


class Transfer(NamedTuple):
    """A send or recv; ``peer`` a global rank, -1 = not told. Seconds."""

    launch_s: float
    start_s: float
    end_s: float
    sends: bool
    peer: int


class Collective(NamedTuple):
    """A collective; ``group`` names its process group, '' = not told. Seconds."""

    launch_s: float
    start_s: float
    end_s: float
    name: str
    group: str
    seq: int
    elements: int


class Group(NamedTuple):
    """A process group of the job that this rank is in."""

    name: str
    purpose: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Work:
    """Kernels, or on CPU operators, that compute; sorted by launch, seconds.

    Attributes:
        launch_s: [item] when the host launched it.
        start_s: [item] when it began.
        end_s: [item] when it ended.
        backward: [item] whether it belongs to a backward pass.
    """

    launch_s: npt.NDArray[np.float64]
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    backward: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Profile:
    """What one rank's file says.

    Attributes:
        path: the file.
        rank: global rank.
        world_size: ranks of the job; 0 = not told.
        groups: process groups that the rank is in.
        steps: ``ProfilerStep`` ranges by start, not overlapping.
        ranges: ranges of ``torch.distributed.pipelining`` by start.
        optimizer: ``Optimizer.step`` ranges by start.
        cleared: ``Optimizer.zero_grad`` ranges by start.
        transfers: sends and recvs by launch.
        collectives: all other communication by launch.
        work: computing.
        on_gpu: whether ``work`` holds kernels, not host operators.
        unplaced: why -> how many communication events were lost.
    """

    path: Path
    rank: int
    world_size: int
    groups: tuple[Group, ...]
    steps: tuple[Span, ...]
    ranges: tuple[Range, ...]
    optimizer: tuple[Span, ...]
    cleared: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    collectives: tuple[Collective, ...]
    work: Work
    on_gpu: bool
    unplaced: Mapping[str, int]
