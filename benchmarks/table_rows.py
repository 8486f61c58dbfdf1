"""Rows of a table that someone else wrote: cells read one by one, with errors that name them."""

import csv
import math

from predicted_row import row_of

from paceline.errors import ModelError, PacelineError
from paceline.plan.cells import Cells


def read_rows(path):
    """[row] cells by column; a row of another length has its problem under ``None``."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = [line for line in csv.reader(file) if any(map(str.strip, line))]
    if not lines:
        raise SystemExit(f"{path} is empty")
    columns = [name.strip() for name in lines[0]]
    rows = []
    for line in lines[1:]:
        row = dict.fromkeys(columns, "")
        row |= {name: cell.strip() for name, cell in zip(columns, line, strict=False)}
        if len(line) != len(columns):
            row[None] = f"the row has {len(line)} cells, the header {len(columns)}"
        rows.append(row)
    return rows


def number(row, column):
    """The number of a cell, the first where it has two; None where it has none.

    Raises:
        ModelError: it is something else.
    """
    return Cells(row, published=True).number(column)


def whole(row, column, default=None):
    """The same as a whole number; ``default`` where there is none.

    Raises:
        ModelError: it is something else, or there is neither.
    """
    return Cells(row, published=True).whole(column, default)


def degree(row, column):
    """A degree of parallelism; tables leave what is not used empty, 0 or "n/a"."""
    return whole(row, column, 0) or 1


def flag(row, column):
    """Whether a cell says yes; empty = no."""
    return Cells(row, published=True).flag(column, default=False)


def word(row, column, default=""):
    """A cell in small letters; ``default`` where it has none."""
    return Cells(row, published=True).word(column, default)


def layer_counts(row):
    """Layers of each chunk, separated by blanks or commas; None where the row says none.

    Raises:
        ModelError: they are something else.
    """
    return Cells(row, published=True).counts("layers_per_chunk")


def predicted_rows(rows, measured_of, predict_one):
    """The list of a table: ``row_of`` of each row, whatever it holds.

    Args:
        rows: of ``read_rows``.
        measured_of: row -> what was measured.
        predict_one: (row, its number) -> (predicted, (low, high)).
    """
    result = []
    for i, row in enumerate(rows):
        predicted = ends = error = None
        try:
            if None in row:
                raise ModelError(row[None])
            predicted, ends = predict_one(row, i)
            if not all(map(math.isfinite, (predicted, *ends))):
                raise ModelError(f"the prediction is {predicted}")
        except PacelineError as problem:
            predicted, ends, error = None, None, str(problem)
        except Exception as problem:  # a row of a sort never seen costs the others nothing
            predicted, ends = None, None
            error = f"cannot be predicted: {type(problem).__name__}: {problem}"
        measured = measured_or_none(row, measured_of)
        result.append(row_of(row.get("id") or i, predicted, ends, measured, error))
    return result


def measured_or_none(row, measured_of):
    """A positive number, or None where the row has no such."""
    try:
        value = measured_of(row)
    except (PacelineError, ArithmeticError):
        return None
    return value if value is not None and math.isfinite(value) and value > 0 else None
