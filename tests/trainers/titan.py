"""torchtitan's trainer on the host, for ``job.py``: what asks for a GPU there is answered here.

Read and run at 0.3.0. Replaced: the device that it finds and its module (``tools/utils.py``), and
the monitor of a GPU's memory. The model is its llama, the loop, the
sharding and the optimizers are torchtitan's, unchanged.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torchtitan.tools import utils

utils.device_type = "cpu"
utils.device_module = SimpleNamespace(
    set_device=lambda _: None, current_device=lambda: 0, synchronize=lambda: None
)

if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13
    torch.distributed.set_timeout = lambda *_: None

from torchtitan.components import metrics
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.rope import ComplexRoPE
from torchtitan.models.llama3.config_registry import llama3_debugmodel

WIDTH, WORDS, ROW = 32, 64, 32


class Memory:
    """Stands for the monitor of a GPU's memory."""

    device_name = "host"

    def reset_peak_stats(self):
        pass

    def get_peak_stats(self):
        return metrics.DeviceMemStats(*[0] * len(metrics.DeviceMemStats._fields))


metrics.build_device_memory_monitor = Memory


class Words(BaseTokenizer):
    """No file of a tokenizer is needed: the data are numbers."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return WORDS


class Tokens(BaseDataLoader):
    """The same random tokens in every run, other ones on every rank."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **_):
        self._shape, self._seed = (local_batch_size, seq_len + 1), dp_rank

    def __iter__(self):
        seeded = torch.Generator().manual_seed(self._seed)
        while True:
            tokens = torch.randint(0, WORDS, self._shape, generator=seeded)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def configuration(folder, layers, steps, microbatches, ranks):
    """The debugging model, with fewer layers and short rows."""
    config = llama3_debugmodel()
    config.dump_folder = str(folder)
    model = config.model_spec.model
    model.dim, model.vocab_size, heads = WIDTH, WORDS, 2
    model.tok_embeddings.num_embeddings, model.tok_embeddings.embedding_dim = WORDS, WIDTH
    model.norm.normalized_shape = model.lm_head.in_features = WIDTH
    model.lm_head.out_features = config.loss.loss_fn.global_vocab_size = WORDS
    model.layers = llama3._build_llama3_layers(
        fuse_qkv=True,
        n_layers=layers,
        dim=WIDTH,
        n_heads=heads,
        hidden_dim=WIDTH,
        rope=ComplexRoPE.Config(dim=WIDTH // heads, max_seq_len=ROW, theta=1e4, scaling="llama"),
        attn_backend="flex",
    )
    for layer in model.layers:  # flex is compiled, for a GPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.dataloader, config.tokenizer = Tokens.Config(), Words.Config()
    config.training.local_batch_size, config.training.seq_len = 1, ROW
    config.training.global_batch_size = microbatches * ranks
    config.training.steps, config.training.disable_cuda_graphs = steps, True
    config.training.mixed_precision_param = "float32"
    config.checkpoint.enable = config.validator.enable = False
    config.parallelism.spmd_backend = "partial_dtensor"
    config.comm.trace_buf_size = 0
    return config
