"""A rank of Megatron-LM's 1F1B on the CPU that sends its own spans: ``megatron_spans_job.py``.

The schedule, the transfers, the methods that synchronise gradients and NeMo Lens are the real
ones. Only the loop around them is written here, after ``megatron/training/training.py`` of
Megatron-LM (core 0.20.0, commit d98e8a6). Needs a Megatron-LM and a Lens that have spans.

Environment: RANK, WORLD_SIZE, STORE (a file), PP, SLOW_RANK, and those of ``paceline otlp``.
"""

import os
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed.distributed_data_parallel import DistributedDataParallel
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.telemetry.span_groups import MegatronSpanGroup
from megatron.core.transformer import TransformerConfig
from nemo.lens import NemoLensConfig, setup_telemetry
from nemo.lens.helpers import managed_span, span_cm
from torch.overrides import TorchFunctionMode

MICROBATCHES, STEPS, WORK_S = 6, 4, 0.01
HIDDEN = 4


class OnTheHost(TorchFunctionMode):
    """Tensors that Megatron makes on a GPU are made on the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and "cuda" in str(kwargs["device"]):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Work(torch.autograd.Function):
    """Takes the time of a layer, twice as long backward."""

    @staticmethod
    def forward(ctx, values, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return values * 1.0

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Stage(torch.nn.Linear):
    """A stage as the schedule wants it."""

    def __init__(self, seconds, pp):
        super().__init__(HIDDEN, HIDDEN)
        self.seconds, self.model_type, self.input = seconds, ModelType.encoder_or_decoder, None
        self.config = TransformerConfig(
            num_layers=pp,
            hidden_size=HIDDEN,
            num_attention_heads=1,
            pipeline_model_parallel_size=pp,
            pipeline_dtype=torch.float32,
            batch_p2p_sync=False,
        )

    def set_input_tensor(self, values):
        self.input = values[0] if isinstance(values, list) else values

    def forward(self, values):
        values = values if self.input is None else self.input
        return Work.apply(super().forward(values), self.seconds)


class Bucket:
    """A bucket of gradients, summed over the data-parallel ranks."""

    def __init__(self, model, group):
        self.model, self.group = model, group

    def start_grad_sync(self):
        """Megatron starts it here only where it overlaps; then it ends in ``finish``."""

    def finish_grad_sync(self, force_all_reduce=False):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.group)


def main():
    rank, world, pp = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "PP"))
    torch.cuda.current_device = lambda: "cpu"
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world
    )
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=pp)
    config = NemoLensConfig.from_env("MEGATRON_OTEL", "NEMO_LENS", MegatronSpanGroup)
    sizes = {"tensor": 1, "pipeline": pp, "data": world // pp}
    handle = setup_telemetry(
        config,
        rank=rank,
        world_size=world,
        resource_attributes={f"dl.{name}_parallel.size": size for name, size in sizes.items()},
    )
    slow = rank == int(os.environ.get("SLOW_RANK", "-1"))
    stage = Stage(WORK_S * (2 if slow else 1), pp)
    group = parallel_state.get_data_parallel_group()
    buckets = SimpleNamespace(
        bucket_groups=[Bucket(stage, group)], expert_parallel_bucket_groups=[]
    )

    def finalize(models, *_, **__):
        DistributedDataParallel.start_grad_sync(buckets)
        DistributedDataParallel.finish_grad_sync(buckets)

    stage.config.finalize_model_grads_func = finalize
    schedule = get_forward_backward_func()
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    for iteration in range(STEPS):
        dist.barrier()
        attributes = {"megatron.iteration": iteration, "is_goodput_span": True}
        with managed_span("step", "megatron.train.iteration", **attributes), OnTheHost():
            optimizer.zero_grad()
            with span_cm(
                "megatron.train.iteration.forward_backward",
                tracer=handle.tracer,
                num_microbatches=MICROBATCHES,
            ):
                schedule(
                    forward_step_func=lambda batches, model: (
                        model(next(batches)),
                        lambda output: (output.square().mean(), {}),
                    ),
                    data_iterator=iter(torch.randn(MICROBATCHES, 2, 1, HIDDEN)),
                    model=stage,
                    num_microbatches=MICROBATCHES,
                    seq_length=2,
                    micro_batch_size=1,
                )
            with span_cm("megatron.train.iteration.optimizer", tracer=handle.tracer):
                optimizer.step()
    handle.shutdown()


if __name__ == "__main__":
    main()
