"""Regular validations inside a training job, within a budget of its time.

    from paceline.hosts import PeriodicValidation

    validation = PeriodicValidation("runs/job-17", every=100, store="hosts.sqlite")
    for step in range(steps):
        train_step()
        validation.after_step(step)          # all ranks

Between two steps all ranks measure like ``paceline validate``. ``paceline watch`` asks for a
validation when ranks are suspected: it is made at the next turn, independent of the budget.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.detect.suite import run_suite
from paceline.detect.validate import Effort, run_validation
from paceline.detect.validation_files import requested, write_validation
from paceline.detect.verdict import Measurements, Verdict, judge
from paceline.errors import DetectError
from paceline.hosts.result import results_of, results_of_suite
from paceline.hosts.store import HostStore

#: Assumed time of the first validation; then the last one's time counts.
_FIRST_COST_S = 1.0


class PeriodicValidation:
    """Validates between steps.

    Args:
        folder: folder of the run, the same for all ranks; it gets the answers.
        every: at multiples of this step number, ranks agree whether to validate (one broadcast).
        budget: the share of the job's time that validations may take.
        store: file of the results per host (:class:`HostStore`); None keeps none.
        effort: how much to measure.
        group: the process group; None: all processes.
        shapes: (m, n, k) of the model's products (:func:`paceline.detect.suite.gemm_shapes`). With
            them the suite's tests are made, too, for the store.
        measure: the function that measures; None: :func:`run_validation`.
        clock: monotonic seconds.

    Raises:
        DetectError: ``every`` or ``budget`` is out of range.
        OutputError, StateError: rank 0 cannot write to the folder or the store.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 100,
        budget: float = 0.001,
        store: str | Path | None = None,
        effort: Effort | None = None,
        group: Any = None,
        shapes: Sequence[tuple[int, int, int]] = (),
        measure: Callable[[], Measurements] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every < 1 or not 0 <= budget <= 1:
            raise DetectError("every must be 1 or more, and the budget a share from 0 to 1")
        self.folder, self.every, self.budget = Path(folder), every, budget
        self._group, self._clock, self._shapes = group, clock, tuple(shapes)
        self._measure = measure or (
            lambda: run_validation(group=group, effort=effort or Effort(rounds=3))
        )
        self._begin_s, self._spent_s, self._cost_s = clock(), 0.0, _FIRST_COST_S
        self._store: HostStore | None = None
        self._answered = 0
        if self._rank() == 0:
            self._answered = requested(self.folder)  # of an earlier start
            self._store = None if store is None else HostStore(Path(store))
            self._tell(0, {})

    @property
    def share(self) -> float:
        """Share of the time since the start that validations took."""
        return self._spent_s / max(self._clock() - self._begin_s, 1e-9)

    def after_step(self, step: int) -> Verdict | None:
        """Validate if it is time; all ranks call it after the same steps.

        Raises:
            DetectError: as of :func:`run_validation`.
        """
        if step % self.every:
            return None
        number = self._agreed(self._wish())
        if number < 0:
            return None
        begin_s = self._clock()
        measured = self._measure()
        verdict = judge(measured)
        suite = run_suite(self._shapes, group=self._group) if self._shapes else None
        if self._rank() == 0:
            self._answered = max(self._answered, number)
            self._tell(step, verdict.to_mapping())
            if self._store is not None:
                run, at_s = self.folder.name, time.time()
                results = results_of(measured, run=run, at_s=at_s)
                if suite is not None:
                    results += results_of_suite(suite, run=run, at_s=at_s)
                self._store.add(results)
        self._cost_s = self._clock() - begin_s
        self._spent_s += self._cost_s
        return verdict

    def _wish(self) -> int:
        """Rank 0's: the number of the request that a validation answers; -1 = none now."""
        if self._rank() != 0:
            return -1
        number = requested(self.folder)
        if number > self._answered:
            return number
        elapsed_s = self._clock() - self._begin_s
        fits = self._spent_s + self._cost_s <= self.budget * elapsed_s
        return self._answered if fits else -1

    def _tell(self, step: int, verdict: dict[str, Any]) -> None:
        write_validation(
            self.folder, number=self._answered, step=step, every=self.every, verdict=verdict
        )

    def _rank(self) -> int:
        distributed = _distributed()
        return 0 if distributed is None else int(distributed.get_rank(self._group))

    def _agreed(self, wish: int) -> int:
        """Broadcast rank 0's request to all ranks."""
        distributed = _distributed()
        if distributed is None:
            return wish
        import torch

        on_gpu = distributed.get_backend(self._group) == "nccl"
        value = torch.tensor([wish], device="cuda" if on_gpu else "cpu")
        source = distributed.get_process_group_ranks(self._group or distributed.group.WORLD)[0]
        distributed.broadcast(value, src=source, group=self._group)
        return int(value.item())


def _distributed() -> Any:
    """``torch.distributed`` where the job has a process group; None else, without importing it."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_initialized() else None
