"""A rank of an installed Megatron-Core on the CPU, two steps: ``megatron_job.py FOLDER``.

Started by ``test_record_megatron.py``. Stages are not tested: Megatron's transfers need a GPU.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from megatron.core.transformer import TransformerConfig
from torch.overrides import TorchFunctionMode

import paceline.record as record

MICROBATCHES = 3


class Model(torch.nn.Linear):
    """A model as the schedule wants it."""

    def __init__(self):
        super().__init__(4, 4)
        self.config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)

        self.model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, _):
        """The first stage has none."""


class OnTheHost(TorchFunctionMode):
    """The schedule counts tokens on a GPU; here it does on the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def forward(batches, model):
    """Megatron's ``forward_step_func``: the output, and what makes a loss of it."""
    return model(next(batches)), lambda output: (output.square().mean(), {})


def main(folder):
    store = f"file://{Path(folder).parent / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    recorder = record.start(folder, every=1)
    record.instrument_megatron()
    model = Model()
    for number in range(2):
        with recorder.step(number), OnTheHost():
            losses = forward_backward_no_pipelining(
                forward_step_func=forward,
                data_iterator=iter(torch.randn(MICROBATCHES, 2, 4)),
                model=model,
                num_microbatches=MICROBATCHES,
                seq_length=2,
                micro_batch_size=1,
            )
            assert len(losses) == MICROBATCHES
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1])
