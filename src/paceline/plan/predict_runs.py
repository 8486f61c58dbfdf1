"""Predict every run of a file: what one row cannot express is that row's error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.cluster import Cluster
from paceline.plan.interval import Interval
from paceline.plan.predict import predict
from paceline.plan.runs import RunTable


@dataclass(frozen=True)
class RunPredictions:
    """What came of a file of runs.

    Attributes:
        predicted_s: line -> seconds of a step.
        intervals: line -> where 80% of measured steps lie.
        errors: line -> why the row has none.
        warnings: of the predictions, with their lines.
    """

    predicted_s: Mapping[int, float]
    intervals: Mapping[int, Interval]
    errors: Mapping[int, str]
    warnings: tuple[str, ...]


def predict_runs(
    table: RunTable,
    clusters: Sequence[Cluster],
    progress: Callable[[int, int], None] | None = None,
) -> RunPredictions:
    """Predict each run of ``table`` on its cluster; errors stay with their row."""
    predicted_s: dict[int, float] = {}
    intervals: dict[int, Interval] = {}
    errors, warnings = dict(table.errors), list[str]()
    for done, (run, cluster) in enumerate(zip(table.runs, clusters, strict=True), start=1):
        try:
            prediction = predict(run.llm, run.plan, cluster)
        except ModelError as error:
            errors[run.line] = str(error)
        else:
            predicted_s[run.line] = prediction.step_time_s
            intervals[run.line] = prediction.interval
            warnings += [f"line {run.line}: {warning}" for warning in prediction.warnings]
        if progress is not None:
            progress(done, len(table.runs))
    return RunPredictions(predicted_s, intervals, errors, tuple(warnings))
