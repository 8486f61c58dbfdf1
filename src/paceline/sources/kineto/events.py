"""One rank's PyTorch profile of a pipeline's step: the types of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.sources.kineto.streams import MainStream

Times = npt.NDArray[np.float64]

#: Kind of a host's event.
ANNOTATION: Final = 0
OPERATOR: Final = 1
AUTOGRAD: Final = 2  # the engine's wrapper of one node of the backward graph
COMMUNICATION: Final = 3  # a launch, or a call that waits


class Span(NamedTuple):
    """A range on the host; ``number`` is the step's. Seconds."""

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
    """A send or recv; ``peer`` is a global rank, -1 = not known. Seconds."""

    launch_s: float
    start_s: float
    end_s: float
    sends: bool
    peer: int


class Collective(NamedTuple):
    """A collective; ``group`` names its process group, '' = not known. Seconds.

    ``kernel`` is the correlation of its kernel, -1 = none.
    """

    launch_s: float
    start_s: float
    end_s: float
    name: str
    group: str
    seq: int
    elements: int
    kernel: int = -1


class Group(NamedTuple):
    """A process group of the job that this rank is in."""

    name: str
    purpose: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Work:
    """Kernels, or on CPU operators, that compute; sorted by launch, seconds.

    Attributes:
        launch_s: [item] its launch by the host.
        start_s: [item] its begin.
        end_s: [item] its end.
        backward: [item] whether it belongs to a backward pass.
    """

    launch_s: npt.NDArray[np.float64]
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    backward: npt.NDArray[np.bool_]


class UnitRange(NamedTuple):
    """A range of FSDP2 that names its unit. Seconds."""

    start_s: float
    end_s: float
    unit: str


@dataclass(frozen=True, eq=False)
class Host:
    """The thread of the host that runs steps; events by start, seconds.

    Attributes:
        start_s: [event] its begin.
        end_s: [event] its end.
        code: [event] ``ANNOTATION``, ``OPERATOR``, ``AUTOGRAD`` or ``COMMUNICATION``.
        bound_s: [bound] starts and ends of events, except ends of launches, in order.
        inside: [bound] code of the innermost event that runs until it; ``ANNOTATION`` without one.
        launches: the collectives it launched, by launch, with gloo's end of each.
        gathers: FSDP2's ranges around gathers.
        reduces: FSDP2's ranges around reductions of gradients.
        copies: FSDP2's ranges in which gathered parameters are first touched.
        tails: FSDP2's ranges behind the last gradient that belong to the backward.
    """

    start_s: Times
    end_s: Times
    code: npt.NDArray[np.int8]
    bound_s: Times
    inside: npt.NDArray[np.int8]
    launches: tuple[Collective, ...]
    gathers: tuple[UnitRange, ...]
    reduces: tuple[UnitRange, ...]
    copies: tuple[UnitRange, ...]
    tails: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Profile:
    """Content of one rank's file.

    Attributes:
        path: the file.
        rank: global rank.
        world_size: ranks of the job; 0 = not known.
        groups: process groups that the rank is in.
        steps: ``ProfilerStep`` ranges by start, not overlapping.
        ranges: ranges of ``torch.distributed.pipelining`` by start.
        optimizer: ``Optimizer.step`` ranges by start.
        cleared: ``Optimizer.zero_grad`` ranges by start.
        loads: waits for the data loader by start, not overlapping.
        transfers: sends and recvs by launch.
        collectives: all other communication by launch.
        work: computing.
        copies: start and end of the GPU's copies and sets, seconds.
        stream: the GPU's main stream, if the profile has stream waits; None otherwise.
        host: the thread that runs the steps, if nothing runs on a GPU; None otherwise.
        on_gpu: whether ``work`` holds kernels, not host operators.
        unplaced: reason -> number of lost communication events.
    """

    path: Path
    rank: int
    world_size: int
    groups: tuple[Group, ...]
    steps: tuple[Span, ...]
    ranges: tuple[Range, ...]
    optimizer: tuple[Span, ...]
    cleared: tuple[Span, ...]
    loads: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    collectives: tuple[Collective, ...]
    work: Work
    copies: tuple[tuple[float, float], ...]
    stream: MainStream | None
    host: Host | None
    on_gpu: bool
    unplaced: Mapping[str, int]
