"""The slowdown S of a recorded job, by its own profiled steps.

S is that of the steps as the ledger counts them: without waits for data, but with other time
between operations. The loss of stragglers is T - T_ideal (what-if paper, Eq. 1). Where T is longer
than such a step, waits for data lie within T, and a part of the loss may be theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import PacelineError, TraceError
from paceline.graph import from_trace
from paceline.ledger.samples import Samples
from paceline.sources.recording.reader import read_from, steps_of_all_ranks
from paceline.sources.run_logs.timeline import Recording
from paceline.whatif import Scenario, WhatIf, ideal_durations, simulate_scenarios

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Fewest analysed steps. Fewer have no interval in a comparison, either.
MIN_STEPS = 4
#: Most operations that are analysed; of more, steps evenly spread (about 2 s).
MAX_OPS = 2_000_000
#: Share of T that may lie in waits for data; more makes the loss of stragglers unknown.
MAX_HIDDEN = 0.03

_GIVE_ANY, _GIVE = "give it (--slowdown)", "give S of other steps (--slowdown)"


@dataclass(frozen=True)
class Straggling:
    """S of the typical steps.

    Attributes:
        slowdown: at least 1; None if the recordings do not tell it.
        reason: the reason for None.
        note: the steps behind it.
    """

    slowdown: float | None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Times:
    """Seconds of the analysed steps of one recording.

    Attributes:
        steps: [step] their numbers.
        simulated_s, ideal_s: [step] with stragglers and without, both without launch delays.
        net_s: [step] as the ledger counts them.
    """

    steps: Ints
    simulated_s: Array
    ideal_s: Array
    net_s: Array


def straggling(
    recordings: Sequence[Recording], samples: Samples, typical: npt.NDArray[np.bool_]
) -> Straggling:
    """S by the profiled steps that are typical, over all recordings of a job.

    Args:
        recordings: recorded runs of the job.
        samples: all steps of the job.
        typical: [sample] whether it is a usual step.
    """
    unusual = np.unique(samples.last[~typical])
    net_s = dict(zip(samples.last[typical].tolist(), samples.net_s[typical].tolist(), strict=True))
    for number in unusual.tolist():  # a step that ran twice
        net_s.pop(number, None)
    parts: list[_Times] = []
    problem, n_profiled = "", 0
    for recording in recordings:
        try:
            numbers, n_ops = steps_of_all_ranks(recording.files, recording.path)
            n_profiled += len(numbers)
            usual = np.array([number in net_s for number in numbers.tolist()], dtype=bool)
            if usual.any():
                chosen = _spread(numbers[usual], n_ops[usual])
                parts.append(_times(recording, chosen, net_s))
        except PacelineError as error:
            problem = problem or str(error)
    n_steps = sum(len(part.steps) for part in parts)
    if n_steps < MIN_STEPS:
        return Straggling(None, problem or _too_few(n_profiled, n_steps))
    has_waits = any(file.data_ns for recording in recordings for file in recording.files)
    return _of_times(parts, n_steps, n_profiled, has_waits=has_waits)


def _times(recording: Recording, numbers: Ints, net_s: dict[int, float]) -> _Times:
    trace = read_from(recording.files, recording.path, steps=frozenset(numbers.tolist()))
    measured = from_trace(trace)
    ideal = ideal_durations(measured.durations)
    scenarios = [Scenario.measured(), Scenario.ideal()]
    simulated_s, ideal_s = simulate_scenarios(measured.durations, ideal, scenarios)
    if not (ideal_s > 0).all():
        raise TraceError("the ideal step takes 0 s: (nearly) all profiled durations are 0")
    steps_net_s = np.array([net_s[number] for number in measured.steps.tolist()])
    return _Times(measured.steps, simulated_s, ideal_s, steps_net_s)


def _of_times(
    parts: Sequence[_Times], n_steps: int, n_profiled: int, *, has_waits: bool
) -> Straggling:
    simulated_s = sum(float(part.simulated_s.sum()) for part in parts)
    ideal_s = sum(float(part.ideal_s.sum()) for part in parts)
    net_s = sum(float(part.net_s.sum()) for part in parts)
    if simulated_s / ideal_s < WhatIf.REFERENCE_FAILS_BELOW:
        return Straggling(
            None, "the profiled steps are faster than their ideal, so they do not show stragglers"
        )
    if has_waits and simulated_s - net_s > MAX_HIDDEN * simulated_s:
        return Straggling(
            None, f"waits for data overlap with operations, which hides S; {_GIVE_ANY}"
        )
    lost_s = max(min(simulated_s, net_s) - ideal_s, 0.0)
    slowdown = net_s / (net_s - lost_s)
    first, last = (int(of(of(part.steps) for part in parts)) for of in (min, max))
    return Straggling(
        slowdown,
        note=f"stragglers: S {slowdown:.3f} is that of {n_steps:,} of {n_profiled:,} profiled "
        f"steps ({first:,} to {last:,}), outside fail-slows",
    )


def _spread(numbers: Ints, n_ops: Ints) -> Ints:
    """The steps, or some of them evenly spread, with :data:`MAX_OPS` operations or fewer."""
    room = max(MIN_STEPS, int(MAX_OPS // max(float(n_ops.mean()), 1.0)))
    if len(numbers) <= room:
        return numbers
    places = np.linspace(0, len(numbers) - 1, room).astype(np.int64)
    return numbers[places]


def _too_few(n_profiled: int, n_steps: int) -> str:
    return (
        f"{n_steps:,} of {n_profiled:,} profiled steps are typical (none of a fail-slow, none that "
        f"begins a start), and {MIN_STEPS} are needed; {_GIVE}"
    )
