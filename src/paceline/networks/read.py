"""A network from a user's text: a preset, a module's name, or a file.

A user's file runs in a separate process (``read_process``), which ends with its caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import ModelError
from paceline.networks.layer import LayerNetwork, Shape
from paceline.networks.layers_json import from_mapping, read_layers
from paceline.networks.presets import PRESETS, network_preset
from paceline.networks.table import read_table

_FORMS = (
    f"a preset ({', '.join(PRESETS)}), timm:NAME, torchvision:NAME, FILE.py:FUNCTION, FILE.onnx, "
    "FILE.layers.json or TABLE.csv:NAME"
)


def read_source(
    source: str, shapes: Sequence[Shape] = (), *, timeout_s: float = 300.0
) -> LayerNetwork:
    """The network of ``source``.

    Args:
        source: a preset's name, ``timm:NAME``, ``torchvision:NAME``, ``FILE.py:FUNCTION``,
            ``FILE.onnx``, ``FILE.json``, ``TABLE.csv:NAME``.
        shapes: shapes of one sample, one for each argument; presets and some files have their own.
        timeout_s: time limit for a user's file and torch.

    Raises:
        ModelError: the source is unknown, or cannot be read.
    """
    path, _, member = source.rpartition(":")
    if path.endswith(".py") or path in ("timm", "torchvision"):
        if not shapes and path.endswith(".py"):
            raise ModelError(f"{source} needs --input with the shape of one sample: 3x224x224")
        return _in_process(source, shapes, timeout_s)
    if path.endswith(".csv") or source.endswith(".csv"):
        return _from_table(path or source, member if path else "", shapes)
    if source.endswith(".json"):
        return _same_input(read_layers(source), shapes)
    if source.endswith(".onnx"):
        from paceline.networks.from_onnx import read_onnx

        return _same_input(read_onnx(source), shapes)
    if source.endswith(".py"):
        raise ModelError(f"name the function that returns the module: {source}:build")
    if source.endswith((".pt", ".pth", ".pkl", ".bin", ".ckpt")):
        raise ModelError(f"{source} holds weights, maybe as a pickle, which is never opened")
    if Path(source).suffix or len(shapes) > 1:
        raise ModelError(f"{source!r} is no network; give {_FORMS}")
    return network_preset(source, shapes[0] if shapes else None)


def _same_input(network: LayerNetwork, shapes: Sequence[Shape]) -> LayerNetwork:
    if shapes and shapes[0] != network.input_shape:
        text = "x".join(map(str, network.input_shape))
        raise ModelError(f"{network.name} was read for an input of {text}; read it anew for others")
    return network


def _from_table(path: str, name: str, shapes: Sequence[Shape]) -> LayerNetwork:
    networks = read_table(path)
    fits = [
        network
        for (model, shape), network in networks.items()
        if model == (name or model) and shape == (shapes[0] if shapes else shape)
    ]
    if len(fits) != 1:
        names = ", ".join(f"{model} at {'x'.join(map(str, s))}" for model, s in networks)
        raise ModelError(f"{path} holds {names}; name one, with --input where it has several")
    return fits[0]


def _in_process(source: str, shapes: Sequence[Shape], timeout_s: float) -> LayerNetwork:
    """Read a module in a separate process, with separate output."""
    command = [sys.executable, "-m", "paceline.networks.read_process", source]
    command += ["x".join(map(str, shape)) for shape in shapes]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{source} took longer than {timeout_s:g} s; give more with --timeout"
        ) from None
    lines = done.stdout.splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelError(f"{source} ended its process ({done.returncode}): {last[:300]}") from None
    if "error" in answer:
        raise ModelError(answer["error"])
    for text in answer["warnings"]:
        warnings.warn(text, stacklevel=3)
    return from_mapping(answer["network"])
