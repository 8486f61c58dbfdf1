"""Quality of the order of plans by predictions: pairs and regret.

Plans are rivals if model, GPUs and global batch are equal. A pair with measured times within
``TIE`` is not counted, for noise decides its order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from paceline.model.llm import LLM
from paceline.model.plan import Plan

#: Measured times that differ by a smaller share count as equal.
TIE = 0.02


class Ranking(NamedTuple):
    """Quality of choices by predicted times.

    Attributes:
        groups: number of groups of rivals with a counted pair.
        pairs: number of counted pairs.
        right: number of pairs in the right order.
        regret: excess of measured time of the plan that is predicted to be fastest over the fastest
            plan, mean over groups.
        worst_regret: regret of the worst group.
    """

    groups: int
    pairs: int
    right: int
    regret: float
    worst_regret: float


def rank(
    jobs: Sequence[tuple[LLM, Plan]], measured_s: Sequence[float], predicted_s: Sequence[float]
) -> Ranking | None:
    """Quality of the predicted order of rivals; None without rivals.

    Several runs of the same plan count as one, with their mean times.
    """
    runs_of: dict[tuple[LLM, Plan], list[tuple[float, float]]] = defaultdict(list)
    for job, times in zip(jobs, zip(measured_s, predicted_s, strict=True), strict=True):
        runs_of[job].append(times)
    rivals = defaultdict(list)
    for (llm, plan), runs in runs_of.items():
        measured, predicted = (fmean(times) for times in zip(*runs, strict=True))
        rivals[llm, plan.gpus, plan.global_batch].append((measured, predicted))
    pairs = right = 0
    regrets = []
    for group in rivals.values():
        apart = [(a, b) for a, b in combinations(group, 2) if abs(a[0] / b[0] - 1) >= TIE]
        if not apart:
            continue
        pairs += len(apart)
        right += sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)
        chosen = min(group, key=itemgetter(1))
        regrets.append(chosen[0] / min(group)[0] - 1)
    if not pairs:
        return None
    return Ranking(len(regrets), pairs, right, fmean(regrets), max(regrets))
