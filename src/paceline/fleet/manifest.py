"""The manifest of a fleet: a CSV or parquet table with a row per trace (docs/fleet.md)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from paceline.errors import FleetError
from paceline.fleet.store import FileInfo, is_remote, open_store, split_address
from paceline.fleet.trace_entry import TraceEntry

#: Known columns; all others are labels.
COLUMNS = (
    *("path", "job", "meta", "hosts", "gpus", "restarts", "gpu_hours", "max_seq_len"),
    *("team", "started"),
)

#: Number of concurrent requests for sizes and stamps of objects.
_CONNECTIONS = 32

Row = Mapping[str, Any]


def read_manifest(path: Path) -> list[TraceEntry]:
    """The traces of a manifest, in the order of their paths.

    Relative paths start in the manifest's folder.

    Raises:
        FleetError: the table cannot be read or lacks the column ``path``; a path is missing or
            occurs twice; a value has the wrong type; or a file does not exist.
    """
    entries: dict[str, TraceEntry] = {}
    lines: dict[str, str] = {}
    for at, row in _rows(path):
        entry = _entry(row, path.parent, at)
        if entry.path in entries:
            raise FleetError(f"{at}: the path {entry.path} is there already, {lines[entry.path]}")
        entries[entry.path], lines[entry.path] = entry, at.rpartition(", ")[2]
    if not entries:
        raise FleetError(f"{path} has no rows")
    return _with_sizes([entries[name] for name in sorted(entries)], path)


def _entry(row: Row, folder: Path, at: str) -> TraceEntry:
    """The trace of a row; ``at`` names it in messages."""
    address = _text(row.get("path"))
    if not address:
        raise FleetError(f"{at}: the path is missing")
    if "\0" in "".join(_text(row.get(name)) for name in ("path", "meta", "hosts")):
        raise FleetError(f"{at}: a path holds a character that no path may hold")
    labels = {
        name: _text(value) for name, value in row.items() if name not in COLUMNS and _text(value)
    }
    return TraceEntry(
        _address(address, folder),
        meta=_address(_text(row.get("meta")), folder),
        hosts=_address(_text(row.get("hosts")), folder),
        name=_text(row.get("job")),
        gpus=_whole(row, "gpus", at, least=1),
        restarts=_whole(row, "restarts", at, least=0),
        max_seq_len=_whole(row, "max_seq_len", at, least=1),
        gpu_hours=_number(row, "gpu_hours", at),
        team=_text(row.get("team")),
        started=_time(row, "started", at),
        labels=labels,
    )


def _address(text: str, folder: Path) -> str:
    return text if not text or is_remote(text) else str(folder / text)


def _with_sizes(entries: list[TraceEntry], manifest: Path) -> list[TraceEntry]:
    """The entries with sizes and stamps of their files."""
    stores: dict[str, Any] = {}

    def info(address: str) -> FileInfo | None:
        folder, name = split_address(address)
        store = stores.get(folder) or stores.setdefault(folder, open_store(folder))
        try:
            file: FileInfo = store.info(name)
            return file
        except FileNotFoundError:
            return None
        except OSError:  # its row has the reason
            return FileInfo(name, 0, "")

    addresses = [a for e in entries for a in (e.path, e.meta, e.hosts) if a]
    with ThreadPoolExecutor(_CONNECTIONS if any(map(is_remote, addresses)) else 1) as pool:
        infos = dict(zip(addresses, pool.map(info, addresses), strict=True))
    absent = [address for address in addresses if infos[address] is None]
    if absent:
        others = f" (nor do {len(absent) - 1:,} others)" if len(absent) > 1 else ""
        raise FleetError(f"{absent[0]}, which {manifest} names, does not exist{others}")
    return [_with_size(entry, infos) for entry in entries]


def _with_size(entry: TraceEntry, infos: Mapping[str, FileInfo | None]) -> TraceEntry:
    files = [infos.get(address) for address in (entry.path, entry.meta, entry.hosts)]
    stamp = "+".join(file.stamp if file else "" for file in files)
    return replace(entry, size=files[0].size if files[0] else 0, stamp=stamp)


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(place, row) of the table."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FleetError(f"the manifest {path} cannot be read: {error.strerror}") from None
    is_parquet = content.startswith(b"PAR1")
    return _parquet_rows(content, path) if is_parquet else _csv_rows(content, path)


def _csv_rows(content: bytes, path: Path) -> Iterator[tuple[str, Row]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FleetError(f"the manifest {path} is neither parquet nor a text file") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        reader.fieldnames = _check_columns([n.strip() for n in reader.fieldnames or []], path)
        for row in reader:
            at = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise FleetError(f"{at}: it has more or fewer fields than the first line")
            yield at, row
    except csv.Error as error:
        raise FleetError(f"the manifest {path} cannot be read: {error}") from None


def _parquet_rows(content: bytes, path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FleetError(f"the manifest {path} cannot be read: {reason}") from None
    _check_columns(table.column_names, path)
    number = 0
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            number += 1
            yield f"{path}, row {number}", row


def _check_columns(names: list[str], path: Path) -> list[str]:
    if "path" not in names:
        has = f"it has {', '.join(names[:8])}" if any(names) else "it is empty"
        raise FleetError(f"the manifest {path} has no column path; {has}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FleetError(f"the manifest {path} has the column {twice or '(no name)'} twice")
    return names


# Cells: texts from CSV, values from parquet.


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return " ".join(str(value).split())


def _number(row: Row, name: str, at: str) -> float | None:
    text = _text(row.get(name))
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise FleetError(f"{at}: {name} must be a number from 0 on, not {text[:40]!r}")
    return value


def _whole(row: Row, name: str, at: str, *, least: int) -> int | None:
    text = _text(row.get(name))
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value.is_integer() and least <= value < 2**53):
        raise FleetError(f"{at}: {name} must be a whole number from {least}, not {text[:40]!r}")
    return int(value)


def _time(row: Row, name: str, at: str) -> datetime | None:
    """A date with or without time, in ISO 8601; UTC if it has no zone."""
    value, text = row.get(name), _text(row.get(name))
    if not text:
        return None
    try:
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(text)
    except ValueError:
        raise FleetError(
            f"{at}: {name} must be a date such as 2026-10-01 or 2026-10-01T08:00, not {text[:40]!r}"
        ) from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
