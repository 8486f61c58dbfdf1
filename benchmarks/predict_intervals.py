"""A row of a predicted table: its number, its interval, or why it cannot be expressed."""

GIB = 2**30

#: Table, and kind of model -> measured over predicted at the ends of the 80% interval: the
#: 10th and 90th percentile of the shared rows. In sample: rows of other software may lie outside.
INTERVALS = {
    "published dense": (0.83, 1.10),
    "published moe": (0.86, 1.97),
    "published moe 2026": (0.85, 1.31),
    "mlperf": (0.94, 1.14),
    "memory": (0.90, 1.12),
}


def row_of(name, kind, predicted, measured, error=None):
    if error is not None:
        values = {"predicted": None, "low": None, "high": None}
    else:
        low, high = INTERVALS[kind]
        values = {"predicted": predicted, "low": predicted * low, "high": predicted * high}
    return {"id": name, **values, "measured": measured, "error": error}
