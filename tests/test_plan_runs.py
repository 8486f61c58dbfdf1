"""Files of runs: what rows mean, what is wrong with them, and how far predictions are."""

import csv

import pytest

from paceline.errors import ModelError, PlanError
from paceline.plan.interval import Interval
from paceline.plan.runs import (
    error_table,
    predicted_csv,
    read_runs,
    run_clusters,
    run_of,
    runs_cluster,
)

HEAD = "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,step_time_s"
ROW = "64,512,8,3072,32,30,2048,1,64,1,3.5665"


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "runs.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def test_a_row_without_more_is_a_run_of_the_years_of_full_recomputation(written):
    (run,) = read_runs(written(HEAD, ROW)).runs
    assert (run.llm.hidden, run.llm.vocab, run.llm.ffn) == (3072, 51200, 12288)
    plan = run.plan
    assert (plan.recompute, plan.precision, plan.zero, plan.flash) == ("full", "fp16", 0, False)
    assert (plan.overlap_dp, plan.grad_bytes) == (False, 2)
    assert run.measured_s == 3.5665
    assert runs_cluster([run], None).name == "a100-80g-4nic"


def test_optional_columns_change_it(written):
    head = f"{HEAD},vpp,recompute,sequence_parallel,precision,zero,vocab,kv_heads,ffn,gpu,model"
    row = "64,64,1,12288,96,96,2048,8,1,8,13.75,3,selective,1,bf16,1,50000,8,40000,h100,ours"
    path = written(head, row.replace(",ours", ","))
    (run,) = read_runs(path).runs
    assert (run.plan.vpp, run.plan.schedule) == (3, "interleaved")
    assert (run.plan.recompute, run.plan.sequence_parallel, run.plan.zero) == ("selective", True, 1)
    assert (run.llm.vocab, run.llm.kv_heads, run.llm.ffn) == (50000, 8, 40000)
    assert run.plan.flash
    assert run_clusters([run], None)[0].name == "h100"


