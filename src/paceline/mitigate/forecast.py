"""The planner's next actions if the fail-slows do not change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.mitigate.fault import Fault
from paceline.mitigate.planner import Action, Planner
from paceline.mitigate.strategies import Option, Strategies

#: Longest forecast, in steps.
HORIZON = 1_000_000


@dataclass(frozen=True)
class Due:
    """A future action.

    Attributes:
        after_steps: steps from the onset.
        after_s: seconds from the onset, including overheads of earlier actions.
        action: the strategy.
    """

    after_steps: int
    after_s: float
    action: Action


@dataclass(frozen=True)
class Forecast:
    """The present options, and the planner's actions if nothing changes.

    Attributes:
        faults: the fail-slows.
        now_s: seconds of a step with them.
        healthy_s: seconds of a step without them.
        options: S1 to S4.
        due: actions, in their order.
    """

    faults: tuple[Fault, ...]
    now_s: float
    healthy_s: float
    options: tuple[Option, ...]
    due: tuple[Due, ...]

    def to_mapping(self) -> dict[str, object]:
        """The forecast in the form of JSON."""
        return {
            "fail_slows": [fault.to_mapping() for fault in self.faults],
            "now_s": self.now_s,
            "healthy_s": self.healthy_s,
            "slowdown": self.now_s / self.healthy_s,
            "options": [option.to_mapping() for option in self.options],
            "planner": [
                {"after_steps": d.after_steps, "after_s": d.after_s, **d.action.to_mapping()}
                for d in self.due
            ],
        }


def forecast(
    strategies: Strategies,
    faults: Iterable[Fault],
    *,
    rule: str,
    steps_left: int | None = None,
) -> Forecast:
    """Strategies against fail-slows, and the times when the planner will use them.

    Args:
        strategies: the job, and the costs of actions.
        faults: the fail-slows, which all begin now.
        rule: see :data:`paceline.mitigate.planner.RULES`.
        steps_left: steps until the job ends; None: far away.

    Raises:
        MitigateError: a machine does not belong to the job.
    """
    faults = tuple(faults)
    model, present = strategies.model, frozenset(faults)
    planner = Planner(strategies, rule=rule)
    options = strategies.options(model.plain, present)
    for fault in faults:
        planner.onset(fault, 0)
    due: list[Due] = []
    clock, step = 0.0, 0
    end = HORIZON if steps_left is None else steps_left
    while True:
        now_s = model.step_s(planner.state.setting, present)
        wait = planner.steps_to_action(now_s)
        if wait is None or step + wait > end:
            break
        step, clock = step + wait, clock + wait * now_s
        remaining = None if steps_left is None else steps_left - step
        action = planner.update(step, now_s, remaining, steps=wait)
        if action is None:
            break
        due.append(Due(step, clock, action))
        clock += action.option.overhead_s or 0.0
    now_s = model.step_s(model.plain, present)
    return Forecast(faults, now_s, model.healthy_s, options, tuple(due))
