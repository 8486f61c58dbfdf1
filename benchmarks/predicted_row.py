"""A row of a predicted table: its number, its interval, or why it cannot be expressed."""

GIB = 2**30

#: Measured peaks over predicted ones, at the ends of their 80% interval: the 10th and 90th
#: percentile of the shared rows. In sample: rows of other software may lie outside.
MEMORY = (0.90, 1.12)


def row_of(name, predicted, ends, measured, error=None):
    """``ends``: low and high; both and ``predicted`` are None where ``error`` says why."""
    low, high = ends or (None, None)
    return {
        "id": name,
        "predicted": predicted,
        "low": low,
        "high": high,
        "measured": measured,
        "error": error,
    }
