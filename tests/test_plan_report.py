"""Numbers of a search and of a prediction as people read them."""

import dataclasses
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.memory_rules import MemoryRules
from paceline.plan.explain import explain_plans
from paceline.plan.interval import interval
from paceline.plan.predict import predict
from paceline.plan.search import search
from paceline.report import prediction as prediction_report
from paceline.report import search as report
from paceline.report.model_size import model_size
from paceline.report.page.frame import static
from paceline.report.plan_table import columns, row
from paceline.report.search_page import page
from paceline.units import (
    GIB,
    day_count,
    decimals_of,
    dollars,
    fixed,
    gib,
    in_gib,
    seconds_range,
    signed,
    significant,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(6.05, "$6.05"), (99.994, "$99.99"), (60_048.4, "$60,048"), (4.612e6, "$4.61 million")],
)
def test_money_is_in_dollars_until_a_million(value, text):
    assert dollars(value) == text


def test_memory_is_in_gib_so_that_an_80_gb_gpu_has_80():
    gpu = cluster_preset("a100-80g").gpu
    assert in_gib(gpu.memory_bytes) == "80.0 GiB"
    assert (gib(1.55 * GIB), in_gib(-GIB)) == ("1.6", "−1.0 GiB")


def test_days_below_ten_have_three_digits():
    assert [day_count(x) for x in (0.01653, 9.9961, 36.08, 1234.5)] == [
        *("0.0165", "10.0", "36.1", "1,234.5")
    ]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (431.4, 3, "431"),
        (0.01653, 3, "0.0165"),
        (2.0, 4, "2.000"),
        (99.96, 3, "100"),
        (999.96, 4, "1,000"),
        (3446.9, 3, "3,447"),
        (12345.6, 4, "12,346"),
        (-0.00327, 3, "−0.00327"),
        (0.0, 4, "0"),
        (float("nan"), 3, "–"),
    ],
)
def test_numbers_have_no_exponent_and_no_bare_dot(value, digits, text):
    assert significant(value, digits) == text


def test_a_range_of_seconds():
    assert seconds_range(289.53, 431.2) == "290–431"


@pytest.fixture(scope="module")
def found():
    llm, cluster = llm_preset("gpt2-355m"), cluster_preset("a100-80g")
    return search(llm, cluster, 8, 64, tokens=1e9, max_vpp=1)


def test_each_step_of_the_table_has_its_interval(found):
    within = interval(found.llm, found.plan(0), found.cluster, found.step_time_s[0])
    cells = dict(zip(columns(found), row(found, 0), strict=True))
    assert cells["80% within"] == seconds_range(within.low_s, within.high_s)
    assert cells["80% within"] == f"{within.low_s:.3f}–{within.high_s:.3f}"  # below a second
    assert cells["GiB"] == f"{found.memory_bytes[0] / 2**30:.1f}"
    assert cells["cost"] == dollars(found.dollars[0])
    record = json.loads(json.dumps(report.to_mapping(found, 1)))["plans"][0]
    assert (record["low_s"], record["high_s"]) == (within.low_s, within.high_s)
    screen = " ".join(" ".join(line.plain for line in report.lines(found, 2, 120)).split())
    assert "80% within: 80% of measured steps lie in this range of seconds. The range" in screen
    assert f"seconds. {within.about} No measured step has" in screen
    assert f"80% of measured steps. {within.about}</dd>" in page(found, 2).decode()
    prediction = _text(prediction_report.lines(predict(found.llm, found.plan(0), "a100-80g"), 120))
    assert re.search(
        rf"80% of such steps take [\d.]+ ms to [\d.]+ ms\. {within.about} ", prediction
    )


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("gpt2-355m", "355M parameters"),
        ("llama3.1-8b", "8.03B parameters"),
        ("mixtral-8x7b", "46.7B parameters, 12.9B active"),
    ],
)
def test_a_model_is_told_with_its_parameters(model, size):
    """Of Mixtral 8x7B Mistral publishes 46.7B and 12.9B, of Llama 3.1 8B Meta 8.03B."""
    assert model_size(llm_preset(model)) == size


