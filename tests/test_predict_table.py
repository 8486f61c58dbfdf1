"""The benchmark of one table's rows: every row is in the list, with numbers or a reason."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import requires

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "predict.py"
KEYS = ["id", "predicted", "low", "high", "measured", "error"]


@pytest.mark.parametrize(
    ("table", "file", "rows", "first", "error"),
    [
        ("mlperf", "mlperf_llm_runs.csv", 124, "v3.0/NVIDIA/dgxh100_n64_nemo/gpt3", 0.085),
        ("published", "published_2026_part.csv", 113, 0, 0.115),
        ("memory", "memory_peaks.csv", 20, "tt-8b-8gpu-0", 0.035),
    ],
)
def test_every_row_has_numbers_or_a_reason(table, file, rows, first, error):
    """``error``: the mean that docs/accuracy.md tells of the whole table, and a little more."""
    path = requires.data("llm", file)
    command = [sys.executable, SCRIPT, "--table", table, path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert len(result) == rows
    assert result[0]["id"] == first
    for row in result:
        assert list(row) == KEYS
        assert row["measured"] > 0
        if row["error"] is None:
            assert 0 < row["low"] < row["predicted"] * 1.0001 < row["high"] * 1.0001
        else:
            assert row["predicted"] is None
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in result if r["error"] is None]
    assert 0 < sum(errors) / len(errors) < error
