"""Step times in TensorBoard's event files, read without TensorFlow.

A file is a sequence of TFRecords: length, its checksum, data, its checksum. The data is one
``Event``. Fields have the numbers of tensorboard 2.21.0, ``compat/proto``: ``event.proto``
(wall_time 1, step 2, summary 5), ``summary.proto`` (Summary.value 1; Value: tag 1, simple_value 2,
tensor 8) and ``tensor.proto`` (tensor_content 4, float_val 5). Checksums are not checked. A last
record that is cut off is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources.json_stream import open_bytes, read_chunk
from paceline.sources.step_logs.lines import Columns
from paceline.sources.step_logs.metrics import (
    BETWEEN,
    WORKLOADS,
    bare_name,
    columns_of,
    step_time_metric,
)

#: Mark in the first event of each file, in front of its version.
_MARK = b"brain.Event:"
_MARK_WITHIN = 64
_FRAME = 12  # bytes of a record before its data; 4 follow the data
#: Largest record: an image may be large. A longer one means a damaged file.
_MAX_RECORD = 256 << 20
_Point = tuple[float, float, float]  # step, wall time, value


def is_event_file(path: Path) -> bool:
    """Whether a file begins like an event file."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_MARK_WITHIN)
    except OSError:
        return False


def read_event_files(paths: Sequence[Path]) -> tuple[Columns, tuple[str, ...]]:
    """Columns, and notes, of the files of one run.

    Raises:
        TraceError: a file is unreadable, or they hold no scalar.
    """
    points: dict[str, list[_Point]] = {}
    for path in paths:
        for event in _records(path):
            _add_scalars(event, points)
    if not points:
        raise TraceError(f"{paths[0]} holds no scalar")
    metric = step_time_metric(points, str(paths[0]))
    # Without a step time, take the metric with the most points: it has a point every few steps.
    series = np.array(points[metric or max(points, key=lambda tag: len(points[tag]))])
    step, values = series[:, 0], series[:, 1 if metric is None else 2]
    workload = {}
    for tag in points:
        if bare_name(tag) in WORKLOADS:
            of_step = {point[0]: point[2] for point in points[tag]}
            column = [of_step.get(number, np.nan) for number in step.tolist()]
            workload[WORKLOADS[bare_name(tag)]] = np.array(column)
    return columns_of(step, values, metric, workload), () if metric else (BETWEEN,)


def _records(path: Path) -> Iterator[bytes]:
    buffer = b""
    with open_bytes(path) as file:
        at = 0
        while True:
            while len(buffer) - at >= _FRAME:
                (size,) = struct.unpack_from("<Q", buffer, at)
                if size > _MAX_RECORD:
                    raise TraceError(f"{path} is damaged: a record of {size:,} bytes")
                end = at + _FRAME + size
                if end + 4 > len(buffer):
                    break
                yield buffer[at + _FRAME : end]
                at = end + 4
            chunk = read_chunk(file, path)
            if not chunk:
                return
            buffer, at = buffer[at:] + chunk, 0


def _add_scalars(event: bytes, points: dict[str, list[_Point]]) -> None:
    step, wall, summaries = 0, 0.0, []
    for field, value in _fields(event):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            (wall,) = struct.unpack("<d", value)
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and isinstance(value, bytes):
                tag, scalar = _scalar(value)
                if scalar is not None:
                    points.setdefault(tag, []).append((step, wall, scalar))


def _scalar(value: bytes) -> tuple[str, float | None]:
    """Tag and number of a Summary.Value; None where it is no scalar."""
    tag, number = "", None
    for field, content in _fields(value):
        if field == 1 and isinstance(content, bytes):
            tag = content.decode("utf-8", errors="replace")
        elif field == 2 and isinstance(content, bytes) and len(content) == 4:
            (number,) = struct.unpack("<f", content)
        elif field == 8 and isinstance(content, bytes):
            number = _tensor_scalar(content)
    return tag, number


def _tensor_scalar(tensor: bytes) -> float | None:
    """The number of a TensorProto of one float."""
    for field, content in _fields(tensor):
        if field in (4, 5) and isinstance(content, bytes) and len(content) == 4:
            return float(struct.unpack("<f", content)[0])
    return None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message's fields: a whole number for a varint, bytes for all others.

    A message that is cut off gives the fields before the cut.
    """
    at = 0
    try:
        while at < len(message):
            key, at = _varint(message, at)
            kind = key & 7
            if kind == 0:
                number, at = _varint(message, at)
                yield key >> 3, number
                continue
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _varint(message, at)
            if size is None or at + size > len(message):
                return
            yield key >> 3, message[at : at + size]
            at += size
    except IndexError:
        return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at an index, and the index behind it."""
    number = shift = 0
    while shift < 70:
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise IndexError
