"""Cells of a row of a table of runs, by column; every complaint names the column."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from paceline.errors import ModelError

#: How tables write that a cell has no value, and switches.
_NOTHING = ("n/a", "na", "-", "none")
_MISSING = ("nan", "null")  # of published tables
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")


@dataclass(frozen=True)
class Cells:
    """A row.

    Attributes:
        cells: column -> text.
        where: what errors begin with: "runs.csv:3: ".
        published: whether someone published the table for people to read. Then a number may have
            another behind it ("37556 (36108)"), of which the first counts, and a value that is
            missing may be "nan" or "null".
    """

    cells: Mapping[str, str]
    where: str = ""
    published: bool = False

    def fail(self, column: str, problem: str) -> NoReturn:
        """Refuse a cell.

        Raises:
            ModelError: always.
        """
        raise ModelError(f"{self.where}{column} {problem}")

    def text(self, column: str, default: str = "") -> str:
        """The cell's text; ``default`` where it is empty or there is no such column."""
        return self.cells.get(column) or default

    def word(self, column: str, default: str = "") -> Any:
        """The cell's text in small letters; ``default`` where it has none ("none" is a word).

        Any: whoever takes it says which words there are.
        """
        text = self.text(column).lower()
        return default if self._is_nothing(text) and text != "none" else text

    def _is_nothing(self, text: str) -> bool:
        return not text or text in _NOTHING or (self.published and text in _MISSING)

    def number(self, column: str) -> float | None:
        """The cell's number; None where it has none.

        Raises:
            ModelError: it is something else.
        """
        text = self.text(column)
        plain = re.split(r"[ (*]", text.strip())[0].lower() if self.published else text.lower()
        if self._is_nothing(plain):
            return None
        if _THOUSANDS.fullmatch(plain):
            plain = plain.replace(",", "")
        try:
            value = float(plain)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail(column, f"must be a number, not {text[:40]!r}")
        return value

    def whole(self, column: str, default: int | None = None) -> int:
        """The cell's whole number; ``default`` where it has none.

        Raises:
            ModelError: it is something else, or there is neither.
        """
        value = self.number(column)
        if value is None:
            if default is None and column not in self.cells:
                raise ModelError(f"{self.where}no column {column}")
            if default is None:
                self.fail(column, "is empty")
            return default
        if value != int(value):
            self.fail(column, f"must be a whole number, not {self.text(column)[:40]!r}")
        return int(value)

    def flag(self, column: str, default: bool) -> bool:
        """Whether the cell says yes, in words or as a number; ``default`` where it is empty."""
        word = self.text(column).lower()
        return _FLAGS[word] if word in _FLAGS else bool(self.whole(column, int(default)))

    def counts(self, column: str) -> tuple[int, ...] | None:
        """Whole numbers separated by blanks or commas; None where the cell has none.

        Raises:
            ModelError: they are something else.
        """
        text = self.text(column)
        if self._is_nothing(text.lower()):
            return None
        try:
            return tuple(int(number) for number in text.replace(",", " ").split())
        except ValueError:
            self.fail(column, f"must be whole numbers such as 9 9 8, not {text[:40]!r}")
