"""CSV files of measurements, opened and split in one place: all-reduce tables, tables of runs."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ModelError

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CsvTable:
    """The cells of a CSV file, stripped; empty lines are left out.

    Attributes:
        columns: cells of the first line; () if the file is empty.
        lines: number of each further line, and its cells.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]

    def rows(self) -> list[dict[str, str]]:
        """[row] cells by column; cells that a line lacks are empty."""
        padded = ((*cells, *[""] * len(self.columns)) for _, cells in self.lines)
        return [dict(zip(self.columns, cells, strict=False)) for cells in padded]

    def ragged(self) -> dict[int, str]:
        """Line -> problem, of the lines with another number of cells than the first."""
        n = len(self.columns)
        return {
            line: f"has {len(cells)} cells, the header {n}"
            for line, cells in self.lines
            if len(cells) != n
        }


def read_csv(path: Path, kind: str) -> CsvTable:
    """The table in a CSV file (UTF-8).

    Args:
        path: path of the file.
        kind: the kind of table for error messages, such as "table of runs".

    Raises:
        ModelError: it cannot be read, is no text or no CSV, or is too large for such a table.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ModelError(f"{path} has {size:,} bytes; is it a {kind}?")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is no text (UTF-8), so no {kind} in CSV") from None
    except OSError as error:
        raise ModelError(f"the {kind} {path} cannot be read: {error.strerror}") from None
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [tuple(cell.strip() for cell in line) for line in reader]
    except csv.Error as error:
        raise ModelError(f"{path} is no CSV: {error}") from None
    if not lines:
        return CsvTable((), ())
    return CsvTable(lines[0], tuple((n, line) for n, line in enumerate(lines[1:], 2) if any(line)))
