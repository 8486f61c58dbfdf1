"""rocprofv3's JSON and CSV -> the activity of each AMD GPU of a process.

Format: ROCm/rocprofiler-sdk, ``rocprofiler-sdk-tool/generateJSON.cpp`` and ``generateCSV.cpp``
(commit 8ab1ed7), held against a file of ROCm 7 on an MI350X. Times are nanoseconds of one clock.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.devices.rocprof_json import TOP, Records
from paceline.sources.devices.rocprof_process import RocprofProcess
from paceline.sources.devices.table import Devices
from paceline.sources.fields import mapping
from paceline.sources.json_stream import ends_within_line, head, whole_lines

_JSON = re.compile(rf'\s*\{{\s*"{TOP}"\s*:')
_TIMES = ("Start_Timestamp", "End_Timestamp")


def matches(path: Path) -> bool:
    """Whether the file is rocprofv3's JSON, or its CSV of kernels."""
    start = head(path, 1 << 12)
    first = start.partition("\n")[0]
    return bool(_JSON.match(start)) or all(name in first for name in ("Kernel_Name", *_TIMES))


def read_devices(path: Path) -> Devices:
    """Read a file; memory per kernel and copy is 36 bytes, per call of the host 24.

    For a CSV of kernels, ``*_kernel_trace.csv``, the reader also takes the files beside it:
    ``hip_api_trace``, ``memory_copy_trace``, ``marker_api_trace``.

    Raises:
        TraceError: it is damaged, or has no kernels.
    """
    process = RocprofProcess(path)
    if _JSON.match(head(path, 1 << 12)):
        _read_json(path, process)
    else:
        _read_csv(path, process)
    return process.devices()


def _read_json(path: Path, process: RocprofProcess) -> None:
    """Keys that generateJSON.cpp writes; names and agents precede the records."""
    kernels: dict[int, str] = {}
    ranges: dict[int, str] = {}
    for item in Records(path):
        ((place, value),) = item.items()
        key = place.removeprefix(f"{TOP}.").removeprefix("buffer_records.")
        if key == "metadata" and isinstance(value, dict):
            process.label = f" of process {_whole(value, 'pid')}"
        elif key == "agents":
            process.names |= {
                _handle(
                    agent, "id"
                ): f"{agent.get('product_name', 'GPU')} {_whole(agent, 'node_id')}"
                for agent in _objects(value)
            }
        elif key == "kernel_symbols":
            kernels |= {
                _whole(symbol, "kernel_id"): str(
                    symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
                )
                for symbol in _objects(value)
            }
        elif key == "strings" and isinstance(value, dict):
            pairs = _objects(value.get("marker_api"))
            ranges |= {_whole(pair, "key"): str(pair.get("value")) for pair in pairs}
        elif isinstance(value, dict):
            _record(process, key, value, kernels, ranges)


def _record(
    process: RocprofProcess,
    key: str,
    record: Mapping[str, Any],
    kernels: Mapping[int, str],
    ranges: Mapping[int, str],
) -> None:
    times = _whole(record, "start_timestamp"), _whole(record, "end_timestamp")
    number = _whole(mapping(record, "correlation_id"), "internal")
    if key == "kernel_dispatch":
        info = mapping(record, "dispatch_info")
        kernel = _whole(info, "kernel_id")
        # Older versions have no streams, but the hardware's queues.
        on = mapping(record, "stream_id") or mapping(info, "queue_id")
        name = kernels.get(kernel, f"kernel {kernel}")
        process.kernel(_handle(info, "agent_id"), name, *times, _whole(on, "handle"), number)
    elif key == "memory_copy":
        ends = _handle(record, "src_agent_id"), _handle(record, "dst_agent_id")
        process.copy(ends, *times, number)
    elif key == "hip_api":
        process.call(number, *times)
    elif key == "marker_api":
        process.range(ranges.get(number, ""), *times)


def _read_csv(path: Path, process: RocprofProcess) -> None:
    for row in _rows(path):
        gpu, stream = row.get("Agent_Id") or "", "Stream_Id" if "Stream_Id" in row else "Queue_Id"
        name = row.get("Kernel_Name") or "kernel without a name"
        process.names[gpu] = f"GPU {gpu.removeprefix('Agent ')}"
        number = _whole(row, "Correlation_Id")
        process.kernel(gpu, name, *_csv_times(row), _whole(row, stream), number)
    process.label = f" in {path.name}"
    for row in _rows_beside(path, "memory_copy_trace"):
        ends = row.get("Source_Agent_Id") or "", row.get("Destination_Agent_Id") or ""
        process.copy(ends, *_csv_times(row), _whole(row, "Correlation_Id"))
    for row in _rows_beside(path, "hip_api_trace"):
        process.call(_whole(row, "Correlation_Id"), *_csv_times(row))
    for row in _rows_beside(path, "marker_api_trace"):
        process.range(row.get("Function") or "", *_csv_times(row))


def _rows_beside(path: Path, what: str) -> Iterator[dict[str, str]]:
    """The rows of the process's other CSV; empty if it is missing."""
    beside = path.with_name(path.name.replace("kernel_trace", what))
    if beside != path and beside.is_file():
        yield from _rows(beside)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    cuts: list[str] = []
    try:
        yield from csv.DictReader(whole_lines(path, cuts))
    except csv.Error as error:
        raise TraceError(f"{path} is no CSV of rocprofv3: {error}; copy it again") from None
    if cuts:
        raise TraceError(ends_within_line(path, "copy it again"))


def _csv_times(row: Mapping[str, str]) -> tuple[int, int]:
    start_ns, end_ns = (_whole(row, name) for name in _TIMES)
    return start_ns, end_ns


def _objects(values: Any) -> list[dict[str, Any]]:
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []


def _handle(values: Mapping[str, Any], name: str) -> str:
    return str(_whole(mapping(values, name), "handle"))


def _whole(values: Mapping[str, Any], name: str) -> int:
    """A whole number from 0, as JSON or text; -1 if missing."""
    value = values.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and value >= 0 else -1
