"""All ranks of a job stand while processes beside it are validated; the result is an event."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paceline.detect.launch import validate_local
from paceline.detect.validate import Effort
from paceline.detect.verdict import Measurements, judge
from paceline.errors import PacelineError, PauseError
from paceline.pause.asker import MARGIN, Times, pause
from paceline.pause.events import append_event, event_of
from paceline.pause.records import Slot

#: Left for the processes of a validation to end before the job goes on.
_END_S: Final = 1.0

#: Of a validation that nobody sized: a job stands meanwhile.
_ROUNDS: Final = 3

#: Measures as many ranks as the job has, on this machine, within some seconds.
Measure = Callable[[int, float], Measurements]


def pause_and_validate(
    folder: Path, times: Times, measure: Measure, *, margin: int = MARGIN
) -> dict[str, Any]:
    """Pause a job, measure meanwhile, and keep the event in ``events.jsonl`` of the folder.

    A validation that fails is in the event (``error``): the job goes on as after any other.

    Args:
        folder: what PACELINE_RECORD names in the job.
        times: of the pause; ``measure`` is given ``hold_s`` less a second.
        measure: what measures while all stand.
        margin: as of :func:`pause`.

    Returns:
        The event (:func:`paceline.pause.events.event_of`), with ``measured``, ``verdict`` and its
        ``lines`` where there are some. The verdict counts where ``undisturbed`` is true.

    Raises:
        PauseError: no job to pause, ranks on other hosts, or what :func:`pause` raises.
        OutputError: the event cannot be kept.
    """
    more: dict[str, Any] = {}
    result = pause(
        folder,
        times,
        lambda slots, standing: more.update(_measured(measure, len(slots), times.hold_s)),
        accept=check_hosts,
        margin=margin,
    )
    event = event_of(result, more)
    append_event(folder, event)
    return event


def measure_here(ranks: int, most_s: float) -> Measurements:
    """Matrix products of as many processes, and the links of a ring of them: a short round.

    Raises:
        DetectError: as of :func:`validate_local`.
    """
    return validate_local(ranks, effort=Effort(rounds=_ROUNDS, timeout_s=most_s))


def check_hosts(slots: Sequence[Slot]) -> None:
    """Refuse a job of which ranks run elsewhere: processes here say nothing of these hosts.

    Raises:
        PauseError: there are some.
    """
    here = socket.gethostname()
    away = sorted({slot.host for slot in slots if slot.host != here})
    if away:
        raise PauseError(
            f"ranks run on {', '.join(away[:4])}, and --validate tests this machine, {here}; "
            "run the validation on all hosts: --during 'srun --overlap paceline validate'"
        )


def _measured(measure: Measure, ranks: int, hold_s: float) -> Mapping[str, Any]:
    try:
        measured = measure(ranks, max(hold_s - _END_S, 0.1))
        verdict = judge(measured)
    except PacelineError as error:
        return {"error": str(error)}
    return {
        "measured": measured.to_mapping(),
        "verdict": verdict.to_mapping(),
        "lines": verdict.lines(),
    }
