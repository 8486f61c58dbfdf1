"""The diagnosis: detect causes, simulate the cost of each, estimate the confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.confidence import Trust
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.garbage import explained_by, garbage_cause
from paceline.diagnose.groups import group_causes
from paceline.diagnose.healthy_ideal import (
    HealthyIdeal,
    healthy_ideal,
    part_that_passes,
    passing_s,
)
from paceline.diagnose.hosts import NO_HOSTS, name_hosts
from paceline.diagnose.links import link_cause
from paceline.diagnose.microbatches import sequence_cause
from paceline.diagnose.more_steps import MIN_UNEXPLAINED, more_steps
from paceline.diagnose.nics import nic_cause
from paceline.diagnose.optimizers import with_optimizers
from paceline.diagnose.outside import outside_causes
from paceline.diagnose.peer_groups import peer_causes
from paceline.diagnose.regimes import with_slower_part
from paceline.diagnose.remove import Effect
from paceline.diagnose.sequences import fit_sequence_cost, matching
from paceline.diagnose.shares import Savings
from paceline.diagnose.stages import stage_cause
from paceline.diagnose.workers import worker_cause
from paceline.graph import Durations, Measured
from paceline.trace.seqlens import SeqLens
from paceline.whatif import Part, Scenario, WhatIf, ideal_durations, simulate_scenarios

Array = npt.NDArray[np.float64]

#: A cause is reported if it costs at least these shares of the step and of T - T_ideal. Less is
#: noise.
MIN_OF_STEP, MIN_SHARE = 0.005, 0.05

#: Causes are detected from this slowdown on, in healthy jobs, too: a repeated pattern is worth
#: naming.
MIN_SLOWDOWN = 1.005

#: A resample whose gap is below this share of the usual gap is left out: its shares are unstable.
MIN_GAP = 0.1

RESAMPLES = 500
INTERVAL = (5, 95)


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a job, with the interval of its slowdown.

    Attributes:
        findings: causes inside S by share, largest first (``unexplained`` among them), then those
            outside S by share of the step.
        slowdown_interval: 90% bootstrap interval of S.
        healthy: the ideal with healthy hardware; None if no finding blames any.
    """

    findings: tuple[Finding, ...]
    slowdown_interval: tuple[float, float]
    healthy: HealthyIdeal | None = None


def diagnose(
    measured: Measured,
    result: WhatIf,
    hosts: Mapping[tuple[int, int], tuple[str, str]] = NO_HOSTS,
    seqlens: SeqLens | None = None,
) -> Diagnosis:
    """Find the causes of a job's slowness and the cost of each.

    Args:
        measured: the graph and durations of the trace.
        result: its what-if analysis.
        hosts: (dp, pp) -> (host, gpu), to name machines where they are known.
        seqlens: sequence lengths, to fit the cost of microbatches where they are known.

    Raises:
        TraceError: the sequence lengths do not match the trace.
    """
    resamples = _resamples(len(result.steps))
    totals = resamples @ result.simulated_s / (resamples @ result.ideal_s)
    low, high = (float(x) for x in np.percentile(totals, INTERVAL))
    inside: list[Finding] = []
    healthy = None
    if result.slowdown >= MIN_SLOWDOWN:
        inside, healthy = _inside(measured, result, resamples)
    outside = outside_causes(measured, result, resamples, inside)
    unnamed = _with_lengths(measured, seqlens, [*inside, *outside])
    findings = tuple(name_hosts(finding, hosts) for finding in _parts_behind(unnamed))
    return Diagnosis(findings, (low, high), healthy)


