"""The range of a job's or session's slowdown and waste, and the factor of a fail-slow.

A slow worker among few peers raises the ideal, so S is a lower bound. ``slowdown_healthy`` is the
upper end: S beside healthy hardware (docs/whatif.md). It is None where S has no range.
``data_loading`` is the share of the step that waits for data take, outside S.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

#: A step has some work beside the waits for data.
_MOST_DATA = 0.999


def largest_slowdown(row: Row) -> float | None:
    """The upper end of S; S itself without a range."""
    if row["slowdown"] is None:
        return None
    return max(float(row["slowdown"]), float(row["slowdown_healthy"] or 0.0))


def largest_lasting(row: Row) -> float | None:
    """The upper end of S without variation that passes; that of S if its part is unknown."""
    largest = largest_slowdown(row)
    if largest is None or row["slowdown_lasting"] is None or not row["slowdown"]:
        return largest
    return float(row["slowdown_lasting"]) * largest / float(row["slowdown"])


def lasting_kind(row: Row) -> str | None:
    """The kind of ``slowdown_lasting`` of a session or job; None without it.

    "lasts-or-has-a-cause", or "beyond-chance": where no cause is known, the part that chance may
    explain is left out, too.
    """
    if row["slowdown_lasting"] is None:
        return None
    return "beyond-chance" if row["cause"] == "unexplained" else "lasts-or-has-a-cause"


def waste_range(row: Row) -> tuple[float, float]:
    """The waste, 1 - 1/S, at least and at most; each is 0 or more."""
    low, largest = max(0.0, float(row["waste"] or 0.0)), largest_slowdown(row)
    return low, max(low, 1 - 1 / largest) if largest else low


def data_share(row: Row) -> float:
    """The share of the step that waits for data take, which S leaves out; 0 without them."""
    return min(float(row.get("data_loading") or 0.0), _MOST_DATA)


def largest_lasting_loss(row: Row) -> float | None:
    """The upper end of the step time over that without what lasts or has a cause.

    Beside the lasting part of S, waits for data count. None without S.
    """
    lasting = largest_lasting(row)
    return None if lasting is None else lasting / (1 - data_share(row))


def loss_range(row: Row) -> tuple[float, float]:
    """The share of the step lost to stragglers and to waits for data, at least and at most."""
    low, high = waste_range(row)
    waits = data_share(row)
    return low + (1 - low) * waits, high + (1 - high) * waits


def may_go_on(job: Row) -> bool:
    """Whether a job's live step times show that it runs, or ran until it fell silent.

    A recording pushed by hand does not, and an ended job does not any more.
    """
    return job["status"] in ("running", "silent")


def is_before(session: Row | None, job: Row) -> bool:
    """Whether a session is of steps before the current fail-slow, about which it says nothing."""
    since = job["slow_since_step"]
    if session is None or since is None or session["last_step"] is None:
        return False
    return int(session["last_step"]) < int(since)


def slow_factor(job: Row) -> float | None:
    """Step time over the healthy one in a current fail-slow; None without one.

    It is that of the detector's present level, by all of its steps. Rows of older versions have
    none, so that the latest steps are compared.
    """
    if job["slow_since_step"] is None:
        return None
    factor = job["slow_factor"]
    if factor is None and job["step_s"] and job["healthy_s"]:
        factor = job["step_s"] / job["healthy_s"]
    return None if factor is None else max(1.0, float(factor))
