"""Messages of a watch, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

NewsKind = Literal[
    "watching",
    "restart",
    "ended",
    "change",
    "profile-asked",
    "named",
    "not-named",
    "validation-asked",
    "validated",
    "not-validated",
    "pause-asked",
    "paused",
    "not-paused",
    "plan",
]

#: Indent of details below a line.
_INDENT = " " * 22


@dataclass(frozen=True)
class News:
    """One step on the way from an onset to a plan.

    Attributes:
        kind: kind of news; "change" is an event of the detector.
        at_s: time, seconds since the epoch.
        step: newest step of the job at that time.
        text: the news in words.
        after_onset_s: seconds since the begin of the first slow step; None outside a fail-slow.
        fields: further fields of the JSON.
        details: further lines for a terminal.
    """

    kind: NewsKind
    at_s: float
    step: int
    text: str
    after_onset_s: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The news as JSON; a detector's event has its own ``kind``, as in ``paceline detect``."""
        return {
            "kind": self.kind,
            "step": self.step,
            "at": datetime.fromtimestamp(self.at_s).astimezone().isoformat(timespec="milliseconds"),
            "after_onset_s": None if self.after_onset_s is None else round(self.after_onset_s, 3),
            "text": self.text,
            **self.fields,
        }

    def line(self) -> str:
        """The news as text for a terminal."""
        clock = datetime.fromtimestamp(self.at_s).strftime("%H:%M:%S")
        after = "" if self.after_onset_s is None else f"+{self.after_onset_s:.1f} s"
        return "\n".join([f"{clock} {after:>9s}  {self.text}", *map(_INDENT.__add__, self.details)])
