"""LLM: parameters and FLOPs against closed forms, layer kinds, bad fields."""

import dataclasses

import pytest

from paceline.errors import ModelError
from paceline.model.llm import LLM, LatentAttention, MoE

TINY = {"name": "tiny", "layers": 2, "hidden": 4, "heads": 2, "vocab": 10, "seq_len": 8}


def llm(**fields):
    return LLM(**(TINY | fields))


def test_defaults_are_filled_in():
    tiny = llm()
    assert (tiny.kv_heads, tiny.head_dim, tiny.ffn, tiny.max_positions) == (2, 2, 16, 8)
    assert tiny.qkv_bias


def test_a_gpt_is_counted_tensor_by_tensor():
    tiny = llm()
    assert tiny.attention_parameters == (4 * 12 + 12) + (4 * 4 + 4)  # qkv, output
    assert tiny.dense_ffn_parameters == (4 * 16 + 16) + (16 * 4 + 4)
    assert tiny.norm_parameters == 2 * (4 + 4)
    assert tiny.layer_parameters(0) == 80 + 148 + 16
    assert tiny.embedding_parameters == 10 * 4 + 8 * 4
    assert tiny.head_parameters == 0
    assert tiny.parameters == tiny.active_parameters == 2 * 244 + 72 + 8


def test_grouped_queries_a_gated_mlp_and_an_untied_head():
    modern = llm(
        heads=4, kv_heads=2, ffn=6, gated=True, norm="rmsnorm", positions="rotary", tied=False,
        bias=False, qk_norm=True,
    )  # fmt: skip
    assert modern.head_dim == 1
    assert modern.attention_parameters == 4 * (4 + 2 + 2) + 4 * 4 + 2 * 1
    assert modern.dense_ffn_parameters == 3 * 4 * 6
    assert modern.norm_parameters == 2 * 4
    assert modern.embedding_parameters == modern.head_parameters == 40


def test_biases_on_queries_keys_and_values_alone():
    without = llm(bias=False)
    assert not without.qkv_bias
    qkv = llm(bias=False, qkv_bias=True)
    assert qkv.parameters - without.parameters == 2 * 12


def test_a_mixture_of_experts():
    moe = MoE(experts=4, top_k=2, ffn=3, shared_experts=2, dense_layers=1)
    mixed = llm(layers=3, bias=False, moe=moe)
    assert [mixed.is_moe_layer(i) for i in range(3)] == [False, True, True]
    assert mixed.moe_layers == 2
    assert mixed.expert_parameters == 2 * 4 * 3
    assert mixed.shared_expert_parameters == 2 * 4 * 6
    assert mixed.router_parameters == 4 * 4
    assert mixed.moe_ffn_parameters == 4 * 24 + 48 + 16
    assert mixed.parameters - mixed.active_parameters == 2 * 2 * 24
    layers = sum(mixed.layer_parameters(i) for i in range(3))
    assert mixed.parameters == layers + mixed.embedding_parameters + mixed.final_norm_parameters


def test_every_nth_of_the_layers_after_the_dense_ones_is_a_mixture():
    mixed = llm(layers=7, moe=MoE(experts=2, top_k=1, ffn=3, dense_layers=1, every=2))
    assert [i for i in range(7) if mixed.is_moe_layer(i)] == [2, 4, 6]
    assert mixed.moe_layers == 3


def test_latent_attention():
    latent = LatentAttention(q_rank=3, kv_rank=5, nope_dim=2, rope_dim=1, value_dim=4)
    model = llm(bias=False, norm="rmsnorm", latent=latent)
    q, down, up, out = 4 * 3 + 3 * 2 * 3, 4 * (5 + 1), 5 * 2 * (2 + 4), 2 * 4 * 4
    assert model.attention_matmul == q + down + up + out
    assert model.attention_parameters == model.attention_matmul + 3 + 5  # two inner norms
    direct = dataclasses.replace(model, latent=dataclasses.replace(latent, q_rank=None))
    assert model.attention_matmul - direct.attention_matmul == q - 4 * 2 * 3


def test_a_multi_token_prediction_module_is_one_layer_more():
    plain, mtp = llm(), llm(mtp_layers=1)
    assert mtp.parameters - plain.parameters == 244 + 2 * 4 * 4 + 3 * 8
    matmul = 4 * 16 + 8 * 16 + 2 * 16 + 40  # layer, projection, head once more
    more = mtp.model_flops_per_token() - plain.model_flops_per_token()
    assert more == 6 * matmul + 12 * 8 * 4


