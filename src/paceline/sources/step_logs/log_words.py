"""Words, units and numbers of a step's line, for proposals of a pattern."""

from __future__ import annotations

import re

from paceline.sources.step_logs.clocks import UNIT_NAMES

DATE = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
SLASH_DATE = r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
CLOCK = r"\d{1,3}:\d\d:\d\d(?:\.\d{1,9})?"
NUMBER = r"(?:(?<![\w.])|(?<=rank))[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?"
PART = rf"\d+(?:\.\d+)?\s?(?:{UNIT_NAMES})(?![a-z/])"
SPAN = rf"(?<![\w.]){PART}(?:\s?{PART})"
#: A time of two units or more, such as 1m08.9s.
MIXED_UNITS = re.compile(f"{SPAN}+")


def _field(span: str) -> re.Pattern[str]:
    """A number, date, clock, or time with units of a line."""
    return re.compile(
        rf"(?P<stamp>{DATE}|{SLASH_DATE})|(?<![\w.:]){CLOCK}(?![\w:])|(?P<span>{span})|"
        rf"(?P<number>{NUMBER}|\b(?:nan|inf)\b)"
    )


FIELD = _field(f"{SPAN}+")
#: The same for a log whose times may have one unit or several: 53.8s, 1m02.8s.
UNIT_FIELD = _field(f"{SPAN}*")
#: Signs and digits between words.
NO_WORDS = re.compile(r"[^a-z]+")
STEP_WORD = re.compile(
    r"(?:^|[^a-z])(?P<word>global_?step|step|iter|iteration|it|update|batch)(?:e?s)?\W*$"
)
A_STEP = r"(?P<word>iteration|iter|it|step|update|batch)(?:e?s)?(?![a-z])"
TIME_WORD = re.compile(
    r"(?:^|[^a-z])(?:(?:step|iter|iteration|batch|train)[_ -]?time|time[_ ](?:per|of)[_ ]\w+|"
    r"time|dt|duration|took|elapsed|runtime)"
    r"(?:[_ ]?\(?(?P<unit>ms|msec|s|sec|secs|seconds)\)?)?\W*$"
)
#: Words before a number that say seconds a step.
PER_STEP_BEFORE = re.compile(rf"(?:^|[^a-z])(?P<unit>ms|s|sec)/{A_STEP}\W*$")
PART_WORD = re.compile(
    r"(?:^|[^a-z])(?:total|eta|remain|left|data|load|fwd|forward|bwd|backward|opt|val|eval|sav|"
    r"median|ema|smooth|running|moving|rolling|cumul|window|wait|comm|sync|lr)"
)
#: Words before a time that is a mean of several steps: those since the line before, or more.
MEAN_WORD = re.compile(r"(?:^|[^a-z])(?:avg|average|mean)")
#: Words before a number that may be a time or a rate, if no other number has better words.
LOOSE_TIME = re.compile(
    r"(?:^|[^a-z])(?:total|cost|spent|used|secs?|seconds|t|in|t_(?:step|iter|total|all))\W*$"
)
LOOSE_RATE = re.compile(r"(?:^|[^a-z])(?:speed|ips|sps|fps)\W*$")
NO_CLOCK = re.compile(r"(?:^|[^a-z])(?:eta|remain|left)")
#: Seconds since 1970, from 2001 to 2065.
EPOCH_S = (1e9, 3e9)
#: Words behind a time that say that it is a mean of more steps than the line's.
MEAN_BEHIND = re.compile(
    r"['\"]?\s?(?:ms|msec|s|secs?|seconds?)?(?:/[a-z]+)?\s*[(\[]\s*"
    r"(?:avg|average|mean|median|ema|smoothed|running|moving|rolling|cumulative)[^)\]]*[)\]]",
    re.I,
)
#: Words beside which a bare time is that of a step.
STEP_TIME_WORD = re.compile(
    r"(?:step|iter|iteration|batch|train(?:ing)?|it|time|per|of|in|the|this|took|elapsed|dt|wall|"
    r"duration|runtime|done|finished|completed|ms|msec|s|secs?|seconds?)"
)
#: Words that say that a time is that of one step, not of all steps since the line before.
ONE_STEP = re.compile(
    r"(?:step|iter|iteration|it)s?[_ -]?time|(?:per|of)[_ ](?:step|iter|it)|(?:\b|_)dt\b"
)
#: Lines with these words are no steps of training, or of parts of them.
OTHER_LINE = re.compile(
    r"\b(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|predict\w*|"
    r"inference|sanity|warm-?up)\b(?![ _/-]?(?:loss|acc|ppl|perplexity))"
)
#: A bar of other units than steps; its rates are smoothed.
BAR = re.compile(r"\d%\|.*\[\d{1,3}:\d\d")
PART_LINE = re.compile(r"\b(?:micro|accum)")
OTHER_UNIT = re.compile(
    r"['\"]?\s?(?:us|usec|\u00b5s|\u03bcs|ns|nsec|m|min|mins|minutes?|h|hr|hrs|hours?|d|days?)(?![\w/])"
)
RATE_WORD = re.compile(
    r"(?:^|[^a-z])(?:tps|wps|throughput|(?:tok|token|sample|image)\w*[/_ ]?(?:per_)?s)"
)
UNIT = re.compile(r"['\"]?\s?(?P<unit>ms|msec|milliseconds?|s|secs?|seconds?)(?![\w/])")
STEPS_PER_S = re.compile(rf"\s?{A_STEP}\s?(?:/|per)\s?s(?:ec|econd)?(?![a-z])")
STEPS_PER_S_BEFORE = re.compile(rf"(?:^|[^a-z]){A_STEP}(?:/|_per_)s(?:ec)?\W*$")
#: Words before a number that are seconds a step to one writer, and steps a second to another.
STEP_S_BEFORE = re.compile(rf"(?:^|[^a-z]){A_STEP}_s(?:ec)?\W*$")
PER_STEP = re.compile(rf"\s?(?P<unit>m?s)(?:ec)?(?:/|\s?per\s){A_STEP}")
WORK_PER_S = re.compile(r"\s?(?:k?tok|token|sample|seq|img|image|example)\w*(?:/\w+)?/s")
