"""Names of the terms of a predicted step, the same in every output."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Term of ``Prediction.breakdown`` -> its name.
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "matrix products",
        "attention": "attention",
        "memory": "norms, activations, residuals, loss",
        "launch": "waiting for the host to launch kernels",
        "tp": "tensor-parallel collectives",
        "cp": "context-parallel exchange",
        "ep": "expert-parallel exchange",
        "bubble": "pipeline bubble and uneven stages",
        "p2p": "hand-over between stages",
        "dp": "gradients and parameters over replicas",
        "tail": "optimizer and the rest of the tail",
        "fixed": "fixed time per step",
    }
)
