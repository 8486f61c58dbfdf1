"""Slow workers from a trace, by their hosts: data loading, and work that no operation shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.detect.who import Suspect, name_ranks
from paceline.detect.who_trace import place_text, ranks_of
from paceline.diagnose.data_waits import data_waits, step_to_step_s, waits_beyond_s
from paceline.diagnose.delayed_ops import delayed_ops, delays_beyond_s
from paceline.diagnose.late_starts import late_starts, lateness_s
from paceline.graph import Measured
from paceline.units import seconds
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]

#: Least share of the time from step to step that a suspect costs.
MIN_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class SlowHost:
    """Workers whose hosts make the job wait.

    Attributes:
        suspect: these workers.
        late_s: [step] seconds in which the first of them is later than its peers.
    """

    suspect: Suspect
    late_s: Callable[[Measured], Array]


def who_from_hosts(measured: Measured, result: WhatIf) -> Suspect | None:
    """The workers whose hosts make the job wait; None if they cost less than 5% of the time."""
    host = slow_host(measured, result)
    return None if host is None else host.suspect


def slow_host(measured: Measured, result: WhatIf) -> SlowHost | None:
    """The same with their lateness."""
    n_steps = len(result.steps)
    waits = data_waits(measured, result, np.full((1, n_steps), 1 / n_steps))
    if waits is not None and "workers" in waits.where:
        places = [(int(dp), int(pp)) for dp, pp in waits.where["workers"]]
        wait_s, peers_s = waits.evidence["wait_s"][0], waits.evidence["peers_s"]
        slow = waits.evidence["steps"]
        steps = "a step" if slow == "all" else f"in {len(slow)} of {n_steps} steps"
        text = f"waits {seconds(wait_s)} {steps} for its data, the others {seconds(peers_s)}"
        suspect = _suspect(measured, places, waits.share_of_step, text, "data-loading")
        return _slow(suspect, places, waits_beyond_s)
    simulated_s, whole_s = float(result.simulated_s.mean()), step_to_step_s(measured, result)
    late = late_starts(measured, simulated_s)
    if late is not None:
        share = float(late.saved_s.mean() / whole_s.mean())
        by = seconds(late.typical_s(late.workers[0]))
        suspect = _suspect(measured, late.workers, share, f"begins its steps late, by {by}")
        return _slow(suspect, late.workers, lateness_s)
    label = max(result.launch_delay.by_kind.items(), key=lambda item: item[1])[0]
    delayed = delayed_ops(measured, label, MIN_SHARE * simulated_s)
    if delayed is None:
        return None
    kind, by = measured.graph.kind_name(label), seconds(delayed.delay_s[0])
    text = f"begins {kind} late, by {by} (others {seconds(delayed.peers_s)})"
    open_s = float(np.maximum(result.lost_s, 0.0).mean())
    share = min(delayed.delay_s[0] - delayed.peers_s, open_s) / float(whole_s.mean())
    suspect = _suspect(measured, delayed.workers, share, text)
    return _slow(suspect, delayed.workers, lambda part: delays_beyond_s(part, label))


def _slow(
    suspect: Suspect | None,
    workers: Sequence[tuple[int, int]],
    of_workers_s: Callable[[Measured], Array | None],
) -> SlowHost | None:
    """The first worker's column of [step, dp, pp] seconds; zeros where nothing is measured."""
    dp, stage = workers[0]

    def late_s(part: Measured) -> Array:
        of_all = of_workers_s(part)
        return np.zeros(len(part.steps)) if of_all is None else of_all[:, dp, stage]

    return None if suspect is None else SlowHost(suspect, late_s)


def _suspect(
    measured: Measured,
    workers: Sequence[tuple[int, int]],
    share: float,
    text: str,
    kind: Literal["data-loading", "host"] = "host",
) -> Suspect | None:
    if share < MIN_SHARE:
        return None
    ranks, where = ranks_of(workers, measured), place_text(workers, measured)
    who = "the first of them" if len(workers) > 1 else "it"
    place = f"{name_ranks(ranks)} ({where})" if ranks else where
    return Suspect(kind, ranks, place, 1 / (1 - min(share, 0.99)), share, f"{who} {text}")
