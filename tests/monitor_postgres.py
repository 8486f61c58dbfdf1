"""A PostgreSQL of our own in a temporary folder, on the loopback, stopped and started at will."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from monitor_lab import free_port


def programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").is_file()), None)


class Postgres:
    """Made, started, and removed at the end of the context."""

    def __init__(self) -> None:
        self._bin = programs()
        if self._bin is None:
            raise RuntimeError("PostgreSQL is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-postgres-"))
        # It refuses to run as root.
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(self.folder, "postgres")
        self.port = free_port()
        self.url = f"postgresql://paceline@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Postgres:
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "paceline", "-A", "trust", "-E", "UTF8", "-N")
        self.start()
        return self

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder}"
        log = str(self.folder / "log")
        data = str(self.folder / "data")
        self._run("pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "-t", "120", "start")

    def stop(self, how: str = "fast") -> None:
        """``how``: fast, or immediate, which is as good as a crash."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", how, "-w", "-t", "120", "stop")

    def archive(self) -> None:
        """Keep all WAL from now on, beside the data; starts it again."""
        (self.folder / "wal").mkdir()
        self._give("wal")
        copy = f"test ! -f {self.folder}/wal/%f && cp %p {self.folder}/wal/%f"
        self.stop()
        self._configure(f"archive_mode = on\narchive_command = '{copy}'\n")
        self.start()

    def base_backup(self) -> None:
        """A copy of the data while it is used."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "paceline")
        self._run("pg_basebackup", *where, "-D", str(self.folder / "base"), "-X", "none")

    def recover(self, until: str) -> None:
        """Start from the base backup and the WAL up to a time; what came later is lost."""
        (self.folder / "data").rename(self.folder / "lost")
        (self.folder / "base").rename(self.folder / "data")
        (self.folder / "data" / "recovery.signal").touch()
        self._configure(
            f"restore_command = 'cp {self.folder}/wal/%f %p'\n"
            f"recovery_target_time = '{until}'\nrecovery_target_action = promote\n"
        )
        self._give("data/recovery.signal")
        self.start()

    def _configure(self, lines: str) -> None:
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(lines)

    def _give(self, name: str) -> None:
        if self._as:
            shutil.chown(self.folder / name, "postgres")

    def __exit__(self, *_: object) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as, str(self._bin / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no pipe: the server would keep it open
            stderr=subprocess.DEVNULL,
            timeout=180,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed with {done.returncode}")
