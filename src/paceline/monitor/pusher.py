"""The work of ``paceline push``: it sends a trace, a recording, or a growing recording."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.client import Client
from paceline.errors import MonitorError, PacelineError, TraceError
from paceline.monitor.recording_tail import RecordingTail

#: Most samples of a batch.
BATCH_SAMPLES = 50_000
#: Seconds between reads of a growing recording.
LOOK_S = 1.0
#: Most reads of the folder between two attempts while pushing fails.
_MAX_LOOKS = 30
#: Seconds for the other ranks after the end of rank 0's process.
LAST_S = 1.5
#: A session is cut at this number of profiled steps, or after this time without one.
SESSION_STEPS, QUIET_S = 10, 60.0
#: Most batches that wait for an unreachable service; further data waits in the files.
_MAX_WAITING = 100


@dataclass(frozen=True)
class Target:
    """Target of a push: service, job's name, labels, hosts.

    Attributes:
        client: client of the service.
        name: the job's name; "" = from the data or the file's name.
        labels: labels of the job.
        hosts: rank -> (host, gpu).
    """

    client: Client
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def meta(
        self,
        degrees: Mapping[str, Any] | None,
        recorded: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The meta of a trace; the user's hosts override ``recorded`` ones."""
        hosts = {str(rank): list(place) for rank, place in {**recorded, **self.hosts}.items()}
        return {**({"job": degrees} if degrees else {}), **({"hosts": hosts} if hosts else {})}


@dataclass(frozen=True)
class Pushed:
    """Counts of received parts.

    Attributes:
        name: name of the job.
        sessions: number of traces.
        samples: number of step times.
    """

    name: str
    sessions: tuple[int, ...]
    samples: int = 0


