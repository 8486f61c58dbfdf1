"""Databases of rocprofv3 (rocpd) with what its JSON has, laid out as its writer does.

Writer: ROCm/rocm-systems at 1b1610f, ``generateRocpd.cpp``; schema: ``rocpd_tables.sql``. Without
that file, tables have those of its columns that are filled here.
"""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rocprof_files import document

GUID = "00001eca-5d76-7f29-a7a5-19a2073d19ee"
UUID = "_" + GUID.replace("-", "_")

_TABLES = {
    "metadata": "tag, value",
    "string": "string",
    "info_process": "nid, pid, start, end",
    "info_agent": "nid, pid, type, absolute_index, product_name",
    "info_kernel_symbol": "nid, pid, code_object_id, kernel_name, display_name",
    "event": "category_id, stack_id, parent_stack_id, correlation_id, extdata",
    "region": "nid, pid, tid, start, end, name_id, event_id",
    "kernel_dispatch": "nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, "
    "start, end, workgroup_size_x, workgroup_size_y, workgroup_size_z, grid_size_x, grid_size_y, "
    "grid_size_z, event_id",
    "memory_copy": "nid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, size, event_id",
}


def short_schema() -> str:
    """The tables that are filled, without their constraints."""
    return "".join(
        f"create table `rocpd_{name}{{{{uuid}}}}` (id integer primary key autoincrement, "
        + ", ".join(f'"{column}"' for column in columns.split(", "))
        + ");\n"
        for name, columns in _TABLES.items()
    )


class _Writer:
    def __init__(self, connection: sqlite3.Connection, pid: int) -> None:
        self.connection, self.pid = connection, pid
        self.strings: dict[str, int] = {}
        self.n_events = 0

    def insert(self, table: str, **values: Any) -> None:
        columns = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        into = f"insert into `rocpd_{table}{UUID}` ({columns}) values ({marks})"
        self.connection.execute(into, tuple(values.values()))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("string", id=self.strings[text], string=text)
        return self.strings[text]

    def event(self, category: str, number: int, message: str = "") -> int:
        self.n_events += 1
        extra = json.dumps({"message": message}) if message else "{}"
        ids = {"stack_id": number, "parent_stack_id": number, "correlation_id": 0}
        kind = self.string(category)
        self.insert("event", id=self.n_events, category_id=kind, extdata=extra, **ids)
        return self.n_events

    def times(self, record: Mapping[str, Any], tid: int = 1) -> dict[str, int]:
        start, end = record["start_timestamp"], record["end_timestamp"]
        return {"nid": 1, "pid": self.pid, "tid": tid, "start": start, "end": end}


def write_rocpd(path: Path, value: Mapping[str, Any] | None = None, schema: str = "") -> Path:
    """A database with the kernels, copies, calls and ranges of a document of rocprofv3's JSON."""
    (process,) = (value or document())["rocprofiler-sdk-tool"]
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        text = (schema or short_schema()).replace("{{uuid}}", UUID).replace("{{guid}}", GUID)
        connection.executescript(text)
        connection.execute("pragma foreign_keys = off")
        _fill(_Writer(connection, process["metadata"]["pid"]), process)
        connection.commit()
        if schema:
            assert not connection.execute("pragma foreign_key_check").fetchall()
    return path


def _fill(writer: _Writer, process: Mapping[str, Any]) -> None:
    records = process["buffer_records"]
    whole = bool(
        writer.connection.execute(
            f"select 1 from pragma_table_info('rocpd_info_process{UUID}') where name = 'ppid'"
        ).fetchone()
    )
    if whole:
        writer.insert("info_node", id=1, hash=1, machine_id="a")
    writer.insert("info_process", id=writer.pid, nid=1, pid=writer.pid)
    agents = {}
    for agent in process["agents"]:
        agents[agent["id"]["handle"]] = number = agent["node_id"]
        names = {"product_name": agent["product_name"], "absolute_index": number}
        kind = "GPU" if agent["type"] == 2 else "CPU"
        writer.insert("info_agent", id=number, nid=1, pid=writer.pid, type=kind, **names)
    for symbol in process["kernel_symbols"]:
        of = {"nid": 1, "pid": writer.pid, "code_object_id": 1}
        name = symbol["formatted_kernel_name"]
        writer.insert(
            "info_kernel_symbol",
            id=symbol["kernel_id"],
            kernel_name=f"{name}.kd",
            display_name=name,
            **of,
        )
    if whole:
        writer.insert("info_code_object", id=1, nid=1, pid=writer.pid)
        writer.insert("info_thread", id=1, nid=1, pid=writer.pid, tid=1)
        streams = {r["stream_id"]["handle"] for r in records["kernel_dispatch"]}
        queues = {r["dispatch_info"]["queue_id"]["handle"] for r in records["kernel_dispatch"]}
        for table, handles in (("info_stream", streams), ("info_queue", queues)):
            for handle in sorted(handles):
                writer.insert(table, id=handle, nid=1, pid=writer.pid)
    for record in records.get("hip_api", []):
        number = record["correlation_id"]["internal"]
        name, event = writer.string("hipLaunchKernel"), writer.event("HIP_RUNTIME_API", number)
        writer.insert("region", id=number, name_id=name, event_id=event, **writer.times(record))
    messages = {pair["key"]: pair["value"] for pair in process["strings"].get("marker_api", [])}
    for record in records.get("marker_api", []):
        number = record["correlation_id"]["internal"]
        event = writer.event("MARKER_CORE_RANGE_API", number, messages[number])
        name = writer.string("roctxThreadRangeA")
        writer.insert("region", id=number, name_id=name, event_id=event, **writer.times(record))
    for n, record in enumerate(records["kernel_dispatch"], 1):
        info = record["dispatch_info"]
        event = writer.event("KERNEL_DISPATCH", record["correlation_id"]["internal"])
        sizes = {f"{what}_size_{axis}": 1 for what in ("workgroup", "grid") for axis in "xyz"}
        writer.insert(
            "kernel_dispatch",
            dispatch_id=n,
            agent_id=agents[info["agent_id"]["handle"]],
            kernel_id=info["kernel_id"],
            queue_id=info["queue_id"]["handle"],
            stream_id=record["stream_id"]["handle"],
            event_id=event,
            **writer.times(record),
            **sizes,
        )
    for record in records.get("memory_copy", []):
        event = writer.event("MEMORY_COPY", record["correlation_id"]["internal"])
        ends = {
            f"{end}_agent_id": agents[record[f"{end}_agent_id"]["handle"]] for end in ("src", "dst")
        }
        name = writer.string("MEMORY_COPY_DEVICE_TO_HOST")
        writer.insert(
            "memory_copy", name_id=name, size=8, event_id=event, **ends, **writer.times(record)
        )
