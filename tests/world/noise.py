"""Ten ways in which healthy jobs vary, each a factor [op, step] of what operations take.

Sizes come from three real jobs, the public traces of the what-if paper (AR, SE, ST), measured by
``benchmarks/truth/real_noise.py``, and from the literature named at each class. In AR and ST a
compute varies by 1.6 to 2.3% (robust standard deviation), neighbouring computes of a worker
correlate by 0.3 to 0.6, steps share a factor of 0.6 to 2.3%, workers differ by 0.4%, gradient
collectives vary by 5 to 7% with a 99% quantile of 2.2 medians (AR), forward sends by 3.3 medians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from world.draws import lognormal, normal, student, uniform
from world.ops import Array, Ops


@dataclass(frozen=True)
class GaussianOps:
    """Every compute and every transfer varies a little, symmetrically."""

    cv: float

    def factor(self, seed: int, ops: Ops) -> Array:
        draw = np.where(
            ops.transfers, normal(seed, "wire", *ops.message), normal(seed, "op", *ops.identity)
        )
        return np.maximum(1 + self.cv * draw, 0.2)


@dataclass(frozen=True)
class LognormalOps:
    """Every compute and every transfer varies, skewed to the right (AR: 1.6 to 2.3%)."""

    cv: float

    def factor(self, seed: int, ops: Ops) -> Array:
        sigma = np.sqrt(np.log1p(self.cv**2))
        draw = np.where(
            ops.transfers, normal(seed, "wire", *ops.message), normal(seed, "op", *ops.identity)
        )
        return np.exp(sigma * draw - sigma**2 / 2)


@dataclass(frozen=True)
class LognormalMembers:
    """Each member of a collective ends on its own (SE: ends lie 12% of the transfer apart)."""

    cv: float

    def factor(self, seed: int, ops: Ops) -> Array:
        drawn = lognormal(self.cv, seed, "member", *ops.member)
        return np.where(ops.collectives, drawn, 1.0)


@dataclass(frozen=True)
class HeavyTails:
    """Transfers with a heavy tail: most as usual, some several times as long.

    ``law`` "student": |t| with 3 degrees of freedom on top; "pareto": Lomax, shape 2.5. AR: the 99%
    quantile of forward sends is 3.3 medians, SE: the longest 3.8. Tails of collectives in shared
    fabrics: Dean and Barroso 2013, "The tail at scale".
    """

    law: str
    scale: float

    def factor(self, seed: int, ops: Ops) -> Array:
        if self.law == "student":
            extra = np.abs(student(3, seed, "tail", *ops.message))
        else:
            extra = uniform(seed, "tail", *ops.message) ** (-1 / 2.5) - 1
        return np.where(ops.transfers, 1 + self.scale * extra, 1.0)


@dataclass(frozen=True)
class Wander:
    """The clock of each machine wanders: AR(1) from compute to compute (AR, ST: 0.3 to 0.6).

    Heat and power caps change over seconds; slow wander has a ``memory`` near 1.
    """

    cv: float
    memory: float

    def factor(self, seed: int, ops: Ops) -> Array:
        shocks = normal(seed, "shock", *ops.series)
        states = np.empty_like(shocks)
        states[:, 0] = shocks[:, 0]
        fresh = np.sqrt(1 - self.memory**2)
        for slot in range(1, shocks.shape[1]):
            states[:, slot] = self.memory * states[:, slot - 1] + fresh * shocks[:, slot]
        return np.where(ops.computes, np.exp(self.cv * states)[ops.machine_slot], 1.0)


@dataclass(frozen=True)
class CommonSteps:
    """Whole steps are longer or shorter on all workers (ST: 2.2%, AR: 0.6%)."""

    cv: float

    def factor(self, seed: int, ops: Ops) -> Array:
        drawn = lognormal(self.cv, seed, "step", ops.steps)[None, :]
        return np.where(ops.computes, drawn, 1.0)


@dataclass(frozen=True)
class Bursts:
    """Contention: now and then several computes of a machine in a row take longer together.

    A neighbour on the host, a monitoring agent, a checkpoint upload (falcon paper, 3: CPU
    contention slows computes for a while). ``chance``: per compute that a burst begins.
    """

    times: float
    chance: float
    length: int

    def factor(self, seed: int, ops: Ops) -> Array:
        begins = uniform(seed, "burst", *ops.series) < self.chance
        within = np.zeros_like(begins)
        for k in range(self.length):
            within[:, k:] |= begins[:, : begins.shape[1] - k]
        return np.where(ops.computes & within[ops.machine_slot], self.times, 1.0)


@dataclass(frozen=True)
class TwoClocks:
    """Kernels run in one of two ways, half of them ``apart`` longer (autotuning, power states)."""

    apart: float

    def factor(self, seed: int, ops: Ops) -> Array:
        slow = uniform(seed, "clock", *ops.identity) < 0.5
        return np.where(ops.computes & slow, 1 + self.apart, 1.0)


@dataclass(frozen=True)
class Spread:
    """GPUs differ for good (ST: 0.4%; Sinha et al. 2022, "Not all GPUs are created equal").

    A property of the machine: a new one is typical.
    """

    cv: float

    def factor(self, seed: int, ops: Ops) -> Array:
        own = 1 + self.cv * normal(seed, "gpu", ops.machine[:, None])
        return np.where(ops.computes & ~ops.renewed[:, None], own, 1.0)


@dataclass(frozen=True)
class Clocks:
    """How workers tell the time: an offset, a drift, a last digit.

    ``skew_s``: standard deviation of constant offsets. ``drift_s``: of what an offset changes by
    from step to step. ``quantum_s``: times are cut to multiples of it.
    """

    skew_s: float = 0.0
    drift_s: float = 0.0
    quantum_s: float = 0.0


Noise = (
    GaussianOps | LognormalOps | LognormalMembers | HeavyTails | Wander | CommonSteps | Bursts
    | TwoClocks | Spread
)  # fmt: skip
