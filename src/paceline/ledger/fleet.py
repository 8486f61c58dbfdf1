"""The ledgers of several jobs as one."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import DetectError
from paceline.ledger.categories import CATEGORIES, label
from paceline.ledger.ledger import Ledger
from paceline.units import count


def fleet_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """The sum of several jobs' wall times, weighted by GPUs if all jobs have them.

    A category is the sum over the jobs whose logs have it. Such time of other jobs is in their rows
    "unknown" and "productive", which a note says.

    Raises:
        DetectError: there is no job.
    """
    if not ledgers:
        raise DetectError("give the logs of a job")
    gpus = [ledger.gpus for ledger in ledgers]
    seconds: dict[str, float | None] = {}
    reasons, notes = {}, []
    for name in CATEGORIES:
        values = [value for ledger in ledgers if (value := ledger.seconds.get(name)) is not None]
        seconds[name] = sum(values) if values else None
        if not values:
            reasons[name] = "no job's log tells it"
        elif len(values) < len(ledgers):
            untold = len(ledgers) - len(values)
            notes.append(f"{label(name)}: {untold} of {len(ledgers)} logs do not tell")
    same = gpus[0] if len(set(gpus)) == 1 else None
    return Ledger(
        count(len(ledgers), "job"),
        sum(ledger.total_s for ledger in ledgers),
        seconds,
        reasons,
        steps=sum(ledger.steps for ledger in ledgers),
        lost_steps=sum(ledger.lost_steps for ledger in ledgers),
        starts=sum(ledger.starts for ledger in ledgers),
        gpus=same,
        notes=tuple(notes),
    )
