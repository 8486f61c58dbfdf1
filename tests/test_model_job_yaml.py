"""Planned jobs from YAML and from options."""

import json
from dataclasses import replace

import pytest

from paceline.errors import ModelError, PlanError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.job_yaml import derive_dp, job_from_options, load_job
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan

JOB = """\
model: gpt3-175b
cluster: a100-80g
gpus: 1024
plan: {tp: 8, pp: 8, micro_batch: 1, global_batch: 1536}
training:
  tokens: 300e9
  price_per_gpu_hour: 2.50
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path

    return write


def test_a_job_file(written):
    job = load_job(written(JOB))
    assert job.llm == llm_preset("gpt3-175b")
    assert job.plan == Plan(tp=8, pp=8, dp=16, micro_batch=1, global_batch=1536)
    assert (job.gpus, job.tokens) == (1024, 300e9)
    assert job.cluster.price_per_gpu_hour == 2.5
    assert job.cluster.gpu == cluster_preset("a100-80g").gpu


def test_options_make_the_same_job(written):
    made = job_from_options(
        model="gpt3-175b",
        gpus=1024,
        gpu="a100-80g",
        tokens=300e9,
        price_per_gpu_hour=2.5,
        tp=8,
        pp=8,
        dp=None,
        micro_batch=1,
        global_batch=1536,
    )
    read = load_job(written(JOB))
    cluster = replace(read.cluster, price_source="given")
    assert made == replace(read, cluster=cluster, source="")


def test_without_gpus_they_follow_from_the_plan(written):
    text = JOB.replace("gpus: 1024\n", "").replace("tp: 8,", "tp: 8, dp: 2,")
    assert load_job(written(text)).gpus == 128


def test_without_a_plan_there_is_something_to_search(written):
    job = load_job(written("model: llama3-8b\ncluster: h100\n"))
    assert (job.plan, job.gpus, job.tokens) == (None, None, None)


def test_an_unknown_model_may_be_given_by_its_own_file(written):
    with pytest.raises(ModelError, match=r"no model preset 'qwen3-33b'.*; or give the path of the"):
        load_job(written(JOB.replace("gpt3-175b", "qwen3-33b")))


def test_a_model_based_on_a_preset(written):
    text = JOB.replace("gpt3-175b", "{preset: gpt3-175b, layers: 48, hidden: 6144, heads: 48}")
    llm = load_job(written(text)).llm
    # What followed from the old width follows from the new one.
    assert (llm.layers, llm.ffn, llm.head_dim, llm.kv_heads) == (48, 4 * 6144, 128, 48)


def test_a_model_by_its_own_fields_with_experts(written):
    own = (
        "{hidden: 512, layers: 4, heads: 8, vocab: 1000, seq_len: 128, "
        "moe: {experts: 8, top_k: 2, ffn: 256}}"
    )
    llm = load_job(written(JOB.replace("gpt3-175b", own))).llm
    assert (llm.name, llm.moe.experts, llm.ffn) == ("job", 8, 2048)


def test_a_hybrid_by_its_own_fields_and_as_changes_to_a_preset(written):
    own = "{preset: nemotron-3-nano, layers: 4, pattern: 'ME*E', mamba: {heads: 32}}"
    llm = load_job(written(JOB.replace("gpt3-175b", own))).llm
    assert (llm.pattern, llm.mamba.heads, llm.mamba.state, llm.moe_layers) == ("ME*E", 32, 128, 2)
    wrong = own.replace("ME*E", "ME*A")
    with pytest.raises(ModelError, match=r"line \d+: model.pattern: .* pattern has 'A' at 4"):
        load_job(written(JOB.replace("gpt3-175b", wrong)))


def test_a_model_of_a_config_beside_the_job(written, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for model in ("{hf: config.json}", "config.json"):
        llm = load_job(written(JOB.replace("gpt3-175b", model))).llm
        assert (llm.hidden, llm.kv_heads, llm.seq_len) == (64, 2, 32)


def test_a_cluster_in_place_or_in_a_file_beside_the_job(written, tmp_path):
    (tmp_path / "ours.yaml").write_text("preset: a100\nname: ours\n")
    for cluster in ("ours.yaml", "{preset: a100, name: ours}"):
        assert load_job(written(JOB.replace("a100-80g", cluster))).cluster.name == "ours"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpt3-175b", "gpt3-174b", "job.yaml, line 1: model: .*nearest.*gpt3-175b"),
        ("gpt3-175b", "{preset: gpt3-175b, layer: 4}", r"model\.layer: .*did you mean layers"),
        ("gpt3-175b", "{preset: gpt3-175b, layers: 0}", r"line 1: model\.layers: "),
        # A name that is that of a field is not what the message speaks of.
        ("gpt3-175b", "{preset: gpt3-175b, name: vocab, vocab: 99, layers: 0}", r"model\.layers: "),
        ("gpt3-175b", "{preset: gpt3-175b, moe: 7}", r"line 1: model\.moe: .*mapping.*not 7"),
        ("gpt3-175b", "{preset: gpt3-175b, latent: x}", r"line 1: model\.latent: .*not 'x'"),
        ("gpt3-175b", "{hidden: 512}", "line 1: model: lacks layers, heads, vocab, seq_len;"),
        ("gpt3-175b", "{preset: opt-175b, hf: x.json}", r"model\.hf: .*not on both"),
        ("gpt3-175b", "no.json", "line 1: model: .*no.json"),
        ("gpt3-175b", "{preset: mixtral-8x7b, moe: {topk: 1}}", r"model\.moe\.topk: .*top_k"),
        ("a100-80g", "a100-80x", "line 2: cluster: there is no GPU preset"),
        ("a100-80g", "no.yaml", "line 2: cluster: .*No such file"),
        ("cluster: a100-80g", "clster: a100-80g", "line 2: clster: .*did you mean cluster"),
        ("cluster: a100-80g\n", "", "line 1: lacks cluster"),
        ("1024", "-3", "line 3: gpus: must be a whole number >= 1, not '-3'"),
        ("1024", "1000", "line 4: plan.*1000 GPUs are no multiple of tp 8 x pp 8 = 64; 960 or"),
        ("tp: 8,", "tp: 8, dp: 8,", "line 4: plan.*= 512 GPUs, not 1024"),
        ("tp: 8", "tp: eight", r"line 4: plan\.tp: .*not 'eight'"),
        ("micro_batch", "microbatch", r"line 4: plan\.microbatch: .*did you mean micro_batch"),
        (", global_batch: 1536", "", "line 4: plan: .*lacks global_batch"),
        ("300e9", "300 GB", r"line 6: training\.tokens: 'GB' is no unit of tokens"),
        ("300e9", "0", r"line 6: training\.tokens: .*above 0"),
        ("2.50", "-1", r"line 7: training\.price_per_gpu_hour: "),
    ],
)
def test_a_wrong_job_names_line_and_field(written, old, new, said):
    with pytest.raises(ModelError, match=said):
        load_job(written(JOB.replace(old, new)))


def test_dp_follows_from_the_gpus():
    assert derive_dp(2240, tp=8, pp=35) == 8
    with pytest.raises(PlanError, match="100 GPUs are no multiple of tp 8 x pp 35 = 280; 280 GPUs"):
        derive_dp(100, tp=8, pp=35)


def test_the_longest_sample_is_that_of_the_model_and_not_of_the_job(written):
    text = JOB.replace("model: gpt3-175b", "model: {preset: gpt3-175b, CHANGE}")
    longer = load_job(written(text.replace("CHANGE", "seq_len: 4096"))).llm
    assert (longer.context, longer.max_positions) == (2048, 4096)
    table = load_job(written(text.replace("CHANGE", "max_positions: 4096"))).llm
    assert table.context == 4096
    own = load_job(written(text.replace("CHANGE", "seq_len: 4096, context: 8192"))).llm
    assert own.context == 8192
    assert own == longer  # a note, not a size


def test_options_that_contradict_each_other():
    with pytest.raises(ModelError, match="one of the two"):
        job_from_options(model="gpt3-175b")
    with pytest.raises(PlanError, match=r"no field 'ttp'.*tp"):
        job_from_options(model="gpt3-175b", gpu="a100", ttp=8)
    with pytest.raises(PlanError, match="lacks global_batch"):
        job_from_options(model="gpt3-175b", gpu="a100", tp=8)


def test_a_sequence_length_among_the_options():
    job = job_from_options(model="gpt3-175b", gpu="a100", seq_len=4096)
    assert (job.llm.seq_len, job.llm.max_positions) == (4096, 4096)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # a width changed: the head and the MLP follow; heads changed: keys and values, too
        ("hidden: 6144, heads: 96", {"head_dim": 64, "ffn": 24576, "kv_heads": 96}),
        ("heads: 48", {"head_dim": 256, "ffn": 49152, "kv_heads": 48}),
        ("hidden: 6144, ffn: 99", {"head_dim": 64, "ffn": 99, "kv_heads": 96}),
        ("seq_len: 4096", {"max_positions": 4096}),
        ("seq_len: 1024", {"max_positions": 2048}),
        ("seq_len: 1e3", {"seq_len": 1000, "max_positions": 2048}),
        ("layers: 3", {"ffn": 49152, "head_dim": 128}),
    ],
)
def test_sizes_that_follow_from_others(written, change, expected):
    llm = load_job(written(JOB.replace("gpt3-175b", f"{{preset: gpt3-175b, {change}}}"))).llm
    assert {field: getattr(llm, field) for field in expected} == expected


def test_sizes_that_never_followed_stay(written):
    changed = "{preset: llama3-8b, hidden: 8192, heads: 64}"
    llm = load_job(written(JOB.replace("gpt3-175b", changed))).llm
    assert (llm.kv_heads, llm.ffn, llm.head_dim) == (8, 14336, 128)


@pytest.mark.parametrize(
    ("gpus", "degrees", "words"),
    [
        (100, {"tp": 8}, "100 GPUs are no multiple of tp 8 x pp 1 = 8; 96 or 104 GPUs would be"),
        (10, {"tp": 2, "cp": 4}, "of tp 2 x pp 1 x cp 4 = 8; 8 or 16 GPUs would be"),
        (0, {}, "gpus must be a whole number >= 1, not 0"),
        (8, {"tp": True}, "tp must be a whole number >= 1, not True"),
        (8, {"pp": 0}, "pp must be a whole number >= 1, not 0"),
        (8, {"cp": 1.0}, "cp must be a whole number >= 1, not 1.0"),
    ],
)
def test_gpus_that_do_not_divide(gpus, degrees, words):
    with pytest.raises(PlanError, match=words):
        derive_dp(gpus, **degrees)
    assert derive_dp(8, tp=2, pp=2, cp=2) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu": "a100", "cluster": "x.yaml"}, "either a GPU .* or a cluster file"),
        ({}, "either a GPU .* or a cluster file"),
        ({"cluster": cluster_preset("a100"), "gpus_per_node": 4}, "its own GPUs per node"),
        ({"gpu": "a100", "tensor": 2}, "no field 'tensor'"),
        ({"gpu": "a100", "micro_bach": 2}, "did you mean micro_batch"),
        ({"gpu": "a100", "tp": 2}, "the plan lacks global_batch"),
        ({"gpu": "a100", "tokens": 0.0}, "tokens must be above 0, not 0"),
        ({"gpu": "a100", "tokens": float("inf")}, "tokens must be above 0, not inf"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ModelError, match=words):
        job_from_options(model="llama3-8b", **options)


def test_options_of_the_machines_and_the_sequence():
    job = job_from_options(model="llama3-8b", gpu="a100", gpus_per_node=4, seq_len=1024)
    assert (job.cluster.node.gpus, job.llm.seq_len, job.plan) == (4, 1024, None)
    priced = job_from_options(
        model=job.llm, cluster=job.cluster, price_per_gpu_hour=1.5, gpus=8, global_batch=8, tp=2
    )
    assert (priced.cluster.price_per_gpu_hour, priced.cluster.price_source) == (1.5, "given")
    assert (priced.plan.dp, priced.gpus) == (4, 8)
    assert job_from_options(model="llama3-8b", gpu="a100", global_batch=8, dp=2).gpus == 2


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("global_batch: 1536", "global_batch: 1536.0", "global_batch", 1536),
        ("global_batch: 1536", "global_batch: 1536, bucket_bytes: 40 MB", "bucket_bytes", 40e6),
        ("global_batch: 1536", "global_batch: 1536, bucket_bytes: null", "bucket_bytes", None),
        (
            "global_batch: 1536",
            "global_batch: 1536, layers_per_stage: [12, 12, 12, 12, 12, 12, 12, 12]",
            "layers_per_stage",
            (12,) * 8,
        ),
    ],
)
def test_values_of_a_plan(written, old, new, field, value):
    assert getattr(load_job(written(JOB.replace(old, new))).plan, field) == value


@pytest.mark.parametrize(("depth", "good"), [(10, True), (11, False)])
def test_values_nest_ten_deep(written, depth, good):
    from paceline.marked_yaml import read_marked

    section = read_marked(written("a: " + "[" * depth + "1" + "]" * depth), ModelError)
    if good:
        assert str(section.plain("a")).count("[") == depth
        return
    with pytest.raises(ModelError, match="too many or too deeply nested"):
        section.plain("a")


@pytest.mark.parametrize(("values", "good"), [(9_999, True), (10_000, False)])
def test_a_value_holds_ten_thousand_at_most(written, values, good):
    """The list itself is one of them."""
    from paceline.marked_yaml import read_marked

    section = read_marked(written(f"a: [{', '.join(['1'] * values)}]"), ModelError)
    if good:
        assert len(section.plain("a")) == values
        return
    with pytest.raises(ModelError, match="too many or too deeply nested"):
        section.plain("a")


def test_files_have_a_mebibyte_at_most(written):
    from paceline.marked_yaml import read_marked

    fits = "a: 1 #" + "x" * ((1 << 20) - 6)
    assert read_marked(written(fits), ModelError).whole("a") == 1
    with pytest.raises(ModelError, match="too long for a description"):
        read_marked(written(fits + "x"), ModelError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("300e9", 300e9), ("'300e9'", "300e9"), ("1e999", "1e999"), ("3e", "3e")),
        *(("-2E3", -2000.0), ("3.1e9", 3.1e9), (".5e-3", 5e-4), ("'3.1e9'", "3.1e9")),
    ],
)
def test_numbers_as_people_write_them(written, text, value):
    from paceline.marked_yaml import read_marked

    assert read_marked(written(f"a: {text}"), ModelError).plain("a") == value


@pytest.mark.parametrize(
    ("text", "good"), [("3", True), ("3.0", True), ("2", False), ("3.5", False), ("true", False)]
)
def test_whole_numbers_from_three_on(written, text, good):
    from paceline.marked_yaml import read_marked

    section = read_marked(written(f"\na: {text}"), ModelError)
    if good:
        assert section.whole("a", 3) == 3
        return
    with pytest.raises(ModelError, match=r"line 2: a: must be a whole number >= 3"):
        section.whole("a", 3)


def test_a_date_is_neither_number_nor_text(written):
    from paceline.marked_yaml import read_marked

    with pytest.raises(ModelError, match="must be a number or a text"):
        read_marked(written("a: 2026-01-01"), ModelError).plain("a")
    with pytest.raises(ModelError, match="a list"):
        read_marked(written("a: [1]"), ModelError).whole("a")
    with pytest.raises(ModelError, match="a mapping"):
        read_marked(written("a: {b: 1}"), ModelError).whole("a")
