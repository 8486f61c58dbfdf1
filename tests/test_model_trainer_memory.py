"""Memory of torchtitan, DeepSpeed and Accelerate: modules, loss and buffers, against torch."""

from dataclasses import replace
from functools import partial

import pytest

from paceline.model.activations import end_activations, layer_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.memory import place_parameters, stage_states
from paceline.model.memory_peak import PARTS, memory_moments, memory_table, stage_memory
from paceline.model.memory_rules import MemoryRules
from paceline.model.operators import layer_kind
from paceline.model.plan import Plan
from paceline.model.trainer_memory import BUCKET
from paceline.plan.assemble import Assembly
from paceline.plan.launch.files import SPACES
from paceline.plan.search import search

#: The sizes at which transformers was measured: 256 tokens, a unit of 2 bytes x 64 x 256.
SMALL = LLM(
    name="llama", layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=224, vocab=1000,
    seq_len=256, gated=True, norm="rmsnorm", positions="rotary", bias=False, tied=False,
)  # fmt: skip
QWEN = replace(SMALL, qk_norm=True)
UNIT = 2 * 64 * 256
DEEPSPEED, ACCELERATE, TORCHTITAN = (
    MemoryRules(trainer=name) for name in ("deepspeed", "accelerate", "torchtitan")
)
PLAN = Plan(dp=2, global_batch=2, zero=1)
TRANSIENT = PARTS.index("transient")


def layer_units(llm: LLM, plan: Plan, rules: MemoryRules) -> float:
    return layer_activations(llm, layer_kind(llm, 0), plan, rules)[0] / UNIT


@pytest.mark.parametrize(
    ("llm", "rules", "zero", "units"),
    [
        (SMALL, DEEPSPEED, 1, 25.1875),
        (QWEN, DEEPSPEED, 1, 29.875),
        (SMALL, ACCELERATE, 3, 25.1875),
        (SMALL, ACCELERATE, 0, 30.1875),  # autocast over weights in fp32
        (QWEN, ACCELERATE, 0, 34.875),
    ],
)
def test_a_layer_of_transformers_keeps_what_autograd_saves_of_it(llm, rules, zero, units):
    """Of LlamaForCausalLM and Qwen3ForCausalLM of transformers 5.24, torch 2.13, eager."""
    assert layer_units(llm, replace(PLAN, zero=zero), rules) == units


@pytest.mark.parametrize(("llm", "name"), [(SMALL, "Llama"), (QWEN, "Qwen3")])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_of_transformers_itself(llm, name, autocast):
    torch, transformers = (pytest.importorskip(m) for m in ("torch", "transformers"))

    def saved(layers: int) -> int:
        config = getattr(transformers, f"{name}Config")(
            hidden_size=64, intermediate_size=224, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, num_hidden_layers=layers, vocab_size=1000, use_cache=False,
            tie_word_embeddings=False,
        )  # fmt: skip
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        model = model.to(torch.float32 if autocast else torch.bfloat16)
        ids, tensors = torch.zeros(1, 256, dtype=torch.int64), {}

        def pack(tensor):
            if 256 in tensor.shape:  # no weights
                tensors[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            kept = model(input_ids=ids, labels=ids)
        assert kept.loss.requires_grad
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())

    rules, zero = (ACCELERATE, 0) if autocast else (DEEPSPEED, 1)
    units = layer_units(llm, replace(PLAN, zero=zero), rules)
    assert (saved(2) - saved(1)) / UNIT == units


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_of_transformers_itself(recompute):
    """Forward and backward of a model, by what torch allocates: within 1%."""
    torch, transformers = (pytest.importorskip(m) for m in ("torch", "transformers"))
    from live_bytes import LiveBytes

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=896, num_attention_heads=8, num_key_value_heads=4,
        num_hidden_layers=8, vocab_size=8192, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    if recompute == "full":
        model.activation_checkpointing_enable()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.zeros(1, 1024, dtype=torch.int64)
    with LiveBytes() as live:
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
    llm = replace(
        SMALL, layers=8, hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=896, vocab=8192,
        seq_len=1024,
    )  # fmt: skip
    plan = Plan(global_batch=1, zero=0, grad_bytes=2, recompute=recompute)
    moments = memory_moments(llm, plan, DEEPSPEED)[:, :, 0]
    peak = (moments[:, PARTS.index("activations")] + moments[:, TRANSIENT]).max()
    assert peak == pytest.approx(live.peak, rel=0.01)


