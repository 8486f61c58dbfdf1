"""The headline of a result: the loss, its cause, the best remedy's gain; and its details.

The headline consists of short phrases, so that it fits two lines at the report's full width.
Measured texts, names of hosts and intervals are in the details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.results.document import JobReport
from paceline.results.facts import main_cause
from paceline.results.words.more_steps import more_steps_text, no_reason
from paceline.results.words.names import confidence_text, hedge, hosts, link, worker
from paceline.results.words.readings import other_reading
from paceline.results.words.shares import interval_text, lost_s
from paceline.results.words.slowdown import waste_range
from paceline.results.words.waits import (
    SMALL_SHARE,
    SURE,
    between_steps,
    first_pause,
    first_wait,
    pause_numbers,
    traced_only,
    wait_text,
)
from paceline.trace.warning import UNLIKE_STEPS
from paceline.units import count, percent, seconds
from paceline.whatif import WhatIf

HEALTHY = "Healthy, within what these traces can show"

#: Launch delays below this slowdown are negligible (the limit of S, too).
MIN_LAUNCH_SLOWDOWN = 1.03

#: Among remedies whose gains differ by less than this, the most certain is named.
EQUAL_GAIN = 0.01

#: Words that are left out for want of room.
_BESIDE = " beside it"

#: Least share of the loss of a cause that the headline names, and of one that is its reason for all
#: of the loss.
MIN_NAMED, MOST_OF_LOSS = 0.1, 0.5

#: Least share of T by passing variation that the headline tells.
MIN_PASSING = 0.03

#: Characters in two lines of the report at 1,400 px; hosts are named if there is room.
MAX_LENGTH = 124

#: A repair with this share of the launch delays as its gain is named in place of them.
MIN_OF_DELAYS = 0.5


def is_healthy(report: JobReport) -> bool:
    """Whether there is nothing to report: S and waits are low, and no step times drift."""
    beside = first_wait(report) is not None or any(
        finding.cause == "drift"
        or (finding.cause == "data-loading" and finding.share_of_step >= SMALL_SHARE)
        for finding in report.diagnosis.findings
    )
    return report.healthy and report.launch_slowdown < MIN_LAUNCH_SLOWDOWN and not beside


def explained(report: JobReport) -> bool:
    """Whether a finding explains most of the time that passes between operations."""
    return any(f.id == "launch-delay" and f.part_of for f in report.diagnosis.findings)


def step_to_step_s(report: JobReport) -> float:
    """Mean seconds from the end of a step to that of the next one, with the pause between them.

    They are the mean of all steps, or of the traced ones if the others are unknown.
    """
    of_all = pause_numbers(report).get("step_s")
    return report.lasted_s / (1 - between_steps(report)) if of_all is None else of_all


def overlap_text(report: JobReport) -> str:
    """How much shorter the job's step is than the traced one; empty if that is little."""
    traced_s = float(report.traced_s.mean())
    if not report.overlaps:
        return ""
    return (
        f"Steps overlap: from step to step the job takes {seconds(traced_s - report.overlap_s)}, "
        f"{percent(report.overlap_s / traced_s, 0)} less than the traced {seconds(traced_s)}"
    )


def unlike_text(report: JobReport) -> str:
    """How much the profiled steps differ from all steps; empty if they stand for them."""
    numbers = next((w.numbers for w in report.warnings if w.code == UNLIKE_STEPS), None)
    if numbers is None:
        return ""
    profiled, every = seconds(numbers["profiled_s"]), seconds(numbers["all_s"])
    return (
        f"Profiled steps take {profiled}, all steps {every} on average: all shares below are of "
        "the profiled steps"
    )


def is_small(finding: Finding) -> bool:
    """Whether a known cause costs almost nothing."""
    return finding.cause != "unexplained" and abs(finding.share_of_step) < SMALL_SHARE


def is_negative_rest(finding: Finding) -> bool:
    """Whether the causes explain more than the loss, so that no rest is left to tell."""
    return finding.cause == "unexplained" and finding.share_of_step <= 0


