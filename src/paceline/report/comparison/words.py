"""Sentences of a comparison, made from its fields: the verdict, and notes about it."""

from __future__ import annotations

from paceline.comparison import Comparison, Side, TimeChange
from paceline.comparison.interval import MIN_STEPS
from paceline.graph.step_gaps import MATTERS
from paceline.report.comparison.rows import MAX_WIDTH
from paceline.units import seconds

#: Nine of ten pairs of runs of the same job on the same system differ by less than this. The runs
#: are from MLPerf Training v5.1, 20 steps each (docs/compare.md).
RUN_TO_RUN = 0.007

#: The median gets a sentence if it differs from the mean by this share of the step.
MIN_MEDIAN_GAP = 0.01

#: Where the steps of a side are worth fewer than this share of them, they change together. The
#: steps of two lengths of a newcomer's jobs were worth 0.5%.
MIN_OWN = 0.05

_MAX_STEPS = 5


def share(value: float, *, sign: bool = False, digits: int | None = None) -> str:
    """``12.3%``, or ``0.42%`` below one percent; a real minus."""
    digits = digits_of(value) if digits is None else digits
    text = f"{abs(value):.{digits}%}"
    nothing = not text.strip("0.%")
    head = "" if nothing else "\N{MINUS SIGN}" if value < 0 else "+" if sign else ""
    return head + text


def digits_of(*values: float) -> int:
    """Decimals of percentages of this size."""
    return 2 if max(abs(value) for value in values) < 0.01 else 1


def verdict(comparison: Comparison) -> str:
    """The verdict in a sentence."""
    change, unit = comparison.time, comparison.unit
    if comparison.same_steps:
        return "No difference: both traces contain identical steps."
    if comparison.verdict == "no-difference" and change.interval is not None:
        low, high = change.interval
        digits = digits_of(low, high)
        low_text, high_text = (share(x, sign=True, digits=digits) for x in (low, high))
        changed = f"the time of a {unit} changed by between {low_text} and {high_text} (90%)"
        if _is_wide(change):
            return f"Cannot be told: {changed}. {_what_helps(comparison)}"
        return f"No difference that these steps can show: {changed}."
    sure = "" if change.interval else "; too few steps for an interval"
    times = f"{seconds(change.before_s)} before, {seconds(change.after_s)} after"
    return f"{_became(change, unit, f'The {unit}')}: {times}{sure}."


def _what_helps(comparison: Comparison) -> str:
    """The advice that makes the interval narrower. More steps do little if they change together."""
    sides = (comparison.before, comparison.after)
    if any(side.effective_steps < MIN_OWN * len(side.result.steps) for side in sides):
        return (
            "Steps of a job change together: compare those before and those behind the "
            "change (--steps)."
        )
    return "Record more steps."


def _is_wide(change: TimeChange) -> bool:
    """Whether a change without a clear sign may be large."""
    return change.interval is not None and change.interval[1] - change.interval[0] > MAX_WIDTH


def _became(change: TimeChange, unit: str, subject: str) -> str:
    longer = change.change > 0
    if unit == "step":
        word = "longer" if longer else "shorter"
        text = f"{subject} became {share(abs(change.change))} {word}"
    else:
        word = "more" if longer else "less"
        text = f"{subject.replace('The', 'A')} takes {share(abs(change.change))} {word} time"
    return text + _sure(change)


def _sure(change: TimeChange) -> str:
    if change.interval is None:
        return ""
    low, high = sorted(abs(end) for end in change.interval)
    digits = digits_of(change.change)
    low_text, high_text = (share(x, digits=digits) for x in (low, high))
    return f" (90%: {low_text.rstrip('%')} to {high_text})"


def notes(comparison: Comparison) -> list[str]:
    """Notes about the verdict, the most important first."""
    rows = (
        _unlike(comparison),
        _pauses(comparison),
        _overlap(comparison),
        _gpu_time(comparison),
        _too_few(comparison),
        _median(comparison),
        *_jumps(comparison),
        _run_to_run(comparison),
        *(
            f"not compared: {table}: {reason}"
            for table, reason in comparison.left_out.items()
            if not getattr(comparison, table)
        ),
    )
    return [row for row in rows if row]


def _jumps(comparison: Comparison) -> list[str]:
    """A note for each side whose step times jump: its means mix two parts."""
    return [
        f"{name}, the step time jumps at step {finding.evidence['step']:,}: the means mix both "
        f"parts, which makes intervals wide; compare one part (--steps-{name})"
        for name, side in (("before", comparison.before), ("after", comparison.after))
        for finding in side.advice.diagnosis.findings
        if finding.id == "change-point"
    ]


def _unlike(comparison: Comparison) -> str:
    if not comparison.disagreements:
        return ""
    rows = (f"{d.what}: {d.before} before, {d.after} after" for d in comparison.disagreements)
    units = {"microbatch": "the microbatches of all replicas", "token": "the tokens of a step"}
    per = units.get(comparison.unit, "the step")
    if comparison.unit == "step":
        how = "but have as many microbatches, so steps are compared"
    else:
        how = f"so they are compared by their time over {per}"
    return f"the jobs differ, {how}: {'; '.join(rows)}"


