"""Python stacks of a hanging job's processes, by py-spy.

py-spy (MIT) is a separate program that reads another process's memory, so the job needs no changes.
It is run as ``dump --json --nonblocking``, which never stops the process. Format: ``StackTrace``
and ``Frame`` in ``src/stack_trace.rs`` of py-spy 0.4.2, and its dumps. It reads only processes of
this host.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.detect.who import name_ranks
from paceline.errors import DetectError
from paceline.extras import pip_install

#: Launchers' variables with a process's rank: torchrun, Open MPI, MPICH and Intel MPI, Slurm.
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Variables that all processes of a job share.
_JOB_NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "WORLD_SIZE")
#: Attempts, as memory that changes during the read gives no stack.
_TRIES, _TIMEOUT_S, _AT_ONCE = 3, 10.0, 4
#: Printed frames of a thread; JSON has all.
_SHOWN = 6
#: Innermost frames of threads that wait for work.
_IDLE_FILES = ("threading.py", "queue.py", "selectors.py", "socketserver.py", "connection.py")


@dataclass(frozen=True)
class Frame:
    """A function that has not returned.

    Attributes:
        function, file, line: place of the frame; ``short`` is the short name of the file.
    """

    function: str
    file: str
    short: str
    line: int


@dataclass(frozen=True)
class Thread:
    """A thread's name and frames, the innermost first."""

    name: str
    frames: tuple[Frame, ...]

    @property
    def is_idle(self) -> bool:
        """Whether it waits for work, like helper threads of libraries."""
        is_main = self.name == "MainThread"
        return not is_main and Path(self.frames[0].file).name in _IDLE_FILES

    def explain(self) -> str:
        """The frames on one line, the innermost first."""
        shown = [f"{f.function} ({f.short}:{f.line})" for f in self.frames[:_SHOWN]]
        return " < ".join([*shown, *(["..."] if len(self.frames) > _SHOWN else [])])


@dataclass(frozen=True)
class StackGroup:
    """Ranks with the same stacks.

    Attributes:
        ranks, pids: ranks and their processes, in the same order.
        threads: the main thread, then other threads that do not wait for work.
    """

    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    threads: tuple[Thread, ...]


