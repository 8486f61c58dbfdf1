"""Messages from the demo to its training job, through a file that rank 0 reads before each step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.files import text_writer, write_files

CONTROL, LOSSES, VERDICT = "demo-control.json", "losses.jsonl", "verdict.json"

FIELDS = ("stop", "factor", "validate", "number")


@dataclass(frozen=True)
class Control:
    """The settings to use from the next step on.

    Attributes:
        counts: [dp] microbatches of each replica.
        factor: slowdown of rank 0's computes.
        validate: number of the last request to validate; a new request is followed at once.
        stop: whether to stop before the next step.
        number: number of the message, increasing by one.
    """

    counts: tuple[int, ...]
    factor: float = 1.0
    validate: int = 0
    stop: bool = False
    number: int = 0

    def write(self, path: Path) -> None:
        """Write the message."""
        write_files({path: text_writer(json.dumps(asdict(self)))}, force=True)

    @classmethod
    def read(cls, path: Path) -> Control:
        """Read the message."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "counts": tuple(values["counts"])})

    def to_values(self) -> list[float]:
        """The message as numbers: :data:`FIELDS`, then the counts."""
        settings = (self.stop, self.factor, self.validate, self.number)
        return [*map(float, settings), *map(float, self.counts)]

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Control:
        """The inverse of :meth:`to_values`."""
        stop, factor, validate, number, *counts = values
        shares = tuple(int(n) for n in counts)
        return cls(shares, factor, int(validate), bool(stop), int(number))
