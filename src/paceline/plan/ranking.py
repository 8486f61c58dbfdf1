"""How well predictions order the plans that one can choose from: pairs and regret.

Plans are rivals where model, GPUs and global batch are the same. Of a pair whose measured times
differ by less than ``TIE`` noise decides, so it is not counted.
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

#: Measured times that differ by a smaller share are equal.
TIE = 0.02


class Ranking(NamedTuple):
    """Quality of choices by predicted times.

    Attributes:
        groups: groups of rivals with a pair that counts.
        pairs: pairs that count.
        right: of these, in the right order.
        regret: mean over the groups of how much longer the plan that is predicted to be fastest
            takes than the fastest one.
        worst_regret: of the worst group.
    """

    groups: int
    pairs: int
    right: int
    regret: float
    worst_regret: float


def rank(
    jobs: Sequence[tuple[LLM, Plan]], measured_s: Sequence[float], predicted_s: Sequence[float]
) -> Ranking | None:
    """How well the predicted times order rivals; None where no two runs are.

    Several runs of one plan count as one, with their mean times.
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
