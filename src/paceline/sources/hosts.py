"""Host and GPU of each rank, from a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError

COLUMNS = ("rank", "host", "gpu")


def read_hosts(path: Path) -> dict[int, tuple[str, str]]:
    """Rank -> (host, gpu) from a CSV file with the columns rank, host and, optionally, gpu.

    Raises:
        TraceError: the file is missing or lacks a column, or a rank is no number or is there twice.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in rows.fieldnames or ()]
            missing = [name for name in COLUMNS[:2] if name not in names]
            if missing:
                raise TraceError(
                    f"{path} lacks the column {' and '.join(missing)}; it has to start with a line "
                    f"{','.join(COLUMNS)}"
                )
            rows.fieldnames = names
            return _hosts(rows, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"the hosts file {path} cannot be read: {reason}") from None


def _hosts(rows: csv.DictReader[str], path: Path) -> dict[int, tuple[str, str]]:
    hosts: dict[int, tuple[str, str]] = {}
    for row in rows:
        text = (row["rank"] or "").strip()
        if not text.isdecimal() or len(text) > 9:
            raise TraceError(f"{path}, line {rows.line_num}: rank {text[:40]!r} is no number")
        if int(text) in hosts:
            raise TraceError(f"{path}, line {rows.line_num}: rank {text} is there twice")
        hosts[int(text)] = ((row["host"] or "").strip(), (row.get("gpu") or "").strip())
    return hosts


def hosts_of_workers(
    hosts: Mapping[int, tuple[str, str]], rank: npt.NDArray[np.int64]
) -> dict[tuple[int, int], tuple[str, str]]:
    """(dp, pp) -> (host, gpu) of each worker whose rank the file names.

    Args:
        hosts: rank -> (host, gpu).
        rank: [dp, pp] the rank recorded for each worker.
    """
    return {
        (int(dp), int(pp)): hosts[int(number)]
        for (dp, pp), number in np.ndenumerate(rank)
        if int(number) in hosts
    }
