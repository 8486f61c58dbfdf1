"""How many pairs of plans any prediction could order right on the shared A100 runs.

    python benchmarks/ranking_ceiling.py

1. The pairs of ``paceline.plan.ranking``, of all runs and without those 10% slower than predicted.
2. Plans that differ in nothing but the micro batch: how far their ratios of measured to predicted
   lie apart.
3. Each of some terms that a plan could add to the step: its constant fitted (least absolute error
   in logarithms) to the other model sizes, then the pairs of the size left out.
4. Were the predictions exact and the ratios drawn at random: the share of pairs in order.
"""

from collections import defaultdict
from math import log, sqrt

import numpy as np
from shared_folder import SHARED

from paceline.plan.predict import predict
from paceline.plan.ranking import rank
from paceline.plan.runs import read_runs, runs_cluster

BAR = 0.92
SLOW = 1.10  # measured over predicted of a run that something else slowed
DRAWS = 2000
NIC = 12.5e9  # bytes/s of a GPU's share of the node's four adapters


def slots(plan):
    return plan.microbatches + plan.pp - 1


def activation_bytes(llm, plan):
    return 2 * plan.micro_batch * llm.seq_len * llm.hidden


def gradient_s(llm, plan):
    return 4 * (plan.dp - 1) / plan.dp * llm.parameters / (plan.tp * plan.pp) / NIC


def shares_adapters(plan):
    return plan.tp in (2, 4)


#: Seconds of a term at a constant of 1: (model, plan, predicted seconds) -> seconds.
TERMS = {
    "hand-overs, whole, not overlapped": lambda llm, plan, step_s: (
        (plan.pp > 1) * 2 * slots(plan) * activation_bytes(llm, plan) / NIC
    ),
    "a latency of each microbatch": lambda llm, plan, step_s: (plan.pp > 1) * slots(plan),
    "gradients": lambda llm, plan, step_s: gradient_s(llm, plan),
    "gradients of groups that share adapters": lambda llm, plan, step_s: (
        shares_adapters(plan) * gradient_s(llm, plan)
    ),
    "tensor-parallel traffic of tp 2 and 4": lambda llm, plan, step_s: (
        (shares_adapters(plan) * slots(plan) * llm.layers / plan.pp * activation_bytes(llm, plan))
        / 200e9
    ),
    "jitter, the slowest of all workers": lambda llm, plan, step_s: (
        step_s * sqrt(2 * log(plan.gpus / plan.tp))
    ),
    "bubble": lambda llm, plan, step_s: step_s * (plan.pp - 1) / slots(plan),
    "a share of the step, of tp 2 and 4 in pipelines": lambda llm, plan, step_s: (
        step_s * (shares_adapters(plan) and plan.pp > 1)
    ),
}
CONSTANTS = np.append(0.0, np.geomspace(1e-3, 3, 60))


def fit(sizes, measured, predicted, term):
    """The constant; ratios count from their median within a size, which weighs as one."""

    def spread(constant):
        ratio = np.log((predicted + constant * term) / measured)
        parts = [ratio[sizes == size] for size in np.unique(sizes)]
        return sum(np.abs(part - np.median(part)).mean() for part in parts)

    return min(CONSTANTS, key=spread)


def main():
    path = SHARED / "data" / "llm" / "megatron_a100_calibration.csv"
    runs = read_runs(path, need_times=True).runs
    cluster = runs_cluster(runs, None)
    jobs = [(run.llm, run.plan) for run in runs]
    measured = np.array([run.measured_s for run in runs])
    predicted = np.array([predict(*job, cluster).step_time_s for job in jobs])
    sizes = np.array([llm.hidden for llm, _ in jobs])

    def pairs(seconds, rows=None):
        rows = list(range(len(jobs)) if rows is None else rows)
        return rank([jobs[i] for i in rows], measured[rows], seconds[rows])

    def show(name, ranking):
        right = ranking.right / ranking.pairs
        print(f"{name:62s} {ranking.right} of {ranking.pairs} ({right:.1%})")

    ratio = measured / predicted
    show("all runs", pairs(predicted))
    usual = np.flatnonzero(ratio < SLOW)
    show(f"without the {len(runs) - len(usual)} that are slow", pairs(predicted, usual))

    families = defaultdict(list)
    for (llm, plan), value in zip(jobs, ratio, strict=True):
        families[llm.hidden, plan.tp, plan.pp, plan.dp].append(value)
    spread = sorted(max(v) / min(v) - 1 for v in families.values() if len(v) > 1)
    print("\nmicro batch alone differs: ratios apart by", ", ".join(f"{x:.1%}" for x in spread))

    print("\nterms, fitted to the other sizes")
    for name, seconds in TERMS.items():
        term = np.array([seconds(*job, s) for job, s in zip(jobs, predicted, strict=True)])
        changed = predicted.copy()
        for size in np.unique(sizes):
            rest, out = sizes != size, sizes == size
            constant = fit(sizes[rest], measured[rest], predicted[rest], term[rest])
            changed[out] += constant * term[out]
        show(f"    {name}", pairs(changed))
        everywhere = fit(sizes, measured, predicted, term)
        show("        in sample", pairs(predicted + everywhere * term))

    centred = ratio.copy()
    for size in np.unique(sizes):
        centred[sizes == size] /= np.median(ratio[sizes == size])
    random = np.random.default_rng(0)
    print("\nexact predictions, ratios drawn at random")
    for name, pool in (
        ("all", centred),
        ("but the two of tp2 pp16 dp16", centred[centred < 1.5]),
        ("but the slow", centred[centred < SLOW]),
    ):
        shares = []
        for _ in range(DRAWS):
            ranking = rank(jobs, predicted * random.choice(pool, len(jobs)), predicted)
            shares.append(ranking.right / ranking.pairs)
        low, high = np.quantile(shares, [0.05, 0.95])
        reached = np.mean(np.array(shares) >= BAR)
        print(
            f"    {name:30s} mean {np.mean(shares):.1%}, 90% of draws {low:.1%} to {high:.1%}, "
            f"{BAR:.0%} or more in {reached:.0%}"
        )


if __name__ == "__main__":
    main()
