"""LLM: parameters and FLOPs against closed forms, layer kinds, bad fields."""

import dataclasses

import pytest

from paceline.errors import ModelError
from paceline.model.blocks import LatentAttention, MoE
from paceline.model.llm import LLM

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
        ({"layers": 10_001}, "layers is 10001, beyond any real model"),
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


@pytest.mark.parametrize(
    ("dense", "every", "mixtures"),
    [(0, 1, [0, 1, 2, 3, 4, 5, 6]), (0, 3, [2, 5]), (2, 3, [4]), (1, 3, [3, 6]), (6, 1, [6])],
)
def test_which_layers_are_mixtures(dense, every, mixtures):
    mixed = llm(layers=7, moe=MoE(experts=2, top_k=1, ffn=3, dense_layers=dense, every=every))
    assert [i for i in range(7) if mixed.is_moe_layer(i)] == mixtures
    assert mixed.moe_layers == len(mixtures)
    assert not any(llm().is_moe_layer(i) for i in range(2))


def test_biases_of_experts_and_their_router():
    """Up and down of 3, with biases of 3 and 4; a router with a bias an expert."""
    mixed = llm(moe=MoE(experts=4, top_k=2, ffn=3))
    assert mixed.expert_parameters == 2 * 4 * 3 + 3 + 4
    assert mixed.router_parameters == 4 * (4 + 1)
    assert mixed.shared_expert_parameters == 0
    assert llm().expert_parameters == llm().router_parameters == llm().moe_ffn_parameters == 0
    gated = llm(gated=True, moe=MoE(experts=4, top_k=2, ffn=3))
    assert gated.expert_parameters == 3 * 4 * 3 + 2 * 3 + 4


def test_norms_of_queries_and_keys_and_of_latents():
    plain = llm(norm="layernorm", bias=False)
    assert (
        llm(norm="layernorm", bias=False, qk_norm=True).parameters - plain.parameters == 2 * 2 * 4
    )
    latent = LatentAttention(q_rank=None, kv_rank=5, nope_dim=2, rope_dim=1, value_dim=4)
    model = llm(bias=True, latent=latent)
    assert model.attention_parameters == model.attention_matmul + 4 + 2 * 5


def test_modules_for_more_tokens_are_of_the_last_layers_kind():
    """Two modules: a mixture each, with its idle experts, a projection of 8 x 4 and three norms."""
    moe = MoE(experts=4, top_k=1, ffn=3)
    plain, mtp = llm(bias=False, moe=moe), llm(bias=False, moe=moe, mtp_layers=2)
    layer = 4 * 16 + 4 * 24 + 4 * 4 + 2 * 8
    assert mtp.parameters - plain.parameters == 2 * (layer + 2 * 4 * 4 + 3 * 8)
    assert mtp.parameters - mtp.active_parameters == (2 + 2) * 3 * 24
    # the last of two layers is dense here: nothing idles in the modules
    every_other = dataclasses.replace(moe, every=2)
    dense_end = llm(layers=3, bias=False, moe=every_other, mtp_layers=2)
    without = llm(layers=3, bias=False, moe=every_other)
    dense_layer = 4 * 16 + 2 * 4 * 16 + 2 * 8
    assert dense_end.parameters - without.parameters == 2 * (dense_layer + 2 * 4 * 4 + 3 * 8)
    assert dense_end.parameters - dense_end.active_parameters == 1 * 3 * 24


def test_flops_of_modules_of_a_mixture():
    """Of the last kind: 1 expert of 2 x 4 x 3 and a router of 4 x 4 in place of the MLP."""
    moe = MoE(experts=4, top_k=1, ffn=3)
    plain, mtp = llm(moe=moe), llm(moe=moe, mtp_layers=2)
    matmul = 4 * 16 + 24 + 16 + 2 * 4 * 4 + 40
    more = mtp.model_flops_per_token() - plain.model_flops_per_token()
    assert more == 2 * (6 * matmul + 12 * 8 * 4)


def test_flops_of_latent_attention_and_gated_mlps():
    latent = LatentAttention(q_rank=3, kv_rank=5, nope_dim=2, rope_dim=1, value_dim=4)
    model = llm(gated=True, bias=False, latent=latent)
    matmul = 2 * (model.attention_matmul + 3 * 4 * 16) + 10 * 4
    # 2 layers, 8 keys, 2 heads, queries 3 wide and values 4
    assert model.model_flops_per_token() == 6 * matmul + 6 * 2 * 8 * 2 * (3 + 4)
    assert (model.qk_dim, model.value_dim) == (3, 4)


@pytest.mark.parametrize(("window", "keys"), [(8, 4), (7, 7 * (1 - 7 / 16)), (1, 15 / 16)])
def test_keys_in_a_window(window, keys):
    assert llm(window=window).attention_pairs(0, causal=True) == pytest.approx(keys)
    assert llm(window=window).attention_pairs(0) == pytest.approx(2 * keys)


@pytest.mark.parametrize(("vocab", "tp", "rows"), [(128, 1, 128), (129, 1, 256), (256, 2, 256)])
def test_no_row_is_padded_that_need_not_be(vocab, tp, rows):
    assert llm(vocab=vocab).padded_vocab(tp) == rows


@pytest.mark.parametrize(
    "fields",
    [
        {"ffn": 1 << 40}, {"hidden": 6, "heads": 4, "head_dim": 2}, {"max_positions": 8},
        {"kv_heads": 1}, {"window": 1}, {"positions": "none", "max_positions": 4},
    ],
)  # fmt: skip
def test_values_at_their_bounds_are_taken(fields):
    model = llm(**fields)
    assert {name: getattr(model, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"heads": 3}, ("hidden", "heads")),
        ({"heads": 4, "kv_heads": 3}, ("heads", "kv_heads")),
        ({"max_positions": 4}, ("seq_len", "max_positions")),
        ({"moe": {}}, ("moe",)),
        ({"latent": 3}, ("latent",)),
        ({"name": 3}, ("name",)),
        ({"mtp_layers": -1}, ("mtp_layers",)),
        ({"ffn": (1 << 40) + 1}, ("ffn",)),
    ],
)
def test_an_error_carries_the_fields(fields, named):
    with pytest.raises(ModelError) as caught:
        llm(**fields)
    assert caught.value.fields == named


@pytest.mark.parametrize(
    ("capacity", "good"),
    [(0.1, True), (1, True), (True, False), (-1.0, False), (float("inf"), False), ("1", False)],
)
def test_capacities(capacity, good):
    fields = {"experts": 4, "top_k": 4, "ffn": 3, "capacity": capacity}
    if good:
        assert MoE(**fields).capacity == capacity
        return
    with pytest.raises(ModelError, match="capacity must be a positive number"):
        MoE(**fields)


def test_shared_experts_have_a_width_each_unless_told():
    assert MoE(experts=4, top_k=2, ffn=3, shared_experts=2).shared_ffn == 6
    assert MoE(experts=4, top_k=2, ffn=3, shared_experts=2, shared_ffn=5).shared_ffn == 5
    assert MoE(experts=4, top_k=2, ffn=3).shared_ffn == 0
