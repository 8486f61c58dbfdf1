"""Shapes of an ONNX graph, including shapes that it computes from others. Needs onnx.

Exporters write sizes as small graphs (Shape, Gather, Concat, ...). ONNX's inference does not
resolve all of them, so ONNX's reference evaluator computes them (onnx 1.23, onnx/reference).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: TensorProto's int32, int64 and bool: sizes and conditions. Weights have other types.
_SIZES = (6, 7, 9)
#: A tensor of sizes has a few elements. Larger constants are weights, which are not read.
_MAX_ELEMENTS = 64


def infer(model: Any) -> Any:
    """``model`` with all shapes that can be inferred."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    count = -1
    while count != len(inferred.graph.initializer):
        count = len(inferred.graph.initializer)
        _compute_sizes(inferred.graph)
        inferred = onnx.shape_inference.infer_shapes(inferred, data_prop=True)
    return inferred


def _compute_sizes(graph: Any) -> None:
    """Replace nodes on sizes by their results, as initializers."""
    from onnx import numpy_helper

    shapes = _shapes(graph)
    sizes = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type in _SIZES and math.prod(tensor.dims) <= _MAX_ELEMENTS
    }
    rest = []
    for node in graph.node:
        results = _evaluated(node, sizes, shapes)
        if results is None:
            rest.append(node)
            continue
        for name, value in zip(node.output, results, strict=True):
            sizes[name] = value
            graph.initializer.append(numpy_helper.from_array(value, name))
    del graph.node[:]
    graph.node.extend(rest)


def _shapes(graph: Any) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = tuple(size.dim_value for size in tensor.shape.dim)
        if tensor.HasField("shape") and all(size > 0 for size in dims):
            shapes[value.name] = dims
    return shapes


def _evaluated(node: Any, sizes: dict[str, Any], shapes: dict[str, Any]) -> list[Any] | None:
    """Results of a node on sizes; None for other nodes."""
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
        return [np.array(shapes[node.input[0]], dtype=np.int64)]
    names = [name for name in node.input if name]
    if node.op_type == "Shape" or any(name not in sizes for name in names):
        return None
    # Random numbers and control flow are not sizes.
    if node.op_type.startswith("Random") or node.op_type in ("If", "Loop", "Scan"):
        return None
    try:
        results = ReferenceEvaluator(node).run(None, {name: sizes[name] for name in names})
    except Exception:  # a node that cannot be computed stays without a shape
        return None
    small = all(np.size(value) <= _MAX_ELEMENTS for value in results)
    return [np.asarray(value) for value in results] if small else None
