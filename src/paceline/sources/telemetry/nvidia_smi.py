"""The CSV of ``nvidia-smi --query-gpu=... --format=csv``, repeated by ``-l`` or ``-lms``.

The header has the full names of the fields with units: "clocks.current.sm [MHz]". Names and values
are those of drivers 418 to 580 (``nvidia-smi --help-query-gpu``). A field that a GPU lacks has the
value "[N/A]" or "[Not Supported]".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.json_stream import whole_lines
from paceline.sources.telemetry.table import REASON_BITS, Gpu, Telemetry, telemetry_of

#: Field of nvidia-smi -> metric.
FIELDS = {
    "utilization.gpu": "utilization",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w",
    "enforced.power.limit": "power_limit_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "temperature.memory": "memory_temperature_c",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.gen.gpucurrent": "pcie_generation",
    "pcie.link.width.current": "pcie_width",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
}
_REASONS = ("clocks_event_reasons.", "clocks_throttle_reasons.")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_NUMBER, _MASK = re.compile(r"-?\d+(\.\d+)?"), re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_PERCENT = 100.0
LOCAL_TIME = "nvidia-smi writes the host's local time without its zone; it is read as UTC"


def matches(head: str) -> bool:
    """Whether a file begins as nvidia-smi's CSV does."""
    names = [_UNIT.sub("", name.strip()) for name in head.partition("\n")[0].split(",")]
    return any(name in FIELDS or name.startswith(_REASONS) for name in names)


def load(path: Path) -> Telemetry:
    """Read a file. Its name without the ending is the name of the host.

    Raises:
        TraceError: it lacks the time or the GPU's number, or a line has other columns.
    """
    notes = [LOCAL_TIME]
    rows = csv.reader(whole_lines(path, notes), skipinitialspace=True)
    try:
        names = [_UNIT.sub("", name.strip()) for name in next(rows, [])]
        missing = [name for name in ("timestamp", "index") if name not in names]
        if missing:
            raise TraceError(
                f"{path} lacks {' and '.join(missing)}: ask nvidia-smi for "
                "--query-gpu=timestamp,index,clocks.sm,... --format=csv"
            )
        return telemetry_of(_rows(path, names, rows), notes)
    except csv.Error as error:
        raise TraceError(f"{path} is no CSV of nvidia-smi: {error}; copy it again") from None


def _rows(
    path: Path, names: Sequence[str], rows: Iterator[list[str]]
) -> Iterator[tuple[Gpu, str, float, float]]:
    at, index = names.index("timestamp"), names.index("index")
    for number, row in enumerate(rows, start=2):
        if not "".join(row).strip():
            continue
        if len(row) != len(names):
            raise TraceError(f"{path}, line {number}: {len(row)} columns, the header {len(names)}")
        if row[at].strip() in ("", "timestamp"):  # a second run repeats the header
            continue
        time_s = _seconds(row[at], path, number)
        gpu = Gpu(path.stem, row[index].strip())
        for name, text in zip(names, row, strict=True):
            for metric, value in _values(name, text.strip()):
                yield gpu, metric, time_s, value


def _values(name: str, text: str) -> Iterator[tuple[str, float]]:
    if name.startswith(_REASONS):
        reason = name.partition(".")[2]
        if reason == "active" and _MASK.fullmatch(text):
            mask = int(text, 16)
            yield from ((name, float(bool(mask & bit))) for bit, name in REASON_BITS.items())
        elif reason in REASON_BITS.values() and text in ("Active", "Not Active"):
            yield reason, float(text == "Active")
    elif name in FIELDS and (number := _NUMBER.match(text)):
        scale = _PERCENT if name.startswith("utilization") else 1.0
        yield FIELDS[name], float(number[0]) / scale


def _seconds(text: str, path: Path, number: int) -> float:
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise TraceError(f"{path}, line {number}: {text.strip()[:40]!r} is no time of nvidia-smi")