def _overlap(comparison: Comparison) -> str:
    """Why times are shorter than traced steps, if steps overlap by much."""
    sides = (comparison.before, comparison.after)
    if max(side.overlap_s / side.traced_s for side in sides) < MATTERS:
        return ""
    before, after = (f"{seconds(side.overlap_s)} of {seconds(side.traced_s)}" for side in sides)
    return (
        f"times are from step to step: a traced {comparison.unit} is longer, since the step before "
        f"still runs on other ranks for {before} before, {after} after"
    )


def _pauses(comparison: Comparison) -> str:
    """The change of the time from step to step, where pauses between steps are much of it."""
    change, pause_s = comparison.time_with_pauses, comparison.pause_s
    if change is None or pause_s is None or comparison.same_steps:
        return ""
    times_s = (change.before_s, change.after_s)
    if max(pause / time for pause, time in zip(pause_s, times_s, strict=True)) < MATTERS:
        return ""
    before, after = map(seconds, times_s)
    times = f"{before} before, {after} after"
    if change.verdict == "no-difference" and change.interval is not None:
        low, high = (share(end, sign=True, digits=1) for end in change.interval)
        word = "cannot be told" if _is_wide(change) else "shows no difference"
        return (
            f"with the pauses between steps, the time of a step {word} ({low} to {high}): {times}"
        )
    return (
        f"{_became(change, 'step', 'with the pauses between steps, the time of a step')}: {times}"
    )


def _gpu_time(comparison: Comparison) -> str:
    change = comparison.gpu_time
    if change is None:
        return ""
    gpus = [side.result.job.world_size for side in (comparison.before, comparison.after)]
    unit = comparison.unit
    if change.verdict == "no-difference":
        text = f"the GPU time of a {unit} shows no difference"
        if _is_wide(change):
            text = f"the change of the GPU time of a {unit} cannot be told"
    else:
        word = "more" if change.change > 0 else "less"
        text = f"a {unit} takes {share(abs(change.change))} {word} GPU time{_sure(change)}"
    return f"{gpus[0]:,} GPUs before, {gpus[1]:,} after: {text}"


def _too_few(comparison: Comparison) -> str:
    if comparison.time.interval is not None:
        return ""
    n, m = (len(side.result.steps) for side in (comparison.before, comparison.after))
    return (
        f"{n} and {m} steps: an interval needs {MIN_STEPS} on each side; 20 make it much narrower"
    )


def _median(comparison: Comparison) -> str:
    """A sentence for comparisons whose mean is distorted by odd steps or steps of two lengths."""
    mean, median = comparison.time, comparison.median
    odd = [
        f"{_step_list(steps)} {side_name}"
        for steps, side_name in zip(comparison.odd_steps, ("before", "after"), strict=True)
        if steps
    ]
    if abs(mean.change - median.change) < MIN_MEDIAN_GAP or (
        mean.verdict == median.verdict and not odd
    ):
        return ""
    unit = comparison.unit
    if median.verdict == "no-difference" and median.interval is not None:
        low, high = (share(end, sign=True, digits=1) for end in median.interval)
        text = f"the median {unit} shows no difference ({low} to {high})"
        if _is_wide(median):
            text = f"the change of the median {unit} cannot be told ({low} to {high})"
    else:
        text = _became(median, unit, f"the median {unit}")
    if odd:
        return (
            f"{text}; unusual steps dominate the mean ({', '.join(odd)}): they cost GPU time, but "
            "leave them out (--steps) if they do not belong to the comparison"
        )
    return f"{text}; the mean differs, and it is the cost"


def _step_list(steps: tuple[int, ...]) -> str:
    ellipsis = ", ..." if len(steps) > _MAX_STEPS else ""
    return f"{', '.join(map(str, steps[:_MAX_STEPS]))}{ellipsis}"


def _run_to_run(comparison: Comparison) -> str:
    clear = comparison.verdict in ("shorter", "longer")
    if not clear or abs(comparison.time.change) >= RUN_TO_RUN:
        return ""
    return (
        f"a change under {RUN_TO_RUN:.1%} is also seen between two runs of one job on one system; "
        "the interval covers these steps only"
    )


def worth(comparison: Comparison) -> str:
    """Number of steps, and the effective number of independent steps."""
    sides = (comparison.before, comparison.after)
    texts = [_worth(side) for side in sides]
    return f"{texts[0]} before, {texts[1]} after"


def _worth(side: Side) -> str:
    n = len(side.result.steps)
    steps = f"{n} step{'s' * (n != 1)}"
    if n < MIN_STEPS or side.effective_steps > 0.95 * n:
        return steps
    return (
        f"{steps} (neighbours are alike, so that they tell as much as "
        f"{side.effective_steps:.1f} independent ones)"
    )
