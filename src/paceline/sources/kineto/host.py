"""One rank's host thread: its operators, and the collectives that it launched on gloo."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline.sources.kineto.events import (
    ANNOTATION,
    AUTOGRAD,
    COMMUNICATION,
    OPERATOR,
    Collective,
    Host,
    Span,
    Times,
    UnitRange,
    Work,
)
from paceline.sources.kineto.fsdp_streams import FsdpRanges

_AUTOGRAD_OP = "autograd::engine::evaluate_function"
_COMMUNICATION_OPS = ("c10d::", "_c10d_functional::", "record_param_comms")
_POST_BACKWARD = "FSDP::root_post_backward_callback"
_COPY_OUT = "FSDP::all_gather_copy_out"
_GATHER = "FSDP::all_gather"
_REDUCE = "FSDP::post_backward_reduce"
_REDUCE_WAIT = "FSDP::post_backward_rs_wait"
_ROOT_FORWARD = "FSDP::root_pre_forward"

_RANGES = (_POST_BACKWARD, _COPY_OUT, _GATHER, _REDUCE, _REDUCE_WAIT, _ROOT_FORWARD)

#: Ranges of torch 2.13, ``FSDPParamGroup._with_fqn``. The root has no name. If a module is sharded
#: over several groups, ``pg`` is the size of the group.
_FSDP_RANGE = re.compile(r"(FSDP::\w+)(?: \((.*)\))?(?: \[(pg=\d+)\])?")

#: Ranges of collectives that run on a device: torch's ``nccl:all_reduce``, MTIA's ``hccl:...``.
_ON_DEVICE = re.compile(r"(\w*ccl|ucc|mpi):\w+")

#: Collective -> names under which gloo may run it: torch 2.13 runs a reduce-scatter as a sum of
#: all.
_RUN_AS: Final = {"reducescatter": ("reducescatter", "allreduce")}


class HostEvents:
    """Collects a file's events of the host; some 20 bytes each."""

    def __init__(self) -> None:
        self._times = (array("d"), array("d"))
        self._code, self._thread = array("b"), array("i")
        self._threads: dict[str, int] = {}
        self._gloo_threads: set[int] = set()
        self._gloo: list[Collective] = []
        self._launches: dict[int, list[Collective]] = defaultdict(list)
        self._ranges: dict[str, list[UnitRange]] = defaultdict(list)
        #: Library of collectives on a device -> number of them that the host launched.
        self.on_device: Counter[str] = Counter()

    def operator(self, name: str, thread: str, start_s: float, end_s: float) -> None:
        """Add an operator."""
        code = AUTOGRAD if name.startswith(_AUTOGRAD_OP) else OPERATOR
        if name.startswith(_COMMUNICATION_OPS):
            code = COMMUNICATION
        self._add(code, thread, start_s, end_s)
        if name.startswith("c10d::") and name not in ("c10d::send", "c10d::recv_"):
            launch = Collective(start_s, start_s, end_s, plain_name(name[6:]), "", -1, 0)
            self._launches[self._number(thread)].append(launch)

    def annotation(self, name: str, thread: str, start_s: float, end_s: float) -> None:
        """Add a range that the program or torch named, except the ranges of steps."""
        if name.startswith("gloo:"):
            self._gloo_threads.add(self._number(thread))
            if name not in ("gloo:send", "gloo:recv"):
                kind = plain_name(name[5:])
                self._gloo.append(Collective(start_s, start_s, end_s, kind, "", -1, 0))
            return
        self._add(ANNOTATION, thread, start_s, end_s)
        if on_device := _ON_DEVICE.fullmatch(name):
            self.on_device[on_device[1]] += 1
        match = _FSDP_RANGE.fullmatch(name)
        if match and match[1] in _RANGES:
            unit = f"{match[2] or ''} {match[3] or ''}".strip()
            self._ranges[match[1]].append(UnitRange(start_s, end_s, unit))

    def _number(self, thread: str) -> int:
        return self._threads.setdefault(thread, len(self._threads))

    def _add(self, code: int, thread: str, start_s: float, end_s: float) -> None:
        self._times[0].append(start_s)
        self._times[1].append(end_s)
        self._code.append(code)
        self._thread.append(self._number(thread))

    def work(self, base_s: float) -> Work:
        """The operators: autograd's, which are backward, and those outside of them.

        Operators of gloo's own threads are communication, so they are left out.
        """
        start_s, end_s, code = self._rows((OPERATOR, AUTOGRAD))
        backward = code == AUTOGRAD
        # An event is inside an autograd op if it begins before the latest end of those begun.
        chosen = backward | (start_s >= running_end(end_s, backward))
        start_s, end_s = start_s[chosen] + base_s, end_s[chosen] + base_s
        return Work(start_s, start_s, end_s, backward[chosen])

    def _rows(
        self, codes: Sequence[int], thread: int | None = None
    ) -> tuple[Times, Times, npt.NDArray[np.int8]]:
        """Starts, ends and codes of some events, by start; the outer one first."""
        start_s, end_s = (np.frombuffer(times) for times in self._times)
        code, threads = np.frombuffer(self._code, np.int8), np.frombuffer(self._thread, np.int32)
        chosen = np.isin(code, codes)
        if thread is None:
            chosen &= ~np.isin(threads, list(self._gloo_threads - self._launches.keys()))
        else:
            chosen &= threads == thread
        start_s, end_s, code = start_s[chosen], end_s[chosen], code[chosen]
        order = np.lexsort((-end_s, start_s))
        return start_s[order], end_s[order], code[order]

    def collectives(self, on_gpu: bool, unplaced: Counter[str]) -> list[Collective]:
        """Gloo's collectives, with the host's names and launches where the file has them."""
        launches = sorted(item for items in self._launches.values() for item in items)
        if on_gpu or not launches:
            return self._gloo
        return _matched(launches, self._gloo, unplaced)

    def fsdp(self, base_s: float) -> FsdpRanges | None:
        """FSDP2's ranges; None if it gathers nothing."""

        def ranges(label: str) -> list[UnitRange]:
            return [
                item._replace(start_s=item.start_s + base_s, end_s=item.end_s + base_s)
                for item in sorted(self._ranges[label])
            ]

        if not self._ranges[_GATHER]:
            return None
        return FsdpRanges(
            gathers=ranges(_GATHER),
            copies=ranges(_COPY_OUT),
            reduces=ranges(_REDUCE),
            waits=ranges(_REDUCE_WAIT),
            ends=ranges(_POST_BACKWARD),
            begins=ranges(_ROOT_FORWARD),
        )

    def host(self, step_thread: str, base_s: float, collectives: Iterable[Collective]) -> Host:
        """The thread that runs steps; without launches if other threads launch collectives, too."""
        thread = self._threads.get(step_thread)
        if thread is None and len(self._launches) == 1:
            thread = next(iter(self._launches))
        others = any(items for number, items in self._launches.items() if number != thread)
        launches = () if others else tuple(sorted(collectives))
        start_s, end_s, code = self._rows(
            (ANNOTATION, OPERATOR, AUTOGRAD, COMMUNICATION), -1 if thread is None else thread
        )
        launched = np.isin(start_s, [item.launch_s for item in launches]) & (code == COMMUNICATION)
        bound_s, inside = _bounds(start_s, end_s, code, launched)

        def ranges(prefix: str) -> tuple[UnitRange, ...]:
            return tuple(
                item._replace(start_s=item.start_s + base_s, end_s=item.end_s + base_s)
                for item in sorted(self._ranges[prefix])
            )

        return Host(
            start_s=start_s + base_s,
            end_s=end_s + base_s,
            code=code,
            bound_s=bound_s + base_s,
            inside=inside,
            launches=tuple(
                item._replace(
                    launch_s=item.launch_s + base_s,
                    start_s=item.start_s + base_s,
                    end_s=item.end_s + base_s,
                )
                for item in launches
            ),
            gathers=ranges(_GATHER),
            reduces=ranges(_REDUCE),
            copies=ranges(_COPY_OUT),
            tails=tuple(Span(item.start_s, item.end_s) for item in ranges(_POST_BACKWARD)),
        )


