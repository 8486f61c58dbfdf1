"""Searches for plans: seconds, plans per second and core, and the paper's two case studies.

    python benchmarks/plan.py

The peers, on the same two cores: vTrain's simulator takes 0.2 to 22 s a plan, 24 to 89 core-minutes
for the sweep of its V-A; Calculon (analytical) evaluates 458 plans per second and core.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.llm_presets import llm_preset
from paceline.model.plan import Plan
from paceline.plan.optimal import optimal
from paceline.plan.pipeline import Pipelines
from paceline.plan.search import SearchResult, search
from paceline.plan.step import step_time_s

A100 = cluster_preset("a100-80g")

#: vTrain's V-A: t up to 16, d up to 32, p up to 105, a batch of 1,920.
SWEEP: dict[str, Any] = {
    "gpus": range(1, 16 * 32 * 105 + 1),
    "global_batch": 1920,
    "objective": "cost",
    "max_tp": 16,
    "max_dp": 32,
    "max_pp": 105,
    "max_cp": 1,
    "precision": "fp16",
}
#: As the published plans were run: micro batch 1, full recomputation, attention not fused.
AS_PUBLISHED: dict[str, Any] = {
    "micro_batches": (1,),
    "recomputes": ("full",),
    "zeros": (1,),
    "max_vpp": 1,
    "sequence_parallels": (False,),
    "flash": False,
    "uneven": False,
}
#: Software of that time beyond the published plans: what is recomputed may be chosen, too.
RECOMPUTE_CHOSEN = {**AS_PUBLISHED, "recomputes": ("none", "selective", "full")}


def timed(name: str, model: str, cluster: str = "a100-80g", **options: Any) -> SearchResult:
    begin, cpu = time.perf_counter(), time.process_time()
    result = search(llm_preset(model), cluster_preset(cluster), **options)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    legal, fit = len(result.legal), len(result)
    print(
        f"{name:46} {legal:7,} legal plans, {fit:6,} fit: {seconds:5.2f} s, "
        f"{legal / cpu:7,.0f} plans/s/core ({fit / cpu:6,.0f} of those that fit)"
    )
    return result


def walk() -> None:
    """The pipelines alone, where thousands of plans share one shape."""
    rng = np.random.default_rng(0)
    for schedule, pp, vpp, m in (
        ("1f1b", 8, 1, 64),
        ("1f1b", 35, 1, 240),
        ("interleaved", 8, 4, 64),
    ):
        n = 2000
        pipelines = Pipelines(schedule, pp, vpp, np.full(n, m), *rng.random((3, n, pp * vpp)))
        begin = time.perf_counter()
        pipelines.ends(fast=True)
        seconds = time.perf_counter() - begin
        print(
            f"  {schedule:11} pp {pp:2} vpp {vpp} {m:3} microbatches: {n / seconds:9,.0f} plans/s, "
            f"{seconds / pipelines.computes * 1e9:.1f} ns per compute"
        )


def published(result: SearchResult) -> None:
    """Table I's plans, each beside the cheapest at up to 15% more or fewer GPUs."""
    llm = llm_preset("mt-nlg-530b")
    model = CostModel(llm, A100)
    for dp in (8, 10, 12):
        plan = Plan(
            tp=8,
            pp=35,
            dp=dp,
            global_batch=1920,
            recompute="full",
            precision="fp16",
            flash=False,
        )
        seconds = step_time_s(model.costs(plan), plan)
        similar = np.flatnonzero(np.abs(result.gpus / plan.gpus - 1) <= 0.15)
        i = int(similar[np.argmin(result.gpu_seconds[similar])])
        cheaper = 1 - result.gpu_seconds[i] / (seconds * plan.gpus)
        print(
            f"  (8,{dp:2},35) {plan.gpus:,} GPUs {seconds:5.2f} s  ->  "
            f"{result.plan(i).describe():38} {result.gpus[i]:,} GPUs "
            f"{result.step_time_s[i]:5.2f} s: {cheaper:5.1%} cheaper"
        )


def sizes(**options: Any) -> None:
    begin = time.perf_counter()
    result = optimal(A100, 3360, 30, **options)
    for name, (parameters, tokens) in result.points.items():
        print(f"  {name:9} {parameters / 1e9:7.2f} B parameters {tokens / 1e9:8,.1f} B tokens")
    for what, sized in (("at peak", result.naive), ("really", result.realistic)):
        assert sized is not None
        assert sized.plan is not None
        print(
            f"  {what:9} {sized.llm.parameters / 1e9:7.2f} B parameters "
            f"{sized.tokens / 1e9:8,.1f} B tokens: {sized.days:.1f} days, {sized.plan.describe()} "
            f"on {sized.gpus:,} GPUs, MFU {sized.mfu:.1%}"
        )
    print(f"  {time.perf_counter() - begin:.1f} s")


def main() -> None:
    begin = time.perf_counter()
    one = np.ones((1, 4))
    Pipelines("1f1b", 4, 1, np.array([4]), one, one, one).ends(fast=True)
    print(f"loading (or, once, compiling) the walk: {time.perf_counter() - begin:.2f} s")
    walk()
    sweep = timed("V-A's sweep as published", "mt-nlg-530b", **SWEEP, **AS_PUBLISHED)
    chosen = timed("... recomputation chosen", "mt-nlg-530b", **SWEEP, **RECOMPUTE_CHOSEN)
    timed("... everything chosen", "mt-nlg-530b", **SWEEP)
    timed("2,000 to 3,400 GPUs", "mt-nlg-530b", gpus=range(2000, 3401), global_batch=1920)
    timed("Llama 3.1 405B, 16,384 H100", "llama3.1-405b", "h100", gpus=16384, global_batch=2048)
    timed("DeepSeek-V3, 2,048 H100", "deepseek-v3", "h100", gpus=2048, global_batch=15360)
    print("MT-NLG 530B, as published:")
    published(sweep)
    print("MT-NLG 530B, recomputation chosen:")
    published(chosen)
    print("3,360 A100s, 30 days:")
    sizes()
    print("... with the software of vTrain's study:")
    old = {**AS_PUBLISHED, "precision": "fp16", "global_batch": 1680}
    sizes(**old)


if __name__ == "__main__":
    main()
