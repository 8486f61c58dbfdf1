"""Expected time of a step whose planned work differs from step to step.

Such are batches of unpacked sequences, and the rollouts of reinforcement learning. A step with w
times the reference's work is expected to take (1 - b) + b w times as long. The share b of the time
that grows with the work is the one that explains the changes between neighbouring steps best. A
new level changes one of these differences only, so a fail-slow does not move b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

#: Steps that tell whether the work varies; its changes among them from which on it does, and up to
#: which it does no longer.
RECENT, _CHANGES, _FEW_CHANGES = 16, 10, 2
#: Fewest different works. Two may alternate by plan.
_DIFFERENT = 3

#: Candidates of b. Above 1 the time grows faster than the work, as attention does.
_SHARES = np.linspace(0.0, 1.5, 76)
#: Samples that tell b, and samples between two fits of a young and of an old model.
_SAMPLES, _YOUNG, _EVERY, _SELDOM = 256, 64, 8, 64

Work = tuple[tuple[str, float], ...]


def varies(works: Sequence[Work]) -> bool:
    """Whether the work of the last steps differs from step to step."""
    return _changes(works) >= _CHANGES and len(set(works)) >= _DIFFERENT


def is_settled(works: Sequence[Work]) -> bool:
    """Whether the work of the last steps hardly changes."""
    return len(works) == RECENT and _changes(works) <= _FEW_CHANGES


def _changes(works: Sequence[Work]) -> int:
    return sum(a != b for a, b in pairwise(works))


class VaryingWork:
    """Time of a step relative to one of the reference's work.

    Args:
        reference: the work of a step whose relative time is 1.
    """

    def __init__(self, reference: Work) -> None:
        self.reference = reference
        self._name = ""
        self._share = 0.0
        self._seen = 0
        self._samples: list[tuple[Work, float]] = []

    def add(self, work: Work, seconds: float) -> None:
        """Learn from a step; one without a time, or of unknown work, teaches nothing."""
        if not (np.isfinite(seconds) and seconds > 0):
            return
        self._samples = [*self._samples[1 - _SAMPLES :], (work, seconds)]
        self._seen += 1
        every = _EVERY if self._seen <= _YOUNG else _SELDOM
        if self._seen % every == 0:
            self._fit()

    def relative_time(self, work: Work) -> float:
        """Expected time of a step, over that of the reference's work; 1 if it is not known."""
        ratio = self._ratio(work, self._name)
        value = 1.0 - self._share + self._share * ratio
        return value if np.isfinite(value) and value > 0 else 1.0

    def _ratio(self, work: Work, name: str) -> float:
        """One quantity of the work over that of the reference; nan if either lacks it."""
        now, before = dict(work).get(name, np.nan), dict(self.reference).get(name, np.nan)
        return now / before if before > 0 and now > 0 else np.nan

    def _fit(self) -> None:
        """Choose the quantity and its share that leave the smallest changes between neighbours."""
        seconds = np.log([value for _, value in self._samples])
        best = np.inf
        for name, _ in self.reference:
            ratio = np.array([self._ratio(work, name) for work, _ in self._samples])
            expected = np.log1p(_SHARES[:, None] * (ratio - 1).clip(-0.99 / _SHARES[-1]))
            left = np.abs(np.diff(seconds - expected, axis=1))
            known = np.isfinite(left[0])
            if not known.any():
                continue
            sums = left[:, known].mean(axis=1)
            at = int(sums.argmin())
            if sums[at] < best:
                best, self._name, self._share = float(sums[at]), name, float(_SHARES[at])

    def state(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "reference": list(map(list, self.reference)),
            "name": self._name,
            "share": self._share,
            "seen": self._seen,
            "samples": [[list(map(list, work)), value] for work, value in self._samples],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VaryingWork:
        """Restore the result of :meth:`state`."""
        model = cls(work_of(state["reference"]))
        model._name, model._share = str(state["name"]), float(state["share"])
        model._seen = int(state["seen"])
        model._samples = [(work_of(work), float(value)) for work, value in state["samples"]]
        return model


def work_of(pairs: Sequence[Sequence[Any]]) -> Work:
    """Names and amounts of a step's work from JSON values."""
    return tuple((str(name), float(value)) for name, value in pairs)
