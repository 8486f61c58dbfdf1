"""A pattern for a log of no known tool, made from its own lines.

The lines are grouped by their text without numbers. In the most frequent group each number is
judged by the words before it and the unit behind it, and by whether it grows from line to line.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from paceline.sources.step_logs.clocks import seconds_of_text
from paceline.sources.step_logs.lines import DECIMAL_COMMA, is_mean_since_start
from paceline.sources.step_logs.progress_bars import state_of

#: Lines that are looked at, and the fewest lines of a group.
LINES, _FEWEST = 5_000, 3
#: Pairs of lines from which on numbers that only rise, or only fall, are no times of steps.
_MONOTONE = 8
_LONG = 2_000
_DATE = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_SLASH_DATE = r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_CLOCK = r"\d{1,3}:\d\d:\d\d(?:\.\d{1,9})?"
_NUMBER = r"(?:(?<![\w.])|(?<=rank))[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_FIELD = re.compile(
    rf"(?P<stamp>{_DATE}|{_SLASH_DATE})|(?<![\w.:]){_CLOCK}(?![\w:])|"
    rf"(?P<number>{_NUMBER}|\b(?:nan|inf)\b)"
)
_STEP_WORD = re.compile(r"(?:^|[^a-z])(?:global_?step|step|iter|iteration|it|update|batch)s?\W*$")
_TIME_WORD = re.compile(
    r"(?:^|[^a-z])(?:(?:step|iter|iteration|batch|train)[_ -]?time|time[_ ](?:per|of)[_ ]\w+|"
    r"time|dt|duration|took|elapsed|runtime)"
    r"(?:[_ ]?\(?(?P<unit>ms|msec|s|sec|secs|seconds)\)?)?\W*$"
)
#: Words before a number that say seconds a step.
_PER_STEP_BEFORE = re.compile(r"(?:^|[^a-z])(?P<unit>ms|s|sec)/(?:it|iter|step|batch)\W*$")
_PART_WORD = re.compile(
    r"(?:^|[^a-z])(?:total|eta|remain|left|data|load|fwd|forward|bwd|backward|opt|val|eval|sav|"
    r"avg|average|mean|median|ema|smooth|running|moving|rolling|cumul|window|wait|comm|sync|lr)"
)
#: Words before a number that may be a time or a rate, if no other number has better words.
_LOOSE_TIME = re.compile(
    r"(?:^|[^a-z])(?:total|cost|spent|used|secs?|seconds|t|in|t_(?:step|iter|total|all))\W*$"
)
_LOOSE_RATE = re.compile(r"(?:^|[^a-z])(?:speed|ips|sps|fps)\W*$")
_NO_CLOCK = re.compile(r"(?:^|[^a-z])(?:eta|remain|left)")
#: Seconds since 1970, from 2001 to 2065.
_EPOCH_S = (1e9, 3e9)
#: Words behind a time that say that it is a mean of more steps than the line's.
_MEAN_BEHIND = re.compile(
    r"['\"]?\s?(?:ms|msec|s|secs?|seconds?)?\s*[(\[]\s*"
    r"(?:avg|average|mean|median|ema|smoothed|running|moving|rolling|cumulative)[^)\]]*[)\]]",
    re.I,
)
#: Words beside which a bare time is that of a step.
_STEP_TIME_WORD = re.compile(
    r"(?:step|iter|iteration|batch|train(?:ing)?|it|time|per|of|in|the|this|took|elapsed|dt|wall|"
    r"duration|runtime|done|finished|completed|ms|msec|s|secs?|seconds?)"
)
#: Words that say that a time is that of one step, not of all steps since the line before.
_ONE_STEP = re.compile(
    r"(?:step|iter|iteration|it)s?[_ -]?time|(?:per|of)[_ ](?:step|iter|it)|(?:\b|_)dt\b"
)
#: Lines with these words are no steps of training, or of parts of them.
_OTHER_LINE = re.compile(
    r"\b(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|predict\w*|"
    r"inference|sanity|warm-?up)\b(?![ _/-]?(?:loss|acc|ppl|perplexity))"
)
#: A bar of other units than steps; its rates are smoothed.
_BAR = re.compile(r"\d%\|.*\[\d{1,3}:\d\d")
_PART_LINE = re.compile(r"\b(?:micro|accum)")
_OTHER_UNIT = re.compile(
    r"['\"]?\s?(?:us|usec|\u00b5s|\u03bcs|ns|nsec|m|min|mins|minutes?|h|hr|hrs|hours?|d|days?)(?![\w/])"
)
_RATE_WORD = re.compile(
    r"(?:^|[^a-z])(?:tps|wps|throughput|(?:tok|token|sample|image)\w*[/_ ]?(?:per_)?s)"
)
_UNIT = re.compile(r"['\"]?\s?(?P<unit>ms|msec|milliseconds?|s|secs?|seconds?)(?![\w/])")
_STEPS_PER_S = re.compile(r"\s?(?:it|iter|step|batch)(?:s|es)?/s")
_PER_STEP = re.compile(r"\s?(?P<unit>m?s)(?:ec)?/(?:it|iter|step|batch)")
_WORK_PER_S = re.compile(r"\s?(?:k?tok|token|sample|seq|img|image|example)\w*(?:/\w+)?/s")


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


def proposal_for(lines: Sequence[str]) -> Proposal | None:
    """The pattern for the most frequent lines that have a time; None if no lines have one."""
    groups: dict[str, list[str]] = defaultdict(list)
    for line in lines[:LINES]:
        if 0 < len(line) < _LONG and state_of(line) is None and not _BAR.search(line):
            groups[_FIELD.sub("\0", " ".join(line.split()))].append(" ".join(line.split()))
    alike = Counter(re.sub(r"\d+", "", text) for text in groups if len(groups[text]) >= _FEWEST)
    for text in sorted(groups, key=lambda text: -len(groups[text])):
        if len(groups[text]) < _FEWEST or _OTHER_LINE.search(text.lower()):
            continue
        proposal = _of_group(groups[text])
        others = [
            line for other in groups if _OTHER_LINE.search(other.lower()) for line in groups[other]
        ]
        if proposal is not None and any(re.search(proposal.pattern, line) for line in others):
            doubt = "it reads lines of validation, too"
            return replace(proposal, is_certain=False, doubt=doubt)
        if proposal is not None and alike[re.sub(r"\d+", "", text)] > 1:
            # Names such as node0 and node1 tell lines of different writers apart.
            return replace(proposal, is_certain=False, doubt="it reads one of several writers")
        if proposal is not None:
            return proposal
    return None


def _of_group(lines: Sequence[str]) -> Proposal | None:
    """The pattern for lines that differ in their numbers alone; None if there is no time."""
    fields = [list(_FIELD.finditer(line)) for line in lines]
    first = fields[0]
    bounds = [0, *(field.end() for field in first)]
    texts = [lines[0][begin : field.start()] for begin, field in zip(bounds, first, strict=False)]
    texts.append(lines[0][bounds[-1] :])
    columns = [[row[place].group() for row in fields] for place in range(len(first))]
    times = [c for place in range(len(first)) if (c := _time_of(place, texts, columns)) is not None]
    if not any(choice.score for choice in times):
        times += [c for p in range(len(first)) if (c := _loose_time(p, texts, columns)) is not None]
    if not times:
        return None
    best = max(choice.score for choice in times)
    time = max(times, key=lambda choice: (choice.score, *_likeness(choice, texts)))
    ranks = [place for place in range(len(first)) if _is_rank(place, texts, columns)]
    one_rank = list(range(len(lines)))
    if ranks:
        of_line = columns[ranks[0]]
        one_rank = [row for row, rank in enumerate(of_line) if rank == of_line[0]]
    rows = [[column[row] for row in one_rank] for column in columns]
    steps = [c for place in range(len(first)) if (c := _step_of(place, texts, rows)) is not None]
    steps = [choice for choice in steps if choice.place != time.place]
    step = max(steps, key=lambda choice: choice.score, default=None)
    if step is None and any(_is_step_named(place, texts, columns) for place in range(len(first))):
        return None  # lines of several writers, or several lines of a step
    chosen = {time.place: time.group}
    if step is not None:
        chosen[step.place] = "step"
    if ranks and ranks[0] not in chosen:
        chosen[ranks[0]] = "rank"
    if time.group == "rate" and first[0].lastgroup == "stamp":
        chosen[0] = "time"
    pattern = _pattern(chosen, texts, columns)
    matches = [re.search(pattern, line) for line in lines]
    if not all(matches):
        return None
    is_alone = sum(choice.score == best for choice in times) == 1
    certain = best == 3 and is_alone and step is not None and step.score == 2
    if not _ONE_STEP.search(texts[time.place].lower()):  # other times may be parts of the step
        certain = certain and sum(choice.score >= 2 for choice in times) == 1
    certain = certain and _PART_LINE.search(" ".join(texts).lower()) is None
    doubt = ""
    if time.group.startswith("duration"):
        label = texts[time.place].lower()
        if step is not None and _leaps(rows[step.place]) and not _ONE_STEP.search(label):
            of_all = time.group.replace("duration", "interval")
            certain, doubt = False, f"if the time is that of all steps since a line, {of_all}"
    if step is not None and _begins_anew(rows, step.place, texts):
        certain, doubt = False, "steps begin anew in each epoch; add the groups epoch, epoch_steps"
    values = np.array([_float(value) for value in rows[time.place]])
    if time.group.startswith("duration") and is_mean_since_start(values):
        certain, doubt = False, "its times look like means since the start, not those of steps"
    if time.score == 1 and time.group.startswith(("duration", "elapsed")) and not doubt:
        doubt = "the unit is a guess"
    if step is None and not doubt:
        doubt = "the lines have no step number, so each line counts as a step"
    return Proposal(pattern, certain, doubt)


def _likeness(choice: _Choice, texts: Sequence[str]) -> tuple[bool, bool]:
    """Whether the words before a number name one step's time, and whether they end in a step."""
    label = re.split(r"[,;|\[\]{}\t]", texts[choice.place].lower())[-1]
    return _ONE_STEP.search(label) is not None, _STEP_WORD.search(label) is not None


