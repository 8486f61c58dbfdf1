"""Factors on the terms of a step, fitted to measured runs of one cluster and its software.

A factor covers effects outside the datasheet: the library's share of a link, the framework's own
time. Each term has one, and a strategy may deviate from it. A prior draws both towards 1, in
logarithms. So runs of few kinds change only the factors that they determine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.networks.terms import COMPUTE, TERMS

Array = npt.NDArray[np.float64]

# Spread of the prior's logarithms. A term's factor may be 2 or 4, since published microbenchmarks
# differ as much. A strategy's own deviation is smaller.
_SPREAD, _OWN_SPREAD = 1.0, 0.4
_NOISE = 0.06  # noise of a measured time: two runs of the same job differ by up to 10%
_ROUNDS, _CONVERGED = 60, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Result of a calibration.

    Attributes:
        shared: term -> factor.
        own: strategy -> term -> additional factor.
    """

    shared: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def apply(self, terms: Mapping[str, float], strategy: str) -> dict[str, float]:
        """Seconds of each term with its factors."""
        own = self.own.get(strategy, {})
        return {
            name: seconds * self.shared.get(name, 1.0) * own.get(name, 1.0)
            for name, seconds in terms.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run to fit: its terms and its measured times.

    Attributes:
        strategy: its name.
        terms: seconds before factors.
        step_s: seconds of the whole step.
        compute_s, communication_s: seconds of its phases; None if not measured.
    """

    strategy: str
    terms: Mapping[str, float]
    step_s: float
    compute_s: float | None = None
    communication_s: float | None = None


def fit_factors(runs: Sequence[Measured]) -> Factors:
    """The factors that fit ``runs`` best, given the prior near 1.

    The method is damped Gauss-Newton on the logarithms of predicted over measured time.

    Raises:
        ModelError: there are no runs.
    """
    if not runs:
        raise ModelError("no normal run to calibrate on")
    system = _System(runs)
    x = np.zeros(system.size)
    error, damping = system.cost(x), 1e-3
    for _ in range(_ROUNDS):
        residuals, slopes = system.linearize(x)
        # einsum, since the threads of a BLAS cost more than products of this size
        normal = np.einsum("ri,rj->ij", slopes, slopes)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ residuals)
        candidate = x.copy()
        candidate[system.active] += np.clip(step, -1.0, 1.0)
        cost = system.cost(candidate)
        if cost < error:
            done = error - cost < _CONVERGED * error
            x, error, damping = candidate, cost, damping / 3
            if done:
                break
        else:
            damping = damping * 5
            if damping > 1e9:
                break
    return system.factors(x)


class _System:
    """Runs and their phases as rows: matrices of seconds, [row, term]."""

    def __init__(self, runs: Sequence[Measured]) -> None:
        self.strategies = sorted({run.strategy for run in runs})
        self.count = len(TERMS)
        self.size = self.count * (1 + len(self.strategies))
        rows, places, targets = [], [], []
        compute = np.array([name in COMPUTE for name in TERMS])
        for run in runs:
            seconds = np.array([run.terms[name] for name in TERMS])
            place = self.strategies.index(run.strategy)
            for target, mask in (
                (run.step_s, np.ones(self.count, dtype=bool)),
                (run.compute_s, compute),
                (run.communication_s, ~compute),
            ):
                if target and (seconds * mask).sum() > 0:
                    rows.append(seconds * mask)
                    places.append(place)
                    targets.append(math.log(target))
        self.rows, self.places = np.array(rows), np.array(places)
        self.targets = np.array(targets)
        self.prior = np.full(self.size, 1 / _OWN_SPREAD)
        self.prior[: self.count] = 1 / _SPREAD
        # Factors of terms that no run has do not change.
        columns = np.zeros((1 + len(self.strategies), self.count), dtype=bool)
        columns[0] = (self.rows > 0).any(axis=0)
        for row, place in zip(self.rows, self.places, strict=True):
            columns[1 + place] |= row > 0
        self.active = columns.ravel()

    def _seconds(self, x: Array) -> Array:
        shared, own = x[: self.count], x[self.count :].reshape(-1, self.count)
        seconds: Array = self.rows * np.exp(shared + own[self.places])
        return seconds

    def linearize(self, x: Array) -> tuple[Array, Array]:
        """Residuals of the runs, then of the prior, and their derivatives by the active ``x``."""
        seconds = self._seconds(x)
        totals = seconds.sum(axis=1)
        shares = seconds / totals[:, None] / _NOISE
        slopes = np.zeros((len(totals), self.size))
        slopes[:, : self.count] = shares
        for row, place in enumerate(self.places):
            start = self.count * (1 + place)
            slopes[row, start : start + self.count] = shares[row]
        residuals = (np.log(totals) - self.targets) / _NOISE
        return (
            np.concatenate([residuals, (x * self.prior)[self.active]]),
            np.concatenate([slopes, np.diag(self.prior)])[:, self.active][
                np.concatenate([np.ones(len(totals), dtype=bool), self.active])
            ],
        )

    def cost(self, x: Array) -> float:
        residuals = (np.log(self._seconds(x).sum(axis=1)) - self.targets) / _NOISE
        return float((residuals**2).sum() + ((x * self.prior) ** 2).sum())

    def factors(self, x: Array) -> Factors:
        values = np.exp(x).reshape(-1, self.count)
        named = [dict(zip(TERMS, map(float, row), strict=True)) for row in values]
        own = {
            name: {term: factor for term, factor in factors.items() if abs(factor - 1) > 1e-6}
            for name, factors in zip(self.strategies, named[1:], strict=True)
        }
        return Factors(shared=named[0], own=own)
