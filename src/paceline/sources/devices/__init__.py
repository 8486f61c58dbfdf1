"""Files with the activity of one rank's device, from any tool.

A reader is a module with ``matches(path) -> bool`` (by content) and ``read_devices(path) ->
Devices``. These files cannot make a trace: they have no steps, microbatches or groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.sources import kineto
from paceline.sources.devices import chakra, nsight, rocpd, rocprof, xpu_timer
from paceline.sources.devices.table import Devices
from paceline.sources.kineto.device import read_device


@dataclass(frozen=True)
class DeviceFormat:
    """One format: its name, a label for messages, a test whether a file has it, and its reader."""

    name: str
    label: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Devices]


def _read_profile(path: Path) -> Devices:
    return Devices((read_device(path),))


_PROFILES = DeviceFormat("kineto", "a PyTorch profile", kineto.matches, _read_profile)
#: Formats that cannot make a trace.
TOOLS: tuple[DeviceFormat, ...] = (
    DeviceFormat("nsight", "an export of Nsight Systems", nsight.matches, nsight.read_devices),
    DeviceFormat("rocprof", "a file of rocprofv3", rocprof.matches, rocprof.read_devices),
    DeviceFormat("rocpd", "a database of rocprofv3 (rocpd)", rocpd.matches, rocpd.read_devices),
    DeviceFormat("xpu_timer", "a timeline of xpu_timer", xpu_timer.matches, xpu_timer.read_devices),
    DeviceFormat("chakra", "an execution trace", chakra.matches, chakra.read_devices),
)
FORMATS: tuple[DeviceFormat, ...] = (*TOOLS, _PROFILES)


def read_devices(path: Path) -> Devices:
    """Activity of each device in a file; a file of no known format is read as a PyTorch profile.

    Raises:
        TraceError: it is unreadable, damaged, or has no device.
    """
    tool = next((item for item in TOOLS if item.matches(path)), None)
    if tool is None:
        xpu_timer.refuse_merged(path)
    return (tool or _PROFILES).read(path)