def headline(report: JobReport) -> str:
    """The first message for an on-call engineer, in at most ``MAX_LENGTH`` characters."""
    if first := largest_cost(report):
        return _of_largest_cost(report, *first)
    if is_healthy(report):
        if report.passing_share >= MIN_PASSING:
            return f"{passing_text(report)}."
        which = lasting_word(report)
        return f"{HEALTHY}: {which}stragglers cost {_cost(report)} of the GPU time."
    finding = main_finding(report)
    verdict = _verdict(report, finding)
    best = best_remedy(finding, report.every_remedy)
    advice = f" {_advice(finding, best)}" if finding and best else ""
    host_names = hosts(finding.where, 1) if finding else ""
    longest_first = ([f"{verdict} ({host_names}).{advice}"] if host_names else []) + [
        f"{verdict}.{advice}"
    ]
    return next((text for text in longest_first if len(text) <= MAX_LENGTH), f"{verdict}.")


def largest_cost(report: JobReport) -> tuple[str, str] | None:
    """The largest cost if S leaves it out, and the stragglers beside it; None if S shows it.

    Both are sentences without the full stop. They come before all that is said about stragglers.
    """
    if pause := first_pause(report):
        about = f"Pauses between steps take {percent(pause)} of the time"
        if traced_only(report):
            about = f"Pauses before traced steps take {percent(pause)} of their time"
        return f"{about} (checkpoint, evaluation, data loading?)", _stragglers_beside(report)
    wait = _named_wait(report)
    return None if wait is None else (wait_text(report, wait), _stragglers_beside(report))


def _of_largest_cost(report: JobReport, cost: str, beside: str) -> str:
    """The sentences on the largest cost, with the advice if there is room."""
    finding = main_finding(report)
    best = None if first_pause(report) else best_remedy(finding, report.every_remedy)
    advice = f" {_advice(finding, best)}" if finding and best else ""
    longest_first = (
        f"{cost}. {beside}.{advice}",
        f"{cost}. {beside}.",
        f"{cost}. {beside.replace(_BESIDE, '')}.",
    )
    return next((text for text in longest_first if len(text) <= MAX_LENGTH), f"{cost}.")


def _stragglers_beside(report: JobReport) -> str:
    """The cost of stragglers beside a larger cost, without the full stop."""
    if report.slowdown < WhatIf.REFERENCE_FAILS_BELOW:
        return _failed_reference(report)
    if "forward-compute" in report.not_judged:
        return "One worker has no peers to compare with"
    if report.straggling:
        passing = ", mostly by variation that passes" if mostly_passing(report) else ""
        return f"Stragglers waste {waste_range(report, 0)}{passing}"
    modes = ", but steps come in two lengths" if report.step_modes is not None else ""
    return f"No lasting straggler{_BESIDE} ({_cost(report)}){modes}"


def _failed_reference(report: JobReport) -> str:
    return f"S is not meaningful: it is {report.slowdown:.2f}, faster than its reference"


def lasting_word(report: JobReport) -> str:
    """``lasting `` before "stragglers" if their number leaves out variation that passes."""
    return "" if percent(report.passing_share) == percent(0) else "lasting "


def passing_text(report: JobReport) -> str:
    """The two parts of the waste if no straggler lasts, without the full stop."""
    return (
        f"No lasting straggler ({_cost(report)} of the GPU time); variation that passes from "
        f"worker to worker costs {percent(report.passing_share)}"
    )


def little_text(report: JobReport) -> str:
    """The same if something else is wrong: the begin of a sentence that goes on with "but".

    A finding that names workers says whose variation passes.
    """
    if report.passing_share < MIN_PASSING:
        which = f"{lasting_word(report)}stragglers"
        return f"{which[:1].upper()}{which[1:]} cost little ({_cost(report)})"
    finding = main_finding(report)
    passing = f", passing variation {percent(report.passing_share)}"
    named = finding is not None and "workers" in finding.where
    return f"Lasting stragglers cost little ({_cost(report)}){'' if named else passing}"


