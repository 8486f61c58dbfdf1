"""A process that does the tasks of a study: ``python -m paceline.fleet.worker``.

Standard input has the settings in a line of JSON, then a task per line. Standard output begins with
a line when the process is ready. Each task gives two lines: the key of the trace, once known, and
the outcome. If a trace exceeds the time limit, SIGALRM ends the process at any point, and its
supervisor notices.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import asdict
from typing import IO

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Do tasks until there are no more."""
    answers = _take_output()
    from paceline.errors import PacelineError
    from paceline.fleet.perform import Performer
    from paceline.fleet.task import Settings, Task

    settings = Settings.from_json(sys.stdin.readline())
    _end_with_parent()
    _limit_memory(settings.memory_bytes)
    performer = Performer(settings)
    _say(answers, {"ready": True})
    for line in sys.stdin:
        _set_alarm(settings.timeout_s)
        try:
            outcome = performer.perform(
                Task(**json.loads(line)), lambda key: _say(answers, {"key": key})
            )
            _say(answers, {"outcome": asdict(outcome)})
        except PacelineError as error:  # not caused by the trace, so the study ends
            _say(answers, {"error": " ".join(str(error).split())})
        _set_alarm(None)
    return 0


def _take_output() -> IO[str]:
    """Reserve standard output for answers: prints of libraries go to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: IO[str], message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _set_alarm(seconds: float | None) -> None:
    """Set SIGALRM; its default action ends the process even inside compiled code."""
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)


def _end_with_parent() -> None:
    """End together with the parent."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(memory_bytes: int | None) -> None:
    """Limit the memory beyond the address space that libraries reserve."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is None:
        return
    import pyarrow.parquet  # noqa: F401 (reserves address space)

    from paceline.whatif import analyze  # noqa: F401 (imports what an analysis needs)

    with contextlib.suppress(OSError, ValueError, IndexError):  # not Linux
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            pages = int(file.read().split()[0])
        total = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (total, total))


if __name__ == "__main__":
    sys.exit(main())
