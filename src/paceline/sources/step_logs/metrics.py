"""Step times among metrics of a plotting tool: TensorBoard, Weights & Biases.

The names are those of trainers. Megatron-LM (core 0.20.0, commit d98e8a6) and Megatron-Bridge
(commit 031e7de) write ``iteration-time`` and ``batch-size``. NeMo writes ``train_step_timing in s``
and ``global_batch_size``, torchtitan (commit c594d8a) ``time_metrics/end_to_end(s)``. verl (commit
b178a3c) writes ``timing_s/step``, slime (commit 624b824) ``perf/step_time``, NeMo-RL (commit
7ea279a) ``timing/train/total_step_time``, and TRL (commit f2cd577) ``step_time``. Own training
loops name the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.step_logs.lines import Columns, steps_of_elapsed

Array = npt.NDArray[np.float64]

#: Metric -> seconds of its unit, in the order of the search.
STEP_TIMES = {
    "iteration-time": 1.0,
    "train_step_timing in s": 1.0,
    "time_metrics/end_to_end(s)": 1.0,
    "train_step_time": 1.0,
    "timing_s/step": 1.0,
    "timing/train/total_step_time": 1.0,
    "perf/step_time": 1.0,
    "step_time_s": 1.0,
    "step_time_ms": 1e-3,
    "iteration_time_s": 1.0,
    "iteration_time_ms": 1e-3,
    "iter_time_s": 1.0,
    "iter_time_ms": 1e-3,
    "duration_ms": 1e-3,
    "dt_ms": 1e-3,
    "step_time": 1.0,
}
#: Metric -> workload column.
WORKLOADS = {
    "batch-size": "batch",
    "global_batch_size": "batch",
    "perf/total_num_tokens": "tokens",
}
#: Names of a step time that say no unit, and of which a note says how they are read.
_NO_UNIT = ("step_time",)
NAMES = ", ".join(STEP_TIMES)


def bare_name(metric: str) -> str:
    """A metric's name without the words before it: a run's name, ``train/``, an outer object."""
    name = metric.rsplit(" - ", 1)[-1].removeprefix("train/")
    known = (one for one in (*STEP_TIMES, *WORKLOADS) if f"/{name}".endswith(f"/{one}"))
    is_training = not name.startswith(("val", "eval", "test"))
    return next(known, name) if is_training else name


def step_time_metric(metrics: Iterable[str], where: str) -> str | None:
    """The metric that is a step time; None if there is none.

    Raises:
        TraceError: several runs have it.
    """
    by_name: dict[str, list[str]] = {}
    for metric in metrics:
        by_name.setdefault(bare_name(metric), []).append(metric)
    for name in STEP_TIMES:
        if len(by_name.get(name, ())) > 1:
            runs = ", ".join(by_name[name])
            raise TraceError(f"{where} has {name} of several runs ({runs[:200]}); give one run's")
        if name in by_name:
            return by_name[name][0]
    return None


def unit_notes(metric: str) -> list[str]:
    """A note on a metric that does not say its unit."""
    name = bare_name(metric)
    return [f"the column {metric} is read as seconds"] if name in _NO_UNIT else []


def columns_of(
    step: Array, values: Array, metric: str | None, workload: Mapping[str, Array]
) -> Columns:
    """Columns from a metric's points; without a metric, ``values`` are times when steps ended."""
    if metric is None:
        seconds = steps_of_elapsed(step, workload.get("rank", np.zeros(len(step))), values)
    else:
        seconds = values * STEP_TIMES[bare_name(metric)]
    known = np.isfinite(seconds) & np.isfinite(step)
    columns = {"step": step, "duration_s": seconds, **workload}
    return {name: column[known] for name, column in columns.items()}


#: Message if no metric is a step time.
BETWEEN = (
    "no metric is a step time, so a step's time is the mean between two points, with the "
    "evaluations and checkpoints there"
)
