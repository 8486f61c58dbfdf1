"""The file of projects: limits of each project's stored and pushed data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import MonitorError
from paceline.marked_yaml import Section, read_marked
from paceline.monitor.store.tokens import PROJECT

_KEEP = ("keep_days", "keep_gib")
_QUOTAS = ("sessions_per_day", "step_samples_per_minute")


@dataclass(frozen=True)
class Limits:
    """Limits of one project; None = the service's setting, or no limit.

    Attributes:
        keep_days: sessions, events and step times older than this are removed; 0 = never.
        keep_gib: traces and results beyond this are removed, oldest first; 0 = no limit.
        sessions_per_day: traces that may be pushed in 24 hours.
        step_samples_per_minute: most step samples of all its tokens together.
    """

    keep_days: float | None = None
    keep_gib: float | None = None
    sessions_per_day: int | None = None
    step_samples_per_minute: int | None = None


@dataclass(frozen=True)
class Projects:
    """The contents of the file.

    Attributes:
        named: project -> its limits.
        keep_days: value for all others, from the service's settings.
    """

    keep_days: float
    named: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, project: str) -> Limits:
        """A project's limits."""
        return self.named.get(project, Limits())

    def days(self, project: str) -> float:
        """Days for which a project's data is kept; 0 = always."""
        days = self.of(project).keep_days
        return self.keep_days if days is None else days

    @property
    def longest_days(self) -> float:
        """Longest days for which data is kept; 0 = always."""
        days = [self.keep_days, *(self.days(name) for name in self.named)]
        return 0.0 if 0 in days else max(days)

    def before(self, projects: Iterable[str], now: float, day_s: float) -> dict[str, float]:
        """Project -> time before which its data is removed; without projects that keep all data."""
        return {name: now - self.days(name) * day_s for name in projects if self.days(name)}


def load_projects(path: str, keep_days: float) -> Projects:
    """The limits of a file.

    Args:
        path: path of the file; "" = none, without limits of projects.
        keep_days: value for projects without a setting.

    Raises:
        MonitorError: the file is wrong; the message names file and line.
    """
    if not path:
        return Projects(keep_days)
    section = read_marked(Path(path), MonitorError, may_be_empty=True)
    named = {}
    for name in section.nodes:
        if name == "*" or not PROJECT.fullmatch(name):
            section.fail(name, "is no project; use letters, digits and . _ -")
        named[name] = _limits(section.section(name))
    return Projects(keep_days, named)


def _limits(section: Section) -> Limits:
    section.allow((*_KEEP, *_QUOTAS))
    sessions, samples = (section.whole(name) if name in section else None for name in _QUOTAS)
    days, gib = (_size(section, name) for name in _KEEP)
    return Limits(days, gib, sessions, samples)


def _size(section: Section, name: str) -> float | None:
    if name not in section:
        return None
    value = section.plain(name)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < math.inf:
        section.fail(name, "must be a number, 0 or more")
    return float(value)
