"""The benchmark of one table's rows: every row is in the list, with numbers or a reason."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import requires

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "predict.py"
KEYS = ["id", "predicted", "low", "high", "measured", "error"]
#: Entries of a table beside these.
MORE_KEYS = {"memory": ["fit"]}


@pytest.mark.parametrize(
    ("table", "file", "rows", "first", "error"),
    [
        ("mlperf", "mlperf_llm_runs.csv", 124, "v3.0/NVIDIA/dgxh100_n64_nemo/gpt3", 0.085),
        ("published", "published_2026_part.csv", 113, 0, 0.115),
        ("memory", "memory_peaks.csv", 20, "tt-8b-8gpu-0", 0.035),
    ],
)
def test_every_row_has_numbers_or_a_reason(table, file, rows, first, error):
    """``error``: the mean that docs/accuracy.md tells of the whole table, and a little more."""
    path = requires.data("llm", file)
    command = [sys.executable, SCRIPT, "--table", table, path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert len(result) == rows
    assert result[0]["id"] == first
    for row in result:
        assert list(row) == KEYS + MORE_KEYS.get(table, [])
        assert row["measured"] > 0
        if row["error"] is None:
            assert 0 < row["low"] < row["predicted"] * 1.0001 < row["high"] * 1.0001
        else:
            assert row["predicted"] is None
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in result if r["error"] is None]
    assert 0 < sum(errors) / len(errors) < error


def predicted(tmp_path, table, head, *rows):
    path = tmp_path / f"{table}.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    command = [sys.executable, SCRIPT, "--table", table, path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert [list(row) for row in result] == [KEYS + MORE_KEYS.get(table, [])] * len(rows)
    assert all((row["error"] is None) == (row["predicted"] is not None) for row in result)
    return result


PUBLISHED = "container,system,model,precision,gpus,global_batch,micro_batch,seq_len,fsdp,tp,pp"
PUBLISHED += ",cp,vp,ep,tokens_per_s_per_gpu,section"


def test_published_rows_that_can_be_expressed(tmp_path):
    """Spellings, empty cells, two values in one, and plans of no shared row."""
    result = predicted(
        tmp_path,
        "published",
        PUBLISHED,
        '26.06,DGX-H200,LLAMA3_8B,FP8_CS (MXFP8),8,128,1,8192,,1,1,1,n/a,,"14,000 (15000)",',
        "26.06,h100,Kimi-K2,bf16,2560,2560,1,4096,0,2,20,1,-,64,n/a,Pre-Training",
        "26.04,DGX-GB300,gpt-oss 120B,MXFP8,128,1280,1,8192,,1,1,2,n/a,64,,Pre-Training",
        "26.06,DGX-GB200,LLAMA3_70B,MXFP8,128,256,1,8192,64,1,2,1,n/a,1,nan,Pre-Training",
        "26.06,DGX-B200,GPT3_175B,BF16,64,64,1,4096,0,8,8,1,1,1,500,Pre-Training",
        "26.06,DGX-B300,LLAMA3_70B,NVFP4,64,64,1,4096,64,1,1,1,1,1,500,PEFT (LoRA)",
        ",GB200 NVL72,DeepSeek-V3 (w/ MTP),MXFP8,256,4096,1,4096,0,1,4,1,4,64,4000,",
    )
    assert [row["error"] for row in result] == [None] * 7
    assert [row["measured"] for row in result] == [
        *(pytest.approx(128 * 8192 / 8 / 14_000), None, None, None),
        *(pytest.approx(64 * 4096 / 64 / 500), pytest.approx(64 * 4096 / 64 / 500)),
        pytest.approx(4096 * 4096 / 256 / 4000),
    ]


def test_published_rows_that_cannot_say_why(tmp_path):
    row = "26.06,DGX-H100,LLAMA3_8B,FP8,8,128,1,8192,0,1,1,1,n/a,1,14000,Pre-Training"
    result = predicted(
        tmp_path,
        "published",
        PUBLISHED,
        row.replace("H100", "Q700"),
        row.replace("LLAMA3_8B", "Unheard-of"),
        row.replace("FP8", ""),
        row.replace("FP8", "FP3"),
        row.replace(",8,128", ",0,128"),
        row.replace("0,1,1,1,n/a", "0,3,1,1,n/a"),
        row.replace("0,1,1,1,n/a", "0,1,2,1,many"),
        row.replace(",128,", ",999999999999999999999,"),
        row.replace(",14000,Pre-Training", ""),
        row,
    )
    said = [
        *("GPU preset", "model preset", "precision ''", "precision 'FP3'", "0 GPUs are no"),
        *("8 GPUs are no multiple of tp 3", "vp must be a number", "beyond any real plan"),
        "the row has 14 cells, the header 16",
    ]
    assert [text in row["error"] for text, row in zip(said, result, strict=False)] == [True] * 9
    assert result[-1]["error"] is None


MLPERF = "id,task,gpu,gpus,model,hidden,heads,kv_heads,layers,seq_len,ffn,vocab,global_batch"
MLPERF += ",micro_batch,tp,pp,vpp,cp,dp,recompute,zero,precision,step_time_s"


def test_mlperf_rows_of_any_sort(tmp_path):
    row = "a,pretrain,NVIDIA H100 80GB HBM3,8,llama3.1-8b,,,,,8192,,,8,1,1,1,1,1,8,none,1,FP8,1.2"
    result = predicted(
        tmp_path,
        "mlperf",
        MLPERF,
        row,
        row.replace("1.2", "n/a"),
        row.replace("1.2", "soon"),
        row.replace("a,pre", ",pre").replace("llama3.1-8b,,,,", "mine,64,4,4,1000000000"),
        row + ",7",
    )
    assert [row["error"] is None for row in result] == [True, True, True, False, False]
    assert [row["measured"] for row in result[:3]] == [1.2, None, None]
    assert [row["id"] for row in result] == ["a", "a", "a", 3, "a"]
    assert "layers is 1000000000, beyond any real model" in result[3]["error"]
    assert result[4]["error"] == "the row has 24 cells, the header 23"


MEMORY = "id,source,task,model,seq_len,gpu,global_batch,micro_batch,tp,pp,vpp,cp,dp,ep,zero"
MEMORY += ",recompute,precision,measured_gib,measure"


def test_memory_rows_of_any_sort(tmp_path):
    row = "a,torchtitan,pretrain,Llama3_8B,8192,h100,16,2,1,1,1,1,8,1,3,per-op,BF16,82.4,reserved"
    result = predicted(
        tmp_path,
        "memory",
        MEMORY,
        row,
        row.replace("BF16", "float8").replace("82.4", "n/a"),
        row.replace("torchtitan,pretrain", "NeMo,LoRA").replace("h100", "h100-96g"),
        row.replace("h100", "").replace("82.4", "nan"),
        row.replace("pretrain", "dpo"),
        row.replace("1,1,1,1,8", "1,999999999999999999999,1,1,8"),
        row.replace("8192", "n/a"),
    )
    assert [row["error"] is None for row in result] == [*[True] * 4, *[False] * 3]
    assert [row["measured"] for row in result] == [82.4, None, 82.4, None, 82.4, 82.4, 82.4]
    assert "task 'dpo' cannot be expressed" in result[4]["error"]
    assert result[6]["error"] == "seq_len is empty"
    states = [row["fit"] for row in result[:4]]
    assert states == ["yes", "yes", "expandable segments", None]


def test_no_job_that_ran_out_of_memory_fits_for_certain():
    """Megatron-Bridge's mb-70b-0 did; it sets no allocator that the row tells of."""
    path = requires.data("llm", "memory_peaks.csv")
    command = [sys.executable, SCRIPT, "--table", "memory", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    fit = {row["id"]: row["fit"] for row in json.loads(done.stdout)}
    assert fit["mb-70b-0"] == "expandable segments"
    assert {fit[name] for name in fit if name.startswith("tt-")} == {"yes"}
