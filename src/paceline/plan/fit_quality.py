"""A calibration compared with the preset: errors in and out of sample, and orders of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from paceline.errors import ModelError
from paceline.model.cluster import Cluster
from paceline.plan.calibrate import MIN_RUNS, Fit, Progress, calibrate, cross_validate, folds
from paceline.plan.predict import predict
from paceline.plan.ranking import Ranking, rank
from paceline.plan.runs import Run, by_gpu, error_table


@dataclass(frozen=True)
class FitQuality:
    """A fit and its quality.

    Attributes:
        fit: the calibration.
        error: errors of the fitted runs (:func:`~paceline.plan.runs.error_table`).
        error_left_out: errors of runs left out in turn; None if there are too few runs.
        rankings: "before" (the preset), "fitted" and "left_out" -> quality of the order of rival
            plans; None without rivals.
    """

    fit: Fit
    error: Mapping[str, Any]
    error_left_out: Mapping[str, Any] | None
    rankings: Mapping[str, Ranking | None]

    @property
    def ranking_warning(self) -> str:
        """A warning if the fit orders left-out plans worse than the preset does; otherwise ""."""
        before, after = self.rankings["before"], self.rankings["left_out"]
        if before is None or after is None or after.right >= before.right:
            return ""
        return (
            f"orders {after.right} of {after.pairs} pairs of plans that were left out, the preset "
            f"{before.right}: prefer the preset for `paceline plan`"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The fit in the form of JSON."""
        calibration = self.fit.calibration
        efficiency = self.fit.cluster.efficiency
        return {
            "runs": calibration.runs,
            "error": self.error,
            "error_left_out": self.error_left_out,
            "ranking": {name: found and found._asdict() for name, found in self.rankings.items()},
            "constants": {name: getattr(efficiency, name) for name in calibration.constants},
            "relative_standard_error": dict(calibration.constants),
            "not_determined": list(calibration.fixed),
        }


def enough_runs(runs: Sequence[Run]) -> tuple[dict[str, list[Run]], dict[str, int]]:
    """Preset -> the runs on its GPUs; and the numbers of runs of presets with too few.

    Raises:
        ModelError: there are too few runs of every GPU.
    """
    runs_of = by_gpu(runs)
    few = {name: len(of_gpu) for name, of_gpu in runs_of.items() if len(of_gpu) < MIN_RUNS}
    if len(few) == len(runs_of):
        counts = ", ".join(f"{name} {n}" for name, n in sorted(few.items()))
        raise ModelError(f"fewer than {MIN_RUNS} runs of each GPU ({counts})")
    return {name: runs_of[name] for name in sorted(runs_of) if name not in few}, few


def fit_quality(
    runs: Sequence[Run],
    cluster: Cluster,
    left_out_folds: int,
    progress: Callable[[str], AbstractContextManager[Progress]],
) -> FitQuality:
    """Fit ``cluster`` to measured runs, and judge the fit.

    Args:
        runs: runs with ``measured_s`` (seconds per step).
        cluster: the preset.
        left_out_folds: parts that are left out in turn; 0 = none.
        progress: a description of the work -> a context with a function to call with (done, all).

    Raises:
        ModelError: there are too few runs.
    """
    jobs = [(run.llm, run.plan) for run in runs]
    measured = [float(run.measured_s or 0.0) for run in runs]
    with progress("fitting") as callback:
        fit = calibrate(jobs, measured, cluster, progress=callback)
    left_out = None
    if left_out_folds and len(runs) - -(-len(runs) // left_out_folds) >= MIN_RUNS:
        with progress("leaving out runs in turn") as callback:
            parts = folds(len(runs), left_out_folds)
            left_out = cross_validate(jobs, measured, cluster, parts, progress=callback)
    before = [predict(llm, plan, cluster).step_time_s for llm, plan in jobs]
    seconds: dict[str, Any] = {"before": before, "fitted": fit.predicted_s, "left_out": left_out}
    return FitQuality(
        fit=fit,
        error=error_table(measured, fit.predicted_s),
        error_left_out=None if left_out is None else error_table(measured, left_out),
        rankings={
            name: None if predicted is None else rank(jobs, measured, list(predicted))
            for name, predicted in seconds.items()
        },
    )
