"""A message about an alert for a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

FIRING, RESOLVED = "firing", "resolved"
#: Status of a message that a continuing alert now has a cause.
UPDATED = "updated"


@dataclass(frozen=True)
class Notice:
    """A notice that an alert began, ended, or got a known cause.

    Attributes:
        id: number of the alert.
        status: "firing" or "resolved".
        rule, importance: its rule and importance.
        project, job: its project and job.
        headline: what happened.
        cause, place, gain: suspected cause, its place, and the gain of the best remedy; None =
            unknown.
        url: page of the job or of the session.
        started_at, ended_at: seconds since 1970.
        labels: labels of the rule and the job.
        runbook: URL of instructions for the cause; "" if none is set.
        is_update: whether a notice without the cause was sent before.
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
        """Key of the message, equal for repetitions."""
        return f"{self.id}-{UPDATED if self.is_update else self.status}"

    def lines(self) -> list[str]:
        """The notice as lines of text."""
        pairs = [("Cause", self.cause), ("Where", self.place), ("Best fix", self.gain)]
        pairs.append(("Runbook", self.runbook))
        pairs = pairs if self.is_firing else pairs[:2] if self.is_only else []
        details = [f"{name}: {text}" for name, text in pairs if text]
        return [self.headline, *details, self.url]

    @property
    def is_firing(self) -> bool:
        """Whether the alert began."""
        return self.status == FIRING

    @property
    def is_only(self) -> bool:
        """Whether it is the only notice of its alert, which was over when it began."""
        return self.started_at == self.ended_at

    @property
    def title(self) -> str:
        """Job and rule in a line."""
        return f"[{self.heading}] {self.job}: {self.rule}"

    @property
    def heading(self) -> str:
        """Its importance, or the kind of news."""
        if self.is_update:
            return "CAUSE"
        return self.importance.upper() if self.is_firing else "RESOLVED"

    def to_mapping(self) -> dict[str, Any]:
        """The notice in the form of JSON."""
        names = [name for name in self.__dataclass_fields__ if name != "labels"]
        return {**{name: getattr(self, name) for name in names}, "labels": dict(self.labels)}


def job_url(base: str, project: str, job: str, session_id: int | None = None) -> str:
    """URL of a job's page with one of its sessions."""
    query = {"project": project} | ({} if session_id is None else {"session": session_id})
    return f"{base}/jobs/{quote(job, safe='')}?{urlencode(query)}"


def title_of(notices: Sequence[Notice]) -> str:
    """One line for several notices of one rule."""
    first = notices[0]
    if len(notices) == 1:
        return first.title
    n_jobs = len({(notice.project, notice.job) for notice in notices})
    if n_jobs == 1:
        return f"{first.title} ({len(notices)} alerts)"
    return f"[{first.heading}] {n_jobs} jobs: {first.rule}"
