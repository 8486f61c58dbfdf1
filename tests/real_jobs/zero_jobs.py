"""DeepSpeed's ZeRO for ``job.py``: zero0 to zero3, and ZeRO++. Run at 0.19.8.

ZeRO++ quantises by kernels for CUDA (``csrc/quantization``); here PyTorch does, in as many groups
and to as many levels. What is gathered and exchanged, and in which order, is DeepSpeed's.
"""

import os

import torch

#: Case -> more of ``zero_optimization``. ZeRO++ takes two ranks for a node.
MORE = {
    "zero3-hpz": {"zero_hpz_partition_size": 2},
    "zero3-qwz": {"zero_quantized_weights": True},
    "zero3-qgz": {"zero_quantized_gradients": True},
    "zero3-plusplus": {
        "zero_hpz_partition_size": 2,
        "zero_quantized_weights": True,
        "zero_quantized_gradients": True,
    },
}


def zero(case, rank, world, model, loop, rows, width):
    """A model in DeepSpeed's engine."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ["DS_ACCELERATOR"] = "cpu"
    if case in ("zero3-qgz", "zero3-plusplus"):
        os.environ["LOCAL_SIZE"] = "2"  # devices of a node
    import deepspeed

    deepspeed.ops.op_builder.QuantizerBuilder = Quantizer
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    microbatches = 2 if case.endswith("-accumulate") else 1
    engine, *_ = deepspeed.initialize(model=model, config=config(case, microbatches, rows, width))
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_deepspeed(engine)
    x = torch.randn(rows, width)

    def step():
        total = 0.0
        for _ in range(microbatches):
            loss = engine(x).square().mean()
            engine.backward(loss)
            engine.step()
            total += float(loss.detach())
        return total

    loop.run(step)


def config(case, microbatches, rows, width):
    # Parameters in numbers: two layers at a time, or one weight or bias, of which each layer awaits
    # two gathers.
    ahead = {"zero3-prefetch": 2 * width * (width + 1), "zero3-single": 1}.get(case, 0)
    return {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": microbatches,
        "gradient_clipping": 1.0,
        "steps_per_print": None,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-2}},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": int(case[4]),
            "reduce_bucket_size": 2 * width * width,  # a layer or two
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 10**9 if ahead else 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": ahead,
            **MORE.get(case, {}),
        },
    }


class Quantizer:
    """What ``QuantizerBuilder().load()`` has, in PyTorch on the host; whole numbers take a byte."""

    Symmetric = 0

    def load(self):
        return self

    def quantize(self, x, groups, bits, _):
        rows = x.reshape(groups, -1).float()
        most = 2 ** (bits - 1) - 1
        scales = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / most
        return (rows / scales).round().to(torch.int8).view(x.shape), scales.view(-1)

    def dequantize(self, x, scales, groups, *_):
        return (x.reshape(groups, -1).float() * scales.reshape(groups, 1)).half().view(x.shape)

    def swizzle_quant(self, x, groups, bits, kind, _, nodes, devices):
        """Quantised, in the order of the devices of a node."""
        x = x.reshape(nodes, devices, -1).transpose(0, 1).reshape(-1)
        return self.quantize(x, groups, bits, kind)

    def quantized_reduction(self, x, scales, groups, groups_out, bits, kind, devices):
        """The mean of what the devices of a node sent, quantised again."""
        mean = self.dequantize(x, scales, groups).view(devices, -1).mean(0)
        return self.quantize(mean, groups_out, bits, kind)
