"""``paceline optimal``: the largest compute-optimal model that some GPUs can train in time."""

from __future__ import annotations

import argparse
import sys

from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP
from paceline.cli.plan import add_space, space_options
from paceline.cli.progress import ProgressBar

EXAMPLES = """\
examples:
  paceline optimal --gpus 3360 --gpu a100-80g --days 30
  paceline optimal --gpus 512 --cluster mycluster.yaml --days 14 --seq-len 4096 --json
  paceline optimal --gpus 3360 --gpu a100-80g --days 30 --no-flash --recompute full \\
    --max-vpp 1 --sequence-parallel no --micro-batch 1 --zero 1 --global-batch 1680
      (software as of vTrain's study)
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "optimal",
        help=HELP["optimal"],
        description="The compute-optimal size (Chinchilla) for some GPUs and days. It is computed "
        "at the GPUs' peak, as usual, and with the best plan of each size.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpus", metavar="N", type=int, required=True, help="how many")
    parser.add_argument(
        "--days", metavar="D", type=float, required=True, help="length of the training in days"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="a preset (`paceline presets`): a100-80g, h100, ..."
    )
    parser.add_argument("--cluster", metavar="FILE", help="a cluster file, instead of --gpu")
    parser.add_argument(
        "--law",
        choices=("vtrain", "hoffmann", "ratio"),
        help="use only this scaling law: the constants of vTrain, of Hoffmann et al., or 20 "
        "tokens per parameter (default: all)",
    )
    parser.add_argument(
        "--tokens-per-parameter",
        metavar="N",
        type=float,
        default=20.0,
        help="tokens per parameter of candidates (default 20)",
    )
    parser.add_argument(
        "--grid",
        metavar="HxL,...",
        type=_grid,
        help="candidates: hidden sizes and layers, 12288x80,... (default: vTrain's Table III where "
        "it covers the size, otherwise models of usual shape)",
    )
    parser.add_argument("--seq-len", metavar="N", type=int, default=2048, help="(default 2048)")
    parser.add_argument("--vocab", metavar="N", type=int, default=50257, help="(default 50257)")
    parser.add_argument(
        "--global-batch", metavar="N", type=int, help="samples of a step (default: 3.9 M tokens)"
    )
    add_space(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search for every candidate, print."""
    from paceline.errors import ModelError
    from paceline.model.cluster_presets import cluster_preset
    from paceline.model.cluster_yaml import load_cluster
    from paceline.plan.optimal import optimal
    from paceline.report import optimal as report

    if (args.gpu is None) == (args.cluster is None):
        raise ModelError("give either --gpu a100-80g or --cluster FILE")
    cluster = cluster_preset(args.gpu) if args.gpu else load_cluster(args.cluster)
    with ProgressBar("searching") as progress:
        result = optimal(
            cluster,
            args.gpus,
            args.days,
            grid=args.grid,
            seq_len=args.seq_len,
            vocab=args.vocab,
            global_batch=args.global_batch,
            tokens_per_parameter=args.tokens_per_parameter,
            progress=progress,
            **space_options(args),
        )
    if args.json:
        from paceline.report.result_json import lines_of_json

        sys.stdout.write(lines_of_json(report.to_mapping(result, args.law)))
        return 0
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    print_lines(report.lines(result, console.width, args.law), console)
    return 0


def _grid(text: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [shape_text.lower().split("x") for shape_text in text.split(",")]
        grid = tuple((int(hidden), int(layers)) for hidden, layers in pairs)
    except ValueError:
        grid = ()
    if not grid or min(min(shape) for shape in grid) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 12288x80,10240x60")
    return grid