def test_an_eager_norm_keeps_its_input_in_fp32_and_normalised():
    """``LlamaRMSNorm.forward`` in torch's operators; the next product keeps its result."""
    torch = pytest.importorskip("torch")
    from live_bytes import LiveBytes

    weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    head = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    x = torch.randn(1, 256, 64, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes() as live:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + 1e-6)
        out = head(weight * wide.to(torch.bfloat16))
        del wide, variance
        kept = live.now - out.nbytes
    # The model's last norm, beside its input, the head's, and logits of the default loss.
    last = end_activations(SMALL, PLAN, DEEPSPEED)[1] - 6 * 256 * 1024
    assert last == kept


def test_the_loss_of_transformers_takes_14_bytes_a_logit_beside_its_output():
    """``ForCausalLMLoss``: logits in fp32, their cross entropy; the output lives on."""
    torch = pytest.importorskip("torch")
    from live_bytes import LiveBytes

    head = torch.nn.Linear(16, 2048, bias=False, dtype=torch.bfloat16)
    x = torch.randn(64, 16, dtype=torch.bfloat16, requires_grad=True)
    with LiveBytes() as live:
        output = head(x)
        loss = torch.nn.functional.cross_entropy(output.float(), torch.zeros(64, dtype=torch.int64))
        held = live.now
        loss.backward()
    count = 64 * 2048
    assert output.shape == (64, 2048)
    assert (held / count, live.peak / count) == pytest.approx((6, 14), rel=2e-3)
    for rules in (DEEPSPEED, ACCELERATE):
        for zero in range(4):
            assert rules.loss_of(replace(PLAN, zero=zero)) == (6, 14)
    compiled = replace(PLAN, kernels="compiled")
    assert DEEPSPEED.loss_of(compiled) == TORCHTITAN.loss_of(PLAN) == (2, 4)
    assert replace(DEEPSPEED, loss="chunked").loss_of(PLAN) == (0, 0.5)
    assert MemoryRules().loss_of(PLAN) == (4, 6)


def test_transformers_splits_the_heads_rows_alone():
    """Logits and embedding are whole on each tensor-parallel rank; so is a tied head."""
    plan = replace(PLAN, tp=4, dp=1)
    rows = 1024 * 64
    for llm in (SMALL, replace(SMALL, tied=True)):
        dense = place_parameters(llm, plan)[0].sum()
        parameters = stage_states(llm, plan, DEEPSPEED)[0].sum()
        assert parameters == 2 * (dense + rows * 3 / 4)
    ours, theirs = (end_activations(SMALL, plan, rules) for rules in (MemoryRules(), DEEPSPEED))
    norm = 2 * UNIT + 4 * 256
    inputs = 2 * UNIT
    assert ours[1] == inputs + 4 * 256 * 1024 / 4
    assert theirs[1] == inputs + norm + 6 * 256 * 1024


def test_ddp_copies_gradients_into_buckets():
    torch = pytest.importorskip("torch")
    from torch import distributed

    from live_bytes import LiveBytes

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.Linear(256, 256, bias=False)
        with LiveBytes() as live:
            wrapped = torch.nn.parallel.DistributedDataParallel(model)
            wrapped(torch.zeros(1, 256)).sum().backward()
            held = live.now
    finally:
        distributed.destroy_process_group()
    assert held == pytest.approx((4 + 4) * 256 * 256, rel=1e-3)  # gradients and buckets
    replicas = replace(PLAN, zero=0)
    for rules in (ACCELERATE, TORCHTITAN):
        with_buckets, alone = (
            memory_moments(SMALL, plan, rules)[:, TRANSIENT, 0]
            for plan in (replicas, replace(replicas, dp=1))
        )
        parameters = place_parameters(SMALL, replicas)[0].sum()
        assert (with_buckets - alone).tolist() == [4 * parameters] * 3


