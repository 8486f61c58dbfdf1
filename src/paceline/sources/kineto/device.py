"""One rank's PyTorch profile -> the activity of its device, for a report on this rank alone.

Held against the test data of HTA (commit f4d0062: NVIDIA, AMD and MTIA) and of TraceLens (commit
171dd74). The rule for communication follows HTA (``hta/common/types.py``), plus DeepEP's kernels.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole
from paceline.sources.kineto.complete_events import Event, Handler, dispatch
from paceline.sources.kineto.events import Span
from paceline.sources.kineto.profile import STEP_RANGE

Times = npt.NDArray[np.float64]


class Work(IntEnum):
    """Kind of a device's event."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    OTHER = 3


#: NCCL and RCCL (``nccl...``), HCCL, NVSHMEM and DeepEP (``internode::dispatch``). HTA counts
#: DeepEP as computing.
_COMMUNICATION = re.compile(
    r"^nccl|^hccl|ncclKernel|ncclDevKernel|nvshmem|deep_ep::|\b(?:inter|intra)node(?:_ll)?::"
)
_MEMORY = re.compile(r"^(?:hip)?Mem(?:cpy|set)|^dma")
#: MTIA's control of jobs; HTA counts it neither as computing nor as communication.
_OTHER = re.compile(
    r"^runFunction|^job_exe|^packet|^pe_exe|^cpum_exe_subgraph|^collective_subgraph_execution"
)

#: Categories of events, lower case; older profilers wrote ``Kernel``, ``Memcpy``, ``Runtime``.
_COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime", "hip_runtime", "xpu_runtime")
_OPERATORS = ("cpu_op", "operator")
#: The fields of an event's ``args`` that are read.
_ARGS = ("correlation", "stream")


#: If a schedule overlaps passes, its ranges name the direction: ``attn(F)``, ``dispatch(B)``,
#: ``mlp(W)`` (deepseek-ai/profile-data, commit 4496024, ``train.json``: DualPipe).
_PASS_RANGE = re.compile(r"(.{1,80})\((F|B|W)\)")


@dataclass(frozen=True)
class PassRange:
    """A range of the host that launched work of one direction. Times in seconds.

    Attributes:
        start_s, end_s: begin and end of the range.
        name: name of the range, ``attn(F)``.
        way: ``F`` forward, ``B`` backward (of the inputs), ``W`` of the weights.
    """

    start_s: float
    end_s: float
    name: str
    way: str


@dataclass(frozen=True, eq=False)
class RankFile:
    """Content of one file. Times in seconds since the file's first event of interest.

    Attributes:
        path: the file.
        rank: global rank; None if the file does not have it.
        world_size: ranks of the job; 0 = not known.
        device: name of the device; '' = not known.
        names: names of events and operators.
        start_s: [event] begin on the device.
        end_s: [event] end on the device.
        work: [event] a :class:`Work`.
        name: [event] its place in ``names``.
        stream: [event] the stream; -1 = not known.
        launch_s: [event] begin of the host's call that launched it; nan = not in the file.
        launched_s: [event] return of that call; nan = not in the file.
        steps: ``ProfilerStep`` ranges of the host by start.
        operators: [operator] start and end of operators outside of any other, and their thread and
            name; only if the device ran nothing.
        passes: ranges of the host that name the direction of the work they launch, by start.
    """

    path: Path
    rank: int | None
    world_size: int
    device: str
    names: tuple[str, ...]
    start_s: Times
    end_s: Times
    work: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int64]
    launch_s: Times
    launched_s: Times
    steps: tuple[Span, ...]
    operators: Operators
    passes: tuple[PassRange, ...] = ()


@dataclass(frozen=True, eq=False)
class Operators:
    """The host's outermost operators: [operator] times in seconds, and name."""

    start_s: Times
    end_s: Times
    thread: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]


def read_device(path: Path) -> RankFile:
    """Read one rank's file as a stream; memory per kernel is some 50 bytes, per launch 24.

    Raises:
        TraceError: it is damaged, or has neither kernels, operators nor steps.
    """
    reader = _Reader()
    header = dispatch(path, reader.handlers, 1.0, _ARGS)
    return reader.finish(path, header)


