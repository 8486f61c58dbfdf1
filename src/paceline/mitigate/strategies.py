"""Strategies against fail-slows (falcon paper, 5.1), each with its step time by simulation.

S1 ignores fail-slows. S2 distributes microbatches by speed. S3 moves machines. S4 restarts from a
checkpoint on healthy machines. A strategy without gain does not apply. In the paper's table, S2
never helps against slow links; here the simulator decides each case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import MitigateError
from paceline.mitigate.fault import COMPUTE, LINK, NIC, Fault, Worker
from paceline.mitigate.job_model import JobModel, Setting
from paceline.mitigate.topology import Placement, best_placement
from paceline.remedies.microbatches import best_counts
from paceline.trace.job import place_name

IGNORE, MICROBATCHES, TOPOLOGY, RESTART = "s1", "s2", "s3", "s4"
ACTIONS = (MICROBATCHES, TOPOLOGY, RESTART)

#: One-off overheads, seconds (falcon paper, 5.3, 7.5). S2: the solver and the next step. S3:
#: parameters swapped through memory, "within one minute". S4: a checkpoint written and read, "tens
#: of minutes".
OVERHEAD_S: Mapping[str, float] = {MICROBATCHES: 5.0, TOPOLOGY: 60.0, RESTART: 1800.0}
#: Largest accepted overhead.
LARGEST_OVERHEAD_S = 1e9

#: Least saving, as a share of the step, that is worth an action.
MIN_GAIN = 0.01

TITLES: Mapping[str, str] = {
    IGNORE: "ignore",
    MICROBATCHES: "microbatches",
    TOPOLOGY: "placement",
    RESTART: "restart",
}

WEIGHT = (
    "weight each replica's gradients by its microbatches (weights in --json), or the loss changes "
    "(falcon paper, 5.3)"
)

#: The note on the range of the gain of a placement away from a slow link.
OF_LINKS = (
    "the high end assumes rings in the order of replicas and no other traffic over the slow "
    "link; at the low end all sends of its two ends stay slow. Measured on 16 GPUs: 25 and 54% "
    "(falcon paper, Figure 15)"
)

#: Most changes listed in a sentence.
_MAX_NAMED = 4


@dataclass(frozen=True)
class Option:
    """One strategy against the present fail-slows.

    Attributes:
        strategy: "s1" to "s4".
        setting: the job's setting after it.
        step_s: predicted seconds of a step after it.
        now_s: seconds of a step at present.
        healthy_s: seconds of a step without fail-slows and changes.
        overhead_s: its one-off cost; None = not allowed.
        text: the advice.
        why_not: the reason why it does not apply; "" = it applies.
        change: the change in a form for JSON.
        notes: limits and assumptions.
        unsure_s: seconds of a step in the worst case that the trace allows; None: equal to
            ``step_s``.
    """

    strategy: str
    setting: Setting
    step_s: float
    now_s: float
    healthy_s: float
    overhead_s: float | None
    text: str
    why_not: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsure_s: float | None = None

    @property
    def applicable(self) -> bool:
        """Whether it is allowed and makes the step shorter."""
        return not self.why_not

    @property
    def recovered(self) -> float:
        """Recovered share of the step time that fail-slows cost."""
        lost_s = self.now_s - self.healthy_s
        return (self.now_s - self.step_s) / lost_s if lost_s > 0 else 0.0

    @property
    def recovered_low(self) -> float:
        """The recovered share in the worst case that the trace allows; at least 0."""
        if self.unsure_s is None:
            return self.recovered
        lost_s = self.now_s - self.healthy_s
        return max(0.0, (self.now_s - self.unsure_s) / lost_s) if lost_s > 0 else 0.0

    @property
    def recovered_text(self) -> str:
        """The share as text, "25 to 96%"; never 100%, for predictions have errors."""
        high = ">99" if self.recovered > 0.99 else f"{100 * self.recovered:.0f}"
        low = f"{100 * self.recovered_low:.0f}"
        return f"{high}%" if self.recovered - self.recovered_low < 0.01 else f"{low} to {high}%"

    @property
    def pays_after_steps(self) -> float:
        """Steps until its overhead is saved; inf if it does not apply."""
        gain_s = self.now_s - self.step_s
        if self.overhead_s is None or not self.applicable or gain_s <= 0:
            return np.inf
        return self.overhead_s / gain_s

    def to_mapping(self) -> dict[str, Any]:
        """The option in the form of JSON."""
        steps = self.pays_after_steps
        return {
            "strategy": self.strategy,
            "text": self.text,
            "applicable": self.applicable,
            "why_not": self.why_not or None,
            "step_s": self.step_s,
            "now_s": self.now_s,
            "healthy_s": self.healthy_s,
            "recovered": self.recovered,
            "recovered_low": self.recovered_low,
            "overhead_s": self.overhead_s,
            "pays_after_steps": steps if np.isfinite(steps) else None,
            "change": dict(self.change),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Sizes:
    """Input of :func:`best_counts`: times of replicas by their numbers of microbatches."""

    model: JobModel
    setting: Setting
    faults: frozenset[Fault]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.array(self.model.plain.counts)

    @property
    def unit(self) -> int:
        return self.model.unit

    def replica_s(self, n: int) -> npt.NDArray[np.float64]:
        return self.model.replica_s(n, self.setting, self.faults)


def check_overhead(name: str, seconds: float | None) -> None:
    """Check that a strategy may have this cost.

    Raises:
        MitigateError: the strategy is unknown, or its overhead is negative or infinite.
    """
    if name not in ACTIONS:
        raise MitigateError(f"there is no strategy {name!r}; known are {', '.join(ACTIONS)}")
    if seconds is not None and not 0 <= seconds <= LARGEST_OVERHEAD_S:
        raise MitigateError(
            f"the overhead of {name} must be from 0 to {LARGEST_OVERHEAD_S:g} s, not {seconds:g}"
        )


class Strategies:
    """The options of a job for any fail-slows, cached because a planner asks every step."""

    def __init__(
        self, model: JobModel, overhead_s: Mapping[str, float | None] = OVERHEAD_S
    ) -> None:
        """The possible strategies with their costs.

        Args:
            model: the job.
            overhead_s: "s2", "s3", "s4" -> one-off seconds; None or missing = not allowed.

        Raises:
            MitigateError: there is no such strategy, or its overhead is negative.
        """
        self.model = model
        self.overhead_s: dict[str, float | None] = dict.fromkeys(ACTIONS)
        self._options_of: dict[tuple[Setting, frozenset[Fault]], tuple[Option, ...]] = {}
        self._counts: dict[tuple[Setting, frozenset[Fault]], Setting] = {}
        self._placements: dict[frozenset[Fault], Placement] = {}
        for name, seconds in overhead_s.items():
            self.set_overhead(name, seconds)

    def set_overhead(self, name: str, seconds: float | None) -> None:
        """Set the given or measured cost of a strategy.

        Raises:
            MitigateError: the strategy is unknown, or its overhead is negative or infinite.
        """
        check_overhead(name, seconds)
        self.overhead_s[name] = seconds
        self._options_of.clear()

    def options(self, setting: Setting, faults: frozenset[Fault]) -> tuple[Option, ...]:
        """S1 to S4 for the present state, including options that undo earlier ones."""
        key = (setting, faults)
        if key not in self._options_of:
            now_s = self.model.step_s(setting, faults)
            ignore = self._option(IGNORE, setting, now_s, now_s, "ignore it", {})
            self._options_of[key] = (
                replace(ignore, overhead_s=0.0, why_not=""),
                self._microbatches(setting, faults, now_s),
                self._topology(setting, faults, now_s),
                self._restart(setting, faults, now_s),
            )
        return self._options_of[key]

    def _option(
        self, name: str, setting: Setting, step_s: float, now_s: float, text: str,
        change: Mapping[str, Any], why_not: str = "", notes: tuple[str, ...] = (),
    ) -> Option:  # fmt: skip
        gain = 1 - step_s / now_s
        if not why_not and gain < MIN_GAIN:
            why_not = f"{text}: gains {max(gain, 0.0):.1%} (under {MIN_GAIN:.0%})"
        overhead_s = self.overhead_s.get(name)
        if not why_not and overhead_s is None and name != IGNORE:
            why_not = "not to be used: its overhead is 'never'"
        return Option(
            name, setting, step_s, now_s, self.model.healthy_s, overhead_s, text, why_not, change,
            notes,
        )  # fmt: skip

    def _microbatches(self, setting: Setting, faults: frozenset[Fault], now_s: float) -> Option:
        model = self.model
        why_not = ""
        if model.dp == 1:
            why_not = "there is one replica (dp 1): no other can take its microbatches"
        elif model.fixed:
            why_not = model.fixed
        if why_not:
            return self._option(MICROBATCHES, setting, now_s, now_s, "", {}, why_not)
        new = self.shared_out(setting, faults)
        text, change = _counts_text(setting.counts, new.counts)
        even = len(set(new.counts)) == 1
        notes = () if even else (WEIGHT,)
        return self._option(
            MICROBATCHES, new, model.step_s(new, faults), now_s, text, change, "", notes
        )

    def shared_out(self, setting: Setting, faults: frozenset[Fault]) -> Setting:
        """The setting whose numbers of microbatches minimise the slowest replica's time."""
        model = self.model
        even = replace(setting, counts=model.plain.counts)
        if (even, faults) not in self._counts:
            counts, _ = best_counts(_Sizes(model, setting, faults))
            new = replace(setting, counts=tuple(counts.tolist()))
            # Times of single replicas do not show waiting, so even shares may be equally good.
            better = model.step_s(new, faults) < model.step_s(even, faults)
            self._counts[even, faults] = new if better else even
        return self._counts[even, faults]

    def _topology(self, setting: Setting, faults: frozenset[Fault], now_s: float) -> Option:
        model = self.model
        present = frozenset(f for f in faults if f.name not in setting.replaced)
        if present not in self._placements:
            self._placements[present] = best_placement(model, present)
        placement = self._placements[present]
        new = replace(setting, moved=placement.moved)
        if setting.counts != model.plain.counts:  # S2 is in force and follows the machines
            new = self.shared_out(new, faults)
        text, change = _moves_text(setting, new)
        if new.counts != setting.counts:
            words, counts_change = _counts_text(setting.counts, new.counts)
            text, change = f"{text}; {words}", {**change, **counts_change}
        notes: tuple[str, ...] = (_how_sure(placement),)
        step_s, unsure_s = model.step_s(new, faults), None
        if any(fault.kind != COMPUTE for fault in present):
            notes = (*notes, OF_LINKS)
            unsure_s = max(step_s, self._with_all_flows(new, faults, now_s))
        option = self._option(TOPOLOGY, new, step_s, now_s, text, change, "", notes)
        return replace(option, unsure_s=unsure_s)

    def _with_all_flows(self, setting: Setting, faults: frozenset[Fault], now_s: float) -> float:
        """Seconds of a step if all sends and receives of a slow link's two ends stay slow."""
        ends = {
            Fault(NIC, machine, fault.factor) if fault.kind == LINK else fault
            for fault in faults
            if fault.name not in setting.replaced
            for machine in fault.machines
        }
        try:
            return self.model.step_s(setting, frozenset(ends))
        except MitigateError:  # the groups that pass a NIC are unknown, so the gain may be 0
            return now_s

    def _restart(self, setting: Setting, faults: frozenset[Fault], now_s: float) -> Option:
        present = sorted(f for f in faults if f.name not in setting.replaced)
        names = setting.replaced | {fault.name for fault in present}
        new = replace(self.model.plain, replaced=names)
        machines = sorted({fault.worker for fault in present})
        text = (
            f"checkpoint, and restart without {_machine_names(machines)}" if machines else "restart"
        )
        change = {"replace": [list(machine) for machine in machines]}
        return self._option(RESTART, new, self.model.step_s(new, faults), now_s, text, change)


