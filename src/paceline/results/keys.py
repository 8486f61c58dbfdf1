"""The keys of the document, in order: their forms and meanings (docs/result-json.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ResultError
from paceline.results.answers import EXPECTATION, FINDING, INTERVAL, REMEDY, WATERFALL
from paceline.results.communication import COMMUNICATION
from paceline.results.forms import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Form,
    array,
    list_of,
    object_of,
    optional,
    tuple_of,
)
from paceline.results.path import PATH
from paceline.results.record import Key, record
from paceline.trace import Job
from paceline.whatif import LaunchDelay

#: (dp, pp) -> (host, gpu).
Hosts = Mapping[tuple[int, int], tuple[str, str]]


@dataclass(frozen=True)
class StepTimes:
    """Step number -> seconds."""

    traced: Mapping[int, float]
    simulated: Mapping[int, float]
    ideal: Mapping[int, float]


@dataclass(frozen=True)
class StepModes:
    """Traced step times come in two lengths: the slow steps, and the ratio of the medians."""

    slow_steps: tuple[int, ...]
    ratio: float


@dataclass(frozen=True)
class Clocks:
    """Clock offsets; ``by_worker`` [pp, dp] seconds ahead of the mean."""

    std: float
    corrected: bool
    by_worker: npt.NDArray[np.float64]


@dataclass(frozen=True)
class WarningDetail:
    """Code and numbers of a warning; its text is under ``warnings``."""

    code: str
    numbers: Mapping[str, float]


_HOSTS = object_of(str, tuple_of(TEXT, TEXT))


def _read_hosts(value: Any) -> Hosts:
    hosts = {}
    for place, (host, gpu) in _HOSTS.read(value).items():
        dp, _, pp = place.partition(",")
        if not (dp.isdecimal() and pp.isdecimal()):
            raise ResultError("must be dp,pp", place)
        hosts[int(dp), int(pp)] = (host, gpu)
    return hosts


HOSTS: Form[Hosts] = Form(
    lambda hosts: {f"{dp},{pp}": list(place) for (dp, pp), place in hosts.items()},
    _read_hosts,
    _HOSTS.schema,
)


def _has_peers(job: Any) -> bool:
    return bool(job.peers > 1)


_BY_STEP = object_of(int, NUMBER)
_BY_KIND = object_of(str, NUMBER)
_BY_NUMBER = object_of(int, NUMBER)
_JOB = record(
    Job,
    (
        *(Key(name, WHOLE) for name in ("dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size")),
        Key("world_size", WHOLE),
        Key("name", TEXT),
        Key("peers", WHOLE, "ranks of each (dp, stage) that are apart", written=_has_peers),
    ),
)


def _is_diagnosed(report: Any) -> bool:
    return report.findings is not None


_DIAGNOSIS = (
    Key("slowdown_interval", optional(INTERVAL), "90% bootstrap interval of S over the steps"),
    Key(
        "slowdown_healthy",
        NUMBER,
        "T / T_healthy, the ideal if blamed hardware were healthy; only if findings blame any",
        written=lambda report: report.slowdown_healthy is not None,
    ),
    Key("findings", optional(list_of(FINDING)), "causes, by share"),
    Key("waterfall", optional(WATERFALL), "from the actual step down to pure compute"),
    Key(
        "remedies", list_of(REMEDY), "changes that answer findings, by gain; with a condition last"
    ),
    Key("architecture", list_of(REMEDY), "changes of the job's architecture, by gain"),
    Key("remedies_not_applicable", object_of(str, TEXT), "remedy -> reason", "not_applicable"),
    Key("hints", list_of(TEXT), "options that give Paceline more information"),
    Key(
        "masked",
        list_of(TEXT),
        "ids of findings whose repair alone leaves a step that waits for other causes, if any",
        written=lambda report: bool(report.masked),
    ),
)

#: Keys that a diagnosis adds.
DIAGNOSIS_KEYS = tuple(
    Key(key.name, key.form, key.about, key.field, key.written or _is_diagnosed)
    for key in _DIAGNOSIS
)

#: Warnings: their texts, then their codes and numbers.
WARNING_KEYS = (
    Key("warnings", list_of(TEXT), "cautions about the numbers", "warning_texts"),
    Key(
        "warning_details",
        list_of(record(WarningDetail, (Key("code", TEXT), Key("numbers", object_of(str, NUMBER))))),
        "code and numbers of each warning, in the same order",
    ),
)

#: All keys except ``schema``.
KEYS: tuple[Key, ...] = (
    Key("job", _JOB, "degrees of parallelism"),
    Key("steps", list_of(WHOLE), "step numbers analysed"),
    Key("slowdown", NUMBER, "S"),
    Key("slowdown_paper", NUMBER, "S by the paper's reference for every kind"),
    Key("slow_mode_shares", _BY_KIND, "kinds judged against their own fast steps"),
    Key("waste", NUMBER, "1 - 1/S"),
    Key("discrepancy", NUMBER, "|T - lasted| / traced; lasted is traced less overlap_s"),
    Key("launch_slowdown", NUMBER, "lasted / T"),
    Key(
        "overlap_s",
        NUMBER,
        "mean seconds by which traced steps are longer since the step before still ran; if any",
        written=lambda report: report.overlap_s > 0,
    ),
    Key(
        "step_time_s",
        record(StepTimes, tuple(Key(n, _BY_STEP) for n in ("traced", "simulated", "ideal"))),
        "step -> seconds",
    ),
    Key("by_step", _BY_STEP, "step -> S"),
    Key("by_kind", _BY_KIND, "kind -> S"),
    Key("by_stage", _BY_NUMBER, "stage -> S"),
    Key("by_replica", _BY_NUMBER, "replica -> S: a DP rank, or dp * peers + peer"),
    Key("by_worker", array(2), "[pp][replica] S"),
    Key("by_kind_by_step", object_of(int, _BY_KIND), "step -> kind -> S"),
    Key("by_stage_by_step", object_of(int, _BY_NUMBER), "step -> stage -> S"),
    Key("by_replica_by_step", object_of(int, _BY_NUMBER), "step -> DP rank -> S"),
    Key("slowest_workers", list_of(tuple_of(WHOLE, WHOLE, NUMBER)), "[dp, pp, S], worst first"),
    *(
        Key(name, optional(NUMBER), "share of T - T_ideal")
        for name in ("m_w", "m_w_paper", "m_s", "m_w_only", "m_s_only")
    ),
    Key("replay_error", optional(NUMBER), "the discrepancy with launch delays replayed"),
    Key(
        "launch_delay",
        optional(record(LaunchDelay, (Key("by_kind", _BY_KIND), Key("step_start", NUMBER)))),
        "T with only these delays / T",
    ),
    Key("critical_path", optional(PATH), "parts of the step, as shares of the mean step"),
    Key("clamped", object_of(str, object_of(str, WHOLE)), "values under -10 ms that became 0"),
    Key(
        "clock_offsets_s",
        optional(
            record(Clocks, (Key("std", NUMBER), Key("corrected", FLAG), Key("by_worker", array(2))))
        ),
        "seconds ahead of the mean",
    ),
    Key(
        "step_modes",
        optional(record(StepModes, (Key("slow_steps", list_of(WHOLE)), Key("ratio", NUMBER)))),
        "if traced step times come in two lengths",
    ),
    Key("not_judged", list_of(TEXT), "kinds for which lasting slowness cannot be seen"),
    Key("left_out_steps", object_of(int, TEXT), "step -> reason"),
    *WARNING_KEYS,
    Key("microbatches", list_of(WHOLE), "of each DP rank"),
    *(
        Key(name, form, about, written=lambda report: report.slowdown_lasting is not None)
        for name, form, about in (
            ("slowdown_lasting", NUMBER, "S of the typical step, if passes come in parts"),
            ("by_worker_lasting", array(2), "[pp][dp] the same of each worker"),
        )
    ),
    Key(
        "by_worker_by_step",
        object_of(int, array(2)),
        "step -> [pp][dp] S; only with --per-step-workers",
        written=lambda report: report.by_worker_by_step is not None,
    ),
    Key(
        "expected",
        EXPECTATION,
        "the model of the job beside it; only with --expect",
        written=lambda report: report.expected is not None,
    ),
    *DIAGNOSIS_KEYS,
    Key(
        "communication",
        COMMUNICATION,
        "exposed and hidden seconds of collectives, if programs are recorded",
        written=lambda report: report.communication is not None,
    ),
    Key(
        "hosts",
        HOSTS,
        "dp,pp -> [host, gpu], if known",
        written=lambda report: bool(report.hosts),
    ),
)
