"""The parts that ``paceline push`` sends: a trace, a recording, or one that still grows."""

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

#: Samples of one batch.
BATCH_SAMPLES = 50_000
#: How often a recording that grows is looked at.
LOOK_S = 1.0
#: While pushing fails: looks at the folder between two attempts, at most.
_MAX_LOOKS = 30
#: Time that the other ranks have after the end of rank 0's process.
LAST_S = 1.5
#: A session is cut off at this number of profiled steps, or after this time without one.
SESSION_STEPS, QUIET_S = 10, 60.0
#: Batches that wait for a service that is away; beyond, the rest waits in the files.
_MAX_WAITING = 100


@dataclass(frozen=True)
class Target:
    """Where to push, and as what.

    Attributes:
        client: of the service.
        name: the job's; "" = what the data says, or the file is called.
        labels: of the job.
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
        """The data that goes with a trace; the user's hosts go before those ``recorded``."""
        hosts = {str(rank): list(place) for rank, place in {**recorded, **self.hosts}.items()}
        return {**({"job": degrees} if degrees else {}), **({"hosts": hosts} if hosts else {})}


@dataclass(frozen=True)
class Pushed:
    """The received parts.

    Attributes:
        name: of the job.
        sessions: traces.
        samples: step times.
    """

    name: str
    sessions: tuple[int, ...]
    samples: int = 0


def job_name(text: str) -> str:
    """A text as the monitor takes it for a name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "job"


def push_file(target: Target, path: Path, degrees: Mapping[str, Any] | None) -> Pushed:
    """Push a parquet trace.

    Args:
        target: where to.
        path: the trace.
        degrees: the job's; None = as the file says.

    Raises:
        TraceError: the file is none that can be pushed.
        MonitorError: the service is away or refuses.
    """
    from paceline.sources import parquet

    if not parquet.matches(path):
        raise TraceError(f"{path} is no parquet trace; make one of it with `paceline import`")
    if not parquet.is_whole(path):
        raise TraceError(f"{path} is no parquet file, or a part of one")
    name = job_name(target.name or str((degrees or {}).get("name") or path.stem))
    world = (degrees or {}).get("world_size")
    target.client.register(name, gpus=world, degrees=degrees, labels=target.labels)
    return Pushed(name, (target.client.push_trace(name, path, target.meta(degrees)),))


def push_recording(target: Target, folder: Path) -> Pushed:
    """Push all that a recording holds: one session of its profiled steps, and all step times.

    Raises:
        TraceError: the recording cannot be read.
        MonitorError: the service is away or refuses.
    """
    push = _Push(target, folder)
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
    """Push what a recording grows by, until its job (process ``parent``) is over.

    A service that is away is waited for: step times and profiled steps wait meanwhile.

    Args:
        target: where to.
        folder: of the recording; may not exist yet.
        say: told of what cannot be done now.
        parent: the process that started this one and records; 0 = until ``stopped``.
        session_steps: profiled steps of a session.
        quiet_s: time without a profiled step after which a session is cut off earlier.
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
    """A recording on its way."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.tail = target, RecordingTail(folder)
        self._name = ""
        self._sessions: list[int] = []
        self._samples = 0
        self._waiting: list[_Batch] = []

    def look(self) -> bool:
        """Read the new part, and make the job known once it has a name; whether more was read."""
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
        """Push the step times that are new."""
        if not self._name:
            return
        of_start: dict[str, list[tuple[int, int, float]]] = {}
        for start, rank, times in self.tail.take_times():
            samples = of_start.setdefault(start, [])
            samples += [(step, rank, duration_s) for step, duration_s in times]
        for start, samples in of_start.items():
            samples.sort()  # the ranks of a step come together
            for first in range(0, len(samples), BATCH_SAMPLES):
                self._waiting.append((start, samples[first : first + BATCH_SAMPLES]))
        while self._waiting:
            start, samples = self._waiting[0]
            self.target.client.push_steps(
                self._name,
                *(list(column) for column in zip(*samples, strict=True)),
                source=f"{start}/push",
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
                self.tail.forget(max(steps))  # it would be refused the next time, too
                raise
            parquet.write(trace, path)
            meta = self.target.meta(None, self.tail.hosts())
            number = self.target.client.push_trace(self._name, path, meta)
        self.tail.forget(max(steps))
        self._sessions.append(number)

    def end(self) -> None:
        """The job is over."""
        if self._name:
            self.target.client.end(self._name)

    def done(self) -> Pushed:
        """The parts received so far."""
        if not self._name:
            raise MonitorError(f"{self.tail.folder} holds no recording yet; nothing was pushed")
        return Pushed(self._name, tuple(self._sessions), self._samples)
