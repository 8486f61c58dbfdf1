"""The rows of a dataset, all at once or some steps at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from paceline.errors import TraceError
from paceline.sources import parquet
from paceline.sources.dataset import Dataset, Range, RowGroup, check_ranks, open_dataset, read_rows
from paceline.sources.parquet_metadata import with_stored
from paceline.trace import Job, Trace
from paceline.trace.placing import Extremes
from paceline.trace.stored import ROW_BYTES, StoredTrace, check_room, no_room, store

#: Rows of a block of steps. Sorting them takes about 150 bytes a row.
BLOCK_ROWS = 3_000_000

#: If rows would be read more often than this on average, temporary files hold them by step.
MAX_READS = 2.5

#: Bytes of a row in temporary files of Arrow, without compression.
ARROW_BYTES = 80

#: In a larger range of step numbers, blocks of steps begin and end only where row groups do.
MAX_RANGE = 100_000

T = TypeVar("T", bound=Trace)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    """The rows and columns to read.

    Attributes:
        job: degrees of parallelism; None = those in the files.
        ignore_kinds: labels of kinds to drop.
        steps: step numbers to keep; None = all.
    """

    job: Job | None = None
    ignore_kinds: frozenset[str] = frozenset()
    steps: frozenset[int] | None = None


def load(paths: Sequence[Path], options: Options) -> Trace:
    """The trace of some files, in memory.

    Raises:
        TraceError: the files are not one trace, a rank is missing or is there twice, or a single
            file with this content would be refused.
    """
    dataset = open_dataset(paths, forgive=options.job is not None)
    job = _job(dataset, options)
    check_ranks(dataset, job)
    groups = _chosen(dataset, options.steps) or list(dataset.row_groups)
    tables = list(_tables(dataset, groups, options.steps))
    if options.steps is not None and not any(table.num_rows for table in tables):
        tables = list(_tables(dataset, dataset.row_groups, None))  # for an error that names them
    table = _concat(tables, dataset)
    del tables
    trace, n_ignored = parquet.trace_of(table, job, options.ignore_kinds, dataset.where)
    trace = _finished(trace, dataset, n_ignored, options)
    return trace if options.steps is None else trace.select_steps(options.steps)


def load_stored(
    paths: Sequence[Path], options: Options, progress: Progress | None = None
) -> StoredTrace:
    """The trace with its times on disk, with little memory use; only for a step graph.

    Args:
        paths: files and folders.
        options: the rows and columns to read.
        progress: called with (rows done, rows in all) now and then.

    Raises:
        TraceError: as :func:`load` does.
        OutputError: temporary files cannot be written.
    """
    import pyarrow as pa

    dataset = open_dataset(paths, forgive=options.job is not None)
    job = _job(dataset, options)
    check_ranks(dataset, job)
    groups = _chosen(dataset, options.steps)
    if not groups:
        low, high = dataset.range_of("step")
        raise TraceError(
            f"none of the {len(options.steps or ())} steps asked for is in the trace "
            f"({low} to {high})"
        )
    n_rows = sum(group.n_rows for group in groups)
    extremes = Extremes(*(dataset.range_of(_FILE_NAMES[f.name]) for f in fields(Extremes)))
    if job is None:
        chunks = max(extremes.chunk[1] + 1, 1)
        job = Job(dp_size=extremes.dp[1] + 1, pp_size=extremes.pp[1] + 1, vpp_size=chunks)
    intervals = _intervals(groups, options.steps)
    reads = sum(group.n_rows for i in intervals for group in groups if _meets(group, i))
    check_room(n_rows * (ROW_BYTES + ARROW_BYTES * (reads > MAX_READS * n_rows)))
    read = _by_interval if reads <= MAX_READS * n_rows else _split_by_interval
    ignored = [0]

    def blocks() -> Iterator[Trace]:
        done = 0
        for table in read(dataset, groups, intervals, options.steps):
            if not table.num_rows:
                continue
            done += table.num_rows
            block, n = parquet.trace_of(
                table, job, options.ignore_kinds, _where(dataset, table), extremes
            )
            del table
            ignored[0] += n
            yield block
            if progress is not None:
                progress(min(done, n_rows), n_rows)

    trace = store(blocks(), job, dataset.where)
    pa.default_memory_pool().release_unused()  # the analysis needs this memory
    trace = _finished(trace, dataset, ignored[0], options)
    return trace if options.steps is None else trace.for_request(options.steps)


_FILE_NAMES = {
    "step": "step",
    "dp": "dp_rank",
    "pp": "stage",
    "rank": "rank",
    "chunk": "mc",
    "microbatch": "mb_id",
}


def _job(dataset: Dataset, options: Options) -> Job | None:
    if options.job is not None or "job" not in dataset.stored:
        return options.job
    return Job.from_mapping(dataset.stored["job"], where=f"the job in {dataset.files[0]}")


def _finished(trace: T, dataset: Dataset, n_ignored: int, options: Options) -> T:
    trace = with_stored(trace, dataset.stored)
    trace = replace(trace, warnings=(*trace.warnings, *dataset.notes))
    return parquet.with_dropped(trace, n_ignored, options.ignore_kinds)


def _where(dataset: Dataset, table: Any) -> str:
    """The dataset and the steps of a table, for messages that count the table's rows."""
    import pyarrow.compute as pc

    extremes = pc.min_max(table.column("step"))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return f"{dataset.where}, step{'' if low == high else 's'} {low}" + (
        "" if low == high else f" to {high}"
    )


