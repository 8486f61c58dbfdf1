"""Timelines of xpu_timer (DLRover), a file per rank -> the activity of the rank's device.

Format: intelligent-machine-learning/dlrover (commit 7c3e964), ``xpu_timer/protos/hook.proto``:
message ``KernelTraces``. The file ``.meta`` beside it has the names, as lines ``code,name``
(``NvidiaGpuTimer::dumpTraceMeta``). Files are called ``rank-worldsize.timeline``. Times are
microseconds since 1970 by the host's clock, to which xpu_timer ties the device's events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.devices.protobuf import fields
from paceline.sources.devices.table import Devices, DeviceTable
from paceline.sources.json_stream import whole_lines
from paceline.sources.kineto.device import Work
from paceline.units import seconds

_NAME = re.compile(r"(\d{5,})-(\d{5,})\.timeline")
#: Tags of the fields of ``KernelTraces``, and their numbers.
_FIRST_BYTES = (0x0A, 0x12, 0x18, 0x20)
TRACES, _HOST_TRACES, RANK = 1, 2, 4
#: Fields of ``KernelTrace``.
KIND, CODE, START, LASTED, _DELAY, _ON_HOST = 1, 2, 3, 4, 5, 11
#: ``common/constant.h``: ``KERNEL_TYPE``.
_WORKS = {0: Work.COMPUTE, 1: Work.COMMUNICATION, 2: Work.MEMORY}

_MERGED = re.compile(r"(trace|matmul)_.*\.bin")

#: Most functions of the host, such as the garbage collector, that get a note.
MAX_FUNCTIONS = 3

_NOTE = (
    "xpu_timer records matrix products, attention, collectives and copies: idle time may be any "
    "other kernel"
)


def matches(path: Path) -> bool:
    """Whether the file begins like a timeline, and has the name or the ``.meta`` of one."""
    if not (path.name.endswith(".timeline") or _meta(path).is_file()):
        return False
    try:
        with path.open("rb") as file:
            start = file.read(1)
    except OSError:
        return False
    return bool(start) and start[0] in _FIRST_BYTES


def refuse_merged(path: Path) -> None:
    """Refuse a file that ``xpu_timer_gen_trace_timeline`` made from timelines for Perfetto.

    The tool (DLRover 7c3e964, ``gen_trace_timeline.py``) shortens every kernel of more than 100 µs
    by 10 µs and draws each launch as 10 µs. With ``--groups`` it takes only the first group of each
    dimension.

    Raises:
        TraceError: the file is such a file.
    """
    if _MERGED.fullmatch(path.name) and path.is_file():
        with path.open("rb") as file:
            if file.read(1) == b"\n":
                raise TraceError(
                    f"{path} was merged by xpu_timer for Perfetto, with changed times and perhaps "
                    "without some ranks; give the timelines that it was made of (*.timeline)"
                )


def is_names(path: Path) -> bool:
    """Whether the file is the ``.meta`` of a timeline, by its name."""
    return path.name.endswith(".timeline.meta")


def read_devices(path: Path) -> Devices:
    """Read one rank's timeline; some 60 bytes per event stay in memory.

    Raises:
        TraceError: it is damaged, has no events of a device, or its ``.meta`` is missing.
    """
    names = names_of(path)
    table, host = DeviceTable(path), Counter[str]()
    rank = 0
    for field, value, content in read_fields(path):
        if field == TRACES:
            _add(table, parts(path, content)[0], names)
        elif field == _HOST_TRACES:
            name, lasted_us = _host_trace(path, content)
            host[name] += lasted_us
        elif field == RANK:
            rank = max(value, 0)
    if not len(table):
        raise TraceError(f"{path} has no events of a device; dump with dump_kernel_type 7")
    notes = (
        f"rank {rank}: {name} took {seconds(lasted_us * 1e-6)} of the host"
        for name, lasted_us in host.most_common(MAX_FUNCTIONS)
    )
    file_of_rank = table.finish("", rank=rank, world_size=world_size(path, rank))
    return Devices((file_of_rank,), (_NOTE, *notes))


def read_fields(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The fields of the file's ``KernelTraces``; for rank 0 the field :data:`RANK` is missing.

    Raises:
        TraceError: it is damaged.
    """
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            yield from fields(data)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def parts(path: Path, message: bytes) -> tuple[dict[int, int], dict[int, bytes]]:
    """The numbers and the contents of a message, by field.

    Raises:
        TraceError: it is damaged.
    """
    numbers, contents = {}, {}
    for field, value, content in _checked(path, message):
        if value < 0:
            contents[field] = content
        else:
            numbers[field] = value
    return numbers, contents


def world_size(path: Path, rank: int) -> int:
    """The number of the job's ranks in the file's name; 0 = the name does not have it.

    Raises:
        TraceError: the name says another rank.
    """
    called = _NAME.fullmatch(path.name)
    if called and int(called[1]) != rank:
        raise TraceError(f"{path} is called rank {int(called[1])}, but says rank {rank} inside")
    return int(called[2]) if called else 0


def _checked(path: Path, message: bytes) -> Iterator[tuple[int, int, bytes]]:
    try:
        yield from fields(message)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> TraceError:
    return TraceError(f"{path} is no timeline of xpu_timer: {error}; dump it again")


def _meta(path: Path) -> Path:
    return path.with_name(f"{path.name}.meta")


class Names(dict[int, str]):
    """Code -> the name of a kernel, from a file that should have all names."""

    def __init__(self, meta: Path) -> None:
        super().__init__()
        self._meta = meta

    def __missing__(self, code: int) -> str:
        """Refuse the code: with a made-up name, ranks would seem to call different collectives."""
        raise TraceError(
            f"{self._meta} has no name for code {code}: is it cut off, or of another dump? Copy it "
            "again with its timeline"
        )


def names_of(path: Path) -> Names:
    """Code -> the name of a kernel.

    Raises:
        TraceError: the file with the names is missing; or later, when it lacks a name.
    """
    meta = _meta(path)
    if not meta.is_file():
        raise TraceError(f"{path} is without {meta.name}, which has its names; copy both")
    names = Names(meta)
    for line in whole_lines(meta, []):
        code, _, name = line.strip().partition(",")
        if code.isascii() and code.isdigit() and len(code) < 10 and name:
            names[int(code)] = name.removeprefix("xpu_timer_")
    return names


def _add(table: DeviceTable, event: Mapping[int, int], names: Mapping[int, str]) -> None:
    work = _WORKS.get(event.get(KIND, 0), Work.OTHER)
    if event.get(_ON_HOST):
        return
    code, start_us = event.get(CODE, 0), event.get(START, 0)
    number = len(table)
    end_us = start_us + event.get(LASTED, 0)
    table.add(names[code], work, start_us * 1000, end_us * 1000, -1, number)
    launch_ns = (start_us - event.get(_DELAY, 0)) * 1000
    table.launch(number, launch_ns, launch_ns)


def _host_trace(path: Path, message: bytes) -> tuple[str, int]:
    """The name of a host's function, and how long it ran in microseconds."""
    name, lasted_us = "", 0
    for field, value, text in _checked(path, message):
        if field == 2:
            lasted_us = max(value, 0)
        elif field == 3:
            name = text.decode(errors="replace").replace("@", ".")
    return name, lasted_us