class _Reader:
    """Sorts a file's events; times in microseconds, as the file has them."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            "user_annotation": self._annotation,
            "kernel": self._kernel,
            "mtia_ccp_events": self._on_mtia,
            **dict.fromkeys(_COPIES, self._copy),
            **dict.fromkeys(_LAUNCHES, self._launch),
            **dict.fromkeys(_OPERATORS, self._operator),
        }
        self._names: dict[str, int] = {}
        self._work_of: dict[int, Work] = {}
        self._threads: dict[str, int] = {}
        self._steps: list[Span] = []
        self._passes: list[PassRange] = []
        self._times = (array("d"), array("d"))
        self._work, self._name = array("b"), array("i")
        self._stream, self._correlation = array("q"), array("q")
        self._launches = (array("d"), array("d"), array("q"))
        self._operators = (array("d"), array("d"), array("i"), array("i"))

    def _annotation(self, event: Event, start_us: float, end_us: float) -> None:
        name = str(event.name)
        if match := STEP_RANGE.fullmatch(name):
            self._steps.append(Span(start_us, end_us, int(match[1])))
        elif match := _PASS_RANGE.fullmatch(name):
            self._passes.append(PassRange(start_us, end_us, name, match[2]))

    def _kernel(self, event: Event, start_us: float, end_us: float) -> None:
        name = self._name_of(event)
        work = self._work_of.get(name)
        if work is None:
            work = self._work_of[name] = work_of(str(event.name))
        self._add(event, work, name, start_us, end_us)

    def _on_mtia(self, event: Event, start_us: float, end_us: float) -> None:
        if event.args.stream is not None:  # other events are not work of a stream (HTA's rule)
            self._kernel(event, start_us, end_us)

    def _copy(self, event: Event, start_us: float, end_us: float) -> None:
        self._add(event, Work.MEMORY, self._name_of(event), start_us, end_us)

    def _add(self, event: Event, work: Work, name: int, start_us: float, end_us: float) -> None:
        stream = optional_whole(event.args.stream)
        correlation = optional_whole(event.args.correlation)
        self._times[0].append(start_us)
        self._times[1].append(end_us)
        self._work.append(work)
        self._name.append(name)
        self._stream.append(-1 if stream is None else stream)
        self._correlation.append(-1 if correlation is None else correlation)

    def _launch(self, event: Event, start_us: float, end_us: float) -> None:
        correlation = optional_whole(event.args.correlation)
        if correlation is not None:
            self._launches[0].append(start_us)
            self._launches[1].append(end_us)
            self._launches[2].append(correlation)

    def _operator(self, event: Event, start_us: float, end_us: float) -> None:
        if self._work:  # the device ran something: operators are not reported
            return
        thread = self._threads.setdefault(str(event.tid), len(self._threads))
        self._operators[0].append(start_us)
        self._operators[1].append(end_us)
        self._operators[2].append(thread)
        self._operators[3].append(self._name_of(event))

    def _name_of(self, event: Event) -> int:
        return self._names.setdefault(str(event.name), len(self._names))

    def finish(self, path: Path, header: Mapping[str, Any]) -> RankFile:
        """The content of the file; times count from its first event.

        Raises:
            TraceError: the file has nothing to report.
        """
        if not (self._work or self._steps or self._operators[0]):
            raise TraceError(
                f"{path} has no kernels, no operators and no ProfilerStep ranges; is it a profile "
                "of torch.profiler?"
            )
        start, end = (np.array(times) for times in self._times)
        launch_us, launched_us = self._launched()
        operators = self._outer_operators()
        steps = sorted(set(self._steps))
        first = min(
            float(start.min(initial=np.inf)),
            float(operators.start_s.min(initial=np.inf)),
            min((step.start_s for step in steps), default=np.inf),
        )

        def seconds(times_us: Times) -> Times:
            return (times_us - first) * 1e-6

        info = mapping(header, "distributedInfo")
        return RankFile(
            path=path,
            rank=optional_whole(info.get("rank")),
            world_size=optional_whole(info.get("world_size")) or 0,
            device=_device(header),
            names=tuple(self._names),
            start_s=seconds(start),
            end_s=seconds(end),
            work=np.array(self._work, dtype=np.int8),
            name=np.array(self._name, dtype=np.int32),
            stream=np.array(self._stream, dtype=np.int64),
            launch_s=seconds(launch_us),
            launched_s=seconds(launched_us),
            steps=tuple(
                Span((step.start_s - first) * 1e-6, (step.end_s - first) * 1e-6, step.number)
                for step in steps
            ),
            operators=Operators(
                seconds(operators.start_s),
                seconds(operators.end_s),
                operators.thread,
                operators.name,
            ),
            passes=tuple(
                PassRange((p.start_s - first) * 1e-6, (p.end_s - first) * 1e-6, p.name, p.way)
                for p in sorted(self._passes, key=lambda item: (item.start_s, -item.end_s))
            ),
        )

    def _launched(self) -> tuple[Times, Times]:
        """[event] begin and end of the call that launched it, microseconds; nan = none."""
        begin, end, of = (np.array(column) for column in self._launches)
        wanted = np.array(self._correlation, dtype=np.int64)
        if not len(of):
            return np.full(len(wanted), np.nan), np.full(len(wanted), np.nan)
        order = np.argsort(of, kind="stable")
        at = np.searchsorted(of[order], wanted).clip(max=len(of) - 1)
        rows = order[at]
        absent = (of[rows] != wanted) | (wanted < 0)
        return np.where(absent, np.nan, begin[rows]), np.where(absent, np.nan, end[rows])

    def _outer_operators(self) -> Operators:
        """The outermost operators of their thread, in microseconds."""
        start, end, thread, name = (np.array(column) for column in self._operators)
        rows = np.arange(0) if self._work else outermost(start, end, thread)
        return Operators(start[rows], end[rows], thread[rows], name[rows])


def outermost(
    start: npt.NDArray[Any], end: npt.NDArray[Any], thread: npt.NDArray[Any]
) -> npt.NDArray[np.intp]:
    """Indices of the ranges that are in no other range of their thread, by thread and start."""
    order = np.lexsort((-end, start, thread))
    outer = np.zeros(len(order), dtype=bool)
    for one in np.unique(thread):
        places = np.flatnonzero(thread[order] == one)
        rows = order[places]
        until = np.maximum.accumulate(end[rows])
        outer[places] = np.append(True, start[rows][1:] >= until[:-1])
    return order[outer]


def work_of(name: str) -> Work:
    """Kind of a kernel of that name."""
    if _COMMUNICATION.search(name):
        return Work.COMMUNICATION
    if _MEMORY.match(name):
        return Work.MEMORY
    return Work.OTHER if _OTHER.match(name) else Work.COMPUTE


def _device(header: Mapping[str, Any]) -> str:
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else ""
