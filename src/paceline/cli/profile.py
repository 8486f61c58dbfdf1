"""``paceline profile``: time the operators that predictions need, on the GPU at hand."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from paceline.cli import trace_input
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.model.llm import LLM
    from paceline.model.plan import Precision
    from paceline.model.profile import OperatorProfile
    from paceline.model.profiler import Effort, Shapes

    _Shapes = tuple[list[int], list[int], list[int], list[int], Precision]

EXAMPLES = """\
examples:
  paceline profile -o h100.profile.json
  paceline profile -o h100.profile.json --model llama3.1-70b --tp 4,8 --micro-batch 1,2
  paceline profile --layers resnet50.layers.json --batch 64 --precision amp -o v100.profile.json
  paceline profile -o cpu.profile.json --device cpu --precision fp32 --hidden 256,512 --seq-len 128
"""

#: Device -> the default profile unless the user says otherwise: (hidden, tp, micro batch, sequence,
#: precision). The shapes for a CPU are small, since a CPU trains only small models.
DEFAULTS: dict[str, _Shapes] = {
    "cuda": ([1024, 2048, 4096, 8192, 12288], [1, 2, 4, 8], [1, 2, 4], [2048], "bf16"),
    "cpu": ([256, 512, 768], [1], [1, 2, 4], [128, 256], "fp32"),
}
QUICK_DEFAULTS: dict[str, _Shapes] = {
    "cuda": ([1024, 4096, 12288], [1, 8], [1], [2048], "bf16"),
    "cpu": ([128, 256], [1], [1, 2], [64], "fp32"),
}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "profile",
        help=HELP["profile"],
        description="Time the operators that predictions need on the GPU (or CPU) of this "
        "machine, once per shape. Write their seconds to a file for `paceline predict --profile`. "
        "Needs PyTorch: pip install 'paceline[profile]'.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_output(parser, "the JSON file to write")
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="device to time (default auto: a GPU if there is one)",
    )
    parser.add_argument(
        "--precision",
        choices=("bf16", "fp16", "fp32", "tf32", "amp"),
        help="default bf16; on a CPU fp32; with --layers fp32 (default), tf32 or amp",
    )
    parser.add_argument(
        "--no-flash",
        action="store_true",
        help="time attention as products and softmax, not fused",
    )
    _add_layers(parser)
    _add_shapes(parser)
    parser.add_argument(
        "--quick", action="store_true", help="fewer shapes and repeats: a minute or two"
    )
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=float,
        help="seconds after which measuring stops (default 900; with --quick 120)",
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads of a CPU (default: all)")
    parser.set_defaults(run=run)


def _add_layers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a network", "Its operators, in place of a language model's.")
    group.add_argument(
        "--layers",
        metavar="NET",
        type=trace_input.file_name,
        help="NET.layers.json of `paceline layers`, or a preset: times its distinct operators",
    )
    group.add_argument("--batch", metavar="N", type=int, help="samples (default 32; on a CPU 4)")
    group.add_argument("--channels-last", action="store_true", help="layout of images")


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "shapes", "Lists such as 1024,4096; predictions interpolate between them."
    )
    group.add_argument(
        "--model", nargs="+", metavar="NAME", help="models to profile, in place of --hidden"
    )
    for flag, text in (
        ("--hidden", "widths of GPTs to profile"),
        ("--tp", "tensor-parallel ranks"),
        ("--micro-batch", "samples of a microbatch"),
        ("--seq-len", "tokens of a sample (default 2048; with --model the model's)"),
    ):
        group.add_argument(flag, metavar="N,...", type=parse_numbers, help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print a summary."""
    from paceline.cli.progress import ProgressBar
    from paceline.errors import ModelError
    from paceline.files import check_targets
    from paceline.model.profile import save_profile
    from paceline.model.profiler import choose_device, import_torch, take_profile

    check_targets([args.output], force=args.force)
    _check_folder(args.output)  # before minutes of work
    for name in ("limit", "threads"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e9:
            raise ModelError(f"--{name} must be above 0, not {value:g}")
    torch = import_torch()
    device = choose_device(torch, args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.layers is not None:
        return _layers(args, device)
    if args.batch is not None or args.channels_last or args.precision in ("tf32", "amp"):
        raise ModelError("--batch, --channels-last, tf32 and amp are for --layers")
    shapes = shapes_of(args, device)
    with ProgressBar("timing operators") as bar:
        profile = take_profile(shapes, device, effort_of(args), bar)
    save_profile(profile, args.output, force=args.force)
    print(f"{args.output}: {summary(profile)}")
    for name_and_reason in profile.left_out:
        print(f"  not measured: {name_and_reason}")
    return 0


def _layers(args: argparse.Namespace, device: str) -> int:
    """Time a network's operators."""
    from paceline.cli.network_predict import load
    from paceline.cli.progress import ProgressBar
    from paceline.errors import ModelError
    from paceline.networks.layer_profile import save_layer_profile
    from paceline.networks.profiler import profile_layers

    shapes = ("model", "hidden", "tp", "micro_batch", "seq_len")
    if any(getattr(args, name) for name in shapes) or args.precision in ("bf16", "fp16"):
        raise ModelError(
            "--layers takes --batch, --channels-last and --precision fp32, tf32 or amp"
        )
    network = load(args.layers)
    with ProgressBar("timing operators") as bar:
        profile = profile_layers(
            network,
            batch=(4 if device == "cpu" else 32) if args.batch is None else args.batch,
            device=device,
            precision=args.precision or "fp32",
            channels_last=args.channels_last,
            effort=effort_of(args),
            progress=bar,
        )
    save_layer_profile(profile, args.output, force=args.force)
    total_s = float(profile.times(network)[0].sum()) * profile.batch
    print(
        f"{args.output}: {len(profile.seconds):,} operators of {network.name} on {profile.device}, "
        f"torch {profile.torch}; {total_s:.3g} s for {profile.batch} samples, forward and backward"
    )
    for name, reason in profile.left_out.items():
        print(f"  not timed: {name}: {reason}")
    return 0


def _check_folder(path: Path) -> None:
    from paceline.errors import OutputError

    folder = path.resolve().parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission in {folder}")


def shapes_of(args: argparse.Namespace, device: str) -> Shapes:
    """Options as :mod:`paceline.model.profiler` takes them.

    Raises:
        ModelError: a model or a width that cannot be profiled, or contradicting arguments.
    """
    from paceline.errors import ModelError
    from paceline.model.profiler import Shapes, made_up

    defaults = (QUICK_DEFAULTS if args.quick else DEFAULTS)[device]
    hidden, tp, micro_batch, seq_len, precision = defaults
    requested = {"hidden": args.hidden, "tp": args.tp, "micro-batch": args.micro_batch}
    for name, numbers in (*requested.items(), ("seq-len", args.seq_len)):
        if numbers is not None and numbers[0] < 1:
            raise ModelError(f"--{name} must be at least 1, not {numbers[0]}")
    if args.model and args.hidden:
        raise ModelError("--model and --hidden contradict each other; give one of them")
    models: tuple[LLM, ...]
    if args.model:
        models = tuple(llm for name in args.model for llm in _with_lengths(name, args.seq_len))
    else:
        models = tuple(
            llm
            for width in args.hidden or hidden
            for length in args.seq_len or seq_len
            for llm in made_up(width, length)
        )
    return Shapes(
        models=models,
        tp=tuple(args.tp or tp),
        micro_batch=tuple(args.micro_batch or micro_batch),
        precision=args.precision or precision,
        flash=not args.no_flash,
    )


def _with_lengths(name: str, lengths: list[int] | None) -> list[LLM]:
    """A preset, at its own sequence length or at others."""
    from dataclasses import replace

    from paceline.model.llm_presets import llm_preset

    llm = llm_preset(name)
    return [replace(llm, seq_len=n, max_positions=n) for n in lengths] if lengths else [llm]


def effort_of(args: argparse.Namespace) -> Effort:
    """The time limit and number of repeats."""
    from dataclasses import replace

    from paceline.model.profiler import QUICK, Effort

    effort = QUICK if args.quick else Effort()
    return replace(effort, total_s=args.limit) if args.limit else effort


def summary(profile: OperatorProfile) -> str:
    """The profile in a line."""
    products = profile.peak_flops
    rate = f"{products / 1e12:.0f} TFLOP/s" if products > 1e13 else f"{products / 1e9:.0f} GFLOP/s"
    return (
        f"{len(profile.timings):,} operators on {profile.device}, torch {profile.torch}; products "
        f"up to {rate} in {profile.precision}, copies {profile.memory_bandwidth / 1e9:,.0f} GB/s, "
        f"{profile.launch_s * 1e6:.1f} us of the host per kernel"
    )
