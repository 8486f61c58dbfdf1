"""``paceline calibrate``: fit a cluster's efficiencies to measured step times."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from paceline.cli import trace_input
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import file_name

EPILOG = """\
examples:
  paceline calibrate runs.csv -o mycluster.yaml
  paceline calibrate runs.csv --cluster mycluster.yaml --folds 5 -o better.yaml

runs.csv: a row per run with gpus, global_batch, micro_batch, hidden, heads, layers, seq_len, tp,
dp, pp, step_time_s; optionally vpp, cp, ep, recompute, sequence_parallel, precision, zero, vocab,
kv_heads, ffn, gpu, model. Eight runs are the least; vary tp, pp, dp and the micro batch.
Needs SciPy: pip install 'paceline[calibrate]'
Runs of networks have model, strategy, gpus, global_batch, step_time_s; see docs/strategies.md.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit a cluster's efficiencies to your own measured step times",
        description="Fit the shares of the datasheet that your jobs reach, for predict and plan.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUNS", type=file_name, help="measured runs (CSV)")
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="the cluster to begin from: a preset or a file (default: that of the runs' gpu)",
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=5,
        metavar="K",
        help="also report the error on runs left out, K parts in turn; 0: do not (default 5)",
    )
    trace_input.add_output(parser, "the cluster file")
    parser.add_argument("--json", action="store_true", help="print the fit as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, write, print."""
    from paceline.networks.runs import is_network_runs

    if is_network_runs(args.runs):
        from paceline.cli import network_runs

        return network_runs.calibrate(args)
    from paceline.errors import ModelError
    from paceline.files import check_not_input, check_targets
    from paceline.model.cluster_yaml import save_cluster
    from paceline.plan.calibrate import calibrate, cross_validate, folds
    from paceline.plan.runs import error_table, read_runs, runs_cluster

    check_not_input([args.output], [args.runs])
    check_targets([args.output], force=args.force)
    if args.folds < 0 or args.folds == 1:
        raise ModelError(f"--folds must be 0 or at least 2, not {args.folds}")
    runs = read_runs(args.runs, need_times=True).runs
    cluster = runs_cluster(runs, args.cluster)
    jobs = [(run.llm, run.plan) for run in runs]
    measured = [float(run.measured_s or 0.0) for run in runs]
    with ProgressBar("fitting") as progress:
        fit = calibrate(jobs, measured, cluster, progress=progress)
    left_out = None
    if args.folds and len(runs) >= 2 * args.folds:
        with ProgressBar("leaving out runs in turn") as progress:
            predicted = cross_validate(
                jobs, measured, cluster, folds(len(runs), args.folds), progress=progress
            )
        left_out = error_table(measured, predicted)
    save_cluster(fit.cluster, args.output, force=args.force)
    calibration = fit.calibration
    about = {
        "runs": len(runs),
        "error": error_table(measured, fit.predicted_s),
        "error_left_out": left_out,
        "constants": {
            name: getattr(fit.cluster.efficiency, name) for name in calibration.constants
        },
        "relative_standard_error": dict(calibration.constants),
        "not_determined": list(calibration.fixed),
        "output": str(args.output),
    }
    if args.json:
        sys.stdout.write(json.dumps(about, indent=1) + "\n")
    else:
        _show(about, cluster.efficiency)
    return 0


def _show(about: dict[str, Any], before: object) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.report.prediction import error_text

    console = Console()
    table = Table(title=f"{about['runs']} runs", title_justify="left")
    for column in ("constant", "before", "fitted", "±"):
        table.add_column(column, justify="left" if column == "constant" else "right")
    for name, value in about["constants"].items():
        error = about["relative_standard_error"][name]
        table.add_row(name, f"{getattr(before, name):.3g}", f"{value:.3g}", f"{error:.0%}")
    console.print(table)
    console.print(f"not determined by these runs, left as they were: {about['not_determined']}")
    for name, errors in (("fitted", about["error"]), ("left out", about["error_left_out"])):
        if errors is not None:
            console.print(f"runs {name}: {error_text(errors)}")
    console.print(f"wrote {about['output']}")
