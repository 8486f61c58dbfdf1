"""Random draws by identity: the same thing draws the same number, whatever else there is.

A counter-based generator in the manner of Salmon et al. 2011 ("Parallel random numbers: as easy as
1, 2, 3"), with the finalizer of SplitMix64 (Steele et al. 2014) as its mixer.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(word: np.ndarray) -> np.ndarray:
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


def uniform(seed: int, what: str, *ids: npt.ArrayLike) -> Array:
    """Numbers in (0, 1), one for each combination of the ids, which broadcast."""
    word = np.full((1,), (seed << 32) ^ crc32(what.encode()), dtype=np.uint64)
    for one in ids:
        counter = np.atleast_1d(np.asarray(one, dtype=np.int64)).astype(np.uint64)
        word = _mix(word * _GOLDEN + counter + np.uint64(1))
    word = _mix(word + _GOLDEN)
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


def normal(seed: int, what: str, *ids: npt.ArrayLike) -> Array:
    """Standard normal numbers (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(uniform(seed, what, *ids)))
    return radius * np.cos(2 * np.pi * uniform(seed, what + "'", *ids))


def lognormal(cv: float, seed: int, what: str, *ids: npt.ArrayLike) -> Array:
    """Factors of mean 1 and the given coefficient of variation."""
    sigma = np.sqrt(np.log1p(cv * cv))
    return np.exp(sigma * normal(seed, what, *ids) - sigma * sigma / 2)


def student(freedom: int, seed: int, what: str, *ids: npt.ArrayLike) -> Array:
    """Student's t with a whole number of degrees of freedom."""
    square = sum(normal(seed, f"{what}{k}", *ids) ** 2 for k in range(freedom))
    return normal(seed, what, *ids) / np.sqrt(square / freedom)


def exactly(share: float, n: int, seed: int, what: str) -> np.ndarray:
    """[n] true for that share of the places, drawn at random."""
    chosen = np.zeros(n, dtype=bool)
    chosen[np.argsort(uniform(seed, what, np.arange(n)))[: round(share * n)]] = True
    return chosen
