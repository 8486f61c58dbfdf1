"""Packed documents and padding: attention's work, useful tokens, and every way to say so."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.errors import ModelError
from paceline.model.attention_work import AttentionMaker
from paceline.model.cluster_presets import cluster_preset
from paceline.model.job_yaml import job_from_options, load_job
from paceline.model.llm_presets import llm_preset
from paceline.model.packing import Packing, documents_of
from paceline.model.plan import Plan
from paceline.plan.predict import predict
from paceline.plan.runs import run_of
from paceline.plan.search import search

LLAMA = llm_preset("llama3.1-8b")  # samples of 8,192 tokens
PLAN = Plan(dp=8, global_batch=64, zero=3, recompute="full")


def packed(documents=(), padding=0.0, llm=LLAMA):
    return replace(llm, packing=Packing(documents=documents, padding=padding))


# The work of attention.


def test_documents_of_3_and_1_tokens_meet_5_keys_a_quarter_each():
    # (9 + 1) / 2 pairs of 4 tokens, by the convention of s/2 keys for a whole sample.
    assert Packing(documents=[3, 1]).mean_keys(8, 8) == (9 + 1) / 2 / 4
    assert Packing(documents={3: 2, 1: 2}) == Packing(documents=[3, 1, 1, 3])
    assert Packing(documents=8).mean_keys(8, 8) == 4


def test_a_document_longer_than_a_sample_is_cut_into_samples_and_a_rest():
    assert Packing(documents=20).mean_keys(8, 8) == (64 + 64 + 16) / 2 / 20


@pytest.mark.parametrize("window", [64, 7])
def test_keys_are_those_of_a_block_diagonal_mask(window):
    lengths = [33, 5, 20, 6]
    document = np.repeat(range(4), lengths)
    query, key = np.indices((64, 64))
    seen = (key <= query) & (query - key < window) & (document[:, None] == document)
    # The mean counts a query's own key by half.
    counted = seen.sum() / 64 - 0.5
    assert Packing(documents=lengths).mean_keys(window, 64) == pytest.approx(counted, rel=0.06)


def test_flops_of_packed_attention_are_those_that_torch_counts():
    torch = pytest.importorskip("torch")
    from torch.utils import flop_counter

    lengths = [4096, 2048, 1024, 512, 512]
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    maker = AttentionMaker(packed(lengths), Plan(global_batch=1))
    maker.attention(0)
    ops = {op.name: op.flops for op in [*maker.work.forward, *maker.work.backward]}
    q, k = (torch.empty(8192, heads, 128, device="meta") for heads in (32, 8))
    # Torch counts the masked half, and takes each query head's own keys.
    k = k.expand(8192, 8, 128).repeat(1, 4, 1)
    whole = flop_counter._flash_attention_forward_flop(
        q, k, k, offsets, offsets, 4096, 4096, out_shape=None
    )
    assert ops["core-attention"] == whole / 2
    assert ops["core-attention-backward"] == 2.5 * whole / 2


def test_packed_attention_takes_the_share_of_squared_lengths_in_time():
    whole, half = (predict(packed(n), PLAN, "h100") for n in (8192, 4096))
    quarter = predict(packed({8192: 1, 4096: 2}), PLAN, "h100")
    assert predict(LLAMA, PLAN, "h100").step_time_s == whole.step_time_s
    saved = whole.breakdown["attention"] - half.breakdown["attention"]
    assert saved > 0.45 * whole.breakdown["attention"]
    assert whole.breakdown["attention"] - quarter.breakdown["attention"] == pytest.approx(saved / 2)
    for part in ("gemm", "memory", "tail"):
        assert half.breakdown[part] == whole.breakdown[part]
    assert half.memory_bytes == whole.memory_bytes


def test_windows_and_scores_that_are_stored_save_nothing_beyond_documents():
    gemma = llm_preset("gpt-oss-20b")  # windows of 128
    assert packed(2048, llm=gemma).attention_pairs(0) == pytest.approx(
        gemma.attention_pairs(0), rel=0.05
    )
    unfused = replace(PLAN, flash=False)
    times = [predict(llm, unfused, "h100").step_time_s for llm in (LLAMA, packed(1024))]
    assert times[0] == times[1]


def test_sparse_attention_scores_the_keys_of_its_document_alone():
    deepseek = llm_preset("deepseek-v3.2")
    ops = []
    for llm in (deepseek, packed(deepseek.seq_len // 2, llm=deepseek)):
        maker = AttentionMaker(llm, Plan(global_batch=1))
        maker.attention(0)
        ops.append({op.name: op.flops for op in maker.work.forward if hasattr(op, "flops")})
    assert ops[1]["index-scores"] == ops[0]["index-scores"] / 2


# Useful tokens.


def test_padding_costs_its_share_of_useful_tokens():
    whole, padded = (predict(packed(padding=p), PLAN, "h100", tokens=1e12) for p in (0, 0.25))
    assert padded.step_time_s == whole.step_time_s
    assert padded.tokens_per_s == 0.75 * whole.tokens_per_s
    assert padded.days == pytest.approx(whole.days / 0.75, rel=1e-5)
    assert padded.dollars == pytest.approx(whole.dollars / 0.75, rel=1e-5)


def test_model_flops_are_those_of_real_tokens_and_their_documents():
    """Megatron-LM's ``num_floating_point_operations`` takes the sums of lengths and squares."""
    lengths = [3000, 3144]  # and 2,048 tokens of padding
    llm = packed(lengths, 0.25)
    linear = 6.0 * (LLAMA.parameters - LLAMA.embedding_parameters - 65 * LLAMA.hidden)
    attention = 6.0 * LLAMA.layers * sum(n * n for n in lengths) * LLAMA.heads * 2 * 128
    assert llm.model_flops_per_token() * 6144 == pytest.approx(linear * 6144 + attention)
    prediction = predict(llm, PLAN, "h100")
    flops = (linear * 6144 + attention) * 64 / 8
    assert prediction.model_flops_per_gpu * prediction.step_time_s == pytest.approx(flops)


