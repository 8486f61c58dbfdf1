"""The metrics of jobs in Prometheus's text formats, a line a sample.

With thousands of jobs, an object per sample costs most of a scrape. So the lines are written here,
as ``prometheus_client`` writes them; their labels are written once per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.utils import floatToGoString

from paceline.monitor.levels import LevelChanges
from paceline.monitor.loss_range import largest_slowdown, slow_factor, waste_range
from paceline.monitor.web.event_cost import StepLoss, step_loss

Row = Mapping[str, Any]
#: The labels of a sample as text, and its value; None: no sample.
Sample = tuple[str, float | None]

#: Metric -> column of the job, help, factor to base units.
_OF_JOB = (
    ("slowdown_ratio", "slowdown", "S of the latest session: step time over the ideal one.", 1.0),
    (
        "lasting_slowdown_ratio",
        "slowdown_lasting",
        "Part of S that lasts or has a cause; of an unexplained loss, the part beyond chance.",
        1.0,
    ),
    ("waste_ratio", "waste", "Share of the GPU time lost to stragglers, 1 - 1/S.", 1.0),
    ("data_loading_ratio", "data_loading", "Share of the step that waits for data take.", 1.0),
    ("step_seconds", "step_s", "Median time of the latest 15 steps and their ranks.", 1.0),
    ("healthy_step_seconds", "healthy_s", "The same without fail-slows.", 1.0),
    ("last_step", "last_step", "Number of the latest step.", 1.0),
    ("last_seen_timestamp_seconds", "seen_at", "Time of the job's latest data.", 1.0),
)
_TOTALS = (
    ("sessions_total", "n_sessions", "Profiling sessions.", 1.0),
    (
        "gpu_seconds_lost_total",
        "gpu_hours_lost",
        "GPU time lost to stragglers and waits for data.",
        3600.0,
    ),
)


def job_lines(
    rows: Sequence[Row],
    labels: Sequence[str],
    changes: Mapping[int, LevelChanges],
    *,
    openmetrics: bool,
) -> str:
    """The families of jobs with a sample.

    Args:
        rows: the jobs.
        labels: labels of jobs that ``paceline_job_info`` has.
        changes: slow job -> changes of its level.
        openmetrics: whether the format is OpenMetrics, else the older text format.
    """
    keys = [label_text({"project": row["project"], "job": row["name"]}) for row in rows]
    return "".join(
        _family(name, kind, text, samples, openmetrics)
        for name, kind, text, samples in _families(keys, rows, labels, changes)
    )


def label_text(labels: Row) -> str:
    """Labels as in a line, without empty ones."""
    return ",".join(
        f'{name}="{_escape(str(label))}"' for name, label in sorted(labels.items()) if label != ""
    )


def _families(
    keys: Sequence[str],
    rows: Sequence[Row],
    labels: Sequence[str],
    changes: Mapping[int, LevelChanges],
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Name, kind, help and samples of each family."""
    info: list[Sample] = [(label_text(_description(row, labels)), 1.0) for row in rows]
    yield "info", "gauge", "Name, labels and shape of the job.", info
    slow: list[Sample] = [
        (key, float(row["slow_since_step"] is not None))
        for key, row in zip(keys, rows, strict=True)
    ]
    yield "fail_slow", "gauge", "1 during a fail-slow.", slow
    text = "Step time over the healthy one: the current fail-slow's, else of the latest steps."
    over = [slow_factor(row) or _ratio(row["step_s"], row["healthy_s"]) for row in rows]
    yield "step_slowdown_ratio", "gauge", text, list(zip(keys, over, strict=True))
    losses = [
        (key, step_loss(row, changes.get(row["id"]))) for key, row in zip(keys, rows, strict=True)
    ]
    text = "Share of the GPU time lost to the current fail-slow, by step times."
    shares: list[Sample] = [(key, loss.waste) for key, loss in losses if loss is not None]
    yield "step_waste_ratio", "gauge", text, shares
    text = "GPU time lost so far to the current fail-slow, by step times."
    lost = [(key, _seconds_lost(loss)) for key, loss in losses if loss is not None]
    yield "fail_slow_gpu_seconds_lost", "gauge", text, lost
    text = "GPU-hours that a running job would lose in the next day at its current speed."
    yield "stake_gpu_hours", "gauge", text, _column(keys, rows, "stake_gpu_hours", 1.0)
    yield from _upper_ends(keys, rows)
    for kind, table in (("gauge", _OF_JOB), ("counter", _TOTALS)):
        for name, column, text, factor in table:
            yield name, kind, text, _column(keys, rows, column, factor)


def _upper_ends(
    keys: Sequence[str], rows: Sequence[Row]
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """The upper ends of ranges; equal to the lower ones for jobs without a range."""
    largest = [largest_slowdown(row) for row in rows]
    text = "Upper end of S: beside healthy hardware, which few peers do not show."
    yield "slowdown_most_ratio", "gauge", text, list(zip(keys, largest, strict=True))
    wastes = [None if row["waste"] is None else waste_range(row)[1] for row in rows]
    text = "Upper end of the waste."
    yield "waste_most_ratio", "gauge", text, list(zip(keys, wastes, strict=True))
    text = "Upper end of the GPU-hours at stake."
    yield "stake_most_gpu_hours", "gauge", text, _column(keys, rows, "stake_gpu_hours_most", 1.0)
    text = "Upper end of the GPU time lost to stragglers and waits for data."
    lost = _column(keys, rows, "gpu_hours_lost_most", 3600.0)
    yield "gpu_seconds_lost_most_total", "counter", text, lost


def _column(keys: Sequence[str], rows: Sequence[Row], column: str, factor: float) -> list[Sample]:
    values = (row[column] for row in rows)
    return [
        (key, None if value is None else value * factor)
        for key, value in zip(keys, values, strict=True)
    ]


def _family(name: str, kind: str, text: str, samples: Sequence[Sample], openmetrics: bool) -> str:
    name = f"paceline_job_{name}"
    number: Callable[[float], str] = floatToGoString
    lines = [
        f"{name}{{{labels}}} {number(value)}\n" for labels, value in samples if value is not None
    ]
    if not lines:
        return ""
    family = name.removesuffix("_total") if openmetrics else name
    return f"# HELP {family} {text}\n# TYPE {family} {kind}\n{''.join(lines)}"


def _description(row: Row, labels: Sequence[str]) -> dict[str, Any]:
    sizes = {name.removesuffix("_size"): size for name, size in row["degrees"].items()}
    return {
        "project": row["project"],
        "job": row["name"],
        "status": row["status"],
        "gpus": row["gpus"] or "",
        "cause": row["cause"] or "",
        **{name: sizes.get(name, "") for name in ("dp", "pp", "tp")},
        **{f"label_{name}": str(row["labels"].get(name, ""))[:200] for name in labels},
    }


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _seconds_lost(loss: StepLoss) -> float | None:
    return None if loss.gpu_hours_lost is None else loss.gpu_hours_lost * 3600.0


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
