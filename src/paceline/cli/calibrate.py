"""``paceline calibrate``: fit a cluster's efficiencies to measured step times."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli import trace_input
from paceline.cli.commands import HELP
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.model.cluster import Cluster
    from paceline.plan.runs import Run

EPILOG = """\
examples:
  paceline calibrate runs.csv -o mycluster.yaml
  paceline calibrate runs.csv --cluster mycluster.yaml --folds 5 -o better.yaml
  paceline calibrate runs.csv -o clusters/    # one file for each GPU that the runs name

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
        help=HELP["calibrate"],
        description="Fit the share of the datasheet's speed that your jobs reach, for predict and "
        "plan.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUNS", type=file_name, help="measured runs (CSV)")
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="the cluster to begin from: a preset or a file (default: the preset of the runs' gpu)",
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=5,
        metavar="K",
        help="cross-validate: leave out each of K parts of the runs in turn and report the error "
        "there; 0: do not (default 5)",
    )
    trace_input.add_output(
        parser, "the cluster file (.yaml), or a folder for one file per GPU type of the runs"
    )
    parser.add_argument("--json", action="store_true", help="print the fit as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, write, print."""
    from paceline.networks.runs import is_network_runs

    if is_network_runs(args.runs):
        from paceline.cli import network_runs

        return network_runs.calibrate(args)
    from paceline.errors import ModelError
    from paceline.files import check_not_input, check_targets, make_folder
    from paceline.plan.calibrate import MIN_RUNS
    from paceline.plan.fit_quality import enough_runs
    from paceline.plan.runs import read_runs, runs_cluster

    if args.folds < 0 or args.folds == 1:
        raise ModelError(f"--folds must be 0 or at least 2, not {args.folds}")
    if args.output.suffix and not args.output.is_dir():
        check_not_input([args.output], [args.runs])
        check_targets([args.output], force=args.force)
        runs = read_runs(args.runs, need_times=True).runs
        about = _calibrated(args, runs, runs_cluster(runs, args.cluster), args.output)
        if args.json:
            sys.stdout.write(json.dumps(about, indent=1) + "\n")
        return 0
    if args.cluster is not None:
        raise ModelError(
            "--cluster names one cluster; a folder (-o) gets one file per GPU type of the runs"
        )
    runs = read_runs(args.runs, need_times=True).runs
    try:
        enough, few = enough_runs(runs)
    except ModelError as error:
        raise ModelError(f"{args.runs}: {error}") from None
    paths = {name: args.output / f"{name}.yaml" for name in enough}
    check_targets(list(paths.values()), force=args.force)
    make_folder(args.output)
    abouts = [
        _calibrated(args, of_gpu, runs_cluster((), name), paths[name])
        for name, of_gpu in enough.items()
    ]
    if args.json:
        sys.stdout.write(json.dumps({"clusters": abouts, "too_few_runs": few}, indent=1) + "\n")
    for name, n in sorted(few.items()):
        print(f"note: {name} has {n} runs, fewer than {MIN_RUNS}; no file", file=sys.stderr)
    return 0


def _calibrated(
    args: argparse.Namespace, runs: Sequence[Run], cluster: Cluster, output: Path
) -> dict[str, Any]:
    """Fit one cluster, write its file, print it; returns the fields for ``--json``."""
    from paceline.model.cluster_yaml import save_cluster
    from paceline.plan.fit_quality import fit_quality

    quality = fit_quality(runs, cluster, args.folds, ProgressBar)
    save_cluster(quality.fit.cluster, output, force=args.force)
    about = {"cluster": cluster.name, **quality.to_mapping(), "output": str(output)}
    if not args.json:
        _show(about, cluster.efficiency)
    if quality.ranking_warning:
        print(f"warning: {output} {quality.ranking_warning}", file=sys.stderr)
    return about


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
    for name, found in about["ranking"].items():
        if found is not None:
            console.print(
                f"plans {name.replace('_', ' ')}: {found['right']} of {found['pairs']} pairs in "
                f"the right order; the fastest predicted takes {found['regret']:.1%} more than "
                f"the fastest (worst {found['worst_regret']:.1%})"
            )
    console.print(f"wrote {about['output']}")
