"""PyTorch's operators: kinds, tensors saved by autograd, casts of autocast.

Sources, in torch 2.13: tools/autograd/derivatives.yaml (the tensors in a formula) and
aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32). An in-place operator
that saves its input saves a copy of it.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.networks.layer import Layer

#: Names of tensors that autograd saves of a layer: its inputs, its result, the other factors'
#: values, the indices of a maximum (int64) and a mask (one byte per element). Normalizations save
#: two fp32 numbers per row. Recurrent layers save their gates.
SAVES = ("in", "out", "factors", "indices", "mask", "rows", "gates")


class Operator(NamedTuple):
    """Properties of one operator.

    Attributes:
        kind: kind of its layer.
        saves: the saved tensors, some of ``SAVES``.
        autocast: "half" (inputs are cast down), "single" (cast up) or "" (the precision of its
            widest input).
    """

    kind: str
    saves: tuple[str, ...] = ()
    autocast: str = ""


def _rows(kind: str, names: str, *saves: str, autocast: str = "") -> dict[str, Operator]:
    return {f"aten.{name}": Operator(kind, saves, autocast) for name in names.split()}


OPERATORS: dict[str, Operator] = {
    **_rows("conv", "convolution", "in", autocast="half"),
    **_rows("linear", "addmm mm", "in", autocast="half"),
    **_rows("linear", "mkldnn_rnn_layer", "in", "out", "gates", autocast="half"),
    **_rows("matmul", "bmm baddbmm addbmm", "in", autocast="half"),
    **_rows(
        "attention",
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention",
        *("in", "out"),
        autocast="half",
    ),
    **_rows(
        "norm",
        "native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update",
        "in",
    ),
    **_rows("norm", "native_layer_norm _fused_rms_norm", "in", "rows", autocast="single"),
    **_rows("norm", "native_group_norm", "in", autocast="single"),
    **_rows("activation", "relu sigmoid tanh sqrt", "out"),
    **_rows("activation", "exp rsqrt reciprocal", "out", autocast="single"),
    **_rows("activation", "relu_ sigmoid_ tanh_ leaky_relu_ elu_ hardtanh_ celu_ sqrt_", "out"),
    **_rows(
        "activation",
        "gelu silu silu_ hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh leaky_relu elu "
        "celu mish mish_ clamp clamp_ clamp_min clamp_min_ clamp_max abs sin cos erf threshold "
        "_prelu_kernel log_sigmoid_forward",
        "in",
    ),
    **_rows("activation", "softplus pow log log1p", "in", autocast="single"),
    **_rows("activation", "neg neg_ sign round floor ceil logical_not bitwise_not rsub"),
    **_rows("add", "add add_ sub sub_ lerp maximum minimum ge gt le lt eq ne logical_and"),
    **_rows("multiply", "mul mul_ div div_ addcmul addcmul_", "factors"),
    **_rows("multiply", "masked_fill masked_fill_ where"),
    **_rows("pool", "max_pool2d_with_indices max_pool3d_with_indices", "in", "indices"),
    **_rows("pool", "adaptive_max_pool2d adaptive_max_pool3d", "in", "indices"),
    **_rows("pool", "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d", "in"),
    **_rows("pool", "mean any all argmax"),
    **_rows("pool", "sum cumsum", autocast="single"),
    **_rows("pool", "amax amin", "in", "out"),
    **_rows("pool", "max min sort topk", "indices"),
    **_rows("pool", "var var_mean std", "in"),
    **_rows("pool", "linalg_vector_norm norm", "in", "out", autocast="single"),
    **_rows("softmax", "_softmax _log_softmax _safe_softmax", "out", autocast="single"),
    **_rows("dropout", "native_dropout", "mask"),
    **_rows("embedding", "embedding", "in"),
    **_rows("concat", "cat stack"),
    **_rows(
        "resample",
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d "
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    ),
    **_rows(
        "copy",
        "clone _to_copy copy_ copy constant_pad_nd roll flip index index_select gather repeat "
        "im2col col2im reflection_pad1d reflection_pad2d reflection_pad3d replication_pad2d "
        "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle fill_ zero_ "
        "index_put index_put_ scatter slice_scatter select_scatter scatter_ tril triu "
        "unsafe_split unsafe_chunk",
    ),
    **_rows("loss", "nll_loss_forward nll_loss2d_forward mse_loss", "in", autocast="single"),
    **_rows("view", "view"),
}

#: Properties by kind, for layers of other sources (ONNX) with other operator names.
BY_KIND: dict[str, Operator] = {
    "conv": OPERATORS["aten.convolution"],
    "linear": OPERATORS["aten.addmm"],
    "matmul": OPERATORS["aten.bmm"],
    "attention": OPERATORS["aten.scaled_dot_product_attention"],
    "norm": OPERATORS["aten.native_batch_norm"],
    "activation": OPERATORS["aten.gelu"],
    "pool": OPERATORS["aten.avg_pool2d"],
    "multiply": OPERATORS["aten.mul"],
    "softmax": OPERATORS["aten._softmax"],
    "dropout": OPERATORS["aten.native_dropout"],
    "embedding": OPERATORS["aten.embedding"],
    "loss": OPERATORS["aten.mse_loss"],
    "other": Operator("other", ("in",)),
}


def operator_of(layer: Layer) -> Operator:
    """Properties of a layer's operator, by its name or otherwise by its kind."""
    return OPERATORS.get(layer.op) or BY_KIND.get(layer.kind) or Operator(layer.kind)
