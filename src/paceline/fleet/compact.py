"""Results of single traces -> the tables ``jobs`` and ``steps``, in the order of the paths.

Rows are read and written in parts, so that memory does not grow with the number of traces.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from typing import Any

from paceline.fleet import results
from paceline.fleet.columns import JOBS, SCHEMA, STEPS, Column, arrow_schema
from paceline.fleet.rules import STATUS, RuleOptions
from paceline.fleet.store import Store
from paceline.fleet.task import Outcome
from paceline.fleet.trace_entry import TraceEntry

JOBS_FOLDER, STEPS_FOLDER = "jobs", "steps"

#: Number of jobs in one parquet file; their steps are in another.
_JOBS_PER_FILE = 5_000

#: Number of concurrent requests for results in a bucket.
_CONNECTIONS = 32

Row = dict[str, Any]
#: A trace and its outcome; None if a rule left it out before.
Pair = tuple[TraceEntry, Outcome | None]


def dataset_digest(pairs: Iterable[Pair], rules: RuleOptions) -> str:
    """Digest of the tables' sources; equal digests mean equal tables."""
    digest = hashlib.sha256(json.dumps([SCHEMA, asdict(rules)]).encode())
    for entry, outcome in pairs:
        values = asdict(entry) | {"stamp": "", "outcome": outcome and asdict(outcome)}
        digest.update(json.dumps(values, default=str, sort_keys=True).encode())
    return digest.hexdigest()


def compact(
    store: Store,
    pairs: Sequence[Pair],
    rules: RuleOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Write the tables; returns the number of rows by status and rule (``analysed`` -> 7).

    Raises:
        FleetError: a result is damaged.
        OutputError: a table cannot be written.
    """
    counts: dict[str, int] = {}
    written: set[str] = set()
    first_of_key: dict[str, str] = {}
    rows = zip(pairs, _documents(store, pairs), strict=True)
    for number, start in enumerate(range(0, len(pairs), _JOBS_PER_FILE)):
        jobs, steps = _tables(islice(rows, _JOBS_PER_FILE), rules, first_of_key)
        for name in jobs["rule"]:
            counts[name or "analysed"] = counts.get(name or "analysed", 0) + 1
        for folder, columns, schema in ((JOBS_FOLDER, jobs, JOBS), (STEPS_FOLDER, steps, STEPS)):
            name = f"{folder}/part-{number:05d}.parquet"
            store.write(name, _parquet(columns, schema))
            written.add(name)
        progress(start + len(jobs["path"]), len(pairs))
    for folder in (JOBS_FOLDER, STEPS_FOLDER):
        stale = [info.name for info in store.files(folder) if info.name not in written]
        for name in stale:
            store.delete(name)
    return counts


def _documents(store: Store, pairs: Sequence[Pair]) -> Iterator[results.Document | None]:
    """The results, in order; those of a bucket are requested ahead."""

    def read(pair: Pair) -> results.Document | None:
        outcome = pair[1]
        return results.read(store, outcome.key) if outcome is not None and outcome.key else None

    if not getattr(store, "remote", False):
        yield from map(read, pairs)
        return
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for start in range(0, len(pairs), 16 * _CONNECTIONS):
            yield from pool.map(read, pairs[start : start + 16 * _CONNECTIONS])


def _tables(
    rows: Iterable[tuple[Pair, results.Document | None]],
    rules: RuleOptions,
    first_of_key: dict[str, str],
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Columns of both tables; ``first_of_key`` has the first row of each key."""
    jobs: dict[str, list[Any]] = {column.name: [] for column in JOBS}
    steps: dict[str, list[Any]] = {column.name: [] for column in STEPS}
    for (entry, outcome), document in rows:
        row = job_row(entry, outcome, document, rules, first_of_key)
        for name, values in jobs.items():
            values.append(row.get(name))
        if document is not None and document["steps"] and row["rule"] != "copy":
            n_steps = len(document["steps"]["step"])
            for name, values in steps.items():
                same = {"key": row["key"], "job": row["name"]}.get(name)
                values += document["steps"][name] if same is None else [same] * n_steps
    return jobs, steps


def job_row(
    entry: TraceEntry,
    outcome: Outcome | None,
    document: results.Document | None,
    rules: RuleOptions,
    first_of_key: dict[str, str],
) -> Row:
    """The row of a trace, from its manifest, its result and the rules."""
    row: Row = {**document["row"], **document["run"]} if document else {}
    row |= _manifest_columns(entry, row)
    if document is not None and not document["error"]:
        rule, error = _copy(entry, document["key"], first_of_key) or rules.after(row)
        row |= _kind_columns(row)
    elif document is not None:
        rule, error = document["rule"], document["error"]
    elif outcome is not None:
        rule, error = outcome.rule, outcome.error
    else:
        rule, error = rules.before(entry)
    key = document["key"] if document else None
    return row | {
        "key": key,
        "status": STATUS[rule],
        "rule": rule or None,
        "error": error or None,
    }


def _copy(entry: TraceEntry, key: str, first_of_key: dict[str, str]) -> tuple[str, str] | None:
    """The rule for a trace that occurs twice."""
    first = first_of_key.setdefault(key, entry.path)
    return None if first == entry.path else ("copy", f"the same trace and job as {first}")


def _manifest_columns(entry: TraceEntry, row: Row) -> Row:
    """Columns from the manifest, or from a job's file."""
    path = entry.path.encode("utf-8", "backslashreplace").decode()  # a name may have another type
    stem = path.rstrip("/").rpartition("/")[2].partition(".")[0]
    gpus = row.get("gpus") if entry.gpus is None else entry.gpus
    hours, source = entry.gpu_hours, "given"
    if hours is None and gpus is not None and row.get("traced_s") is not None:
        hours, source = gpus * row["traced_s"] / 3600, "traced"
    return {
        "path": path,
        "name": entry.name or row.get("name") or stem,
        "team": entry.team or None,
        "started": entry.started,
        "labels": sorted(entry.labels.items()),
        "trace_bytes": entry.size,
        "gpus": gpus,
        "restarts": entry.restarts,
        "max_seq_len": entry.max_seq_len,
        "gpu_hours": hours,
        "gpu_hours_source": None if hours is None else source,
    }


def _kind_columns(row: Row) -> Row:
    """Columns that follow from others."""
    by_kind: Mapping[str, float | None] = row["slowdown_by_kind"]
    waste = [(kind, 1 - 1 / s if s else None) for kind, s in by_kind.items()]
    return {"slowdown_by_kind": list(by_kind.items()), "waste_by_kind": waste}


def _parquet(columns: Mapping[str, list[Any]], schema: tuple[Column, ...]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        [
            pa.array(columns[field.name], _plain_type(field.type)).cast(field.type)
            for field in arrow_schema(schema)
        ],
        schema=arrow_schema(schema),
    )
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _plain_type(type_: Any) -> Any:
    """The type of the values of a dictionary column; other types unchanged."""
    return getattr(type_, "value_type", type_) if str(type_).startswith("dictionary") else type_