def job_name(text: str) -> str:
    """A text made valid as a name for the monitor."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "job"


def push_file(target: Target, path: Path, degrees: Mapping[str, Any] | None) -> Pushed:
    """Push a parquet trace.

    Args:
        target: target of the push.
        path: the trace.
        degrees: the job's degrees; None = from the file.

    Raises:
        TraceError: the file cannot be pushed.
        MonitorError: the service is unreachable or refuses.
    """
    from paceline.sources import parquet

    if not parquet.matches(path):
        raise TraceError(f"{path} is no parquet trace; convert it with `paceline import`")
    if not parquet.is_whole(path):
        raise TraceError(f"{path} is no parquet file, or an incomplete one")
    name = job_name(target.name or str((degrees or {}).get("name") or path.stem))
    world = (degrees or {}).get("world_size")
    target.client.register(name, gpus=world, degrees=degrees, labels=target.labels)
    return Pushed(name, (target.client.push_trace(name, path, target.meta(degrees)),))


def push_recording(target: Target, folder: Path) -> Pushed:
    """Push a whole recording: one session of its profiled steps, and all step times.

    The job need not run any more, so that it does not become silent.

    Raises:
        TraceError: the recording cannot be read.
        MonitorError: the service is unreachable or refuses.
    """
    from paceline.monitor.step_files import RECORDED

    push = _Push(target, folder, RECORDED)
    push.push_all_times()
    push.push_session(push.tail.ready())
    return push.done()


def follow_recording(
    target: Target,
    folder: Path,
    say: Callable[[str], None],
    *,
    parent: int = 0,
    session_steps: int = SESSION_STEPS,
    quiet_s: float = QUIET_S,
    stopped: Callable[[], bool] = lambda: False,
) -> Pushed:
    """Push new data of a recording until its job (process ``parent``) ends.

    If the service is unreachable, step times and profiled steps wait.

    Args:
        target: target of the push.
        folder: folder of the recording; it may not exist yet.
        say: called with messages about present problems.
        parent: the process that started this one and records; 0 = until ``stopped``.
        session_steps: profiled steps of a session.
        quiet_s: seconds without a profiled step after which a session is cut early.
        stopped: whether to end.
    """
    push = _Push(target, folder)
    failures, last_error = 0, ""
    while True:
        over = stopped() or (parent > 0 and os.getppid() != parent)
        if over:  # the other ranks may be writing their last steps
            time.sleep(LAST_S)
        try:
            if over:
                push.push_all_times()
            else:
                push.look()
                push.push_times()
            ready = push.tail.ready()
            quiet = time.monotonic() - push.tail.changed_at >= quiet_s
            if ready and (len(ready) >= session_steps or quiet or over):
                push.push_session(ready)
            if over:
                push.end()
            failures, last_error = 0, ""
        except PacelineError as error:
            failures += 1
            if str(error) != last_error:
                last_error = str(error)
                say(last_error)
        if over:
            return push.done()
        time.sleep(LOOK_S * min(1 + failures, _MAX_LOOKS))


#: (start of the job, [(step, rank, seconds)]).
_Batch = tuple[str, list[tuple[int, int, float]]]


class _Push:
    """A recording that is being pushed."""

    def __init__(self, target: Target, folder: Path, sender: str = "push") -> None:
        self.target, self.tail, self._sender = target, RecordingTail(folder), sender
        self._name = ""
        self._sessions: list[int] = []
        self._samples = 0
        self._waiting: list[_Batch] = []

    def look(self) -> bool:
        """Read new data, and register the job once it has a name; returns whether any was read."""
        has_more = len(self._waiting) < _MAX_WAITING and self.tail.look()
        meta = self.tail.meta
        if meta and not self._name:
            name = job_name(self.target.name or str(meta.get("run") or self.tail.folder.name))
            degrees = {f"{key}_size": meta[key] for key in ("dp", "pp", "tp", "vpp")}
            degrees |= {"dsp_size": meta["cp"], "world_size": meta["world"]}
            labels = {**(meta.get("labels") or {}), **self.target.labels}
            self.target.client.register(name, gpus=meta["world"], degrees=degrees, labels=labels)
            self._name = name
        return has_more

    def push_all_times(self) -> None:
        """Read to the end, a part at a time, and push the step times."""
        has_more = True
        while has_more:
            has_more = self.look()
            self.push_times()

    def push_times(self) -> None:
        """Push new step times."""
        if not self._name:
            return
        of_start: dict[str, list[tuple[int, int, float]]] = {}
        for start, rank, times in self.tail.take_times():
            samples = of_start.setdefault(start, [])
            samples += [(step, rank, duration_s) for step, duration_s in times]
        for start, samples in of_start.items():
            samples.sort()  # the ranks of a step stay together
            for first in range(0, len(samples), BATCH_SAMPLES):
                self._waiting.append((start, samples[first : first + BATCH_SAMPLES]))
        while self._waiting:
            start, samples = self._waiting[0]
            self.target.client.push_steps(
                self._name,
                *(list(column) for column in zip(*samples, strict=True)),
                source=f"{start}/{self._sender}",
                world=int(self.tail.meta["world"]),
            )
            self._samples += len(samples)
            del self._waiting[0]

    def push_session(self, steps: list[int]) -> None:
        """Push the profiled steps as a trace."""
        if not steps:
            return
        from paceline.sources import load, parquet

        with tempfile.TemporaryDirectory(prefix="paceline-push-") as scratch:
            cut_folder, path = Path(scratch) / "part", Path(scratch) / "trace.parquet"
            self.tail.cut(steps, cut_folder)
            try:
                trace = load(cut_folder)
            except TraceError:
                self.tail.forget(max(steps))  # it would be refused again
                raise
            parquet.write(trace, path)
            meta = self.target.meta(None, self.tail.hosts())
            number = self.target.client.push_trace(self._name, path, meta)
        self.tail.forget(max(steps))
        self._sessions.append(number)

    def end(self) -> None:
        """Mark the job as ended."""
        if self._name:
            self.target.client.end(self._name)

    def done(self) -> Pushed:
        """The parts received so far."""
        if not self._name:
            raise MonitorError(f"{self.tail.folder} holds no recording yet; nothing was pushed")
        return Pushed(self._name, tuple(self._sessions), self._samples)
