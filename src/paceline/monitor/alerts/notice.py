"""Message about an alert for a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

FIRING, RESOLVED = "firing", "resolved"
#: Of a message that an alert, which goes on, has a cause by now.
UPDATED = "updated"


@dataclass(frozen=True)
class Notice:
    """An alert that began or ended, or whose cause became known.

    Attributes:
        id: number of the alert.
        status: "firing" or "resolved".
        rule, importance: which rule, and how important.
        project, job: whose.
        headline: what happened.
        cause, place, gain: suspected cause, where, and what the best fix gains; None = unknown.
        url: page of the job (or of the session).
        started_at, ended_at: seconds since 1970.
        labels: of the rule and the job.
        runbook: URL of what to do about the cause; "" where nobody named one.
        is_update: it was told before, without the cause.
    """

    id: int
    status: str
    rule: str
    importance: str
    project: str
    job: str
    headline: str
    cause: str | None
    place: str | None
    gain: str | None
    url: str
    started_at: float
    ended_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    runbook: str = ""
    is_update: bool = False

    @property
    def key(self) -> str:
        """The same for each time that the same thing is told."""
        return f"{self.id}-{UPDATED if self.is_update else self.status}"

    def lines(self) -> list[str]:
        """The notice in words."""
        pairs = [("Cause", self.cause), ("Where", self.place), ("Best fix", self.gain)]
        pairs.append(("Runbook", self.runbook))
        details = [f"{name}: {text}" for name, text in pairs if text] if self.is_firing else []
        return [self.headline, *details, self.url]

    @property
    def is_firing(self) -> bool:
        """Whether it began."""
        return self.status == FIRING

    @property
    def title(self) -> str:
        """Which job and rule, in a line."""
        return f"[{self.heading}] {self.job}: {self.rule}"

    @property
    def heading(self) -> str:
        """Its importance, or what else is told."""
        if self.is_update:
            return "CAUSE"
        return self.importance.upper() if self.is_firing else "RESOLVED"

    def to_mapping(self) -> dict[str, Any]:
        """As JSON holds it."""
        names = [name for name in self.__dataclass_fields__ if name != "labels"]
        return {**{name: getattr(self, name) for name in names}, "labels": dict(self.labels)}


def job_url(base: str, project: str, job: str, session_id: int | None = None) -> str:
    """The page of a job, showing one of its sessions."""
    query = {"project": project} | ({} if session_id is None else {"session": session_id})
    return f"{base}/jobs/{quote(job, safe='')}?{urlencode(query)}"


def title_of(notices: Sequence[Notice]) -> str:
    """One line for several notices of one rule."""
    first = notices[0]
    if len(notices) == 1:
        return first.title
    return f"[{first.heading}] {len(notices)} jobs: {first.rule}"
