"""Words of prices, of the unit of memory and of a step's terms: the same in every output."""

from dataclasses import replace

import pytest

from paceline.model.cluster_presets import CLUSTER_PRESETS, cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.explain import explain_plans
from paceline.plan.predict import predict
from paceline.plan.search import search
from paceline.report import prediction
from paceline.report import search as search_report
from paceline.report.prices import price_text
from paceline.report.terms import TERMS
from paceline.units import GIB, gpu_memory

LLAMA = llm_preset("llama3-8b")


@pytest.mark.parametrize("name", CLUSTER_PRESETS)
def test_a_preset_tells_source_and_date_or_asks_for_a_price(name):
    cluster = cluster_preset(name)
    text = price_text(cluster)
    if cluster.price_per_gpu_hour is None:
        assert text == f"no price of a GPU-hour is known for {name}: give --price (dollars)"
    else:
        assert text.startswith(f"${cluster.price_per_gpu_hour:,.2f} per GPU-hour (")
        assert text.endswith("; not checked since; give yours with --price)")
        assert "202" in text


def test_a_price_of_ones_own_is_told_as_given():
    mine = replace(cluster_preset("gb300"), price_per_gpu_hour=2.5, price_source="given")
    assert price_text(mine) == "$2.50 per GPU-hour (given)"
    assert price_text(replace(mine, price_source="")) == "$2.50 per GPU-hour"


def test_the_unit_of_memory_is_said():
    assert gpu_memory(80 * GIB) == (
        "GiB: 2^30 bytes; a GPU sold with 80 GB has 80.0, of which its driver keeps about 1%"
    )


def flowing(lines):
    return " ".join(" ".join(line.plain for line in lines).split())


@pytest.mark.parametrize(("gpu", "price"), [("h100", "(AWS p5"), ("gb300", "give --price")])
def test_predict_and_plan_say_price_unit_and_terms_alike(gpu, price):
    cluster = cluster_preset(gpu)
    one = predict(LLAMA, Plan(tp=2, dp=4, global_batch=64), cluster, tokens=1e9)
    found = search(LLAMA, cluster, 8, 64, tokens=1e9, micro_batches=(1,))
    text, table = flowing(prediction.lines(one, 120)), flowing(search_report.lines(found, 3, 120))
    for said in (text, table):
        assert price in said
        assert gpu_memory(cluster.gpu.memory_bytes) in said
        assert said.count("per GPU-hour") + said.count("of a GPU-hour") == 1
    explained = flowing(search_report.explained_lines(explain_plans(found, 0, 1), 120))
    shared = [name for term, name in TERMS.items() if one.breakdown[term] > 0.01]
    assert len(shared) >= 3
    for name in shared:
        assert name in text
    for name in (TERMS["gemm"], TERMS["memory"], TERMS["tail"]):
        assert name in explained
    assert set(one.breakdown) <= set(TERMS)
