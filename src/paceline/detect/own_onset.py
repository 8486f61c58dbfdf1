"""Onset of a worker's slowness, by its own times beside those of its peers.

All workers share the noise of the job's step times, which these times do not have. Noise may begin
a fail-slow before the worker does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paceline.detect.job import JobEvent
from paceline.detect.who import Suspect
from paceline.detect.who_host import slow_host
from paceline.detect.who_trace import ranks_of
from paceline.diagnose import step_to_step_s
from paceline.diagnose.worker_ramps import over_peers
from paceline.graph import Measured
from paceline.jumps import jump_of
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Case = tuple[Measured, WhatIf]
#: The [step] times of a worker over those of its peers.
OverPeers = Callable[[Measured], Array]

#: Least share of the steps between two dates that must contradict one of them.
_CONTRADICT = 0.9
#: A worker explains the onset of a fail-slow from this share of its excess on.
_EXPLAINS = 0.5
#: Largest chance that times without a change rise as much.
_MAX_CHANCE = 0.01


def own_onset(event: JobEvent, suspect: Suspect, slow: Case, before: Case) -> int | None:
    """The suspect's first slow step; None if it is unknown or not clear.

    Args:
        event: begin of the fail-slow.
        suspect: a suspect of its slow steps.
        slow: the slow steps.
        before: healthy steps before them.
    """
    over = _over_peers(suspect, slow, before)
    if over is None:
        return None
    ratio = np.concatenate([over(measured) for measured, _ in (before, slow)])
    steps = np.concatenate([before[1].steps, slow[1].steps])
    jump, since = jump_of(ratio), event.since_step
    if jump is None or jump.after_s < jump.before_s:
        return None
    own = int(steps[jump.at])
    between = ratio[(steps >= min(own, since)) & (steps < max(own, since))]
    if not len(between):
        return since
    is_slow = between > np.sqrt(jump.before_s * jump.after_s)
    if (is_slow == (own < since)).mean() < _CONTRADICT:
        return None
    excess = float(np.median(between)) / jump.before_s - 1
    return None if own > since and excess >= _EXPLAINS * (event.factor - 1) else own


def has_risen(suspect: Suspect, slow: Case, before: Case) -> bool:
    """Whether a suspect's times rose by more than chance (Mann and Whitney); True if unknown."""
    over = _over_peers(suspect, slow, before)
    if over is None:
        return True
    usual, late = over(before[0]), over(slow[0])
    pairs = usual.size * late.size
    higher = np.sign(late[:, None] - usual).sum() / 2  # pairs above half of them
    deviation = math.sqrt(pairs * (usual.size + late.size + 1) / 12)
    return math.erfc((float(higher) - 0.5) / deviation / math.sqrt(2)) / 2 <= _MAX_CHANCE


def _over_peers(suspect: Suspect, slow: Case, before: Case) -> OverPeers | None:
    """How a suspect's times are compared; None for transfers, spikes and several slow workers."""
    measured = slow[0]
    if suspect.steps or measured.graph.n_dp < 2:
        return None
    if suspect.kind in ("data-loading", "host"):
        host, step_s = slow_host(*slow), float(step_to_step_s(*before).mean())
        return None if host is None else lambda part: 1 + host.late_s(part) / step_s
    workers = [
        (dp, stage)
        for dp, stage in np.ndindex(measured.graph.n_dp, measured.graph.n_pp)
        if suspect.ranks and suspect.ranks == ranks_of([(dp, stage)], measured)
    ]
    if suspect.kind != "compute" or len(workers) != 1:
        return None
    ((worker, stage),) = workers
    return lambda part: over_peers(part.durations, worker, stage)