def plain_name(name: str) -> str:
    """``_allgather_base_``, ``all_gather`` -> ``allgather``."""
    name = name.replace("_", "")
    for ending in ("coalesced", "intotensor", "base", "tensor"):
        name = name.replace(ending, "")
    return name


def _matched(
    launches: Sequence[Collective], runs: Sequence[Collective], unplaced: Counter[str]
) -> list[Collective]:
    """Launches with the times of gloo's runs: in order by name, no run before its launch."""
    waiting: dict[str, deque[Collective]] = defaultdict(deque)
    for run in sorted(runs):
        waiting[run.name].append(run)
    matched = []
    for launch in launches:
        queues = [waiting[name] for name in _RUN_AS.get(launch.name, (launch.name,))]
        for queue in queues:
            while queue and queue[0].start_s < launch.launch_s:  # launched before the profile
                queue.popleft()
        ran = next((queue.popleft() for queue in queues if queue), None)
        if ran is None:
            unplaced["collectives without gloo's range"] += 1
        else:
            matched.append(launch._replace(start_s=ran.start_s, end_s=ran.end_s))
    return matched


def running_end(end_s: Times, chosen: npt.NDArray[np.bool_]) -> Times:
    """[event] the latest end of a chosen event that has begun."""
    ends = np.where(chosen, end_s, -np.inf)
    return np.maximum.accumulate(ends) if len(ends) else ends


def _bounds(
    start_s: Times, end_s: Times, code: npt.NDArray[np.int8], launched: npt.NDArray[np.bool_]
) -> tuple[Times, npt.NDArray[np.int8]]:
    """Starts and ends in order, and the code of the innermost event that runs until each.

    Neither the end of a launch nor the events inside it are bounds.
    """
    at_s, inside = array("d"), array("b")
    running: list[tuple[float, int, bool]] = []  # end, code, whether it is a launch
    rows = zip(start_s.tolist(), end_s.tolist(), code.tolist(), launched.tolist(), strict=True)
    for begin, end, own, is_launch in (*rows, (np.inf, np.inf, ANNOTATION, False)):
        while running and running[-1][0] <= begin:
            until, around, hidden = running.pop()
            if not hidden:
                at_s.append(until)
                inside.append(around)
        within = running[-1] if running else (np.inf, ANNOTATION, False)
        if not within[2] and begin < np.inf:
            at_s.append(begin)
            inside.append(within[1])
        running.append((min(end, within[0]), own, is_launch or within[2]))
    return np.frombuffer(at_s), np.frombuffer(inside, np.int8)
