"""The demo's training job: four processes on this machine, which always end with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from paceline.demo.control import CONTROL, LOSSES, VERDICT, Control
from paceline.errors import DemoError, DemoLateError
from paceline.sources.recording import load_recorded_step_times, matches
from paceline.sources.step_times import StepTimes

#: Interval of the checks, and the longest time without a step.
_POLL_S, PATIENCE_S = 0.1, 150.0
#: The same before the first step. On a busy machine the import of torch takes minutes (four
#: processes on two cores with a load of 40: more than 150 s).
START_PATIENCE_S = 400.0


@dataclass(frozen=True)
class Shape:
    """The job.

    Attributes:
        dp, pp: replicas and stages.
        microbatches: of each replica at first.
        forward_s, backward_s: how long computes are paced to take; 0 = not paced.
    """

    dp: int = 2
    pp: int = 2
    microbatches: int = 12
    forward_s: float = 0.005
    backward_s: float = 0.010


class Line(NamedTuple):
    """A step, its loss, the replicas' microbatches, and the message that it followed."""

    step: int
    loss: float
    counts: tuple[int, ...]
    message: int


class Training:
    """The running job, controlled by a file and observed through its recording.

    Args:
        folder: of the recording and of all else that the job writes.
        shape: of the job.
        env: more of its environment.
        plugin: the NCCL plugin, which is told of the job's collectives and can pause it.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        env: Mapping[str, str] | None = None,
        plugin: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plugin = plugin
        # Absolute: the processes meet at a file:// URL, where a relative path would name a host.
        self.folder, self.shape, self._env = folder.absolute(), shape, dict(env or {})
        self.control = Control((shape.microbatches,) * shape.dp)
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Training:
        self.control.write(self.folder / CONTROL)
        task = {
            "folder": str(self.folder),
            "dp": self.shape.dp,
            "pp": self.shape.pp,
            "forward_s": self.shape.forward_s,
            "backward_s": self.shape.backward_s,
            "every": 1,
            "plugin": None if self.plugin is None else str(self.plugin),
            "parent": os.getpid(),
        }
        try:
            for rank in range(self.shape.dp * self.shape.pp):
                self._start(task, rank)
        except BaseException:
            self._end()
            raise
        return self

    def _start(self, task: dict[str, Any], rank: int) -> None:
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from paceline.demo.worker import main; main()"
        )
        with (self.folder / f"worker-{rank}.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(task), str(rank)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        self.workers.append(worker)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()

    def say(self, **wishes: Any) -> int:
        """Change the settings; returns the first step with them.

        Recordings reach the disk some steps late, so the step comes from the job's own file.

        Raises:
            DemoError: a process ended, or the job stands still.
        """
        self._tell(**wishes)
        self._wait(lambda: self._first_step() is not None)
        step = self._first_step()
        assert step is not None
        return step

    def _tell(self, **wishes: Any) -> None:
        self.control = replace(self.control, number=self.control.number + 1, **wishes)
        self.control.write(self.folder / CONTROL)

    def _first_step(self) -> int | None:
        """The first finished step of the newest message, or None."""
        return next((line.step for line in self.losses() if self._is_new(line)), None)

    def _is_new(self, line: Line) -> bool:
        return line.message >= self.control.number

    def times(self) -> StepTimes | None:
        """Step times so far; None before the first."""
        if not matches(self.folder):
            return None
        try:
            return load_recorded_step_times(self.folder)
        except Exception:  # files without a step yet
            return None

    def steps_done(self) -> int:
        """Steps that the recordings of all ranks have."""
        times = self.times()
        if times is None or len(times.ranks) < self.shape.dp * self.shape.pp:
            return 0
        whole = times.steps[np.isfinite(times.duration_s).all(axis=1)]
        return int(whole[-1]) + 1 if len(whole) else 0

    def wait_for(self, step: int) -> None:
        """Wait until ``step`` is finished on all ranks.

        Raises:
            DemoError: a process ended, or the job stands still.
        """
        self._wait(lambda: self.steps_done() > step)

    def validate(self) -> dict[str, Any]:
        """Validate the job between two steps; returns the verdict.

        Raises:
            DemoError: a process ended, or the job stands still.
        """
        path = self.folder / VERDICT
        path.unlink(missing_ok=True)
        self._tell(validate=self.control.validate + 1)
        self._wait(path.exists)
        verdict: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return verdict

    def stop(self) -> None:
        """Stop the job, and wait for its processes.

        Raises:
            DemoError: a process ended otherwise, or the job stands still.
        """
        self._tell(stop=True)
        self._wait(lambda: all(worker.poll() is not None for worker in self.workers))

    def losses(self) -> list[Line]:
        """All steps until now."""
        path = self.folder / LOSSES
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
        fields = [json.loads(line) for line in whole.splitlines()]
        return [Line(**{**line, "counts": tuple(line["counts"])}) for line in fields]

    def _wait(self, done: Callable[[], bool]) -> None:
        steps, since = -1, time.monotonic()
        while not done():
            self._check(self.workers)
            now = self.steps_done()
            if now != steps:
                steps, since = now, time.monotonic()
            patience_s = PATIENCE_S if steps > 0 else START_PATIENCE_S
            if time.monotonic() - since > patience_s:
                raise DemoLateError(
                    f"the demo's training job has made no step in {patience_s:g} s; its logs are "
                    f"in {self.folder}"
                )
            time.sleep(_POLL_S)
        self._check(self.workers)

    def _check(self, workers: Sequence[subprocess.Popen[bytes]]) -> None:
        for rank, worker in enumerate(workers):
            if worker.poll():
                log = self.folder / f"worker-{rank}.log"
                lines = log.read_text(errors="replace").strip().splitlines()
                last = lines[-1][:200] if lines else f"exit code {worker.returncode}"
                raise DemoError(f"rank {rank} of the demo's training job ended: {last}")
