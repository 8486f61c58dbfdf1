"""Kernels of PyTorch by itself, counted on torch modules and held against published FSDP runs."""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import requires
from paceline.errors import PlanError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.operators import Operator, layer_kind, layer_work
from paceline.model.plan import Plan
from paceline.model.torch_kernels import EAGER
from paceline.plan.interval import EVIDENCE
from paceline.plan.predict import predict
from paceline.plan.search import search

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from fsdp import measured_over_predicted

LLAMA = replace(
    llm_preset("llama2-7b"), seq_len=256, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=688
)
PLAIN = LLM(
    name="plain", layers=1, hidden=256, heads=4, vocab=1024, seq_len=256, bias=False, tied=True
)


def element_wise(llm, **fields):
    """Operators of a layer that are element-wise, in both directions."""
    work = layer_work(llm, layer_kind(llm, 0), Plan(global_batch=1, **fields))
    return [
        entry
        for direction in work.directions()
        for entry in direction
        if isinstance(entry, Operator) and entry.part == "memory"
    ]


def counted_bytes(build, llm):
    """Bytes that a torch layer's element-wise operations read and write, forward and backward."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    products = ("mm", "addmm", "bmm")
    views = (
        *("view", "_unsafe_view", "t.", "transpose", "expand", "slice", "detach", "split"),
        *("unsqueeze", "squeeze", "empty", "new_empty", "ones_like", "unbind", "permute"),
    )

    class Count(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            name = str(function).removeprefix("aten.")
            if not name.startswith((*products, *views)):
                tensors = {
                    id(leaf): leaf
                    for leaf in tree_leaves((args, kwargs, result))
                    if isinstance(leaf, torch.Tensor)
                }
                for tensor in tensors.values():
                    held = tensor.untyped_storage().nbytes()
                    self.total += min(tensor.numel() * tensor.element_size(), held)
            return result

    with torch.device("meta"):
        layer = build(torch, llm)
        x = torch.empty(1, llm.seq_len, llm.hidden, dtype=torch.bfloat16, requires_grad=True)
        with Count() as count:
            y = layer(x)
            y.backward(torch.ones_like(y))
    return count.total


def _attention(torch):
    """Attention whose own kernels are not counted."""

    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.shapes = q.shape, k.shape, v.shape
            return torch.empty_like(q)

        @staticmethod
        def backward(ctx, gradient):
            return tuple(gradient.new_empty(shape) for shape in ctx.shapes)

    return Core.apply


def hugging_face_layer(torch, llm):
    """A Llama layer as transformers 5 writes it: RMSNorm in fp32, rotary, gated SiLU."""
    nn, core = torch.nn, _attention(torch)
    head = llm.hidden // llm.heads

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(llm.hidden, dtype=torch.bfloat16))

        def forward(self, x):
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x.dtype)

    def rotated(x, cos, sin):
        half = torch.cat((-x[..., head // 2 :], x[..., : head // 2]), dim=-1)
        return x * cos + half * sin

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            linear = {"bias": False, "dtype": torch.bfloat16}
            self.norms = nn.ModuleList([Norm(), Norm()])
            self.qkvo = nn.ModuleList(nn.Linear(llm.hidden, llm.hidden, **linear) for _ in range(4))
            self.gate = nn.Linear(llm.hidden, llm.ffn, **linear)
            self.up = nn.Linear(llm.hidden, llm.ffn, **linear)
            self.down = nn.Linear(llm.ffn, llm.hidden, **linear)

        def forward(self, x):
            b, s, h = x.shape
            cos, sin = torch.empty(2, 1, 1, s, head, dtype=x.dtype).unbind(0)
            y = self.norms[0](x)
            q, k, v = (w(y).view(b, s, -1, head).transpose(1, 2) for w in self.qkvo[:3])
            out = core(rotated(q, cos, sin), rotated(k, cos, sin), v)
            x = x + self.qkvo[3](out.transpose(1, 2).reshape(b, s, h))
            y = self.norms[1](x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    return Layer()


def plain_layer(torch, llm):
    """A GPT layer of torch's own modules."""
    nn, core = torch.nn, _attention(torch)
    linear = {"bias": False, "dtype": torch.bfloat16}

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(llm.hidden, **linear) for _ in range(2))
            self.qkv = nn.Linear(llm.hidden, 3 * llm.hidden, **linear)
            self.out = nn.Linear(llm.hidden, llm.hidden, **linear)
            self.up = nn.Linear(llm.hidden, llm.ffn, **linear)
            self.down = nn.Linear(llm.ffn, llm.hidden, **linear)

        def forward(self, x):
            b, s, h = x.shape
            heads = (b, s, llm.heads, h // llm.heads)
            q, k, v = (
                y.view(heads).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1)
            )
            x = x + self.out(core(q, k, v).transpose(1, 2).reshape(b, s, h))
            return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

    return Layer()


@pytest.mark.parametrize(
    ("build", "llm"), [(hugging_face_layer, LLAMA), (plain_layer, PLAIN)], ids=["llama", "plain"]
)
def test_eager_layers_move_what_torch_modules_do(build, llm):
    counted = counted_bytes(build, llm)
    eager = sum(entry.bytes for entry in element_wise(llm, kernels="eager"))
    assert eager == pytest.approx(counted, rel=0.06)
    fused = element_wise(llm)
    assert eager / sum(entry.bytes for entry in fused) == pytest.approx(EAGER[llm.norm][0])


