"""The course of an alert of a fail-slow: one fail-slow, or several with short reliefs between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.detect.event import counted
from paceline.monitor.levels import Row, began_step, with_factor_of
from paceline.units import duration


def began_at(onset: Mapping[str, Any]) -> float:
    """Time of the first event of a fail-slow, seconds since 1970."""
    return float(onset.get("began_at", onset["at"]))


@dataclass(frozen=True)
class Course:
    """The fail-slows that an alert covers.

    Attributes:
        job: row of the job.
        rows: the fail-slows in order, one or more, the present or latest one last.
        goes_on: whether the last one goes on.
        said: least and largest factor that the alert has said; None without any.
    """

    job: Mapping[str, Any]
    rows: Sequence[Row]
    goes_on: bool
    said: tuple[float, float] | None = None

    @property
    def last(self) -> Row:
        """The present or latest fail-slow."""
        return self.rows[-1]

    def by_cost(self) -> list[Row]:
        """The fail-slows, the costliest first."""
        return sorted(self.rows, key=self.lost_s, reverse=True)

    def lost_s(self, row: Row) -> float:
        """Seconds that a fail-slow has cost."""
        if row.get("relieved") or row is not self.last:
            return float(row["lost_s"] or 0.0)
        return lost_so_far_s(row, self.job)

    def headline(self, cost: str = "") -> str:
        """The level, since when, and the loss; then when it began, or the relief.

        Args:
            cost: what the fail-slow costs, in place of the loss in all.
        """
        lost_s = sum(self.lost_s(row) for row in self.rows)
        lost = f"{duration(lost_s)} lost {'so far' if self.goes_on else 'in all'}" if lost_s else ""
        if self.goes_on:
            level = f"take {self.last['factor']:.2f}x as long since step {self._level_step:,}"
        else:
            level = f"took {self._levels()} as long{self._from()}"
        phrases = [f"Fail-slow: steps {level}", cost or lost]
        return f"{'; '.join(filter(None, phrases))}.{self._begin()}{self._relief()}"

    def history(self, row: Row, place: str | None) -> str:
        """Sentences about the fail-slows before, and to which one the told cause belongs.

        Args:
            row: the fail-slow whose cause is told.
            place: place of its cause.
        """
        if len(self.rows) == 1:
            return ""
        who = (place or "").partition(";")[0]  # hosts come behind it
        if not self.goes_on:
            words = f" {_steps(row, self.job).capitalize()} {self._share(row)}"
            return f"{words}: {who}." if who else f"{words}. The cause told is theirs."
        earlier = self.rows[:-1]
        is_present = row is self.last
        costliest = max(earlier, key=self.lost_s) if is_present else row
        words = f"{_steps(costliest, self.job)} were slow{self._loss(costliest)}"
        if who and not is_present:
            words += f", {who}"
        if len(earlier) > 1:
            first = began_step(earlier[0], self.job)
            words = f"{counted(len(earlier), 'fail-slow')} since step {first:,}; {words}"
        cause = "" if is_present else " The cause told is of these steps, not of the present ones."
        return f" Earlier: {words}.{cause}"

    def _share(self, row: Row) -> str:
        lost_s = self.lost_s(row)
        return f"lost {duration(lost_s)} of it" if lost_s else "were slow"

    def _loss(self, row: Row) -> str:
        lost_s = self.lost_s(row)
        return f" ({duration(lost_s)} lost)" if lost_s else ""

    @property
    def _level_step(self) -> int:
        """First step of the present level; later events may change the level."""
        return max(began_step(self.last, self.job), int(self.last["since_step"]))

    def _begin(self) -> str:
        """A sentence that says since when the job is slow, where the level has changed since.

        The first step of the fail-slow, and that of its largest rise, stay.
        """
        first, step = began_step(self.last, self.job), self._level_step
        if not self.goes_on or first == step:
            return ""
        main = int(self.last.get("main_step") or step)
        mostly = f", mostly since step {main:,}" if first < main < step else ""
        return f" They have been slow since step {first:,}{mostly}."

    def _from(self) -> str:
        """Since when steps took longer, of what is over."""
        first, n = began_step(self.rows[0], self.job), len(self.rows) - 1
        if n:
            return f" since step {first:,}, with {counted(n, 'relief')} between"
        main = int(self.last.get("main_step") or self.last["since_step"])
        return f" since step {first:,}" + (f", mostly since step {main:,}" if first < main else "")

    def _relief(self) -> str:
        """A sentence that says how the last fail-slow ended."""
        step, left = self.last.get("relieved_step"), self.last.get("left_step")
        if self.goes_on or (step is None and left is None):
            return ""
        if step is None:
            return f" A restart, or the acceptance of its level, ended it at step {left:,}."
        return f" Steps are healthy again since step {step:,}."

    def _levels(self) -> str:
        """The factors: ``1.50x``, or ``1.22x to 2.56x``. They include those that were said."""
        last = self.last
        known = [row for row in self.rows if row["factor"] is not None]
        spans = [row.get("levels", (row["factor"],) * 2) for row in known]
        if len(self.rows) == 1 and "levels" not in last:  # its mean is known better than its start
            spans = [(last.get("mean", last["factor"]),) * 2]
        if self.said is not None:
            spans.append(self.said)
        factors = min(span[0] for span in spans), max(span[1] for span in spans)
        return " to ".join(dict.fromkeys(f"{factor:.2f}x" for factor in factors))


def lost_so_far_s(onset: Mapping[str, Any], job: Mapping[str, Any]) -> float:
    """Seconds that a fail-slow has cost until its job was last seen.

    One of its events has the largest loss, until its step. Since then each step takes longer than
    the healthy step. If that is unknown, a share of all time is lost.
    """
    lost_s, factor = float(onset["lost_s"] or 0.0), float(onset["factor"] or 1.0)
    if factor <= 1:
        return lost_s
    step, last_step = onset.get("lost_step", onset.get("step")), job["last_step"]
    if job["healthy_s"] and None not in (step, last_step) and last_step >= step:
        # Not by the clock: steps may arrive late, and pauses are no loss.
        steps = int(last_step) - int(step)
        return lost_s + steps * float(job["healthy_s"]) * (factor - 1)
    at = float(onset.get("lost_at", onset["at"]))
    return lost_s + (1 - 1 / factor) * max(0.0, float(job["seen_at"]) - at)


def course_of(
    job: Mapping[str, Any],
    episodes: Sequence[Row],
    onset: Row | None,
    alert: Mapping[str, Any],
) -> Course | None:
    """The course of an alert; None without a fail-slow of a known factor.

    Args:
        job: row of the job.
        episodes: its fail-slows in order.
        onset: the present fail-slow; None without one.
        alert: row of the alert. It covers the fail-slow of which it told and all later ones.
    """
    started_at = float(alert["started_at"])
    before = [n for n, row in enumerate(episodes) if began_at(row) <= started_at]
    rows = list(episodes[before[-1] if before else 0 :])
    if onset is not None:
        rows[-1:] = [onset]
    elif rows and not rows[-1].get("relieved"):
        rows[-1] = with_factor_of(job, rows[-1])
    if not rows or rows[-1]["factor"] is None:
        return None
    least, most = alert["factor_least"], alert["factor_most"]
    said = None if least is None or most is None else (float(least), float(most))
    return Course(job, rows, onset is not None, said)


def _steps(row: Row, job: Mapping[str, Any]) -> str:
    first, end = began_step(row, job), row.get("relieved_step", row.get("left_step"))
    if end is None or end <= first:
        return f"the steps since step {first:,}"
    return f"steps {first:,} to {end - 1:,}"
