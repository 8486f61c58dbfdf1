"""Forms of findings, the waterfall, remedies, and the comparison with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from paceline.diagnose import Finding, Waterfall
from paceline.diagnose.waterfall import Drop
from paceline.plan.expect import Expectation
from paceline.remedies import Remedy
from paceline.results.forms import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Form,
    list_of,
    object_of,
    optional,
    tuple_of,
)
from paceline.results.record import Key, read_record, record, record_schema, write_record
from paceline.trace import Job

INTERVAL: Form[Any] = tuple_of(NUMBER, NUMBER)

_FINDING_KEYS = (
    Key("id", TEXT, "unique in a diagnosis"),
    Key("cause", TEXT),
    Key("text", TEXT, "the finding in one sentence"),
    Key("share", optional(NUMBER), "of the loss; null outside S"),
    Key("share_of_step", NUMBER),
    Key("interval", INTERVAL, "90%, of share (of share_of_step outside S)"),
    Key("confidence", NUMBER),
    Key("where", OBJECT, "workers, stage, link, group or hosts"),
    Key("evidence", OBJECT, "the numbers that show it"),
    Key(
        "ambiguous",
        TEXT,
        "another explanation that fits equally well",
        written=lambda f: bool(f.ambiguous),
    ),
    Key(
        "alternative", TEXT, "the cause of that explanation", written=lambda f: bool(f.alternative)
    ),
    Key(
        "part_of",
        TEXT,
        "id of the finding of the same time, whose cost includes this one's",
        written=lambda f: bool(f.part_of),
    ),
)

#: Keys that findings and remedies of some versions lack.
_NOT_ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "finding": {"where": {}, "evidence": {}},
    "remedy": {"change": {}},
}


def _form(cls: type[Any], keys: tuple[Key, ...], missing: Mapping[str, Any]) -> Form[Any]:
    """A record with some fields that older documents lack."""
    schema = record_schema(cls, keys)
    schema["required"] = [name for name in schema["required"] if name not in missing]

    def read(value: Any) -> Any:
        entries = {**missing, **value} if isinstance(value, Mapping) else value
        return read_record(cls, keys, entries)

    return Form(lambda value: write_record(value, keys), read, schema)


FINDING: Form[Finding] = _form(Finding, _FINDING_KEYS, _NOT_ALWAYS["finding"])

REMEDY: Form[Remedy] = _form(
    Remedy,
    (
        Key("remedy", TEXT, "its name"),
        Key("action", TEXT, "what to do"),
        Key("effect", TEXT, "the new step time, with the gain"),
        Key("text", TEXT, "action and effect in one sentence"),
        Key("findings", list_of(TEXT), "ids of the findings it answers"),
        Key("step_time_s", NUMBER, "predicted mean step, seconds"),
        Key("gain", NUMBER, "share of the step time saved"),
        Key("interval", INTERVAL, "90%, of gain"),
        Key("change", OBJECT, "what to change"),
        Key("notes", list_of(TEXT), "limits and assumptions"),
        Key("architecture", FLAG, "it changes the job's architecture"),
    ),
    _NOT_ALWAYS["remedy"],
)

WATERFALL: Form[Waterfall] = record(
    Waterfall,
    (
        Key("actual_s", NUMBER, "the traced mean step, seconds"),
        Key(
            "drops",
            list_of(record(Drop, (Key("name", TEXT), Key("text", TEXT), Key("seconds", NUMBER)))),
            "the losses, in order",
        ),
        Key("compute_s", NUMBER, "forward and backward of a worker, seconds"),
    ),
)

_STAGES = object_of(int, NUMBER)

_BY_STAGE: Form[tuple[float, ...]] = Form(
    lambda ratios: _STAGES.write(dict(enumerate(ratios))),
    lambda value: tuple(_STAGES.read(value).values()),
    _STAGES.schema,
)

_OF_EXPECTATION: Mapping[str, Form[Any]] = {
    "model": TEXT,
    "plan": TEXT,
    "by_kind": object_of(str, optional(NUMBER)),
    "by_stage": _BY_STAGE,
}

EXPECTATION: Form[Expectation] = record(
    Expectation,
    tuple(
        Key(field.name, _OF_EXPECTATION.get(field.name, NUMBER)) for field in fields(Expectation)
    ),
)


def plain_finding(finding: Finding, job: Job) -> Finding:
    """The finding in the form of JSON: lists for tuples, texts for keys, no table of costs."""
    where, evidence = plain(_places(finding.where, job)), plain(_places(finding.evidence, job))
    low, high = finding.interval
    interval = (float(low), float(high))
    return replace(finding, where=where, evidence=evidence, interval=interval, cost_s=None)


def plain_remedy(remedy: Remedy, job: Job) -> Remedy:
    """The remedy in the form of JSON."""
    return replace(remedy, change=plain(_places(remedy.change, job)))


def _places(values: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """The same with places (dp, pp, peer) instead of workers (replica, pp), if peers are apart."""
    if job.peers == 1:
        return dict(values)
    placed = dict(values)
    for key in ("workers", "link"):
        if isinstance(values.get(key), Sequence):
            placed[key] = [job.place(*worker) for worker in values[key]]
    if isinstance(values.get("links"), Sequence):
        placed["links"] = [[job.place(*end) for end in ends] for ends in values["links"]]
    return placed


def plain(value: Any) -> Any:
    """Mappings with texts as keys, and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
