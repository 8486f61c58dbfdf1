"""``calibrate`` and ``predict --runs`` for measured runs of networks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.model.cluster import Cluster
    from paceline.networks.abnormal import Check
    from paceline.networks.calibrate import LeftOut
    from paceline.networks.runs import NetworkRun

_LISTED = 10


def calibrate(args: argparse.Namespace) -> int:
    """Fit a cluster's factors to runs, write its file, print the errors of left-out runs."""
    from paceline.files import check_not_input, check_targets
    from paceline.networks.calibrate import calibrate_networks, left_out_in_turn
    from paceline.networks.calibration_file import save_calibration
    from paceline.networks.runs import read_network_runs

    check_not_input([args.output], [args.runs])
    check_targets([args.output], force=args.force)
    runs = read_network_runs(args.runs).runs
    cluster = _cluster(args.cluster)
    parts = left_out_in_turn(runs, cluster)
    calibration = calibrate_networks(runs, cluster, parts)
    save_calibration(calibration, args.output, force=args.force)
    about: dict[str, Any] = {
        "cluster": cluster.name,
        "runs": sum(part.runs for part in parts["runs"]),
        "accuracy_left_out": {name: _mean(group) for name, group in parts.items() if group},
        "left_out": {
            part.what: {"runs": part.runs, "accuracy": part.accuracy}
            for name in ("networks", "strategies")
            for part in parts[name]
        },
        "spread": calibration.spread,
        "factors": dict(calibration.factors.shared),
        "output": str(args.output),
    }
    if args.json:
        sys.stdout.write(json.dumps(about, indent=1) + "\n")
    else:
        _show_calibration(about, args.cluster is None)
    return 0


def _show_calibration(about: dict[str, Any], assumed: bool) -> None:
    note = "; give --cluster for another" if assumed else ""
    print(f"cluster: {about['cluster']}{note}")
    print(f"normal runs: {about['runs']}")
    for name, value in about["accuracy_left_out"].items():
        print(f"accuracy, {name} left out in turn: {value:.1%}")
    for what, row in about["left_out"].items():
        print(f"  without {what}: {row['accuracy']:.1%} ({row['runs']} runs)")
    print(f"wrote {about['output']}")


def check(args: argparse.Namespace) -> int:
    """Predict each run, and mark the abnormal runs."""
    from paceline.errors import ModelError
    from paceline.files import check_not_input, check_targets, text_writer, write_files
    from paceline.networks.abnormal import check_runs
    from paceline.networks.calibration_file import load_calibration
    from paceline.networks.runs import checked_csv, read_network_runs

    if args.output is not None:
        check_not_input([args.output], [args.runs])
        check_targets([args.output], force=args.force)
    if args.cluster is None or args.gpu is not None:
        raise ModelError(
            "runs of networks are compared with a calibration: give --cluster with the file that "
            "`paceline calibrate` wrote, and no --gpu"
        )
    table = read_network_runs(args.runs, skip_errors=True)
    checks = check_runs(table.runs, load_calibration(Path(args.cluster)))
    added = {run.line: row(item) for run, item in zip(table.runs, checks, strict=True)}
    text = checked_csv(table, added)
    if args.output is not None:
        write_files({args.output: text_writer(text)}, force=args.force)
    if args.json:
        documents = [_document(*pair) for pair in zip(table.runs, checks, strict=True)]
        sys.stdout.write(json.dumps(documents, indent=1) + "\n")
    elif args.output is None:
        sys.stdout.write(text)
    else:
        _show_checks(table.runs, checks)
        print(f"wrote {args.output}")
    for line, problem in list(table.errors.items())[:_LISTED]:
        print(f"line {line} is left out: {problem}", file=sys.stderr)
    return 0


def row(item: Check) -> dict[str, str]:
    """The columns that a checked file adds to its input's."""
    return {
        "predicted_step_time_s": f"{item.predicted_s:.6g}",
        "abnormal": "" if item.abnormal is None else str(int(item.abnormal)),
        "reason": item.reason,
    }


def _document(run: NetworkRun, item: Check) -> dict[str, Any]:
    return {
        "line": run.line,
        "run": run.strategy.describe(),
        "network": run.network.name,
        "measured_s": run.step_s,
        "predicted_s": item.predicted_s,
        "band": item.band,
        "abnormal": item.abnormal,
        "reason": item.reason,
    }


def _show_checks(runs: Sequence[NetworkRun], checks: Sequence[Check]) -> None:
    abnormal = [(run, item) for run, item in zip(runs, checks, strict=True) if item.abnormal]
    abnormal.sort(key=lambda pair: -(pair[1].ratio or 0))
    print(f"{len(abnormal)} of {len(checks)} runs are abnormal")
    for run, item in abnormal[:_LISTED]:
        print(f"  line {run.line}: {run.network.name}, {run.strategy.describe()}: {item.reason}")
    if len(abnormal) > _LISTED:
        print(f"  and {len(abnormal) - _LISTED} more in the file")


def _cluster(requested: str | None) -> Cluster:
    if requested is None:
        from paceline.networks.abci import abci

        return abci()
    from paceline.plan.runs import named_cluster

    return named_cluster(requested)


def _mean(parts: Sequence[LeftOut]) -> float:
    return sum(part.accuracy * part.runs for part in parts) / sum(part.runs for part in parts)
