"""What the pages of docs/ tell the reader to write and to run.

A ``sh`` block of the tutorial or of a how-to runs in a test as it is written; a ``console`` block
needs a cluster or a service of somebody's, and is only parsed. A comment before a block says more:
``<!-- file: NAME -->``, the reader saves it under this name, or
``<!-- needs: MODULES; port: N; shows: WORDS | WORDS -->``: what its commands need and print.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block, with what its comment says."""

    kind: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> list[str]:
        """Modules that it needs beyond the base install."""
        return self.notes.get("needs", "").split()

    @property
    def shows(self) -> list[str]:
        """Phrases of what it prints."""
        phrases = self.notes.get("shows", "").split("|")
        return [phrase.strip() for phrase in phrases if phrase.strip()]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        pairs = [pair.split(":", 1) for pair in (match["note"] or "").split(";") if ":" in pair]
        notes = {name.strip(): value.strip() for name, value in pairs}
        found.append(Block(match["kind"], match["text"], notes))
    return found


def lessons() -> dict[str, list[Block]]:
    """Name -> blocks that are followed one after the other, in a folder of their own.

    A how-to is one lesson; each section of the tutorial is one.
    """
    pages = {
        f"how-to/{path.stem}": path.read_text(encoding="utf-8")
        for path in sorted((DOCS / "how-to").glob("*.md"))
    }
    sections = re.split(r"^## ", (DOCS / "tutorial.md").read_text(encoding="utf-8"), flags=re.M)
    for section in sections[1:]:
        pages[f"tutorial/{section.partition(chr(10))[0]}"] = section
    found = {name: blocks(text) for name, text in pages.items()}
    return {name: each for name, each in found.items() if any(b.kind == "sh" for b in each)}


def command_lines(text: str) -> Iterator[str]:
    """The lines of a page's code that call ``paceline``, without what surrounds the call."""
    code = [block.text for block in blocks(text) if block.kind in ("sh", "console", "bash", "text")]
    code += re.findall(
        r"(?<=\n\n)(?:(?: {4}.*)\n+)+", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    )
    for part in code:
        for line in part.replace("\\\n", " ").splitlines():
            if found := call(line):
                yield found


def inline_calls(text: str) -> list[str]:
    """Calls in the prose, such as `paceline record on`."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.findall(r"`(paceline [a-z][^`\n]*)`", prose)


def call(line: str) -> str:
    """``paceline analyze x`` of a line that calls it; empty for any other."""
    line = re.sub(r"^\s*(?:\$ )?", "", line)
    line = re.sub(r"^(?:[A-Z_]+=\S* +)+", "", line)  # variables before the command
    piped = re.search(r"(?:^|\| |&& |--no-python |\$\(|ExecStart=\S*/)(paceline .*)", line)
    if not piped:
        return ""
    shown = re.split(r"\s(?:#|\||&&|;|2?>>?|&$)(?:\s|$)", piped[1])[0].rstrip(" ;&")
    if line.startswith("(") or "$(paceline" in line:  # a shell of its own ends with the call
        shown = shown.partition(")")[0]
    try:
        return shown if re.fullmatch(r"[a-z]+", shlex.split(shown)[1]) else ""
    except (IndexError, ValueError):
        return ""
