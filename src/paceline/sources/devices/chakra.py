"""Chakra's execution traces -> the activity of one rank's device, if they have times.

Format: mlcommons/chakra (commit 21585d8). ``chakra_trace_link`` joins PyTorch's execution trace and
a Kineto profile into JSON, ``nodes``. Nodes of the device have ``cat``, ``ts``, ``inclusive_dur``
in microseconds and ``stream`` (``trace_linker.py``). PyTorch's execution trace alone does not tell
when a node began. Neither do the ``.et`` files of ``chakra_converter``: ``pytorch_converter.py``
sets only ``duration_micros``. So these two are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.devices.nsight import STEP_NAME
from paceline.sources.devices.protobuf import fields
from paceline.sources.devices.table import MAX_NS, Devices, DeviceTable
from paceline.sources.fields import number, optional_whole
from paceline.sources.json_stream import JsonStream, head
from paceline.sources.kineto.device import Work, work_of

#: Begin of the JSON of ``ExecutionTraceObserver``; the linker changes the indentation.
_START = re.compile(r'\s*\{\s*"schema"\s*:\s*"\d[^"]*"\s*,\s*"pid"\s*:\s*\d+')
#: Field of ``GlobalMetadata`` with its attributes, and of ``AttributeProto`` with the name.
_ATTRIBUTE, _NAME = 2, 1
_NAMES = (b"schema", b"pid", b"time")

_NOTE = (
    "a linked trace of Chakra has neither launches nor the rank: causes of idle time are unknown, "
    "and steps are annotations of the host"
)
_PROFILE = "pass the PyTorch profile of the same run to paceline ranks"


def matches(path: Path) -> bool:
    """Whether the file is an execution trace of PyTorch or Chakra, as JSON or protobuf."""
    return bool(_START.match(head(path, 1 << 12))) or _is_converted(path)


def _is_converted(path: Path) -> bool:
    """Whether it begins with a length and ``GlobalMetadata``, as the converter writes them."""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 12)
        size = start[0] if start else 0
        first = start[1 : 1 + size] if size < 0x80 else start[2 : 2 + (size & 0x7F | start[1] << 7)]
        attributes = [content for field, _, content in fields(first) if field == _ATTRIBUTE]
        names = [text for one in attributes for field, _, text in fields(one) if field == _NAME]
    except (OSError, ValueError, IndexError):
        return False
    return any(name in _NAMES for name in names)


def read_devices(path: Path) -> Devices:
    """Read a linked trace; about 36 bytes for each node of the device stay in memory.

    Raises:
        TraceError: it is damaged, or does not say when its nodes began.
    """
    if not _START.match(head(path, 1 << 12)):
        raise TraceError(
            f"{path} is an execution trace that Chakra converted: it says how long nodes took but "
            f"not when they began; pass the trace that chakra_trace_link wrote, or {_PROFILE}"
        )
    table, steps = DeviceTable(path), []
    works: dict[str, Work] = {}
    for node in JsonStream(path, "nodes"):
        name = str(node.get("name", ""))
        if node.get("cat") is not None:
            if name not in works:
                works[name] = work_of(name)
            start_ns, end_ns = _times_ns(node, f"{path}: {name[:80]}")
            stream = optional_whole(node.get("stream"))
            table.add(name, works[name], start_ns, end_ns, -1 if stream is None else stream, -1)
        elif "ts" in node and (match := STEP_NAME.fullmatch(name)):
            steps.append((*_times_ns(node, f"{path}: {name}"), int(match[1])))
    if not len(table):
        raise TraceError(
            f"{path} is an execution trace without times of a device: it says what ran, not when; "
            f"link it with chakra_trace_link, or {_PROFILE}"
        )
    return Devices((table.finish("", steps),), (_NOTE,))


def _times_ns(node: Mapping[str, Any], where: str) -> tuple[int, int]:
    start_us = number(node, "ts", where)
    lasted_us = number(node, "inclusive_dur", where)
    if not (0 <= start_us * 1000 < MAX_NS and 0 <= lasted_us * 1000 < MAX_NS):
        raise TraceError(f"{where} is at {start_us} µs for {lasted_us} µs; is the file damaged?")
    whole_us = int(start_us)  # microseconds since 1970 fit a float, nanoseconds do not
    start_ns = whole_us * 1000 + round((start_us - whole_us) * 1000)
    return start_ns, start_ns + round(lasted_us * 1000)
