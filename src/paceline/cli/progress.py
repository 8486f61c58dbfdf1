"""A progress bar on standard error, shown only to people at a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Shorter work needs no bar, and does not import one.
SHOW_AFTER_S = 1.0


class ProgressBar:
    """Called with (done, total); shown only where standard error is a terminal and work is long."""

    def __init__(self, description: str) -> None:
        self.description = description
        self._enabled = sys.stderr is not None and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units are done."""
        if not self._enabled:
            return
        if self._bar is None:
            if time.monotonic() - self._start < SHOW_AFTER_S or done >= total:
                return
            self._bar = self._show()
            self._task = self._bar.add_task(self.description, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _show(self) -> Progress:
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True), transient=True)
        bar.start()
        return bar

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
