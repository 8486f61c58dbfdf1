"""Examination of a slow job: it is paused, and its ranks are validated (docs/pause.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from paceline.errors import PacelineError
from paceline.watch.news import NewsKind

#: Least seconds between pauses, so that an unstable level does not stop the job repeatedly.
REST_S: Final = 600.0

#: Pauses the job, validates, and returns the event (:mod:`paceline.pause.validation`).
Examine = Callable[[], Mapping[str, Any]]

#: A kind of news, its text and its fields.
Finding = tuple[NewsKind, str, dict[str, Any]]

#: Fields of the event that news have themselves, or that are too long for a line.
_LEFT_OUT: Final = ("kind", "at", "text", "lines", "measured")


class Examiner:
    """Pauses a job at most once in :data:`REST_S`.

    Args:
        examine: function that pauses and validates.
        clock: seconds since the epoch.
    """

    def __init__(self, examine: Examine, clock: Callable[[], float]) -> None:
        self._examine, self._clock = examine, clock
        self._ended_s: float | None = None

    @property
    def is_resting(self) -> bool:
        """Whether the last pause ended too recently."""
        return self._ended_s is not None and self._clock() - self._ended_s < REST_S

    def examine(self, suspects: Collection[int]) -> Sequence[Finding]:
        """The outcome of a pause, and whether the validation confirms the suspected ranks.

        The job continues in any case, so errors are findings instead of exceptions.
        """
        if self.is_resting:
            text = f"the last pause ended less than {REST_S / 60:.0f} minutes ago: no other now"
            return [("not-paused", text, {})]
        try:
            event = self._examine()
        except PacelineError as error:
            return [("not-paused", str(error), {})]
        finally:
            self._ended_s = self._clock()
        fields = {name: value for name, value in event.items() if name not in _LEFT_OUT}
        paused: Finding = (event["kind"], event["text"], fields)
        return [paused, *_judged(event, suspects)] if event["kind"] == "paused" else [paused]


def _judged(event: Mapping[str, Any], suspects: Collection[int]) -> Sequence[Finding]:
    if "verdict" not in event:
        return [("not-validated", event.get("error", "nothing was measured"), {})]
    if not event["undisturbed"]:
        return [("not-validated", f"what was measured does not count: {event['why']}", {})]
    return [compare(event["verdict"], suspects)]


def compare(verdict: Mapping[str, Any], suspects: Collection[int]) -> Finding:
    """Whether a validation confirms the suspected ranks."""
    slow = {int(row["rank"]) for row in verdict.get("slow_ranks", ())}
    both = sorted(slow & {*suspects})
    if both:
        text = f"validation confirms rank {', '.join(map(str, both))}"
    elif slow:
        text = f"validation finds rank {', '.join(map(str, sorted(slow)))} slow, not a suspect"
    else:
        text = "validation finds no slow rank: the cause may lie outside of GPUs and links"
    return "validated", text, {"confirmed": both, "verdict": dict(verdict)}
