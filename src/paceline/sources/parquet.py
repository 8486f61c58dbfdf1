"""Parquet traces, with the columns of the public what-if artifact.

Written files carry the job (and, when synthesised, the injected truth) as JSON in the schema
metadata (:mod:`paceline.sources.parquet_metadata`). ``docs/trace-format.md`` describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.files import Writer, check_targets, write_files
from paceline.jit import load_ahead
from paceline.sources.parquet_metadata import metadata_of, stored_in, with_stored
from paceline.sources.parquet_parts import OtherTableError, parts_of
from paceline.trace import Columns, Job, OpKind, Trace, arrange
from paceline.trace.door import arrange_parts
from paceline.trace.placing import Extremes
from paceline.trace.program import check_waits, turns_back
from paceline.trace.step_blocks import ranges_of_steps

T = TypeVar("T", bound=Trace)

#: Column in the file -> field of :class:`Columns`. ``gmc`` follows from the others and is checked.
COLUMNS = {
    "dp_rank": "dp",
    "stage": "pp",
    "rank": "rank",
    "step": "step",
    "optype": "kind",
    "start_ts": "start",
    "duration": "duration",
    "seq_id": "seq",
    "mc": "chunk",
    "mb_id": "microbatch",
    "gmc": "gmc",
}

#: Most operations of a row group in a written file; but a row group has at least one step.
GROUP_ROWS = 1 << 20

#: Columns that a trace may have: the program of each worker, and ends that are upper bounds.
PROGRAM_COLUMNS = ("part", "issued", "awaited", "group", "late", "transfer", "peer")


def matches(path: Path) -> bool:
    """Whether the file is parquet, by its first four bytes (or, if empty or broken, its name)."""
    if path.is_dir():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" or path.suffix in (".parquet", ".pq")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def is_whole(path: Path) -> bool:
    """Whether the file begins and ends as a parquet file does."""
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            file.seek(max(4, file.seek(0, os.SEEK_END) - 4))
            return begin == file.read(4) == b"PAR1"
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def read(
    path: Path,
    job: Job | None,
    ignore_kinds: frozenset[str] = frozenset(),
    steps: frozenset[int] | None = None,
) -> Trace:
    """Read a parquet trace; ``job`` None takes the one in the file's metadata, else the data's.

    Only the rows of ``steps`` are kept in memory, if they are given.

    Raises:
        TraceError: the file is no parquet, lacks a column or has an unknown kind, or ``arrange``
            refuses it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            check_names(schema.names, path)
            stored = stored_in(schema.metadata or {}, path, forgive=job is not None)
            if job is None and "job" in stored:
                job = Job.from_mapping(stored["job"], where=f"the job in {path}")
            names = present(schema.names)
            if steps is None and not ignore_kinds and len(names) == len(COLUMNS):
                quick = _read_in_parts(file, job, str(path))
                if quick is not None:
                    return with_stored(quick, stored)
            table = _read_steps(file, steps, names)
            # In a damaged file a row may name an entry that the dictionary lacks.
            table.column("optype").validate(full=True)
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path} is not a readable parquet file: {reason}") from None
    trace, n_ignored = trace_of(table, job, ignore_kinds, str(path))
    trace = with_stored(trace, stored)
    trace = with_dropped(trace, n_ignored, ignore_kinds)
    return trace if steps is None else trace.select_steps(steps)


def trace_of(
    table: Any,
    job: Job | None,
    ignore_kinds: frozenset[str],
    where: str,
    extremes: Extremes | None = None,
) -> tuple[Trace, int]:
    """The trace in an Arrow table, and the number of ignored rows.

    Args:
        table: the columns of a trace.
        job: degrees of parallelism; None takes those that the data shows.
        ignore_kinds: labels of kinds to drop.
        where: the name of the source, for messages.
        extremes: lowest and highest numbers of the whole trace, if the table has some steps only.

    Raises:
        TraceError: a kind is unknown, or ``arrange`` refuses the columns.
    """
    columns, gmc, n_ignored = _columns(table, ignore_kinds, where)
    del table
    trace = arrange(columns, job, where, extremes)
    _check_gmc(columns, gmc, trace.job, where)
    return trace, n_ignored