@dataclass(frozen=True)
class Stacks:
    """Stacks of the ranks that run on this host.

    Attributes:
        groups: the smallest group first, as a single rank is the most suspicious.
        notes: ranks without stacks, and the reasons.
    """

    groups: tuple[StackGroup, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The stacks as text for a terminal."""
        lines = []
        for group in self.groups:
            for thread in group.threads:
                of = "" if thread.name == "MainThread" else f", thread {thread.name}"
                lines.append(f"{name_ranks(group.ranks)}{of}: {thread.explain()}")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "groups": [
                {
                    "ranks": list(group.ranks),
                    "pids": list(group.pids),
                    "threads": [
                        {
                            "name": thread.name,
                            "frames": [
                                {"function": f.function, "file": f.file, "line": f.line}
                                for f in thread.frames
                            ],
                        }
                        for thread in group.threads
                    ],
                }
                for group in self.groups
            ],
            "notes": list(self.notes),
        }


def stacks_of(pid_of: Mapping[int, int], *, pyspy: str | None = None) -> Stacks:
    """The stacks of processes of this host.

    Args:
        pid_of: rank -> process.
        pyspy: the program; None: the one on PATH or beside this Python.
    """
    program = pyspy or find_pyspy()
    if not pid_of:
        return Stacks((), ("no process of the job was found on this host, so no stacks",))
    if program is None:
        absent = f"py-spy is not installed, so no stacks: {pip_install('hang')}"
        return Stacks((), (absent,))
    ranks = sorted(pid_of)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda rank: _dump(program, pid_of[rank]), ranks))
    ranks_of: dict[tuple[Thread, ...], list[int]] = {}
    why: dict[str, list[int]] = {}
    for rank, answer in zip(ranks, answers, strict=True):
        if isinstance(answer, str):
            why.setdefault(answer, []).append(rank)
        else:
            ranks_of.setdefault(answer, []).append(rank)
    groups = [
        StackGroup(tuple(same), tuple(pid_of[rank] for rank in same), threads)
        for threads, same in ranks_of.items()
    ]
    groups.sort(key=lambda group: (len(group.ranks), group.ranks))
    notes = tuple(f"{name_ranks(tuple(of))}: no stack: {reason}" for reason, of in why.items())
    return Stacks(tuple(groups), notes)


def find_pyspy() -> str | None:
    """The program on PATH, or where pip puts it beside this Python; None where there is none."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _dump(program: str, pid: int) -> tuple[Thread, ...] | str:
    """A process's threads, or the reason of the failure."""
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    reason = "py-spy saw no Python thread"
    for _ in range(_TRIES):
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"py-spy took more than {_TIMEOUT_S:.0f} s"
        except OSError as error:
            return f"py-spy cannot be started: {error.strerror}"
        if done.returncode == 0:
            threads = parse_dump(done.stdout, pid)
            if threads:
                return threads
        elif reason := _reason(done.stderr.decode(errors="replace"), pid):
            return reason
        else:
            reason = done.stderr.decode(errors="replace").strip().partition("\n")[0][:200]
    return reason


def _reason(stderr: str, pid: int) -> str:
    """A permanent error in plain words, else ""."""
    if "ermission" in stderr or "Operation not permitted" in stderr:
        return (
            f"py-spy may not look into process {pid}: run as the job's user or root, with "
            "kernel.yama.ptrace_scope 0, in a container with CAP_SYS_PTRACE"
        )
    if not Path(f"/proc/{pid}").exists():
        return f"process {pid} has ended"
    return ""


def parse_dump(text: bytes, pid: int) -> tuple[Thread, ...]:
    """The threads of a dump that do not wait for work, the main one first; () if unknown."""
    try:
        rows = json.loads(text)
        threads = [_thread(row, pid) for row in rows if row["frames"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()
    busy = [thread for thread in threads if not thread.is_idle]
    return tuple(sorted(busy, key=lambda thread: thread.name != "MainThread"))


def _thread(row: Mapping[str, Any], pid: int) -> Thread:
    is_main = row.get("os_thread_id") == pid or row.get("thread_name") == "MainThread"
    frames = tuple(
        Frame(
            str(frame["name"]),
            str(frame["filename"]),
            str(frame.get("short_filename") or frame["filename"]),
            int(frame["line"]),
        )
        for frame in row["frames"]
    )
    return Thread("MainThread" if is_main else str(row.get("thread_name") or "unnamed"), frames)


def find_processes(world: int | None = None, *, proc: Path = Path("/proc")) -> dict[int, int]:
    """Rank -> process of the job on this host, by its launcher's variables.

    Children of a process (data loaders) and its shell may have the same rank; the outermost Python
    process counts.

    Args:
        world: number of the job's ranks, if known.
        proc: the kernel's folder of processes.

    Raises:
        DetectError: several jobs run here, and the job is ambiguous.
    """
    jobs: dict[tuple[str, ...], dict[int, list[int]]] = {}
    for pid, environment in _environments(proc):
        rank = _rank(environment)
        if rank is not None and _is_python(proc / str(pid)):
            job = tuple(environment.get(name, "") for name in _JOB_NAMES)
            jobs.setdefault(job, {}).setdefault(rank, []).append(pid)
    if world is not None and len(jobs) > 1:
        jobs = {job: pids for job, pids in jobs.items() if job[-1] == str(world)} or jobs
    if len(jobs) > 1:
        some = [str(min(pids)) for of_rank in jobs.values() for pids in [of_rank[min(of_rank)]]]
        raise DetectError(
            f"{len(jobs)} jobs run on this host (processes {', '.join(some[:4])}, ...): "
            "name the processes by --pid"
        )
    of_rank = next(iter(jobs.values()), {})
    return {rank: _outermost(pids, proc) for rank, pids in sorted(of_rank.items())}


def is_here(header: Mapping[str, Any]) -> bool:
    """Whether a recording's header names a process of this host."""
    return header.get("host") == socket.gethostname() and isinstance(header.get("pid"), int)


def processes_of(
    headers: Iterable[Mapping[str, Any]], *, proc: Path = Path("/proc")
) -> dict[int, int]:
    """Rank -> process, from the headers of a recording.

    Only running processes of this host; a process number may be reused.

    Args:
        headers: headers with ``rank``, ``host`` and ``pid``.
        proc: the kernel's folder of processes.
    """
    pid_of = {int(meta["rank"]): int(meta["pid"]) for meta in headers if is_here(meta)}
    environments = dict(_environments(proc, only=pid_of.values()))
    return {
        rank: pid
        for rank, pid in pid_of.items()
        if _is_python(proc / str(pid)) and _rank(environments.get(pid, {})) in (None, rank)
    }


def ranks_of_pids(pids: Sequence[int], *, proc: Path = Path("/proc")) -> dict[int, int]:
    """Rank -> process, for named processes; those without a rank are numbered.

    Raises:
        DetectError: there is no such process.
    """
    environments = dict(_environments(proc, only=pids))
    result: dict[int, int] = {}
    for n, pid in enumerate(pids):
        if not (proc / str(pid)).exists():
            raise DetectError(f"there is no process {pid} on this host")
        rank = _rank(environments.get(pid, {}))
        result[n if rank is None else rank] = pid
    return result


def _environments(
    proc: Path, only: Iterable[int] | None = None
) -> Iterable[tuple[int, dict[str, str]]]:
    """Environments of the processes that this user may read."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    wanted = None if only is None else set(only)
    for pid in pids:
        if wanted is not None and pid not in wanted:
            continue
        try:
            text = (proc / str(pid) / "environ").read_bytes().decode(errors="replace")
        except OSError:  # another user's process, or an ended one
            continue
        yield pid, dict(row.split("=", 1) for row in text.split("\0") if "=" in row)


def _rank(environment: Mapping[str, str]) -> int | None:
    """The rank set by a launcher, or None."""
    rank = next((environment[name] for name in RANK_NAMES if name in environment), "")
    return int(rank) if rank.isdecimal() else None


def _is_python(process: Path) -> bool:
    try:
        return "python" in (process / "exe").readlink().name
    except OSError:
        return False


def _outermost(pids: Sequence[int], proc: Path) -> int:
    """The process whose parent is not among them."""
    parents = {pid: _parent(proc / str(pid)) for pid in pids}
    return next((pid for pid in pids if parents[pid] not in parents), pids[0])


def _parent(process: Path) -> int:
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
