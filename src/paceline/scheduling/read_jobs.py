"""Logs of queues: CSV files, and output of Slurm's ``sacct``."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import QueueError
from paceline.scheduling.jobs import JobList, Throughputs, job_list
from paceline.scheduling.replay import SlowJobs

#: Columns by their names in files, including ElasticFlow's names.
NAMES = {
    "job_id": ("job_id", "jobid", "id"),
    "submission_time": ("submission_time", "submit_time", "submitted", "arrival"),
    "num_gpu": ("num_gpu", "num_gpus", "gpus"),
    "duration": ("duration", "run_time", "runtime"),
    "model": ("model", "model_name"),
    "global_batch": ("global_batch", "batch_size"),
    "iterations": ("iterations", "iteration", "steps"),
    "class": ("class",),
    "deadline": ("deadline", "ddl"),
    "min_gpu": ("min_gpu", "min_gpus"),
    "max_gpu": ("max_gpu", "max_gpus"),
}
_RATES = ("iterations_per_s", "throughput", "samples_per_s")
#: States of jobs that have not ended, without Slurm's reasons after them.
_UNFINISHED = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING")
_NO_TIME = ("", "None", "Unknown", "N/A")


@dataclass(frozen=True)
class QueueFile:
    """Content of a queue's log.

    Attributes:
        jobs: its jobs, in the order of their submission.
        models: curve -> (model, global batch), for jobs with throughputs from ``plan``.
        warnings: left-out jobs and corrections, with their numbers.
    """

    jobs: JobList
    models: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_jobs(
    path: Path, *, sacct: bool = False, throughputs: Throughputs | None = None
) -> QueueFile:
    """Read a log of a queue; "-" is standard input.

    A row has ``job_id`` and ``submission_time`` (seconds, or a date with time). A rigid job adds
    ``num_gpu`` and ``duration`` [s]. An elastic job adds ``model`` (or ``class``), ``iterations``
    and ``global_batch``. The last is optional if the throughputs have the class itself.
    ``deadline`` is a time like the submission.

    Args:
        path: the file.
        sacct: whether it is the output of ``sacct -P`` with JobID, Submit, Start, End, State,
            AllocTRES.
        throughputs: the user's throughputs of elastic jobs; other jobs are rigid.

    Raises:
        QueueError: the file cannot be read, lacks columns, or a row is wrong (with its line).
    """
    text = _text(path)
    name = "standard input" if str(path) == "-" else str(path)
    if sacct or _is_sacct(text):
        return _from_sacct(text, name)
    return _from_csv(text, name, throughputs)


def read_throughputs(path: Path) -> Throughputs:
    """Throughputs from a CSV: ``class``, ``model`` or ``job``; ``gpus``; ``iterations_per_s``.

    With a column ``global_batch`` a curve is called "model/batch".

    Raises:
        QueueError: the file cannot be read, lacks columns, or a row is wrong (with its line).
    """
    rates: dict[tuple[str, int], float] = {}
    columns, rows = _table(_text(path), str(path))
    name = _column(columns, ("class", "model", "model_name", "job", "job_id"), path)
    gpus, rate = _column(columns, NAMES["num_gpu"], path), _column(columns, _RATES, path)
    batch = next((column for column in NAMES["global_batch"] if column in columns), None)
    for line, row in rows:
        at = f"{path}:{line}"
        curve = _curve(row[name], row[batch] if batch else "")
        key = (curve, _whole(row[gpus], gpus, at, least=1))
        if key in rates:
            raise QueueError(f"{at}: {curve} on {key[1]} GPUs occurs twice")
        rates[key] = _number(row[rate], rate, at, above=0.0)
    if not rates:
        raise QueueError(f"{path} has no throughputs")
    return Throughputs.of(rates)


def read_slowdowns(path: Path) -> SlowJobs:
    """Slowdowns of jobs from a CSV with the column ``slowdown``; values under 1 count as 1.

    Raises:
        QueueError: the file cannot be read, lacks the column, or a row is wrong (with its line).
    """
    columns, rows = _table(_text(path), str(path))
    column = _column(columns, ("slowdown",), path)
    values = [_number(row[column], column, f"{path}:{line}", above=0.0) for line, row in rows]
    if not values:
        raise QueueError(f"{path} has no slowdowns")
    return SlowJobs(np.maximum(1.0, values))


def _from_csv(text: str, name: str, throughputs: Throughputs | None) -> QueueFile:
    columns, rows = _table(text, name)
    at_column = {key: next((c for c in names if c in columns), "") for key, names in NAMES.items()}
    for key in ("job_id", "submission_time"):
        if not at_column[key]:
            raise QueueError(f"{name} has no column {key}; it has {', '.join(columns)}")
    if not at_column["duration"] and not at_column["iterations"]:
        raise QueueError(
            f"{name} needs num_gpu and duration, or model, global_batch and iterations; "
            f"it has {', '.join(columns)}"
        )
    facts: dict[str, list[Any]] = {key: [] for key in _JOB_COLUMNS}
    labels: dict[str, list[str]] = {
        column: [] for column in columns if column not in at_column.values()
    }
    models: dict[str, tuple[str, int]] = {}
    for line, row in rows:
        cell = {
            key: (row[column] or "").strip() if column else "" for key, column in at_column.items()
        }
        _job(cell, f"{name}:{line}", facts, models, throughputs)
        for key, texts in labels.items():
            texts.append(row[key] or "")
    if not facts["job_id"]:
        raise QueueError(f"{name} has no jobs")
    warnings = []
    submitted = facts["submitted_s"]
    unsorted = sum(later < before for before, later in pairwise(submitted))
    if unsorted:
        warnings.append(f"{unsorted:,} rows were submitted before the row above; sorted by time")
    try:
        jobs = job_list(
            facts.pop("job_id"), facts.pop("submitted_s"), facts.pop("work"), **facts, labels=labels
        )
    except QueueError as error:
        raise QueueError(f"{name}: {error}") from None
    return QueueFile(jobs, models, tuple(warnings))


_JOB_COLUMNS = (
    *("job_id", "submitted_s", "work", "gpus"),
    *("curve", "deadline_s", "min_gpus", "max_gpus"),
)


def _job(
    cell: Mapping[str, str],
    at: str,
    facts: dict[str, list[Any]],
    models: dict[str, tuple[str, int]],
    throughputs: Throughputs | None,
) -> None:
    """Add one row's job to ``facts``."""
    submitted = _time(cell["submission_time"], "submission_time", at)
    if submitted < 0:
        raise QueueError(f"{at}: submission_time is {submitted:g}, before 0")
    gpus = _whole(cell["num_gpu"], "num_gpu", at, least=1) if cell["num_gpu"] else 0
    curve, work = "", 0.0
    if cell["iterations"]:
        work = _number(cell["iterations"], "iterations", at, above=0.0)
        curve = _curve_of(cell, at, models, throughputs)
    else:
        if not gpus or not cell["duration"]:
            raise QueueError(f"{at}: the job has neither num_gpu and duration nor iterations")
        work = _number(cell["duration"], "duration", at, above=0.0)
    deadline = _time(cell["deadline"], "deadline", at) if cell["deadline"] else math.inf
    if deadline < submitted:
        raise QueueError(f"{at}: the deadline lies before the submission_time")
    bounds = [_whole(cell[k], k, at, least=1) if cell[k] else 0 for k in ("min_gpu", "max_gpu")]
    if bounds[1] and bounds[0] > bounds[1]:
        raise QueueError(f"{at}: min_gpu {bounds[0]} is above max_gpu {bounds[1]}")
    values = (cell["job_id"], submitted, work, gpus, curve, deadline, *bounds)
    for key, value in zip(_JOB_COLUMNS, values, strict=True):
        facts[key].append(value)


