"""Steps of convolutional networks on ABCI's V100s, beside their measurements.

    python benchmarks/cnn_abci.py ../shared/data/cnn/abci_v100_runs.csv [HELD_BACK.csv]

Accuracy is 1 - |predicted - measured| / measured, not below 0 (ParaDL paper, 5.2). Without a
calibration the constants are those of ``networks/terms.py``, committed before the first evaluation.
With HELD_BACK.csv its rows are predicted and checked by what the first file was calibrated to.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paceline.networks.abci import abci
from paceline.networks.abnormal import check_runs
from paceline.networks.calibrate import (
    accuracy,
    calibrate_networks,
    left_out_in_turn,
    measured_of,
    normal_runs,
    predict_others,
)
from paceline.networks.runs import NetworkRun, read_network_runs

_FEW_GPUS = 64
_WORST = 6


def main(arguments: list[str] | None = None) -> int:
    """Print accuracies as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("held_back", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    runs = read_network_runs(options.runs).runs
    json.dump(evaluate(runs, options.held_back), sys.stdout, indent=1)
    print()
    return 0


def evaluate(runs: tuple[NetworkRun, ...], held_back: Path | None) -> dict[str, Any]:
    """All accuracies of the shared rows, and those of a file that was held back."""
    cluster = abci()
    normal = normal_runs(runs)
    measured = measured_of(normal, cluster)
    parts = left_out_in_turn(runs, cluster)
    calibration = calibrate_networks(runs, cluster, parts)
    few = [i for i, run in enumerate(normal) if run.strategy.gpus <= _FEW_GPUS]
    raw = [accuracy(sum(run.terms.values()), run.step_s) for run in measured]
    result: dict[str, Any] = {
        "uncalibrated": _mean(raw),
        "left_out": {
            group: _mean([value for part in row for value in [part.accuracy] * part.runs])
            for group, row in parts.items()
        },
        "without": {
            part.what: part.accuracy for name in ("networks", "strategies") for part in parts[name]
        },
        "above 64 GPUs": predict_others("above 64 GPUs", measured, few).accuracy,
        "worst left out": [
            {"run": _name(run), "accuracy": part.accuracy}
            for part, run in sorted(
                zip(parts["runs"], normal, strict=True), key=lambda pair: pair[0].accuracy
            )[:_WORST]
        ],
        "shared": _checked(runs, calibration),
    }
    if held_back is not None:
        result["held back"] = _checked(read_network_runs(held_back).runs, calibration)
    return result


def _checked(runs: tuple[NetworkRun, ...], calibration: Any) -> dict[str, Any]:
    checks = list(zip(runs, check_runs(runs, calibration), strict=True))
    normal = [(run, check) for run, check in checks if run.status == "normal"]
    others = [(run, check) for run, check in checks if run.status != "normal"]
    values = [accuracy(check.predicted_s, run.step_s or 0.0) for run, check in normal]
    return {
        "normal": len(normal),
        "accuracy": _mean(values) if values else None,
        "flagged of normal": sum(bool(check.abnormal) for _, check in normal),
        "abnormal": len(others),
        "flagged of abnormal": sum(bool(check.abnormal) for _, check in others),
    }


def _name(run: NetworkRun) -> str:
    return f"{run.network.name}, {run.strategy.describe()}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    raise SystemExit(main())