@pytest.mark.parametrize(("heads", "h", "n"), [(64, 6144, 48), (160, 25600, 128)])
def test_flops_of_a_gpt_are_equation_7_of_korthikanti(heads, h, n):
    s, v = 2048, 51200
    gpt = LLM(name="gpt", layers=n, hidden=h, heads=heads, vocab=v, seq_len=s)
    closed = 72 * n * h**2 * (1 + s / (6 * h) + v / (12 * h * n))
    assert gpt.model_flops_per_token() == pytest.approx(closed, rel=1e-12)
    # Eq. 3 of Narayanan et al. 2021 adds one forward of the layers.
    recomputed = 96 * n * h**2 * (1 + s / (6 * h) + v / (16 * h * n))
    layers = closed - 6 * h * v
    assert closed + layers / 3 == pytest.approx(recomputed, rel=1e-12)


def test_a_causal_mask_halves_the_attention_and_nothing_else():
    tiny = llm()
    attention = 12 * 2 * 8 * 4
    assert tiny.model_flops_per_token() - tiny.model_flops_per_token(causal=True) == attention / 2
    assert tiny.model_flops_per_token(16) - tiny.model_flops_per_token(8) == attention


def test_flops_of_a_mixture_are_those_of_the_experts_visited():
    moe = MoE(experts=4, top_k=2, ffn=3, shared_experts=1)
    mixed, dense = llm(moe=moe), llm(ffn=9)  # 2 routed + 1 shared expert of 3
    more = mixed.model_flops_per_token() - dense.model_flops_per_token()
    assert more == 6 * 2 * 4 * 4  # the routers


def test_a_window_shortens_every_nth_layer():
    model = llm(layers=3, window=2, window_every=2)
    assert [model.layer_window(i) for i in range(3)] == [2, None, 2]
    # Queries 0, 1, 2, ... see (about) 0, 1, 2, 2, ... keys: w (1 - w / 2s).
    assert model.attention_pairs(0, causal=True) == 2 * (1 - 2 / 16)
    assert model.attention_pairs(1, causal=True) == 4
    assert llm(window=100).attention_pairs(0, causal=True) == 4


def test_the_vocabulary_is_padded_for_each_rank():
    gpt2 = llm(vocab=50257)
    assert gpt2.padded_vocab(1) == 50304
    assert gpt2.padded_vocab(8) == 51200
    assert gpt2.padded_vocab(2, multiple=1) == 50258


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layers": 0}, "layers must be a whole number >= 1, not 0"),
        ({"hidden": True}, "hidden must be a whole number >= 1, not True"),
        ({"vocab": 1.5}, "vocab must be a whole number >= 1, not 1.5"),
        ({"ffn": 1 << 50}, "ffn is 1125899906842624, beyond any real model"),
        ({"heads": 3}, "hidden 4 is not a multiple of heads 3; give head_dim"),
        ({"heads": 4, "kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        ({"max_positions": 4}, "seq_len 8 exceeds max_positions 4"),
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm, not 'batchnorm'"),
        ({"tied": 1}, "tied must be true or false, not 1"),
        ({"window": 0}, "window must be a whole number >= 1, not 0"),
        ({"name": ""}, "a model needs a name"),
        ({"moe": MoE(experts=2, top_k=1, ffn=3, dense_layers=2)}, "no layer is a mixture"),
    ],
)
def test_bad_fields_are_named(fields, words):
    with pytest.raises(ModelError, match=words):
        llm(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"top_k": 5}, r"top_k \(5\) exceeds the experts \(4\)"),
        ({"shared_ffn": 8}, "shared_ffn is 8 but shared_experts is 0"),
        ({"capacity": 0}, "capacity must be a positive number or nothing, not 0"),
        ({"every": 0}, "the mixture of experts: every must be"),
    ],
)
def test_bad_mixtures_are_refused(fields, words):
    with pytest.raises(ModelError, match=words):
        MoE(**({"experts": 4, "top_k": 2, "ffn": 3} | fields))


def test_a_bad_latent_attention_is_refused():
    with pytest.raises(ModelError, match="the latent attention: kv_rank must be"):
        LatentAttention(q_rank=None, kv_rank=0, nope_dim=2, rope_dim=1, value_dim=4)