def test_searches_and_predictions_begin_with_the_models_parameters(found):
    prediction = predict(found.llm, found.plan(0), found.cluster)
    for screen in (report.lines(found, 2, 120), prediction_report.lines(prediction, 120)):
        assert screen[0].plain.startswith("gpt2-355m (355M parameters) on 8 ")
    assert "gpt2-355m (355M parameters) on 8 GPUs" in page(found, 2).decode()
    record = report.to_mapping(found, 1)
    assert record["parameters"] == record["active_parameters"] == found.llm.parameters


def test_a_predictions_memory_adds_up_in_the_unit_of_its_gpu(found):
    prediction = predict(found.llm, found.plan(0), found.cluster, tokens=1e9)
    screen = " ".join(line.plain for line in prediction_report.lines(prediction, 120))
    spare, used, room = re.search(
        r"fits, ([\d.]+) GiB to spare .*?: ([\d.]+) of ([\d.]+) GiB at", screen
    ).groups()
    assert room == "80.0"
    reserve = prediction.rules.safe_reserve * 80
    assert float(spare) + float(used) + reserve == pytest.approx(80, abs=0.11)


@pytest.mark.parametrize(
    ("rules", "beside", "free"),
    [
        (
            MemoryRules(),
            "26.5% for the allocator's fixed segments (8% with expandable ones)",
            "8% of the memory free. One that fits without expandable segments leaves 26.5% free.",
        ),
        (MemoryRules(expandable_segments=True), "8%", "8% of the memory free."),
        (
            MemoryRules(expandable_segments=False),
            "26.5% for the allocator's fixed segments (8% with expandable ones)",
            "26.5% of the memory free, for fixed segments of PyTorch's allocator.",
        ),
        (MemoryRules(reserve=0.5), "50%", "50% of the memory free."),
    ],
)
def test_a_larger_reserve_has_its_reason(found, rules, beside, free):
    prediction = predict(found.llm, found.plan(0), found.cluster, rules=rules)
    screen = _text(prediction_report.lines(prediction, 120))
    assert f"GiB to spare beside a reserve of {beside} fullest is" in screen
    screen = _text(report.lines(dataclasses.replace(found, rules=rules), 2, 120))
    assert f"A plan leaves {free} Kernels:" in screen


def _text(lines):
    return " ".join(" ".join(line.plain for line in lines).split())


