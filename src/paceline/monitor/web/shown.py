"""A session's ``result.json`` as the report's own pages take it.

The report draws from a :class:`~paceline.whatif.WhatIf`; the monitor has only its JSON. What of it
the report's figures and tables ask for is put together here, so that both draw with the same code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Diagnosis, Finding, Waterfall
from paceline.diagnose.waterfall import Drop
from paceline.remedies import Remedy
from paceline.report.headline import details, is_healthy
from paceline.report.page.fall import key_numbers, parts_html, waterfall_html
from paceline.report.page.figures import Hosts, figure_data
from paceline.report.page.findings import details_html, findings_html, remedies_html
from paceline.trace import Job
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """The part of a :class:`WhatIf` that figures and tables show; the same names and shapes."""

    job: Job
    steps: npt.NDArray[np.int64]
    slowdown: float
    slowdown_paper: float
    waste: float
    discrepancy: float
    launch_slowdown: float
    slow_mode_shares: Mapping[str, float]
    traced_s: Array
    simulated_s: Array
    ideal_s: Array
    by_step: Mapping[int, float]
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_worker: Array
    by_worker_by_step: Array

    REFERENCE_FAILS_BELOW = WhatIf.REFERENCE_FAILS_BELOW
    HEALTHY_BELOW = WhatIf.HEALTHY_BELOW
    DOUBTFUL_ABOVE = WhatIf.DOUBTFUL_ABOVE

    #: What follows from these numbers follows as in :class:`WhatIf`.
    step_modes, straggling = WhatIf.step_modes, WhatIf.straggling
    healthy, doubtful = WhatIf.healthy, WhatIf.doubtful


def shown(result: Mapping[str, Any]) -> WhatIf:
    """What there is to show of a ``result.json``."""
    job = result["job"]
    times = result["step_time_s"]
    part = Shown(
        job=Job(**{name: job[name] for name in job}),
        steps=np.array(result["steps"], dtype=np.int64),
        slowdown=_number(result["slowdown"]),
        slowdown_paper=_number(result.get("slowdown_paper", result["slowdown"])),
        waste=_number(result["waste"]),
        discrepancy=_number(result["discrepancy"]),
        launch_slowdown=_number(result.get("launch_slowdown", 1.0)),
        slow_mode_shares=result.get("slow_mode_shares", {}),
        traced_s=_array(list(times["traced"].values())),
        simulated_s=_array(list(times["simulated"].values())),
        ideal_s=_array(list(times["ideal"].values())),
        by_step={int(step): _number(s) for step, s in result["by_step"].items()},
        by_kind={kind: _number(s) for kind, s in result["by_kind"].items()},
        by_stage={int(stage): _number(s) for stage, s in result["by_stage"].items()},
        by_worker=_array(result["by_worker"]),
        by_worker_by_step=_workers_by_step(result),
    )
    return cast(WhatIf, part)


def is_exact_by_step(result: Mapping[str, Any]) -> bool:
    """Whether the slowdown of every worker in every step is in the result."""
    return "by_worker_by_step" in result


def _workers_by_step(result: Mapping[str, Any]) -> Array:
    """[step, pp, dp]; where only stages and replicas are known, the smaller of the two.

    That is the what-if paper's own approximation (section 5.1).
    """
    if is_exact_by_step(result):
        return _array(list(result["by_worker_by_step"].values()))
    stages = _array([list(row.values()) for row in result["by_stage_by_step"].values()])
    replicas = _array([list(row.values()) for row in result["by_replica_by_step"].values()])
    return np.minimum(stages[:, :, None], replicas[:, None, :])


def _array(values: list[Any]) -> Array:
    return np.array(values, dtype=np.float64)  # None becomes nan


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def diagnosis_of(result: Mapping[str, Any]) -> Diagnosis:
    """Findings and the interval of S; none where the analysis went without a diagnosis."""
    findings = (
        Finding(**{**EMPTY, **_fields(Finding, finding), "interval": tuple(finding["interval"])})
        for finding in result.get("findings", ())
    )
    low, high = result.get("slowdown_interval") or (float("nan"), float("nan"))
    return Diagnosis(tuple(findings), (low, high))


#: What findings and remedies of some versions do not have.
EMPTY: Mapping[str, Any] = {"where": {}, "evidence": {}}


def _fields(record: type[Finding | Remedy], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without keys that another version wrote."""
    names = {field.name for field in fields(record)}
    return {name: value for name, value in entry.items() if name in names}


