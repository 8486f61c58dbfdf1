"""A pattern for a log of no known tool, made from its own lines.

The lines are grouped by their text without numbers. In the most frequent group each number is
judged by the words before it and the unit behind it, and by whether it grows from line to line. A
proposed pattern is tried on all lines of the same words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from paceline.sources.step_logs.clocks import seconds_of_text
from paceline.sources.step_logs.lines import DECIMAL_COMMA, is_mean_since_start
from paceline.sources.step_logs.log_words import (
    BAR,
    CLOCK,
    DATE,
    EPOCH_S,
    FIELD,
    LOOSE_RATE,
    LOOSE_TIME,
    MEAN_BEHIND,
    MEAN_WORD,
    MIXED_UNITS,
    NO_CLOCK,
    NO_WORDS,
    NUMBER,
    ONE_STEP,
    OTHER_LINE,
    OTHER_UNIT,
    PART_LINE,
    PART_WORD,
    PER_STEP,
    PER_STEP_BEFORE,
    RATE_WORD,
    SLASH_DATE,
    SPAN,
    STEP_S_BEFORE,
    STEP_TIME_WORD,
    STEP_WORD,
    STEPS_PER_S,
    STEPS_PER_S_BEFORE,
    TIME_WORD,
    UNIT,
    UNIT_FIELD,
    WORK_PER_S,
)
from paceline.sources.step_logs.progress_bars import state_of

#: Lines that are looked at, and the fewest lines of a group.
LINES, _FEWEST = 5_000, 3
#: Least share of the lines of the same words that a pattern matches without a doubt.
_MATCHED = 0.95
#: Pairs of lines from which on numbers that only rise, or only fall, are no times of steps.
_MONOTONE = 8
#: The resolution of a clock without a fraction.
_TICK_S = 1.0
_LONG = 2_000


@dataclass(frozen=True)
class Proposal:
    """A pattern made from a log's lines.

    Attributes:
        pattern: a regular expression with named groups.
        is_certain: whether words and units name the step and one time, so that the pattern may be
            used without asking.
        doubt: what the lines do not say; "" if they say it.
    """

    pattern: str
    is_certain: bool
    doubt: str = ""


@dataclass(frozen=True)
class _Choice:
    place: int
    group: str
    score: int
    is_one_step: bool = False
    is_mean: bool = False


def proposal_for(lines: Sequence[str]) -> Proposal | None:
    """The pattern for the most frequent lines that have a time; None if no lines have one."""
    texts = [
        " ".join(line.split())
        for line in lines[:LINES]
        if 0 < len(line) < _LONG and state_of(line) is None and not BAR.search(line)
    ]
    field = UNIT_FIELD if any(map(MIXED_UNITS.search, texts)) else FIELD
    groups: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        groups[re.sub(r"\d+", "0", field.sub("\0", text))].append(text)
    others = [text for form, group in groups.items() if _is_other(form) for text in group]
    for form, group in sorted(groups.items(), key=lambda item: len(item[1]), reverse=True):
        if len(group) < _FEWEST or _is_other(form):
            continue
        proposal = _of_forms(group, field)
        if proposal is None:
            continue
        if any(re.search(proposal.pattern, text) for text in others):
            doubt = "it reads lines of validation, too"
            return replace(proposal, is_certain=False, doubt=doubt)
        return _tried(proposal, texts, field)
    return None


def _is_other(form: str) -> bool:
    """Whether the lines of a form are no steps of training."""
    return OTHER_LINE.search(form.lower()) is not None


def _of_forms(lines: Sequence[str], field: re.Pattern[str]) -> Proposal | None:
    """The pattern for lines whose words differ in their digits alone.

    One writer may have such words, as ``v2`` and ``v3``; its steps grow from line to line. Of
    several writers, as ``node0`` and ``node1``, the pattern is that of the first.
    """
    forms: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        forms[field.sub("\0", line)].append(line)
    proposal = _of_group(lines, field, any_digits=True) if len(forms) > 1 else None
    most = max(forms.values(), key=len)
    if proposal is not None or len(most) < _FEWEST:
        return proposal
    return _of_group(most, field)


def _tried(proposal: Proposal, texts: Sequence[str], field: re.Pattern[str]) -> Proposal:
    """The proposal, with a doubt if it leaves out some lines of the same words."""
    matched = [text for text in texts if re.search(proposal.pattern, text)]
    words = NO_WORDS.sub(" ", field.sub("\0", matched[0]).lower())
    missed = [
        text
        for text in texts
        if NO_WORDS.sub(" ", field.sub("\0", text).lower()) == words
        and not re.search(proposal.pattern, text)
    ]
    total = len(matched) + len(missed)
    if len(matched) >= _MATCHED * total:
        return proposal
    pairs = zip(*(field.sub("\0", text).split() for text in (matched[0], missed[0])), strict=False)
    here, there = next(((a, b) for a, b in pairs if a != b), (matched[0], missed[0]))
    share = f"it matches {len(matched):,} of {total:,} such lines"
    doubt = f"{share}: those with {here!r}, not {there!r}"
    if proposal.doubt:
        doubt = f"{doubt}; {proposal.doubt}"
    return replace(proposal, is_certain=False, doubt=doubt)


def _of_group(
    lines: Sequence[str], field: re.Pattern[str], *, any_digits: bool = False
) -> Proposal | None:
    """The pattern for lines that differ in their numbers alone; None if there is no time.

    ``any_digits``: the digits in their words differ, too. Then the steps must grow.
    """
    fields = [list(field.finditer(line)) for line in lines]
    first = fields[0]
    bounds = [0, *(match.end() for match in first)]
    texts = [lines[0][begin : match.start()] for begin, match in zip(bounds, first, strict=False)]
    texts.append(lines[0][bounds[-1] :])
    columns = [[row[place].group() for row in fields] for place in range(len(first))]
    ranks = [place for place in range(len(first)) if _is_rank(place, texts, columns)]
    one_rank = list(range(len(lines)))
    if ranks:
        of_line = columns[ranks[0]]
        one_rank = [row for row, rank in enumerate(of_line) if rank == of_line[0]]
    rows = [[column[row] for row in one_rank] for column in columns]
    times = _times(texts, columns, rows)
    if not times:
        return None
    best = max(choice.score for choice in times)
    time = max(times, key=lambda c: (c.score, c.group != "steps_per_s", *_likeness(c, texts)))
    steps = [c for place in range(len(first)) if (c := _step_of(place, texts, rows)) is not None]
    steps = [choice for choice in steps if choice.place != time.place]
    step = max(steps, key=lambda choice: choice.score, default=None)
    if step is None and any(_is_step_named(place, texts, columns) for place in range(len(first))):
        return None  # lines of several writers, or several lines of a step
    if any_digits and (step is None or not _grows(rows[step.place])):
        return None
    chosen = {time.place: time.group}
    epochs = () if step is None else _epochs(rows, step.place, texts)
    if step is not None:
        chosen |= {step.place: "step", **dict(zip(epochs, ("epoch", "epoch_steps"), strict=False))}
    if ranks and ranks[0] not in chosen:
        chosen[ranks[0]] = "rank"
    if time.group == "rate" and first[0].lastgroup == "stamp":
        chosen[0] = "time"
    pattern = _pattern(chosen, texts, columns, any_digits=any_digits)
    if not all(re.search(pattern, line) for line in lines):
        return None
    equals = [choice for choice in times if choice.score == best]
    if time.group.startswith("duration"):  # steps a second beside it say the same
        equals = [choice for choice in equals if choice.group != "steps_per_s"]
    certain = best == 3 and len(equals) == 1 and step is not None and step.score == 2
    is_one_step = time.is_one_step or ONE_STEP.search(texts[time.place].lower()) is not None
    if not is_one_step:  # other times may be parts of the step
        certain = certain and sum(choice.score >= 2 for choice in times) == 1
    certain = certain and PART_LINE.search(" ".join(texts).lower()) is None
    doubt = ""
    leaps = step is not None and _leaps(rows[step.place]) and not is_one_step
    if leaps and not time.is_mean and time.group.startswith("duration"):
        of_all = "interval_ms" if time.group.endswith("_ms") else "interval_s"
        certain, doubt = False, f"if the time is that of all steps since a line, {of_all}"
    if step is not None and not epochs and _begins_anew(rows, step.place, texts):
        certain, doubt = False, "steps begin anew in each epoch; add the groups epoch, epoch_steps"
    if time.group.startswith(("duration", "steps_per_s")):
        values = np.array([_seconds(value) for value in rows[time.place]])
        if time.group == "steps_per_s":
            values = 1 / np.where(values > 0, values, np.nan)
        if is_mean_since_start(values):
            certain, doubt = False, "its times look like means since the start, not those of steps"
    if time.score == 1 and time.group.startswith(("duration", "elapsed")) and not doubt:
        doubt = "the unit is a guess"
        if STEP_S_BEFORE.search(texts[time.place].lower()):
            doubt = "seconds are a guess; if these are steps a second, steps_per_s"
    if step is None and not doubt:
        doubt = "the lines have no step number, so each line counts as a step"
    if time.is_mean:
        guess = f"; {doubt}" if doubt else ""
        doubt = f"if it is the mean of the steps since the line before, not of more{guess}"
    if not doubt and _is_coarse(time, rows[time.place]):
        doubt = "the clock has whole seconds, so several lines may be one sample"
    return Proposal(pattern, certain, doubt)


def _times(
    texts: Sequence[str], columns: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]
) -> list[_Choice]:
    """The numbers that may be times. Those of means count where nothing better than a clock is.

    ``rows`` are the columns of one rank.
    """
    places = range(len(columns))
    times = [c for place in places if (c := _time_of(place, texts, columns)) is not None]
    direct = [choice for choice in times if not choice.is_mean]
    if any(choice.score for choice in direct):
        return direct
    clocks = [choice for choice in direct if choice.group == "elapsed"]

    def is_possible(choice: _Choice) -> bool:
        return not choice.is_mean or _is_of_lines(choice, clocks, texts, rows)

    if all(_is_coarse(choice, columns[choice.place]) for choice in direct):
        means = [choice for choice in times if choice.is_mean and is_possible(choice)]
        if means:
            return direct + means
    loose = [c for place in places if (c := _loose_time(place, texts, columns)) is not None]
    return direct + [choice for choice in loose if is_possible(choice)]


def _is_of_lines(
    mean: _Choice,
    clocks: Sequence[_Choice],
    texts: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> bool:
    """Whether a mean may be that of the steps since the line before.

    A line of each step has no such mean, and a mean since the start is none. Nor is a mean whose
    steps take longer than the time that the clock shows for them.
    """
    steps = [c for p in range(len(rows)) if (c := _step_of(p, texts, rows)) is not None]
    step = max(steps, key=lambda choice: choice.score, default=None)
    values = np.array([_seconds(value) for value in rows[mean.place]])
    if step is None or not _leaps(rows[step.place]) or is_mean_since_start(values):
        return False
    unit_s = 1e-3 if mean.group.endswith("_ms") else 1.0
    digits = max(len(value.partition(".")[2]) for value in rows[mean.place])
    least_s = (values - 0.5 * 10.0**-digits) * unit_s
    if mean.group == "steps_per_s":
        least_s = 1 / (values + 0.5 * 10.0**-digits)
    count = np.diff([_float(value) for value in rows[step.place]])
    for clock in clocks:
        shown_s = [seconds_of_text(value, "the clock") for value in rows[clock.place]]
        passed_s = np.diff(shown_s)
        goes_on = (count > 0) & (passed_s >= 0)
        ahead_s = np.cumsum(np.where(goes_on, count * least_s[1:] - passed_s, 0.0))
        if len(ahead_s) and (ahead_s - np.minimum.accumulate(ahead_s)).max() > 2 * _TICK_S:
            return False
    return True


def _is_coarse(choice: _Choice, values: Sequence[str]) -> bool:
    """Whether a time is a clock or date of whole seconds."""
    return choice.group in ("time", "elapsed") and not any("." in v or "," in v for v in values)


def _likeness(choice: _Choice, texts: Sequence[str]) -> tuple[bool, bool]:
    """Whether the words before a number name one step's time, and whether they end in a step."""
    label = re.split(r"[,;|\[\]{}\t]", texts[choice.place].lower())[-1]
    return ONE_STEP.search(label) is not None, STEP_WORD.search(label) is not None


