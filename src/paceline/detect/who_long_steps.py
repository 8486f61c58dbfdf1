"""The workers that long steps wait for: what long steps have, and the steps around them have not.

A worker that waits as long in all steps does not make every tenth one longer. So a wait counts only
as far as it exceeds that of the other steps nearby.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.detect.long_steps import NEIGHBOURS
from paceline.detect.who import Suspect, name_ranks
from paceline.detect.who_trace import place_text, ranks_of
from paceline.diagnose.data_waits import waits_beyond_s
from paceline.diagnose.delayed_ops import delays_beyond_s
from paceline.diagnose.late_starts import lateness_s
from paceline.diagnose.long_waits import MIN_BEYOND
from paceline.graph import Measured, from_trace
from paceline.trace import Trace
from paceline.units import seconds
from paceline.whatif import WhatIf, analyze

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_Kind = Literal["data-loading", "host"]

#: Least part of a long step's excess that a worker's wait must exceed that of the steps beside by.
OF_LONG_STEPS = 0.5
#: Largest number of profiled steps beside a long one, and largest distance in steps: that of the
#: steps which say that it is long.
BESIDE, APART = 8, NEIGHBOURS // 2
#: Fewest profiled long steps. One alone may have the wait by chance.
MIN_LONG = 2
#: Stands for the seconds in a phrase.
_SECONDS = "{}"


def who_in_long_steps(
    trace: Trace,
    excess_s: Mapping[int, float],
    usual_s: Mapping[int, float],
    off_beat: Collection[int] = (),
) -> Suspect | None:
    """The workers whose hosts make steps long again and again; None if no wait explains half.

    Args:
        trace: of the job.
        excess_s: number of each long step -> seconds beyond its neighbours' time.
        usual_s: the same steps -> their neighbours' time, seconds.
        off_beat: numbers of further long steps, with which none is compared.
    """
    measured = from_trace(trace)
    result = analyze(measured)
    steps = result.steps
    long = np.flatnonzero(np.isin(steps, list(excess_s)))
    others = np.flatnonzero(~np.isin(steps, [*excess_s, *off_beat]))
    if len(long) < MIN_LONG:
        return None
    beyond_s = np.array([excess_s[step] for step in steps[long].tolist()])
    neighbours_s = np.array([usual_s[step] for step in steps[long].tolist()])
    # A neighbour that is not profiled waits at most for the time that no operation fills.
    most_s = np.maximum(neighbours_s - result.simulated_s[long], 0.0)
    for kind, phrase, waits_s in _waits(measured, result):
        beside_s = _beside(waits_s, steps, long, others)  # [long step, dp, pp]
        at_least = "at least " if np.isnan(beside_s).any() else ""
        beside_s = np.where(np.isnan(beside_s), most_s[:, None, None], beside_s)
        more_s = np.median(waits_s[long] - beside_s, axis=0)  # [dp, pp]
        least_s = max(OF_LONG_STEPS * float(np.median(beyond_s)), MIN_BEYOND * float(more_s.max()))
        if (more_s >= least_s).any():
            step_s = float(np.median(beyond_s + neighbours_s))
            text = f"in the {len(long)} long steps of the trace than in the steps beside them"
            phrase = f"{phrase.replace(_SECONDS, at_least + _SECONDS)} {text}"
            return _suspect(measured, kind, phrase, np.where(more_s >= least_s, more_s, 0), step_s)
    return None


def _suspect(measured: Measured, kind: _Kind, phrase: str, more_s: Array, step_s: float) -> Suspect:
    """The workers with [dp, pp] ``more_s`` above 0, of a long step of ``step_s``, seconds."""
    named = np.argwhere(more_s > 0)
    order = np.argsort([-more_s[dp, pp] for dp, pp in named], kind="stable")
    workers = [(int(dp), int(pp)) for dp, pp in named[order]]
    ranks, where = ranks_of(workers, measured), place_text(workers, measured)
    most_s = float(more_s.max())
    share = min(most_s / step_s, 0.99)
    who = "the first of them" if len(workers) > 1 else "it"
    return Suspect(
        kind,
        ranks,
        f"{name_ranks(ranks)} ({where})" if ranks else where,
        factor=1 / (1 - share),
        share=share,
        text=f"{who} {phrase.replace(_SECONDS, seconds(most_s))}",
    )


def _waits(measured: Measured, result: WhatIf) -> Iterator[tuple[_Kind, str, Array]]:
    """Kind, phrase and [step, dp, pp] seconds beyond the peers', of each wait that a trace shows.

    Data come first, as a worker that waits for its data begins late, too.
    """
    data_s = waits_beyond_s(measured)
    if data_s is not None:
        yield "data-loading", f"waits {_SECONDS} longer for its data", data_s
    yield "host", f"begins {_SECONDS} later", lateness_s(measured)
    label = max(result.launch_delay.by_kind.items(), key=lambda item: item[1])[0]
    name = measured.graph.kind_name(label)
    yield "host", f"begins {name} {_SECONDS} later", delays_beyond_s(measured, label)


def _beside(waits_s: Array, steps: Ints, long: Ints, others: Ints) -> Array:
    """[long step, dp, pp] the median wait of the profiled steps beside; NaN where there are none.

    Args:
        waits_s: [step, dp, pp] seconds.
        steps: [step] numbers.
        long: places of the long steps.
        others: places of the steps to compare them with.
    """
    beside_s = np.full((len(long), *waits_s.shape[1:]), np.nan)
    for row, place in enumerate(long.tolist()):
        apart = np.abs(steps[others] - steps[place])
        near = others[np.argsort(apart, kind="stable")][: min(BESIDE, int((apart <= APART).sum()))]
        if len(near):
            beside_s[row] = np.median(waits_s[near], axis=0)
    return beside_s
