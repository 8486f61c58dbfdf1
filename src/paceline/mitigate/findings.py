"""Fail-slows of a diagnosed trace: slow machines and links with their factors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Finding
from paceline.jumps import MIN_STEPS
from paceline.mitigate.fault import COMPUTE, LINK, Fault, Worker
from paceline.remedies.outcome import finding_of
from paceline.remedies.remedy import Case
from paceline.remedies.replace import links_of
from paceline.trace.job import place_of
from paceline.trace.kinds import P2P_KINDS

#: Least factor over peers of a fail-slow (falcon paper, 4.3: 1.1 times the median).
MIN_FACTOR = 1.1


def faults_of(case: Case) -> tuple[Fault, ...]:
    """The slow workers and links that the diagnosis found, and their factors.

    A fail-slow that has ended within the trace is none.
    """
    if case.measured.graph.n_dp == 1:
        return ()  # the usual level is unknown
    suspects = list[tuple[str, Worker, float, Worker | None]]()
    peers = case.measured.job.peers
    for finding in _going_on(case):
        if finding.cause == "worker":
            # A worker whose optimizer alone is slow has no factor of its computes.
            factors = finding.evidence.get("factors") or []
            suspects += [
                (COMPUTE, place_of(dp, stage, peers), factor, None)
                for (dp, stage), factor in zip(finding.where["workers"], factors, strict=False)
            ]
            continue
        for dp, low, high in links_of(finding):
            ends = [place_of(dp, stage, peers) for stage in (low, high)]
            suspects.append((LINK, ends[0], _link_factor(case, dp, low, high), ends[1]))
    return tuple(
        Fault(kind, worker, factor, other_end)
        for kind, worker, factor, other_end in suspects
        if factor >= MIN_FACTOR
    )


@dataclass(frozen=True)
class TracedSteps:
    """Steps of a trace with fail-slows, and without them.

    Attributes:
        slow_s: median seconds of a step in which all of them act, from step to step.
        healthy_s: median seconds of a step in which none acts; None: they act in all steps.
    """

    slow_s: float
    healthy_s: float | None

    def to_mapping(self) -> dict[str, float | None]:
        """The times in the form of JSON."""
        return {"slow_s": self.slow_s, "healthy_s": self.healthy_s}


def traced_steps(case: Case) -> TracedSteps:
    """The times of the steps in which the case's fail-slows act, and of the others."""
    acting = [_acts(finding, case) for finding in _going_on(case)]
    every, none = np.logical_and.reduce(acting), ~np.logical_or.reduce(acting)
    times_s = case.result.lasted_s
    healthy_s = float(np.median(times_s[none])) if none.sum() >= MIN_STEPS else None
    return TracedSteps(float(np.median(times_s[every])), healthy_s)


def slow_steps(case: Case) -> list[int] | None:
    """The steps in which all of these fail-slows act, by number; None = all steps."""
    acting = [_acts(finding, case) for finding in _going_on(case)]
    every = np.logical_and.reduce(acting) if acting else np.ones(len(case.result.steps), bool)
    return None if every.all() else case.result.steps[every].tolist()


def _going_on(case: Case) -> list[Finding]:
    """Slow workers and links that act at the trace's end, and in most steps since they began."""
    found = [finding_of(case, cause) for cause in ("worker", "link")]
    going_on = []
    for finding in (finding for finding in found if finding is not None):
        acts = _acts(finding, case)
        since = acts[int(np.argmax(acts)) :]
        if acts[-1] and since.mean() > 0.5:
            going_on.append(finding)
    return going_on


def _acts(finding: Finding, case: Case) -> npt.NDArray[np.bool_]:
    """[step] whether the fail-slow acts."""
    steps = finding.evidence.get("steps", "all")
    if not isinstance(steps, list):
        return np.ones(len(case.result.steps), dtype=bool)
    return np.isin(case.result.steps, steps)


def _link_factor(case: Case, dp: int, low: int, high: int) -> float:
    """Median of a link's transfer times over the median of other replicas' links."""
    durations = case.measured.durations
    graph = durations.graph
    own_s, usual_s = list[npt.NDArray[np.float64]](), list[npt.NDArray[np.float64]]()
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v)
        p2p = np.isin(graph.kind[span][pairs[:, 0]], [int(kind) for kind in P2P_KINDS])
        between = (np.sort(graph.pp[span][pairs], axis=1) == (low, high)).all(axis=1)
        block = durations.block(v)[pairs[p2p & between].ravel()]
        own_s.append(block[..., dps == dp].ravel())
        usual_s.append(block[..., dps != dp].ravel())
    usual = float(np.median(np.concatenate(usual_s)))
    return float(np.median(np.concatenate(own_s))) / usual if usual > 0 else 1.0
