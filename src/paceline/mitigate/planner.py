"""The planner: the falcon paper's Algorithm 1 as a state machine that survives a restart.

The rule is a ski rental, since the length of a fail-slow is unknown. Ignore it (S1) until its cost
so far equals the cost of the cheapest strategy, then apply that strategy. Continue in the same way
with the more expensive ones. No rule without foresight has a better guarantee.

Beyond the paper: the simulator is asked first, and a strategy that does not help is skipped. Losses
are counted for each strategy and fail-slow, so several fail-slows at once and returning ones count
correctly. The same rule undoes an action that is no longer needed. Without fail-slows, S2
distributes the microbatches evenly again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.detect.limits import PAUSE
from paceline.errors import MitigateError
from paceline.files import text_writer, write_files
from paceline.mitigate.fault import COMPUTE, Fault, place_from, whole_number
from paceline.mitigate.job_model import Setting
from paceline.mitigate.strategies import ACTIONS, RESTART, Option, Strategies

VERSION = 1

#: Rules for the time when a strategy is due. By "loss", the loss since the onset equals its
#: overhead, as in the paper. By "savings", the time that it would have saved equals its overhead.
RULES = ("loss", "savings")

#: Key of losses without a fail-slow: the savings of undoing a change.
_NONE = "none"


@dataclass(frozen=True)
class State:
    """State of a planner.

    Attributes:
        setting: the changes that mitigation has made.
        active: present fail-slows, without those of replaced machines.
        lost_s: seconds lost since the onset of the first one, without overheads of mitigation.
        since_step: the step of that onset; None without fail-slows.
        accrued_s: (strategy, fail-slow) -> seconds that count towards the strategy.
        applied: strategies applied since then, in order.
    """

    setting: Setting
    active: frozenset[Fault] = frozenset()
    lost_s: float = 0.0
    since_step: int | None = None
    accrued_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    applied: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """One of healthy, ignoring (S1), mitigated, undoing (no fail-slow is left)."""
        changed = any(name != RESTART for name in self.applied)
        if self.active:
            return "mitigated" if changed else "ignoring"
        return "undoing" if changed else "healthy"


@dataclass(frozen=True)
class Action:
    """The action to take now.

    Attributes:
        step: the action comes after this step.
        option: the strategy, its setting and its gain.
        lost_s: seconds lost so far.
        since_step: the step in which the loss began.
        faults: the fail-slows that it answers, as text.
    """

    step: int
    option: Option
    lost_s: float
    since_step: int
    faults: tuple[str, ...]

    def explain(self) -> str:
        """The action as text."""
        option = self.option
        reason = "; ".join(self.faults) if self.faults else "no fail-slow is left"
        return (
            f"step {self.step:,}: {reason}; {_seconds(self.lost_s)} lost since step "
            f"{self.since_step:,}: {option.text}: a step takes {option.step_s:.4g} s instead of "
            f"{option.now_s:.4g} s (recovers {option.recovered_text}) for "
            f"{_seconds(option.overhead_s or 0.0)} once ({option.strategy.upper()})"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The action in the form of JSON."""
        return {
            "step": self.step,
            "lost_s": self.lost_s,
            "since_step": self.since_step,
            "faults": list(self.faults),
            "text": self.explain(),
            "option": self.option.to_mapping(),
        }


def _seconds(value: float) -> str:
    return f"{value / 60:.1f} minutes" if value >= 120 else f"{value:.3g} s"


