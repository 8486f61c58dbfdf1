"""Texts in the service's settings files; ``${NAME}`` comes from the environment."""

from __future__ import annotations

import os
import re

from paceline.marked_yaml import Section

_ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def text_of(section: Section, field: str, usual: str | None = None) -> str:
    """A text of a section; ``usual`` if it is missing.

    Raises:
        PacelineError: it is not a text, or is missing without a default; the class is the
            section's.
    """
    if field not in section:
        if usual is None:
            section.fail("", f"{field} is missing")
        return usual
    return _fill_in(section, field, section.text(field))


def texts_of(section: Section, field: str) -> tuple[str, ...]:
    """A text or a list of texts; empty if missing.

    Raises:
        PacelineError: it is something else; the class is the section's.
    """
    value = section.plain(field) if field in section else []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        section.fail(field, "must be a text, or a list of texts")
    return tuple(_fill_in(section, field, text) for text in texts)


def _fill_in(section: Section, field: str, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            section.fail(field, f"the environment has no {match[1]}; set it for the service")
        return os.environ[match[1]]

    filled = _ENVIRONMENT.sub(value, text)
    if any(ord(c) < 32 for c in filled):
        section.fail(field, "has a line break or control character")
    return filled