def _is_step_named(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a whole number has a step's word before it."""
    label = re.split(r"[,;|{}\t]", texts[place].lower())[-1]
    is_whole = all(value.replace(",", "").isdigit() for value in columns[place])
    return is_whole and _STEP_WORD.search(label) is not None


def _leaps(steps: Sequence[str]) -> bool:
    """Whether most lines stand for more than one step."""
    numbers = [_float(value) for value in steps]
    gaps = sorted(b - a for a, b in pairwise(numbers))
    return bool(gaps) and gaps[len(gaps) // 2] > 1


def _begins_anew(rows: Sequence[Sequence[str]], step: int, texts: Sequence[str]) -> bool:
    """Whether the step's number falls where an epoch's number changes."""
    epochs = [p for p in range(len(rows)) if re.search(r"epoch\W*$", texts[p].lower())]
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
    if re.fullmatch(f"{_DATE}|{_SLASH_DATE}", values[0]):
        return _Choice(place, "time", 0)
    if re.fullmatch(_CLOCK, values[0]):
        return _Choice(place, "elapsed", 0) if _is_clock(before, values) else None
    label = re.split(r"[,;|\[\]{}\t]", before)[-1]
    word, unit = _TIME_WORD.search(label), _UNIT.match(behind)
    if _PART_WORD.search(label) or _OTHER_UNIT.match(behind) or _MEAN_BEHIND.match(behind):
        return None
    if any(text in (":", ",") for text in (texts[place], behind)):  # parts of 1:02 or of 0,5
        return None
    if any(DECIMAL_COMMA.fullmatch(value) for value in values):
        return None
    if _is_label(label, behind):
        behind, unit = "", None
    if _STEPS_PER_S.match(behind) or re.search(r"(?:it|iter|step)s?[/_]s(?:ec)?\W*$", label):
        return _Choice(place, "steps_per_s", 2)
    per_step = _PER_STEP.match(behind) or _PER_STEP_BEFORE.search(label)
    if per_step:
        return _Choice(place, "duration_ms" if per_step["unit"] == "ms" else "duration_s", 2)
    if _WORK_PER_S.match(behind) or _RATE_WORD.search(label):
        return _Choice(place, "rate", 1)
    if word is None and unit is None:
        return None
    numbers = [_float(value) for value in values]
    pairs = list(pairwise(numbers))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    if rises <= 0.01 * len(pairs) and falls > 0.5 * len(pairs) and len(pairs) >= _MONOTONE:
        return None  # time that is left
    name = unit["unit"] if unit else word["unit"] if word else None
    if name is None:
        sizes = [abs(b - a) for a, b in pairs] if falls <= 0.01 * len(pairs) + 1 else numbers
        middle = sorted(sizes)[len(sizes) // 2]
        name = "ms" if middle >= 50 and "elapsed" not in label else "s"
        score = 1
    else:
        others = re.sub(_STEP_TIME_WORD.pattern + r"\b", "", re.sub(r"[\W_]+", " ", label))
        score = 3 if word and not others.strip() else 2
    grows = falls == 0 and numbers[-1] > 2 * numbers[0] >= 0
    # A restart sets the clock back.
    is_clock = falls <= 0.02 * len(pairs) and rises > 0.5 * len(pairs) and len(pairs) >= _MONOTONE
    kind = "elapsed" if grows or is_clock else "duration"
    if kind == "duration" and falls == 0 and rises:
        score = min(score, 2)
    return _Choice(place, f"{kind}_{'ms' if name[0] == 'm' else 's'}", score)


def _is_clock(before: str, values: Sequence[str]) -> bool:
    """Whether a time such as 1:02:03 goes on from line to line; it may fall at midnight."""
    pairs = list(pairwise(seconds_of_text(value, "the clock") for value in values))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    return _NO_CLOCK.search(before) is None and falls <= 0.02 * len(pairs) + 1 < rises


def _loose_time(
    place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]
) -> _Choice | None:
    """The group of a number that may be a time or a rate: nothing but its size tells the unit."""
    values = columns[place]
    if not re.fullmatch(_NUMBER, values[0]):
        return None
    label = re.split(r"[,;|\]{}\t]", texts[place].lower())[-1]
    numbers = [_float(value) for value in values]
    pairs = list(pairwise(numbers))
    rises, falls = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    is_monotone = not (rises and falls) or falls <= 0.02 * len(pairs)
    if all(_EPOCH_S[0] < number < _EPOCH_S[1] for number in numbers) and is_monotone and rises:
        return _Choice(place, "elapsed_s", 0)
    has_unit = _OTHER_UNIT.match(texts[place + 1]) is not None
    if is_monotone or min(numbers) <= 0 or has_unit or not any("." in value for value in values):
        return None
    if _LOOSE_RATE.search(label):
        return _Choice(place, "rate", 1)
    if _LOOSE_TIME.search(label):
        is_ms = sorted(numbers)[len(numbers) // 2] >= 50
        return _Choice(place, "duration_ms" if is_ms else "duration_s", 1)
    return None


def _is_label(label: str, behind: str) -> bool:
    """Whether the words behind a number name the next number, as in "loss 2.3 tok/s 1993"."""
    named = re.search(r"[a-z]", label) is not None and _TIME_WORD.search(label) is None
    return named and re.fullmatch(r"\s[a-z]+(?:/[a-z]+)*[\s:=]+", behind.lower()) is not None


def _step_of(place: int, texts: Sequence[str], columns: Sequence[Sequence[str]]) -> _Choice | None:
    """A number that counts the steps, with a score of how sure that is."""
    if not all(value.replace(",", "").isdigit() for value in columns[place]):
        return None
    numbers = [_float(value) for value in columns[place]]
    grows = sum(a < b for a, b in pairwise(numbers))
    if grows < 0.9 * (len(numbers) - 1):
        return None
    named = _STEP_WORD.search(re.split(r"[,;|{}\t]", texts[place].lower())[-1])
    gaps = {b - a for a, b in pairwise(numbers)}
    if named is None and len(gaps) > 1:
        return None
    return _Choice(place, "step", 2 if named else 1)


def _pattern(chosen: dict[int, str], texts: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    """The text from the words before the first chosen number to the unit behind the last one."""
    first, last = min(chosen), max(chosen)
    pieces = []
    for place in range(first, last + 1):
        before = texts[place]
        if place == first:
            # The words before a date or a clock may change with the day.
            is_clock = chosen[place] in ("time", "elapsed")
            before = "" if is_clock else re.split(r"[,;|\[\]{}]", before)[-1].lstrip()
            pieces.append(_begin(texts[place]) if place == 0 and not is_clock else "")
        pieces.append(_literal(before))
        group = chosen.get(place)
        if group is None:
            pieces.append(r"\S+?")
        elif group == "time":
            is_iso = re.fullmatch(_DATE, columns[place][0]) is not None
            pieces.append(f"(?P<time>{_DATE if is_iso else _SLASH_DATE})")
        elif group == "elapsed":
            pieces.append(f"(?P<elapsed>{_CLOCK})")
        elif group in ("step", "rank"):
            digits = r"[\d,]+" if any("," in value for value in columns[place]) else r"\d+"
            pieces.append(f"(?P<{group}>{digits})")
        else:
            pieces.append(rf"(?P<{group}>[\d.,eE+-]*\d)")
    pieces.append(_literal(re.split(r"[,;|\[\]{}]", texts[last + 1])[0].rstrip()[:12]))
    return "".join(pieces)


def _begin(before: str) -> str:
    """The begin of a line, if a word and not a mark stands there."""
    return r"^\s*" if re.match(r"\w", before) and not re.search(r"[,;|\[\]{}]", before) else ""


def _literal(text: str) -> str:
    """A text as a regular expression that a shell takes in single quotes."""
    words = [re.escape(word).replace("'", ".") for word in text.split(" ")]
    return r"\s+".join(words)


def _float(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")