class Planner:
    """Decides after each step whether to act. Equal inputs give equal decisions."""

    def __init__(
        self,
        strategies: Strategies,
        *,
        state: State | None = None,
        healthy_s: float | None = None,
        rule: str = "loss",
    ) -> None:
        """A planner for a job.

        Args:
            strategies: the possible actions, and their overheads.
            state: state of an earlier planner (:func:`load_state`); None: a new planner.
            healthy_s: seconds of a healthy step as measured; None: as simulated.
            rule: one of :data:`RULES`.

        Raises:
            MitigateError: the rule is unknown, or the state belongs to another job.
        """
        if rule not in RULES:
            raise MitigateError(f"there is no rule {rule!r}; known are {', '.join(RULES)}")
        model = strategies.model
        self.strategies, self.rule = strategies, rule
        self.state = State(model.plain) if state is None else state
        counts = self.state.setting.counts
        if (
            sum(counts) != sum(model.plain.counts)
            or len(counts) != len(model.plain.counts)
            or min(counts) < 1
        ):
            raise MitigateError("the state belongs to a job with other replicas or microbatches")
        machines = (machine for pair in self.state.setting.moved for machine in pair)
        model.check(self.state.active | {Fault(COMPUTE, machine, 2.0) for machine in machines})
        self.healthy_s = model.healthy_s if healthy_s is None else healthy_s

    def onset(self, fault: Fault, step: int, lost_s: float = 0.0) -> None:
        """A fail-slow was found, or its factor changed.

        If its machine was replaced, the new machine is slow now.

        Args:
            fault: the slow machine or link, and its factor.
            step: step in which it was found.
            lost_s: seconds that it cost before it was found: ``lost_s`` of a detector's event.

        Raises:
            MitigateError: its machine does not belong to the job, or ``lost_s`` is not a valid
                time.
        """
        self.strategies.model.check(frozenset([fault]))
        if not 0 <= lost_s < math.inf:
            raise MitigateError(f"step {step}: lost_s must be 0 s or more, not {lost_s:g}")
        state = self.state
        replaced = state.setting.replaced - {fault.name}
        active = frozenset(f for f in state.active if f.name != fault.name) | {fault}
        first = not state.active
        self.state = replace(
            state,
            setting=replace(state.setting, replaced=replaced),
            active=active,
            lost_s=(0.0 if first else state.lost_s) + lost_s,
            since_step=step if first else state.since_step,
            accrued_s=self._accrued(dict.fromkeys(ACTIONS, lost_s), [fault.name]),
        )

    def relief(self, fault: Fault | str, step: int) -> None:
        """A fail-slow is over. Its losses are remembered in case it returns."""
        name = fault if isinstance(fault, str) else fault.name
        active = frozenset(f for f in self.state.active if f.name != name)
        if active == self.state.active:
            return
        self.state = replace(self.state, active=active)
        if not active:
            self.state = replace(self.state, lost_s=0.0, since_step=step)

    def update(
        self, step: int, duration_s: float, steps_left: int | None = None, *, steps: int = 1
    ) -> Action | None:
        """Record a step; returns the action before the next step, if any.

        A pause (more than :data:`~paceline.detect.limits.PAUSE` healthy steps: a checkpoint, an
        evaluation) is not an effect of a fail-slow. It counts as a step of the expected time.

        The action counts as done when it is returned. Apply its ``option.setting``. If its real
        cost is known by then, give it to ``strategies.set_overhead``.

        Args:
            step: its number.
            duration_s: its duration, seconds.
            steps_left: steps until the job ends. An action is skipped if they cannot save its
                overhead.
            steps: number of equal steps that this call records; ``step`` is the last one.

        Raises:
            MitigateError: the duration is not a valid time.
        """
        if not 0 < duration_s < math.inf:
            raise MitigateError(f"step {step}: a duration must be above 0 s, not {duration_s:g}")
        state = self.state
        if not state.active and not state.applied:
            return None
        options = self.strategies.options(state.setting, state.active)
        if not state.active and not any(option.applicable for option in options[1:]):
            # Nothing to undo: the episode is over.
            self.state = replace(state, applied=(), lost_s=0.0, since_step=None)
            return None
        if duration_s > PAUSE * self.healthy_s:
            expected_s = options[0].now_s * self.healthy_s / self.strategies.model.healthy_s
            duration_s = min(duration_s, expected_s)
        added_s = {name: steps * s for name, s in self._per_step(options, duration_s).items()}
        lost_s = max(0.0, state.lost_s + steps * (duration_s - self.healthy_s))
        self.state = replace(state, lost_s=lost_s, accrued_s=self._accrued(added_s, self._names()))
        for option in sorted(options[1:], key=lambda o: (o.overhead_s or 0.0, o.strategy)):
            if self._due(option, steps_left):
                return self._apply(option, step)
        return None

    def steps_to_action(self, duration_s: float) -> int | None:
        """Number of further steps of this duration until the planner acts; None: never."""
        options = self.strategies.options(self.state.setting, self.state.active)
        waits = []
        for strategy, more_s in self._per_step(options, duration_s).items():
            overhead_s = self.strategies.overhead_s[strategy]
            if more_s > 0 and overhead_s is not None:
                waits.append(math.ceil((overhead_s - self._most(strategy)) / more_s - 1e-9))
        return max(1, min(waits)) if waits else None

    def _names(self) -> list[str]:
        return [fault.name for fault in self.state.active] or [_NONE]

    def _per_step(self, options: Sequence[Option], duration_s: float) -> dict[str, float]:
        """Helpful strategy -> seconds of a step that count towards it."""
        loss_s = duration_s - self.healthy_s
        return {
            o.strategy: loss_s if self.rule == "loss" else duration_s * (1 - o.step_s / o.now_s)
            for o in options[1:]
            if o.applicable
        }

    def _most(self, strategy: str) -> float:
        """The loss that counts towards a strategy: the largest of all fail-slows' losses."""
        return max(self.state.accrued_s.get((strategy, name), 0.0) for name in self._names())

    def _accrued(
        self, seconds: Mapping[str, float], names: list[str]
    ) -> dict[tuple[str, str], float]:
        accrued = dict(self.state.accrued_s)
        for strategy, added_s in seconds.items():
            for name in names:
                key = (strategy, name)
                accrued[key] = max(0.0, accrued.get(key, 0.0) + added_s)
        return accrued

    def _due(self, option: Option, steps_left: int | None) -> bool:
        if not option.applicable or option.overhead_s is None:
            return False
        if steps_left is not None and option.pays_after_steps >= steps_left:
            return False
        # Sums of equal steps may miss the threshold by rounding.
        return self._most(option.strategy) >= option.overhead_s * (1 - 1e-9)

    def _apply(self, option: Option, step: int) -> Action:
        state, names = self.state, self._names()
        words = tuple(fault.describe() for fault in sorted(state.active))
        since = step if state.since_step is None else state.since_step
        replaced = option.setting.replaced
        accrued = {
            key: seconds
            for key, seconds in state.accrued_s.items()
            if key[1] not in replaced and (key[0] != option.strategy or key[1] not in names)
        }
        active = frozenset(f for f in state.active if f.name not in replaced)
        self.state = replace(
            state, setting=option.setting, active=active, accrued_s=accrued,
            applied=(*state.applied, option.strategy),
        )  # fmt: skip
        return Action(step, option, state.lost_s, since, words)


