"""A comparison as JSON: schema 1; ``docs/compare.md`` lists the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paceline.comparison import Change, Comparison, PartChange, TimeChange
from paceline.report.comparison import words
from paceline.report.result_json import lines_of_json
from paceline.results.document import JobReport

SCHEMA = 1

#: Most workers and hosts in the document: the ones with the largest changes.
MAX_ROWS = 20


def dumps(comparison: Comparison) -> str:
    """One line of JSON per key."""
    return lines_of_json(to_mapping(comparison))


def to_mapping(comparison: Comparison) -> dict[str, Any]:
    """The comparison in the form of JSON. Later versions add keys and change none.

    Pairs are [before, after]; seconds are per ``unit``; None means no value.
    """
    sides = (comparison.before, comparison.after)
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "names": [side.name for side in sides],
        "unit": comparison.unit,
        "verdict": comparison.verdict,
        "text": words.verdict(comparison),
        "notes": words.notes(comparison),
        "disagreements": [
            {"what": d.what, "before": d.before, "after": d.after} for d in comparison.disagreements
        ],
        "time": _time(comparison.time),
        "median": _time(comparison.median),
        "time_with_pauses": (
            None if comparison.time_with_pauses is None else _time(comparison.time_with_pauses)
        ),
        "pause_s": None if comparison.pause_s is None else _pair(comparison.pause_s),
        "gpu_time": None if comparison.gpu_time is None else _time(comparison.gpu_time),
        "change_s": _number(comparison.change_s),
        "remainder_s": {
            name: _number(comparison.remainder_s(rows))
            for name, rows in (
                ("causes", comparison.causes),
                ("kinds", comparison.kinds),
                ("stages", comparison.stages),
            )
        },
        "effective_steps": [_number(side.effective_steps) for side in sides],
        "odd_steps": [list(steps) for steps in comparison.odd_steps],
        "causes": [
            {
                "name": row.name,
                "seconds": _pair((row.before_s, row.after_s)),
                **_change(row.change),
            }
            for row in comparison.causes
        ],
        "kinds": [
            {"name": row.name, "op_s": _pair(row.mean_s), **_slowdown_and_change(row)}
            for row in comparison.kinds
        ],
        "stages": [
            {"stage": int(row.name), "compute_s": _pair(row.mean_s), **_slowdown_and_change(row)}
            for row in comparison.stages
        ],
        "n_workers": len(comparison.workers),
        "workers": [
            {
                "dp": row.dp,
                "pp": row.pp,
                "slowdown": _pair(row.slowdown),
                "loss_s": _pair(row.loss_s),
                **_change(row.change),
                "hosts": list(row.hosts),
            }
            for row in comparison.workers[:MAX_ROWS]
        ],
        "n_hosts": len(comparison.hosts),
        "hosts": [
            {
                "host": row.host,
                "workers": list(row.workers),
                "loss_s": _pair(row.loss_s),
                **_change(row.change),
            }
            for row in comparison.hosts[:MAX_ROWS]
        ],
        "left_out": dict(comparison.left_out),
        "warnings": {
            side_name: list(side.result.warnings)
            for side_name, side in zip(("before", "after"), sides, strict=True)
        },
        "before": JobReport.of(comparison.before.result, comparison.before.advice).to_mapping(),
        "after": JobReport.of(comparison.after.result, comparison.after.advice).to_mapping(),
    }


def _time(change: TimeChange) -> dict[str, Any]:
    return {
        "before_s": _number(change.before_s),
        "after_s": _number(change.after_s),
        "change": _number(change.change),
        "interval": None if change.interval is None else _pair(change.interval),
        "verdict": change.verdict,
    }


def _slowdown_and_change(row: PartChange) -> dict[str, Any]:
    return {"slowdown": _pair(row.slowdown), **_change(row.change)}


def _change(change: Change | None) -> dict[str, Any]:
    if change is None:
        return {"change_s": None, "interval_s": None, "clear": None}
    return {
        "change_s": _number(change.seconds),
        "interval_s": None if change.interval is None else _pair(change.interval),
        "clear": None if change.interval is None else change.clear,
    }


def _pair(values: Sequence[float | None]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
