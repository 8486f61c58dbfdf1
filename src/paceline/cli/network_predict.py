"""``paceline predict`` and ``plan`` of a network: a layers file or a preset instead of a job."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.model.cluster import Cluster
    from paceline.networks.layer import LayerNetwork
    from paceline.networks.strategy import Strategy

_OPTIONS = (
    *("strategy", "split", "grid", "gradients", "optimizer", "microbatches", "method"),
    "measured",
    *("channels_last", "gradient_precision", "library", "sync_batchnorm"),
)
#: Fields of a strategy that all candidates of a search have, from its job or the options.
_COMMON = (
    *("precision", "channels_last", "gradient_precision", "library", "halo_library"),
    *("sync_batchnorm", "optimizer"),
)


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
        help="packed, 'per tensor', or buckets during the backward pass (default)",
    )
    _add_common(group)
    group.add_argument("--microbatches", metavar="N", type=int, help="segments of a pipeline")
    group.add_argument(
        "--measured",
        metavar="GPUS:RATE",
        help="samples/s that you measured on fewer GPUs with the same batch per GPU (data); "
        "scales it to --gpus",
    )
    group.add_argument("--largest-batch", action="store_true", help="samples per GPU that fit")
    group.add_argument("--method", metavar="NAME", help="paradl: the formulas of its paper")


def add_plan(parser: argparse.ArgumentParser, count: Callable[[str], float]) -> None:
    """Options of a network's search; ``count`` reads a number such as 1.28M."""
    group = parser.add_argument_group("a network", "instead of a job: NET.layers.json, or a preset")
    _add_common(group)
    group.add_argument("--batch-per-gpu", metavar="N", type=int, help="samples of a GPU in a step")
    group.add_argument("--samples", metavar="N", type=count, help="of an epoch: 1.28M")
    group.add_argument("--epochs", metavar="N", type=float, help="to train (default 1)")


def _add_common(group: argparse._ArgumentGroup) -> None:
    """Options that a prediction and a search have."""
    group.add_argument("--optimizer", metavar="NAME", help="sgd, momentum (default) or adam")
    for option, text in (
        ("--channels-last", "images are stored channels last; default: channels first"),
        ("--sync-batchnorm", "batches are normalized over all GPUs that share them"),
    ):
        group.add_argument(option, action="store_const", const=True, help=text)
    group.add_argument(
        "--gradient-precision",
        metavar="NAME",
        help="of gradients on their way: fp32 (default, as DDP), fp16 or bf16 (its hooks)",
    )
    group.add_argument(
        "--library", metavar="NAME", help="nccl (default), or mpi through the hosts' memory"
    )


def is_network(path: Path | None) -> bool:
    """Whether the positional argument names a network: a JSON file, a preset, or a job of one."""
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

    if path.name.lower().replace("_", "-") in PRESETS:
        return True
    from difflib import get_close_matches

    from paceline.errors import ModelError

    near = get_close_matches(path.name.lower(), PRESETS, n=3) or list(PRESETS)[:3]
    raise ModelError(
        f"there is no file {path}, and no network of that name; the nearest are {', '.join(near)}"
    )


def refuse_options(args: argparse.Namespace) -> None:
    """Refuse a network's options for a language model.

    Raises:
        ModelError: one was given.
    """
    from paceline.errors import ModelError

    given = [name for name in _OPTIONS if getattr(args, name, None) is not None]
    if given or getattr(args, "largest_batch", False):
        option = (given or ["largest_batch"])[0].replace("_", "-")
        raise ModelError(f"--{option} is for networks: give a layers file or a preset, not a job")
    if args.precision in ("tf32", "amp"):
        raise ModelError(f"--precision {args.precision} is for networks: give a layers file")


def predict(args: argparse.Namespace) -> int:
    """Predict one strategy and print it."""
    from paceline.errors import ModelError
    from paceline.plan.network_step import predict_network
    from paceline.report import network as report

    fields = _job_of(args)
    network = load(args.job_yaml)
    cluster, calibrated = _machines(args)
    args.precision = _precision(args, fields, cluster)
    if getattr(args, "profile", None) is not None:
        from paceline.networks.layer_profile import load_layer_profile

        calibrated["profile"] = load_layer_profile(args.profile)
    if args.largest_batch:
        return _largest(args, network, cluster, fields)
    strategy = _strategy(args, args.strategy or fields.get("name", "data"), fields=fields)
    if args.method not in (None, "paradl"):
        raise ModelError(f"no method {args.method!r}; paradl, or none for our own model")
    prediction = predict_network(network, strategy, cluster, **calibrated)
    if args.method == "paradl":
        from paceline.plan.network_paradl import paradl_prediction

        prediction = paradl_prediction(prediction)
    lines, mapping = report.prediction_lines(prediction), report.prediction_mapping(prediction)
    if args.measured is not None:
        told, mapping["scaled"] = _scaled(args.measured, network, strategy, cluster)
        lines.append(told)
    return _show(args, lines, mapping)