def details(report: JobReport) -> list[str]:
    """Sentences below the headline, with measured numbers and intervals."""
    about_steps = (unlike_text(report), overlap_text(report))
    return [f"{text}." for text in about_steps if text] + _details(report)


def _details(report: JobReport) -> list[str]:
    if is_healthy(report):
        return [_small_sentence(f) for f in report.diagnosis.findings if f.cause != "unexplained"]
    finding = main_finding(report)
    if finding is None:
        return [text] if (text := more_steps_text(report)) else []
    sure = confidence_text(finding.confidence)
    sentences = [f"{sure[0].upper()}{sure[1:]}: {_sentence(finding.text)}"]
    if report.straggling and report.passing_share >= MIN_PASSING:
        passing = percent(report.passing_share)
        sentences.append(
            f"Of the {percent(report.waste)} waste, {passing} is variation that passes."
        )
    reading = other_reading(finding, report.every_remedy)
    if reading:
        sentences.append(_sentence(f"{reading[0].upper()}{reading[1:]}"))
    best = best_remedy(finding, report.every_remedy)
    if best is not None:
        interval = interval_text(best.interval, len(report.steps))
        saved = f"{percent(best.gain)} of the step, {interval}"
        if best.is_bound:
            saved = f"at most {percent(best.gain)} of the step"
        sentences.append(
            f"Best remedy for it: {best.action or best.text} (saves {saved}; new mean step "
            f"{seconds(best.step_time_s)})."
        )
    return sentences


def _small_sentence(finding: Finding) -> str:
    """Text of a healthy job's finding."""
    sure, cost = confidence_text(finding.confidence), percent(finding.share_of_step)
    return f"Small, {cost} of the step, {sure}: {_sentence(finding.text)}"


def main_reason(report: JobReport) -> str:
    """The sure cause of most of the loss, as a short phrase; empty without one."""
    finding = main_finding(report)
    if finding is None or (finding.share or 0.0) < MOST_OF_LOSS or finding.confidence < SURE:
        return ""
    return f"{hedge(finding.confidence)}{_reason(report, finding)}"


def mostly_passing(report: JobReport) -> bool:
    """Whether variation that passes, and no known cause, is most of the loss."""
    return report.passing_share > report.waste / 2 and not main_reason(report)


def main_finding(report: JobReport) -> Finding | None:
    """The finding to name: the largest known cause, inside S unless a wait costs more.

    Workers that begin late are named beside stragglers of no known cause.
    """
    if (wait := _named_wait(report)) is not None:
        return wait
    findings = report.diagnosis.findings
    inside = [f for f in findings if f.share is not None and f.cause != "unexplained"]
    outside = [f for f in findings if f.share is None and not f.part_of]
    positive = next((f for f in inside if (f.share or 0) > 0), None)
    if report.straggling:
        if positive is not None and (positive.share or 0) >= MIN_NAMED:
            return positive
        least = max(SMALL_SHARE, lost_s(report) / report.lasted_s)
        late = (f for f in outside if f.cause == "launch-delay" and f.where.get("workers"))
        return next((f for f in late if f.evidence.get("late_share", 0.0) >= least), None)
    if not outside:
        return positive
    hidden = (f for f in inside if _ends_delays(f, outside[0], report.remedies))
    return next(hidden, outside[0])


def _named_wait(report: JobReport) -> Finding | None:
    """The wait that costs most of all, unless the repair of a small cause ends it."""
    wait = first_wait(report)
    if wait is None:
        return None
    inside = (f for f in report.diagnosis.findings if f.share is not None)
    hides = any(_ends_delays(f, wait, report.remedies) for f in inside if not report.straggling)
    return None if hides else wait


def _ends_delays(finding: Finding, delays: Finding, remedies: Sequence[Remedy]) -> bool:
    """Whether a repair of a small cause takes most of the launch delays off, too.

    Operations are launched late behind transfers of a slow link, for instance.
    """
    if delays.cause != "launch-delay":
        return False
    repair = best_remedy(finding, [r for r in remedies if not r.is_bound])
    least = max(SMALL_SHARE, MIN_OF_DELAYS * delays.share_of_step)
    return repair is not None and repair.gain >= least


