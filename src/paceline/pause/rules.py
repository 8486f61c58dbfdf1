"""Decisions of a pause's asker, computed from the processes' records without clock and files.

The exhaustive search over all interleavings (``tests/pause_model.py``) calls the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Phase = Literal["none", "ask", "stop", "held", "go", "cancel"]

#: States of a process: it waits for a decision, waits for its collective, is paused, had passed the
#: number, is done, or cannot stop.
State = Literal["idle", "published", "armed", "arrived", "missed", "left", "refused"]

#: States in which a process no longer takes part.
ENDED: Final = ("missed", "left", "refused")


class Place(NamedTuple):
    """A process's place in a pause.

    Attributes:
        state: state of the process.
        number: collective of the communicator, at publication or at the pause.
        signature: the collective after which it is paused.
        reason: reason for leaving.
    """

    state: State
    number: int = 0
    signature: str = ""
    reason: str = ""


def stop_number(counts: Sequence[int], margin: int) -> int:
    """The collective after which all stop, beyond all published numbers."""
    return max(counts) + max(1, margin)


def judge(phase: Phase, places: Sequence[Place]) -> Phase:
    """The next phase, or the same one without a decision.

    A pause is held only if every process is paused at the same collective. If a process cannot
    arrive or has left, the pause is abandoned.
    """
    if phase not in ("stop", "held"):
        return phase
    if any(place.state in ENDED for place in places):
        return "cancel"
    if phase == "held" or any(place.state != "arrived" for place in places):
        return phase
    return "held" if len({(one.number, one.signature) for one in places}) == 1 else "cancel"


def undisturbed(places: Sequence[Place]) -> bool:
    """Whether all were paused until their release."""
    return all(place.state == "left" and place.reason == "go" for place in places)
