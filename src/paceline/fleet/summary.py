"""A study in numbers: the paper's, the funnel of rules, causes, remedies, hosts, groups of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.errors import FleetError
from paceline.fleet import bootstrap
from paceline.fleet.bootstrap import Estimate
from paceline.fleet.columns import RULES
from paceline.fleet.figures import Figure, Jobs, compute, coverage, severe

if TYPE_CHECKING:
    import pyarrow as pa

#: Version of ``summary.json``.
SCHEMA = 1
#: Rows of a list; the tables hold the rest.
WORST, LISTED = 10, 50
_WORST_COLUMNS = (
    *("name", "path", "key", "gpus", "slowdown", "waste", "cause", "headline"),
    "remedy_action",
)
#: Groups by which every study is told apart, where its jobs say them.
GROUPS = ("team", "size", "cause", "week")


def summarise(
    jobs: pa.Table, steps: pa.Table, by: Sequence[str] = ()
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """The figures, and what ``summary.json`` holds.

    Args:
        jobs: all rows of the table, also of jobs that do not count.
        steps: all rows of the table.
        by: labels of the manifest by which jobs are grouped, too.

    Raises:
        FleetError: no job has such a label.
    """
    counted = Jobs(jobs)
    figures = compute(counted, steps)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "coverage": coverage(counted),
        "funnel": funnel(jobs),
        "straggling": {**figures["waste"].numbers, "jobs": int(counted.slow.sum())},
        "severe": severe(counted),
        "figures": {name: dict(figure.numbers) for name, figure in figures.items()},
        "paper": {name: figure.definition.paper for name, figure in figures.items()},
        "causes": causes(counted),
        "remedies": remedies(counted),
        "hosts": hosts(counted),
        "groups": {name: groups(counted, name) for name in (*GROUPS, *by)},
        "worst": worst(counted),
    }
    for name in by:
        if not summary["groups"][name]:
            raise FleetError(f"no job of the study has the label {name!r}")
    return figures, summary


def as_json(value: Any) -> Any:
    """A summary as JSON knows it: estimates as mappings."""
    if isinstance(value, Estimate):
        return value._asdict()
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value


def funnel(jobs: pa.Table) -> list[dict[str, Any]]:
    """Jobs and GPU-hours that each rule leaves, in the order in which the rules are asked (7).

    GPU-hours are those that are known: a job that could not be read has them by the manifest only.
    """
    import pyarrow.compute as pc

    hours = jobs["gpu_hours"].fill_null(0.0).to_numpy()
    rule = jobs["rule"].combine_chunks()
    left, left_hours = jobs.num_rows, float(hours.sum())
    rows = []
    for one in RULES:
        hit = pc.equal(rule, one.name).fill_null(False).to_numpy(zero_copy_only=False)
        n, lost = int(hit.sum()), float(hours[hit].sum())
        if n:
            left, left_hours = left - n, left_hours - lost
            rows.append(
                {
                    "rule": one.name,
                    "status": one.status,
                    "about": one.about,
                    "jobs": n,
                    "gpu_hours": lost,
                    "jobs_left": left,
                    "gpu_hours_left": left_hours,
                }
            )
    return rows


def causes(jobs: Jobs) -> list[dict[str, Any]]:
    """Straggling jobs and their lost GPU-hours by main cause; and by each cause's diagnosed share.

    A job whose causes explain 60% and 30% of its loss gives these shares of its lost GPU-hours to
    them, and the rest to none.
    """
    slow = np.flatnonzero(jobs.slow)
    names = np.array([name or "unexplained" for name in jobs.table["cause"].take(slow).to_pylist()])
    lost = jobs.lost[slow]
    whole = float(lost.sum())
    by_share = _diagnosed(jobs)
    rows = []
    for name in sorted({*names.tolist(), *by_share}):
        here = names == name
        hours = float(lost[here].sum())
        rows.append(
            {
                "cause": name,
                "jobs": bootstrap.share(int(here.sum()), len(slow)),
                "n": int(here.sum()),
                "gpu_hours_lost": hours,
                "share_of_lost": hours / whole if whole else None,
                "diagnosed_gpu_hours": by_share.get(name, 0.0),
            }
        )
    return sorted(rows, key=lambda row: (-row["gpu_hours_lost"], row["cause"]))


def _diagnosed(jobs: Jobs) -> dict[str, float]:
    """Cause -> lost GPU-hours by the share that the diagnosis gives it."""
    findings = jobs.table["causes"].combine_chunks()
    counts = findings.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    flat = findings.flatten()
    share = flat.field("share").fill_null(0.0).to_numpy(zero_copy_only=False)
    of_job = np.repeat(np.where(jobs.slow, jobs.lost, 0.0), counts)
    names = flat.field("cause").dictionary_encode()
    hours = np.bincount(
        names.indices.to_numpy(zero_copy_only=False), share * of_job, len(names.dictionary)
    )
    return {
        name: float(value)
        for name, value in zip(names.dictionary.to_pylist(), hours, strict=True)
        if value > 0
    }


def remedies(jobs: Jobs) -> list[dict[str, Any]]:
    """What the best remedy of each job would save, predicted, by kind of remedy."""
    gain = np.nan_to_num(jobs.numbers("remedy_gain")) * jobs.hours
    found: list[dict[str, Any]] = [
        {"remedy": name, "jobs": len(rows), "gpu_hours": float(gain[rows].sum())}
        for name, rows in _rows_by(jobs.table["remedy"])
    ]
    return sorted(found, key=lambda row: (-row["gpu_hours"], row["remedy"]))


def _rows_by(column: Any) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Each value of an Arrow column of texts with the rows that have it, ascending."""
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
    """Hosts that findings of at least two jobs name, those with the dearest jobs first."""
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
    """Jobs by team, size, cause, week or a label: those with most lost GPU-hours first.

    Sizes and weeks are in their order, all of them; of others at most ``LISTED``.
    """
    found: list[dict[str, Any]] = []
    for value, places in _rows_by(_values_of(jobs, name)):
        slow = jobs.slow[places]
        found.append(
            {
                "value": value,
                "jobs": len(places),
                "straggling": bootstrap.share(int(slow.sum()), len(places)),
                "waste": bootstrap.weighted(jobs.waste[places], jobs.hours[places]),
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
    """[job] an Arrow column of texts: what each job's group is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "size":
        gpus = np.nan_to_num(jobs.numbers("gpus"))
        power = np.frexp(np.maximum(gpus, 0.5))[1] - 1  # 0.5, for none: -1
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
    """The straggling jobs that lost most GPU-hours."""
    slow = np.flatnonzero(jobs.slow)
    order = slow[np.argsort(-jobs.lost[slow], kind="stable")][:WORST]
    rows = jobs.table.select(_WORST_COLUMNS).take(order).to_pylist()
    return [
        {**row, "gpu_hours_lost": float(jobs.lost[place])}
        for row, place in zip(rows, order.tolist(), strict=True)
    ]
