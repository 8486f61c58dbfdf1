"""Files of the document: ``result.json``, and the workers' table as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from paceline.results.document import JobReport


def dumps(report: JobReport) -> str:
    """The document as JSON with one line per key, for people and ``diff``."""
    return lines_of_json(report.to_mapping())


def lines_of_json(mapping: Mapping[str, Any]) -> str:
    """One line of JSON per key."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in mapping.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def json_writer(report: JobReport) -> Callable[[BinaryIO], None]:
    """The writer of ``result.json``."""
    text = dumps(report)
    return lambda file: _write(file, text)


def worker_csv_writer(report: JobReport) -> Callable[[BinaryIO], None]:
    """The writer of ``by_worker.csv``: the columns dp, pp, slowdown; the slowest worker first.

    If peers are apart, the column peer follows pp.
    """
    n_dp = report.by_worker.shape[1]
    flat = report.by_worker.ravel()
    worst = np.argsort(-np.round(flat, 12), kind="stable")  # ties by (pp, dp), as for M_W
    pp, replica = np.divmod(worst, n_dp)
    peers = report.job.peers
    places = [replica // peers, pp] + ([replica % peers] if peers > 1 else [])
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("dp", "pp", *(["peer"] if peers > 1 else []), "slowdown"))
    rows.writerows(zip(*(column.tolist() for column in (*places, flat[worst])), strict=True))
    return lambda file: _write(file, text.getvalue())


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