def weights(counts: tuple[int, ...]) -> list[float]:
    """[dp] weights of the replicas' mean gradients that keep the loss of the whole batch.

    The mean over all microbatches is the sum of the replicas' means times their shares of the
    microbatches. Frameworks that average over D replicas multiply each by D times its weight.
    """
    total = sum(counts)
    return [n / total for n in counts]


def _counts_text(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    changed = [dp for dp, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if not changed:
        return "move no microbatch", {}
    changed.sort(key=lambda dp: after[dp] - before[dp])
    fewer = [dp for dp in changed if after[dp] < before[dp]]
    n_moved = sum(before[dp] - after[dp] for dp in fewer)
    noun = "microbatch" if n_moved == 1 else "microbatches"
    replicas = ", ".join(f"{dp} ({before[dp]} to {after[dp]})" for dp in fewer[:_MAX_NAMED])
    others = f" and {len(fewer) - _MAX_NAMED} more" if len(fewer) > _MAX_NAMED else ""
    plural = "s" if len(fewer) > 1 else ""
    change: dict[str, Any] = {"microbatches": list(after), "weights": weights(after)}
    if len(set(after)) == 1:
        return f"distribute the microbatches evenly again ({after[0]} each)", change
    return f"move {n_moved} {noun} off replica{plural} {replicas}{others}", change


def _moves_text(before: Setting, after: Setting) -> tuple[str, dict[str, Any]]:
    old, new = dict(before.moved), dict(after.moved)
    machines = sorted(
        m for m in old.keys() | new.keys() if old.get(m, m) != new.get(m, m)
    )  # fmt: skip
    if not machines:
        return "move no machine", {}
    moves = {old.get(m, m): new.get(m, m) for m in machines}
    change = {"moves": [[list(a), list(b)] for a, b in moves.items()]}
    all_peers = ""
    if len(machines[0]) == 3:  # peers move together
        moves = {a[:2]: b[:2] for a, b in moves.items()}
        all_peers = "all peers of "
    words = []
    for a, b in moves.items():
        if moves.get(b) == a:
            pair = f"{all_peers}{place_name(a)} with {place_name(b)}"
            words += [f"swap {pair}"] if a < b else []
        else:
            words.append(f"move {all_peers}{place_name(a)} to {place_name(b)}")
    others = f" and {len(words) - _MAX_NAMED} more" if len(words) > _MAX_NAMED else ""
    return "; ".join(words[:_MAX_NAMED]) + others, change


def _how_sure(best: Placement) -> str:
    if best.exact:
        return f"the best of all {best.tried:,} placements"
    return f"the best of {best.tried:,} placements; none is faster by more than {best.gap:.1%}"


def _machine_names(machines: list[Worker]) -> str:
    names = "; ".join(place_name(machine) for machine in machines[:_MAX_NAMED])
    return names + (f" and {len(machines) - _MAX_NAMED} more" if len(machines) > _MAX_NAMED else "")
