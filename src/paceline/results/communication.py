"""Exposed and hidden communication in a result document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.diagnose import Communication, Exposure
from paceline.results.answers import FINDING, plain_finding
from paceline.results.forms import FLAG, NUMBER, TEXT, WHOLE, Form, list_of, optional
from paceline.results.record import Key, read_record, record, record_schema, write_record
from paceline.trace import Job

_EXPOSURE_KEYS = (
    Key("kind", TEXT),
    Key("stage", WHOLE),
    Key("chunk", WHOLE, "-1 = not told"),
    Key("part", optional(WHOLE), "unit or bucket; null: all of the kind on the stage"),
    Key("count", WHOLE, "collectives per step"),
    Key("transfer_s", NUMBER, "of the slowest member, seconds per step"),
    Key("exposed_s", NUMBER, "time that the step would lose if they took 0 s"),
    Key("hidden_s", NUMBER, "transfer_s - exposed_s"),
    Key("waited_s", NUMBER, "time that a worker's program waits for them"),
)


def _read(value: Any) -> Exposure:
    stored = tuple(key for key in _EXPOSURE_KEYS if key.name != "hidden_s")
    exposure: Exposure = read_record(Exposure, stored, value)
    return exposure


EXPOSURE: Form[Exposure] = Form(
    lambda exposure: write_record(exposure, _EXPOSURE_KEYS),
    _read,
    record_schema(Exposure, _EXPOSURE_KEYS),
)

_KEYS = (
    Key("step_s", NUMBER, "the simulated step, seconds"),
    Key("exposed_s", NUMBER, "time that it would lose without collectives"),
    Key("by_kind", list_of(EXPOSURE)),
    Key("by_part", list_of(EXPOSURE)),
    Key("findings", list_of(FINDING), "findings on the arrangement of communication; outside S"),
    Key(
        "all_reduces",
        FLAG,
        "true: the gradients are reduced to all ranks, as in DDP",
        written=lambda communication: communication.all_reduces,
    ),
)

COMMUNICATION: Form[Communication] = record(Communication, _KEYS)


def plain_communication(value: Communication | None, job: Job) -> Communication | None:
    """The communication in the form of JSON."""
    if value is None:
        return None
    return replace(value, findings=tuple(plain_finding(f, job) for f in value.findings))
