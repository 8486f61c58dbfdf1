"""The scenario file of ``paceline mitigate --simulate``: a job and its fail-slows.

job: {dp: 16, pp: 4, microbatches: 16}   # or {trace: trace.parquet, meta: meta.yaml}
step: 3.5 s                               # healthy step time; default: as the job has it
steps: 1000
noise: 0.02
overheads: {s2: 5 s, s3: 1 min, s4: 30 min}
fail_slows:
  - {at: 600 s, for: 10 min, kind: compute, worker: [3, 1], factor: 1.4}
  - {at: 900 s, for: 10 min, kind: link, worker: [2, 1], other: [3, 1], factor: 8}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import MitigateError, PacelineError, QuantityError
from paceline.graph import from_trace
from paceline.marked_yaml import Section, read_marked
from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.life import FailSlow, Scenario
from paceline.mitigate.planner import RULES
from paceline.mitigate.strategies import ACTIONS, OVERHEAD_S
from paceline.quantities import parse_quantity
from paceline.sources import load
from paceline.synth import SynthSpec
from paceline.trace import OpKind

_FIELDS = (
    *("job", "step", "steps", "noise", "seed", "detect_steps", "validate", "rule"),
    *("overheads", "fail_slows"),
)
_JOB = (
    *("dp", "pp", "tp", "vpp", "microbatches", "schedule", "overlap", "base_s"),
    *("trace", "meta"),
)
_FAIL_SLOW = ("at", "for", "kind", "worker", "other", "factor")


def load_scenario(path: Path) -> Scenario:
    """The scenario that a YAML file describes.

    Raises:
        MitigateError: a field is unknown, missing or wrong; the message names file and line.
        TraceError: the job's trace cannot be read.
    """
    return _scenario(read_marked(path, MitigateError))


def _scenario(section: Section) -> Scenario:
    section.allow(_FIELDS)
    for field in ("job", "steps", "fail_slows"):
        if field not in section:
            section.fail("", f"lacks {field}; a scenario has {', '.join(_FIELDS)}")
    step_s = section.quantity("step", "seconds") if "step" in section else None
    values: dict[str, Any] = {
        "model": _model(section.section("job"), step_s),
        "steps": section.whole("steps"),
        "overhead_s": _overheads(section.section("overheads")),
    }
    if "noise" in section:
        values["noise"] = section.quantity("noise", "")
    if "validate" in section:
        values["validate_s"] = section.quantity("validate", "seconds")
    for name in ("seed", "detect_steps"):
        if name in section:
            values[name] = section.whole(name, least=0)
    if "rule" in section:
        values["rule"] = section.text("rule")
        if values["rule"] not in RULES:
            section.fail("rule", f"must be one of {', '.join(RULES)}")
    values["fail_slows"] = _fail_slows(section)
    try:
        return Scenario(**values)
    except MitigateError as error:
        raise MitigateError(f"{section.path}: {error}") from None


def _model(job: Section, step_s: float | None) -> JobModel:
    job.allow(_JOB)
    if "trace" in job:
        extra = [field for field in job.nodes if field not in ("trace", "meta")]
        if extra:
            job.fail(extra[0], "a job is either a trace or described by its shape, not both")
        # Paths are relative to the scenario file, not to the working directory.
        folder = job.path.parent
        meta = folder / job.text("meta") if "meta" in job else None
        measured = from_trace(load(folder / job.text("trace"), meta), by_rules=True)
        model = JobModel(measured)
        return model if step_s is None else JobModel(measured, scale=step_s / model.healthy_s)
    values: dict[str, Any] = {name: job.whole(name) for name in _JOB[:5] if name in job}
    values |= {name: job.plain(name) for name in ("schedule", "overlap") if name in job}
    base_s = {}
    for name in job.section("base_s").nodes:
        try:
            kind = OpKind.from_label(name)
        except KeyError:
            job.section("base_s").fail(name, "is not a kind of operation, such as forward-compute")
        base_s[kind] = job.section("base_s").quantity(name, "seconds")
    try:
        spec = SynthSpec(noise=0.0, **values)
        spec.base_s.update(base_s)
        return JobModel.of_spec(spec, step_s=step_s)
    except (PacelineError, TypeError) as error:
        job.fail("", str(error))


def _overheads(section: Section) -> dict[str, float | None]:
    section.allow(ACTIONS)
    overhead_s: dict[str, float | None] = dict(OVERHEAD_S)
    for name in section.nodes:
        never = section.plain(name) is None
        overhead_s[name] = None if never else section.quantity(name, "seconds")
    return overhead_s


def _fail_slows(section: Section) -> tuple[FailSlow, ...]:
    rows = section.plain("fail_slows")
    if not isinstance(rows, list):
        section.fail("fail_slows", "must be a list of fail-slows")
    fail_slows = []
    for number, row in enumerate(rows, 1):
        try:
            fail_slows.append(_fail_slow(row))
        except (MitigateError, QuantityError) as error:
            section.fail("fail_slows", f"number {number}: {error}")
    return tuple(fail_slows)


def _fail_slow(row: object) -> FailSlow:
    if not isinstance(row, Mapping):
        raise MitigateError(f"must be a mapping of {', '.join(_FAIL_SLOW)}")
    unknown = [name for name in row if name not in _FAIL_SLOW]
    if unknown:
        _unknown(unknown[0])
    missing = [name for name in ("at", "kind", "worker", "factor") if name not in row]
    if missing:
        raise MitigateError(f"lacks {', '.join(missing)}")
    lasts = row.get("for")
    duration_s = math.inf if lasts is None else parse_quantity(lasts, "seconds")
    return FailSlow(parse_quantity(row["at"], "seconds"), duration_s, Fault.from_mapping(row))


def _unknown(name: str) -> NoReturn:
    raise MitigateError(f"unknown field {name!r}; known are {', '.join(_FAIL_SLOW)}")