def _is_step_named(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a whole number has a step's word before it."""
    label = re.split(r"[,;|{}\t]", texts[place].lower())[-1]
    is_whole = all(value.replace(",", "").isdigit() for value in columns[place])
    return is_whole and STEP_WORD.search(label) is not None


def _leaps(steps: Sequence[str]) -> bool:
    """Whether most lines stand for more than one step."""
    numbers = [_float(value) for value in steps]
    gaps = sorted(b - a for a, b in pairwise(numbers))
    return bool(gaps) and gaps[len(gaps) // 2] > 1


def _grows(steps: Sequence[str]) -> bool:
    """Whether the step's number grows from each line to the next."""
    return all(a < b for a, b in pairwise(map(_float, steps)))


def _epochs(rows: Sequence[Sequence[str]], step: int, texts: Sequence[str]) -> tuple[int, ...]:
    """Places of the epoch and of its number of steps, as in ``Epoch 1/3 Batch 10/400``.

    Empty if steps do not begin anew, or the lines do not say the number.
    """
    behind = step + 1
    if not _begins_anew(rows, step, texts) or behind >= len(rows):
        return ()
    steps, sizes = [_float(value) for value in rows[step]], set(rows[behind])
    is_size = texts[behind].strip() in ("/", "of") and len(sizes) == 1
    epochs = [place for place in _places_of_epochs(rows, texts) if place not in (step, behind)]
    if not is_size or len(epochs) != 1 or not max(steps) <= _float(*sizes):
        return ()
    return (epochs[0], behind) if all(value.isdigit() for value in rows[epochs[0]]) else ()


def _places_of_epochs(rows: Sequence[Sequence[str]], texts: Sequence[str]) -> list[int]:
    return [p for p in range(len(rows)) if re.search(r"epoch\W*$", texts[p].lower())]


def _begins_anew(rows: Sequence[Sequence[str]], step: int, texts: Sequence[str]) -> bool:
    """Whether the step's number falls where an epoch's number changes."""
    epochs = _places_of_epochs(rows, texts)
    numbers = [_float(value) for value in rows[step]]
    falls = [row for row, (a, b) in enumerate(pairwise(numbers)) if b < a]
    return any(rows[place][row] != rows[place][row + 1] for place in epochs for row in falls)


def _is_rank(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a number is that of the rank that wrote the line."""
    named = re.search(r"(?:^|[^a-z])rank\W*$", texts[place].lower()) is not None
    return named and all(value.isdigit() for value in columns[place])


def _time_of(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> _Choice | None:
    """The group of a number that is a time or a rate, with a score of how sure that is."""
    before, behind, values = texts[place].lower(), texts[place + 1], columns[place]
    if re.fullmatch(f"{DATE}|{SLASH_DATE}", values[0]):
        return _Choice(place, "time", 0)
    if re.fullmatch(CLOCK, values[0]):
        return _Choice(place, "elapsed", 0) if _is_clock(before, values) else None
    label = re.split(r"[,;|\[\]{}\t]", before)[-1]
    if re.fullmatch(f"{SPAN}*", values[0]):
        return _time_with_units(place, label, behind, values)
    word, unit = TIME_WORD.search(label), UNIT.match(behind)
    is_mean = MEAN_WORD.search(label) is not None
    if PART_WORD.search(label) or OTHER_UNIT.match(behind) or MEAN_BEHIND.match(behind):
        return None
    if any(text in (":", ",") for text in (texts[place], behind)):  # parts of 1:02 or of 0,5
        return None
    if any(DECIMAL_COMMA.fullmatch(value) for value in values):
        return None
    if _is_label(label, behind):
        behind, unit = "", None
    rate = STEPS_PER_S.match(behind) or STEPS_PER_S_BEFORE.search(label)
    per_step = PER_STEP.match(behind) or PER_STEP_BEFORE.search(label)
    if of_steps := rate or per_step:
        group = "steps_per_s"
        if not rate:
            group = "duration_ms" if of_steps["unit"] == "ms" else "duration_s"
        is_named = of_steps["word"][:2] in _step_words(texts, columns)
        score = 3 if is_named and not is_mean else 2
        return _Choice(place, group, score, is_one_step=is_named, is_mean=is_mean)
    if STEP_S_BEFORE.search(label):
        return _Choice(place, "duration_s", 1, is_one_step=True, is_mean=is_mean)
    if is_mean and (WORK_PER_S.match(behind) or RATE_WORD.search(label)):
        return None
    if WORK_PER_S.match(behind) or RATE_WORD.search(label):
        return _Choice(place, "rate", 1)
    if word is None and unit is None:
        return None
    numbers = [_float(value) for value in values]
    kind = _kind(numbers)
    if kind is None or (is_mean and kind != "duration"):
        return None
    pairs = list(pairwise(numbers))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    name = unit["unit"] if unit else word["unit"] if word else None
    if name is None:
        sizes = [abs(b - a) for a, b in pairs] if falls <= 0.01 * len(pairs) + 1 else numbers
        middle = sorted(sizes)[len(sizes) // 2]
        name = "ms" if middle >= 50 and "elapsed" not in label else "s"
        score = 1
    else:
        score = 3 if word and _is_of_a_step(label) else 2
    if kind == "duration" and falls == 0 and rises:
        score = min(score, 2)
    return _Choice(place, f"{kind}_{'ms' if name[0] == 'm' else 's'}", score, is_mean=is_mean)


def _kind(seconds: Sequence[float]) -> str | None:
    """Whether times are those of steps ("duration") or of the run ("elapsed").

    None: they are times that are left.
    """
    pairs = list(pairwise(seconds))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    is_long = len(pairs) >= _MONOTONE
    if is_long and rises <= 0.01 * len(pairs) and falls > 0.5 * len(pairs):
        return None
    grows = falls == 0 and seconds[-1] > 2 * seconds[0] >= 0
    # A restart sets the clock back.
    is_clock = is_long and falls <= 0.02 * len(pairs) and rises > 0.5 * len(pairs)
    return "elapsed" if grows or is_clock else "duration"


def _is_of_a_step(label: str) -> bool:
    """Whether the words before a time have no other word than those of a step's time."""
    return not re.sub(STEP_TIME_WORD.pattern + r"\b", "", re.sub(r"[\W_]+", " ", label)).strip()


def _time_with_units(place: int, label: str, behind: str, values: Sequence[str]) -> _Choice | None:
    """The group of a time such as 1m08.9s."""
    is_mean = MEAN_WORD.search(label) is not None
    if PART_WORD.search(label) or NO_CLOCK.search(label) or MEAN_BEHIND.match(behind):
        return None
    numbers = [seconds_of_text(value, "the time") for value in values]
    kind, word = _kind(numbers), TIME_WORD.search(label)
    if kind is None:
        return None
    if is_mean and kind != "duration":
        return None
    score = 3 if word and _is_of_a_step(label) else 2
    if kind == "duration" and sorted(numbers) == numbers and numbers[-1] > numbers[0]:
        score = min(score, 2)
    return _Choice(place, kind, score, is_mean=is_mean)


def _step_words(texts: Sequence[str], columns: Sequence[Sequence[str]]) -> set[str]:
    """The first two letters of words before whole numbers that count steps."""
    labels = (re.split(r"[,;|{}\t]", text.lower())[-1] for text in texts)
    named = [
        word["word"]
        for label, values in zip(labels, columns, strict=False)
        if (word := STEP_WORD.search(label)) and all(v.replace(",", "").isdigit() for v in values)
    ]
    return {word.removeprefix("global").lstrip("_")[:2] for word in named}


def _is_clock(before: str, values: Sequence[str]) -> bool:
    """Whether a time such as 1:02:03 goes on from line to line; it may fall at midnight."""
    pairs = list(pairwise(seconds_of_text(value, "the clock") for value in values))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    return NO_CLOCK.search(before) is None and falls <= 0.02 * len(pairs) + 1 < rises


def _loose_time(
    place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]
) -> _Choice | None:
    """The group of a number that may be a time or a rate: nothing but its size tells the unit."""
    values = columns[place]
    if not re.fullmatch(NUMBER, values[0]):
        return None
    label = re.split(r"[,;|\]{}\t]", texts[place].lower())[-1]
    numbers = [_float(value) for value in values]
    pairs = list(pairwise(numbers))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    is_monotone = not (rises and falls) or falls <= 0.02 * len(pairs)
    if all(EPOCH_S[0] < number < EPOCH_S[1] for number in numbers) and is_monotone and rises:
        return _Choice(place, "elapsed_s", 0)
    has_unit = OTHER_UNIT.match(texts[place + 1]) is not None
    if is_monotone or min(numbers) <= 0 or has_unit or not any("." in value for value in values):
        return None
    if LOOSE_RATE.search(label):
        return _Choice(place, "rate", 1)
    if LOOSE_TIME.search(label):
        is_ms = sorted(numbers)[len(numbers) // 2] >= 50
        is_mean = MEAN_WORD.search(label) is not None
        return _Choice(place, "duration_ms" if is_ms else "duration_s", 1, is_mean=is_mean)
    return None


def _is_label(label: str, behind: str) -> bool:
    """Whether the words behind a number name the next number, as in "loss 2.3 tok/s 1993"."""
    named = re.search(r"[a-z]", label) is not None and TIME_WORD.search(label) is None
    return named and re.fullmatch(r"\s[a-z]+(?:/[a-z]+)*[\s:=]+", behind.lower()) is not None


def _step_of(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> _Choice | None:
    """A number that counts the steps, with a score of how sure that is."""
    if not all(value.replace(",", "").isdigit() for value in columns[place]):
        return None
    numbers = [_float(value) for value in columns[place]]
    grows = sum(a < b for a, b in pairwise(numbers))
    if grows < 0.9 * (len(numbers) - 1):
        return None
    named = STEP_WORD.search(re.split(r"[,;|{}\t]", texts[place].lower())[-1])
    gaps = {b - a for a, b in pairwise(numbers)}
    if named is None and len(gaps) > 1:
        return None
    return _Choice(place, "step", 2 if named else 1)


def _pattern(
    chosen: dict[int, str],
    texts: Sequence[str],
    columns: Sequence[Sequence[str]],
    *,
    any_digits: bool,
) -> str:
    """The text from the words before the first chosen number to the unit behind the last one."""

    def literal(text: str) -> str:
        return re.sub(r"\d+", r"\\d+", _literal(text)) if any_digits else _literal(text)

    first, last = min(chosen), max(chosen)
    pieces = []
    for place in range(first, last + 1):
        before = texts[place]
        if place == first:
            # The words before a date or a clock may change with the day.
            is_clock = chosen[place] == "time" or ":" in columns[place][0]
            before = "" if is_clock else re.split(r"[,;|\[\]{}]", before)[-1].lstrip()
            pieces.append(_begin(texts[place]) if place == 0 and not is_clock else "")
        pieces.append(literal(before))
        group = chosen.get(place)
        if group is None:
            pieces.append(r"\S+?")
        elif group == "time":
            is_iso = re.fullmatch(DATE, columns[place][0]) is not None
            pieces.append(f"(?P<time>{DATE if is_iso else SLASH_DATE})")
        elif group in ("elapsed", "duration"):
            is_clock = re.fullmatch(CLOCK, columns[place][0]) is not None
            text = CLOCK if is_clock else _with_units(columns[place])
            pieces.append(f"(?P<{group}>{text})")
        elif group in ("step", "rank", "epoch", "epoch_steps"):
            digits = r"[\d,]+" if any("," in value for value in columns[place]) else r"\d+"
            pieces.append(f"(?P<{group}>{digits})")
        else:
            pieces.append(rf"(?P<{group}>[\d.,eE+-]*\d)")
    pieces.append(literal(re.split(r"[,;|\[\]{}]", texts[last + 1])[0].rstrip()[:12]))
    return "".join(pieces)


def _with_units(values: Sequence[str]) -> str:
    """A pattern of times such as 1m08.9s; their units are h, m, s and those of the values."""
    units = {unit for value in values for unit in re.findall(r"[a-z]+", value)} | set("hms")
    longest_first = "|".join(sorted(units, key=lambda unit: (-len(unit), unit)))
    return rf"(?:\d[\d.]*\s?(?:{longest_first})\s?)+"


def _begin(before: str) -> str:
    """The begin of a line, if a word and not a mark stands there."""
    return r"^\s*" if re.match(r"\w", before) and not re.search(r"[,;|\[\]{}]", before) else ""


def _literal(text: str) -> str:
    """A text as a regular expression that a shell takes in single quotes."""
    words = [re.escape(word).replace("'", ".") for word in text.split(" ")]
    return r"\s+".join(words)


def _seconds(text: str) -> float:
    """The value of a number, or the seconds of a time with units."""
    return seconds_of_text(text, "the time") if text[-1:].isalpha() else _float(text)


def _float(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")
