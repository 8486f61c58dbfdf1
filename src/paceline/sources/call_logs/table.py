"""Logs of collective calls: CSV or parquet, one row per call.

Columns: ``rank`` and ``size`` (integers, from 0), ``time_s`` or ``time`` (seconds), ``op`` and
``communicator`` (text or integers); optionally ``duration_s``. Other columns are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources import kineto
from paceline.trace.calls import CallLog

COLUMNS = ("rank", "time_s", "op", "size", "communicator")
OPTIONAL = "duration_s"


def read_calls(path: str | Path) -> CallLog:
    """Read a call log; a name that ends in .csv means CSV, any other parquet.

    Raises:
        TraceError: the file is unreadable, has no rows, lacks a column, or has an invalid value.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give the call log in it")
    csv = path.suffix.lower() == ".csv"
    if not csv and path.suffix.lower() != ".parquet" and not _begins_as_parquet(path):
        raise TraceError(_no_call_log(path))
    table = _table(path, csv)
    place = _Place(str(path), 2 if csv else 0, "line" if csv else "row")
    if not table.num_rows:
        raise TraceError(f"{path} has no rows; give one per call")
    numbers = {name: _numbers(table.column(name), name, place) for name in ("rank", "size")}
    for name, values in numbers.items():
        wrong = (values != np.floor(values)) | (values < 0) | (values >= 2**53)
        place.refuse(wrong, name, values, "give a whole number from 0")
    time_s = _numbers(table.column("time_s"), "time_s", place)
    duration_s = None
    if OPTIONAL in table.column_names:
        duration_s = _numbers(table.column(OPTIONAL), OPTIONAL, place)
        place.refuse(duration_s < 0, OPTIONAL, duration_s, "give seconds, from 0")
    op, ops = _names(table.column("op"), "op", place)
    communicator, communicators = _names(table.column("communicator"), "communicator", place)
    rank, size = (numbers[name].astype(np.int64) for name in ("rank", "size"))
    try:
        return CallLog(rank, time_s, op, size, communicator, ops, communicators, duration_s)
    except TraceError as error:
        raise TraceError(f"{path} (rows counted from 0): {error}") from None


def _begins_as_parquet(path: Path) -> bool:
    """Whether the file is parquet by its first bytes, or cannot be read at all."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return True  # pyarrow reports the error


def _no_call_log(path: Path) -> str:
    text = (
        f"{path} is no call log: neither a log of NCCL Inspector, PyTorch's flight recorder, "
        "torchcomms, xpu_timer or Paceline's plugin, nor a CSV or parquet table of calls "
        f"({', '.join(COLUMNS)})"
    )
    if kineto.matches(path):
        text += "; it is a PyTorch profile: see paceline import and paceline ranks"
    return text


class _Place:
    """Place of a row in a file, for messages."""

    def __init__(self, path: str, first: int, word: str) -> None:
        self.path, self.first, self.word = path, first, word

    def refuse(
        self, wrong: npt.NDArray[np.bool_], name: str, values: npt.NDArray[Any], do: str
    ) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(
                f"{self.path}, {self.word} {row + self.first}: {name} is {values[row]}; {do}"
            )


def _table(path: Path, csv: bool) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    try:
        if csv:
            text = dict.fromkeys(("op", "communicator"), pa.string())
            options = pc.ConvertOptions(column_types=text)
            table = pc.read_csv(path, convert_options=options)
        else:
            table = pq.read_table(path)
            table.validate(full=True)
        names = [name.strip() for name in table.column_names]  # not UTF-8: a ValueError
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        sort = "CSV" if csv else "parquet"
        raise TraceError(f"{path} is not a readable {sort} file: {reason}") from None
    if "time_s" not in names:
        names = ["time_s" if name == "time" else name for name in names]
    table = table.rename_columns(names)
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise TraceError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; a call log "
            f"has {', '.join(COLUMNS)}"
        )
    twice = [name for name in (*COLUMNS, OPTIONAL) if names.count(name) > 1]
    if twice:
        raise TraceError(f"{path} has more than one column called {', '.join(twice)}")
    return table


def _numbers(column: Any, name: str, place: _Place) -> npt.NDArray[np.float64]:
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        if pa.types.is_string(column.type):
            values = column.to_pylist()
            wrong = np.array([not _is_number(value) for value in values])
            place.refuse(wrong, name, np.array(values, dtype=object), "give a number")
        raise TraceError(f"{place.path}: column {name} holds {column.type}, not numbers")
    empty = np.array(column.is_null().to_pylist()) if column.null_count else np.zeros(1, dtype=bool)
    place.refuse(empty, name, np.full(len(column), "empty", dtype=object), "give a number")
    values = np.asarray(column.cast(pa.float64(), safe=False).combine_chunks().to_numpy(False))
    place.refuse(~np.isfinite(values), name, values, "give a number")
    return values


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def _names(column: Any, name: str, place: _Place) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """[row] index into the distinct names, and these names."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise TraceError(f"{place.path}: column {name} holds {kind}, not names")
    if column.null_count:
        empty = np.array(column.is_null().to_pylist())
        place.refuse(empty, name, np.full(len(column), "empty", dtype=object), "give a name")
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    index = np.asarray(coded.indices.to_numpy(False)).astype(np.int64)
    return index, tuple(str(value) for value in coded.dictionary.to_pylist())