def remedies_of(result: Mapping[str, Any]) -> list[Remedy]:
    """The remedies, then changes of the architecture, which older results do not have apart."""
    tuples = ("findings", "interval", "notes")
    return [
        Remedy(
            **{
                "change": {},
                **_fields(Remedy, remedy),
                **{name: tuple(remedy.get(name, ())) for name in tuples},
            }
        )
        for remedy in (*result.get("remedies", ()), *result.get("architecture", ()))
    ]


def hosts_of(result: Mapping[str, Any]) -> Hosts | None:
    """(dp, pp) -> (host, gpu), which the analysis wrote as "dp,pp": [host, gpu]."""
    hosts: dict[tuple[int, int], str | tuple[str, str]] = {}
    for place, (host, gpu) in result.get("hosts", {}).items():
        dp, pp = place.split(",")
        hosts[int(dp), int(pp)] = host, gpu
    return hosts or None


@dataclass(frozen=True)
class Sections:
    """A session's parts of the job page, as HTML and as the figures' numbers.

    Attributes:
        details, numbers, waterfall, kinds, stages, findings, remedies: HTML.
        workers, workers_by_step: numbers of the heatmaps.
        few: there is room for the heatmaps beside each other.
        exact: the per-step heatmap is exact, not estimated.
        healthy: there is nothing to report but small findings.
        warnings: what to know before trusting the numbers.
    """

    details: str
    numbers: str
    waterfall: str
    kinds: str
    stages: str
    findings: str
    remedies: str
    workers: dict[str, Any]
    workers_by_step: dict[str, Any]
    few: bool
    exact: bool
    healthy: bool
    warnings: tuple[str, ...]


#: Up to so many replicas the two heatmaps have room beside each other, as in the report.
_FEW = 10


def sections(result: Mapping[str, Any]) -> Sections:
    """What the job page shows of a session."""
    part, diagnosis, remedies = shown(result), diagnosis_of(result), remedies_of(result)
    hosts = hosts_of(result)
    stages = {f"stage {stage}": s for stage, s in part.by_stage.items()}
    kinds = dict(sorted(part.by_kind.items(), key=lambda item: -item[1]))
    not_applicable = result.get("remedies_not_applicable", {})
    fall = _waterfall(result)
    data = figure_data(part, hosts)
    both = ("n_pp", "n_dp", "hosts")
    by_step = ("steps", "by_step", "traced_s", "workers_by_step")
    return Sections(
        details=details_html(details(part, diagnosis, remedies)),
        numbers=fitted(key_numbers(part, diagnosis, None)),
        waterfall=fitted(waterfall_html(part, fall, None)) if fall else "",
        kinds=fitted(parts_html(kinds, "kind")),
        stages=fitted(parts_html(stages, "stage")),
        findings=fitted(findings_html(diagnosis, remedies, hosts)),
        remedies=fitted(remedies_html(remedies, diagnosis.findings, not_applicable)),
        workers={name: data[name] for name in (*both, "workers")},
        workers_by_step={name: data[name] for name in (*both, *by_step)},
        few=part.by_worker.shape[1] <= _FEW,
        exact=is_exact_by_step(result),
        healthy=is_healthy(part, diagnosis),
        warnings=tuple(result.get("warnings", ())),
    )


def _waterfall(result: Mapping[str, Any]) -> Waterfall | None:
    fall = result.get("waterfall")
    if fall is None:
        return None
    drops = tuple(Drop(d["name"], d["text"], _number(d["seconds"])) for d in fall["drops"])
    return Waterfall(fall["actual_s"], drops, fall["compute_s"])


# The report places its bars by style attributes, which the monitor's Content-Security-Policy
# refuses; attributes of an SVG say the same. Only the report's own markup has this form: a name
# from outside is escaped and so has no quotation mark.
_BAR = re.compile(r'<(?:b|i) class="(\w*)" style="left:([\d.]+)%(?:;width:([\d.]+)%)?"></(?:b|i)>')
#: Heads of columns without text, such as the bars': no heading to a screen reader.
_EMPTY_HEAD = re.compile(r"<th scope=\"col\"( class=\"num\")?></th>")


def fitted(html: str) -> str:
    """The report's HTML without style attributes and empty headings."""
    return _EMPTY_HEAD.sub("<td></td>", _BAR.sub(_rect, html))


def _rect(match: re.Match[str]) -> str:
    name, left, width = match[1], match[2], match[3]
    size = f"{width}%" if width else "1"
    return (
        f'<svg class="part {name}"><rect class="{name}" x="{left}%" width="{size}" height="100%"/>'
        "</svg>"
    )
