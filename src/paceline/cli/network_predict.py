"""``paceline predict`` and ``plan`` of a network: a layers file or a preset instead of a job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.model.cluster import Cluster
    from paceline.networks.factors import Factors
    from paceline.networks.layer import LayerNetwork
    from paceline.networks.strategy import Strategy

_OPTIONS = ("strategy", "split", "grid", "gradients", "optimizer", "microbatches", "method")


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Options of a network's prediction."""
    group = parser.add_argument_group(
        "a network",
        "instead of a job: NET.layers.json of `paceline layers`, or resnet50, vgg16, ...",
    )
    group.add_argument("--strategy", metavar="NAME", help="data (default), spatial, data+filter...")
    group.add_argument("--split", metavar="N", type=int, help="GPUs that share one sample")
    group.add_argument("--grid", metavar="AxB", type=_grid, help="parts of each dimension")
    group.add_argument(
        "--gradients",
        metavar="HOW",
        help="packed, 'per tensor', or buckets beside the backward pass (default)",
    )
    group.add_argument("--optimizer", metavar="NAME", help="sgd, momentum (default) or adam")
    group.add_argument("--microbatches", metavar="N", type=int, help="segments of a pipeline")
    group.add_argument("--largest-batch", action="store_true", help="samples per GPU that fit")
    group.add_argument("--method", metavar="NAME", help="paradl: the formulas of its paper")


def add_plan(parser: argparse.ArgumentParser, count: Callable[[str], float]) -> None:
    """Options of a network's search; ``count`` reads a number such as 1.28M."""
    group = parser.add_argument_group("a network", "instead of a job: NET.layers.json, or a preset")
    group.add_argument("--batch-per-gpu", metavar="N", type=int, help="samples of a GPU in a step")
    group.add_argument("--samples", metavar="N", type=count, help="of an epoch: 1.28M")
    group.add_argument("--epochs", metavar="N", type=float, help="to train (default 1)")


def is_network(path: Path | None) -> bool:
    """Whether the positional argument is a network's: a JSON file, a preset, or its job."""
    if path is None:
        return False
    if path.suffix == ".json":
        return True
    from paceline.plan.network_job import is_network_job

    if is_network_job(path):
        return True
    if path.suffix or path.exists():
        return False
    from paceline.networks.presets import PRESETS

    return path.name.lower().replace("_", "-") in PRESETS


def refuse_options(args: argparse.Namespace) -> None:
    """A language model takes none of a network's options.

    Raises:
        ModelError: one was given.
    """
    from paceline.errors import ModelError

    given = [name for name in _OPTIONS if getattr(args, name, None) is not None]
    if given or getattr(args, "largest_batch", False):
        option = (given or ["largest_batch"])[0].replace("_", "-")
        raise ModelError(f"--{option} is for networks: give a layers file or a preset, not a job")


def predict(args: argparse.Namespace) -> int:
    """Predict one strategy and print it."""
    from paceline.errors import ModelError
    from paceline.plan.network_step import predict_network
    from paceline.report import network as report

    fields = _job_of(args)
    network = load(args.job_yaml)
    cluster, factors = _machines(args)
    if args.largest_batch:
        return _largest(args, network, cluster)
    strategy = _strategy(args, args.strategy or fields.get("name", "data"), fields=fields)
    if args.method not in (None, "paradl"):
        raise ModelError(f"no method {args.method!r}; paradl, or none for our own model")
    precision = args.precision or "fp32"
    prediction = predict_network(network, strategy, cluster, factors=factors, precision=precision)
    if args.method == "paradl":
        from paceline.plan.network_paradl import paradl_prediction

        prediction = paradl_prediction(prediction, precision)
    lines = report.prediction_lines(prediction)
    return _show(args, lines, report.prediction_mapping(prediction))


def _largest(args: argparse.Namespace, network: LayerNetwork, cluster: Cluster) -> int:
    """Samples per GPU that fit, per strategy, and what fills the memory."""
    from paceline.errors import ModelError, PlanError
    from paceline.networks.strategy import PURE, STRATEGIES
    from paceline.plan.network_step import largest_batch, step_memory

    gpus = args.gpus or 1
    rows: dict[str, Any] = {}
    for name in [args.strategy] if args.strategy else STRATEGIES:
        split = 0 if name in PURE else (args.split or min(cluster.node.gpus, gpus))
        try:
            strategy = _strategy(args, name, split=split, batch=gpus)
            most = largest_batch(network, strategy, cluster)
            full = _strategy(args, name, split=split, batch=most * strategy.replicas)
            memory = step_memory(network, full)
            filled = max(memory, key=lambda part: memory[part])
            rows[name] = {"samples_per_gpu": most / strategy.split, "filled_by": filled}
        except (ModelError, PlanError) as error:
            rows[name] = {"samples_per_gpu": 0, "why": str(error)}
    lines = [
        f"{name}: {row['why']}"
        if "why" in row
        else f"{name}: {row['samples_per_gpu']:g} samples per GPU, most of it {row['filled_by']}"
        for name, row in rows.items()
    ]
    return _show(args, lines, rows)


