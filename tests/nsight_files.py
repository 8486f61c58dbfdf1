"""Exports of Nsight Systems with the tables and columns of its export schema 3.25, but few rows."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

_EVENT = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
_ON_STREAM = f"{_EVENT}streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "id INTEGER NOT NULL, name TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ON_STREAM}demangledName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ON_STREAM}copyKind INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ON_STREAM}value INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
    "globalTid INTEGER, textId INTEGER",
}
NAMES = {1: "gemm", 2: "ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage)", 3: "step 7"}
#: Beyond what a float holds to the nanosecond.
BEGIN_NS = 1_900_000_000_000_000_001


def process(number: int) -> int:
    """The ``globalPid`` of a process; with a thread's id added, a ``globalTid``."""
    return (1 << 48) + (number << 24)


def kernel(
    number: int, start_us: int, end_us: int, launch_us: int, *, name: int = 1, pid: int = 11
) -> list[tuple[str, tuple[Any, ...]]]:
    """A kernel on the device with its process' number less 11, and its launch of 2 us."""
    low, high, call = (BEGIN_NS + time_us * 1000 for time_us in (start_us, end_us, launch_us))
    where = (pid - 11, 7, number, process(pid))
    return [
        ("CUPTI_ACTIVITY_KIND_KERNEL", (low, high, *where, name)),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", (call, call + 2000, process(pid) + 5, number)),
    ]


def step(
    text: str | None, start_us: int, end_us: int, *, pid: int = 11, text_id: int | None = None
):
    """An NVTX range that was pushed and popped."""
    times = (BEGIN_NS + start_us * 1000, BEGIN_NS + end_us * 1000)
    return [("NVTX_EVENTS", (*times, 59, text, process(pid) + 5, text_id))]


def write(
    path: Path, rows: Iterable[tuple[str, tuple[Any, ...]]], without: Iterable[str] = ()
) -> Path:
    """An export of these rows, without some tables."""
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in TABLES.items():
            if table not in without:
                connection.execute(f"create table {table} ({columns})")
        connection.executemany("insert into StringIds values (?, ?)", NAMES.items())
        for table, values in rows:
            places = ", ".join("?" * len(values))
            connection.execute(f"insert into {table} values ({places})", values)
        connection.commit()
    return path


def two_processes(path: Path, **arguments: Any) -> Path:
    """One computes 100 to 200 and communicates 150 to 300, the other computes 100 to 290."""
    copy = (*(BEGIN_NS + at for at in (390_000, 400_000)), 0, 7, 900, process(11), 1)
    call = (BEGIN_NS + 360_000, BEGIN_NS + 362_000, process(11) + 5, 900)
    gpus = [("TARGET_INFO_GPU", (0, "NVIDIA H100"))]
    rows = [
        *kernel(1, 100, 200, 90),
        *kernel(2, 150, 300, 140, name=2),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", copy),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", call),
        *kernel(3, 410, 500, 395),
        # Numbers of calls are a process' own.
        *kernel(1, 100, 290, 20, pid=12),
        *kernel(2, 290, 300, 140, name=2, pid=12),
        *step(None, 50, 310, text_id=3),
        *step("step 8", 310, 600),
        *step("aten::step, op_id = 9", 311, 312),
    ]
    tables = arguments.get("without", ())
    return write(path, [row for row in (*gpus, *rows) if row[0] not in tables], **arguments)
