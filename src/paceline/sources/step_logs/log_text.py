"""Whether a file is a log of training steps, by its first lines."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.sources.json_stream import head
from paceline.sources.step_logs import mlperf
from paceline.sources.step_logs.formats import LINE_FORMATS

#: A numbered step in a line of text, followed by a measured number such as a loss.
_STEP = re.compile(r"\b(?:step|iter|iteration|epoch)s?\b[\s:=#(\[/]{0,20}\d.*\d\.\d", re.IGNORECASE)

#: Least number of such lines; a text may mention a step.
_MIN_STEPS = 2


def is_log(path: Path) -> bool:
    """Whether the first lines have the steps of a known tool, or numbered steps in text."""
    text = head(path) if path.is_file() else ""
    if "\0" in text:
        return False
    lines = text.splitlines()
    if mlperf.CUE in text or any(
        known.cue in line and known.pattern.search(line) for line in lines for known in LINE_FORMATS
    ):
        return True
    if text.lstrip().startswith(("{", "[{", "<")):
        return False
    return sum(_STEP.search(line) is not None for line in lines) >= _MIN_STEPS