def with_dropped(trace: T, n_ignored: int, ignore_kinds: frozenset[str]) -> T:
    """The trace with a note on the dropped kinds."""
    if not ignore_kinds:
        return trace
    dropped = f"{n_ignored} rows of the kinds {', '.join(sorted(ignore_kinds))} dropped"
    return replace(trace, warnings=(*trace.warnings, dropped))


def check_names(names: Sequence[str], path: Path) -> None:
    """Check that a file has the columns of a trace, each once.

    Raises:
        TraceError: one is missing, or is there twice.
    """
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise TraceError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"a trace has {', '.join(COLUMNS)}"
        )
    twice = [name for name in present(names) if names.count(name) > 1]
    if twice:
        raise TraceError(f"{path} has more than one column called {', '.join(twice)}")


def present(names: Sequence[str]) -> list[str]:
    """The columns of a trace among those of a file."""
    return [*COLUMNS, *(name for name in PROGRAM_COLUMNS if name in names)]


def _read_in_parts(file: Any, job: Job | None, where: str) -> Trace | None:
    """The trace of a large file that is whole and in order; None for any other."""
    parts = parts_of(file)
    if parts is None:
        return None
    load_ahead()
    try:
        return arrange_parts(parts, job, where)
    except OtherTableError:
        return None


def _read_steps(file: Any, steps: frozenset[int] | None, names: list[str]) -> Any:
    """The columns of a trace, row group by row group where only some steps are wanted."""
    if steps is None:
        return file.read(columns=names)
    import pyarrow as pa

    groups = []
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group, columns=names)
        if not _is_number(rows.column("step").type):
            return rows  # the reader reports the error
        groups.append(of_steps(rows, steps))
    table = pa.concat_tables(groups, promote_options="none") if groups else file.read(names)
    # No such step: read all, so that the error can name the steps.
    return table if table.num_rows else file.read(columns=names)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def of_steps(table: Any, steps: frozenset[int] | None) -> Any:
    """The rows of a table that belong to some steps; all if its steps are no numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column("step")
    if steps is None or not _is_number(column.type):
        return table
    in_range = sorted(step for step in steps if -(2**63) <= step < 2**63)
    values = pa.array(in_range, pa.int64()).cast(column.type, safe=False)
    return table.filter(pc.is_in(column, value_set=values))


def _columns(
    table: Any, ignore_kinds: frozenset[str], where: str
) -> tuple[Columns, npt.NDArray[Any], int]:
    """NumPy columns of an Arrow table, the ``gmc`` column, and the number of ignored rows."""
    kind, ignored = _kinds(table.column("optype"), ignore_kinds, where)
    values: dict[str, npt.NDArray[Any]] = {"kind": kind}
    for name, field in COLUMNS.items():
        if name == "optype":
            continue
        values[field] = _numbers(table.column(name), name, where)
    for name in PROGRAM_COLUMNS:
        if name in table.column_names:
            column = table.column(name)
            column = column.cast("int8") if str(column.type) == "bool" else column
            values[name] = _numbers(column, name, where)
    gmc = values.pop("gmc")
    columns = Columns(**values)
    check_waits(columns, where)  # before rows are dropped: others may wait behind them
    if ignored.any():
        keep = ~ignored
        return columns.take(keep), gmc[keep], int(ignored.sum())
    return columns, gmc, 0


def _numbers(column: Any, name: str, where: str) -> npt.NDArray[Any]:
    """A column of numbers in NumPy, without a copy if it lies in one piece."""
    import pyarrow as pa

    if column.null_count:
        raise TraceError(f"{where}: column {name} has {column.null_count} empty values")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise TraceError(f"{where}: column {name} holds {column.type}, not numbers")
    # Not to_numpy(): where pandas is installed, that imports it, which takes 0.25 s.
    return np.from_dlpack(_one_piece(column))


def _one_piece(column: Any) -> Any:
    """A chunked Arrow column as one array; copied only if it has several chunks."""
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def _kinds(
    column: Any, ignore_kinds: frozenset[str], where: str
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """[row] kind codes and a mask of ignored rows; only labels that occur are looked at."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise TraceError(f"{where}: column optype holds {column.type}, not kind names")
        column = column.dictionary_encode()
    if column.null_count:
        raise TraceError(f"{where}: column optype has {column.null_count} empty values")
    array = _one_piece(column.unify_dictionaries())
    labels = [str(label) for label in array.dictionary.to_pylist()]
    codes = np.from_dlpack(array.indices)
    present = np.zeros(len(labels), dtype=bool)
    present[codes] = True
    table = np.full(len(labels), -1, dtype=np.int8)
    unknown = []
    for index, label in enumerate(labels):
        if not present[index] or label in ignore_kinds:
            continue
        try:
            table[index] = OpKind.from_label(label)
        except KeyError:
            unknown.append(label)
    if unknown:
        raise TraceError(
            f"{where} has unknown operation kinds: {', '.join(sorted(unknown))}; drop them with "
            f"--ignore-kinds {','.join(sorted(unknown))}"
        )
    kind = table[codes]
    return kind, kind < 0


