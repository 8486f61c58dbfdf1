"""Slow workers from a trace, by their hosts: data loading, and work that no operation shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paceline.detect.who import Suspect, name_ranks
from paceline.detect.who_trace import place_text, ranks_of
from paceline.diagnose.data_waits import data_waits, step_to_step_s
from paceline.diagnose.delayed_ops import delayed_ops
from paceline.diagnose.late_starts import late_starts
from paceline.graph import Measured
from paceline.units import seconds
from paceline.whatif import WhatIf

#: Least share of the time from step to step that a suspect costs.
MIN_SHARE = 0.05


def who_from_hosts(measured: Measured, result: WhatIf) -> Suspect | None:
    """The workers whose hosts make the job wait; None if they cost less than 5% of the time."""
    n_steps = len(result.steps)
    waits = data_waits(measured, result, np.full((1, n_steps), 1 / n_steps))
    if waits is not None and "workers" in waits.where:
        places = [(int(dp), int(pp)) for dp, pp in waits.where["workers"]]
        wait_s, peers_s = waits.evidence["wait_s"][0], waits.evidence["peers_s"]
        slow = waits.evidence["steps"]
        steps = "a step" if slow == "all" else f"in {len(slow)} of {n_steps} steps"
        text = f"waits {seconds(wait_s)} {steps} for its data, the others {seconds(peers_s)}"
        return _suspect(measured, places, waits.share_of_step, text, "data-loading")
    simulated_s, whole_s = float(result.simulated_s.mean()), step_to_step_s(measured, result)
    late = late_starts(measured, simulated_s)
    if late is not None:
        share = float(late.saved_s.mean() / whole_s.mean())
        by = seconds(late.typical_s(late.workers[0]))
        return _suspect(measured, late.workers, share, f"begins its steps late, by {by}")
    label = max(result.launch_delay.by_kind.items(), key=lambda item: item[1])[0]
    delayed = delayed_ops(measured, label, MIN_SHARE * simulated_s)
    if delayed is None:
        return None
    kind, by = measured.graph.kind_name(label), seconds(delayed.delay_s[0])
    text = f"begins {kind} late, by {by} (others {seconds(delayed.peers_s)})"
    open_s = float(np.maximum(result.lost_s, 0.0).mean())
    share = min(delayed.delay_s[0] - delayed.peers_s, open_s) / float(whole_s.mean())
    return _suspect(measured, delayed.workers, share, text)


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
