"""Fail-slows by waits for data, which a ledger counts as data waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.detect.event import counted
from paceline.ledger import episodes
from paceline.ledger.cover import cover
from paceline.ledger.samples import Samples
from paceline.sources.run_logs.timeline import Start
from paceline.units import duration

#: Least part of the loss of slow steps that is waits for data beyond the usual ones. Less of it is
#: not what makes them slow.
_LEAST = 0.5


def waits_note(
    starts: Sequence[Start], samples: Samples, changes: Sequence[episodes.Change]
) -> str:
    """A note on waits for data that `paceline detect` counts as a fail-slow; "" without any.

    The ledger takes waits for data off the steps before it looks for fail-slows. The detector sees
    whole steps.

    Args:
        starts: all starts of the job.
        samples: their steps without pauses.
        changes: the levels of these.
    """
    if not any(pause.kind == "data" for start in starts for pause in start.pauses):
        return ""
    without = [
        replace(start, pauses=tuple(pause for pause in start.pauses if pause.kind != "data"))
        for start in starts
    ]
    whole = Samples(starts, [cover(start) for start in without])
    whole_changes = episodes.detected(
        whole.last, whole.told_s, whole.breaks, whole.net_s, whole.spacing
    )
    level = episodes.factors(whole_changes or [], len(whole.last))
    slow = (level > 1) & (episodes.factors(changes, len(samples.last)) == 1)
    if not slow.any() or (level > 1).all():
        return ""
    waits_s = whole.net_s - samples.net_s
    beyond_s = float((waits_s[slow] - np.median(waits_s[level == 1])).sum())
    lost_s = float((whole.net_s * (1 - 1 / level))[slow].sum())
    if beyond_s < _LEAST * lost_s:
        return ""
    begins = np.flatnonzero(np.diff(slow, prepend=False) & slow)
    first = int(whole.last[begins[0]])
    where = "a fail-slow" if len(begins) == 1 else counted(len(begins), "fail-slow")
    return (
        f"{duration(beyond_s)} of the data waits are longer than usual and make {where} since step "
        f"{first:,}; the row fail-slow leaves waits out, paceline detect counts whole steps"
    )
