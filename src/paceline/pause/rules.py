"""Decisions of the asker of a pause from the processes' records: no clock, no file.

The exhaustive search over all interleavings (``tests/pause_model.py``) calls the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Phase = Literal["none", "ask", "stop", "held", "go", "cancel"]

#: State of a process by its record: it waits for a decision, waits for its collective, stands
#: still, had passed the number, is done, cannot.
State = Literal["idle", "published", "armed", "arrived", "missed", "left", "refused"]

#: A process of such a state takes no more part.
ENDED: Final = ("missed", "left", "refused")


class Place(NamedTuple):
    """Where a process is in a pause.

    Attributes:
        state: how far it came.
        number: collectives of the communicator: when it published, and where it stands.
        signature: the collective after which it stands.
        reason: why it left.
    """

    state: State
    number: int = 0
    signature: str = ""
    reason: str = ""


def stop_number(counts: Sequence[int], margin: int) -> int:
    """The collective after which all stop: ahead of all that was published."""
    return max(counts) + max(1, margin)


def judge(phase: Phase, places: Sequence[Place]) -> Phase:
    """The next phase; the same where there is nothing to decide.

    A pause is held only when every process stands at the same collective. Where one cannot come
    any more, or has gone, it is given up.
    """
    if phase not in ("stop", "held"):
        return phase
    if any(place.state in ENDED for place in places):
        return "cancel"
    if phase == "held" or any(place.state != "arrived" for place in places):
        return phase
    return "held" if len({(one.number, one.signature) for one in places}) == 1 else "cancel"


def undisturbed(places: Sequence[Place]) -> bool:
    """Whether all stood still until they were told to go on."""
    return all(place.state == "left" and place.reason == "go" for place in places)
