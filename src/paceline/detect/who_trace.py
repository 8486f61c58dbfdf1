"""Slow workers from a trace: each worker's exact slowdown, by its computes or by its transfers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.detect.who import Suspect, alike_groups, name_ranks
from paceline.graph import Measured
from paceline.trace.kinds import LOCAL_KINDS, OpKind
from paceline.whatif import Part, Scenario, WhatIf, ideal_durations, simulate_scenarios

Worker = tuple[int, int]  # (dp, pp)

#: A worker that alone slows the job by less is healthy, like a job (WhatIf.HEALTHY_BELOW). So is
#: one with less than this share of the worst worker's effect.
_OF_WORST = 0.25


def who_from_trace(measured: Measured, result: WhatIf) -> tuple[Suspect, ...]:
    """Slow workers of a trace, the costliest first; may be empty.

    S_w is the exact slowdown of a step if only worker w is as measured. Further simulations with
    only its computes, or only its transfers, distinguish the two.

    Args:
        measured: the measured trace.
        result: the analysis of it.
    """
    worst = float(result.by_worker.max())
    bar = max(WhatIf.HEALTHY_BELOW, 1 + _OF_WORST * (worst - 1))
    workers = [(int(dp), int(pp)) for pp, dp in np.argwhere(result.by_worker >= bar)]
    if not workers:
        return ()
    kinds = {"compute": LOCAL_KINDS, "communication": frozenset(OpKind) - LOCAL_KINDS}
    scenarios = [
        Scenario.only(Part(kinds=group, workers=frozenset({worker})))
        for worker in workers
        for group in kinds.values()
    ]
    times = simulate_scenarios(measured.durations, ideal_durations(measured.durations), scenarios)
    slowdown = times.mean(axis=1).reshape(-1, 2) / result.ideal_s.mean()
    suspects = []
    by_compute = slowdown[:, 0] >= slowdown[:, 1]
    for kind, mask in (("compute", by_compute), ("communication", ~by_compute)):
        # Workers at both ends of a link, or behind a NIC, stay together, as the fault is between
        # them.
        alike = alike_groups(np.flatnonzero(mask), slowdown[:, 0])
        groups = alike if kind == "compute" else [np.flatnonzero(mask)]
        suspects += [
            _suspect(kind, [workers[at] for at in group], measured, result)
            for group in groups
            if len(group)
        ]
    return tuple(sorted(suspects, key=lambda suspect: -suspect.share))


def _suspect(kind: str, workers: Sequence[Worker], measured: Measured, result: WhatIf) -> Suspect:
    s_w = [float(result.by_worker[pp, dp]) for dp, pp in workers]
    ranks = _ranks(workers, measured)
    place_text = _place_text(workers, measured)
    place = f"{name_ranks(ranks)} ({place_text})" if ranks else place_text
    scenario = Scenario.only(Part.of_workers(workers))
    ideal = ideal_durations(measured.durations)
    alone_s = simulate_scenarios(measured.durations, ideal, [scenario]).mean()
    factor = float(alone_s / result.ideal_s.mean())
    s_w_text = f"S_w {min(s_w):.2f} to {max(s_w):.2f}" if len(s_w) > 1 else f"S_w = {s_w[0]:.2f}"
    text = (
        f"alone {'they make' if len(workers) > 1 else 'it makes'} a step {factor:.2f}x as long as "
        f"if all were alike ({s_w_text}); the whole job takes {result.slowdown:.2f}x"
    )
    return Suspect(
        "compute" if kind == "compute" else "communication",
        ranks,
        place,
        factor,
        float((alone_s - result.ideal_s.mean()) / result.simulated_s.mean()),
        text,
    )


def _ranks(workers: Sequence[Worker], measured: Measured) -> tuple[int, ...]:
    """Global ranks of workers; tensor-parallel ranks are neighbours, as in Megatron's order."""
    tp = measured.job.tp_size
    ranks: set[int] = set()
    for dp, pp in workers:
        rank = int(measured.rank[dp, pp])
        if rank < 0:
            return ()
        ranks.update(range(rank // tp * tp, rank // tp * tp + tp))
    return tuple(sorted(ranks))


def _place_text(workers: Sequence[Worker], measured: Measured) -> str:
    """Workers in words: a stage, a link, or a list."""
    stages = sorted({pp for _, pp in workers})
    replicas = sorted({dp for dp, _ in workers})
    if len(stages) == 1 and len(replicas) == measured.job.replicas > 1:
        return f"all replicas of stage {stages[0]}"
    if len(replicas) == 1:
        plural = "s" * (len(stages) > 1)
        return f"stage{plural} {', '.join(map(str, stages))} of replica {replicas[0]}"
    names = [measured.job.worker_name(*w) for w in workers[:4]]
    n_others = len(workers) - len(names)
    return "; ".join(names) + (f" and {n_others} more" if n_others else "")