def _parts_behind(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each part behind the finding that it belongs to."""
    ids = {finding.id for finding in findings}
    ordered: list[Finding] = []
    waiting = [finding for finding in reversed(findings) if finding.part_of not in ids]
    while waiting:
        finding = waiting.pop()
        ordered.append(finding)
        waiting += [part for part in reversed(findings) if part.part_of == finding.id]
    return ordered


def _with_lengths(
    measured: Measured, seqlens: SeqLens | None, findings: list[Finding]
) -> list[Finding]:
    """The findings; their evidence gains the fit of microbatch costs to sequence lengths."""
    if seqlens is None:
        return findings
    fit = fit_computes(measured.durations)
    cost = fit_sequence_cost(measured.durations, fit, matching(seqlens, measured))
    return [
        replace(f, evidence={**f.evidence, "lengths": dict(cost.evidence())})
        if f.cause == "sequence-length"
        else f
        for f in findings
    ]


def _resamples(n_steps: int) -> Array:
    """[resample, step] weights of a bootstrap over steps; rows sum to 1."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(n_steps, np.full(n_steps, 1 / n_steps), size=RESAMPLES)
    return counts / n_steps


def _inside(
    measured: Measured, result: WhatIf, resamples: Array
) -> tuple[list[Finding], HealthyIdeal | None]:
    """The findings inside S, and the ideal with healthy hardware."""
    durations = measured.durations
    fit = fit_computes(durations)
    ideal = ideal_durations(durations)
    patterns = (
        stage_cause(durations, fit),
        sequence_cause(durations, fit),
        garbage_cause(durations, fit),
        *group_causes(durations, ideal, result.steps),
    )
    candidates = [pattern for pattern in patterns if pattern is not None]
    candidates += with_slower_part(
        _of_hardware(durations, ideal, result.steps),
        durations,
        result.simulated_s,
        result.steps,
        lambda part, steps: _of_hardware(part, ideal_durations(part), steps),
    )
    slow = [candidate for candidate in candidates if candidate.id == "worker"]
    candidates = [
        candidate
        for candidate in candidates
        if candidate.cause != "gc"
        or not any(explained_by(candidate, worker, result.steps, durations, fit) for worker in slow)
    ]
    candidates = [_with_metrics(candidate, durations, ideal, result) for candidate in candidates]
    savings = Savings(durations, fit, [candidate.effect for candidate in candidates])
    t = float(result.simulated_s.mean())
    worthy = _worth_it(savings, len(candidates), t)
    least_s = MIN_SHARE * float((result.simulated_s - result.ideal_s).mean())
    while True:
        cost, error = savings.shapley(worthy)
        # Small causes would take shares from the others; a single one has no others.
        of_step = MIN_OF_STEP * t if len(worthy) > 1 else 0.0
        small = cost.mean(axis=1) < max(of_step, least_s)
        if not small.any():
            break
        worthy = [cause for cause, drop in zip(worthy, small, strict=True) if not drop]
    healthy = healthy_ideal(durations, fit, [candidates[cause] for cause in worthy], result)
    gap = result.simulated_s - (result.ideal_s if healthy is None else healthy.step_s)  # [step]
    judge = _Judge(result, gap, least_s, resamples, Trust.of(measured, result))
    findings = [
        judge.finding(candidates[cause], seconds, float(sigma))
        for cause, seconds, sigma in zip(worthy, cost, error, strict=True)
    ]
    if findings or result.straggling:
        rest = gap - cost.sum(axis=0)
        passing = passing_s(result, healthy)
        if passing is not None:  # a row of the waterfall
            rest -= part_that_passes(passing, float(rest.mean()))
        unexplained = UNEXPLAINED
        if result.straggling and rest.mean() >= MIN_UNEXPLAINED * gap.mean():
            unexplained = replace(
                unexplained, evidence=more_steps(durations, fit, result.by_worker)
            )
        findings.append(judge.finding(unexplained, rest, 0.0))
    return sorted(findings, key=lambda f: -(f.share or 0.0)), healthy


def _of_hardware(
    durations: Durations, ideal: Array, steps: npt.NDArray[np.int64]
) -> list[Candidate]:
    """Slow workers, links and peers."""
    worker = worker_cause(durations, fit_computes(durations), steps)
    patterns = (
        *with_optimizers(worker, durations),
        _of_links(durations, ideal),
        *peer_causes(durations, ideal, steps),
    )
    return [pattern for pattern in patterns if pattern is not None]


def _of_links(durations: Durations, ideal: Array) -> Candidate | None:
    """Slow links, or the slow NIC where all of them are its links.

    A slow NIC slows only one direction of a link, half of its messages. The link's median is then a
    slow or a usual message by chance.
    """
    links, nic = link_cause(durations, ideal), nic_cause(durations, ideal)
    if links is None or nic is None:
        return links or nic
    of_nic = nic.evidence["links"]
    is_nic = links.evidence["n_links"] <= len(of_nic)
    return nic if is_nic and all(link in of_nic for link in links.evidence["links"]) else links


UNEXPLAINED = Candidate(
    "unexplained",
    "no known pattern: variation between operations, or causes that this trace cannot show",
    NOWHERE,
    NOWHERE,
    Effect(),
)


@dataclass(frozen=True)
class _Judge:
    """Makes findings of candidates and their costs."""

    result: WhatIf
    gap: Array  # [step] the loss
    least_s: float  # MIN_SHARE of T - T_ideal
    resamples: Array
    trust: Trust

    def finding(self, candidate: Candidate, cost: Array, sampling_error: float) -> Finding:
        """The finding for a cause that costs ``cost`` [step] seconds."""
        gap = float(self.gap.mean())
        costs, gaps = self.resamples @ cost, self.resamples @ self.gap
        of_step = costs / (self.resamples @ self.result.lasted_s)
        # Cost and gap come from the same resample: steps without the cause have a smaller gap.
        shares = costs[gaps > MIN_GAP * gap] / gaps[gaps > MIN_GAP * gap]
        low, high = (float(x) for x in np.percentile(shares, INTERVAL))
        persists = (costs >= self.least_s) & (of_step >= MIN_OF_STEP)
        evidence = dict(candidate.evidence)
        if sampling_error:
            evidence["share_sampling_error"] = sampling_error / gap
        return Finding(
            id=candidate.id,
            cause=candidate.cause,
            text=candidate.text,
            share=float(cost.mean()) / gap,
            share_of_step=float(cost.mean() / self.result.lasted_s.mean()),
            interval=(low, high),
            confidence=self.trust.confidence(candidate, float(persists.mean())),
            where=candidate.where,
            evidence=evidence,
            ambiguous=candidate.ambiguous,
            alternative=candidate.alternative,
            cost_s=cost,
        )


def _with_metrics(
    candidate: Candidate, durations: Durations, ideal: Array, result: WhatIf
) -> Candidate:
    """The candidate with the what-if paper's measures: S_w and M_W of workers, M of a stage."""
    metrics: dict[str, float | None] = {}
    if candidate.cause == "worker":
        dp, pp = candidate.where["workers"][0]
        metrics = {"worst_slowdown": float(result.by_worker[pp, dp]), "m_w": result.m_w}
    elif candidate.cause == "stage-imbalance":
        stage = candidate.where["stage"]
        scenario = Scenario.without(Part.of_stage(stage))
        times = simulate_scenarios(durations, ideal, [scenario])[0]
        gap = float((result.simulated_s - result.ideal_s).mean())
        m_stage = float((result.simulated_s - times).mean()) / gap
        metrics = {"stage_slowdown": result.by_stage[stage], "m_stage": m_stage}
    return replace(candidate, evidence={**candidate.evidence, **metrics})


def _worth_it(savings: Savings, n: int, t: float) -> list[int]:
    """Indices of candidates whose removal saves time, as the first or as the last one removed."""
    everything = frozenset(range(n))
    worthy = []
    for cause in range(n):
        saved_first = savings.step_s(frozenset()) - savings.step_s(frozenset({cause}))
        saved_last = savings.step_s(everything - {cause}) - savings.step_s(everything)
        if max(saved_first.mean(), saved_last.mean()) >= MIN_OF_STEP * t:
            worthy.append(cause)
    return worthy
