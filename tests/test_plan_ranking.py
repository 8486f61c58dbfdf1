"""Order of plans by predicted times: worked out by hand."""

from dataclasses import replace

import pytest

from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.ranking import rank

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
