"""Phrases and rows for exposed and hidden communication."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.diagnose import Communication, Exposure
from paceline.trace.kinds import kind_name
from paceline.units import percent, seconds

#: Most named parts; ``result.json`` has the rest.
MAX_PARTS = 5

#: Least share of the step of a named part.
MIN_SHARE = 0.001

HEAD = ("", "per step", "transfer", "exposed", "hidden", "waited for")

ABOUT = "exposed is the time that the step would lose if it took no time"


def summary(communication: Communication) -> str:
    """``63.1 ms of the step (11.6%) are exposed communication``."""
    share = communication.exposed_s / communication.step_s if communication.step_s else 0.0
    return (
        f"without collectives a step would take {seconds(communication.exposed_s)} "
        f"({percent(share)}) less"
    )


def rows(communication: Communication) -> list[tuple[str, ...]]:
    """One row for each kind and stage, with the columns of ``HEAD``."""
    stages = {exposure.stage for exposure in communication.by_kind}
    reduces = communication.all_reduces
    return [
        _row(
            kind_name(exposure.kind, reduces)
            + (f", stage {exposure.stage}" if len(stages) > 1 else ""),
            exposure,
        )
        for exposure in communication.by_kind
    ]


def part_rows(communication: Communication, most: int = MAX_PARTS) -> list[tuple[str, ...]]:
    """The most exposed units and buckets, with the columns of ``HEAD``."""
    worst = sorted(communication.by_part, key=lambda exposure: -exposure.exposed_s)
    least_s = MIN_SHARE * communication.step_s
    named = [exposure for exposure in worst if exposure.exposed_s >= least_s][:most]
    reduces = communication.all_reduces
    return [
        _row(part_name(exposure, communication.by_part, reduces), exposure) for exposure in named
    ]


def part_name(exposure: Exposure, among: Sequence[Exposure], reduces: bool) -> str:
    """``params-all-gather of unit 3``; with stage and chunk if there are several."""
    name = f"{kind_name(exposure.kind, reduces)} of {noun(among)} {exposure.part}"
    if exposure.chunk >= 0 and len({other.chunk for other in among if other.chunk >= 0}) > 1:
        name += f", chunk {exposure.chunk}"
    return name + (f", stage {exposure.stage}" if len({o.stage for o in among}) > 1 else "")


def noun(among: Sequence[Exposure]) -> str:
    """Name of a part: a unit if parameters are gathered, otherwise a bucket of gradients."""
    return "unit" if any("gather" in exposure.kind for exposure in among) else "bucket"


def _row(name: str, exposure: Exposure) -> tuple[str, ...]:
    times = (exposure.transfer_s, exposure.exposed_s, exposure.hidden_s, exposure.waited_s)
    return (name, f"{exposure.count:,}", *map(seconds, times))