def test_plans_that_need_expandable_segments_are_marked(found):
    """Half of the plans fill less than nine tenths of the memory."""
    needs = np.sort(found.memory_bytes)
    memory = float(needs[len(needs) // 2]) / 0.9
    gpu = dataclasses.replace(found.cluster.gpu, memory_bytes=memory)
    cluster = dataclasses.replace(found.cluster, gpu=gpu)
    tight = dataclasses.replace(found, cluster=cluster)
    marked = [cells[6].endswith("+") for cells in (row(tight, i) for i in range(len(tight)))]
    assert marked == (tight.memory_bytes > memory * 58.8 / 80).tolist()
    assert any(marked)
    screen = " ".join(line.plain for line in report.lines(tight, 3, 120))
    best = marked.index(False) + 1
    expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    shows = f" (--top {best} shows it)" if best > 3 else ""
    assert f"+ needs {expandable}; rank {best}{shows} is the first plan that fits" in screen
    assert report.segments(tight, [best - 1]) == []  # no plan that is shown has the mark
    assert "expandable_segments" not in " ".join(x.plain for x in report.lines(found, 3, 120))


def test_terms_of_a_sum_have_its_decimals():
    assert [decimals_of(total, 4) for total in (5.685, 16.02, 431.2, 3447.0)] == [3, 2, 1, 0]
    assert [fixed(x, 2) for x in (1.005, 0.004, -0.006, 1234.5)] == [
        "1.00",
        "0",
        "−0.01",
        "1,234.50",
    ]
    assert [signed(x, 3) for x in (3.06e-9, -0.0917, 0.0917, 0.0)] == ["0", "−0.092", "+0.092", "0"]


@pytest.mark.parametrize(("a", "b"), [(0, 1), (2, 0), (1, 40)])
def test_explained_terms_have_one_precision(a, b):
    llm, cluster = llm_preset("deepseek-v3"), cluster_preset("h100")
    found = search(llm, cluster, 512, 2048, micro_batches=(1,), max_tp=4)
    screen = [line.plain for line in report.explained_lines(explain_plans(found, a, b), 80)]
    assert max(map(len, screen)) <= 80
    starts = [
        i for i, line in enumerate(screen) if line.split()[:2] == ["A", "B"] and "- A" in line
    ]
    for start, end in zip(starts, [starts[1], len(screen)], strict=True):
        numbers = [line[:32].split() for line in screen[start + 1 : end]]
        places = {len(n.partition(".")[2]) for row in numbers for n in row if n != "0"}
        assert len(places) == 1, screen[start:end]
        assert all(row[:2] != ["0", "0"] for row in numbers)
    if (a, b) == (0, 1):
        assert not re.search(r"\(\d+(, \d+){9}", "".join(screen)), "layers of each stage"


def test_terms_of_a_short_step_are_in_milliseconds():
    small = search(llm_preset("qwen3-0.6b"), cluster_preset("h100"), 8, 8, max_pp=1)
    screen = [line.plain for line in report.explained_lines(explain_plans(small, 0, 1), 80)]
    assert any(line.endswith("B - A  milliseconds") for line in screen)


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("tokens", [None, 3e11])
def test_tables_are_as_narrow_as_the_window(width, tokens):
    found = search(
        llm_preset("llama3.1-8b"), cluster_preset("h100"), range(8, 17), 64, micro_batches=(1, 2),
        kernels="compiled", zeros=(2,), tokens=tokens,
    )  # fmt: skip
    screen = [line.plain for line in report.lines(found, 5, width)]
    assert max(map(len, screen)) <= width
    assert any("step s" in line for line in screen)
    assert ("causal" in "".join(screen[:6])) is any("causal: MFU" in line for line in screen)
    prediction = predict(
        llm_preset("llama3.1-70b"), {"tp": 8, "pp": 4, "dp": 2, "global_batch": 64}, "h100"
    )
    assert max(
        len(line.plain) for line in prediction_report.lines(prediction, max(70, width))
    ) <= max(70, width)


def test_tables_of_a_search_have_the_same_columns_and_a_line_per_plan():
    """The front's GPUs differ from those of the best plans, which are all equal."""
    found = search(
        llm_preset("gpt3-175b"), cluster_preset("a100-80g"), range(512, 1025, 512), 1536,
        tokens=3e11, micro_batches=(1, 2),
    )  # fmt: skip
    screen = [line.plain for line in report.lines(found, 6, 80)]
    assert max(map(len, screen)) <= 80
    heads = [i for i, line in enumerate(screen) if line.startswith("rank ")]
    assert len(heads) == 2
    assert screen[heads[0]].split() == screen[heads[1]].split()
    assert "GPUs" in screen[heads[0]].split()
    ranks = [*range(6), *[i for i in report.front(found) if i > 5]]
    lines = [*screen[heads[0] + 1 :][:6], *screen[heads[1] + 1 :][: len(ranks) - 6]]
    for i, line in zip(ranks, lines, strict=True):
        plan, head = found.plan(i), screen[heads[0]].split()
        cells = dict(zip(head, line.split(), strict=False))
        assert cells["rank"] == f"{i + 1}{'*' * bool(found.pareto[i])}"
        assert [cells[name] for name in ("tp", "pp", "dp", "mb")] == [
            *map(str, (plan.tp, plan.pp, plan.dp, plan.micro_batch))
        ]
        assert plan.recompute.startswith(cells["rec"].replace("–", "none"))
    assert "rec: recomputation (sel: selective)." in _text(report.lines(found, 6, 80))


def test_parts_of_all_plans_are_said_once():
    found = search(
        llm_preset("llama3.1-8b"), cluster_preset("h100"), 64, 256, kernels="compiled", zeros=(3,),
    )  # fmt: skip
    screen = [line.plain for line in report.lines(found, 5, 80)]
    assert "All plans below: 64 GPUs, zero3, compiled." in screen
    (head,) = (line.split() for line in screen if line.startswith("rank"))
    assert not {"GPUs", "zero", "kernels"} & set(head)
    assert {"tp", "pp", "dp", "mb", "GiB"} <= set(head)


@pytest.mark.parametrize(("tokens", "is_said"), [(131072, True), (2048, False)])
def test_a_narrow_table_says_a_causal_mfu_that_is_far_from_the_mfu(tokens, is_said):
    llm = dataclasses.replace(llm_preset("llama3.1-8b"), seq_len=tokens)
    found = search(llm, cluster_preset("h100"), 64, 64, micro_batches=(1,), kernels="fused")
    narrow = " ".join(line.plain for line in report.lines(found, 5, 60))
    assert "causal: MFU" not in narrow
    share = found.mfu_causal[0] / found.mfu[0]
    said = f"MFU is {share:.2f} times as large: {found.mfu_causal[0]:.1%} for the first plan."
    assert (said in narrow, share < 0.9) == (is_said, is_said)
    wide = " ".join(line.plain for line in report.lines(found, 5, 160))
    assert ("causal: MFU" in wide, said in wide) == (True, False)


def test_a_narrow_page_leaves_out_four_columns(found):
    """The page was looked at in Chromium, 390 pixels wide: GiB and cost are in sight."""
    text = page(found, 3).decode()
    assert '<table class="plans">' in text
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', text)
    assert [heads[i] for i in (4, 5, 6, 8)] == ["80% within", "MFU", "causal", "days"]
    narrow = static("page.css").partition("@media (max-width: 640px)")[2]
    children = ", ".join(f":nth-child({n})" for n in (5, 6, 7, 9))
    assert f".plans :is(td, th):is({children}) {{ display: none; }}" in narrow


def test_costs_are_in_millions_where_all_are(found):
    dear = 1.2e6 / found.dollars.min() * found.cluster.price_per_gpu_hour
    cluster = dataclasses.replace(found.cluster, price_per_gpu_hour=dear)
    million = dataclasses.replace(found, cluster=cluster)
    assert columns(million)[-1] == "million $"
    assert row(million, 0)[-1] == f"{million.dollars[0] / 1e6:,.2f}"
    assert columns(found)[-1] == "cost"


def test_the_tile_and_the_stars_of_a_page_are_those_of_its_line():
    """With one number of GPUs the page plots time against memory, not against cost."""
    llm, cluster = llm_preset("llama3-8b"), cluster_preset("h100")
    plans = search(llm, cluster, [16], 64, max_vpp=1, micro_batches=(1,))
    text = page(plans, len(plans)).decode()
    on_line = sum(json.loads(re.search(r'id="data">(.*?)</script>', text)[1])["pareto"])
    assert on_line > plans.pareto.sum() == 1
    assert f"<dt>On the front</dt><dd>{on_line}</dd>" in text
    assert "no other plan is faster and needs less memory" in text
    assert len(re.findall(r"<th[^>]*>\d+\*</th>|<td[^>]*>\d+\*</td>", text)) == on_line


@pytest.mark.parametrize("expandable", [None, True])
def test_a_fit_by_expandable_segments_alone_says_so(found, expandable):
    prediction = predict(found.llm, found.plan(0), found.cluster)
    gpu = found.cluster.gpu
    full = replace(gpu, memory_bytes=max(prediction.memory_bytes) / 0.85)
    rules = MemoryRules(expandable_segments=expandable)
    tight = predict(found.llm, found.plan(0), replace(found.cluster, gpu=full), rules=rules)
    assert "memory: fits ONLY with PYTORCH_CUDA_ALLOC_CONF" in _text(
        prediction_report.lines(tight, 120)
    )