def named_cause(report: JobReport) -> str:
    """The cause in the headline: ``healthy``, the named finding's, or the largest."""
    if is_healthy(report):
        return "healthy"
    finding = main_finding(report)
    return main_cause(report) if finding is None else finding.cause


def best_remedy(finding: Finding | None, remedies: Sequence[Remedy]) -> Remedy | None:
    """The best remedy for the named finding; None if none answers it or gains a percent.

    Changes of the architecture answer no finding.
    """
    if finding is None:
        return None
    candidates = [r for r in remedies if finding.id in r.findings and not r.architecture]
    best_gain = max((remedy.gain for remedy in candidates), default=0.0)
    if round(best_gain, 2) <= 0:
        return None
    return max(
        (remedy for remedy in candidates if remedy.gain >= best_gain - EQUAL_GAIN),
        key=lambda remedy: remedy.interval[0],
    )


def _cost(report: JobReport) -> str:
    return percent(max(report.waste - report.passing_share, 0.0))


def _verdict(report: JobReport, finding: Finding | None) -> str:
    """The loss and its reason, without the full stop."""
    reason = "" if finding is None else f"{hedge(finding.confidence)}{_reason(report, finding)}"
    if report.straggling and finding is not None and finding.share is None:
        text = f"{reason[:1].upper()}{reason[1:]}"
        if finding.cause != "data-loading":
            cost = percent(finding.evidence.get("late_share", finding.share_of_step), 0)
            text = f"{text} ({cost} of the step)"
        return f"{text}; stragglers waste {waste_range(report, 0)}"
    if report.straggling:
        loss = f"This job wastes {waste_range(report, 0)} of its GPUs"
        if finding is not None and (finding.share or 0.0) < MOST_OF_LOSS:
            return f"{loss}, {percent(finding.share_of_step, 0)} of the step because {reason}"
        return f"{loss}: {reason or no_reason(report)}"
    if report.slowdown < WhatIf.REFERENCE_FAILS_BELOW:
        loss = _failed_reference(report)
        return f"{loss}; {reason}" if reason else loss
    if not reason:
        modes = report.step_modes is not None
        reason = "steps come in two lengths" if modes else "time passes between operations"
    return f"{little_text(report)}, but {reason}"


