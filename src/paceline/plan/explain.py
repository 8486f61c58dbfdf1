"""Comparison of two plans, term by term of their predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paceline.model.compute import ComputeCost
from paceline.plan.predict import Prediction, predict
from paceline.plan.search import SearchResult

#: Fields in which two plans of a search may differ.
FIELDS = (
    *("tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "microbatches", "zero", "recompute"),
    *("sequence_parallel", "layers_per_stage"),
)


@dataclass(frozen=True)
class Term:
    """One term of two plans: seconds of a step, or bytes on the fullest GPU."""

    name: str
    first: float
    second: float

    @property
    def difference(self) -> float:
        """The second plan's excess; 0 if the two differ only by rounding."""
        same = math.isclose(self.first, self.second, rel_tol=1e-9)
        return 0.0 if same else self.second - self.first


@dataclass(frozen=True)
class Explanation:
    """Two plans of a search.

    Attributes:
        first: prediction of the first plan.
        second: prediction of the second plan.
        changes: field of the plan -> its two values, for fields that differ.
        time: seconds of a step by term, the largest difference first; terms add up to the step
            times.
        memory: bytes on each plan's fullest GPU by part; parts add up to the peaks.
    """

    first: Prediction
    second: Prediction
    changes: dict[str, tuple[Any, Any]]
    time: tuple[Term, ...]
    memory: tuple[Term, ...]

    @property
    def sure(self) -> bool:
        """Whether either step lies outside the interval of the other."""
        pairs = ((self.first, self.second), (self.second, self.first))
        return not all(a.interval.low_s <= b.step_time_s <= a.interval.high_s for a, b in pairs)

    def to_mapping(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {
            "plans": [self.first.plan.describe(), self.second.plan.describe()],
            "step_time_s": [self.first.step_time_s, self.second.step_time_s],
            "sure": self.sure,
            "changes": {name: list(values) for name, values in self.changes.items()},
            "time_s": {term.name: [term.first, term.second] for term in self.time},
            "memory_bytes": {term.name: [term.first, term.second] for term in self.memory},
        }


def explain_plans(
    result: SearchResult, a: int, b: int, cost: ComputeCost | None = None
) -> Explanation:
    """The plans at ranks ``a`` and ``b`` of a search, term by term."""
    first, second = (
        predict(result.llm, result.plan(i), result.cluster, cost=cost, rules=result.rules)
        for i in (a, b)
    )
    pairs = {name: (getattr(first.plan, name), getattr(second.plan, name)) for name in FIELDS}
    parts = [max(p.memory, key=lambda stage: stage.total_bytes).parts for p in (first, second)]
    return Explanation(
        first,
        second,
        {name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
        _terms(first.breakdown, second.breakdown),
        _terms(*parts),
    )


def _terms(first: Any, second: Any) -> tuple[Term, ...]:
    terms = [Term(name, float(first[name]), float(second[name])) for name in first]
    return tuple(sorted(terms, key=lambda term: -abs(term.difference)))
