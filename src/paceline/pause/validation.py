"""Validation by separate processes while all ranks of a job are paused; the result is an event."""

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

#: Time for a validation's processes to end before the job continues.
_END_S: Final = 1.0

#: Default effort, small because the job is paused.
_ROUNDS: Final = 3

#: Measures the job's number of ranks on this machine within some seconds.
Measure = Callable[[int, float], Measurements]


def pause_and_validate(
    folder: Path, times: Times, measure: Measure, *, margin: int = MARGIN
) -> dict[str, Any]:
    """Pause a job, measure, and write the event to ``events.jsonl`` of the folder.

    The event has the error of a failed validation (``error``); the job continues in any case.

    Args:
        folder: the job's PACELINE_RECORD folder.
        times: time limits of the pause; ``measure`` gets ``hold_s`` less a second.
        measure: function that measures during the pause.
        margin: margin as in :func:`pause`.

    Returns:
        The event (:func:`paceline.pause.events.event_of`), with ``measured``, ``verdict`` and its
        ``lines`` where there are some. The verdict counts where ``undisturbed`` is true.

    Raises:
        PauseError: there is no job to pause, ranks are on other hosts, or as in :func:`pause`.
        OutputError: the event cannot be written.
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
    """A short round: matrix products of that many processes, and the links of their ring.

    Raises:
        DetectError: as in :func:`validate_local`.
    """
    return validate_local(ranks, effort=Effort(rounds=_ROUNDS, timeout_s=most_s))


def check_hosts(slots: Sequence[Slot]) -> None:
    """Refuse a job with ranks on other hosts, which local processes cannot measure.

    Raises:
        PauseError: some ranks run on other hosts.
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