def _check_gmc(columns: Columns, gmc: npt.NDArray[Any], job: Job, where: str) -> None:
    """Check that ``gmc`` is mc * pp + stage: another placement of chunks is another pipeline."""
    compute = (columns.kind <= OpKind.BACKWARD_COMPUTE) & (gmc >= 0)
    place = columns.chunk.astype(np.int32)
    place *= job.pp_size
    place += columns.pp.astype(np.int32, copy=False)
    wrong = compute & (place != gmc)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"{where}: gmc of {int(wrong.sum())} rows is not mc * pp_size + stage, the first in "
            f"row {row} (gmc {gmc[row]}, mc {columns.chunk[row]}, stage {columns.pp[row]}, pp_size "
            f"{job.pp_size}); only interleaved placement of chunks is known"
        )


def write(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Write a trace; its job, truth and warnings go into the metadata.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    check_targets([path], force=force)
    write_files({path: writer(trace)}, force=force)


def writer(trace: Trace) -> Writer:
    """The table of :func:`write`, to be written with other files."""
    import pyarrow.parquet as pq

    n_ops = trace.counts.sum(axis=(1, 2, 3), dtype=np.int64)
    parts = [trace.step_range(*steps) for steps in ranges_of_steps(n_ops, GROUP_ROWS)]
    turns = turns_back(parts[0].kind, parts[0].pp, parts[0].chunk, trace.job.pp_size)
    first = _table(parts[0], turns)
    schema = first.schema.with_metadata(metadata_of(trace))
    # Times hardly compress; all else repeats.
    repeating = [name for name in schema.names if name not in ("start_ts", "duration")]

    def write_parts(file: BinaryIO) -> None:
        options = {"compression": "lz4", "use_dictionary": repeating}
        with pq.ParquetWriter(file, schema, **options) as written:
            for part in parts:
                table = first if part is parts[0] else _table(part, turns)
                written.write_table(table, row_group_size=max(1, table.num_rows))

    return write_parts


def _table(trace: Trace, turns: bool) -> Any:
    """The columns of a trace; ``turns``: whether its chunks lie as a V."""
    import pyarrow as pa

    compute = np.isin(trace.kind, (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE))
    gmc = trace.gmc
    # The column cannot describe chunks that lie as a V.
    gmc[~compute | turns] = -1
    replica, pp = trace.replica, trace.pp
    arrays = {
        "dp_rank": replica // np.int32(trace.job.peers),
        "stage": pp,
        "rank": trace.rank.astype(np.int32)[replica, pp],
        "step": trace.step,
        "optype": pa.DictionaryArray.from_arrays(
            pa.array(trace.kind), pa.array([kind.label for kind in OpKind])
        ),
        "start_ts": trace.start,
        "duration": trace.end - trace.start,
        "seq_id": trace.seq,
        "mc": trace.chunk,
        "mb_id": trace.microbatch,
        "gmc": gmc,
    }
    if trace.program is not None:
        program = trace.program
        arrays |= {"part": program.part, "issued": program.issued, "awaited": program.awaited}
        if program.group is not None:
            arrays["group"] = program.group
    if trace.job.peers > 1:
        arrays["peer"] = replica % np.int32(trace.job.peers)
    if trace.late is not None:
        arrays["late"] = trace.late.astype(np.int8)
    return pa.table(arrays)
