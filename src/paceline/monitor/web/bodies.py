"""What clients send: JSON or msgpack, checked before anything is done with it."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from paceline.monitor.step_files import Batch

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

#: How JSON writes what may be half of a surrogate pair (msgpack's texts are UTF-8).
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

#: Samples of one batch.
MOST_SAMPLES = 2_000_000
#: Values of one body; columns that are packed as bytes are one each.
MOST_VALUES = 2_000_000
#: Bodies that are unpacked and decoded at a time.
AT_A_TIME = 2
#: Keys and bytes (as JSON) of labels, degrees and a trace's meta.
_MOST_KEYS, _META_BYTES = 50, 1 << 20

#: Most steps, ranks and GPUs of a job: a rank costs the detector 3 kB while the job runs.
_MOST_STEP, _MOST_RANKS, _MOST_GPUS = 2**53, 100_000, 10_000_000


def bad(message: str, status: int = 400) -> HTTPException:
    """An answer to a body that will not do."""
    return HTTPException(status, message)


def checked_name(name: str) -> str:
    """A job's name.

    Raises:
        HTTPException: 400, it has other characters.
    """
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise bad("a job's name has 1 to 100 of A-Z a-z 0-9 . _ -")
    return name


async def read_mapping(request: Request, most_bytes: int) -> dict[str, Any]:
    """The body as a mapping, from JSON or msgpack, plain or gzip.

    Raises:
        HTTPException: 400, 413 or 415.
    """
    return await in_turn(request, _mapping, await request.body(), request, most_bytes)


async def in_turn(request: Request, work: Callable[..., T], *args: Any) -> T:
    """Unpack or decode in a thread, a few at a time: a body may become many times its size."""
    return await to_thread.run_sync(partial(work, *args), limiter=request.app.state.unpacking)


def _mapping(body: bytes, request: Request, most_bytes: int) -> dict[str, Any]:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    body = unpacked(body, request, most_bytes)
    if kind.lower() in ("application/msgpack", "application/x-msgpack"):
        found = _msgpack(body)
    elif kind.lower() in ("application/json", ""):
        check_values(body)
        try:
            found = json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise bad(f"the body is no JSON: {str(error)[:200]}") from None
    else:
        raise bad("Content-Type should be application/json or application/msgpack", 415)
    if not isinstance(found, dict):
        raise bad("the body should be an object (a mapping)")
    if _SURROGATE.search(body) and not _is_text(found):
        raise bad("the body holds half of a surrogate pair, which is no text")
    return found


def _is_text(value: Any) -> bool:
    """Whether all texts can be stored and sent."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def unpacked(body: bytes, request: Request, most_bytes: int) -> bytes:
    """A body as it was before it was packed (gzip); never more than the limit is unpacked.

    Raises:
        HTTPException: 400, 413 or 415.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing == "identity":
        return body
    if packing != "gzip":
        raise bad("Content-Encoding should be gzip or none", 415)
    packed = zlib.decompressobj(wbits=31)
    try:
        content = packed.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise bad(f"the body is no gzip: {error}") from None
    if len(content) > most_bytes:
        raise bad(f"unpacked the body has more than {most_bytes:,} bytes", 413)
    if not packed.eof or packed.unused_data:
        raise bad("the gzip body is cut off, or something follows it")
    return content


def check_values(body: bytes) -> None:
    """Refuse JSON of many small values, each of which takes ten times its bytes as an object.

    Raises:
        HTTPException: 413.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MOST_VALUES:
        raise _too_many()


def _too_many() -> HTTPException:
    return bad(
        f"more than {MOST_VALUES:,} values; send less, or msgpack with columns as bytes", 413
    )


def _msgpack(body: bytes) -> Any:
    import msgpack

    n_values = 0

    def counted(values: Any) -> Any:
        nonlocal n_values
        n_values += 1 + len(values)
        if n_values > MOST_VALUES:
            raise _too_many()
        return values

    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            max_array_len=MOST_VALUES,
            list_hook=counted,
            object_hook=counted,
        )
    except HTTPException:
        raise
    except Exception as error:  # its errors have no common base
        raise bad(f"the body is no msgpack: {str(error)[:200]}") from None


def job_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What ``POST /api/v1/jobs`` says: name, gpus, degrees, labels."""
    name = body.get("name")
    if not isinstance(name, str):
        raise bad("name is missing, or no text")
    gpus = body.get("gpus")
    if gpus is not None and (type(gpus) is not int or not 1 <= gpus <= _MOST_GPUS):
        raise bad(f"gpus must be a whole number from 1 on, not {gpus!r}"[:200])
    labels = _small_mapping(body, "labels")
    degrees = _small_mapping(body, "degrees")
    if not all(isinstance(value, str | int | float | bool) for value in labels.values()):
        raise bad("labels must be texts or numbers")
    if not all(type(value) is int or isinstance(value, str) for value in degrees.values()):
        raise bad("degrees must be whole numbers")
    return {
        "name": checked_name(name),
        "gpus": gpus,
        "degrees": degrees,
        "labels": {key: str(value)[:200] for key, value in labels.items()},
    }


def trace_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What ``POST .../uploads`` says: sha256, size, file_name, meta."""
    sha256, size = body.get("sha256"), body.get("size")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise bad("sha256 must be 64 digits of 0-9 a-f")
    if type(size) is not int or not 1 <= size < 1 << 50:
        raise bad("size must be the number of bytes")
    file_name = body.get("file_name", "trace.parquet")
    if not isinstance(file_name, str):
        raise bad("file_name must be a text")
    shown = "".join(c for c in file_name if c.isprintable())[-100:]
    meta = _small_mapping(body, "meta", most_keys=1000)
    return {"sha256": sha256, "size_bytes": size, "file_name": shown, "meta": meta}


