"""Types of pushed bodies: a job, a trace, a batch of step times."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw
from starlette.exceptions import HTTPException

from paceline.monitor.step_files import Batch
from paceline.monitor.web.bodies import Body, bad, checked_name
from paceline.sources.step_times import WORKLOAD_COLUMNS

#: Most samples of a batch.
MOST_SAMPLES = 2_000_000
#: Most batches of a request.
MOST_BATCHES = 1000
#: Limits: keys and text lengths of a mapping; keys and bytes of a trace's meta.
_MOST_KEYS, _MOST_CHARS, _META_KEYS, _META_BYTES = 50, 10_000, 1000, 1 << 20

#: Limits of a job's steps, ranks and GPUs: a rank costs the detector 3 kB.
_MOST_STEP, _MOST_RANKS, _MOST_GPUS = 2**53, 100_000, 10_000_000
_MOST_S = 1e9
_MOST_SOURCE_BYTES = 200
#: Most steps of a batch with a planned workload.
_MOST_PAIRS = 100_000

_Text = Annotated[str, Meta(max_length=_MOST_CHARS)]
#: Unlike JSON, msgpack has nan and the infinities.
_Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r'^[^\x00"\\]*\Z')]
_Labels = Annotated[dict[_Text, _Text | int | _Finite | bool], Meta(max_length=_MOST_KEYS)]
_Degrees = Annotated[dict[_Text, _Text | int], Meta(max_length=_MOST_KEYS)]
_Rank = Annotated[int, Meta(ge=0, lt=_MOST_RANKS)]
_Step = Annotated[int, Meta(ge=0, le=_MOST_STEP)]
_Pairs = Annotated[list[tuple[_Step, _Finite]], Meta(max_length=_MOST_PAIRS)]
_Workload = Annotated[dict[_Text, _Pairs], Meta(max_length=len(WORKLOAD_COLUMNS))]
_Meta = Annotated[dict[str, Any], Meta(max_length=_META_KEYS)]


class NewJob(msgspec.Struct, frozen=True):
    """Body of ``POST /api/v1/jobs``. ``openapi.yaml`` describes the fields of all bodies."""

    name: str
    gpus: Annotated[int, Meta(ge=1, le=_MOST_GPUS)] | None = None
    degrees: _Degrees | None = None
    labels: _Labels | None = None


class Ended(msgspec.Struct, frozen=True):
    """Body of ``POST /api/v1/ended``: labels of the jobs, such as their scheduler's."""

    labels: Annotated[dict[_Label, _Label], Meta(min_length=1, max_length=5)]


class _NewUpload(msgspec.Struct, frozen=True):
    """Body of ``POST .../uploads``; ``meta`` is unchecked."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=1, lt=1 << 50)]
    file_name: str = "trace.parquet"
    meta: Raw = Raw()


class _NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST .../steps``; rows and columns are unchecked."""

    batch: int | Annotated[str, Meta(max_length=100)]
    source: Annotated[str, Meta(max_length=_MOST_SOURCE_BYTES)] = ""
    world: Annotated[int, Meta(ge=0, le=_MOST_RANKS)] = 0
    samples: Raw = Raw()
    steps: Raw = Raw()
    ranks: Raw = Raw()
    durations_s: Raw = Raw()
    workload: Raw = Raw()


class _JobBatch(_NewBatch, frozen=True, kw_only=True):
    """A batch of one of several jobs."""

    job: str


class _NewBatches(msgspec.Struct, frozen=True):
    """Body of ``POST /api/v1/steps``."""

    batches: Annotated[list[_JobBatch], Meta(min_length=1, max_length=MOST_BATCHES)]


class ToldEvent(msgspec.Struct, frozen=True):
    """An event of a pause that ``paceline watch`` requested, in ``POST .../events``."""

    kind: Literal["paused", "not-paused", "validated", "not-validated"]
    step: _Step
    at: Annotated[float, Meta(ge=0, le=_MOST_S * 100)]
    text: Annotated[str, Meta(min_length=1, max_length=1000)]
    ranks: Annotated[list[_Rank], Meta(max_length=_MOST_RANKS)] = []


def event_of(body: Body) -> ToldEvent:
    """Body of ``POST .../events``."""
    event: ToldEvent = body.decode(ToldEvent)
    return event


def job_of(body: Body) -> NewJob:
    """Body of ``POST /api/v1/jobs``, with a checked name."""
    job: NewJob = body.decode(NewJob)
    checked_name(job.name)
    return job


def trace_of(body: Body) -> dict[str, Any]:
    """Body of ``POST .../uploads``: sha256, size_bytes, file_name, meta."""
    upload: _NewUpload = body.decode(_NewUpload)
    printable = "".join(c for c in upload.file_name if c.isprintable())[-100:]
    return {
        "sha256": upload.sha256,
        "size_bytes": upload.size,
        "file_name": printable,
        "meta": _meta(body, upload.meta),
    }


