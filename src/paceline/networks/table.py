"""Networks from a table of layers in CSV: one layer per row, several networks per file.

Columns: model, input (3x224x224), index, kind (conv, bn, relu, pool, add, fc), in_channels,
in_shape (56x56), out_channels, out_shape, kernel, stride, parameters, shortcut. A shortcut of 1
means that the row belongs to the branch that the next "add" joins. Padding follows from the shapes.
A layer has no bias if ``parameters`` is too small for one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from paceline.errors import ModelError
from paceline.networks.build import Builder
from paceline.networks.layer import NETWORK_INPUT, LayerNetwork, Shape

COLUMNS = (
    *("model", "input", "index", "kind", "in_channels", "in_shape", "out_channels"),
    *("out_shape", "kernel", "stride", "parameters", "shortcut"),
)
_KINDS = ("conv", "bn", "relu", "pool", "add", "fc")

_Row = dict[str, str]


def read_table(path: str | Path) -> dict[tuple[str, Shape], LayerNetwork]:
    """The networks of a table, by name and input shape, in the file's order.

    Raises:
        ModelError: a column is missing, a number cannot be read, or shapes do not match.
        OSError: the file cannot be read.
    """
    rows: dict[tuple[str, str], list[tuple[int, _Row]]] = {}
    with Path(path).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        absent = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if absent:
            raise ModelError(f"{path} lacks the columns {', '.join(absent)} of a table of layers")
        for row in reader:
            rows.setdefault((row["model"], row["input"]), []).append((reader.line_num, row))
    networks = {}
    for (model, text), own in rows.items():
        shape = _shape(text, f"{path}, line {own[0][0]}")
        networks[model, shape] = _Reader(model, shape, str(path)).read(own)
    if not networks:
        raise ModelError(f"{path} has no rows")
    return networks


def _shape(text: str, where: str) -> Shape:
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise ModelError(f"{where}: {text!r} is no shape such as 3x224x224") from None


class _Reader:
    """Joins the rows of one network: the main branch, and shortcuts that end in an "add"."""

    def __init__(self, model: str, shape: Shape, path: str) -> None:
        self.builder, self.path = Builder(model, shape, path), path
        self.main = self.block = NETWORK_INPUT
        self.shortcut: int | None = None
        self.last_kind = ""

    def read(self, rows: Iterable[tuple[int, _Row]]) -> LayerNetwork:
        for line, row in rows:
            where = f"{self.path}, line {line}"
            try:
                self._row(row, where)
            except ModelError as error:
                text = str(error)
                raise ModelError(text if text.startswith(where) else f"{where}: {text}") from None
        return self.builder.finish()

    def _row(self, row: _Row, where: str) -> None:
        kind, branch = row["kind"], row["shortcut"] == "1"
        if kind not in _KINDS:
            raise ModelError(f"the kind {kind!r} is none of {', '.join(_KINDS)}")
        source = self.main
        if branch:
            source = self.block if self.shortcut is None else self.shortcut
        inside = (_number(row, "in_channels"), *_shape(row["in_shape"], where))
        outside = (_number(row, "out_channels"), *_shape(row["out_shape"], where))
        source = self._joined(source, inside, kind)
        layer = self._layer(row, source, outside)
        if self.builder.shape(layer) != outside:
            raise ModelError(
                f"{kind} makes {self.builder.shape(layer)} of {inside}, not {outside} as written"
            )
        self._advance(kind, layer, branch)

    def _joined(self, source: int, inside: Shape, kind: str) -> int:
        """The layer that a row reads, flattened for a fully connected layer."""
        shape = self.builder.shape(source)
        if shape == inside:
            return source
        if kind == "fc" and math.prod(shape) == math.prod(inside):
            return self.builder.view(source, "flatten", inside)
        raise ModelError(f"{kind} reads {inside}, but the layer before it makes {shape}")

    def _layer(self, row: _Row, source: int, outside: Shape) -> int:
        build, kind = self.builder, row["kind"]
        name = f"{row['index']}.{kind}"
        if kind == "bn":
            return build.norm(source, name)
        if kind == "relu":
            return build.activation(source, name, in_place=True)
        if kind == "add":
            other = self.block if self.shortcut is None else self.shortcut
            return build.add(source, other, name)
        if kind == "fc":
            bias = _number(row, "parameters") == (build.shape(source)[0] + 1) * outside[0]
            return build.linear(source, name, outside[0], bias=bias)
        kernel, stride = _number(row, "kernel"), _number(row, "stride")
        inside = build.shape(source)
        padding = tuple(
            _padding(before, after, kernel, stride)
            for before, after in zip(inside[1:], outside[1:], strict=True)
        )
        if kind == "pool":
            op = "aten.mean" if outside[1:] == (1,) * len(padding) else ""
            return build.pool(source, name, kernel, stride=stride, padding=padding, op=op)
        weights = outside[0] * inside[0] * kernel ** len(padding)
        layer = build.conv(
            source,
            name,
            outside[0],
            kernel,
            stride=stride,
            padding=padding,
            bias=_number(row, "parameters") == weights + outside[0],
        )
        if build.layers[layer].parameter_count != _number(row, "parameters"):
            count = build.layers[layer].parameter_count
            raise ModelError(f"{kind} has {count} parameters by its shapes, not as written")
        return layer

    def _advance(self, kind: str, layer: int, branch: bool) -> None:
        if branch:
            self.shortcut = layer
            return
        # A block of a residual network begins after a pool or an addition.
        if kind in ("pool", "add") or (kind == "relu" and self.last_kind == "add"):
            self.block, self.shortcut = layer, None
        self.main, self.last_kind = layer, kind


def _number(row: _Row, column: str) -> int:
    try:
        return int(row[column])
    except (TypeError, ValueError):
        raise ModelError(f"{column} is {row[column]!r}, not a whole number") from None


def _padding(before: int, after: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after ``before`` elements for ``after`` windows; more of it in front."""
    total = max(0, (after - 1) * stride + kernel - before)
    if total >= 2 * kernel:
        raise ModelError(f"windows of {kernel} by {stride} make no {after} elements of {before}")
    return (total + 1) // 2, total // 2
