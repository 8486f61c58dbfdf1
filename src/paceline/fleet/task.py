"""Input and output of an engine; both travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.fleet.analysis import BASE_BYTES, BYTES_PER_OPERATION
from paceline.fleet.keys import AnalysisOptions

#: Bytes per row: parquet traces take 10 to 14, other formats more, so estimates of rows are high.
_FILE_BYTES_PER_OPERATION = 10


@dataclass(frozen=True, slots=True)
class Task:
    """A trace to analyse.

    Attributes:
        path: its absolute path or address, valid on all machines.
        name: its path in the study.
        meta, hosts: addresses of the files beside it; "" without one.
        size: bytes.
    """

    path: str
    name: str
    meta: str = ""
    hosts: str = ""
    size: int = 0

    @property
    def memory_bytes(self) -> int:
        """Estimated weight of the analysis in memory and time, from the file's size."""
        return BASE_BYTES + self.size // _FILE_BYTES_PER_OPERATION * BYTES_PER_OPERATION


@dataclass(frozen=True)
class Settings:
    """Settings of a study's tasks.

    Attributes:
        study: the address of its folder.
        version: version of the analysis, by :func:`paceline.fleet.keys.analysis_version`.
        options: options of the analysis.
        timeout_s: seconds for one trace; None: any number.
        memory_bytes: memory limit for one trace; None: no limit.
        again: analyse traces again if they exceeded a limit before.
    """

    study: str
    version: str
    options: AnalysisOptions
    timeout_s: float | None = None
    memory_bytes: int | None = None
    again: bool = False

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read the output of :meth:`to_json`."""
        values = json.loads(text)
        options = values.pop("options")
        steps = options["steps"]
        chosen = AnalysisOptions(
            None if steps is None else tuple(steps),
            tuple(options["ignore_kinds"]),
            options["keep_clocks"],
        )
        return cls(options=chosen, **values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task.

    Attributes:
        name: name of the task.
        key: key of the result that is now in the study; "" if there is none.
        rule: the rule if there is no result, or the exceeded limit.
        error: the reason.
    """

    name: str
    key: str = ""
    rule: str = ""
    error: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Outcome:
        """From JSON."""
        return cls(**values)
