"""Nsight Systems' SQLite export -> the activity of each device of each process.

Schema: NVIDIA's "SQLite Export Schema Reference" (Nsight Systems 2021.5 to 2026.2, export schema
3.25), held against exports of Nsight Systems 2026.2.1. Times are nanoseconds of one clock. A
``globalTid`` holds the process id in its bits 24 to 47; a ``globalPid`` is the same without a
thread. Tables and columns exist only if they have content. Without kernels, the reader takes the
NVTX ranges of the host; some of them are steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.devices.sqlite_file import SqliteFile, is_sqlite, whole_column
from paceline.sources.devices.table import Devices, DeviceTable
from paceline.sources.kineto.device import RankFile, Work, work_of

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES, _SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"

#: Lower bits of a serialised id: the thread.
_THREAD_BITS = 24
_PROCESS_MASK = 0xFFFFFF

#: ``CUpti_ActivityMemcpyKind``.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}

#: ``NvtxPushPopRange``, ``NvtxStartEndRange``.
_RANGE_TYPES = (59, 60)

#: A range around a step: ``step 5``, ``iteration=5``, ``train_step_5``, ``ProfilerStep#5``.
STEP_NAME = re.compile(
    r"(?:Profiler|train(?:ing)?[ _]?|global[ _]?)?(?:step|iter(?:ation)?)[ _#:=]*(\d{1,9})",
    re.IGNORECASE,
)


_NOTE = "Nsight Systems does not say global ranks; devices are listed by process and number"
_HOST_NOTE = "Nsight Systems does not say global ranks; processes are listed by number"

#: torch's suffix of a range's name (``getNvtxStr``, torch/csrc/profiler/util.cpp of 2.13).
_ADDED = re.compile(r", (?:seq|op_id|sizes|input_op_ids|inputs) = .*", re.DOTALL)


def matches(path: Path) -> bool:
    """Whether the file is an SQLite database with Nsight Systems' tables."""
    try:
        return is_sqlite(path) and "StringIds" in _Export(path).columns
    except TraceError:
        return False


def is_report(path: Path) -> bool:
    """Whether the file's name is that of a report that was not exported; only nsys reads those."""
    return path.suffix in (".nsys-rep", ".qdrep")


def read_devices(path: Path) -> Devices:
    """Read an export; memory per kernel is 60 bytes, per call of the host 24, per range 20.

    Raises:
        TraceError: it is damaged, or has neither kernels nor NVTX ranges.
    """
    export = _Export(path)
    gpus = export.gpus()
    places = export.places()
    several = len({process for process, _ in places}) > 1
    ranks = []
    for process, device in places:
        name = f"{gpus.get(device, 'GPU')} {device}"
        ranks.append(export.rank(process, device, name + f" of process {process}" * several))
    if ranks:
        return Devices(tuple(ranks), (_NOTE,))
    hosts = tuple(host for process in export.processes() if (host := export.host(process)))
    if not hosts:
        raise TraceError(
            f"{path} has no kernels (in {_KERNELS}) and no ranges (in {_RANGES}); profile with "
            "nsys profile --trace cuda,nvtx and export with nsys export --type sqlite"
        )
    return Devices(hosts, (_HOST_NOTE,))


