"""Megatron-LM's OpenTelemetry spans, out of the Collector's or the receiver's files."""

from paceline.sources.otlp.reader import (
    FILE_NAME,
    ITERATION,
    STEP,
    check_request,
    kinds_of,
    matches,
    rank_of,
    read,
    read_requests,
)

__all__ = [
    "FILE_NAME",
    "ITERATION",
    "STEP",
    "check_request",
    "kinds_of",
    "matches",
    "rank_of",
    "read",
    "read_requests",
]
