"""Input and output of an engine; both travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.fleet.analysis import BASE_BYTES, BYTES_PER_OPERATION
from paceline.fleet.keys import AnalysisOptions

#: Rows of parquet traces take 10 to 14 bytes; other formats take more, so this errs upwards.
_FILE_BYTES_PER_OPERATION = 10


@dataclass(frozen=True, slots=True)
class Task:
    """A trace to analyse.

    Attributes:
        path: its absolute path or address, as all machines know it.
        name: its path as the study has it.
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
        """Memory or time of the analysis, judged by the size of the file."""
        return BASE_BYTES + self.size // _FILE_BYTES_PER_OPERATION * BYTES_PER_OPERATION


@dataclass(frozen=True)
class Settings:
    """How the tasks of a study are done.

    Attributes:
        study: the address of its folder.
        version: of the analysis, by :func:`paceline.fleet.keys.analysis_version`.
        options: of the analysis.
        timeout_s: seconds for one trace; None: any number.
        memory_bytes: for one trace; None: any number.
        again: analyse anew what exceeded a limit before.
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
        name: of the task.
        key: of the result that now lies in the study; "" where there is none.
        rule: why there is none, or the limit that the result says was exceeded.
        error: why there is none.
    """

    name: str
    key: str = ""
    rule: str = ""
    error: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Outcome:
        """From JSON."""
        return cls(**values)
