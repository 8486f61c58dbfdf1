"""Supervisor of one worker process: time limits, and restarts after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from paceline.errors import FleetError
from paceline.fleet import results
from paceline.fleet.analysis import Analysis
from paceline.fleet.perform import document_of
from paceline.fleet.store import open_store
from paceline.fleet.task import Outcome, Settings, Task

#: Number of repetitions of a task after its process was killed.
RETRIES = 2

#: Threads of libraries would compete with the other workers of the machine.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


class Supervisor:
    """Does tasks in a child process, and starts a new one after its end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False
        self._closed = False

    def run(self, task: Task) -> Outcome:
        """The outcome of a task, also if its process dies.

        Raises:
            FleetError: the study's folder cannot be written, or the worker cannot start.
        """
        key, ending = "", 0
        for attempt in range(1 + RETRIES):
            answer, key, ending = self._try(task)
            if answer is not None:
                return answer
            if self._closed:
                return Outcome(task.name, rule="killed", error="the study was stopped")
            if ending == -signal.SIGALRM:
                limit = f"it took longer than the {self.settings.timeout_s:g} s it may (--timeout)"
                return self._failure(task, key, "timeout", limit, attempt + 1)
        error = f"its process was killed {1 + RETRIES} times, at last by {_ending_name(ending)}"
        return self._failure(task, key, "killed", error, 1 + RETRIES)

    def close(self) -> None:
        """End the process, and release a thread that waits for it."""
        self._closed = True
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()

    def let_go(self) -> None:
        """Wait for the end of the process and close its pipes, in the thread that calls `run`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _try(self, task: Task) -> tuple[Outcome | None, str, int]:
        """(outcome or None, key if known, end of the process)."""
        process, key = self._running(), ""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(task)) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "outcome" in answer:
                return Outcome.of(answer["outcome"]), key, 0
            if "error" in answer:
                raise FleetError(answer["error"])
            key = answer.get("key", "")
            self._is_ready = True
        ending = process.wait()
        self.let_go()
        if ending > 0 and not self._is_ready:
            raise FleetError("a worker process does not start; its last lines above say why")
        return None, key, ending

    def _running(self) -> subprocess.Popen[str]:
        """The process; it is started if necessary."""
        if self._process is None:
            self._is_ready = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.fleet.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                process_group=0,  # only the driver gets Ctrl-C; it ends this process
                env={
                    **os.environ,
                    **_ONE_THREAD,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(self.settings.to_json() + "\n")
                self._process.stdin.flush()
        return self._process

    def _failure(self, task: Task, key: str, rule: str, error: str, attempts: int) -> Outcome:
        """Record that a limit was exceeded, if the trace's key is known."""
        if key:
            document = document_of(
                key, Analysis({}, {}, rule, error), self.settings, task, {"attempts": attempts}
            )
            results.write(open_store(self.settings.study), document)
            return Outcome(task.name, key, rule)
        return Outcome(task.name, rule=rule, error=error)


def _ending_name(ending: int) -> str:
    try:
        return signal.Signals(-ending).name
    except ValueError:
        return f"exit code {ending}"
