"""Why a row of a ledger is unknown, in the words of its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Row that a log may lack -> a source of it.
TOLD_BY = {
    "checkpoints": "lines with begin and end of checkpoints",
    "evaluation": "lines with begin and end of evaluations",
    "data_waits": "records of waits for data, as of ml-goodput-measurement,",
    "other": "records of other events, as of ml-goodput-measurement,",
    "startup": "a dated line from before the first step",
}


@dataclass(frozen=True)
class Reasons:
    """Reasons for unknown rows; the defaults are those of a log.

    Attributes:
        not_recorded: row -> reason, for rows that the source may lack.
        no_clock: the source has no times of day.
        no_analysis: S is unknown.
        late: the source begins at a later step, whose number fills the braces.
        first_line: the source has no time of step 1.
        no_end: no start is known to have ended of its own accord.
    """

    not_recorded: Mapping[str, str] = field(
        default_factory=lambda: {
            name: f"not recorded; {source} would tell" for name, source in TOLD_BY.items()
        }
    )
    no_clock: str = (
        "the lines have no dates; lines with dates, or --pattern with the group time, would tell"
    )
    no_analysis: str = "give S of paceline analyze (--slowdown)"
    late: str = "the log begins at step {:,}: what came before is not in it"
    first_line: str = "the first time is that of step 2; step 1 would show it"
    no_end: str = "no log of a start says that it ended of its own accord"


OF_LOGS = Reasons()
