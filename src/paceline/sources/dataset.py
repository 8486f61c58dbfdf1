"""A trace in several parquet files: one per step, per rank, or as its writer split it.

pyarrow, pandas and Spark write such folders. A folder's name may hold a column's value
(``step=3/part-0.parquet``). The files' metadata is read and compared before their rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources import parquet
from paceline.sources.parquet_metadata import BY_WORKER, PERIODS, stored_in
from paceline.sources.parquet_parts import column_places
from paceline.trace import Job

#: Columns whose lowest and highest numbers describe a file's content.
RANGED = ("step", "dp_rank", "stage", "rank", "mc", "mb_id")

#: First characters of the names of files that writers add to the data, such as ``_SUCCESS``.
_BESIDE = ("_", ".")

Range = tuple[int, int]


@dataclass(frozen=True)
class RowGroup:
    """Some rows of a file.

    Attributes:
        file: index of the file in :attr:`Dataset.files`.
        group: index of the row group in the file.
        n_rows: number of rows.
        ranges: column -> its lowest and highest number.
    """

    file: int
    group: int
    n_rows: int
    ranges: dict[str, Range]


@dataclass(frozen=True)
class Dataset:
    """Files that are one trace.

    Attributes:
        where: the folder, or the files, for messages.
        files: the files with rows.
        values: [file] column -> its value, for columns in the names of folders.
        names: the columns of a trace that the files have.
        row_groups: row groups of all files.
        stored: the files' metadata, without the rows.
        notes: notes on what was left out.
    """

    where: str
    files: tuple[Path, ...]
    values: tuple[dict[str, str], ...]
    names: tuple[str, ...]
    row_groups: tuple[RowGroup, ...]
    stored: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(group.n_rows for group in self.row_groups)

    def range_of(self, name: str) -> Range:
        """Lowest and highest number of a column."""
        ranges = [group.ranges[name] for group in self.row_groups]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


def matches(path: Path) -> bool:
    """Whether a path is a folder with parquet files, at any depth."""
    return path.is_dir() and next(_data_files(path, []), None) is not None


def _data_files(folder: Path, others: list[Path]) -> Iterator[Path]:
    """The parquet files of a folder and of the folders in it; other files go to ``others``."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise TraceError(f"the folder {folder} cannot be read: {error.strerror}") from None
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(_BESIDE):
            continue
        if entry.is_dir():
            yield from _data_files(path, others)
        elif entry.is_file() and parquet.matches(path):
            yield path
        else:
            others.append(path)


