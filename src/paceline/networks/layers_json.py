"""The file of a network, ``NAME.layers.json``: schema, version, checks.

Version 1: ``{"format": "paceline-layers", "version": 1, "name", "input_shape", "layers": [...]}``
with the fields of ``Layer`` and ``Window``; a field at its default value is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import ModelError
from paceline.files import write_files
from paceline.networks.build import window_out
from paceline.networks.layer import Layer, LayerNetwork, Window, to_mapping

FORMAT = "paceline-layers"
VERSION = 1
#: Largest size of a file; the largest network of timm 1.0.31 needs less than a hundredth of it.
_MAX_FILE_BYTES = 256 << 20
_NUMBERS = ("flops", "grad_input_flops", "grad_weight_flops")
_KEYS = {attribute.name for attribute in fields(Layer)}


def write_layers(network: LayerNetwork, path: str | Path, *, force: bool = False) -> None:
    """Write ``network`` as JSON, atomically.

    Raises:
        OutputError: the file exists (without ``force``), or cannot be written.
    """
    document = {"format": FORMAT, "version": VERSION, **to_mapping(network)}
    text = json.dumps(document, indent=1) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    write_files({Path(path): write}, force=force)


def read_layers(path: str | Path) -> LayerNetwork:
    """Read a file of ``write_layers``, or one that follows its rules.

    Raises:
        ModelError: it is not such a file, has another version, or its shapes do not match.
        OSError: it cannot be read.
    """
    file = Path(path)
    if file.stat().st_size > _MAX_FILE_BYTES:
        raise ModelError(f"{path} is larger than any list of layers ({_MAX_FILE_BYTES >> 20} MiB)")
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelError(
            f'{path} is no list of layers ("format" is not "{FORMAT}"); `paceline layers` makes one'
        )
    if document.get("version") != VERSION:
        raise ModelError(
            f"{path} has version {document.get('version')!r}; this Paceline reads {VERSION}: make "
            "the file again with `paceline layers`"
        )
    try:
        return from_mapping(document)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def from_mapping(document: Mapping[str, Any]) -> LayerNetwork:
    """The network of a mapping from ``to_mapping``.

    Raises:
        ModelError: a field is missing or has a wrong type, or shapes do not match.
    """
    rows = document.get("layers")
    if not isinstance(rows, list):
        raise ModelError("layers must be a list")
    unknown = document.get("unknown", {})
    if not isinstance(unknown, dict):
        raise ModelError("unknown must map operators to counts")
    network = LayerNetwork(
        name=_text(document.get("name"), "name"),
        input_shape=_shape(document.get("input_shape"), "input_shape"),
        layers=tuple(_layer(row, index) for index, row in enumerate(rows)),
        source=_text(document.get("source", ""), "source"),
        unknown={_text(op, "unknown"): _whole(count, "unknown") for op, count in unknown.items()},
    )
    check_joints(network)
    return network


def check_joints(network: LayerNetwork) -> None:
    """Check that each layer fits the layers that it reads.

    Raises:
        ModelError: with the layer, its input, and shapes that would fit.
    """
    for index, layer in enumerate(network.layers):
        if layer.tied_to is not None and not 0 <= layer.tied_to < index:
            raise ModelError(f"layer {index} ({layer.name!r}) is tied to layer {layer.tied_to}")
        problem = _joint(network, index, layer)
        if problem:
            raise ModelError(f"layer {index} ({layer.name!r}): {problem}")


def _joint(network: LayerNetwork, index: int, layer: Layer) -> str:
    shapes = network.in_shapes(index)
    if layer.window is not None and layer.kind in ("conv", "pool"):
        return _window_joint(layer, shapes[0])
    if layer.kind == "linear" and layer.parameters and len(layer.parameters[0]) == 2:
        features = layer.parameters[0][1]
        if network.in_elements(index) * layer.filters != layer.out_elements * features:
            return f"it makes {layer.out_shape} with {features} features in, but reads {shapes[0]}"
    joined = network.in_elements(index) + sum(math.prod(shape) for shape in layer.parameters)
    if layer.kind == "concat" and joined != layer.out_elements:
        return f"it joins {shapes} to {layer.out_shape}: the elements do not add up"
    same = layer.kind in ("norm", "activation", "dropout", "softmax")
    if same and math.prod(shapes[0]) != layer.out_elements:
        return f"it makes {layer.out_shape} of {shapes[0]}: not as many elements"
    return ""


def _window_joint(layer: Layer, in_shape: tuple[int, ...]) -> str:
    window = layer.window
    assert window is not None
    axes = len(window.kernel) + 1
    if len(in_shape) < axes:
        return f"a window of {axes - 1} dimensions reads the shape {in_shape}"
    # Axes before the channels are folded into the batch.
    in_shape, out_shape = in_shape[-axes:], layer.out_shape[-axes:]
    if layer.kind == "conv" and layer.parameters and len(layer.parameters[0]) == axes + 1:
        channels = layer.parameters[0][0 if window.transposed else 1]
        channels *= 1 if window.transposed else layer.groups
        if channels != in_shape[0]:
            return f"its weight takes {channels} channels, but it reads {in_shape[0]}"
        filters = layer.parameters[0][1] * layer.groups
        filters = filters if window.transposed else layer.parameters[0][0]
        if (filters, layer.parameters[0][2:]) != (out_shape[0], window.kernel):
            return (
                f"its weight {layer.parameters[0]} is not of {out_shape[0]} filters with the "
                f"kernel {window.kernel}"
            )
    fits = window_out(window, in_shape[1:])
    if fits != out_shape[1:] and not window.transposed:
        return f"it makes {out_shape[1:]} of {in_shape[1:]}; by its window that is {fits}"
    return ""


def _layer(row: Any, index: int) -> Layer:
    where = f"layers[{index}]"
    if not isinstance(row, dict):
        raise ModelError(f"{where} must be an object")
    strange = set(row) - _KEYS
    if strange:
        raise ModelError(f"{where} has the unknown fields {', '.join(sorted(strange))}")
    values: dict[str, Any] = {
        "name": _text(row.get("name"), f"{where}.name"),
        "kind": _text(row.get("kind"), f"{where}.kind"),
        "op": _text(row.get("op", ""), f"{where}.op"),
        "out_shape": _shape(row.get("out_shape"), f"{where}.out_shape"),
        "inputs": _wholes(row.get("inputs"), f"{where}.inputs"),
        "in_place": bool(row.get("in_place", False)),
        "groups": _whole(row.get("groups", 1), f"{where}.groups"),
    }
    if row.get("tied_to") is not None:
        values["tied_to"] = _whole(row["tied_to"], f"{where}.tied_to")
    if row.get("window") is not None:
        values["window"] = _window(row["window"], f"{where}.window")
    shapes = row.get("parameters", [])
    if not isinstance(shapes, list):
        raise ModelError(f"{where}.parameters must be a list of shapes")
    values["parameters"] = tuple(_shape(shape, f"{where}.parameters") for shape in shapes)
    values |= {name: _flops(row.get(name, 0.0), f"{where}.{name}") for name in _NUMBERS}
    return Layer(**values)


def _window(value: Any, where: str) -> Window:
    if not isinstance(value, dict):
        raise ModelError(f"{where} must be an object")
    padding = value.get("padding")
    if not isinstance(padding, list):
        raise ModelError(f"{where}.padding must be a list of pairs")
    pairs = [_wholes(pair, f"{where}.padding") for pair in padding]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"{where}.padding must be a list of pairs")
    return Window(
        kernel=_shape(value.get("kernel"), f"{where}.kernel"),
        stride=_shape(value.get("stride"), f"{where}.stride"),
        dilation=_shape(value.get("dilation"), f"{where}.dilation"),
        padding=tuple((pair[0], pair[1]) for pair in pairs),
        transposed=bool(value.get("transposed", False)),
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ModelError(f"{where} must be a text, not {value!r:.40}")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{where} must be a whole number, not {value!r:.40}")
    return value


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ModelError(f"{where} must be a list of whole numbers, not {value!r:.40}")
    return tuple(_whole(item, where) for item in value)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    sizes = _wholes(value, where)
    if any(size < 1 for size in sizes):
        raise ModelError(f"{where} is {list(sizes)}; sizes are 1 at least")
    return sizes


def _flops(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ModelError(f"{where} must be a number from 0 on, not {value!r:.40}")
    return float(value)
