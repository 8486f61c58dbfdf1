"""Lines of text of a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.text import Text


def wrap(text: str, width: int, *, indent: str = "", style: str = "") -> list[Text]:
    """The text in lines of at most ``width`` characters, the later ones indented."""
    lead = text[: len(text) - len(text.lstrip())]
    lines: Iterable[str] = textwrap.wrap(
        text.lstrip(),
        width,
        initial_indent=lead,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [Text(line, style=style) for line in lines]
