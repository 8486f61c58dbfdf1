"""Automatic watch of a running job, from the onset of a fail-slow to a plan."""

from paceline.watch.calls import CallsWatch, has_calls
from paceline.watch.job import Watch
from paceline.watch.news import News

__all__ = ["CallsWatch", "News", "Watch", "has_calls"]
