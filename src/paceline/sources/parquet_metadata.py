"""Metadata of a parquet trace beside its rows: the job, injected causes, and warnings.

JSON in the schema metadata, under ``paceline``; ``docs/trace-format.md`` lists the keys. Format 1
began with ``job`` and ``truth``; readers ignore keys that they do not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.trace import Periods, Trace

T = TypeVar("T", bound=Trace)

METADATA_KEY = b"paceline"
FORMAT_VERSION = 1

#: Most warnings in a file, and most characters of one: people read them.
MAX_NOTES, MAX_CHARACTERS = 200, 2000

#: Times of each worker in each step, and the most of one sort in a file (about 4 MB).
BY_WORKER, MAX_ENDS = ("previous_end_s", "data_wait_s"), 200_000

#: The key of times from step to step.
PERIODS = "period_s"

#: Longest time from step to step that is read, seconds: 30 years.
MAX_PERIOD_S = 1e9

#: Longest name of a host or GPU, characters.
MAX_NAME = 100


def metadata_of(trace: Trace) -> dict[bytes, str]:
    """The schema metadata of a trace's file."""
    stored = {
        "version": FORMAT_VERSION,
        "job": trace.job.to_mapping(),
        "truth": trace.truth,
        "warnings": [text[:MAX_CHARACTERS] for text in trace.warnings[:MAX_NOTES]],
        "left_out": {
            str(step): reason[:MAX_CHARACTERS]
            for step, reason in list(trace.left_out.items())[:MAX_NOTES]
        },
        "step_start_s": _by_step(trace, trace.step_start_s),
    }
    for name in BY_WORKER:
        values = getattr(trace, name)
        if values is not None and values.size <= MAX_ENDS:
            stored[name] = {
                str(step): np.round(of_step, 6).tolist()
                for step, of_step in zip(trace.steps.tolist(), values, strict=True)
                if np.isfinite(of_step).all()
            }
    if trace.periods is not None and len(trace.periods.steps) <= MAX_ENDS:
        periods = trace.periods.within(trace.steps)
        times = zip(periods.steps.tolist(), np.round(periods.seconds, 6).tolist(), strict=True)
        stored[PERIODS] = {str(step): time for step, time in times}
    if trace.places:
        stored["places"] = {str(rank): list(place) for rank, place in trace.places.items()}
    return {METADATA_KEY: json.dumps(stored)}


def _by_step(trace: Trace, seconds: npt.NDArray[np.float64]) -> dict[str, float]:
    times = zip(trace.steps.tolist(), seconds.tolist(), strict=True)
    return {str(step): time for step, time in times if math.isfinite(time)}


def stored_in(metadata: Mapping[bytes, bytes], path: Path, *, forgive: bool) -> dict[str, Any]:
    """Paceline's metadata in the file; empty if it is broken and ``forgive`` is given.

    Raises:
        TraceError: it is broken, or of another version of the format.
    """
    text = metadata.get(METADATA_KEY)
    if text is None:
        return {}
    try:
        stored = json.loads(text)
        version = stored["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        if forgive:  # the job is known without it
            return {}
        raise TraceError(f"{path}: its paceline metadata is broken; pass --job") from None
    if version != FORMAT_VERSION:
        raise TraceError(
            f"{path} was written in trace format {version}; this Paceline reads format "
            f"{FORMAT_VERSION}: update it"
        )
    return dict(stored)


def with_stored(trace: T, stored: Mapping[str, Any]) -> T:
    """The trace with its file's metadata; entries of another form are ignored."""
    warnings = stored.get("warnings")
    noticed = [w for w in warnings if isinstance(w, str)] if isinstance(warnings, list) else []
    step_start_s = trace.step_start_s
    if np.isnan(step_start_s).all():
        step_start_s = _of_steps(trace, stored.get("step_start_s"))
    return replace(
        trace,
        truth=stored.get("truth"),
        # The checks of the trace have found some of the stored ones again.
        warnings=tuple(dict.fromkeys((*noticed[:MAX_NOTES], *trace.warnings))),
        left_out={**_by_number(stored.get("left_out"), (str,)), **trace.left_out},
        step_start_s=step_start_s,
        previous_end_s=_of_workers(trace, stored.get("previous_end_s")),
        data_wait_s=_of_workers(trace, stored.get("data_wait_s")),
        periods=_periods(stored.get(PERIODS)),
        places={
            rank: (str(place[0])[:MAX_NAME], str(place[1])[:MAX_NAME])
            for rank, place in _by_number(stored.get("places"), (list,)).items()
            if len(place) == 2
        },
    )


def _of_steps(trace: Trace, values: Any) -> npt.NDArray[np.float64]:
    times = _by_number(values, (int, float))
    return np.array([float(times.get(step, math.nan)) for step in trace.steps.tolist()])


def _periods(values: Any) -> Periods | None:
    """The stored times from step to step; None if there are none."""
    times = {
        step: float(time)
        for step, time in _by_number(values, (int, float)).items()
        if step < 2**63 and 0 <= time <= MAX_PERIOD_S
    }
    if not times:
        return None
    steps, seconds = zip(*sorted(times.items()), strict=True)
    return Periods(np.array(steps, dtype=np.int64), np.array(seconds, dtype=np.float64))


def _of_workers(trace: Trace, values: Any) -> npt.NDArray[np.float64] | None:
    """[step, replica, pp] the stored seconds; None if there are none of this shape."""
    shape = trace.rank.shape
    ends = np.full((trace.n_steps, *shape), np.nan)
    stored = _by_number(values, (list,))
    for place, step in enumerate(trace.steps.tolist()):
        try:
            of_step = np.array(stored.get(step), dtype=np.float64)
        except (TypeError, ValueError):
            continue
        if of_step.shape == shape:
            ends[place] = of_step
    return None if np.isnan(ends).all() else ends


def _by_number(values: Any, types: tuple[type, ...]) -> dict[int, Any]:
    """Number of a step or rank -> value, for the entries of the right form."""
    if not isinstance(values, Mapping):
        return {}
    return {
        int(key): value
        for key, value in values.items()
        if key.isdecimal() and len(key) < 20 and isinstance(value, types)
    }
