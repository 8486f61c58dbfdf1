"""Predict every run of a file. A row that cannot be expressed is an error of that row only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.cluster import Cluster
from paceline.plan.interval import Interval
from paceline.plan.mapper import Mapper
from paceline.plan.predict import predict
from paceline.plan.runs import Run, RunTable


@dataclass(frozen=True)
class RunPredictions:
    """Results of a file of runs.

    Attributes:
        predicted_s: line -> seconds of a step.
        intervals: line -> range of 80% of measured steps.
        errors: line -> reason why the row has no prediction.
        warnings: warnings of the predictions, with their lines.
    """

    predicted_s: Mapping[int, float]
    intervals: Mapping[int, Interval]
    errors: Mapping[int, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RunPrediction:
    """Result of one run: a time with its interval, or an error."""

    step_time_s: float = 0.0
    interval: Interval | None = None
    warnings: tuple[str, ...] = ()
    error: str = ""


def predict_run(pair: tuple[Run, Cluster]) -> RunPrediction:
    """Predict a run on its cluster."""
    run, cluster = pair
    try:
        prediction = predict(run.llm, run.plan, cluster)
    except ModelError as error:
        return RunPrediction(error=str(error))
    return RunPrediction(prediction.step_time_s, prediction.interval, tuple(prediction.warnings))


def predict_runs(
    table: RunTable,
    clusters: Sequence[Cluster],
    progress: Callable[[int, int], None] | None = None,
    mapper: Mapper = map,
) -> RunPredictions:
    """Predict each run of ``table`` on its cluster; errors stay with their row.

    Args:
        table: the runs.
        clusters: [run] the cluster of each run.
        progress: called with (finished runs, all runs).
        mapper: function that maps the prediction over the runs.
    """
    predicted_s: dict[int, float] = {}
    intervals: dict[int, Interval] = {}
    errors, warnings = dict(table.errors), list[str]()
    pairs = list(zip(table.runs, clusters, strict=True))
    predictions = mapper(predict_run, pairs)
    for done, (run, outcome) in enumerate(zip(table.runs, predictions, strict=True), start=1):
        if outcome.interval is None:
            errors[run.line] = outcome.error
        else:
            predicted_s[run.line] = outcome.step_time_s
            intervals[run.line] = outcome.interval
            warnings += [f"line {run.line}: {warning}" for warning in outcome.warnings]
        if progress is not None:
            progress(done, len(table.runs))
    return RunPredictions(predicted_s, intervals, errors, tuple(warnings))