def test_zero_3_is_eager_unless_told_otherwise():
    assert Plan(global_batch=8, dp=8).kernel_set == "fused"
    assert Plan(global_batch=8, dp=8, zero=3).kernel_set == "eager"
    assert Plan(global_batch=8, dp=8, zero=3, kernels="fused").kernel_set == "fused"
    assert "zero3 compiled" in Plan(global_batch=8, dp=8, zero=3, kernels="compiled").describe()
    with pytest.raises(PlanError, match="kernels must be one of auto, fused, compiled, eager"):
        Plan(global_batch=8, kernels="triton")


def test_compiled_layers_differ_in_attention_alone():
    fused, compiled = (
        layer_work(LLAMA, layer_kind(LLAMA, 0), Plan(global_batch=1, kernels=kernels)).forward
        for kernels in ("fused", "compiled")
    )
    changed = [(a, b) for a, b in zip(fused, compiled, strict=True) if a != b]
    assert [(a.name, b) for a, b in changed] == [
        ("core-attention", changed[0][0]._replace(sdpa=True))
    ]


def test_the_per_operator_policy_repeats_every_second_product():
    """torchtitan: wo, and w3 of the gated MLP; not fused attention."""
    plan = Plan(global_batch=1, zero=3, recompute="selective")
    work = layer_work(LLAMA, layer_kind(LLAMA, 0), plan)
    products = {entry.name: entry.flops for entry in work.recompute if entry.part == "gemm"}
    through = 2.0 * LLAMA.seq_len * LLAMA.hidden * LLAMA.ffn
    assert products == {"projection": 2.0 * LLAMA.seq_len * LLAMA.hidden**2, "mlp-up": through}
    assert not any(entry.part == "attention" for entry in work.recompute)


def test_attention_of_pytorch_on_hopper_is_flashattention_2():
    """Shah et al. 2024, abstract: 35% of an H100's peak."""
    share = cluster_preset("h100").efficiency
    assert share.sdpa * share.attention == pytest.approx(0.35, abs=0.005)
    assert cluster_preset("a100-80g").efficiency.sdpa == 1


LLAMA_34B = {"layers": 48, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 22016}


@pytest.mark.parametrize(
    ("name", "seq_len", "fields", "published"),
    [
        # foundation-model-stack/fms-fsdp 0d31998, README: 128 A100s, tokens per second and GPU.
        # Its fourth, 13B with HSDP, is predicted too fast (docs/accuracy.md).
        ("llama2-7b", 4096, {"dp": 128, "micro_batch": 2, "shards": 8}, 3760),
        ("34b", 4096, {"dp": 128, "micro_batch": 8, "recompute": "full"}, 772),
        ("llama2-70b", 4096, {"dp": 128, "micro_batch": 6, "recompute": "full"}, 380),
    ],
)
def test_published_fsdp_runs_on_a100s(name, seq_len, fields, published):
    """Fused kernels, as Megatron has them, would be 8 to 27% too fast here; nothing is fitted."""
    if name == "34b":
        llm = replace(llm_preset("llama2-70b"), name=name, **LLAMA_34B)
    else:
        llm = llm_preset(name)
    llm = replace(llm, seq_len=seq_len, max_positions=max(seq_len, llm.max_positions))
    plan = Plan(zero=3, global_batch=fields["dp"] * fields.get("micro_batch", 1), **fields)
    prediction = predict(llm, plan, "a100-80g")
    assert prediction.tokens_per_s_per_gpu == pytest.approx(published, rel=0.12)
    fused = predict(llm, replace(plan, kernels="fused"), "a100-80g")
    assert fused.tokens_per_s_per_gpu > 1.07 * prediction.tokens_per_s_per_gpu
    measured_s = plan.global_batch * seq_len / plan.gpus / published
    assert prediction.interval.low_s < measured_s < prediction.interval.high_s


def test_a_search_times_fsdp_plans_as_predict_does():
    result = search(llm_preset("llama2-7b"), cluster_preset("h100"), 8, 32, max_tp=2, max_pp=2)
    places = [i for i in range(len(result)) if result.plan(i).zero == 3][:5]
    assert places
    for i in places:
        prediction = predict(result.llm, result.plan(i), result.cluster)
        assert prediction.step_time_s == pytest.approx(result.step_time_s[i], rel=1e-9)


def test_published_fsdp_runs_of_mpt():
    """216 steps on H100 and A100 (8 to 512 GPUs, 512 to 65,536 tokens); nothing is fitted."""
    path = "scripts/train/benchmarking/README.md"
    file = requires.public("mosaicml/llm-foundry", "8c8dd48", path, "llm-foundry")
    ratios = defaultdict(list)
    for row, ratio in measured_over_predicted(file):
        ratios[row["GPU"]].append(ratio)
    every = np.concatenate(list(ratios.values()))
    assert len(every) == 216
    assert np.abs(1 / every - 1).mean() < 0.08
    low, high = EVIDENCE["fsdp"].low, EVIDENCE["fsdp"].high
    for values in ratios.values():
        inside = (low <= np.array(values)) & (np.array(values) <= high)
        assert inside.mean() >= 0.8
