"""An oracle that knows all times of fail-slows: no planner can be better.

It acts only when a fail-slow comes or goes. In between it learns nothing, and an action that is
worth its cost should come early. Steps pass at a constant rate there. Dynamic programming: if
several paths lead to the same setting at the same time, the one with most steps is kept. A path is
dropped if another one is ahead even after a change to the same setting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import Setting
from paceline.mitigate.strategies import MICROBATCHES, TOPOLOGY, Strategies

#: Most settings followed at one time; the ones with the fewest finished steps are dropped.
MAX_SETTINGS = 50

#: Most successive actions at one time, such as placement and then microbatches.
_IN_A_ROW = 2


@dataclass(frozen=True)
class Visit:
    """An action of the oracle.

    Attributes:
        at_s: seconds after the job's start.
        overhead_s: its time.
        setting: the job from then on.
    """

    at_s: float
    overhead_s: float
    setting: Setting


@dataclass(frozen=True)
class _Path:
    done: float
    visits: tuple[Visit, ...] = ()


def best_policy(
    strategies: Strategies, fail_slows: Sequence[tuple[float, float, Fault]], steps: int
) -> tuple[tuple[Visit, ...], bool]:
    """The actions that finish the job first, and whether no path was dropped.

    Args:
        strategies: the possible actions.
        fail_slows: (from, to, fault), seconds.
        steps: number of steps.
    """
    moments = sorted({0.0, *(s for low, high, _ in fail_slows for s in (low, high))})
    moments = [moment for moment in moments if moment < float("inf")]
    present = [
        frozenset(fault for low, high, fault in fail_slows if low <= moment < high)
        for moment in moments
    ]
    rates = _Rates(strategies, moments, present)
    paths: list[dict[Setting, _Path]] = [{} for _ in moments]
    paths[0][strategies.model.plain] = _Path(0.0)
    best: tuple[float, tuple[Visit, ...]] = (float("inf"), ())
    exact = True
    for i, moment in enumerate(moments):
        undominated = _undominated(strategies, paths[i], present[i])
        exact = exact and len(undominated) <= MAX_SETTINGS
        for setting, path in undominated[:MAX_SETTINGS]:
            for new, overhead_s in _choices(strategies, setting, present[i]):
                visits = path.visits
                if new != setting:
                    visits = (*visits, Visit(moment, overhead_s, new))
                begin = moment + overhead_s
                best = min(best, (rates.finish(begin, steps - path.done, new), visits), key=_first)
                # The next time to act is the first one after the end of the action.
                j = bisect_right(moments, begin) if overhead_s else i + 1
                if j < len(moments):
                    done = path.done + rates.steps(begin, moments[j], new)
                    earlier = paths[j].get(new)
                    if done < steps and (earlier is None or earlier.done < done):
                        paths[j][new] = _Path(done, visits)
    return best[1], exact


def _undominated(
    strategies: Strategies, paths: dict[Setting, _Path], present: frozenset[Fault]
) -> list[tuple[Setting, _Path]]:
    """The paths, furthest first, that no other path leads by more than the change between them."""
    undominated: list[tuple[Setting, _Path]] = []
    for setting, path in sorted(paths.items(), key=lambda item: -item[1].done):
        step_s = strategies.model.step_s(setting, present)
        if not any(
            other_path.done >= path.done + _change_s(strategies, other_setting, setting) / step_s
            for other_setting, other_path in undominated
        ):
            undominated.append((setting, path))
    return undominated


def _change_s(strategies: Strategies, here: Setting, there: Setting) -> float:
    """Seconds of the change between two settings; inf if it is impossible."""
    seconds = 0.0
    for name, differ in (
        (MICROBATCHES, here.counts != there.counts),
        (TOPOLOGY, here.moved != there.moved),
    ):
        overhead_s = strategies.overhead_s[name]
        if differ:
            seconds += float("inf") if overhead_s is None else overhead_s
    # Replaced machines stay healthy, so having replaced more is no obstacle; having replaced fewer
    # is one.
    return seconds if here.replaced >= there.replaced else float("inf")


def _first(pair: tuple[float, tuple[Visit, ...]]) -> float:
    return pair[0]


def _choices(
    strategies: Strategies, setting: Setting, present: frozenset[Fault]
) -> list[tuple[Setting, float]]:
    """Settings that a few actions reach, each with its smallest overhead."""
    least_overhead = {setting: 0.0}
    newest = dict(least_overhead)
    for _ in range(_IN_A_ROW):
        reached: dict[Setting, float] = {}
        for start, overhead_s in newest.items():
            for option in strategies.options(start, present)[1:]:
                if option.applicable and option.overhead_s is not None:
                    total_s = overhead_s + option.overhead_s
                    if total_s < min(least_overhead.get(option.setting, total_s + 1), total_s + 1):
                        reached[option.setting] = min(reached.get(option.setting, total_s), total_s)
        newest = {
            s: total_s
            for s, total_s in reached.items()
            if total_s < least_overhead.get(s, total_s + 1)
        }
        least_overhead.update(newest)
    return list(least_overhead.items())


class _Rates:
    """Steps finished between the times, in a setting."""

    def __init__(
        self, strategies: Strategies, moments: list[float], present: list[frozenset[Fault]]
    ) -> None:
        self.model = strategies.model
        self.moments, self.present = moments, present

    def steps(self, begin: float, end: float, setting: Setting) -> float:
        """Steps finished from ``begin`` to ``end``."""
        steps_done, i = 0.0, bisect_right(self.moments, begin) - 1
        while begin < end:
            until = min(end, self.moments[i + 1] if i + 1 < len(self.moments) else end)
            steps_done += (until - begin) / self.model.step_s(setting, self.present[i])
            begin, i = until, i + 1
        return steps_done

    def finish(self, begin: float, steps: float, setting: Setting) -> float:
        """The time when these steps are finished without further actions."""
        i = bisect_right(self.moments, begin) - 1
        while True:
            step_s = self.model.step_s(setting, self.present[i])
            if i + 1 == len(self.moments):
                return begin + steps * step_s
            steps_done = (self.moments[i + 1] - begin) / step_s
            if steps_done >= steps:
                return begin + steps * step_s
            begin, steps, i = self.moments[i + 1], steps - steps_done, i + 1