def batch_of(body: Mapping[str, Any], now: float) -> Batch:
    """What ``POST .../steps`` says.

    ``source`` and ``batch`` name the batch; the samples are rows (``samples``: [[step, rank,
    duration_s], ...]) or columns (``steps``, ``ranks``, ``durations_s``: lists, or in msgpack bytes
    of little-endian int64, int32 and float64).
    """
    source, number = body.get("source", ""), body.get("batch")
    if not isinstance(source, str) or len(source.encode()) > 200:
        raise bad("source must be a text of at most 200 bytes")
    if not isinstance(number, str | int) or isinstance(number, bool) or len(str(number)) > 100:
        raise bad("batch must be a number or text, unique within its source")
    world = body.get("world", 0)
    if type(world) is not int or not 0 <= world <= _MOST_RANKS:
        raise bad("world must be the number of ranks")
    steps, ranks, durations = _rows(body["samples"]) if "samples" in body else _columns(body)
    if not len(steps) == len(ranks) == len(durations):
        raise bad("steps, ranks and durations_s must have one length")
    if not 1 <= len(steps) <= MOST_SAMPLES:
        raise bad(f"a batch has 1 to {MOST_SAMPLES:,} samples, not {len(steps):,}")
    if steps.min() < 0 or steps.max() > _MOST_STEP:
        raise bad("a step is out of range")
    if ranks.min() < 0 or ranks.max() >= _MOST_RANKS:
        raise bad(f"ranks go from 0 to {_MOST_RANKS - 1:,}")
    if not np.isfinite(durations).all() or durations.min() < 0 or durations.max() > 1e9:
        raise bad("a duration is no number of seconds")
    return Batch(
        source, str(number), now, steps, ranks.astype(np.int32), durations.astype("f4"), world
    )


Table = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _rows(samples: Any) -> Table:
    if not isinstance(samples, list) or len(samples) > MOST_SAMPLES:
        raise bad("samples must be a list of [step, rank, duration_s]")
    try:
        steps, ranks, durations = zip(*samples, strict=True) if samples else ((), (), ())
    except (TypeError, ValueError):
        raise bad("samples must be a list of [step, rank, duration_s]") from None
    return _whole(steps, "steps"), _whole(ranks, "ranks"), _seconds(durations)


def _columns(body: Mapping[str, Any]) -> Table:
    missing = [name for name in ("steps", "ranks", "durations_s") if name not in body]
    if missing:
        raise bad(f"{', '.join(missing)} missing; give samples, or steps, ranks and durations_s")
    return (
        _whole(body["steps"], "steps", "<i8"),
        _whole(body["ranks"], "ranks", "<i4"),
        _seconds(body["durations_s"]),
    )


def _whole(values: Any, name: str, packed: str = "<i8") -> npt.NDArray[np.int64]:
    array = _array(values, name, packed)
    if array.dtype.kind not in "iu":
        raise bad(f"{name} must be whole numbers")
    return array.astype(np.int64)


def _seconds(values: Any) -> npt.NDArray[np.float64]:
    array = _array(values, "durations_s", "<f8")
    if array.dtype.kind not in "iuf":
        raise bad("durations_s must be numbers")
    return array.astype(np.float64)


def _array(values: Any, name: str, packed: str) -> npt.NDArray[Any]:
    try:
        if isinstance(values, bytes):
            return np.frombuffer(values, packed)
        if not isinstance(values, list | tuple) or len(values) > MOST_SAMPLES:
            raise ValueError
        found = np.array(values)
    except (ValueError, OverflowError):
        raise bad(f"{name} must be a list of numbers") from None
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        raise bad(f"{name} must be a list of numbers")
    return found


def _small_mapping(
    body: Mapping[str, Any], key: str, most_keys: int = _MOST_KEYS
) -> dict[str, Any]:
    value = body.get(key)
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise bad(f"{key} must be an object (a mapping)")
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise bad(f"{key} holds what JSON does not") from None
    if len(value) > most_keys or size > _META_BYTES:
        raise bad(f"{key} is too large")
    return value


def whole_parameter(request: Request, name: str, usual: int | None, most: int) -> int | None:
    """A whole number from the query, 0 to ``most``.

    Raises:
        HTTPException: 400, it is none.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise bad(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def finite(value: Any) -> Any:
    """The value as JSON can hold it: no nan, no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
