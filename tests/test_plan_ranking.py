"""Order of plans by predicted times: worked out by hand."""

from dataclasses import replace

import pytest

from paceline.errors import ModelError
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.fit_quality import FitQuality, enough_runs
from paceline.plan.ranking import Ranking, rank
from paceline.plan.runs import Run

GPT = llm_preset("gpt3-1.3b")
PLANS = [Plan(tp=tp, dp=8 // tp, global_batch=64) for tp in (1, 2, 4, 8)]


def jobs(*plans):
    return [(GPT, plan) for plan in plans]


def test_pairs_and_regret():
    # The second is predicted to be fastest and takes 1.2 for 1.0: one of six pairs is wrong.
    found = rank(jobs(*PLANS), [1.0, 1.2, 1.5, 2.0], [1.1, 1.0, 1.6, 1.7])
    assert (found.groups, found.pairs, found.right) == (1, 6, 5)
    assert found.regret == pytest.approx(0.2)
    assert found.worst_regret == pytest.approx(0.2)


def test_ties_do_not_count():
    found = rank(jobs(*PLANS[:3]), [1.0, 1.01, 1.5], [1.2, 1.1, 1.3])
    assert (found.pairs, found.right) == (2, 2)


def test_runs_of_one_plan_are_one():
    repeated = jobs(PLANS[0], PLANS[0], PLANS[1])
    found = rank(repeated, [1.0, 1.4, 1.3], [1.0, 1.0, 2.0])
    assert (found.pairs, found.right, found.regret) == (1, 1, 0)


def test_other_gpus_batches_and_models_are_no_rivals():
    larger = replace(PLANS[1], dp=8)
    batch = replace(PLANS[1], global_batch=128)
    assert rank(jobs(PLANS[0], larger, batch), [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) is None
    others = [(GPT, PLANS[0]), (llm_preset("gpt3-2.7b"), PLANS[1])]
    assert rank(others, [1.0, 2.0], [2.0, 1.0]) is None


@pytest.mark.parametrize(
    ("left_out", "words"),
    [(None, ""), (6, ""), (5, "orders 5 of 9 pairs of plans that were left out, the preset 6")],
)
def test_a_fit_that_orders_worse_than_the_preset_says_so(left_out, words):
    before = Ranking(1, 9, 6, 0.0, 0.0)
    after = None if left_out is None else before._replace(right=left_out)
    quality = FitQuality(None, {}, None, {"before": before, "left_out": after})
    assert quality.ranking_warning.startswith(words)
    assert bool(quality.ranking_warning) == bool(words)


def test_runs_of_gpus_with_too_few_are_counted():
    runs = [Run(GPT, PLANS[0], "a100-80g", 1.0, line) for line in range(8)]
    runs += [Run(GPT, PLANS[0], "h100", 1.0, line) for line in range(2)]
    enough, few = enough_runs(runs)
    assert ({name: len(x) for name, x in enough.items()}, few) == ({"a100-80g": 8}, {"h100": 2})
    with pytest.raises(ModelError, match=r"fewer than 8 runs of each GPU \(h100 2\)"):
        enough_runs(runs[8:])
