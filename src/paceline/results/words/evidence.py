"""Phrases for the evidence of a finding: one per number, with unit and threshold.

A phrase is omitted if its number is missing, as in results of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from paceline.diagnose import Finding
from paceline.results.words.names import link, with_kind_names, worker
from paceline.units import count, percent, seconds, several, times

#: Most named entries of a list.
MAX_NAMED = 4

#: Up to this number of stages, all loads are named.
MAX_STAGES = 8

#: Least growth of pauses over the trace that is named.
MIN_GROWTH = 0.01

#: Least lengthening of steps by a kind's delays that is named.
MIN_DELAY = 0.0005

#: Tokens of an example sequence for the fitted cost.
SEQUENCE = 4096

Evidence = Mapping[str, Any]
Phrases = Iterator[str]


#: Work of a host that no operation of a trace shows.
HOST_WORK = (
    "the trace does not show this work: data loading, garbage collection, logging or another "
    "process of its host"
)


def evidence_phrases(finding: Finding, all_reduces: bool = False) -> list[str]:
    """Evidence of the finding, the most important first; empty for unknown causes.

    Args:
        finding: of a job.
        all_reduces: whether the job reduces its gradients to all ranks; for names of kinds.
    """
    of_cause = OF_CAUSE.get(finding.cause)
    named = replace(finding, evidence=with_kind_names(finding.evidence, all_reduces))
    phrases = [] if of_cause is None else list(of_cause(named))
    error = _number(finding.evidence, "share_sampling_error")
    if error is not None:
        phrases.append(f"the share comes from sampled orders: its error is about {percent(error)}")
    return phrases


def _number(evidence: Evidence, key: str) -> float | None:
    value = evidence.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value is not None else None


def _from(evidence: Evidence, key: str = "threshold") -> str:
    least = _number(evidence, key)
    return "" if least is None else f" (counts from {times(least)})"


def steps_text(steps: Sequence[int]) -> str:
    """``in step 7``, ``in 12 steps: 1, 2, 3, 4 and 8 more``."""
    if len(steps) == 1:
        return f"in step {steps[0]}"
    return f"in {count(len(steps), 'step')}: {several([str(step) for step in steps], MAX_NAMED)}"


PATTERNS = {
    "one dp rank": "all are of one data-parallel rank",
    "all of one dp rank": "they are all workers of one data-parallel rank",
    "one stage": "all are of one stage",
    "all of one node": "they are all workers of one host",
    "one node": "all are on one host",
    "several workers": "they share neither data-parallel rank nor stage",
}


def _worker(finding: Finding) -> Phrases:
    evidence, places = finding.evidence, finding.where.get("workers") or []
    factors = evidence.get("factors") or []
    factor_texts = [
        f"{times(factor)} {worker(place)}" for place, factor in zip(places, factors, strict=False)
    ]
    first_factors = evidence.get("first_factors") or []
    if len(factor_texts) == 1 == len(first_factors):
        first, last = times(first_factors[0]), times(factors[0])
        yield f"it takes {first} as long as its peers at first, and {last} at last"
    elif len(factor_texts) == 1:
        yield f"it takes {times(factors[0])} as long as its peers{_from(evidence)}"
    elif factor_texts:
        yield f"over their peers: {several(factor_texts, MAX_NAMED, '; ')}{_from(evidence)}"
    if slow := evidence.get("optimizer_factors"):
        took, peers_s = evidence["optimizer_s"][0], evidence["optimizer_peers_s"][0]
        whose = "the optimizer of the worst" if len(slow) > 1 else "its optimizer"
        yield (
            f"{whose} takes {seconds(took)} a step, that of its peers {seconds(peers_s)}"
            f"{_from(evidence, 'optimizer_threshold')}"
        )
    if len(places) > 1 and evidence.get("pattern") in PATTERNS:
        yield PATTERNS[evidence["pattern"]]
    steps = evidence.get("steps")
    if steps == "all":
        yield "in all steps"
    elif steps and not first_factors:
        yield steps_text(steps)
    if (since := evidence.get("healthy_since")) is not None:
        yield f"healthy again since step {since:,}"
    worst_slowdown = _number(evidence, "worst_slowdown")
    if worst_slowdown is not None:
        subject = "this worker" if len(places) < 2 else "the worst of them"
        yield f"with only {subject} as measured, a step takes {times(worst_slowdown)} the ideal"
    share = _number(evidence, "m_w")
    if share is not None:
        vanishes = f"{percent(share, 0)} of T - T_ideal vanishes"
        if 0 <= share <= 1:  # T_ideal is a mean, which slow workers make longer: it may be above 1
            yield f"with the slowest 3% of the workers ideal, {vanishes}"


def _stage(finding: Finding) -> Phrases:
    evidence, stage = finding.evidence, finding.where.get("stage")
    loads = evidence.get("loads_s") or []
    name = f"stage {stage}"
    if stage is not None and stage < len(loads):
        other_loads = [load for place, load in enumerate(loads) if place != stage]
        middle = median(other_loads) if other_loads else 0.0
        if middle > 0:
            reference = (
                "the other stage" if len(other_loads) == 1 else "the median of the other stages"
            )
            yield f"{name} takes {times(loads[stage] / middle)} {reference}"
    over = _number(evidence, "load_over_mean")
    if over is not None:
        yield f"it takes {times(over)} the mean of all stages{_from(evidence)}"
    forward, backward = _number(evidence, "forward_ratio"), _number(evidence, "backward_ratio")
    if forward is not None and backward is not None:
        yield (
            f"its forwards take {times(forward)}, its backwards {times(backward)} the mean of the "
            "other stages"
        )
    if 0 < len(loads) <= MAX_STAGES:
        listed = ", ".join(seconds(load) for load in loads)
        yield f"computes of a microbatch take {listed} on stages 0 to {len(loads) - 1}"
    elif loads:
        yield (
            f"computes of a microbatch take {seconds(max(loads))} there, "
            f"{seconds(median(loads))} on the median stage"
        )
    stage_slowdown = _number(evidence, "stage_slowdown")
    if stage_slowdown is not None:
        yield f"with only {name} as measured, a step takes {times(stage_slowdown)} the ideal"
    share = _number(evidence, "m_stage")
    if share is not None:
        yield f"with {name} ideal, {percent(share, 0)} of T - T_ideal vanishes"


def _sequence(finding: Finding) -> Phrases:
    evidence = finding.evidence
    varied = _number(evidence, "coefficient_of_variation")
    if varied is not None:
        yield f"the cost of microbatches varies by {percent(varied)} (standard deviation over mean)"
    correlation = _number(evidence, "correlation")
    if correlation is not None:
        threshold = _number(evidence, "threshold")
        bar = "" if threshold is None else f" (counts from {threshold:.2f})"
        yield f"forward and backward times of microbatches correlate at {correlation:.2f}{bar}"
    showing = _number(evidence, "replicas_showing_it")
    if showing is not None:
        yield f"{percent(showing, 0)} of the replicas show it"
    if rows := evidence.get("microbatches"):
        long = [f"microbatch {row['microbatch']} {times(row['times'])}" for row in rows]
        yield f"cost by number, over the usual microbatch's: {several(long, MAX_NAMED)}"
    neighbours = _number(evidence, "correlation_of_neighbours")
    if neighbours is not None:
        yield (
            "operations that follow each other, of different microbatches, correlate at "
            f"{round(neighbours, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"
        )
    yield from _lengths(evidence.get("lengths") or {})


def _lengths(fit: Evidence) -> Phrases:
    r2 = fit.get("r2")
    if not r2:
        return
    sequences = _number(fit, "sequences")
    of = "" if sequences is None else f" of {count(int(sequences), 'sequence')}"
    yield (
        f"the lengths{of} explain {percent(r2['forward'])} of the variation of forward times, "
        f"{percent(r2['backward'])} of backward times"
    )
    squared, single = fit.get("seconds_per_token_squared"), fit.get("seconds_per_token")
    if squared and single:
        costs = [
            seconds(squared[direction] * SEQUENCE**2 + single[direction] * SEQUENCE)
            for direction in ("forward", "backward")
        ]
        yield (
            f"by the fit a sequence of {SEQUENCE:,} tokens takes {costs[0]} forward and "
            f"{costs[1]} backward, on all stages together"
        )


def _gc(finding: Finding) -> Phrases:
    evidence = finding.evidence
    pauses, backward = _number(evidence, "pauses"), _number(evidence, "backward_pauses")
    if pauses is not None:
        beside = "" if backward is None else f", {count(int(backward), 'backward')}"
        yield f"{count(int(pauses), 'forward')}{beside} paused"
    middle, total = _number(evidence, "median_s"), _number(evidence, "total_s")
    if middle is not None:
        workers = _number(evidence, "workers")
        where = "" if workers is None else f" on {count(int(workers), 'worker')}"
        sums = "" if total is None else f", all together {seconds(total)}{where}"
        yield f"the median pause takes {seconds(middle)}{sums}"
    repeated = _number(evidence, "on_one_microbatch")
    if repeated:
        yield f"the microbatch with most pauses has {percent(repeated)} of the pauses"
    growth = _number(evidence, "growth_over_trace")
    if growth is not None and abs(growth) >= MIN_GROWTH:
        direction = "longer" if growth > 0 else "shorter"
        yield f"pauses become {percent(abs(growth))} {direction} from the first step to the last"


def _link(finding: Finding) -> Phrases:
    evidence = finding.evidence
    over = _number(evidence, "median_over_usual")
    if over is not None:
        yield f"its median transfer takes {times(over)} the usual one{_from(evidence)}"
    late = _number(evidence, "late_share")
    if late is not None:
        yield f"{percent(late)} of its transfers take more than twice the usual time"
    links = evidence.get("links") or []
    if len(links) > 1:
        total = int(_number(evidence, "n_links") or len(links))
        names = several([link(ends) for ends in links[:MAX_NAMED]], MAX_NAMED, "; ")
        others = f" and {total - MAX_NAMED:,} more" if total > MAX_NAMED else ""
        yield f"{total:,} links are slow or flap: {names}{others}"


def _network(finding: Finding) -> Phrases:
    evidence = finding.evidence
    late = _number(evidence, "late_s")
    if late is not None:
        yield from _late_members(evidence, late)
        return
    groups = evidence.get("groups") or []
    group_texts = [
        f"{group['kind']} of stage {group['stage']} takes {times(group['median_over_usual'])} the "
        f"usual time in {percent(group['slow_share'], 0)} of the steps"
        for group in groups
    ]
    if group_texts:
        yield several(group_texts, MAX_NAMED, "; ") + _from(evidence)
    total = _number(evidence, "n_groups")
    if total is not None and groups:
        yield f"{len(groups):,} of {count(int(total), 'group')} are slow"
    if steps := evidence.get("steps"):
        yield steps_text(steps)


def _uneven(finding: Finding) -> Phrases:
    evidence = finding.evidence
    busiest, elsewhere = _number(evidence, "busiest_over_mean"), _number(evidence, "elsewhere")
    bar, computes = _number(evidence, "threshold"), _number(evidence, "computes")
    if busiest is not None and computes is not None:
        counts = "" if bar is None else f" (counts from {times(bar)})"
        yield (
            f"in {count(int(computes), 'compute')} of a replica the busiest member takes "
            f"{times(busiest)} the mean of its group{counts}; each member's lasting factor is "
            "left out"
        )
    if elsewhere is not None:
        yield f"in all other computes it takes {times(elsewhere)} the mean"


def _late_members(evidence: Evidence, late_s: float) -> Phrases:
    share, least = _number(evidence, "late_share"), _number(evidence, "threshold")
    of = "" if share is None else f", {_share_or_times(share)} what the collective takes"
    bar = "" if least is None else f" (counts from {percent(least, 0)})"
    yield f"in the typical step it ends {seconds(late_s)} late{of}{bar}"
    if kinds := evidence.get("kinds"):
        yield f"in {several(list(kinds), MAX_NAMED)}"


def _share_or_times(ratio: float) -> str:
    return times(ratio) if ratio >= 2 else f"{percent(ratio)} of"


def _delay(finding: Finding) -> Phrases:
    evidence = finding.evidence
    yield from _late_workers(finding)
    yield from _delayed_workers(finding)
    slowdown = _number(evidence, "launch_slowdown")
    if slowdown is not None:
        yield f"traced steps take {times(slowdown)} the time without delays{_from(evidence)}"
    # Factors are over the step without delays; remedies tell shares of the traced step.
    of_traced = slowdown if slowdown is not None and slowdown >= 1 else 1.0
    start = _number(evidence, "step_start")
    if start is not None:
        share = percent((start - 1) / of_traced)
        yield f"delays at the start of steps alone add {share} of the traced step"
    by_kind = evidence.get("by_kind") or {}
    shares = [
        f"before {kind} {percent((factor - 1) / of_traced)}"
        for kind, factor in by_kind.items()
        if factor - 1 >= MIN_DELAY
    ]
    if shares:
        added = several(shares, MAX_NAMED)
        yield f"delays of one kind alone add, as shares of the traced step: {added}"


def _delayed_workers(finding: Finding) -> Phrases:
    evidence, places = finding.evidence, finding.where.get("workers") or []
    delays = [
        f"worker {worker(place)} by {seconds(delay_s)}"
        for place, delay_s in zip(places, evidence.get("delay_s") or [], strict=False)
    ]
    if not delays:
        return
    yield f"delays of a step before these operations: {several(delays, MAX_NAMED, '; ')}"
    peers_s, n_steps = _number(evidence, "peers_s"), _number(evidence, "delayed_steps")
    if peers_s is not None:
        yield f"those of the peers: {seconds(peers_s)}"
    if n_steps is not None:
        yield f"the first is that late in {count(int(n_steps), 'step')}"
    yield HOST_WORK


def _data(finding: Finding) -> Phrases:
    evidence, places = finding.evidence, finding.where.get("workers") or []
    waits_s = evidence.get("wait_s") or []
    waiting = [
        f"worker {worker(place)} {seconds(wait_s)}"
        for place, wait_s in zip(places, waits_s, strict=False)
    ]
    steps = evidence.get("steps")
    if waiting:
        of = f"a step of {len(steps)} slow ones" if isinstance(steps, list) else "a step"
        yield f"waits of the training thread for the loader, {of}: {several(waiting, MAX_NAMED)}"
    peers_s, pause_s = _number(evidence, "peers_s"), _number(evidence, "pause_s")
    if peers_s is not None and places:
        yield f"the others wait {seconds(peers_s)} in the median"
    if pause_s is not None:
        yield f"{seconds(pause_s)} of a step pass before the first operation of all workers"
    yield "at most this is lost: a wait may be hidden behind the operations of other workers"


def _late_workers(finding: Finding) -> Phrases:
    evidence, places = finding.evidence, finding.where.get("workers") or []
    late_s, n_steps = evidence.get("late_s") or [], evidence.get("late_steps") or []
    late = [
        f"worker {worker(place)} by {seconds(late)} in {count(n, 'step')}"
        for place, late, n in zip(places, late_s, n_steps, strict=False)
    ]
    if not late:
        return
    yield f"later than the peers' begin: {several(late, MAX_NAMED, '; ')} (median of these steps)"
    share = _number(evidence, "late_share")
    if share is not None:
        yield f"if all began with their peers, a step would lose {percent(share)}"
    chance = _number(evidence, "p_value")
    if chance is not None:
        yield f"chance makes one worker late as often in {_one_in(chance)}"
    yield HOST_WORK
    if steps := evidence.get("steps"):
        yield steps_text(steps)


def _drift(finding: Finding) -> Phrases:
    evidence = finding.evidence
    change = _number(evidence, "change")
    if change is not None:
        threshold = _number(evidence, "threshold")
        bar = "" if threshold is None else f" (counts from {percent(threshold, 0)})"
        where = "in these steps" if finding.id == "period" else "over the trace"
        yield f"the step time changes by {percent(change)} {where}{bar}"
    slope = _number(evidence, "slope_s_per_step")
    if slope is not None:
        direction = "longer" if slope >= 0 else "shorter"
        yield f"each step takes {seconds(abs(slope))} {direction} than the one before"
    chance = _number(evidence, "p_value")
    if chance is not None:
        test = evidence.get("test")
        by = f" ({test})" if test else ""
        yield f"chance shows such a change in {_one_in(chance)}{by}"
    yield from _odd(evidence)


def _one_in(chance: float) -> str:
    if chance < 1e-9:
        return "under one trace in a billion"
    return f"one trace in {float(f'{1 / chance:.2g}'):,.0f}" if chance < 0.5 else "most traces"


def _odd(evidence: Evidence) -> Phrases:
    """Phrases on unusual steps."""
    if steps := evidence.get("steps"):
        yield steps_text(steps)
    typical, bar = _number(evidence, "typical_s"), _number(evidence, "threshold")
    if typical is not None:
        yield f"a typical step takes {seconds(typical)}"
        if bar is not None:
            yield (
                f"a step is unusual if it computes {times(bar)} as long as the typical one, or "
                f"waits {percent(bar - 1, 0)} of a step longer"
            )
    fast, slow = _number(evidence, "fast_s"), _number(evidence, "slow_s")
    if fast is not None and slow is not None:
        yield f"these steps take {seconds(slow)}, the others {seconds(fast)}"
    by_kind = evidence.get("slow_over_fast_by_kind") or {}
    then, others = (_number(evidence, f"{key}_then_over_else") for key in ("compute", "others"))
    if then is not None and others is not None:
        yield f"the worker computes {times(then)} as long then, others at most {times(others)}"
    ratios = [f"{kind} {times(ratio)}" for kind, ratio in by_kind.items()]
    if ratios:
        yield f"times of operations then, over the other steps: {several(ratios, MAX_NAMED)}"


OF_CAUSE: Mapping[str, Callable[[Finding], Phrases]] = {
    "worker": _worker,
    "stage-imbalance": _stage,
    "sequence-length": _sequence,
    "gc": _gc,
    "link": _link,
    "dp-network": _network,
    "peer-network": _network,
    "expert-imbalance": _uneven,
    "context-imbalance": _uneven,
    "data-loading": _data,
    "launch-delay": _delay,
    "drift": _drift,
}
