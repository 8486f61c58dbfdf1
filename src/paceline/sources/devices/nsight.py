"""Nsight Systems' SQLite export -> what each device of each process ran.

Schema: NVIDIA's "SQLite Export Schema Reference" (Nsight Systems 2021.5 to 2026.2, export schema
3.25), held against exports of Nsight Systems 2026.2.1. Times are nanoseconds of one clock; a
``globalTid`` holds the process id in its bits 24 to 47, a ``globalPid`` the same with no thread.
Tables and columns are there only where something filled them, so all but the kernels may lack.
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


def matches(path: Path) -> bool:
    """Whether the file is an SQLite database with Nsight Systems' tables."""
    try:
        return is_sqlite(path) and "StringIds" in _Export(path).columns
    except TraceError:
        return False


def is_report(path: Path) -> bool:
    """Whether the file is called as reports are that were not exported; only nsys can read them."""
    return path.suffix in (".nsys-rep", ".qdrep")


def read_devices(path: Path) -> Devices:
    """Read an export; some 60 bytes per kernel and 24 per call of the host stay.

    Raises:
        TraceError: it is damaged, or has no kernels.
    """
    export = _Export(path)
    if _KERNELS not in export.columns:
        raise TraceError(
            f"{path} has no kernels (no table {_KERNELS}); profile with nsys profile --trace "
            "cuda,nvtx and export with nsys export --type sqlite"
        )
    gpus = export.gpus()
    places = export.places()
    several = len({process for process, _ in places}) > 1
    ranks = []
    for process, device in places:
        name = f"{gpus.get(device, 'GPU')} {device}"
        ranks.append(export.rank(process, device, name + f" of process {process}" * several))
    if not ranks:
        raise TraceError(f"{path} has no kernels; was anything run while it was profiled?")
    note = "Nsight Systems does not say global ranks; devices are listed by process and number"
    return Devices(tuple(ranks), (note,))


class _Export(SqliteFile):
    """An open export, asked for what it has."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "no export of Nsight Systems", "export it again with nsys export --type sqlite"
        )

    def places(self) -> list[tuple[int, int]]:
        """(process id, device number) of what ran; process 0 where the export does not say."""
        pairs = {
            (process, device)
            for table in (_KERNELS, _COPIES, _SETS)
            if table in self.columns
            for process, device in self.rows(
                f"select distinct {self._process(table)}, cast(deviceId as int) from {table}"
            )
            if isinstance(device, int) and isinstance(process, int)
        }
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
        """What one device ran for one process."""
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

    def _steps(self, process: int) -> Iterator[tuple[int, int, int]]:
        """(start, end in ns, number) of the process' NVTX ranges that name a step."""
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
        # Each operator of emit_nvtx is a range, so SQLite sorts out most of them.
        named = f"select *, coalesce({', '.join(texts)}, '') as label from {_RANGES}"
        rows = self.rows(
            f"select {whole_column('start', columns)}, {whole_column('end', columns)}, label "
            f"from ({named}) where {of} and eventType in ({types}) "
            "and (label like '%step%' or label like '%iter%')",
            process,
        )
        for low, high, text in rows:
            match = STEP_NAME.fullmatch(str(text).strip())
            if match:
                yield low, high, int(match[1])
