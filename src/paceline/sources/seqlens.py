"""Sequence lengths: a parquet file with one row per step, replica and microbatch.

Columns: ``step``, ``dp_rank``, ``mb_id`` (integers) and ``lengths`` (a list of integers: the tokens
of every sequence in the microbatch). Paceline writes its version into the schema metadata. Files
without one, from the user's own script, are read as version 1.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.files import check_targets, write_files
from paceline.trace.seqlens import SeqLens

METADATA_KEY, VERSION = b"paceline-seqlens", 1

COLUMNS = ("step", "dp_rank", "mb_id", "lengths")

#: Longest sequence, in tokens; a larger number is no length.
MAX_LENGTH = 2**31 - 1

#: Largest number of places of the table [step, dp, microbatch] for each row of the file. If one
#: replica has far more microbatches than the others, the file is broken.
MAX_PLACES_PER_ROW = 100


def read_seqlens(path: str | Path) -> SeqLens:
    """Read sequence lengths; rows may lie in any order.

    Raises:
        TraceError: the file is unreadable, lacks columns or rows, has a row twice, or a length is
            below 1.
    """
    where = str(path)
    table = _table(Path(path))
    if not table.num_rows:
        raise TraceError(f"{where} has no rows; give one per step, dp rank and microbatch")
    step, dp, microbatch = (_integers(table.column(name), name, where) for name in COLUMNS[:3])
    sizes, lengths = _lists(table.column("lengths"), where)
    _check_lengths(sizes, lengths, step, dp, microbatch, where)
    order = np.lexsort((microbatch, dp, step))
    step, dp, microbatch = step[order], dp[order], microbatch[order]
    steps = np.unique(step)
    n_dp, n_microbatches = _check_rows(steps, step, dp, microbatch, where)
    end = np.cumsum(sizes)
    ptr = np.zeros((len(steps), n_dp, n_microbatches, 2), dtype=np.int64)
    at = np.searchsorted(steps, step), dp, microbatch
    ptr[at] = np.stack([end - sizes, end], axis=1)[order]
    return SeqLens(steps, ptr, lengths)


def _table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise TraceError(f"{path} does not exist")
    if path.is_dir():
        raise TraceError(f"{path} is a folder; give the parquet file of sequence lengths")
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = [name for name in COLUMNS if name not in names]
            if missing:
                raise TraceError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"sequence lengths have {', '.join(COLUMNS)}"
                )
            twice = [name for name in COLUMNS if names.count(name) > 1]
            if twice:
                raise TraceError(f"{path} has more than one column called {', '.join(twice)}")
            _check_version(file.schema_arrow.metadata or {}, path)
            table = file.read(columns=list(COLUMNS))
            table.validate(full=True)
            return table
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path} is not a readable parquet file: {reason}") from None


def _check_version(metadata: Mapping[bytes, bytes], path: Path) -> None:
    version = metadata.get(METADATA_KEY, str(VERSION).encode())
    if version != str(VERSION).encode():
        text = reprlib.repr(version.decode(errors="replace"))
        raise TraceError(
            f"{path} holds sequence lengths of version {text}; this Paceline reads version "
            f"{VERSION}: update it"
        )


def _integers(column: Any, name: str, where: str) -> npt.NDArray[np.int64]:
    """A column (or the values of one) of whole numbers."""
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        raise TraceError(f"{where}: column {name} holds {column.type}, not whole numbers")
    if column.null_count:
        raise TraceError(f"{where}: column {name} has {column.null_count} empty values")
    try:
        column = column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise TraceError(f"{where}: column {name} has numbers above {2**63 - 1}") from None
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.chunks else pa.array([], pa.int64())
    # Not to_numpy(): where pandas is installed, that imports it, which takes 0.25 s.
    return np.from_dlpack(column).astype(np.int64, copy=False)


def _lists(column: Any, where: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[row] number of its lengths, and all lengths, row after row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sort = column.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(sort) for is_list in lists):
        raise TraceError(f"{where}: column lengths holds {sort}, not lists of whole numbers")
    if column.null_count:
        raise TraceError(f"{where}: column lengths has {column.null_count} empty values")
    sizes = _integers(pc.list_value_length(column), "lengths", where)
    return sizes, _integers(pc.list_flatten(column), "lengths", where)


def _check_lengths(
    sizes: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    step: npt.NDArray[np.int64],
    dp: npt.NDArray[np.int64],
    microbatch: npt.NDArray[np.int64],
    where: str,
) -> None:
    def place(row: int) -> str:
        return f"row {row} (step {step[row]}, dp_rank {dp[row]}, mb_id {microbatch[row]})"

    if (sizes == 0).any():
        raise TraceError(
            f"{where}: {place(int(np.argmin(sizes)))} has no lengths; a microbatch has one "
            "sequence at least"
        )
    wrong = (lengths < 1) | (lengths > MAX_LENGTH)
    if wrong.any():
        first = int(np.argmax(wrong))
        row = int(np.searchsorted(np.cumsum(sizes), first, side="right"))
        raise TraceError(
            f"{where}: {place(row)} has a length of {lengths[first]} tokens; lengths are 1 to "
            f"{MAX_LENGTH}"
        )


def _check_rows(
    steps: npt.NDArray[np.int64],
    step: npt.NDArray[np.int64],
    dp: npt.NDArray[np.int64],
    microbatch: npt.NDArray[np.int64],
    where: str,
) -> tuple[int, int]:
    """Check that sorted rows are complete; returns the replicas and the most microbatches."""
    changes = (np.diff(step) != 0) | (np.diff(dp) != 0)
    first = np.append(0, np.flatnonzero(changes) + 1)
    lane = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(step))))
    repeated = np.append(False, ~changes & (np.diff(microbatch) == 0))
    if repeated.any():
        row = int(np.argmax(repeated))
        raise TraceError(
            f"{where}: step {step[row]}, dp_rank {dp[row]}, mb_id {microbatch[row]} is there twice"
        )
    n_dp = int(np.unique(dp).size)
    # Lane i of complete data is (step i // n_dp, replica i % n_dp).
    in_place = (dp[first] == np.arange(len(first)) % n_dp) & (
        step[first] == steps[np.minimum(np.arange(len(first)) // n_dp, len(steps) - 1)]
    )
    if not in_place.all() or len(first) != len(steps) * n_dp:
        place = int(np.argmin(in_place)) if not in_place.all() else len(first)
        raise TraceError(
            f"{where}: rows of step {steps[min(place // n_dp, len(steps) - 1)]}, dp_rank "
            f"{place % n_dp} are missing; every step has all dp ranks, numbered from 0"
        )
    expected = np.arange(len(step)) - first[lane]
    gap = microbatch != expected
    if gap.any():
        row = int(np.argmax(gap))
        raise TraceError(
            f"{where}: step {step[row]}, dp_rank {dp[row]}, mb_id {expected[row]} is missing; "
            "microbatches are numbered from 0"
        )
    most = int(expected.max()) + 1
    if len(first) * most > MAX_PLACES_PER_ROW * len(step):
        row = int(np.argmax(expected))
        raise TraceError(
            f"{where}: step {step[row]}, dp_rank {dp[row]} has {most} microbatches, far more than "
            f"the others ({len(step) / len(first):.1f} on average)"
        )
    return n_dp, most


def write_seqlens(seqlens: SeqLens, path: Path, *, force: bool = False) -> None:
    """Write sequence lengths.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_targets([path], force=force)
    step, dp, microbatch = np.nonzero(seqlens.exists)
    first, end = seqlens.ptr[step, dp, microbatch].T
    offsets = np.append(0, np.cumsum(end - first))
    values = np.repeat(first - offsets[:-1], end - first) + np.arange(offsets[-1])
    lists = pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(seqlens.lengths[values].astype(np.int32))
    )
    table = pa.table(
        {
            "step": seqlens.steps[step],
            "dp_rank": dp.astype(np.int32),
            "mb_id": microbatch.astype(np.int32),
            "lengths": lists,
        }
    ).replace_schema_metadata({METADATA_KEY: str(VERSION)})

    def write_table(file: BinaryIO) -> None:
        pq.write_table(table, file, compression="zstd")

    write_files({path: write_table}, force=force)
