"""How often times of one mode are taken for two, and how often two modes are found.

    python benchmarks/modes.py

False: the share of draws from one law that ``two_modes`` splits. Found: the share of draws whose
slow values take 1.3 or 2 times as long, for shares of slow values of 20 to 80%, at 5% noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.whatif.modes import two_modes

Array = np.ndarray
Law = Callable[[np.random.Generator, int], Array]

SIZES = (4, 5, 6, 8, 10, 20, 40, 100)
DRAWS = 2000


def _wander(rng: np.random.Generator, n: int) -> Array:
    """Logarithms that wander: AR(1) with 0.9."""
    log = np.zeros(n)
    for i, push in enumerate(rng.normal(size=n)[1:], start=1):
        log[i] = 0.9 * log[i - 1] + push
    return np.exp(0.3 * log)


ONE_MODE: dict[str, Law] = {
    "normal 2%": lambda rng, n: 1 + 0.02 * rng.normal(size=n).clip(-5, 5),
    "lognormal 0.3": lambda rng, n: np.exp(0.3 * rng.normal(size=n)),
    "uniform": lambda rng, n: 1 + rng.random(n),
    "exponential": lambda rng, n: 1 + rng.exponential(size=n),
    "Student t, 3": lambda rng, n: np.exp(0.1 * rng.standard_t(3, size=n)),
    "AR(1) 0.9": _wander,
}


def found(law: Law, n: int) -> float:
    """Share of the draws in which two modes are found."""
    rng = np.random.default_rng(n)
    return float(np.mean([two_modes(law(rng, n)) is not None for _ in range(DRAWS)]))


def two(ratio: float, share: float) -> Law:
    """Values of which ``share`` take ``ratio`` times as long, at 5% noise."""

    def law(rng: np.random.Generator, n: int) -> Array:
        slow = np.arange(n) < round(share * n)
        return np.where(slow, ratio, 1.0) * np.exp(0.05 * rng.normal(size=n))

    return law


def main() -> None:
    """Print both tables."""
    print(f"{'values':16}", *(f"{n:6}" for n in SIZES))
    for name, law in ONE_MODE.items():
        print(f"{name:16}", *(f"{found(law, n):6.1%}" for n in SIZES))
    print()
    for ratio in (1.3, 2.0):
        for share in (0.2, 0.4, 0.5, 0.6, 0.8):
            name = f"{share:.0%} slow {ratio:g}x"
            print(f"{name:16}", *(f"{found(two(ratio, share), n):6.1%}" for n in SIZES))


if __name__ == "__main__":
    main()
