"""Backup of a monitor in one tar file, made beside the running service, and its restore.

It has the rows of the store (``tables/*.jsonl``) and the files of the data folder.
``manifest.json`` with their SHA-256 comes last, so a truncated backup is not restored.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from paceline.errors import MonitorError, OutputError
from paceline.files import make_folder
from paceline.monitor.config import Config
from paceline.monitor.otlp_jobs import PLAN
from paceline.monitor.store.database import open_database
from paceline.monitor.store.dump import read_rows, write_rows
from paceline.monitor.store.health import problem_in
from paceline.monitor.store.tables import stores

FORMAT = 1
#: Parts of the data folder in a backup: traces and results, step times, spans without a session.
_FOLDERS = ("blobs", "steps", "otlp")
_FILES = ("cookie.key",)
_MANIFEST = "manifest.json"
_TABLE = re.compile(r"tables/([a-z_]+)\.jsonl")
_NAME = re.compile(r"(?:(?:blobs|steps|otlp)(?:/[A-Za-z0-9_.-]+)+|cookie\.key)")
_MAX_MANIFEST_BYTES = 1 << 30
_BLOCK = 1 << 20


def write_backup(config: Config, engine: Engine, file: BinaryIO) -> dict[str, int]:
    """Write a backup; returns its numbers of ``rows``, ``files`` and ``bytes``.

    The store is read first, in one snapshot, so that the files of its rows already exist.
    """
    with engine.connect() as connection:
        if connection.execute(select(stores.c.several)).scalar():
            raise MonitorError(
                "several instances share the store: back up the database and the bucket with "
                "their own tools (docs/operate.md)"
            )
    os.fchmod(file.fileno(), 0o600)  # it has the key of the logins, and all users' data
    members: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        n_rows = _add_tables(tar, engine, members)
        for path in _files_of(config.data):
            _add_file(tar, config.data, path, members)
        manifest = {"format": FORMAT, "created_at": time.time(), "members": members}
        _add_bytes(tar, _MANIFEST, json.dumps(manifest).encode())
    file.flush()
    os.fsync(file.fileno())
    n_bytes = sum(member["size"] for member in members.values())
    n_files = sum(not _TABLE.fullmatch(name) for name in members)
    return {"rows": n_rows, "files": n_files, "bytes": n_bytes}


def _add_tables(tar: tarfile.TarFile, engine: Engine, members: dict[str, dict[str, Any]]) -> int:
    """One file per table, through temporary files, for a tar needs sizes first."""
    n_rows = 0
    with tempfile.TemporaryDirectory(prefix="paceline-backup-") as folder:
        files: dict[str, BinaryIO] = {}
        try:
            for table, row in read_rows(engine):
                if table not in files:
                    files[table] = (Path(folder) / table).open("wb")
                files[table].write(json.dumps(row).encode() + b"\n")
                n_rows += 1
        finally:
            for file in files.values():
                file.close()
        for table in files:
            _add(tar, f"tables/{table}.jsonl", Path(folder) / table, members)
    return n_rows


def _files_of(data: Path) -> Iterator[Path]:
    """The files to copy.

    Of a job's step times, the detector comes first, for it may be older than the others. Of its
    spans, the plan of the next session comes last, for it is valid only with its spans.
    """
    for top in _FILES:
        if (data / top).is_file():
            yield data / top
    for top in _FOLDERS:
        for folder, _, names in os.walk(data / top):
            for name in sorted(names, key=lambda n: (not n.startswith("detector"), n == PLAN, n)):
                if not name.startswith("."):  # incomplete
                    yield Path(folder) / name


def _add_file(
    tar: tarfile.TarFile, data: Path, path: Path, members: dict[str, dict[str, Any]]
) -> None:
    try:
        _add(tar, path.relative_to(data).as_posix(), path, members)
    except FileNotFoundError:  # removed meanwhile
        return


def _add(tar: tarfile.TarFile, name: str, path: Path, members: dict[str, dict[str, Any]]) -> None:
    with path.open("rb") as file:
        info = tarfile.TarInfo(name)
        stat = os.fstat(file.fileno())
        info.size, info.mtime, info.mode = stat.st_size, int(stat.st_mtime), 0o600
        hashed = _Hashed(file)
        tar.addfile(info, hashed)
        members[name] = {"size": info.size, "sha256": hashed.digest.hexdigest()}


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    tar.addfile(info, io.BytesIO(content))


class _Hashed:
    """A file that hashes its content while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, n_bytes: int = -1) -> bytes:
        """The next bytes."""
        block = self._file.read(n_bytes)
        self.digest.update(block)
        return block


def restore_backup(config: Config, path: Path) -> dict[str, int]:
    """Restore a monitor from a backup into an empty data folder and store.

    Returns:
        its numbers of ``rows`` and ``files``.

    Raises:
        MonitorError: the folder or store is not empty, or the backup is damaged.
        OutputError: the folder cannot be written.
    """
    _check_empty(config.data)
    make_folder(config.data)
    partial = config.data / ".restore"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        names = _extract(path, partial)
        rows = _restore_rows(config, _rows_of(partial, names))
        for name in (*_FOLDERS, *_FILES):
            if (partial / name).exists():
                (partial / name).rename(config.data / name)
    except (tarfile.TarError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MonitorError(f"{path} is no whole backup: {error}") from None
    except OSError as error:
        place = error.filename or config.data
        raise OutputError(f"{place} cannot be used: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"rows": rows, "files": sum(not _TABLE.fullmatch(name) for name in names)}


def _restore_rows(config: Config, rows: Iterator[tuple[str, dict[str, Any]]]) -> int:
    engine, done = open_database(config.store_url), False
    try:
        n_rows, done = write_rows(engine, rows), True
    except SQLAlchemyError as error:
        raise MonitorError(f"the store refuses the rows: {problem_in(error)}") from None
    finally:
        engine.dispose()
        if not done:  # created by this restore, so that the next attempt finds an empty folder
            for path in config.data.glob("paceline.db*"):
                path.unlink()
    return n_rows


def _check_empty(data: Path) -> None:
    occupied = [name for name in ("paceline.db", *_FOLDERS, *_FILES) if (data / name).exists()]
    if occupied:
        raise MonitorError(f"{data} holds {occupied[0]} already; restore into an empty folder")


def _extract(path: Path, to: Path) -> list[str]:
    """Write all members after checks; nothing is written outside of ``to``."""
    extracted: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    with tarfile.open(path, mode="r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or manifest is not None:
                raise MonitorError(f"{path} holds {member.name[:100]!r}, which no backup has")
            if member.name == _MANIFEST:
                manifest = json.loads(content.read(_MAX_MANIFEST_BYTES))
            elif _TABLE.fullmatch(member.name) or _is_ours(member.name):
                extracted[member.name] = _write(content, to / member.name)
            else:
                raise MonitorError(f"{path} holds {member.name[:100]!r}, which no backup has")
    if manifest is None:
        raise MonitorError(f"{path} is an incomplete backup")
    if manifest.get("format") != FORMAT:
        raise MonitorError(f"{path} was made by a later version of Paceline; install that")
    if manifest.get("members") != extracted:
        raise MonitorError(f"{path} is damaged: its content differs from its checksum")
    return list(extracted)


def _is_ours(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not {".", ".."} & set(name.split("/"))


def _write(content: Any, path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        while block := content.read(_BLOCK):
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _rows_of(folder: Path, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows in the order of the backup: parents first."""
    for name in names:
        match = _TABLE.fullmatch(name)
        if match:
            with (folder / name).open(encoding="utf-8") as file:
                for line in file:
                    yield match[1], json.loads(line)
