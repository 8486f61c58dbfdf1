"""Costs of causes: Shapley values over simulations without some of the causes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit
from paceline.diagnose.remove import Effect, without
from paceline.graph import Durations
from paceline.simulate import Rules, all_lanes, step_times

Array = npt.NDArray[np.float64]

#: Up to this number of causes, all subsets are simulated (16 simulations).
EXACT_UP_TO = 4
#: Number of orders sampled for more causes, each with its reverse.
ORDERS = 12


class Savings:
    """Step times without some of the causes; each subset is simulated once."""

    def __init__(self, durations: Durations, fit: Fit, effects: Sequence[Effect]) -> None:
        self.durations, self.fit, self.effects = durations, fit, list(effects)
        graph = durations.graph
        self.rules = Rules.own(graph)
        self.lanes = all_lanes(graph, durations.n_steps)
        self._step_s_without: dict[frozenset[int], Array] = {}

    def step_s(self, removed: frozenset[int]) -> Array:
        """[step] step times without the causes ``removed`` (indices)."""
        if removed not in self._step_s_without:
            changed = without(self.durations, self.fit, [self.effects[i] for i in sorted(removed)])
            self._step_s_without[removed] = step_times(changed, self.rules, self.lanes)
        return self._step_s_without[removed]

    def shapley(self, causes: Sequence[int]) -> tuple[Array, Array]:
        """[cause, step] seconds that each cause costs, and [cause] their standard error.

        The Shapley value is the time that removing the cause saves, averaged over all orders of
        removal. It is exact for up to ``EXACT_UP_TO`` causes; for more, orders are sampled.
        """
        if len(causes) <= EXACT_UP_TO:
            return self._exact(causes), np.zeros(len(causes))
        return self._sample_orders(causes)

    def _exact(self, causes: Sequence[int]) -> Array:
        n = len(causes)
        cost = np.zeros((n, self.durations.n_steps))
        for place, cause in enumerate(causes):
            others = [c for c in causes if c != cause]
            for size in range(n):
                weight = factorial(size) * factorial(n - size - 1) / factorial(n)
                for subset in combinations(others, size):
                    before = frozenset(subset)
                    saved = self.step_s(before) - self.step_s(before | {cause})
                    cost[place] += weight * saved
        return cost

    def _sample_orders(self, causes: Sequence[int]) -> tuple[Array, Array]:
        rng = np.random.default_rng(0)
        samples = []
        for _ in range(ORDERS):
            order = rng.permutation(len(causes))
            for direction in (order, order[::-1]):
                cost = np.zeros((len(causes), self.durations.n_steps))
                removed: frozenset[int] = frozenset()
                for place in direction.tolist():
                    after = removed | {causes[place]}
                    cost[place] = self.step_s(removed) - self.step_s(after)
                    removed = after
                samples.append(cost)
        table = np.stack(samples)
        error = table.mean(axis=2).std(axis=0, ddof=1) / np.sqrt(len(samples))
        return table.mean(axis=0), error
