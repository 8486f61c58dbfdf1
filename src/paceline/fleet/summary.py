"""Numbers of a study: the paper's figures, rules, causes, remedies, hosts, groups of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.errors import FleetError
from paceline.fleet import bootstrap
from paceline.fleet.bootstrap import Estimate
from paceline.fleet.columns import RULES
from paceline.fleet.definitions import PAPER_TABLES
from paceline.fleet.figures import Array, Figure, Jobs, compute, coverage, severe

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of ``summary.json``.
SCHEMA = 1
#: Most rows of lists; the tables have the rest.
WORST, LISTED = 10, 50
_WORST_COLUMNS = (
    *("name", "path", "key", "gpus", "slowdown", "waste", "cause", "headline"),
    "remedy_action",
)
#: Groups of every study, if its jobs have them.
GROUPS = ("team", "size", "cause", "week")
#: Rules before and after the what-if analysis. The other rules mean that it could not run.
_NOT_FAILURES = ("copy", "gpus", "restarts", "discrepancy")


def summarise(
    jobs: pa.Table, steps: pa.Table, by: Sequence[str] = ()
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """The figures, and the content of ``summary.json``.

    Args:
        jobs: all rows of the table, including jobs that do not count.
        steps: all rows of the table.
        by: labels of the manifest for further groups.

    Raises:
        FleetError: no job has such a label.
    """
    counted = Jobs(jobs)
    figures = compute(counted, steps)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "coverage": coverage(counted),
        "funnel": funnel(jobs),
        "waiting": waiting(jobs),
        "straggling": {**figures["waste"].numbers, "jobs": int(counted.slow.sum())},
        "severe": severe(counted),
        "figures": {name: dict(figure.numbers) for name, figure in figures.items()},
        "paper": dict(PAPER_TABLES)
        | {name: figure.definition.paper for name, figure in figures.items()},
        "causes": causes(counted),
        "remedies": remedies(counted),
        "saved": saved(counted),
        "hosts": hosts(counted),
        "groups": {name: groups(counted, name) for name in (*GROUPS, *by)},
        "worst": worst(counted),
    }
    for name in by:
        if not summary["groups"][name]:
            raise FleetError(f"no job of the study has the label {name!r}")
    return figures, summary


def as_json(value: Any) -> Any:
    """A summary in the form of JSON: estimates as mappings."""
    if isinstance(value, Estimate):
        return value._asdict()
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value


def funnel(jobs: pa.Table) -> list[dict[str, Any]]:
    """Jobs and GPU-hours that remain after each rule, in the order of the checks (7).

    GPU-hours are the known ones: an unreadable job has them only from the manifest. ``share`` is
    the share of the jobs before the rule. ``share_of_failures`` is the share of jobs that could not
    be analysed (section 7), None for other rules.
    """
    import pyarrow.compute as pc

    hours = jobs["gpu_hours"].fill_null(0.0).to_numpy()
    rule = jobs["rule"].combine_chunks()
    left, left_hours = jobs.num_rows, float(hours.sum())
    rows: list[dict[str, Any]] = []
    for one in RULES:
        hit = pc.equal(rule, one.name).fill_null(False).to_numpy(zero_copy_only=False)
        n, lost = int(hit.sum()), float(hours[hit].sum())
        if n:
            rows.append(
                {
                    "rule": one.name,
                    "status": one.status,
                    "about": one.about,
                    "jobs": n,
                    "gpu_hours": lost,
                    "jobs_before": left,
                    "gpu_hours_before": left_hours,
                    "jobs_left": left - n,
                    "gpu_hours_left": left_hours - lost,
                    "share": bootstrap.share(n, left),
                }
            )
            left, left_hours = left - n, left_hours - lost
    return _with_share_of_failures(rows)


def _with_share_of_failures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    failures = sum(row["jobs"] for row in rows if row["rule"] not in _NOT_FAILURES)
    return [
        row
        | {
            "share_of_failures": None
            if row["rule"] in _NOT_FAILURES
            else bootstrap.share(row["jobs"], failures)
        }
        for row in rows
    ]


def waiting(jobs: pa.Table) -> list[dict[str, Any]]:
    """Jobs left out for their discrepancy whose workers wait for data, the longest waits first.

    Such waits pass between operations, so the simulation lacks them.
    """
    import pyarrow.compute as pc

    left_out = jobs.filter(pc.equal(jobs["rule"], "discrepancy"))
    found = [
        {"name": row["name"], "share_of_step": cause["share_of_step"]}
        for row in left_out.select(("name", "causes")).to_pylist()
        for cause in row["causes"] or ()
        if cause["cause"] == "data-loading" and cause["share_of_step"] is not None
    ]
    return sorted(found, key=lambda row: (-row["share_of_step"], row["name"]))


def causes(jobs: Jobs) -> list[dict[str, Any]]:
    """Straggling jobs and their lost GPU-hours by main cause, and by diagnosed shares of causes.

    If two causes explain 60% and 30% of a job's loss, they get these shares of its lost GPU-hours.
    No cause gets the rest.
    """
    slow = np.flatnonzero(jobs.slow)
    names = np.array([name or "unexplained" for name in jobs.table["cause"].take(slow).to_pylist()])
    lost = jobs.lost[slow]
    by_share = _diagnosed(jobs, slow)
    rows = []
    for name in sorted({*names.tolist(), *by_share}):
        here = names == name
        explained = by_share.get(name, np.zeros(len(slow)))
        rows.append(
            {
                "cause": name,
                "jobs": bootstrap.share(int(here.sum()), len(slow)),
                "n": int(here.sum()),
                "gpu_hours_lost": float(lost[here].sum()),
                "share_of_lost": bootstrap.weighted(here.astype(np.float64), lost),
                "diagnosed_gpu_hours": float((explained * lost).sum()),
                "diagnosed_share": bootstrap.weighted(explained, lost),
            }
        )
    return sorted(rows, key=lambda row: (-row["gpu_hours_lost"], row["cause"]))


def _diagnosed(jobs: Jobs, slow: npt.NDArray[np.int64]) -> dict[str, Array]:
    """Cause -> [straggling job] the share of its loss that the cause explains."""
    findings = jobs.table["causes"].take(slow).combine_chunks()
    counts = findings.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    flat = findings.flatten()
    share = flat.field("share").fill_null(0.0).to_numpy(zero_copy_only=False)
    of_job = np.repeat(np.arange(len(slow)), counts)
    by_job: dict[str, Array] = {
        name: np.bincount(of_job[places], share[places], len(slow)).astype(np.float64)
        for name, places in _rows_by(flat.field("cause"))
    }
    return {name: shares for name, shares in by_job.items() if shares.any()}


def remedies(jobs: Jobs) -> list[dict[str, Any]]:
    """Predicted saving of each job's best remedy, by kind of remedy."""
    gain = np.nan_to_num(jobs.numbers("remedy_gain")) * jobs.hours
    found: list[dict[str, Any]] = [
        {"remedy": name, "jobs": len(rows), "gpu_hours": float(gain[rows].sum())}
        for name, rows in _rows_by(jobs.table["remedy"])
    ]
    return sorted(found, key=lambda row: (-row["gpu_hours"], row["remedy"]))


