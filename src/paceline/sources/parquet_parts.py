"""Large parquet traces, read in parts: memory holds the trace, not the file's columns as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.trace import OpKind
from paceline.trace.placing import PLACE_ABOVE, Extremes, Part, Parts

#: Number of rows read at once: they stay in a cache of the processor.
BATCH_ROWS = 1 << 18

_PLACES = ("step", "dp_rank", "stage", "optype", "rank", "mc", "gmc")
_VALUES = ("seq_id", "mc", "mb_id", "start_ts", "duration")
_EXTREMES = ("step", "dp_rank", "stage", "rank", "mc", "mb_id")


class OtherTableError(Exception):
    """The table cannot be read in parts."""


def parts_of(file: Any) -> Parts | None:
    """The parts of an open parquet file; None if it must be read as a whole.

    That is so if it is small, its columns have other types, values are missing, or the writer left
    out the extremes of its columns. Reading the parts raises :class:`OtherTableError` if a kind is
    unknown or chunks are placed in another order.
    """
    import pyarrow as pa

    schema, n_rows = file.schema_arrow, file.metadata.num_rows
    if n_rows < PLACE_ABOVE:
        return None
    integers = all(
        pa.types.is_integer(schema.field(name).type) and schema.field(name).type != pa.uint64()
        for name in {*_PLACES, *_VALUES} - {"optype", "start_ts", "duration"}
    )
    seconds = all(schema.field(name).type == pa.float64() for name in ("start_ts", "duration"))
    kinds = pa.types.is_dictionary(schema.field("optype").type)
    extremes = _extremes(file) if integers and seconds and kinds else None
    if extremes is None:
        return None
    n_pp = extremes.pp[1] + 1

    def places() -> Iterator[Part]:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(_PLACES)):
            step, dp, pp, rank, chunk, place = (
                _numbers(batch, name) for name in (*(n for n in _PLACES if n != "optype"),)
            )
            kind = _kinds(batch.column("optype"))
            compute = (kind <= OpKind.BACKWARD_COMPUTE) & (place >= 0)
            if (compute & (chunk.astype(np.int64) * n_pp + pp != place)).any():
                raise OtherTableError
            yield step, dp, pp, kind, rank

    def values() -> Iterator[Part]:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(_VALUES)):
            seq, chunk, microbatch, start, duration = (_numbers(batch, name) for name in _VALUES)
            yield seq, chunk, microbatch, start, duration

    return Parts(n_rows, extremes, places, values)


def column_places(file: Any) -> dict[str, int]:
    """Column -> its place in a row group's metadata, where a nested column has several places."""
    schema = file.metadata.schema
    return {schema.column(place).path: place for place in range(len(schema))}


def _extremes(file: Any) -> Extremes | None:
    """The extremes of the columns in the file's metadata; None if it lacks them."""
    metadata, places = file.metadata, column_places(file)
    ranges = []
    for name in _EXTREMES:
        lows, highs = [], []
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(places[name]).statistics
            if statistics is None or not statistics.has_min_max or statistics.null_count:
                return None
            lows.append(int(statistics.min))
            highs.append(int(statistics.max))
        ranges.append((min(lows), max(highs)))
    return Extremes(*ranges)


def _numbers(batch: Any, name: str) -> npt.NDArray[Any]:
    column = batch.column(name)
    if column.null_count:
        raise OtherTableError
    return np.from_dlpack(column)


def _kinds(column: Any) -> npt.NDArray[np.int8]:
    """[row] kind codes of a dictionary column."""
    if column.null_count:
        raise OtherTableError
    table = np.full(len(column.dictionary), -1, dtype=np.int8)
    for index, label in enumerate(column.dictionary.to_pylist()):
        try:
            table[index] = OpKind.from_label(str(label))
        except KeyError:
            continue  # it may not occur
    codes = np.from_dlpack(column.indices)
    if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= len(table)):
        raise OtherTableError
    kinds: npt.NDArray[np.int8] = table[codes]
    if (kinds < 0).any():
        raise OtherTableError
    return kinds
