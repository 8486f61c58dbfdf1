"""Bayesian online change-point detection with verification, as in Falcon (4.3, 9.1).

Adams and MacKay 2007: a posterior over when the current run began, from a Student-t predictive
(unknown mean and variance, conjugate prior) and a constant hazard. The paper reports a change point
where P(r_t = 0) > 0.9. As printed that can never fire, since P(r_t = 0) equals the hazard. So the
probability that the run began after the last reported change point is compared instead. A change
point is then verified: the means of the steps before and after it must differ by more than 10%.
Improbable runs are pruned, so that memory and time per sample are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.detect.event import Event, Kind
from paceline.detect.limits import MAX_STEP_S, MIN_STEP_S, WARM_UP, checked_durations
from paceline.detect.planned import Workloads
from paceline.errors import DetectError

Array = npt.NDArray[np.float64]

#: Runs kept per rank; a new run replaces the least probable.
RUNS = 64
#: Prior probability of a change point in a step.
_HAZARD = 1 / 1000
_SURE = 0.9
#: Steps on both sides whose means are compared, and their least difference.
VERIFY_STEPS, VERIFY_SHARE = 50, 0.10
#: Prior of a run, in units of the warm-up's median: mean 1 worth one step, variance 0.03 squared.
_MEAN, _KAPPA, _ALPHA, _BETA = 1.0, 1.0, 1.0, 1e-3
#: Largest run length for the variance's certainty, which bounds the table of constants.
_MAX_N = 1 << 14


class Bocd:
    """BOCD with verification; the interface of :class:`~paceline.detect.detector.Detector`.

    Args:
        ranks: number of ranks.
        verify: whether to compare the means; False accepts every change point (the paper's plain
            BOCD).

    Raises:
        DetectError: ``ranks`` is no positive whole number.
    """

    def __init__(self, ranks: int, *, verify: bool = True) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int | np.integer) or ranks < 1:
            raise DetectError(f"ranks must be a whole number >= 1, not {ranks!r}")
        self.ranks, self.verify = int(ranks), verify
        self.steps = 0
        self.last_step: int | None = None
        shape = (self.ranks, RUNS)
        self._scale = np.full(self.ranks, np.nan)
        self._first: list[Array] = []
        self._start = np.zeros(shape, dtype=np.int64)
        self._log = np.full(shape, -np.inf)
        self._n = np.zeros(shape, dtype=np.int64)
        self._mean = np.full(shape, _MEAN)
        self._beta = np.full(shape, _BETA)
        self._reported = np.zeros(self.ranks, dtype=np.int64)
        self._waiting: list[tuple[int, int]] = []  # (rank, begin) to be verified
        self._history = np.full((4 * VERIFY_STEPS, self.ranks), np.nan)
        self._numbers = np.zeros(4 * VERIFY_STEPS, dtype=np.int64)
        self._slow = np.zeros(self.ranks, dtype=bool)
        self._healthy = np.full(self.ranks, np.nan)
        self._lost_s = np.zeros(self.ranks)
        self._workloads, self._share = Workloads(), 1.0
        alpha = _ALPHA + np.arange(_MAX_N + 1) / 2
        self._gamma = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in alpha])

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """[rank] whether it is in an episode."""
        return self._slow.copy()

    @property
    def lost_s(self) -> npt.NDArray[np.float64]:
        """[rank] seconds lost in the current episode."""
        return self._lost_s * self._share

    def update(
        self,
        step: int,
        durations_s: npt.ArrayLike,
        workload: Mapping[str, float] | None = None,
    ) -> list[Event]:
        """Take the step times of one step; see ``Detector.update``."""
        x = checked_durations(step, durations_s, self.ranks, self.last_step)
        self.last_step = int(step)
        missing = ~((x >= MIN_STEP_S) & (x <= MAX_STEP_S))
        events: list[Event] = []
        for number, row, share in self._workloads.take(int(step), x, missing, 1.0, workload):
            self._share = share
            events += self._judge_step(number, int(step), row / share)
        return events

    def _judge_step(self, number: int, step: int, x: Array) -> list[Event]:
        """Events of a step, from its time over the expected time of its workload.

        Args:
            number: step number of the sample.
            step: step number of the update.
            x: [rank] seconds.
        """
        size = len(self._history)
        before = self._history[(self.steps - 1) % size]
        x = np.where(
            (x >= MIN_STEP_S) & (x <= MAX_STEP_S), x, before
        )  # a missing sample repeats the last one
        self._history[self.steps % size] = x
        self._numbers[self.steps % size] = number
        self.steps += 1
        if self.steps <= WARM_UP:
            self._first.append(x)
            if self.steps == WARM_UP:
                # Ranks without any sample get equal steps.
                first = np.array(self._first)
                first[:, np.isnan(first).all(axis=0)] = 1.0
                self._scale = np.nanmedian(first, axis=0)
                self._log[:, 0], self._first = 0.0, []
                self._start[:, 0] = self._reported[:] = self.steps
            return []
        self._lost_s += np.where(self._slow, x - self._healthy, 0.0)
        self._learn(np.nan_to_num(x / self._scale, nan=1.0))
        self._suspect()
        return self._verify_waiting(step)

    def go_back(self) -> None:
        """See ``Detector.go_back``."""
        self.last_step = None

    def _learn(self, x: Array) -> None:
        """One step of the recursion over all runs of all ranks."""
        n = np.minimum(self._n, _MAX_N)
        kappa, alpha = _KAPPA + n, _ALPHA + n / 2
        width = self._beta * (kappa + 1) / (alpha * kappa)
        off = x[:, None] - self._mean
        predictive = (
            self._gamma[n]
            - 0.5 * np.log(2 * alpha * np.pi * width)
            - (alpha + 0.5) * np.log1p(off**2 / (2 * alpha * width))
        )
        joint = self._log + predictive
        total = _log_sum(joint)
        self._log = joint + math.log1p(-_HAZARD) - total[:, None]
        self._beta = self._beta + kappa * off**2 / (2 * (kappa + 1))
        self._mean = self._mean + off / (kappa + 1)
        self._n = self._n + 1
        rows = np.arange(self.ranks)
        slot = np.argmin(self._log, axis=1)  # an empty run, or the least probable
        self._log[rows, slot] = math.log(_HAZARD)
        self._n[rows, slot] = 0
        self._mean[rows, slot], self._beta[rows, slot] = _MEAN, _BETA
        self._start[rows, slot] = self.steps
        self._log -= _log_sum(self._log)[:, None]

    def _suspect(self) -> None:
        later = np.where(self._start > self._reported[:, None], np.exp(self._log), 0.0)
        for rank in np.flatnonzero(later.sum(axis=1) > _SURE).tolist():
            begin = int(self._start[rank, np.argmax(later[rank])])
            self._reported[rank] = begin
            self._waiting.append((rank, begin))

    def _verify_waiting(self, step: int) -> list[Event]:
        events: list[Event] = []
        waiting: list[tuple[int, int]] = []
        need = VERIFY_STEPS if self.verify else 1
        for rank, begin in self._waiting:
            if self.steps - begin < need:
                waiting.append((rank, begin))
                continue
            event = self._judge(rank, begin, step)
            events += [event] if event is not None else []
        self._waiting = waiting
        return events

    def _judge(self, rank: int, begin: int, step: int) -> Event | None:
        size = len(self._history)
        oldest = max(0, self.steps - size, begin - VERIFY_STEPS)
        before = self._history[np.arange(oldest, begin) % size, rank]
        after = self._history[np.arange(begin, self.steps) % size, rank]
        if not len(before) or not len(after):
            return None
        was, now = float(np.mean(before)), float(np.mean(after))
        if self.verify and abs(now / was - 1) <= VERIFY_SHARE:
            return None
        since = int(self._numbers[begin % size])
        event = self._change(rank, was, now)
        return None if event is None else self._event(event, rank, step, since, was, now, after)

    def _change(self, rank: int, was: float, now: float) -> Kind | None:
        """Kind of a change of the mean, by comparison with the healthy level."""
        if not self._slow[rank]:
            return "onset" if now > was else "faster" if self.verify else None
        if now > was:
            return "worsening"
        # The same least difference applies to the healthy level.
        is_healthy = now <= (1 + VERIFY_SHARE / 2) * self._healthy[rank]
        return "relief" if is_healthy else "partial-relief"

    def _event(
        self, kind: Kind, rank: int, step: int, since: int, was: float, now: float, after: Array
    ) -> Event:
        if kind == "onset":
            self._slow[rank], self._healthy[rank] = True, was
            self._lost_s[rank] = float((after - was).sum())
        elif kind == "faster":
            self._healthy[rank] = now
        healthy = float(self._healthy[rank])
        factor = (was if kind == "relief" else now) / (was if kind == "faster" else healthy)
        if kind == "relief":
            self._slow[rank] = False
        lost_s = float(self._lost_s[rank]) * self._share
        return Event(
            kind, rank, step, since, factor, lost_s, healthy * self._share, before_factor=now / was
        )


def _log_sum(values: Any) -> Array:
    """[rank] logarithm of the sum of exponentials."""
    most = values.max(axis=1)
    total: Array = most + np.log(np.exp(values - most[:, None]).sum(axis=1))
    return total
