"""Text on S, by both references if they differ (docs/whatif.md, Two references)."""

from __future__ import annotations

from collections.abc import Mapping


def by_paper(slowdown_paper: float, slow_mode_shares: Mapping[str, float]) -> str:
    """``0.985 by the paper's reference``; empty if both references agree.

    Args:
        slowdown_paper: S by the paper's reference.
        slow_mode_shares: kinds judged against their fast steps -> share of their slow steps.
    """
    return f"{slowdown_paper:.3f} by the paper's reference" if slow_mode_shares else ""


def of_which_lasts(slowdown: float, slowdown_lasting: float | None) -> str:
    """``1.012 lasts, the rest is variation that passes``; empty if passes are whole.

    Args:
        slowdown: S.
        slowdown_lasting: S of the typical step; None if not computed.
    """
    if slowdown_lasting is None:
        return ""
    if slowdown_lasting > slowdown:
        return f"{slowdown_lasting:.3f} of the typical step; in some steps less is lost"
    return f"{slowdown_lasting:.3f} lasts, the rest is variation that passes"