def find(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The parquet files among some files and folders, and other files of the folders.

    Raises:
        TraceError: a path does not exist, a file is no parquet, or there is no parquet file.
    """
    files: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        if path.is_dir():
            files += _data_files(path, others)
        elif parquet.matches(path):
            files.append(path)
        else:
            raise TraceError(f"{path} is no parquet file; all files of a trace must be parquet")
    if not files:
        raise TraceError(f"{_where(paths)} has no parquet file")
    return files, others


def size_of(paths: Sequence[Path]) -> tuple[int, bool]:
    """Rows of all files, and whether the first file has programs; (0, False) if one is broken.

    The error of a broken file is reported when it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    n_rows, programmed = 0, False
    try:
        for number, path in enumerate(find(paths)[0]):
            with pq.ParquetFile(path) as file:
                n_rows += file.metadata.num_rows
                programmed = programmed or (number == 0 and "issued" in file.schema_arrow.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return 0, False
    return n_rows, programmed


def _where(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def open_dataset(paths: Sequence[Path], *, forgive: bool = False) -> Dataset:
    """The files of a trace, described by their metadata, or by rows where that is incomplete.

    Args:
        paths: files and folders.
        forgive: ignore broken metadata of Paceline (the job is known without it).

    Raises:
        TraceError: files disagree in their columns or jobs, one is no whole parquet file, or none
            has rows.
    """
    files, others = find(paths)
    where = _where(paths)
    opened = [_open(path, paths, forgive) for path in files]
    empty = [path for path, one in zip(files, opened, strict=True) if not one.n_rows]
    if len(empty) == len(files):
        raise TraceError(f"{where} has no rows in its {len(files)} parquet files")
    whole = [(path, one) for path, one in zip(files, opened, strict=True) if one.n_rows]
    _check_alike(whole)
    groups = [
        RowGroup(number, *group) for number, (_, one) in enumerate(whole) for group in one.groups
    ]
    notes = _left_out(others, "no parquet file") + _left_out(empty, "without rows")
    return Dataset(
        where=where,
        files=tuple(path for path, _ in whole),
        values=tuple(one.values for _, one in whole),
        names=whole[0][1].names,
        row_groups=tuple(groups),
        stored=_joined([(path, one.stored) for path, one in whole]),
        notes=tuple(notes),
    )


def _left_out(paths: Sequence[Path], what: str) -> list[str]:
    if not paths:
        return []
    if len(paths) == 1:
        return [f"{paths[0]} is left out: {what}"]
    return [f"{len(paths)} files are left out, for example {paths[0]}: {what}"]


@dataclass(frozen=True)
class _File:
    """Metadata of one file."""

    n_rows: int
    names: tuple[str, ...]
    values: dict[str, str]
    groups: list[tuple[int, int, dict[str, Range]]]
    stored: dict[str, Any]


def _open(path: Path, roots: Sequence[Path], forgive: bool) -> _File:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            inside = file.schema_arrow.names
            values = {k: v for k, v in _named_values(path, roots).items() if k not in inside}
            names = [*inside, *values]
            parquet.check_names(names, path)
            n_rows = file.metadata.num_rows
            groups = [
                (group, file.metadata.row_group(group).num_rows, _ranges(file, group, values, path))
                for group in range(file.num_row_groups)
                if file.metadata.row_group(group).num_rows
            ]
            stored = stored_in(file.schema_arrow.metadata or {}, path, forgive=forgive)
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path} is not a readable parquet file: {reason}") from None
    return _File(n_rows, tuple(parquet.present(names)), values, groups, stored)


def _named_values(path: Path, roots: Sequence[Path]) -> dict[str, str]:
    """Column -> value, of the folders called ``column=value`` on the way to a file."""
    values = {}
    for root in roots:
        if root.is_dir() and path.is_relative_to(root):
            pairs = [name.partition("=") for name in path.relative_to(root).parts[:-1]]
            values = {name: value for name, sign, value in pairs if sign}
    return values


def _ranges(file: Any, group: int, values: dict[str, str], path: Path) -> dict[str, Range]:
    """Lowest and highest numbers in a row group: by its statistics, else by its rows."""
    places, metadata = column_places(file), file.metadata.row_group(group)
    ranges: dict[str, Range] = {}
    for name in RANGED:
        if name in values:
            try:
                ranges[name] = int(values[name]), int(values[name])
            except ValueError:
                raise TraceError(
                    f"{path}: the folder says {name}={values[name]}, no whole number"
                ) from None
            continue
        statistics = metadata.column(places[name]).statistics
        if statistics is not None and statistics.has_min_max and not statistics.null_count:
            low, high = statistics.min, statistics.max
        else:
            low, high = _extremes(file.read_row_group(group, columns=[name]).column(name))
        try:
            ranges[name] = int(low), int(high)
        except (TypeError, ValueError, OverflowError):
            raise TraceError(f"{path}: column {name} holds {low!r}, no whole number") from None
    return ranges


def _extremes(column: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    extremes = pc.min_max(column)
    return extremes["min"].as_py(), extremes["max"].as_py()


def _check_alike(files: Sequence[tuple[Path, _File]]) -> None:
    first, usual = files[0]
    for path, file in files:
        if file.names == usual.names:
            continue
        ours, others = set(usual.names), set(file.names)
        richer, poorer = (first, path) if ours - others else (path, first)
        columns = ", ".join(sorted(ours - others or others - ours))
        raise TraceError(
            f"files of one trace have the same columns: {richer} has {columns}, {poorer} has not; "
            "record all ranks and steps in one way, or analyse the files apart"
        )


#: Keys of the metadata that hold one entry per step or rank.
_BY_NUMBER = ("left_out", "step_start_s", "places", PERIODS, *BY_WORKER)


def _joined(files: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """Metadata of all files together; shared values are those of the first file."""
    joined: dict[str, Any] = {}
    job_of: tuple[Path, Any] | None = None
    warnings: dict[str, None] = {}
    for path, stored in files:
        job = stored.get("job")
        if job is not None and job_of is not None and _degrees(job) != _degrees(job_of[1]):
            raise TraceError(
                f"{job_of[0]} and {path} are of two jobs: {_differing(job_of[1], job)}; give files "
                "of one run"
            )
        job_of = job_of or (None if job is None else (path, job))
        noticed = stored.get("warnings")
        if isinstance(noticed, list):
            warnings |= dict.fromkeys(w for w in noticed if isinstance(w, str))
        for key, value in stored.items():
            if key in _BY_NUMBER and isinstance(value, dict):
                joined.setdefault(key, {}).update(value)
            else:
                joined.setdefault(key, value)
    return joined | ({"warnings": list(warnings)} if warnings else {})


def _degrees(job: Any) -> Any:
    return {k: v for k, v in job.items() if k != "name"} if isinstance(job, dict) else job


def _differing(one: Any, other: Any) -> str:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return "one of them is broken"
    key = next(key for key in (*one, *other) if key != "name" and one.get(key) != other.get(key))
    return f"{key} is {one.get(key)} in one and {other.get(key)} in the other"


def check_ranks(dataset: Dataset, job: Job | None) -> None:
    """If each row group is of one worker, check that no worker lacks one. Refuse copied files.

    Raises:
        TraceError: the file of a worker is missing, or two files hold the same operation.
    """
    places: dict[tuple[int, int], None] = {}
    for group in dataset.row_groups:
        (dp, dp_high), (pp, pp_high) = group.ranges["dp_rank"], group.ranges["stage"]
        if dp != dp_high or pp != pp_high:
            _check_copies(dataset)
            return
        places[dp, pp] = None
    n_dp = job.dp_size if job else dataset.range_of("dp_rank")[1] + 1
    n_pp = job.pp_size if job else dataset.range_of("stage")[1] + 1
    n_missing = n_dp * n_pp - sum(dp < n_dp and pp < n_pp for dp, pp in places)
    if n_missing:
        missing = ((d, p) for d in range(n_dp) for p in range(n_pp) if (d, p) not in places)
        names = ", ".join(f"(dp {dp}, stage {pp})" for dp, pp in islice(missing, 5))
        raise TraceError(
            f"{dataset.where} lacks the file of {n_missing} of {n_dp * n_pp} workers: {names}"
            f"{', ...' if n_missing > 5 else ''}; a trace needs one rank of every (dp, stage)"
        )
    _check_copies(dataset)


def _check_copies(dataset: Dataset) -> None:
    """Refuse files that hold operations of the same rank and step."""
    by_place: dict[tuple[Range, ...], list[int]] = {}
    for file, ranges in enumerate(_file_ranges(dataset)):
        # Pieces of one rank, or copies of a file, span the same ranks.
        key = tuple(ranges[name] for name in ("rank", "dp_rank", "stage"))
        by_place.setdefault(key, []).append(file)
    ranges_of = _file_ranges(dataset)
    for files in by_place.values():
        files.sort(key=lambda file: ranges_of[file]["step"])
        for one, other in pairwise(files):
            if ranges_of[other]["step"][0] <= ranges_of[one]["step"][1]:
                _check_pair(dataset, one, other)


def _file_ranges(dataset: Dataset) -> list[dict[str, Range]]:
    ranges: list[dict[str, Range]] = [{} for _ in dataset.files]
    for group in dataset.row_groups:
        own = ranges[group.file]
        for name, (low, high) in group.ranges.items():
            before = own.get(name, (low, high))
            own[name] = min(low, before[0]), max(high, before[1])
    return ranges


def _check_pair(dataset: Dataset, one: int, other: int) -> None:
    """Refuse two files that share an operation: rank, step, kind and number."""
    import pyarrow as pa

    keys = ["rank", "step", "optype", "seq_id"]
    try:
        tables = [read_rows(dataset, file, None, keys).select(keys) for file in (one, other)]
        joined = tables[0].join(tables[1], keys=keys, join_type="inner")
    except pa.ArrowException:
        return  # the types do not compare; reading reports the error
    if not joined.num_rows:
        return
    row = {name: joined.column(name)[0].as_py() for name in keys}
    raise TraceError(
        f"{dataset.files[one]} and {dataset.files[other]} both hold {row['optype']} "
        f"{row['seq_id']} of rank {row['rank']} in step {row['step']} ({joined.num_rows} rows in "
        "all); is one a copy, or of another run?"
    )


def read_rows(
    dataset: Dataset, file: int, groups: Sequence[int] | None, names: Sequence[str]
) -> Any:
    """Columns of some row groups of a file (None: all) as an Arrow table of uniform types.

    Raises:
        TraceError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, values = dataset.files[file], dataset.values[file]
    inside = [name for name in names if name not in values]
    try:
        with pq.ParquetFile(path) as opened:
            table = (
                opened.read(columns=inside)
                if groups is None
                else opened.read_row_groups(list(groups), columns=inside)
            )
            for name in [name for name in names if name in values]:
                value = values[name] if name == "optype" else float(values[name])
                value = int(value) if isinstance(value, float) and value == int(value) else value
                table = table.append_column(name, pa.repeat(value, table.num_rows))
            if "optype" in names:
                table.column("optype").validate(full=True)
        return _uniform(table.replace_schema_metadata(None).select(list(names)))
    except MemoryError:  # also Arrow's: the file may be readable
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path} is not a readable parquet file: {reason}") from None


def _uniform(table: Any) -> Any:
    """The same table with types that can be joined to those of other files."""
    import pyarrow as pa

    kinds = pa.dictionary(pa.int32(), pa.string())
    fields = []
    for field in table.schema:
        kind = field.type
        if field.name == "optype" and (
            pa.types.is_dictionary(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
        ):
            kind = kinds
        elif pa.types.is_boolean(kind):
            kind = pa.int8()
        elif kind == pa.uint64():
            kind = pa.int64()
        fields.append(pa.field(field.name, kind))
    return table.cast(pa.schema(fields))
