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