def plan(args: argparse.Namespace) -> int:
    """Search all strategies and print the best."""
    from paceline.errors import PlanError
    from paceline.plan.network_search import search_networks
    from paceline.report import network as report

    fields = _job_of(args)
    network = load(args.job_yaml)
    cluster, factors = _machines(args)
    if args.gpus is not None and isinstance(args.gpus, int):
        args.gpus = (args.gpus,)
    if args.global_batch is None and args.batch_per_gpu is None:
        args.global_batch = fields.get("global_batch")
    if not args.gpus:
        raise PlanError("the number of GPUs is missing; give --gpus 64 or --gpus 1-1024")
    result = search_networks(
        network,
        cluster,
        args.gpus,
        batch_per_gpu=args.batch_per_gpu,
        global_batch=args.global_batch,
        factors=factors,
        precision=args.precision or "fp32",
    )
    samples = None if args.samples is None else args.samples * (args.epochs or 1)
    lines = report.search_lines(result, samples, args.top)
    return _show(args, lines, report.search_mapping(result, args.top))


def _job_of(args: argparse.Namespace) -> Mapping[str, Any]:
    """Fields of the strategy that a job file has; its other values become the options'."""
    if args.job_yaml.suffix not in (".yaml", ".yml"):
        return {}
    from paceline.errors import ModelError
    from paceline.plan.network_job import load_network_job

    if args.gpu is not None or args.cluster is not None:
        raise ModelError(f"--gpu and --cluster contradict {args.job_yaml}; change it there")
    job = load_network_job(args.job_yaml)
    args.job_yaml, args.gpus = job.network, args.gpus or job.gpus
    args.gpu, args.cluster = None, job.cluster
    return job.strategy


def load(path: Path) -> LayerNetwork:
    """The layers file, or the preset of that name."""
    from paceline.errors import ModelError
    from paceline.networks.layers_json import read_layers
    from paceline.networks.presets import network_preset

    if path.suffix != ".json":
        return network_preset(path.name)
    try:
        return read_layers(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _machines(args: argparse.Namespace) -> tuple[Cluster, Factors | None]:
    """The cluster, and its factors where the file has a calibration of networks."""
    from paceline.errors import ModelError
    from paceline.networks.calibration_file import has_calibration, load_calibration
    from paceline.plan.runs import named_cluster

    if (args.gpu is None) == (args.cluster is None):
        raise ModelError("say on what: --gpu NAME, or --cluster FILE")
    name = args.gpu or args.cluster
    if args.cluster is not None and has_calibration(Path(name)):
        calibration = load_calibration(Path(name))
        return calibration.cluster, calibration.factors
    return named_cluster(name), None


def _strategy(
    args: argparse.Namespace,
    name: str,
    *,
    split: int | None = None,
    batch: int | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Strategy:
    """From the job's fields and the options; NCCL has had exchanges by trees since 2.4."""
    from paceline.errors import ModelError
    from paceline.networks.strategy import Strategy

    options = {
        "global_batch": batch if batch is not None else args.global_batch,
        "split": args.split if split is None else split,
        "grid": args.grid,
        "gradients": args.gradients,
        "optimizer": args.optimizer,
        "microbatches": args.microbatches,
        "zero": args.zero,
        "schedule": args.schedule,
        "recompute": None if args.recompute is None else args.recompute != "none",
    }
    values: dict[str, Any] = {"gradients": "buckets", "exchange": "tree", **(fields or {})}
    values |= {key: value for key, value in options.items() if value is not None}
    if "global_batch" not in values:
        raise ModelError("the samples of one step are missing; give --global-batch")
    return Strategy(**{**values, "name": name, "gpus": args.gpus or 1})


def _grid(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no grid such as 2x2") from None


def _show(args: argparse.Namespace, lines: list[str], document: Any) -> int:
    if args.json:
        from paceline.report.result_json import lines_of_json

        sys.stdout.write(lines_of_json(document))
    else:
        print("\n".join(lines))
    return 0