def _curve_of(
    cell: Mapping[str, str],
    at: str,
    models: dict[str, tuple[str, int]],
    throughputs: Throughputs | None,
) -> str:
    model, batch = cell["model"], cell["global_batch"]
    names = [cell["class"], _curve(model, batch), model, cell["job_id"]]
    if throughputs is not None:
        known = [name for name in names if name and name in throughputs.names]
        if not known:
            tried = ", ".join(dict.fromkeys(name for name in names if name))
            raise QueueError(f"{at}: the throughputs have none of {tried}")
        return known[0]
    if not model or not batch:
        raise QueueError(f"{at}: a job with iterations needs model and global_batch")
    curve = _curve(model, batch)
    models[curve] = (model, _whole(batch, "global_batch", at, least=1))
    return curve


def _curve(model: str, batch: str) -> str:
    return f"{model}/{batch}" if batch else model


# Slurm.


def _is_sacct(text: str) -> bool:
    head = text.split("\n", 1)[0].lower().split("|")
    return "jobid" in head and "alloctres" in head


def _from_sacct(text: str, name: str) -> QueueFile:
    """Jobs of ``sacct -P`` that ended on GPUs; others are left out and counted."""
    lines = text.splitlines()
    columns = [column.strip().lower() for column in (lines[0].split("|") if lines else [])]
    needed = ("jobid", "submit", "start", "end", "state", "alloctres")
    missing = [column for column in needed if column not in columns]
    if missing:
        raise QueueError(
            f"{name} lacks {', '.join(missing)}; run sacct -P -X "
            "-o JobID,Submit,Start,End,State,AllocTRES"
        )
    left_out: Counter[str] = Counter()
    facts: dict[str, list[Any]] = {key: [] for key in ("job_id", "submitted_s", "work", "gpus")}
    labels: dict[str, list[str]] = {key: [] for key in columns if key not in needed}
    times_of_id: Counter[str] = Counter()
    for line, text_row in enumerate(lines[1:], start=2):
        if not text_row.strip():
            continue
        cells = text_row.split("|")
        if len(cells) < len(columns):
            raise QueueError(
                f"{name}:{line} has {len(cells)} fields; its header has {len(columns)}"
            )
        row = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
        reason, gpus = _left_out(row), tres_gpus(row["alloctres"])
        if reason or not gpus:
            left_out[reason or "no GPUs"] += 1
            continue
        at = f"{name}:{line}"
        begin, end = _time(row["start"], "Start", at), _time(row["end"], "End", at)
        if end <= begin:
            left_out["ended as they started"] += 1
            continue
        times_of_id[row["jobid"]] += 1
        again = times_of_id[row["jobid"]]
        facts["job_id"].append(row["jobid"] if again == 1 else f"{row['jobid']}#{again}")
        facts["submitted_s"].append(min(_time(row["submit"], "Submit", at), begin))
        facts["work"].append(end - begin)
        facts["gpus"].append(gpus)
        for key, texts in labels.items():
            texts.append(row[key])
    if not facts["job_id"]:
        reasons = "; ".join(f"{n:,} {reason}" for reason, n in left_out.most_common())
        raise QueueError(f"{name} has no job that ran to an end on GPUs ({reasons or 'no rows'})")
    first = min(facts["submitted_s"])
    submitted = [time_s - first for time_s in facts["submitted_s"]]
    jobs = job_list(facts["job_id"], submitted, facts["work"], gpus=facts["gpus"], labels=labels)
    warnings = tuple(f"left out: {n:,} rows, {reason}" for reason, n in left_out.most_common())
    return QueueFile(jobs, {}, warnings)


