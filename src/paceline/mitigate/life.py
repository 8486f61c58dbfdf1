"""The life of a job: fail-slows come and go, and a planner reacts.

Every step takes the simulated time for the state of the machines at its start, times noise. A
planner learns of a fail-slow some steps after its onset, as from a detector, and after a validation
of some seconds. It learns of the end in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import MitigateError
from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel, Setting
from paceline.mitigate.oracle import Visit, best_policy
from paceline.mitigate.planner import Action, Planner
from paceline.mitigate.strategies import ACTIONS, OVERHEAD_S, TITLES, Strategies

Array = npt.NDArray[np.float64]

#: A simulation of more steps would take minutes.
MAX_STEPS = 1_000_000


@dataclass(frozen=True, order=True)
class FailSlow:
    """A fault with start and duration.

    Attributes:
        start_s: seconds after the job's start.
        duration_s: seconds; inf = permanent.
        fault: the slow machine or link, and its factor.
    """

    start_s: float
    duration_s: float
    fault: Fault

    def __post_init__(self) -> None:
        if not (0 <= self.start_s < np.inf and self.duration_s > 0):
            raise MitigateError("a fail-slow starts at 0 s or later and lasts longer than 0 s")

    @property
    def end_s(self) -> float:
        """Seconds from the job's start to the end of the fail-slow."""
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class Scenario:
    """A job, its fail-slows, and the possible actions.

    Attributes:
        model: the job.
        steps: number of steps of the job.
        fail_slows: the fail-slows.
        overhead_s: strategy -> one-off seconds; None = not allowed.
        noise: coefficient of variation of the step times (falcon paper, Table 2: 0.01 for GPUs to
            0.29 for RDMA transfers).
        seed: seed of the noise.
        detect_steps: steps from onset or relief until the planner knows it.
        validate_s: seconds of pause to find the slow machine, for each onset.
        rule: the planner's rule, one of :data:`paceline.mitigate.planner.RULES`.
    """

    model: JobModel
    steps: int
    fail_slows: tuple[FailSlow, ...] = ()
    overhead_s: Mapping[str, float | None] = field(default_factory=lambda: dict(OVERHEAD_S))
    noise: float = 0.02
    seed: int = 0
    detect_steps: int = 3
    validate_s: float = 0.0
    rule: str = "loss"

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise MitigateError(f"steps must be 1 to {MAX_STEPS:,}, not {self.steps}")
        if not 0 <= self.noise < 1:
            raise MitigateError(f"noise must be 0 or more and below 1, not {self.noise:g}")
        if self.detect_steps < 0 or not 0 <= self.validate_s < np.inf:
            raise MitigateError("detect_steps and validate_s must be 0 or more")
        self.model.check(frozenset(slow.fault for slow in self.fail_slows))
        last: dict[str, FailSlow] = {}
        for slow in sorted(self.fail_slows):
            before = last.get(slow.fault.name)
            if before is not None and before.end_s > slow.start_s:
                raise MitigateError(
                    f"two fail-slows of {slow.fault.name} overlap, at {slow.start_s:g} s; give "
                    "them one after the other"
                )
            last[slow.fault.name] = slow

    def noise_factors(self) -> Array:
        """[step] factors on the step times, 1 on average."""
        sigma = np.sqrt(np.log1p(self.noise**2))
        normal = np.random.default_rng(self.seed).normal(0.0, sigma, self.steps)
        factors: Array = np.exp(normal - sigma**2 / 2)
        return factors


@dataclass(frozen=True, eq=False)
class Life:
    """One simulated life of the job.

    Attributes:
        name: name of its policy.
        step_s: [step] seconds of each step.
        pause_s: [step] seconds of validation and action before each step.
        actions: the actions taken.
    """

    name: str
    step_s: Array
    pause_s: Array
    actions: tuple[Action, ...] = ()

    @property
    def completion_s(self) -> float:
        """Seconds until the job is done."""
        return float(self.step_s.sum() + self.pause_s.sum())


@dataclass(frozen=True)
class Lives:
    """One scenario under several policies.

    Attributes:
        scenario: the scenario.
        lives: "healthy", "none", "planner", each single strategy, "oracle".
        oracle_exact: whether no policy that acts when fail-slows come or go is better.
    """

    scenario: Scenario
    lives: Mapping[str, Life]
    oracle_exact: bool

    def slowdown(self, name: str) -> float:
        """Completion time over that of the healthy job."""
        return self.lives[name].completion_s / self.lives["healthy"].completion_s

    def reduced(self, name: str) -> float:
        """Share of the slowdown that a policy removes (falcon paper, Table 7: 60.1%)."""
        worst = self.slowdown("none") - 1
        return 1 - (self.slowdown(name) - 1) / worst if worst > 0 else 0.0

    @property
    def competitive_ratio(self) -> float:
        """Seconds lost with the planner over those lost with the oracle."""
        healthy = self.lives["healthy"].completion_s
        lost_s = self.lives["oracle"].completion_s - healthy
        return (self.lives["planner"].completion_s - healthy) / lost_s if lost_s > 0 else 1.0

    def to_mapping(self) -> dict[str, Any]:
        """The lives in the form of JSON."""
        return {
            "steps": self.scenario.steps,
            "healthy_step_s": self.scenario.model.healthy_s,
            "policies": {
                name: {
                    "completion_s": life.completion_s,
                    "slowdown": self.slowdown(name),
                    "reduced": self.reduced(name),
                    "actions": [action.to_mapping() for action in life.actions],
                }
                for name, life in self.lives.items()
            },
            "competitive_ratio": self.competitive_ratio,
            "oracle_exact": self.oracle_exact,
        }


