"""One rank's PyTorch profile (Kineto Chrome trace) -> the events that a pipeline's step needs.

Format: the files of ``torch.profiler`` (``export_chrome_trace``, ``tensorboard_trace_handler``), as
torch 2.13 writes them on CPU. For CUDA it is from memory of PyTorch's profiler and
``ParamCommsUtils``. ``correlation`` connects kernels with the host's launches. Communication calls
are ``record_param_comms`` ops; NCCL's kernels carry the same arguments. These are ``Collective
name``, ``Process Group Name``, ``Dst Rank``, ``Src Rank`` and ``Seq``.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.fields import mapping, optional_whole
from paceline.sources.kineto.complete_events import Event, Handler, dispatch
from paceline.sources.kineto.events import (
    Group,
    Profile,
    Range,
    Span,
    Transfer,
    Work,
)
from paceline.sources.kineto.fsdp_streams import FsdpRanges, fsdp_bounds
from paceline.sources.kineto.host import HostEvents
from paceline.sources.kineto.loads import LOAD, loads_of
from paceline.sources.kineto.nccl import Call, Kernel, communication
from paceline.sources.kineto.streams import (
    WAIT_EVENT,
    DeviceEvent,
    MainStream,
    StreamWait,
    main_stream,
)

#: ``torch/distributed/pipelining/schedules.py``: ``PP:{stage}{action}{microbatch}``; GPipe there
#: has ``Forward {microbatch}`` and ``Backward {microbatch}``.
_PP_RANGE = re.compile(
    r"PP:(\d{1,6})(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|F|B|I|W)(\d{0,6})"
)
_GPIPE_RANGE = re.compile(r"(F)orward (\d{1,6})|(B)ackward (\d{1,6})")
#: Ranges of schedules that run a forward beside a backward: DualPipe's ``1F1B``, ``attn(F)``,
#: ``mlp(W)``, ``dispatch(B)`` (deepseek-ai/profile-data, commit 4496024, ``train.json``).
_OVERLAPPED = re.compile(r"1F1B|(?:attn|mlp|dispatch|combine)\((?:F|B|W)\)")
#: The fields of an event's ``args`` that are read.
_ARGS = (
    *("correlation", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"),
    *("Collective name", "Process Group Name", "Seq", "In msg nelems", "Src Rank", "Dst Rank"),
    "Concrete Inputs",
)
#: Range that ``prof.step()`` writes around a step.
STEP_RANGE = re.compile(r"ProfilerStep#(\d{1,9})")


def read_profile(path: Path) -> Profile:
    """Read one rank's file; memory grows with its kernels and operators (some 40 bytes each).

    Raises:
        TraceError: the file is damaged, is no profile, or names no rank.
    """
    reader = _Reader(path)
    return reader.finish(dispatch(path, reader.handlers, 1e-6, _ARGS))


class _Reader:
    """Sorts the events of a file by their meaning; times are relative to the file's base."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handlers: dict[str, Handler] = {
            "user_annotation": self._annotation,
            "cpu_op": self._operator,
            "operator": self._operator,
            "cuda_runtime": self._launch,
            "cuda_driver": self._launch,
            "runtime": self._launch,
            "kernel": self._kernel,
            "gpu_memcpy": self._copy,
            "gpu_memset": self._copy,
            "cuda_sync": self._wait,
        }
        self.steps: list[Span] = []
        self.step_thread, self.optimizer_thread = "", ""
        self.ranges: list[Range] = []
        self.optimizer: list[Span] = []
        self.cleared: list[Span] = []
        self.loads: list[tuple[str, Span]] = []  # thread and range
        self.gloo: list[Transfer] = []
        self.gloo_calls: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
        self.host = HostEvents()
        self.calls: list[Call] = []
        self.nccl: list[Kernel] = []
        self.launch_correlation, self.launch_s = array("q"), array("d")
        self.launch_thread, self.kernels = array("i"), array("q")
        self.kernel_times = (array("d"), array("d"))
        self.threads: dict[str, int] = {}
        self.copies: list[tuple[float, float]] = []
        self.copy_calls: list[tuple[int, int]] = []  # correlation and stream of each copy
        self.kernel_stream = array("i")
        # For each stream wait: correlation of its call, its stream, the other stream, and the
        # correlation of the record.
        self.waits: list[tuple[int, int, int, int]] = []

    def _annotation(self, event: Event, start_s: float, end_s: float) -> None:
        name = str(event.name)
        if match := STEP_RANGE.fullmatch(name):
            self.steps.append(Span(start_s, end_s, int(match[1])))
            self.step_thread = str(event.tid)
            return
        self.host.annotation(name, str(event.tid), start_s, end_s)
        if match := _PP_RANGE.fullmatch(name):
            microbatch = int(match[3] or -1)
            self.ranges.append(Range(start_s, end_s, int(match[1]), match[2], microbatch))
        elif name.startswith("PP:") or _OVERLAPPED.fullmatch(name):
            self.ranges.append(Range(start_s, end_s, -1, name[:40], -1))
        elif match := _GPIPE_RANGE.fullmatch(name):
            action = match[1] or match[3]
            self.ranges.append(Range(start_s, end_s, -1, action, int(match[2] or match[4])))
        elif name.startswith(("Optimizer.step", "Optimizer.zero_grad")):
            updates = name.startswith("Optimizer.step")
            (self.optimizer if updates else self.cleared).append(Span(start_s, end_s))
            self.optimizer_thread = str(event.tid)
        elif name.startswith(LOAD):
            self.loads.append((str(event.tid), Span(start_s, end_s)))
        elif name in ("gloo:send", "gloo:recv"):
            self.gloo.append(Transfer(start_s, start_s, end_s, name == "gloo:send", -1))

    def _operator(self, event: Event, start_s: float, end_s: float) -> None:
        name = str(event.name)
        self.host.operator(name, str(event.tid), start_s, end_s)
        if name == "record_param_comms":
            self.calls.append(Call(start_s, event.args))
        elif name in ("c10d::send", "c10d::recv_"):
            inputs = event.args.concrete_inputs
            peer = (
                optional_whole(inputs[2]) if isinstance(inputs, list) and len(inputs) > 2 else None
            )
            self.gloo_calls[name == "c10d::send"].append((start_s, -1 if peer is None else peer))

    def _launch(self, event: Event, start_s: float, _: float) -> None:
        correlation = optional_whole(event.args.correlation)
        if correlation is None:
            return
        thread = self.threads.setdefault(str(event.tid), len(self.threads))
        self.launch_correlation.append(correlation)
        self.launch_s.append(start_s)
        self.launch_thread.append(thread)

    def _kernel(self, event: Event, start_s: float, end_s: float) -> None:
        args, name = event.args, str(event.name)
        correlation = optional_whole(args.correlation)
        correlation = -1 if correlation is None else correlation
        if name.lower().startswith("nccl"):
            self.nccl.append(Kernel(correlation, start_s, end_s, name, args))
            return
        self.kernels.append(correlation)
        self.kernel_times[0].append(start_s)
        self.kernel_times[1].append(end_s)
        self.kernel_stream.append(_stream_of(args))

    def _copy(self, event: Event, start_s: float, end_s: float) -> None:
        self.copies.append((start_s, end_s))
        correlation = optional_whole(event.args.correlation)
        stream = _stream_of(event.args)
        self.copy_calls.append((-1 if correlation is None else correlation, stream))

    def _wait(self, event: Event, _: float, __: float) -> None:
        if event.name != WAIT_EVENT:
            return
        args = event.args
        call, stream = optional_whole(args.correlation), optional_whole(args.stream)
        other = optional_whole(args.wait_on_stream)
        record = optional_whole(args.wait_on_cuda_event_record_corr_id)
        # An event that was recorded before the profile began lacks values; it is left out.
        if None not in (call, stream, other, record):
            self.waits.append((call or 0, stream or 0, other or 0, record or 0))

    def _main_stream(self, base_s: float) -> MainStream | None:
        """The main stream; None if the file has neither stream waits nor FSDP2's ranges."""
        ranges = self.host.fsdp(base_s)
        if not self.waits:
            return None if ranges is None else self._stream_by_rule(base_s, ranges)
        calls = np.array(self.waits, dtype=np.int64)
        wait_s, called, _ = self._launch_of(calls[:, 0])
        record_s, recorded, _ = self._launch_of(calls[:, 3])
        waits = [
            StreamWait(
                float(wait_s[n]) + base_s,
                int(calls[n, 1]),
                float(record_s[n]) + base_s,
                int(calls[n, 2]),
            )
            for n in np.flatnonzero(called & recorded)
        ]
        return main_stream(list(self._device_events(base_s)), waits)

    def _stream_by_rule(self, base_s: float, ranges: FsdpRanges) -> MainStream | None:
        events = sorted(self._device_events(base_s))
        stream = main_stream(events, ())
        if stream is None:
            return None
        collectives = [event for event in events if event.collective >= 0]
        main = self.threads.get(self.step_thread, -1)
        thread = self._launch_of([event.collective for event in collectives])[2].tolist()
        forward = {
            event.collective: main in (-1, own)
            for event, own in zip(collectives, thread, strict=True)
        }
        bounds = fsdp_bounds(collectives, stream.launch_s.tolist(), ranges, forward)
        return replace(stream, bounds=bounds, by_rule=True)

    def _device_events(self, base_s: float) -> Iterator[DeviceEvent]:
        """Kernels and copies whose launch is in the file."""
        start_s, end_s = (times.tolist() for times in self.kernel_times)
        rows = [
            *zip(self.kernels, self.kernel_stream, start_s, end_s, strict=True),
            *((*call, *times) for call, times in zip(self.copy_calls, self.copies, strict=True)),
        ]
        rows += [(k.correlation, _stream_of(k.args), k.start_s, k.end_s) for k in self.nccl]
        launch_s, launched, _ = self._launch_of([row[0] for row in rows])
        n_computing = len(rows) - len(self.nccl)
        for n in np.flatnonzero(launched).tolist():
            number, stream, start, end = rows[n]
            collective = number if n >= n_computing else -1
            times = (float(launch_s[n]) + base_s, start + base_s, end + base_s)
            yield DeviceEvent(times[0], stream, times[1], times[2], collective)

    def finish(self, header: Mapping[str, Any]) -> Profile:
        """The profile, on the host's clock."""
        info = mapping(header, "distributedInfo")
        rank = optional_whole(info.get("rank"))
        if rank is None:
            raise TraceError(no_rank(self.path))
        groups = groups_of(info.get("pg_config"), rank)
        base = header.get("baseTimeNanoseconds", 0)
        base_s = base * 1e-9 if isinstance(base, int) and abs(base) < 2**63 else 0.0
        on_gpu = bool(self.kernels)
        if not on_gpu and self.host.on_device:
            raise TraceError(self._unseen())
        unplaced: Counter[str] = Counter()
        self._sort_launches()
        nccl = [
            kernel._replace(launch_s=float(launch_s) if found else kernel.start_s)
            for kernel, launch_s, found in zip(
                self.nccl,
                *self._launch_of([kernel.correlation for kernel in self.nccl])[:2],
                strict=True,
            )
        ]
        transfers, collectives = communication(nccl, self.calls, groups, rank, unplaced)
        transfers += self._gloo()
        launched = self.host.collectives(on_gpu, unplaced)
        steps = sorted(self.steps)
        for before, after in pairwise(steps):
            if after.start_s < before.end_s - 1e-6 or after.number <= before.number:
                raise TraceError(
                    f"{self.path}: ProfilerStep#{after.number} begins before "
                    f"ProfilerStep#{before.number} ends; export one profiling cycle per file"
                )

        def shifted(items: list[Any], n_times: int) -> tuple[Any, ...]:
            return tuple(
                item._replace(
                    **{name: getattr(item, name) + base_s for name in item._fields[:n_times]}
                )
                for item in sorted(items)
            )

        return Profile(
            path=self.path,
            rank=rank,
            world_size=optional_whole(info.get("world_size")) or 0,
            groups=groups,
            steps=shifted(steps, 2),
            ranges=shifted(self.ranges, 2),
            optimizer=shifted(self.optimizer, 2),
            cleared=shifted(self.cleared, 2),
            loads=shifted(loads_of(self.loads, self.step_thread or self.optimizer_thread), 2),
            transfers=shifted(transfers, 3),
            collectives=shifted(collectives + launched, 3),
            work=self._work(base_s, unplaced) if on_gpu else self.host.work(base_s),
            copies=tuple((low_s + base_s, high_s + base_s) for low_s, high_s in self.copies),
            stream=self._main_stream(base_s) if on_gpu else None,
            host=None if on_gpu else self.host.host(self.step_thread, base_s, launched),
            on_gpu=on_gpu,
            unplaced=dict(unplaced),
        )

    def _unseen(self) -> str:
        """The error for a profile whose host launched collectives on a device without kernels."""
        ((library, count),) = self.host.on_device.most_common(1)
        return (
            f"{self.path} has {count} collectives that the host launched on {library}, but no CUDA "
            "kernels that compute, and no other device's events are imported. Profile with "
            "ProfilerActivity.CUDA, too; paceline ranks reports what is there"
        )

    def _sort_launches(self) -> None:
        correlation = np.frombuffer(self.launch_correlation, np.int64)
        order = np.argsort(correlation, kind="stable")
        self._correlation = correlation[order]
        self._launch_s = np.frombuffer(self.launch_s)[order]
        self._thread = np.frombuffer(self.launch_thread, np.int32)[order]

    def _launch_of(
        self, correlation: Any
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """[kernel] its launch in seconds, whether the file has that, and the launching thread."""
        wanted = np.asarray(correlation, dtype=np.int64)
        if not len(self._correlation):
            absent = np.zeros(len(wanted), dtype=bool)
            return np.zeros(len(wanted)), absent, np.zeros(len(wanted), dtype=np.int32)
        at = np.searchsorted(self._correlation, wanted).clip(max=len(self._correlation) - 1)
        return self._launch_s[at], self._correlation[at] == wanted, self._thread[at]

    def _work(self, base_s: float, unplaced: Counter[str]) -> Work:
        """The kernels that compute; those that the main thread did not launch are backward."""
        launch_s, found, thread = self._launch_of(np.frombuffer(self.kernels, np.int64))
        unplaced["kernels whose launch is not in the file"] += int((~found).sum())
        start_s, end_s = (np.frombuffer(times)[found] for times in self.kernel_times)
        order = np.argsort(launch_s[found], kind="stable")
        # Without a range that shows the main thread, take the one that launched first.
        main = int(thread[found][order[0]]) if len(order) else 0
        main = self.threads.get(self.optimizer_thread, main)
        main = self.threads.get(self.step_thread, main)
        return Work(
            launch_s=launch_s[found][order] + base_s,
            start_s=start_s[order] + base_s,
            end_s=end_s[order] + base_s,
            backward=(thread[found] != main)[order],
        )

    def _gloo(self) -> list[Transfer]:
        """Gloo's sends and recvs: from the call, after which the range may start late, to its end.

        Peers are known if shapes were recorded.
        """
        transfers = []
        for sends, calls in self.gloo_calls.items():
            mine = sorted(item for item in self.gloo if item.sends == sends)
            if len(calls) == len(mine):
                mine = [
                    item._replace(launch_s=at_s, start_s=min(at_s, item.start_s), peer=peer)
                    for item, (at_s, peer) in zip(mine, sorted(calls), strict=True)
                ]
            transfers += mine
        return transfers


def _stream_of(args: Any) -> int:
    stream = optional_whole(args.stream)
    return -1 if stream is None else stream


def no_rank(path: Path) -> str:
    """The error for a file without its rank."""
    return (
        f"{path} has no distributedInfo with a rank; profile after "
        "torch.distributed.init_process_group, so that the file names its rank; paceline ranks "
        "reports on the file without that"
    )


def groups_of(config: Any, rank: int) -> tuple[Group, ...]:
    """The process groups of ``distributedInfo`` that have this rank."""
    if isinstance(config, str):  # older versions write JSON in JSON
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return ()
    groups = []
    for item in config if isinstance(config, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("ranks"), list):
            continue
        ranks = [optional_whole(value) for value in item["ranks"]]
        known = tuple(value for value in ranks if value is not None)
        if len(known) == len(ranks) and rank in known and len(set(known)) == len(known):
            groups.append(Group(str(item.get("pg_name")), str(item.get("pg_desc")), known))
    return tuple(groups)