def test_a_kernel_that_is_told_of_documents_skips_padding():
    assert Packing(documents=64, padding=0.5).computed_keys(128, 128) == 16
    assert Packing(padding=0.5).computed_keys(128, 128) == 64
    assert Packing(padding=0.5).mean_keys(128, 128) == 32


def test_a_search_ranks_by_the_packed_step_and_its_useful_tokens():
    llm = packed(512, 0.1)
    result = search(llm, cluster_preset("h100"), gpus=8, global_batch=64, tokens=1e12, zeros=(1, 3))
    best = predict(llm, result.plan(0), "h100", tokens=1e12)
    assert result.step_time_s[0] == pytest.approx(best.step_time_s)
    assert result.mfu[0] == pytest.approx(best.mfu)
    assert result.days[0] == pytest.approx(best.days)


# Ways to say it.


def test_a_job_file_names_documents_and_padding(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {preset: llama3.1-8b, packing: {documents: {512: 30, 4096: 2}, padding: 0.05}}\n"
        "cluster: h100\n"
    )
    assert load_job(path).llm == packed({512: 30, 4096: 2}, 0.05)
    path.write_text("model: {preset: llama3.1-8b, packing: {documents: [900, 0]}}\ncluster: h100\n")
    with pytest.raises(ModelError, match=r"line 1: model.packing.documents: documents are a leng"):
        load_job(path)


def test_options_and_rows_name_them_too():
    packing = Packing(documents=documents_of("512x30, 4096x2"), padding=0.05)
    job = job_from_options(model="llama3.1-8b", gpu="h100", seq_len=4096, packing=packing)
    assert job.llm == replace(LLAMA, seq_len=4096, packing=packing)
    row = {"model": "llama3.1-8b", "gpu": "h100", "gpus": "8", "global_batch": "64", "dp": "8"}
    row |= {"micro_batch": "1", "tp": "1", "pp": "1", "documents": "512x30 4096x2"}
    assert run_of({**row, "padding": "0.05"}).llm == packed({512: 30, 4096: 2}, 0.05)
    assert run_of({**row, "documents": "", "padding": ""}).llm == LLAMA
    with pytest.raises(ModelError, match=r"^documents are a length"):
        run_of({**row, "documents": "long"})
    with pytest.raises(ModelError, match=r"^padding is a share"):
        run_of({**row, "padding": "5"})


def test_commands_take_and_show_them(capsys):
    job = ["--model", "llama3.1-8b", "--gpu", "h100", "--gpus", "8", "--global-batch", "64"]
    packing = ["--documents", "512x30,4096x2", "--padding", "0.05"]
    assert run(["predict", *job, *packing, "--zero", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["samples"] == {"documents": [[512, 30], [4096, 2]], "padding": 0.05}
    per_step = document["tokens_per_s"] * document["step_time_s"]
    assert per_step == pytest.approx(0.95 * 64 * 8192)
    for command in ("predict", "plan"):
        assert run([command, *job, *packing, "--zero", "3"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "8,192 tokens (documents of 736 tokens on average, 5.0% padding)" in text
        assert run([command, *job, "--documents", "some"]) == 2
        assert "documents are a length" in capsys.readouterr().err


def test_rows_of_a_file_say_it_themselves(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    head = "model,gpu,gpus,global_batch,micro_batch,tp,dp,pp,zero,documents,padding\n"
    row = "llama3.1-8b,h100,8,64,1,1,8,1,3,{},{}\n"
    path.write_text(head + row.format("512x30 4096x2", 0.05) + row.format("", "") * 2)
    assert run(["predict", "--runs", str(path), "--json"]) == 0
    assert run(["predict", "--runs", str(path), "-o", str(tmp_path / "predicted.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "predicted.csv").read_text().splitlines()))
    packed_s, *whole_s = (float(one["predicted_step_time_s"]) for one in rows)
    assert whole_s[0] == whole_s[1] > packed_s
    capsys.readouterr()
    assert run(["predict", "--runs", str(path), "--documents", "900"]) == 2
    assert "leave out the job" in capsys.readouterr().err


def test_a_job_file_is_not_contradicted_by_options(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text("model: llama3.1-8b\ncluster: h100\ngpus: 8\nplan: {global_batch: 64}\n")
    for command in ("predict", "plan"):
        assert run([command, str(path), "--documents", "900"]) == 2
        assert "--documents contradicts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "documents",
    ["", "many", [True], [-1], [float("nan")], [1e300], {512: 0}, {"x": 1}, [[1, 2]], None, 0.5],
)
def test_documents_that_are_none_are_refused(documents):
    with pytest.raises(ModelError, match="documents are a length"):
        Packing(documents=documents)


@pytest.mark.parametrize("padding", [1, -0.1, float("nan"), "5%", True])
def test_padding_beyond_a_share_is_refused(padding):
    with pytest.raises(ModelError, match="padding is a share"):
        Packing(padding=padding)


def test_a_packed_job_is_beyond_the_measured_steps():
    assert any("packed documents" in text for text in predict(packed(900), PLAN, "h100").warnings)
    assert not any("packed" in text for text in predict(packed(padding=0.1), PLAN, "h100").warnings)
