"""Telemetry of GPUs from files, recognised by their content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.telemetry import nvidia_smi, prometheus
from paceline.sources.telemetry.table import Telemetry, joined

#: Number of characters that show a file's format.
_HEAD = 4096
_NO_TIMES = {
    "#Entity": "dcgmi dmon",
    "# gpu": "nvidia-smi dmon",
}


def load_telemetry(paths: Sequence[Path]) -> Telemetry:
    """Samples of all files: nvidia-smi's CSV, Prometheus' range JSON, an exporter's page.

    Raises:
        TraceError: there is no file, or one cannot be read or is of no known format.
    """
    if not paths:
        raise TraceError("give files of nvidia-smi or Prometheus")
    return joined(_load(path) for path in paths)


def _load(path: Path) -> Telemetry:
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.read(_HEAD)
        if prometheus.matches(head):
            return prometheus.load(path)
        if nvidia_smi.matches(head):
            return nvidia_smi.load(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path} cannot be read: {reason}") from None
    for begin, tool in _NO_TIMES.items():
        if head.startswith(begin):
            raise TraceError(f"{path} is of {tool}, which writes no times: use nvidia-smi or DCGM")
    raise TraceError(
        f"{path} is no telemetry: known are the CSV of nvidia-smi --query-gpu=timestamp,index,... "
        "--format=csv, and fields of DCGM or xpu_timer in Prometheus' range JSON or on an "
        "exporter's page"
    )
