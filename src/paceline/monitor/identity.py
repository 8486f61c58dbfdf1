"""Identity of a store: database and data folder belong together and are checked at the start.

Both have the store's name and a number that grows with every beat, first in the database, then in
the folder. A folder ahead of its database shows that the database was restored to an earlier time.
"""

from __future__ import annotations

import json
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, insert, select, update

from paceline.errors import MonitorError, OutputError
from paceline.files import sync
from paceline.monitor.log import log
from paceline.monitor.snapshot import SNAPSHOT
from paceline.monitor.step_files import StepFiles
from paceline.monitor.store.tables import jobs, stores

#: Name of the file in the data folder.
NAME = "store.json"
SCHEMA, VERSION = "paceline-store", 1
#: Folder for step times of jobs that the database does not have.
ORPHANED = "orphaned"
#: Seconds between two beats.
BEAT_S = 60.0


@dataclass(frozen=True)
class Half:
    """The store's identity in the database, or in the folder.

    Attributes:
        name: name of the store.
        beat: its number of beats.
    """

    name: str
    beat: int


class StoreIdentity:
    """The common name of a store and its folder.

    Args:
        engine: the database.
        data: the data folder.
        files: step times in the folder.
    """

    def __init__(self, engine: Engine, data: Path, files: StepFiles) -> None:
        self._engine, self._data, self._files = engine, data, files
        self._beaten_at = 0.0
        self.name = ""

    def claim(self, now: float) -> None:
        """Check that database and folder belong together; name them if they are new.

        If the database is older than its folder, step times of unknown jobs are moved aside, and
        detectors are rebuilt from the step files.

        Raises:
            MonitorError: they belong to different stores.
            OutputError: the folder cannot be written.
        """
        with self._engine.connect() as connection:
            if connection.execute(select(stores.c.several)).scalar():
                raise MonitorError(
                    "several instances share the store; start with --instance and a name"
                )
        in_database, in_folder = self._in_database(), self._in_folder()
        if in_database is None:
            if in_folder is not None or self._is_of_others():
                raise MonitorError(self._mismatch("of another store"))
            in_database = self._begin(now)
        elif in_folder is None and self._is_of_others():
            raise MonitorError(self._mismatch("of another store"))
        elif in_folder is not None and in_folder.name != in_database.name:
            raise MonitorError(self._mismatch(f"of the store {in_folder.name[:8]}"))
        self.name = in_database.name
        if in_folder is not None and in_folder.beat > in_database.beat:
            self._make_detectors_anew(in_folder.beat - in_database.beat)
            self._set_beat(in_folder.beat)
        self._move_orphans(now)
        try:
            self.beat(now)
        except OutputError as error:
            if in_folder is None:
                raise
            log(logging.ERROR, "failed", what="the store's name", reason=str(error))  # a full disk

    def beat(self, now: float) -> None:
        """Count a beat once per minute: in the database, then in the folder."""
        if 0 <= now - self._beaten_at < BEAT_S:
            return
        with self._engine.begin() as connection:
            statement = update(stores).values(beat=stores.c.beat + 1).returning(stores.c.beat)
            beat = int(connection.execute(statement).scalar_one())
        self._write(Half(self.name, beat))
        self._beaten_at = now

    def _in_database(self) -> Half | None:
        with self._engine.connect() as connection:
            row = connection.execute(select(stores.c.name, stores.c.beat)).first()
        return None if row is None else Half(row[0], int(row[1]))

    def _in_folder(self) -> Half | None:
        path = self._data / NAME
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            if (about["schema"], about["version"]) != (SCHEMA, VERSION):
                raise MonitorError(f"{path} was made by a later version of Paceline; install that")
            return Half(str(about["store"]), int(about["beat"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MonitorError(
                f"{path} cannot be read ({type(error).__name__}); if this is the folder of the "
                "store, remove that file: it is made anew"
            ) from None

    def _begin(self, now: float) -> Half:
        half = Half(secrets.token_hex(16), 0)
        with self._engine.begin() as connection:
            row = {"name": half.name, "beat": half.beat, "created_at": now}
            connection.execute(insert(stores).values(**row))
        return half

    def _set_beat(self, beat: int) -> None:
        with self._engine.begin() as connection:
            connection.execute(update(stores).values(beat=beat))

    def _unknown_jobs(self) -> list[int]:
        """Jobs with step times in the folder but without a row in the database."""
        with self._engine.connect() as connection:
            known = set(connection.execute(select(jobs.c.id)).scalars())
        return sorted(set(self._files.job_ids()) - known)

    def _is_of_others(self) -> bool:
        """Whether an unmarked folder has step times, but of none of the database's jobs."""
        unknown = self._unknown_jobs()
        return bool(unknown) and len(unknown) == len(self._files.job_ids())

    def _mismatch(self, owner: str) -> str:
        with self._engine.connect() as connection:
            n_jobs = len(connection.execute(select(jobs.c.id)).all())
        return (
            f"the data folder {self._data} is {owner}: it has step times of "
            f"{len(self._files.job_ids()):,} jobs, and this database knows {n_jobs:,} jobs. Give "
            "the database that it was used with, or another data folder; to begin anew, move the "
            "folder away"
        )

    def _make_detectors_anew(self, beats: int) -> None:
        """Detectors have seen events that the database has lost, so they read the steps again."""
        for job_id in self._files.job_ids():
            (self._files.path(job_id) / SNAPSHOT).unlink(missing_ok=True)
        message = f"the database lies {beats} minutes behind its data folder: was it restored?"
        lost = "events are found anew; sessions pushed since are lost, unless pushed again"
        log(logging.WARNING, "database is behind", reason=message, what=lost)

    def _move_orphans(self, now: float) -> None:
        for job_id in self._unknown_jobs():
            target = self._data / ORPHANED / f"{job_id}-{int(now)}"
            try:
                target.parent.mkdir(exist_ok=True)
                self._files.path(job_id).rename(target)
            except OSError as error:
                raise OutputError(f"{target} cannot be made: {error.strerror}") from None
            log(
                logging.WARNING, "step times of an unknown job moved", job_id=job_id, to=str(target)
            )

    def _write(self, half: Half) -> None:
        path = self._data / NAME
        about: dict[str, Any] = {"schema": SCHEMA, "version": VERSION}
        about |= {"store": half.name, "beat": half.beat}
        partial = path.with_name(f".{NAME}.partial")
        try:
            partial.write_text(json.dumps(about), encoding="utf-8")
            sync(partial)
            partial.replace(path)
            sync(path.parent)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
