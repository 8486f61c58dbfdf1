"""Feed a planner with a stream of lines: step times, fail-slows, output of ``paceline detect``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paceline.detect.event import SLOW_KINDS
from paceline.detect.validation_command import validation_command
from paceline.errors import MitigateError
from paceline.graph import Measured
from paceline.mitigate.fault import COMPUTE, Fault, Worker, whole_number
from paceline.mitigate.planner import Action, Planner
from paceline.trace.job import place_of


class Follower:
    """Feeds a planner with JSON objects, one line after another."""

    def __init__(
        self,
        planner: Planner,
        measured: Measured,
        *,
        steps_left: int | None = None,
        note: Callable[[str], None],
    ) -> None:
        """A follower.

        Args:
            planner: the planner to feed.
            measured: the job's trace, which gives the worker of each rank.
            steps_left: steps until the job ends, including the first one that is read.
            note: called with a message for each skipped line that might matter.
        """
        self.planner, self.measured, self.note = planner, measured, note
        self.steps_left = steps_left
        self._begin: int | None = None  # the first step in the stream
        self._ranks_reported: set[Any] = set()  # ranks that have reported the current step
        self._step, self._longest_s = 0, 0.0  # the current step
        self._slow: set[int] = set()  # ranks with slow steps, as detected
        self._blamed: set[str] = set()  # the resulting fail-slows

    def take(self, line: Mapping[str, Any]) -> Action | None:
        """The action after a line, if any.

        Raises:
            MitigateError: the line is invalid.
        """
        try:
            step, event = whole_number(line["step"]), line.get("event")
            if event is None and "kind" in line:
                self._take_event(step, line)
            elif event is None:
                return self._time(step, line)
            elif event == "onset":
                self.planner.onset(Fault.from_mapping(line), step, float(line.get("lost_s", 0.0)))
            elif event == "relief":
                self.planner.relief(Fault.from_mapping({"factor": 2.0, **line}), step)
            else:
                raise MitigateError(f"event must be onset or relief, not {event!r}")
        except (KeyError, TypeError, ValueError, OverflowError):
            raise MitigateError(
                "needs numbers for step (a whole one) and duration_s, or an event"
            ) from None
        return None

    def end(self) -> Action | None:
        """End the stream; the current step is then complete."""
        if not self._ranks_reported:
            return None
        self._ranks_reported = set()
        return self._update(self._step, self._longest_s)

    def _time(self, step: int, line: Mapping[str, Any]) -> Action | None:
        """A step of the job or of one rank. The job's time is the slowest rank's time."""
        rank, value = line.get("rank"), line["duration_s"]
        seconds = 0.0 if value is None else float(value)  # null = no sample, as in detect's files
        if rank is None:
            return None if value is None else self._update(step, seconds)
        if value is not None and not 0 < seconds < math.inf:
            raise MitigateError(f"step {step}: a duration must be above 0 s, not {seconds:g}")
        action = None
        if self._ranks_reported and (
            step > self._step or rank in self._ranks_reported
        ):  # the next step, a restart
            action = self.end()
        if not self._ranks_reported:
            self._step, self._longest_s = step, 0.0
        if value is not None and step == self._step:  # otherwise it comes too late
            self._ranks_reported.add(rank)
            self._longest_s = max(self._longest_s, seconds)
        return action

    def _update(self, step: int, duration_s: float) -> Action | None:
        steps_left = None
        if self.steps_left is not None:
            self._begin = step if self._begin is None else self._begin
            steps_left = max(0, self.steps_left - 1 - (step - self._begin))
        return self.planner.update(step, duration_s, steps_left)

    def _take_event(self, step: int, line: Mapping[str, Any]) -> None:
        """An event of ``paceline detect``. Slow steps of a rank mean that its worker is slow."""
        kind = line["kind"]
        if kind in ("silent", "clock-jump", "faster"):
            return
        if kind not in (*SLOW_KINDS, "relief"):
            known = ", ".join((*SLOW_KINDS, "relief"))
            raise MitigateError(f"kind must be one of {known} (or add event), not {kind!r}")
        has_changed = kind in ("worsening", "partial-relief")
        kind = "onset" if has_changed else kind
        ranks = {whole_number(rank) for rank in line.get("ranks", [line.get("rank")])}
        self._slow = self._slow | ranks if kind == "onset" else self._slow - ranks
        job = self.measured.job
        affected = self._slow if kind == "onset" else ranks
        if job.workers > 1 and len(affected) >= whole_number(line.get("of", job.ranks)):
            self.note(
                f"step {step:,}: {kind} of all ranks: the slow worker is unknown: run "
                f"{self._validation}; then give an event with its worker"
            )
            for name in self._blamed if kind == "onset" else ():  # these ranks were only the first
                self.planner.relief(name, step)
            return
        lost_s = max(0.0, float(line.get("lost_s", 0.0)))
        for worker in sorted({self._worker(rank) for rank in ranks}):
            fault = Fault(COMPUTE, worker, 2.0)
            is_active = fault.name in {active.name for active in self.planner.state.active}
            if kind == "onset" and (has_changed or not is_active):
                factor = self.planner.strategies.model.factor_of(fault, float(line["factor"]))
                fault = Fault(COMPUTE, worker, factor)
                self.planner.onset(fault, whole_number(line.get("since_step", step)), lost_s)
                self._blamed.add(fault.name)
                lost_s = 0.0  # the job lost this time once
            elif kind == "relief" and is_active and self.planner.state.phase == "mitigated":
                # Steps may be short because of the mitigation. Undoing it would make them long
                # again.
                self.note(
                    f"step {step:,}: {fault.name} may still be slow, for the mitigation makes "
                    f"steps short; run {self._validation}, and give a relief event if it is healthy"
                )
            elif kind == "relief":
                self.planner.relief(fault, step)
                self._blamed.discard(fault.name)

    @property
    def _validation(self) -> str:
        return validation_command(self.measured.job.ranks)

    def _worker(self, rank: int) -> Worker:
        """A rank's worker, from the trace or else by Megatron's order (tp, cp, dp, pp)."""
        job = self.measured.job
        if not 0 <= rank < job.ranks:
            raise MitigateError(f"there is no rank {rank}; the job has {job.ranks}")
        outer = rank // (job.tp_size * job.dsp_size)
        recorded = np.argwhere(self.measured.rank // (job.tp_size * job.dsp_size) == outer)
        if len(recorded):
            return self._place(int(recorded[0, 0]), int(recorded[0, 1]), rank)
        return self._place(outer % job.dp_size * job.peers, outer // job.dp_size, rank)

    def _place(self, replica: int, pp: int, rank: int) -> Worker:
        """The place of a rank; if peers are apart, the place of its peer."""
        job = self.measured.job
        if job.peers > 1:
            exact = np.argwhere(self.measured.rank == rank)
            if not len(exact):
                raise MitigateError(f"rank {rank}: the trace does not show its peer")
            replica, pp = int(exact[0, 0]), int(exact[0, 1])
        return place_of(replica, pp, job.peers)
