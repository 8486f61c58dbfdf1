"""Assembly of single samples of step times into complete steps, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Workload = Mapping[str, float]
_Sample = tuple[int, int, float, Workload, float]

#: Repeated steps in a row that show a restart from a checkpoint; fewer are repeated lines.
RESTART_STEPS = 3


class Arrivals:
    """Assembles the ranks' samples into steps.

    A step ends when all ranks have a sample, or when the next one begins. Its later samples are
    left out and counted, unless the job returned to an earlier step.

    Args:
        ranks: number of ranks.

    Attributes:
        late: number of samples left out, which repeat a step or came after its end.
        workload: workload of the last yielded step, the largest value of its ranks; None if no
            sample has one.
        wait_s: [rank] waits of the last yielded step; None if no sample has one.
    """

    def __init__(self, ranks: int) -> None:
        self.late = 0
        self._newest = -1  # current or last step; steps begin with 0
        self._open = False
        self._row = np.full(ranks, np.nan)
        self._last = np.full(ranks, -1)  # each rank's last step
        self._repeated: list[_Sample] = []  # steps that their ranks have sent before
        self.workload: dict[str, float] | None = None
        self._workload: dict[str, float] = {}
        self.wait_s: Array | None = None
        self._wait_s = np.full(ranks, np.nan)

    def add(
        self,
        step: int,
        rank: int,
        duration_s: float,
        workload: Workload | None = None,
        wait_s: float = np.nan,
    ) -> Iterator[tuple[int, Array]]:
        """Take a sample (nan = none); yields (step, [rank] seconds) of each step that is over.

        After a restart from a checkpoint a step is lower than the one before it.
        """
        if step > self._newest or (step == self._newest and self._open):
            self._drop_again()
            yield from self._take(step, rank, duration_s, workload or {}, wait_s)
        elif step > self._last[rank]:
            self.late += 1
        else:
            self._repeated.append((step, rank, duration_s, workload or {}, wait_s))
            if len({number for number, *_ in self._repeated}) == RESTART_STEPS:
                yield from self._go_back()

    def end(self) -> Iterator[tuple[int, Array]]:
        """Yields the incomplete last step at the end of the input."""
        self._drop_again()
        yield from self._close()

    def _drop_again(self) -> None:
        self.late += len(self._repeated)
        self._repeated.clear()

    def _close(self) -> Iterator[tuple[int, Array]]:
        if self._open:
            self._open = False
            self.workload = self._workload or None
            self.wait_s = self._wait_s if np.isfinite(self._wait_s).any() else None
            yield self._newest, self._row

    def _go_back(self) -> Iterator[tuple[int, Array]]:
        yield from self._close()
        samples, self._repeated = sorted(self._repeated, key=lambda sample: sample[:2]), []
        self._newest = -1
        self._last[:] = -1
        for sample in samples:
            yield from self._take(*sample)

    def _take(
        self, step: int, rank: int, duration_s: float, workload: Workload, wait_s: float
    ) -> Iterator[tuple[int, Array]]:
        if step != self._newest or not self._open:
            yield from self._close()
            self._newest, self._open = step, True
            self._row = np.full(len(self._last), np.nan)
            self._workload = {}
            self._wait_s = np.full(len(self._last), np.nan)
        self._row[rank] = duration_s
        self._wait_s[rank] = wait_s
        for name, value in workload.items():
            self._workload[name] = max(value, self._workload.get(name, value))
        self._last[rank] = step
        if (self._last == step).all():
            yield from self._close()
