"""Megatron-Core on the host, for ``job.py``: what asks for a GPU there is answered here.

Read and run at 0.16.1. Replaced for all cases: ``torch.cuda.current_device`` (the host) and
``torch.cuda.synchronize`` (nothing); tensors made on "cuda" are made on the host; a tensor without
a GPU says that its type is that of one (``Tensor.type()``: the distributed optimizer refuses all
else). Schedules, buckets, optimizer and transfers are Megatron's, unchanged.
"""

import os
import warnings

import torch
from torch.overrides import TorchFunctionMode

#: Case -> (stages, chunks, microbatches, overlaps of DDP, of transfers). With -align all stages
#: exchange at the same time, with -ahead the optimizer also gathers for the next step.
CASES = {
    "megatron-ddp": (1, 1, 2, False, False),
    "megatron-overlap": (1, 1, 2, True, False),
    "megatron-1f1b": (4, 1, 8, False, False),
    "megatron-interleaved": (4, 2, 8, False, False),
    "megatron-p2p": (4, 2, 8, False, True),
    "megatron-flush": (4, 2, 8, False, True),
    "megatron-both": (2, 2, 4, True, True),
    "megatron-align": (2, 2, 4, True, True),
    "megatron-ahead": (2, 2, 4, True, True),
    "megatron-experts": (1, 1, 2, True, False),
    "megatron-experts-plain": (1, 1, 2, False, False),
}
#: Ranks that share the experts of a layer, where every second layer has some.
EXPERT_RANKS = 2
LAYERS = 4
TYPES = {torch.float32: "torch.cuda.FloatTensor", torch.bfloat16: "torch.cuda.BFloat16Tensor"}


class OnTheHost(TorchFunctionMode):
    """What is made on a GPU is made on the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return TYPES[args[0].dtype]
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def megatron(case, rank, world, factor, loop, layer, rows, width, seconds):
    """A pipeline, or replicas with the distributed optimizer, or both."""
    stages, chunks, microbatches, overlap, overlap_p2p = CASES[case]
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    warnings.simplefilter("ignore")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    of_experts = EXPERT_RANKS if "experts" in case else 1
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        expert_model_parallel_size=of_experts,
    )
    if loop.recorder is not None:
        import paceline.record as record

        record.instrument_megatron()
        if of_experts > 1:
            record.instrument_groups(expert=parallel_state.get_expert_model_parallel_group())
    config = _config(case, width, stages, chunks, overlap_p2p)
    config.finalize_model_grads_func = finalize_model_grads
    n = LAYERS if stages == 1 else 1
    with OnTheHost():
        model = [
            _chunk(case, config, layer, n, width, seconds * factor, overlap) for _ in range(chunks)
        ]
        optimizer = _optimizer(case, model)
    if overlap:
        config.no_sync_func = [chunk.no_sync for chunk in model] if chunks > 1 else model[0].no_sync
    if case in ("megatron-align", "megatron-ahead"):
        config.param_sync_func = [chunk.start_param_sync for chunk in model]
        config.grad_sync_func = [chunk.start_grad_sync for chunk in model]
    seed = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    x = torch.randn(rows, 1, width, generator=seed)

    def forward(batches, chunk):
        return chunk(next(batches)), lambda out: ((loss := out.square().mean()), {"loss": loss})

    def step():
        with OnTheHost():
            for chunk in model:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            batches = [iter([x] * microbatches) for _ in range(chunks)]
            done = get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=batches if chunks > 1 else batches[0],
                model=model if chunks > 1 else model[0],
                num_microbatches=microbatches,
                seq_length=rows,
                micro_batch_size=1,
                forward_only=False,
            )
            optimizer.step()
        return sum(float(microbatch["loss"].detach()) for microbatch in done)

    loop.run(step)


def _config(case, width, stages, chunks, overlap_p2p):
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=stages * chunks,
        hidden_size=width,
        num_attention_heads=1,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=torch.float32,
        num_moe_experts=EXPERT_RANKS if "experts" in case else None,
        expert_model_parallel_size=EXPERT_RANKS if "experts" in case else 1,
        batch_p2p_comm=not overlap_p2p,
        overlap_p2p_comm=overlap_p2p,
        overlap_p2p_comm_warmup_flush=case == "megatron-flush",
        deallocate_pipeline_outputs=False,  # gloo may still be sending them
    )


def _chunk(case, config, layer, n, width, seconds, overlap):
    """A chunk of the model in Megatron's DDP, a bucket a layer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.enums import ModelType

    class Chunk(torch.nn.Module):
        """What the schedules give their input by ``set_input_tensor``."""

        def __init__(self):
            super().__init__()
            blocks = [layer(seconds, width) for _ in range(n)]
            if "experts" in case:
                blocks[1::2] = map(Experts, blocks[1::2])
            self.layers = torch.nn.ModuleList(blocks)
            self.config, self.share_embeddings_and_output_weights = config, False
            self.model_type, self.pre_process = ModelType.encoder_or_decoder, False
            self.received = None

        def set_input_tensor(self, tensors):
            self.received = tensors[0] if isinstance(tensors, list) else tensors

        def forward(self, x):
            x = x if self.received is None else self.received
            for block in self.layers:
                x = block(x)
            return x

    return DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=overlap,
            overlap_param_gather=overlap,
            align_param_gather=case in ("megatron-align", "megatron-ahead"),
            bucket_size=width * width,
        ),
        Chunk(),
    )


class Experts(torch.nn.Module):
    """A layer that is this rank's expert: tokens go to the experts and come back."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        for parameter in layer.parameters():
            parameter.allreduce = False  # so Megatron tells parameters of experts

    def forward(self, x):
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.mappings import all_to_all

        group = parallel_state.get_expert_model_parallel_group()
        return all_to_all(group, self.layer(all_to_all(group, x)))


def _optimizer(case, model):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    return get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-2,
            use_distributed_optimizer=True,
            overlap_param_gather=model[0].ddp_config.overlap_param_gather,
            overlap_param_gather_with_optimizer_step=case == "megatron-ahead",
            clip_grad=1.0,
        ),
        model,
    )
