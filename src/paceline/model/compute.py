"""Seconds of an operator: the roofline with the efficiencies of real kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from paceline.model.cluster import Gpu
from paceline.model.efficiency import Efficiency
from paceline.model.operators import Operator

#: An operator -> seconds that the GPU is busy with it.
ComputeCost = Callable[[Operator], float]

#: Output tiles of GEMM kernels, and their shares of the best kernel's rate. Smaller tiles load more
#: bytes per FLOP. (NVIDIA, "Matrix multiplication background user's guide", 4: 256 x 128 is the
#: most efficient tile, 128 x 128 nearly so, 64 x 64 much less.)
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (128, 64, 0.75), (64, 64, 0.55))

#: Filling and draining a tile costs as much as this many steps of its inner dimension.
_K_OVERHEAD = 64


@lru_cache(maxsize=65536)
def gemm_shape_efficiency(m: int, n: int, k: int, batch: int, sms: int) -> float:
    """Share of the large-GEMM rate for a shape: tiles, waves over the SMs, short inner dimensions.

    Tile and wave quantisation as in NVIDIA's guide, 4 and 5. SMs are partly idle if the output does
    not fill its tiles, or the tiles do not fill the last wave. The best tile is chosen, as in
    cuBLAS.
    """
    best = 0.0
    for tall, wide, rate in _TILES:
        tiles = -(-m // tall) * -(-n // wide) * batch
        waves = -(-tiles // sms)
        useful = m * n * batch / (waves * sms * tall * wide)
        best = max(best, rate * useful)
    return best * k / (k + _K_OVERHEAD)


def roofline(gpu: Gpu, efficiency: Efficiency) -> ComputeCost:
    """The cost of an operator from the datasheet and the efficiencies (Williams et al. 2009).

    The time is the larger of arithmetic and memory traffic, plus a fixed time per kernel.
    """
    memory = gpu.memory_bandwidth * efficiency.memory * efficiency.compute
    speed = {p: peak * efficiency.compute for p, peak in gpu.peak_flops.items()}

    def arithmetic_s(op: Operator) -> float:
        if not op.flops:
            return 0.0
        peak = speed.get(op.precision) or gpu.peak(op.precision)
        if op.part == "attention":
            if op.n:  # unfused: a batch of products
                shape = gemm_shape_efficiency(op.m, op.n, op.k, op.batch, gpu.sms)
                return op.flops / (peak * efficiency.batched * shape)
            backward = op.name.endswith("backward")
            rate = efficiency.attention_backward if backward else efficiency.attention
            rate *= efficiency.sdpa if op.sdpa else 1.0
            return op.flops / (peak * rate)
        rate = efficiency.gemm_share(op.precision)
        shape = gemm_shape_efficiency(op.m, op.n, op.k, op.batch, gpu.sms)
        return op.flops / (peak * rate * shape)

    def cost(op: Operator) -> float:
        return max(arithmetic_s(op), op.bytes / memory) + op.kernels * efficiency.kernel_s

    return cost