def test_a_model_of_the_presets_needs_no_fields(written):
    head = "gpus,global_batch,micro_batch,tp,dp,pp,gpu,model,seq_len,precision,zero,recompute"
    (run,) = read_runs(written(head, "8,128,1,1,8,1,H100,Llama3_8B,8192,fp8,3,none")).runs
    assert (run.llm.name, run.llm.layers, run.llm.seq_len) == ("llama3-8b", 32, 8192)
    assert run.measured_s is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        ([HEAD], "has a header but no run"),
        (["gpu,batch", "1,2"], r"lacks the columns gpus, .*did you mean gpu for gpus"),
        ([HEAD, ROW.replace("3072", "wide")], r"runs.csv:2: hidden must be a number, not 'wide'"),
        ([HEAD, ROW, ROW.replace("3.5665", "nan")], r"runs.csv:3: step_time_s must be a number"),
        ([HEAD, ROW.replace("3.5665", "-1")], "step_time_s must be above 0"),
        ([HEAD, ROW.replace("3.5665", "")], "step_time_s is empty; every run needs"),
        ([HEAD, ROW.replace("64,512,8", "64,512,2.5")], "micro_batch must be a whole number"),
        ([HEAD, ROW.replace("64,512", "32,512")], "gpus is 32, but tp 1 x pp 1 x dp 64"),
        ([HEAD, ROW + ",9"], "has 12 cells, the header 11"),
        ([HEAD + ",gpu", ROW + ",h10"], r"gpu is unknown: .*h100"),
        ([HEAD + ",recompute", ROW + ",sel"], "recompute must be one of none, selective, full"),
        ([HEAD + ",tp", ROW + ",1"], "has the column 'tp' more than once"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_column(written, lines, said):
    with pytest.raises(ModelError, match=said):
        read_runs(written(*lines), need_times=True)


def test_a_plan_that_cannot_be_is_an_error_of_its_line(written):
    with pytest.raises(PlanError, match=r"runs.csv:2: .*layers 30 not divisible by pp 4"):
        read_runs(written(HEAD, "64,512,8,3072,32,30,2048,1,16,4,3.5"))


def test_not_a_table(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00PAR1")
    with pytest.raises(ModelError, match="is no text"):
        read_runs(path)
    with pytest.raises(ModelError, match="No such file"):
        read_runs(tmp_path / "none.csv")


def test_predictions_are_added_and_the_rest_is_kept(written):
    table = read_runs(written(HEAD + ",note", ROW + ",first"))
    text = predicted_csv(table, {2: 3.25}, {2: Interval(3.0, 4.0, "")}, {})
    (row,) = csv.DictReader(text.splitlines())
    assert (row["predicted_low_s"], row["predicted_high_s"]) == ("3", "4")
    assert row["note"] == "first"
    assert row["predicted_step_time_s"] == "3.25"


def test_errors_as_shares_of_the_measured():
    errors = error_table([1.0, 2.0, 4.0], [1.1, 2.0, 3.0])
    assert errors["mape"] == pytest.approx((0.1 + 0 + 0.25) / 3)
    assert errors["median"] == pytest.approx(0.1)
    assert errors["r2"] == pytest.approx(
        1 - 1.01 / ((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2)
    )


def test_runs_of_several_gpus_are_fitted_apart(written):
    runs = read_runs(written(HEAD + ",gpu", ROW + ",a100-80g", ROW + ",a100-40g")).runs
    with pytest.raises(ModelError, match="several GPUs"):
        runs_cluster(runs, None)


def test_a_row_that_cannot_be_expressed_is_an_error_of_its_own(written):
    head = HEAD + ",precision,gpu,task"
    rows = [
        ROW + ",fp4,h100,",
        ROW + ",bf16,h100,pretrain",
        "",
        ROW + ",bf16,h100,dpo",
        ROW + ",bf16,abacus,",
    ]
    table = read_runs(written(head, *rows), skip_errors=True)
    assert [run.line for run in table.runs] == [3]
    assert table.lines == (2, 3, 5, 6)
    assert table.errors[2].startswith("precision ")
    assert table.errors[5].startswith("task 'dpo' cannot be expressed")
    assert table.errors[6].startswith("gpu is unknown")
    text = predicted_csv(table, {3: 1.5}, {3: Interval(1.0, 2.0, "")}, table.errors)
    cells = list(csv.DictReader(text.splitlines()))
    assert [row["predicted_step_time_s"] for row in cells] == ["", "1.5", "", ""]
    assert cells[1]["prediction_error"] == ""
    assert cells[2]["prediction_error"] == table.errors[5]


def test_cells_as_other_tables_write_them(written):
    head = HEAD + ",precision,gpu,vpp,overlap_tp,sequence_parallel"
    row = '"1,024","2,048",1,3072,32,30,2048,2,256,2,n/a,MXFP8,B200-180GB,-,true,yes'
    (run,) = read_runs(written(head, row)).runs
    assert (run.plan.gpus, run.plan.global_batch, run.measured_s) == (1024, 2048, None)
    assert (run.plan.precision, run.plan.vpp) == ("fp8", 1)
    assert run.plan.overlap_tp
    assert run.plan.sequence_parallel


def test_a_row_of_another_length_is_that_rows_error(written):
    table = read_runs(written(HEAD, ROW + ",9", ROW), skip_errors=True)
    assert table.errors == {2: "has 12 cells, the header 11"}
    assert [run.line for run in table.runs] == [3]


def test_one_row_without_a_file():
    row = dict(zip(HEAD.split(","), ROW.split(","), strict=True))
    assert run_of(row).plan.dp == 64
    with pytest.raises(ModelError, match=r"^micro_batch must be a whole number"):
        run_of({**row, "micro_batch": "2.5"})


def test_flags_and_uneven_layers_are_columns(written):
    head = HEAD + ",overlap_tp,overlap_dp,grad_reduce_bytes,layers_per_chunk,gpu,sequence_parallel"
    row = "32,64,1,3072,32,30,2048,2,8,2,3.5,1,0,2,16 14,h100,1"
    (run,) = read_runs(written(head, row)).runs
    assert (run.plan.overlap_tp, run.plan.overlap_dp, run.plan.grad_bytes) == (True, False, 2)
    assert run.plan.layers_per_stage == (16, 14)
    with pytest.raises(ModelError, match=r"runs.csv:2: layers_per_chunk must be whole numbers"):
        read_runs(written(head, row.replace("16 14", "16 x")))


def test_a_step_of_lora_trains_adapters(written):
    rows = [ROW + ",h100,lora,", ROW + ",h100,lora,64", ROW + ",h100,sft,"]
    runs = read_runs(written(HEAD + ",gpu,task,adapter_rank", *rows)).runs
    assert [run.plan.adapter_rank for run in runs] == [16, 64, 0]


def test_gpus_without_a_preset_count_where_a_cluster_is_given(written):
    path = written(HEAD + ",gpu", ROW + ",abacus")
    assert read_runs(path, ignore_gpu=True).runs[0].gpu == "abacus"