def _chosen(dataset: Dataset, steps: frozenset[int] | None) -> list[RowGroup]:
    """Row groups that may hold one of the steps."""
    if steps is None:
        return list(dataset.row_groups)
    numbers = np.array(sorted(s for s in steps if 0 <= s < 2**63), dtype=np.int64)

    def may(group: RowGroup) -> bool:
        low, high = group.ranges["step"]
        return bool(np.searchsorted(numbers, high, "right") > np.searchsorted(numbers, low))

    return [group for group in dataset.row_groups if may(group)]


def _tables(
    dataset: Dataset, groups: Sequence[RowGroup], steps: frozenset[int] | None
) -> Iterator[Any]:
    """The rows of some row groups, file by file."""
    by_file: dict[int, list[int]] = {}
    for group in groups:
        by_file.setdefault(group.file, []).append(group.group)
    for file, numbers in by_file.items():
        yield parquet.of_steps(read_rows(dataset, file, numbers, dataset.names), steps)


def _concat(tables: Sequence[Any], dataset: Dataset) -> Any:
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except MemoryError:  # also Arrow's, which says nothing about types
        raise
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise TraceError(
            f"{dataset.where}: its files have columns of types that do not join: {reason}"
        ) from None


def _meets(group: RowGroup, interval: Range) -> bool:
    low, high = group.ranges["step"]
    return low <= interval[1] and high >= interval[0]


def _intervals(groups: Sequence[RowGroup], steps: frozenset[int] | None) -> list[Range]:
    """Ranges of steps, ascending, with about ``BLOCK_ROWS`` rows each, at least one step."""
    low = np.array([group.ranges["step"][0] for group in groups])
    high = np.array([group.ranges["step"][1] for group in groups])
    per_step = np.array([group.n_rows for group in groups]) / (high - low + 1)
    if high.max() - low.min() <= MAX_RANGE:
        edges = np.arange(low.min(), high.max() + 2)
    else:
        edges = np.unique(np.concatenate([low, high + 1]))
    # Rows between two edges: those of the row groups that have begun and not ended.
    begun = np.zeros(len(edges))
    np.add.at(begun, np.searchsorted(edges, low), per_step)
    np.add.at(begun, np.searchsorted(edges, high + 1), -per_step)
    rows = np.cumsum(begun)[:-1] * np.diff(edges)
    n_groups = np.zeros(len(edges), dtype=np.int64)
    np.add.at(n_groups, np.searchsorted(edges, low), 1)
    np.add.at(n_groups, np.searchsorted(edges, high + 1), -1)
    wanted = np.cumsum(n_groups)[:-1] > 0
    if steps is not None:
        numbers = np.array(sorted(s for s in steps if 0 <= s < 2**63), dtype=np.int64)
        wanted &= np.diff(np.searchsorted(numbers, edges)) > 0
    intervals: list[Range] = []
    room = 0.0
    for at in np.flatnonzero(wanted).tolist():
        first, last = int(edges[at]), int(edges[at + 1]) - 1
        if intervals and rows[at] <= room:
            intervals[-1] = intervals[-1][0], last
        else:
            intervals.append((first, last))
            room = BLOCK_ROWS
        room -= float(rows[at])
    return intervals


def _within(table: Any, interval: Range) -> Any:
    import pyarrow.compute as pc

    step = table.column("step")
    inside = pc.and_(pc.greater_equal(step, interval[0]), pc.less_equal(step, interval[1]))
    return table if pc.all(inside).as_py() else table.filter(inside)


def _by_interval(
    dataset: Dataset,
    groups: Sequence[RowGroup],
    intervals: Sequence[Range],
    steps: frozenset[int] | None,
) -> Iterator[Any]:
    """The rows of each range of steps, straight from the files."""
    for interval in intervals:
        near = [group for group in groups if _meets(group, interval)]
        tables = [_within(table, interval) for table in _tables(dataset, near, steps)]
        yield _concat(tables, dataset)


def _split_by_interval(
    dataset: Dataset,
    groups: Sequence[RowGroup],
    intervals: Sequence[Range],
    steps: frozenset[int] | None,
) -> Iterator[Any]:
    """Split row groups that hold many steps: each is read once and split, on disk.

    The temporary files have no names: they vanish with the process, however it ends.
    """
    files: list[IO[bytes] | None] = [None] * len(intervals)
    try:
        for group in groups:
            (table,) = _tables(dataset, [group], steps)
            for number, interval in enumerate(intervals):
                if _meets(group, interval):
                    files[number] = _append(files[number], _within(table, interval))
        for file in files:
            if file is not None:
                yield _concat(_tables_in(file), dataset)
                file.close()
    finally:
        for file in files:
            if file is not None:
                with suppress(OSError):
                    file.close()


def _tables_in(file: IO[bytes]) -> list[Any]:
    """The tables that were appended to a temporary file."""
    import pyarrow as pa

    size = file.tell()
    file.seek(0)
    tables = []
    while file.tell() < size:
        with pa.ipc.open_stream(file) as reader:
            tables.append(reader.read_all())
    return tables


def _append(file: IO[bytes] | None, table: Any) -> IO[bytes]:
    import pyarrow as pa

    try:
        file = file or tempfile.TemporaryFile()  # noqa: SIM115 - it lives on
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    except OSError as error:
        raise no_room(error) from None
    return file