class _Export(SqliteFile):
    """An export, for queries of its content."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "no export of Nsight Systems", "export it again with nsys export --type sqlite"
        )

    def places(self) -> list[tuple[int, int]]:
        """(process id, device number) of all activity; process 0 if the export does not have it."""
        pairs = {
            (process, device)
            for table in (_KERNELS, _COPIES, _SETS)
            if table in self.columns
            for process, device in self.rows(
                f"select distinct {self._process(table)}, cast(deviceId as int) from {table}"
            )
            if isinstance(device, int) and isinstance(process, int)
        }
        if _KERNELS not in self.columns:
            return []
        kernels = {
            device
            for (device,) in self.rows(f"select distinct cast(deviceId as int) from {_KERNELS}")
        }
        return sorted(pair for pair in pairs if pair[1] in kernels)

    def gpus(self) -> dict[int, str]:
        """Device number -> name; empty where the export has none."""
        if not {"id", "name"} <= self.columns.get("TARGET_INFO_GPU", set()):
            return {}
        rows = self.rows("select id, name from TARGET_INFO_GPU")
        return {number: str(name) for number, name in rows if isinstance(number, int)}

    def rank(self, process: int, device: int, name: str) -> RankFile:
        """Activity of one device for one process."""
        table = DeviceTable(self.path)
        works: dict[str, Work] = {}
        for low, high, stream, number, kernel in self._events(
            _KERNELS, self._name_column, process, device
        ):
            label = self._strings.get(kernel, "kernel without a name")
            work = works.get(label)
            if work is None:
                work = works[label] = work_of(label)
            table.add(label, work, low, high, stream, number)
        for low, high, stream, number, kind in self._events(_COPIES, "copyKind", process, device):
            label = f"Memcpy {_COPY_KINDS.get(kind, '')}".strip()
            table.add(label, Work.MEMORY, low, high, stream, number)
        for low, high, stream, number, _ in self._events(_SETS, "value", process, device):
            table.add("Memset", Work.MEMORY, low, high, stream, number)
        for low, high, number in self._calls(process):
            table.launch(number, low, high)
        return table.finish(name, self._steps(process))

    @cached_property
    def _strings(self) -> dict[int, str]:
        """Number -> the name of a kernel."""
        if not {"id", "value"} <= self.columns["StringIds"]:
            return {}
        name = self._name_column
        rows = self.rows(
            f"select id, value from StringIds where id in (select {name} from {_KERNELS})"
        )
        return {number: str(text) for number, text in rows if isinstance(number, int)}

    @property
    def _name_column(self) -> str:
        columns = self.columns[_KERNELS]
        return "demangledName" if "demangledName" in columns else "shortName"

    def _process(self, table: str) -> str:
        """SQL of a row's process id."""
        for column in ("globalPid", "globalTid"):
            if column in self.columns[table]:
                return f"(ifnull(cast({column} as int), 0) >> {_THREAD_BITS}) & {_PROCESS_MASK}"
        return "0"

    def _events(
        self, table: str, what: str, process: int, device: int
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """(start, end in ns, stream, correlation, ``what``) of a device's rows; -1 = none."""
        columns = self.columns.get(table)
        if columns is None:
            return
        wanted = ("start", "end", "streamId", "correlationId", what)
        numbers = ", ".join(whole_column(column, columns) for column in wanted)
        yield from self.rows(
            f"select {numbers} from {table} where cast(deviceId as int) = ? and "
            f"{self._process(table)} = ?",
            *(device, process),
        )

    def _calls(self, process: int) -> Iterator[tuple[int, int, int]]:
        """(start, end in ns, correlation) of the process' calls of CUDA."""
        columns = self.columns.get(_CALLS)
        if columns is not None:
            numbers = ", ".join(
                whole_column(name, columns) for name in ("start", "end", "correlationId")
            )
            of = f"{self._process(_CALLS)} = ?" if "globalTid" in columns else "? >= 0"
            yield from self.rows(f"select {numbers} from {_CALLS} where {of}", process)

    def processes(self) -> list[int]:
        """Ids of processes with NVTX ranges; process 0 if the export does not have it."""
        if _RANGES not in self.columns:
            return []
        rows = self.rows(f"select distinct {self._process(_RANGES)} from {_RANGES}")
        return sorted(process for (process,) in rows if isinstance(process, int))

    def host(self, process: int) -> RankFile | None:
        """The ranges of a process on the host; None where it has none."""
        table, steps, n = DeviceTable(self.path), [], 0
        for low, high, thread, text in self._named_ranges(process):
            match = STEP_NAME.fullmatch(text.strip())
            if match:
                steps.append((low, high, int(match[1])))
            else:
                table.operator(_ADDED.sub("", text)[:200], low, high, thread)
            n += 1
        return table.finish(f"process {process}", steps) if n else None

    def _steps(self, process: int) -> Iterator[tuple[int, int, int]]:
        """(start, end in ns, number) of the process' NVTX ranges that name a step."""
        # Each operator of emit_nvtx is a range, so SQLite sorts out most of them.
        named = " and (label like '%step%' or label like '%iter%')"
        for low, high, _, text in self._named_ranges(process, named):
            match = STEP_NAME.fullmatch(text.strip())
            if match:
                yield low, high, int(match[1])

    def _named_ranges(self, process: int, also: str = "") -> Iterator[tuple[int, int, int, str]]:
        """(start, end in ns, thread, name) of the process' NVTX ranges; ``also`` is further SQL."""
        columns = self.columns.get(_RANGES)
        if columns is None or not {"start", "end", "eventType"} <= columns:
            return
        texts = [name for name in ("text",) if name in columns]
        if "textId" in columns:
            texts.append("(select value from StringIds where id = textId)")
        if not texts:
            return
        types = ", ".join(map(str, _RANGE_TYPES))
        of = f"{self._process(_RANGES)} = ?" if "globalTid" in columns else "? >= 0"
        labelled = f"select *, coalesce({', '.join(texts)}, '') as label from {_RANGES}"
        numbers = ", ".join(whole_column(name, columns) for name in ("start", "end", "globalTid"))
        rows = self.rows(
            f"select {numbers}, label from ({labelled}) "
            f"where {of} and eventType in ({types}){also}",
            process,
        )
        for low, high, thread, text in rows:
            yield low, high, thread, str(text)
