"""rocpd, the SQLite database that rocprofv3 writes by default since ROCm 7.

Schema and writer: ROCm/rocm-systems at 1b1610f, ``projects/rocprofiler-sdk``:
``source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql`` (version 3) and ``generateRocpd.cpp``. Each
process has its own tables, whose names end with its id. An event's ``stack_id`` is the number that
a kernel shares with the call that launched it. Times are nanoseconds of one clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.devices.rocprof_process import RocprofProcess
from paceline.sources.devices.sqlite_file import SqliteFile, is_sqlite, whole_column
from paceline.sources.devices.table import Devices

_DISPATCH = re.compile(r"rocpd_kernel_dispatch(\w*)")
_METADATA = "rocpd_metadata"

#: Tables of ROCm/rocmProfileData, from which rocprofv3 took the names.
_OTHER_TOOL = {"rocpd_op", "rocpd_api"}

#: Columns of a kernel that are needed; schema 4 has them in other tables.
_NEEDED = {"start", "end", "agent_id", "kernel_id"}


def matches(path: Path) -> bool:
    """Whether the file is SQLite with tables ``rocpd_...``."""
    try:
        if not is_sqlite(path):
            return False
        return any(name.startswith(_METADATA) for name in _Database(path).columns)
    except TraceError:
        return False


def read_devices(path: Path) -> Devices:
    """Read a database; memory per kernel and copy is 36 bytes, per call of the host 24.

    Raises:
        TraceError: it is damaged, of another version of the schema, or has no kernels.
    """
    database = _Database(path)
    if database.columns.keys() >= _OTHER_TOOL:
        raise TraceError(
            f"{path} is of rocmProfileData (rpd), whose tables differ from those of rocprofv3; "
            "profile with rocprofv3"
        )
    ids = sorted(match[1] for name in database.columns if (match := _DISPATCH.fullmatch(name)))
    processes = [database.process(of) for of in ids]
    present = [process for process in processes if process.has_kernels]
    if not present:
        return RocprofProcess(path).devices()  # says what to profile
    parts = [process.devices() for process in present]
    return Devices(tuple(rank for part in parts for rank in part.ranks), parts[0].notes)


class _Database(SqliteFile):
    """A database, which is read process by process."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "no database of rocprofv3 (rocpd)", "profile with rocprofv3 --output-format json"
        )

    def process(self, of: str) -> RocprofProcess:
        """Activity of one process.

        Args:
            of: the end of the names of its tables.
        """
        process = RocprofProcess(self.path)
        process.names = dict(self._gpus(of))
        process.label = self._label(of)
        self._kernels(process, of)
        self._copies(process, of)
        self._regions(process, of)
        return process

    def _label(self, of: str) -> str:
        rows = self._select(f"rocpd_info_process{of}", "pid")
        return next((f" of process {pid}" for (pid,) in rows), "")

    def _gpus(self, of: str) -> Iterator[tuple[str, str]]:
        """Key and name of each agent."""
        table = f"rocpd_info_agent{of}"
        columns = self.columns.get(table, set())
        name = '"product_name"' if "product_name" in columns else "'GPU'"
        place = whole_column("absolute_index", columns)
        for number, product, index in self.rows_of(table, f"id, {name}, {place}"):
            yield str(number), f"{product or 'GPU'} {index if index >= 0 else number}"

    def _kernels(self, process: RocprofProcess, of: str) -> None:
        table = f"rocpd_kernel_dispatch{of}"
        lacking = ", ".join(sorted(_NEEDED - self.columns[table]))
        if lacking:
            raise TraceError(
                f"{self.path} is of another version of rocpd: {table} has no {lacking}; version 3 "
                "is read: profile with rocprofv3 --output-format json"
            )
        names = dict(self._symbols(of))
        for agent, kernel, low, high, stream, number in self._events(
            "kernel_dispatch", of, ("agent_id", "kernel_id", "start", "end", "stream_id")
        ):
            name = names.get(kernel, f"kernel {kernel}")
            process.kernel(str(agent), name, low, high, stream, number)

    def _symbols(self, of: str) -> Iterator[tuple[int, str]]:
        """Number and name of each kernel."""
        table = f"rocpd_info_kernel_symbol{of}"
        columns = self.columns.get(table, set())
        texts = [f'"{name}"' for name in ("display_name", "kernel_name") if name in columns]
        for number, *values in self.rows_of(table, ", ".join(["id", *texts])):
            yield number, next((str(text) for text in values if text), f"kernel {number}")

    def _copies(self, process: RocprofProcess, of: str) -> None:
        for source, target, low, high, number in self._events(
            "memory_copy", of, ("src_agent_id", "dst_agent_id", "start", "end")
        ):
            process.copy((str(source), str(target)), low, high, number)

    def _regions(self, process: RocprofProcess, of: str) -> None:
        """Add calls of HIP, and ranges by the message of roctx or else by the region's name."""
        strings = {n: str(text) for n, text in self._select(f"rocpd_string{of}", "id", "string")}
        calls = {n for n, text in strings.items() if "HIP" in text.upper()}
        markers = {n for n, text in strings.items() if "MARKER" in text.upper()}
        extra = "extdata" in self.columns.get(f"rocpd_event{of}", set())
        text = "e.extdata" if extra else "null"
        for name, low, high, number, category, value in self._events(
            "region", of, ("name_id", "start", "end"), "category_id", text
        ):
            if category in calls:
                process.call(number, low, high)
            else:
                message = _message(value) if category in markers else ""
                process.range(message or strings.get(name, ""), low, high)

    def _events(
        self, what: str, of: str, wanted: Sequence[str], own: str = "", text: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a table: the wanted columns, the event's ``stack_id``, ``own`` and ``text``.

        Args:
            what: the table, without the common begin and end of all names.
            of: the end of the tables' names.
            wanted: columns of the table, whole numbers; -1 = none.
            own: a further column of the event, a whole number; "" = none.
            text: SQL for a text of the event; "" = none.
        """
        table, event = f"rocpd_{what}{of}", f"rocpd_event{of}"
        columns = self.columns.get(table, set())
        of_event = self.columns.get(event, set())
        joined = "id" in of_event and "event_id" in columns
        values = [whole_column(column, columns) for column in wanted]
        shared = ("stack_id", own) if own else ("stack_id",)
        values += [whole_column(column, of_event if joined else set()) for column in shared]
        if text:
            values.append(text if joined else "null")
        also = f' left join "{event}" e on e.id = r.event_id' if joined else ""
        if columns:
            yield from self.rows(f'select {", ".join(values)} from "{table}" r{also}')

    def _select(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        if set(columns) <= self.columns.get(table, set()):
            yield from self.rows_of(table, ", ".join(f'"{column}"' for column in columns))

    def rows_of(self, table: str, what: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table; none where it is absent."""
        if table in self.columns:
            yield from self.rows(f'select {what} from "{table}"')


def _message(extra: Any) -> str:
    """The message of a roctx call, in the arguments that ``insert_api_data`` stores."""
    if not isinstance(extra, str):
        return ""
    try:
        value = json.loads(extra)
    except (ValueError, RecursionError):
        return ""
    return str(value.get("message", "")) if isinstance(value, dict) else ""
