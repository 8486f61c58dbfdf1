"""Timers in the text logs of Megatron-LM and DeepSpeed.

Megatron-LM (core 0.20.0, commit d98e8a6; ``megatron/core/timers.py``, ``training/training.py``):

    [2026-08-22 10:00:00.000000] iteration       10/     100 | consumed samples: ... |
        elapsed time per iteration (ms): 1234.5 | ...
    (min, max) time across ranks (ms):
        forward-backward ...............................: (1000.00, 1100.00)

The first two lines above are one line of the log. ``max time across ranks (ms)`` has one number for
each timer. With ``--timing-log-option all``, ``times across ranks (ms)`` has a line
``rank  3: 1000.00`` for each rank, below the timer's name.

DeepSpeed (0.19.6, commit edaa722; ``deepspeed/utils/timer.py``, ``runtime/engine.py``), with
``wall_clock_breakdown``, writes for rank 0 only and without the step's number:

    [Rank 0] time (ms) | fwd: 10.00 | bwd: 20.00 | bwd_inner: ... | bwd_allreduce: ... | step: 3.00

Its pipeline engine (run with 0.16.9 and 0.19.8) writes another line after these timers:

    steps: 10 loss: 1.2000 iter time (s): 0.123 samples/sec: 1.234

The timers are then sums since the last such line. A launcher may put its own words in front of each
line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.host_times.table import COMPUTE, STEP, Array, HostTimes, Samples
from paceline.sources.json_stream import head, whole_lines

_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_ITERATION = re.compile(
    rf"\biteration +(\d{{1,10}})/ *\d+ \|.*?elapsed time per iteration \(ms\): {_NUMBER}"
)
_ACROSS = re.compile(r"(\(min, max\) time|max time|times) across ranks \(ms\):")
_TIMER = re.compile(rf"([a-z][\w/-]{{1,80}}) \.*: (?:\({_NUMBER}, {_NUMBER}\)|{_NUMBER})\s*$")
_NAME, _RANK = (
    re.compile(r"([a-z][\w/-]{1,80}):\s*$"),
    re.compile(rf"\brank +(\d{{1,9}}): {_NUMBER}\s*$"),
)
_ARGUMENT = re.compile(r"\b(world_size|pipeline_model_parallel_size) \.+ (\d{1,9})\s*$")

_WALL_CLOCK = re.compile(r"\btime \(ms\)((?: \| \w+: \d+\.\d+)+)")
_PIPELINE = re.compile(rf"\bsteps: (\d{{1,10}}) .*?iter time \(s\): {_NUMBER}")
#: DeepSpeed's timers of a whole step; its other timers are of the last microbatch.
_GLOBAL = {"fwd": "forward", "bwd": "backward", "step": "optimizer"}
#: Parts of Megatron's step that are a rank's own work.
_COMPUTES = ("forward-compute", "backward-compute")
#: Timers stand within this number of lines after their heading "... across ranks (ms):".
MAX_LINES_APART = 400

_NO_RANKS = (
    "the log names no ranks: --timing-log-option all adds the times of each rank, and "
    "--timing-log-level 2 adds the times of computes"
)
_ONE_RANK = "DeepSpeed writes timers of rank 0 only; bwd and step include its waits for other ranks"
_FIRST_STAGE = "DeepSpeed writes times of rank 0 only; a step includes its waits for other stages"


def matches(path: Path) -> bool:
    """Whether the beginning of a file has lines of timers or of iterations."""
    if path.is_dir():
        return False
    start = head(path)
    if re.match(r"\s*(\{|\[\s*[{\]])", start):
        return False  # JSON; a launcher's words may begin with a bracket, too
    for text in start.splitlines():
        if _ITERATION.search(text) or _ACROSS.search(text) or _PIPELINE.search(text):
            return True
        if _WALL_CLOCK.search(text) or _ARGUMENT.search(text):
            return True
    return False


def read_times(paths: Sequence[Path]) -> HostTimes:
    """The times of all steps in the logs of one run.

    Raises:
        TraceError: the logs have no step.
    """
    log = _Log()
    for path in paths:
        for text in whole_lines(path, log.cuts):
            log.add(text)
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} logs"
    return log.times(where)


class _Log:
    """The times in the lines so far."""

    def __init__(self) -> None:
        self.of_ranks = Samples()
        self.of_all = Samples()  # columns: 0 = least, 1 = most
        self.sizes: dict[str, int] = {}
        self.wall_clock: list[
            dict[str, float]
        ] = []  # DeepSpeed's timers since the last line of a step
        self.pipelined: dict[
            int, list[dict[str, float]]
        ] = {}  # step -> the last timers before its line
        self.cuts: list[str] = []  # notes on logs that end within a line
        self._step: int | None = None
        self._timer: str | None = None
        self._inside = 0  # number of further lines that may be timers

    def add(self, text: str) -> None:
        """Take a line."""
        if iteration := _ITERATION.search(text):
            self._begin(int(iteration[1]), float(iteration[2]) * 1e-3)
        elif pipeline := _PIPELINE.search(text):
            self._begin(int(pipeline[1]), float(pipeline[2]))
            self.pipelined[int(pipeline[1])] = self.wall_clock[-1:]
            self.wall_clock = []
        elif _ACROSS.search(text):
            self._inside = MAX_LINES_APART
        elif wall_clock := _WALL_CLOCK.search(text):
            self._add_wall_clock(wall_clock[1])
        elif argument := _ARGUMENT.search(text):
            self.sizes[argument[1]] = int(argument[2])
        elif self._inside and self._step is not None:
            self._inside -= 1
            self._add_timer(text, self._step)

    def _begin(self, step: int, seconds: float) -> None:
        self._step, self._timer, self._inside = step, None, 0
        self.of_all.add(STEP, step, 0, seconds)

    def _add_timer(self, text: str, step: int) -> None:
        rank = _RANK.search(text)
        if rank and self._timer is not None:
            self.of_ranks.add(self._timer, step, int(rank[1]), float(rank[2]) * 1e-3)
        elif timer := _TIMER.search(text):
            least, most = timer[2] or timer[4], timer[3] or timer[4]
            if timer[2]:
                self.of_all.add(timer[1], step, 0, float(least) * 1e-3)
            self.of_all.add(timer[1], step, 1, float(most) * 1e-3)
        elif name := _NAME.search(text):
            self._timer = name[1]

    def _add_wall_clock(self, text: str) -> None:
        seconds = {
            name: float(value) * 1e-3
            for name, value in re.findall(r"(\w+): (\d+\.\d+)", text)
            if name in _GLOBAL
        }
        if len(seconds) == len(_GLOBAL):  # else they are of one microbatch, or of a part
            self.wall_clock.append(seconds)

    def _add_deepspeed(self) -> None:
        """Give DeepSpeed's timers their steps."""
        if not self.pipelined:
            for step, seconds in enumerate(self.wall_clock):
                for name, value in seconds.items():
                    self.of_ranks.add(_GLOBAL[name], step, 0, value)
                self.of_ranks.add(STEP, step, 0, sum(seconds.values()))
            return
        steps = sorted(self.pipelined)
        apart = [after - before for before, after in pairwise(steps)]
        for step, n_steps in zip(steps, [*apart[:1], *apart], strict=False):
            for seconds in self.pipelined[step]:
                for name, value in seconds.items():
                    self.of_ranks.add(_GLOBAL[name], step, 0, value / n_steps)

    def times(self, where: str) -> HostTimes:
        """All times as tables."""
        self._add_deepspeed()
        steps = np.union1d(self.of_all.steps(), self.of_ranks.steps())
        if not len(steps):
            raise TraceError(
                f"{where} has no step: no line of Megatron-LM ('elapsed time per iteration (ms)') "
                "or of DeepSpeed with wall_clock_breakdown ('time (ms) | fwd: ...')"
            )
        ranks = self.of_ranks.columns()
        groups, names = self._groups(ranks)
        return HostTimes(
            format="deepspeed log" if self.wall_clock or self.pipelined else "timer log",
            steps=steps,
            ranks=ranks,
            groups=groups,
            group_names=names,
            seconds=_with_computes(self.of_ranks.tables(steps, ranks)),
            ranges=_without_empty(self.of_all.tables(steps, np.arange(2))),
            notes=self._notes(len(ranks)),
        )

    def _groups(self, ranks: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
        """[rank] its stage in Megatron's order, if the log has the job's arguments."""
        stages = self.sizes.get("pipeline_model_parallel_size", 1)
        per_stage = self.sizes.get("world_size", 0) // stages if stages else 0
        if stages < 2 or not per_stage:
            return np.zeros(len(ranks), dtype=np.int64), {0: ""}
        return ranks // per_stage, {stage: f"stage {stage}" for stage in range(stages)}

    def _notes(self, n_ranks: int) -> tuple[str, ...]:
        notes = list(self.cuts)
        if self.pipelined:
            notes.append(_FIRST_STAGE)
            notes.append("a step's time is the mean since the line before it (steps_per_print)")
        elif self.wall_clock:
            notes.append(_ONE_RANK)
            notes.append("steps are counted by their lines: DeepSpeed does not number them")
        else:
            notes.append("a step's time is the mean since the line before it (--log-interval)")
            if not n_ranks:
                notes.append(_NO_RANKS)
        repeated = self.of_all.repeated(STEP)
        if repeated:
            notes.append(f"{repeated} steps are there twice (a restart?); the last ones count")
        return tuple(notes)


def _with_computes(seconds: dict[str, Array]) -> dict[str, Array]:
    """The tables, and a table of the sum of computes, for ranks that have all its parts."""
    if not seconds.keys() >= set(_COMPUTES):
        return seconds
    computes = np.sum([seconds[name] for name in _COMPUTES], axis=0)
    return seconds if np.isnan(computes).all() else {**seconds, COMPUTE: computes}


def _without_empty(
    ranges: dict[str, Array],
) -> dict[str, Array]:
    """The tables without empty columns: a whole step has one number, and so has ``max`` alone."""
    return {name: table[:, ~np.isnan(table).all(axis=0)] for name, table in ranges.items()}