def test_fsdp_with_gathered_parameters_reduces_a_layer_at_a_time():
    """A layer's gradient beside another's reduction, and the head's; at the end both ends'."""
    plan = replace(PLAN, zero=2)
    alone = replace(plan, dp=1, global_batch=1)
    rules = replace(TORCHTITAN, loss="in-place")
    more = memory_moments(SMALL, plan, rules) - memory_moments(SMALL, alone, rules)
    layer, rows = 64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 224 + 2 * 64, 1024 * 64
    assert more[:, TRANSIENT, 0].tolist() == [0, 6 * layer + 2 * rows, 6 * 2 * rows]


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        # BF16_Optimizer: gradients in bf16 until the next backward.
        ({"zero": 1}, lambda n: [0, 0, 2 * n]),
        ({"zero": 1, "global_batch": 4}, lambda n: [2 * n] * 3),
        ({"zero": 1, "precision": "fp16"}, lambda n: [4 * BUCKET] * 3),
        # Two buckets, and the part of the gradients twice.
        ({"zero": 2}, lambda n: [4 * BUCKET, 4 * BUCKET, 4 * BUCKET + 4 * n / 2]),
        ({"zero": 2, "overlap_dp": False}, lambda n: [2 * BUCKET] * 2 + [2 * BUCKET + 2 * n]),
        ({"zero": 0, "grad_bytes": 2}, lambda n: [0, 0, 0]),
    ],
)
def test_deepspeed_has_buckets_and_gradients_in_16_bits(fields, extra):
    plan = replace(PLAN, **fields)
    like = replace(DEEPSPEED, trainer="torchtitan", loss="in-place")
    rules = replace(DEEPSPEED, loss="in-place")
    more = memory_moments(SMALL, plan, rules) - memory_moments(SMALL, replace(plan, zero=1), like)
    parameters = place_parameters(SMALL, plan)[0].sum()
    assert more[:, TRANSIENT, 0] == pytest.approx(extra(parameters))


def test_deepspeed_holds_shards_in_16_bits_and_gathered_parameters():
    plan = replace(PLAN, zero=3)
    rules = replace(DEEPSPEED, loss="unfused")
    plain = MemoryRules(loss="unfused")
    more = memory_moments(SMALL, plan, rules) - memory_moments(SMALL, plan, plain)
    n = place_parameters(SMALL, plan)[0].sum()
    early = 2 * BUCKET + 2 * n / 2
    ends = 2 * 2 * 1024 * 64
    layer = 64 * 16 * (4 + 2 + 2 + 4) + 3 * 64 * 224 + 2 * 64
    # FSDP2 holds embedding, head and a layer at the loss; the model is smaller than 1e9.
    first = early + 4 * n / 2 + 2 * n - (ends + 2 * layer)
    assert more[0, TRANSIENT, 0] == pytest.approx(first)
    assert more[2, TRANSIENT, 0] == pytest.approx(early + 4 * n / 2)


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "accelerate"])
def test_a_search_has_the_memory_of_each_plan(framework):
    rules = MemoryRules(trainer=framework)
    result = search(
        QWEN, cluster_preset("h100"), 8, 16, micro_batches=(1, 2), rules=rules, **SPACES[framework]
    )
    assembly = Assembly(CostModel(QWEN, result.cluster), result.legal, rules)
    for rows in assembly.shapes():
        peaks = assembly.peak_bytes(rows)
        for row, peak in zip(rows.tolist(), peaks.tolist(), strict=True):
            plan = result.legal.plan(row)
            assert peak == pytest.approx(memory_table(QWEN, plan, rules).sum(axis=0).max())


def test_a_plan_that_megatron_could_hold_is_too_large_for_transformers():
    """Llama 3.1 8B on eight H100s, 6,144 tokens: it was said to fit for both."""
    from paceline.model.llm_presets import llm_preset

    llm = replace(llm_preset("llama3.1-8b"), seq_len=6144)
    memory = partial(stage_memory, llm, Plan(dp=8, micro_batch=1, global_batch=64, zero=2))
    room = MemoryRules(expandable_segments=True).room(cluster_preset("h100").gpu.memory_bytes)
    ours, theirs = (
        max(stage.total_bytes for stage in memory(rules=rules))
        for rules in (MemoryRules(), ACCELERATE)
    )
    assert ours < room < theirs