def _reason(report: JobReport, finding: Finding) -> str:
    """The finding as a short phrase; the details have measured numbers."""
    of_cause = REASONS.get(finding.cause)
    return of_cause(report, finding) if of_cause else shorten(finding.text, MAX_LENGTH // 2)


def _worker(_: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    if not places:
        return "workers are slow"
    ended = "healthy_since" in finding.evidence
    first, last = (finding.evidence.get(name) or [0.0] for name in ("first_factors", "factors"))
    if "factors" not in finding.evidence and "optimizer_factors" in finding.evidence:
        if len(places) == 1:
            return f"the optimizer of worker {worker(places[0])} is slow"
        return f"the optimizers of {len(places):,} workers are slow (most: {worker(places[0])})"
    if len(places) == 1 and 0 < first[0] < last[0]:
        return f"worker {worker(places[0])} becomes slower"
    if len(places) == 1:
        return f"worker {worker(places[0])} {'was' if ended else 'is'} slow"
    return f"{len(places):,} workers {'were' if ended else 'are'} slow (most: {worker(places[0])})"


def _stage(_: JobReport, finding: Finding) -> str:
    return f"stage {finding.where.get('stage', '?')} has too much to compute"


def _link(_: JobReport, finding: Finding) -> str:
    n_others = int(finding.evidence.get("n_links", 1)) - 1
    beside = (
        f", as are {n_others:,} more" if n_others > 1 else ", as is one more" if n_others else ""
    )
    ends = finding.where.get("link")
    return f"the link of {link(ends)} is slow{beside}" if ends else "links are slow"


def _network(_: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    if places:
        others = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        return f"worker {worker(places[0])}{others} ends collectives late"
    stage = (finding.where.get("group") or {}).get("stage", "?")
    return f"the data-parallel network of stage {stage} is slow"


def _group(_: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    return f"the group of {worker(places[0])} is slow" if places else "groups are slow"


def _delay(_: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    if places and "delay_s" in finding.evidence:
        others = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        return f"the host of worker {worker(places[0])}{others} delays operations"
    if len(places) == 1:
        return f"worker {worker(places[0])} begins its steps late"
    if places:
        return f"{len(places):,} workers begin their steps late (most: {worker(places[0])})"
    return f"{percent(finding.share_of_step)} of the step passes between operations"


def _data(_: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    cost = percent(finding.share_of_step)
    if len(places) == 1:
        return f"worker {worker(places[0])} waits for data ({cost} of the time)"
    return f"workers wait for data ({cost} of the time)"


def _drift(report: JobReport, finding: Finding) -> str:
    places = finding.where.get("workers") or []
    change = finding.evidence.get("change")
    of_worker = f" by worker {worker(places[0])}" if places else ""
    if finding.id == "period" and change is not None:
        steps = finding.evidence["steps"]
        if change > 0:
            return f"steps {steps[0]} to {steps[-1]} are {percent(change)} slower{of_worker}"
        which = f"{len(steps):,} of {count(len(report.steps), 'step')}"
        return f"{which} take {1 / (1 + change):.2f}x as long as the others{of_worker}"
    if change is not None:
        if change < 0:
            return f"the first steps take {1 / (1 + change):.2f}x as long as the last{of_worker}"
        return f"steps become {percent(change)} slower{of_worker}"
    steps = finding.evidence.get("steps") or []
    in_steps = f"{len(steps):,} of {count(len(report.steps), 'step')}"
    if places:
        return f"worker {worker(places[0])} computes longer in {in_steps}"
    return f"{in_steps} take longer"


#: Cause -> its short phrase; other causes use the finding's own text.
REASONS: Mapping[str, Callable[[JobReport, Finding], str]] = {
    "worker": _worker,
    "stage-imbalance": _stage,
    "sequence-length": lambda *_: "sequences differ in length",
    "gc": lambda *_: "garbage collection pauses its workers",
    "link": _link,
    "dp-network": _network,
    "peer-network": _group,
    "expert-imbalance": lambda *_: "experts get unequal numbers of tokens",
    "context-imbalance": lambda *_: "context-parallel ranks get unequal work",
    "data-loading": _data,
    "launch-delay": _delay,
    "drift": _drift,
}

#: Remedy -> the action as the subject of "gains".
DOING = {
    "mend-optimizer": "Mending it gains",
    "fix-nic": "Repairing it gains",
    "fix-peer-network": "Repairing its links gains",
    "balance-experts": "Balancing the experts gains",
    "balance-context": "Sharing sequences evenly gains",
    "stage-layout": "Splitting the layers anew gains",
    "sequence-balance": "Balancing the sequences gains",
    "even-microbatches": "Even microbatches gain",
    "micro-batches": "Moving microbatches gains",
    "planned-gc": "Planned collections gain",
    "placement": "Swapping workers gains",
    "hide-delays": "Hiding the delays gains at most",
    "load-ahead": "Loading ahead gains",
}


def _advice(finding: Finding, remedy: Remedy) -> str:
    """The advice and its gain."""
    gain = percent(remedy.gain, 0)
    if remedy.remedy == "replace-worker":
        single = len(finding.where.get("workers", ())) == 1
        if "healthy_since" in finding.evidence:
            which = "It is" if single else "They are"
            return f"{which} healthy again since step {finding.evidence['healthy_since']:,}."
        return f"Replacing {'it' if single else 'them'} gains {gain}."
    if remedy.remedy == "fix-link":
        single = finding.evidence.get("n_links", 1) == 1
        return f"Repairing {'it' if single else 'them'} gains {gain}."
    if remedy.remedy == "hide-delays" and remedy.change.get("hide") == ["late-workers"]:
        return f"Beginning on time gains at most {gain}."
    at_most = "at most " if remedy.is_bound else ""
    return f"{DOING.get(remedy.remedy, 'The best remedy gains')} {at_most}{gain}."


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