def saved(jobs: Jobs) -> dict[str, Any]:
    """The total saving of every job's best remedy, and its share of all GPU-hours."""
    gain = np.nan_to_num(jobs.numbers("remedy_gain"))
    return {
        "gpu_hours": float((gain * jobs.hours).sum()),
        "share": bootstrap.weighted(gain, jobs.hours),
    }


def _rows_by(column: Any) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """The values of an Arrow column of texts, ascending, with their rows."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    number = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(number, kind="stable")
    cuts = np.searchsorted(number[order], np.arange(len(encoded.dictionary) + 1))
    for value, low, high in zip(encoded.dictionary.to_pylist(), cuts, cuts[1:], strict=False):
        yield value, order[low:high]


def hosts(jobs: Jobs) -> list[dict[str, Any]]:
    """Hosts in findings of at least two jobs, by the losses of their jobs."""
    column = jobs.table["slow_hosts"].combine_chunks()
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    of_job = np.repeat(np.arange(len(jobs)), counts)
    found: list[dict[str, Any]] = []
    for name, places in _rows_by(column.flatten()):
        rows = np.unique(of_job[places])
        if len(rows) > 1:
            found.append(
                {
                    "host": name,
                    "jobs": len(rows),
                    "gpu_hours_lost": float(jobs.lost[rows].sum()),
                    "names": [jobs.name(row) for row in rows[:5].tolist()],
                }
            )
    return sorted(found, key=lambda row: (-row["gpu_hours_lost"], row["host"]))[:LISTED]


def groups(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    """Groups of jobs by team, size, cause, week or a label, by lost GPU-hours.

    Sizes and weeks keep their order and are complete; other groups are at most ``LISTED``.
    """
    found: list[dict[str, Any]] = []
    for value, places in _rows_by(_values_of(jobs, name)):
        slow, known = jobs.slow[places], places[jobs.known[places]]
        found.append(
            {
                "value": value,
                "jobs": len(places),
                "straggling": bootstrap.share(int(slow.sum()), len(known)),
                "waste": bootstrap.weighted(jobs.waste[known], jobs.hours[known]),
                "gpu_hours": float(jobs.hours[places].sum()),
                "gpu_hours_lost": float(jobs.lost[places].sum()),
            }
        )
    if name == "size":
        return sorted(found, key=lambda row: int(row["value"].partition("–")[0].replace(",", "")))
    if name == "week":
        return sorted(found, key=lambda row: str(row["value"]))
    return sorted(found, key=lambda row: (-row["gpu_hours_lost"], row["value"]))[:LISTED]


def _values_of(jobs: Jobs, name: str) -> Any:
    """[job] an Arrow column of texts: each job's group."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "size":
        gpus = np.nan_to_num(jobs.numbers("gpus"))
        power = np.frexp(np.maximum(gpus, 0.5))[1] - 1  # 0.5 stands for missing; -1 as an integer
        names = [_size(p) for p in range(int(power.max(initial=-1)) + 1)]
        numbers = pa.array(power, mask=power < 0)
        return pa.DictionaryArray.from_arrays(numbers, pa.array(names, pa.string())).cast("string")
    if name == "week":
        return pc.strftime(pc.floor_temporal(jobs.table["started"], unit="week"), "%Y-%m-%d")
    if name in ("team", "cause"):
        return jobs.table[name]
    return pc.map_lookup(jobs.table["labels"], query_key=name, occurrence="first")


def _size(power: int) -> str:
    low = 1 << power
    return f"{low:,}–{2 * low - 1:,}" if low > 1 else "1"


def worst(jobs: Jobs) -> list[dict[str, Any]]:
    """The straggling jobs with the largest lost GPU-hours."""
    slow = np.flatnonzero(jobs.slow)
    order = slow[np.argsort(-jobs.lost[slow], kind="stable")][:WORST]
    rows = jobs.table.select(_WORST_COLUMNS).take(order).to_pylist()
    return [
        {**row, "gpu_hours_lost": float(jobs.lost[place])}
        for row, place in zip(rows, order.tolist(), strict=True)
    ]
