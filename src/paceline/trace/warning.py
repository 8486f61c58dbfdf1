"""Warnings about the numbers, each with a code, so that programs need not search its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Warning:
    """A caution about the numbers.

    Attributes:
        code: its code, one of the constants here; "" for other warnings.
        text: the warning in a sentence or two.
        numbers: name -> the numbers in the text.
    """

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


#: Steps of a trace are not analysed; ``step`` is the step whose reason the text gives.
STEPS_LEFT_OUT = "steps-left-out"
#: Time lies between the steps, or steps overlap.
BETWEEN_STEPS, STEPS_OVERLAP = "between-steps", "steps-overlap"
#: Steps with recorded operations take longer or shorter than the others.
UNLIKE_STEPS = "unlike-steps"
#: Unobserved ends of communication were estimated.
LATE_ENDS = "late-ends"
#: Two computes of a worker run at once.
COMPUTES_OVERLAP = "computes-overlap"
#: Sends and recvs were matched without the no-ops of chunks.
NO_NOOPS = "no-noops"
#: Each rank is alone in its groups.
GROUPS_OF_ONE = "groups-of-one"
#: Replicas have unequal numbers of microbatches, which S does not show.
UNEQUAL_MICROBATCHES = "unequal-microbatches"
#: Clocks of workers differ; they were corrected or not.
CLOCKS_CORRECTED, CLOCKS_KEPT, CLOCKS_OPEN = "clocks-corrected", "clocks-kept", "clocks-open"
#: The simulation is more than 5% off the trace.
LAUNCH_DELAYS = "launch-delays"
#: Times that contradict each other became 0.
IMPOSSIBLE_TIMES = "impossible-times"
#: Few steps were analysed.
FEW_STEPS = "few-steps"
#: Times are rounded so coarsely that rounding looks like variation.
COARSE_TIMES = "coarse-times"
#: Slowdowns may be too low, for different no-ops were merged.
UNLIKE_NOOPS = "unlike-noops"
#: Kinds are slow everywhere at once in part of the steps.
SLOW_MODES = "slow-modes"
#: The job is faster than its reference.
REFERENCE_FAILS = "reference-fails"
#: Kinds are judged against only one peer, or have no peer.
ONE_PEER, NO_PEERS = "one-peer", "no-peers"

#: Routine warnings, which nearly every job has.
USUAL = frozenset({ONE_PEER, NO_PEERS})
