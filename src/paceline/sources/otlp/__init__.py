"""Megatron-LM's OpenTelemetry spans, from the Collector's or the receiver's files."""

from paceline.sources.otlp.environment import environment
from paceline.sources.otlp.names import ITERATION, STEP, STEPS, is_used, kind_of, rank_of
from paceline.sources.otlp.reader import (
    FILE_NAME,
    check_request,
    matches,
    read,
    read_requests,
    read_spans,
)

__all__ = [
    "FILE_NAME",
    "ITERATION",
    "STEP",
    "STEPS",
    "check_request",
    "environment",
    "is_used",
    "kind_of",
    "matches",
    "rank_of",
    "read",
    "read_requests",
    "read_spans",
]
