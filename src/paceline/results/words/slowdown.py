"""S in words, by both references where they differ (docs/whatif.md, Two references)."""

from __future__ import annotations

from collections.abc import Mapping


def by_paper(slowdown_paper: float, slow_mode_shares: Mapping[str, float]) -> str:
    """``0.985 by the paper's reference``; empty where both references are the same.

    Args:
        slowdown_paper: S by the paper's reference.
        slow_mode_shares: kinds judged against their fast steps -> share of their slow steps.
    """
    return f"{slowdown_paper:.3f} by the paper's reference" if slow_mode_shares else ""