def _meta(body: Body, content: Raw) -> dict[str, Any]:
    n_bytes = len(bytes(content))
    if not n_bytes:
        return {}
    if n_bytes > _META_BYTES:
        raise bad(f"meta has more than {_META_BYTES:,} bytes")
    meta: dict[str, Any] | None = body.decode(_Meta | None, "meta", content)
    try:
        json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise bad("meta has values that JSON lacks") from None
    return meta or {}


def batch_of(body: Body, clock: Callable[[], float]) -> Batch:
    """Body of ``POST .../steps``.

    ``source`` and ``batch`` name the batch; the samples are rows (``samples``: [[step, rank,
    duration_s], ...]) or columns (``steps``, ``ranks``, ``durations_s``: lists, or in msgpack bytes
    of little-endian int64, int32 and float64).
    """
    return _batch(body, body.decode(_NewBatch), clock)


def batches_of(body: Body, clock: Callable[[], float]) -> list[tuple[str, Batch] | HTTPException]:
    """(job, batch) of each batch of ``POST /api/v1/steps``, or its error."""
    new: _NewBatches = body.decode(_NewBatches)
    batches: list[tuple[str, Batch] | HTTPException] = []
    for one in new.batches:
        try:
            batches.append((checked_name(one.job), _batch(body, one, clock)))
        except HTTPException as error:
            batches.append(error)
    return batches


def _batch(body: Body, new: _NewBatch, clock: Callable[[], float]) -> Batch:
    if len(new.source.encode()) > _MOST_SOURCE_BYTES:
        raise bad(f"source must be a text of at most {_MOST_SOURCE_BYTES} bytes")
    number = str(new.batch)
    if len(number) > 100:
        raise bad("batch must have at most 100 digits")
    if bytes(new.samples):
        if any(bytes(column) for column in (new.steps, new.ranks, new.durations_s)):
            raise bad("give samples, or steps, ranks and durations_s, not both")
        columns = _rows(body, new.samples)
    else:
        columns = _columns(body, new)
    steps = _checked(columns[0], "steps", "<i8", _MOST_STEP)
    ranks = _checked(columns[1], "ranks", "<i4", _MOST_RANKS - 1)
    durations = _checked(columns[2], "durations_s", "<f8", _MOST_S)
    if not len(steps) == len(ranks) == len(durations):
        raise bad("steps, ranks and durations_s must have one length")
    narrow = steps.astype(np.int64), ranks.astype(np.int32), durations.astype(np.float32)
    workload = _workload(body, new.workload)
    return Batch(new.source, number, clock(), *narrow, new.world, workload)


def _workload(body: Body, content: Raw) -> dict[int, dict[str, float]]:
    """Step -> column -> planned workload, from column -> [[step, value], ...]."""
    if not bytes(content):
        return {}
    columns: dict[str, Any] | None = body.decode(_Workload | None, "workload", content)
    workload: dict[int, dict[str, float]] = {}
    for name, pairs in (columns or {}).items():
        if name not in WORKLOAD_COLUMNS:
            raise bad(f"workload may have {', '.join(WORKLOAD_COLUMNS)}, not {name[:100]}")
        for step, value in pairs:
            workload.setdefault(step, {})[name] = value
    return workload


def _rows(body: Body, samples: Raw) -> tuple[Any, Any, Any]:
    rows = body.values(list[tuple[int, int, float]], "samples", samples, per_item=4)
    steps, ranks, durations = zip(*rows, strict=True) if rows else ((), (), ())
    return steps, ranks, durations


def _columns(body: Body, new: _NewBatch) -> tuple[Any, Any, Any]:
    whole: Any = list[int] | bytes if body.is_msgpack else list[int]
    number: Any = list[float] | bytes if body.is_msgpack else list[float]
    columns = {"steps": new.steps, "ranks": new.ranks, "durations_s": new.durations_s}
    missing = [name for name, content in columns.items() if not bytes(content)]
    if missing:
        raise bad(f"{', '.join(missing)} missing; give samples, or steps, ranks and durations_s")
    return (
        body.values(whole, "steps", new.steps, per_item=3),
        body.values(whole, "ranks", new.ranks, per_item=3),
        body.values(number, "durations_s", new.durations_s, per_item=3),
    )


def _checked(values: Any, name: str, packed: str, most: float) -> npt.NDArray[Any]:
    """A column as an array of values from 0 to ``most``."""
    try:
        if isinstance(values, bytes):
            column = np.frombuffer(values, packed)
        else:
            column = np.array(values, "<f8" if packed == "<f8" else "<i8")
    except (ValueError, OverflowError):
        raise bad(f"{name} must be numbers from 0 to {most:,.0f}") from None
    if not 1 <= len(column) <= MOST_SAMPLES:
        raise bad(f"a batch has 1 to {MOST_SAMPLES:,} samples, not {len(column):,}")
    if not (column.min() >= 0 and column.max() <= most):  # also refuses nan
        raise bad(f"{name} must be from 0 to {most:,.0f}")
    return column