def save_state(state: State, path: Path) -> None:
    """Write a state atomically: a crash leaves the old file or the new one.

    Raises:
        OutputError: the file cannot be written.
    """
    values = {
        "paceline_planner": VERSION,
        "counts": list(state.setting.counts),
        "moved": [[list(a), list(b)] for a, b in state.setting.moved],
        "replaced": sorted(state.setting.replaced),
        "active": [fault.to_mapping() for fault in sorted(state.active)],
        "lost_s": state.lost_s,
        "since_step": state.since_step,
        "accrued_s": [[*key, seconds] for key, seconds in sorted(state.accrued_s.items())],
        "applied": list(state.applied),
    }
    write_files({path: text_writer(json.dumps(values) + "\n")}, force=True)


def load_state(path: Path) -> State:
    """The saved state.

    Raises:
        MitigateError: the file cannot be read, or has no state of this version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["paceline_planner"] != VERSION:
            raise MitigateError(
                f"{path} is a planner's state of version {values['paceline_planner']}, this is "
                f"{VERSION}; start anew without it"
            )
        setting = Setting(
            tuple(whole_number(n) for n in values["counts"]),
            tuple((place_from(machine), place_from(place)) for machine, place in values["moved"]),
            frozenset(map(str, values["replaced"])),
        )
        since = values["since_step"]
        return State(
            setting,
            frozenset(Fault.from_mapping(fault) for fault in values["active"]),
            _time(values["lost_s"]),
            None if since is None else whole_number(since),
            {(str(a), str(b)): _time(seconds) for a, b, seconds in values["accrued_s"]},
            tuple(map(str, values["applied"])),
        )
    except OSError as error:
        raise MitigateError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        raise MitigateError(f"{path} is not a planner's state; start again without it") from None


def _time(value: Any) -> float:
    if not 0 <= (seconds := float(value)) < math.inf:
        raise ValueError("no seconds")
    return seconds
