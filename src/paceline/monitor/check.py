"""Check of a monitor's data on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, select, text

from paceline.errors import StateError
from paceline.monitor.blobs import BlobsAway, trace_key
from paceline.monitor.bucket import open_blobs
from paceline.monitor.config import Config
from paceline.monitor.rank_file import load_rank_map
from paceline.monitor.step_files import SUFFIX, StepFiles, damaged_bytes
from paceline.monitor.store.tables import jobs, sessions

_BLOCK = 1 << 20


def problems(config: Config, engine: Engine) -> Iterator[str]:
    """Lines about damaged or missing parts: database, step times, traces.

    It reads all data and may run beside the service.
    """
    yield from _of_database(engine)
    yield from _of_steps(StepFiles(config.data / "steps"), engine)
    yield from _of_traces(config, engine)


def _of_database(engine: Engine) -> Iterator[str]:
    if engine.dialect.name != "sqlite":
        return
    with engine.connect() as connection:
        for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
            if line != "ok":
                yield f"database: {line}"


def _of_steps(files: StepFiles, engine: Engine) -> Iterator[str]:
    with engine.connect() as connection:
        rows = connection.execute(select(jobs.c.id, jobs.c.project, jobs.c.name))
        names = {row.id: f"{row.project}/{row.name}" for row in rows}
    for job_id in sorted(files.job_ids()):
        if job_id not in names:
            yield f"step times of job {job_id}, which the database does not know"
        for path in sorted(files.path(job_id).glob(f"*{SUFFIX}")):
            damaged = damaged_bytes(path.read_bytes())
            if damaged:
                name = names.get(job_id, f"job {job_id}")
                yield f"step times of {name}: {damaged:,} bytes of {path} cannot be read"
        try:
            load_rank_map(files.path(job_id))
        except StateError as error:
            yield f"rank map of {names.get(job_id, f'job {job_id}')}: {error}"


def _of_traces(config: Config, engine: Engine) -> Iterator[str]:
    blobs = open_blobs(config.blobs, config.data)
    query = select(sessions.c.sha256).distinct()
    with engine.connect() as connection:
        hashes = sorted(connection.execute(query).scalars())
    for sha256 in hashes:
        try:
            with blobs.local(trace_key(sha256)) as path:
                if path.exists() and _digest(path) != sha256:
                    yield f"trace {sha256[:12]}: its content differs from its SHA-256"
        except FileNotFoundError:  # removed to make room
            continue
        except BlobsAway as away:
            yield str(away)
            return


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
