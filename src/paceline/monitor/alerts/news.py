"""News of jobs, judged together in a thread of their own.

When a thousand jobs slow down at once, their events come faster than one judgement per event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from paceline.monitor.log import logger

#: Seconds before news whose judgement failed are judged again.
_RETRY_S = 5.0
#: Longest wait for the judgement of the last news, seconds.
_END_S = 60.0


class News:
    """Collects jobs with news and has them judged.

    Args:
        judge: judges jobs; number of the job -> whether its row has followed its events (None =
            unknown).
    """

    def __init__(self, judge: Callable[[Mapping[int, bool | None]], None]) -> None:
        self._judge = judge
        self._jobs: dict[int, bool | None] = {}
        self._changed = threading.Condition()
        self._runs = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Judge in a thread."""
        self._runs = True
        self._thread = threading.Thread(target=self._run, name="alert news", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Judge what has come, then end the thread."""
        with self._changed:
            self._runs = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_END_S)

    def add(self, job_id: int, settled: bool | None) -> None:
        """A job has news. Without a thread they are judged now."""
        with self._changed:
            if self._runs:
                # False, as the row follows an event later, counts for all news of the job.
                self._jobs[job_id] = False if self._jobs.get(job_id) is False else settled
                self._changed.notify_all()
                return
        self._judge({job_id: settled})

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or not self._runs)
                jobs, self._jobs = self._jobs, {}
                if not jobs:
                    return
            try:
                self._judge(jobs)
            except Exception as error:
                logger.error("alerts", exc_info=error)
                with self._changed:
                    self._jobs = {**jobs, **self._jobs}
                    if not self._changed.wait_for(lambda: not self._runs, _RETRY_S):
                        continue
                    return  # the next start judges them
