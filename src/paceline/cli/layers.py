"""``paceline layers``: the layers of a network, as a table and as a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.commands import HELP
from paceline.errors import ModelError

if TYPE_CHECKING:
    from paceline.networks.layer import LayerNetwork, Shape

DESCRIPTION = """\
List a network's layers: shapes, parameters, FLOPs and bytes of one sample.

NETWORK is a preset (resnet50), timm:NAME or torchvision:NAME, FILE.py:FUNCTION (which returns a
module), model.onnx, a file that this command wrote, or TABLE.csv:NAME. No weights are loaded.
"""

EXAMPLES = """\
examples:
  paceline layers resnet50
  paceline layers timm:resnet50 --input 3x224x224 -o resnet50.layers.json
  paceline layers mynet.py:build --input 4x512x512x512 -o net.layers.json
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "layers",
        help=HELP["layers"],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", metavar="NETWORK", help="the network to read; see above")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="shape of one sample, channels first: 3x224x224; once for each argument of the module",
    )
    parser.add_argument("--out", "-o", metavar="FILE", help="write the layers as JSON")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="time limit in seconds for FILE.py (default: 300)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, print, write."""
    import sys
    import warnings

    from paceline.files import check_targets
    from paceline.networks.layers_json import write_layers

    shapes = [_shape(text) for text in args.input]
    if args.out:
        check_targets([Path(args.out)], force=args.force)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        network = _read(args.network, shapes, args.timeout)
    for remark in remarks:
        if remark.category is UserWarning and "unknown operators" in str(remark.message):
            print(f"paceline: warning: {remark.message}", file=sys.stderr)
    if args.out:
        write_layers(network, args.out, force=args.force)
    _print(network)
    return 0


def _shape(text: str) -> Shape:
    try:
        sizes = tuple(int(size) for size in text.lower().replace("×", "x").split("x"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ModelError(f"--input {text!r} is no shape; write 3x224x224")
    return sizes


def _read(source: str, shapes: list[Shape], timeout_s: float) -> LayerNetwork:
    from paceline.networks.read import read_source

    return read_source(source, shapes, timeout_s=timeout_s)


def _print(network: LayerNetwork) -> None:
    from paceline.units import quantity

    rows = [("layer", "kind", "output", "parameters", "FLOPs", "bytes out")]
    rows += [
        (
            layer.name,
            layer.kind,
            "x".join(map(str, layer.out_shape)),
            f"{layer.parameter_count:,}" if layer.parameter_count else "",
            quantity(layer.flops) if layer.flops else "",
            quantity(4.0 * layer.out_elements),
        )
        for layer in network.layers
        if layer.kind != "view"
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    activations = sum(layer.out_elements for layer in network.layers if layer.kind != "view")
    shape = "x".join(map(str, network.input_shape))
    print(
        f"\n{network.name} at {shape}: {len(rows) - 1} layers, {network.parameters:,} parameters, "
        f"{quantity(network.flops)} FLOPs forward and {quantity(4.0 * activations)} bytes of "
        "results (fp32) for each sample"
    )