def compare(scenario: Scenario, progress: Callable[[int, int], None] | None = None) -> Lives:
    """The life of the job without fail-slows, without mitigation, and under each policy.

    Args:
        scenario: the job and its fail-slows.
        progress: called with the numbers of finished policies and of all.
    """
    usable = {name: s for name, s in scenario.overhead_s.items() if s is not None}
    policies: dict[str, dict[str, float]] = {"healthy": {}, "none": {}, "planner": usable}
    for name in ACTIONS:
        if name in usable:
            policies[f"{name} {TITLES[name]} only"] = {name: usable[name]}
    lives = {}
    for done, (name, overhead_s) in enumerate(policies.items()):
        if progress is not None:
            progress(done, len(policies) + 1)
        lives[name] = live(scenario, name, overhead_s, () if name == "healthy" else None)
    visits, exact = best_policy(
        Strategies(scenario.model, usable),
        [
            (fail_slow.start_s, fail_slow.end_s, fail_slow.fault)
            for fail_slow in scenario.fail_slows
        ],
        scenario.steps,
    )
    lives["oracle"] = replay(scenario, visits)
    return Lives(scenario, lives, exact)


def live(
    scenario: Scenario,
    name: str,
    overhead_s: Mapping[str, float],
    fail_slows: Sequence[FailSlow] | None = None,
) -> Life:
    """A life under a planner with these strategies; without any, there are no actions."""
    planner = Planner(Strategies(scenario.model, overhead_s), rule=scenario.rule)
    news = _News(scenario.fail_slows if fail_slows is None else fail_slows, scenario)
    step_s, pause_s = scenario.noise_factors(), np.zeros(scenario.steps)
    actions: list[Action] = []
    clock, pause = 0.0, 0.0
    for step in range(scenario.steps):
        active = news.active(clock)
        pause_s[step] = pause
        step_s[step] *= scenario.model.step_s(planner.state.setting, active)
        clock += step_s[step]
        pause = news.tell(planner, step, step_s) if overhead_s else 0.0
        action = planner.update(step, float(step_s[step]), scenario.steps - 1 - step)
        if action is not None:
            actions.append(action)
            pause += action.option.overhead_s or 0.0
        clock += pause
    return Life(name, step_s, pause_s, tuple(actions))


def replay(scenario: Scenario, visits: Sequence[Visit]) -> Life:
    """A life under the oracle's policy, which is fixed in advance."""
    step_s, pause_s = scenario.noise_factors(), np.zeros(scenario.steps)
    news = _News(scenario.fail_slows, scenario)
    clock, visits_left = 0.0, list(visits)
    setting: Setting = scenario.model.plain
    for step in range(scenario.steps):
        while visits_left and visits_left[0].at_s <= clock:
            visit = visits_left.pop(0)
            setting = visit.setting
            pause_s[step] += visit.overhead_s
            clock += visit.overhead_s
        step_s[step] *= scenario.model.step_s(setting, news.active(clock))
        clock += step_s[step]
    return Life("oracle", step_s, pause_s)


class _News:
    """The present fail-slows, and the times when a planner learns of them."""

    def __init__(self, fail_slows: Sequence[FailSlow], scenario: Scenario) -> None:
        self.fail_slows, self.scenario = tuple(fail_slows), scenario
        self.edges = sorted(
            {s for fail_slow in fail_slows for s in (fail_slow.start_s, fail_slow.end_s)}
        )
        self.now: frozenset[Fault] = frozenset()
        self.passed = 0
        self.onset_steps: dict[Fault, int] = {}  # present fail-slow -> step of its onset
        self.relief_steps: dict[Fault, int] = {}
        self.reported: set[Fault] = set()

    def active(self, clock: float) -> frozenset[Fault]:
        """The fail-slows of this moment."""
        while self.passed < len(self.edges) and self.edges[self.passed] <= clock:
            self.passed += 1
            self.now = frozenset(
                fail_slow.fault
                for fail_slow in self.fail_slows
                if fail_slow.start_s <= clock < fail_slow.end_s
            )
        return self.now

    def tell(self, planner: Planner, step: int, step_s: Array) -> float:
        """Tell the planner the detector's present knowledge; returns seconds of validation."""
        if self.now == self.reported:
            self.onset_steps, self.relief_steps = {}, {}
            return 0.0
        wait, pause = self.scenario.detect_steps, 0.0
        for fault in sorted(self.now - self.reported):
            if fault.name in planner.state.setting.replaced:
                self.reported.add(
                    fault
                )  # the job no longer uses the machine, so no detector sees it
                continue
            since = self.onset_steps.setdefault(fault, step)
            if step - since >= wait:
                lost_s = float((step_s[since:step] - planner.healthy_s).sum())
                planner.onset(fault, since, max(0.0, lost_s))
                self.reported.add(fault)
                pause = self.scenario.validate_s
        for fault in sorted(self.reported - self.now):
            if step - self.relief_steps.setdefault(fault, step) >= wait:
                planner.relief(fault, step)
                self.reported.discard(fault)
                del self.relief_steps[fault]
        return pause