def _left_out(row: Mapping[str, str]) -> str:
    """Reason why a row is not a job of the replay; "" = it is one."""
    if "." in row["jobid"]:
        return "steps of jobs"
    if "[" in row["jobid"]:
        return "arrays that wait"
    state = row["state"].split()[0] if row["state"] else ""
    if state in _UNFINISHED or row["end"] in _NO_TIME:
        return "not ended"
    return "never started" if row["start"] in _NO_TIME else ""


def tres_gpus(tres: str) -> int:
    """GPUs in Slurm's AllocTRES: "gres/gpu=8"; typed GPUs count if there is no total."""
    total, typed = 0, 0
    for entry in tres.split(","):
        name, _, count = entry.strip().partition("=")
        if not count.isdigit():
            continue
        if name == "gres/gpu":
            total += int(count)
        elif name.startswith("gres/gpu:"):
            typed += int(count)
    return total or typed


# Cells.


def _text(path: Path) -> str:
    import sys

    try:
        if str(path) == "-":
            return sys.stdin.read()
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise QueueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise QueueError(f"{path} is no text file") from None


def _table(text: str, name: str) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    reader = csv.DictReader(io.StringIO(text))
    columns = [column.strip() for column in reader.fieldnames or [] if column]
    if not columns:
        raise QueueError(f"{name} is empty")
    if len(set(columns)) < len(columns):
        raise QueueError(f"{name} has a column twice: {', '.join(columns)}")
    reader.fieldnames = columns

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise QueueError(
                        f"{name}:{reader.line_num} has more or fewer fields than the header"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise QueueError(f"{name}:{reader.line_num}: {error}") from None

    return columns, rows()


def _column(columns: Sequence[str], names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise QueueError(f"{path} has no column {names[0]}; it has {', '.join(columns)}")


def _number(text: str, name: str, at: str, *, above: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise QueueError(f"{at}: {name} is no number: {text!r}") from None
    if not above < value < math.inf:
        raise QueueError(f"{at}: {name} must be above {above:g}, not {text}")
    return value


def _whole(text: str, name: str, at: str, *, least: int) -> int:
    try:
        value = float(text)
    except ValueError:
        raise QueueError(f"{at}: {name} is no number: {text!r}") from None
    if not value.is_integer() or value < least:
        raise QueueError(f"{at}: {name} must be a whole number of at least {least}, not {text}")
    return int(value)


def _time(text: str, name: str, at: str) -> float:
    """Seconds, or a date as seconds since 1970 (UTC if it has no zone)."""
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise QueueError(f"{at}: {name} is neither seconds nor a date: {text!r}") from None
        zone = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return zone.timestamp()
    if not math.isfinite(value):
        raise QueueError(f"{at}: {name} is no time: {text}")
    return value