def _scaled(
    text: str, network: LayerNetwork, strategy: Strategy, cluster: Cluster
) -> tuple[str, dict[str, float]]:
    """The rate that follows from a measured one."""
    from dataclasses import asdict

    from paceline.errors import ModelError
    from paceline.networks.scaling import scaled_rate

    gpus, _, rate = text.partition(":")
    try:
        base_gpus, base_rate = int(gpus), float(rate)
    except ValueError:
        raise ModelError(f"--measured {text!r} is not like 1:2470 (GPUs:samples/s)") from None
    if strategy.name != "data":
        raise ModelError(f"--measured is for the strategy data, not {strategy.name}")
    scaled = scaled_rate(
        base_rate,
        base_gpus,
        strategy.gpus,
        batch_per_gpu=strategy.global_batch / strategy.gpus,
        gradient_bytes=4.0 * sum(layer.parameter_count for layer in network.layers),
        cluster=cluster,
    )
    line = (
        f"from the measured {base_rate:,.4g} samples/s on {base_gpus:,} GPUs: "
        f"{scaled.samples_per_s:,.0f} ({scaled.low:,.0f} to {scaled.high:,.0f}), "
        f"{scaled.efficiency:.1%} of linear"
    )
    return line, asdict(scaled)


def _largest(
    args: argparse.Namespace, network: LayerNetwork, cluster: Cluster, fields: Mapping[str, Any]
) -> int:
    """Samples per GPU that fit, per strategy, and what fills the memory."""
    from paceline.errors import ModelError, PlanError
    from paceline.networks.split_memory import step_memory
    from paceline.networks.strategy import PURE, STRATEGIES
    from paceline.plan.network_step import largest_batch

    gpus, common = _gpus(args), _common(args, fields)
    rows: dict[str, Any] = {}
    for name in [args.strategy] if args.strategy else STRATEGIES:
        split = 0 if name in PURE else (args.split or min(cluster.node.gpus, gpus))
        try:
            strategy = _strategy(args, name, split=split, batch=gpus, fields=common)
            most = largest_batch(network, strategy, cluster)
            full = _strategy(args, name, split=split, batch=most * strategy.replicas, fields=common)
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
    cluster, calibrated = _machines(args)
    if args.gpus is not None and isinstance(args.gpus, int):
        args.gpus = (args.gpus,)
    if args.global_batch is None and args.batch_per_gpu is None:
        args.global_batch = fields.get("global_batch")
    args.precision = _precision(args, fields, cluster)
    if not args.gpus:
        raise PlanError("the number of GPUs is missing; give --gpus 64 or --gpus 1-1024")
    epochs = 1.0 if args.epochs is None else args.epochs
    if not 0 < epochs < math.inf:
        raise PlanError(f"--epochs must be a number above 0, not {epochs:g}")
    result = search_networks(
        network,
        cluster,
        args.gpus,
        batch_per_gpu=args.batch_per_gpu,
        global_batch=args.global_batch,
        options=_common(args, fields),
        **calibrated,
    )
    samples = None if args.samples is None else args.samples * epochs
    lines = report.search_lines(result, samples, args.top)
    return _show(args, lines, report.search_mapping(result, args.top))


def _job_of(args: argparse.Namespace) -> Mapping[str, Any]:
    """Fields of the strategy that a job file has; its other values become the options'."""
    for name in ("overlap_factor", "framework"):
        if getattr(args, name, None) is not None:
            from paceline.errors import ModelError

            option = name.replace("_", "-")
            raise ModelError(f"--{option} is for language models, not for networks")
    if args.job_yaml.suffix not in (".yaml", ".yml"):
        return {}
    from paceline.errors import ModelError
    from paceline.plan.network_job import load_network_job

    if args.gpu is not None or args.cluster is not None:
        raise ModelError(f"--gpu and --cluster contradict {args.job_yaml}; change it there")
    job = load_network_job(args.job_yaml)
    args.job_yaml = job.network
    args.gpus = job.gpus if args.gpus is None else args.gpus
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


def _machines(args: argparse.Namespace) -> tuple[Cluster, dict[str, Any]]:
    """The cluster, with the constants and factors for networks in its file."""
    from paceline.errors import ModelError
    from paceline.networks.calibration_file import load_machine, says_networks
    from paceline.plan.runs import named_cluster

    if (args.gpu is None) == (args.cluster is None):
        raise ModelError("name the hardware: --gpu NAME, or --cluster FILE")
    if args.cluster is None or not says_networks(Path(args.cluster)):
        return named_cluster(args.gpu or args.cluster), {}
    cluster, software, factors = load_machine(Path(args.cluster))
    return cluster, {"software": software, "factors": factors}


def _precision(args: argparse.Namespace, fields: Mapping[str, Any], cluster: Cluster) -> str | None:
    """The option's value, otherwise the job's; fp16 and bf16 are amp on GPUs that have them."""
    from paceline.networks.compute import autocast

    precision = args.precision or fields.get("precision")
    return None if precision is None else autocast(precision, cluster.gpu)


def _common(args: argparse.Namespace, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that all strategies share, from the job's fields and the options."""
    values = {name: fields[name] for name in _COMMON if name in fields}
    options = {name: getattr(args, name, None) for name in _COMMON}
    return values | {name: value for name, value in options.items() if value is not None}


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
        "microbatches": args.microbatches,
        "zero": args.zero,
        "schedule": args.schedule,
        "recompute": None if args.recompute is None else args.recompute != "none",
    }
    common = _common(args, fields or {})
    exchange = "ring" if common.get("library") == "mpi" else "tree"
    values: dict[str, Any] = {"gradients": "buckets", "exchange": exchange, **(fields or {})}
    values |= common | {key: value for key, value in options.items() if value is not None}
    if "global_batch" not in values:
        raise ModelError("the samples of one step are missing; give --global-batch")
    return Strategy(**{**values, "name": name, "gpus": _gpus(args)})


def _gpus(args: argparse.Namespace) -> int:
    """The default is 1; ``Strategy`` refuses a wrong number."""
    return 1 if args.gpus is None else int(args.gpus)


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
