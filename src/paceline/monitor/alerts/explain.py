"""Where a session's main cause is, and what the best remedy gains, in words, from result.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def place_of(result: Mapping[str, Any], cause: str | None) -> str | None:
    """Where the finding of that cause is (of the first finding, without one)."""
    findings = result.get("findings", [])
    named = [finding for finding in findings if finding["cause"] == cause] or findings[:1]
    where: Mapping[str, Any] = named[0].get("where", {}) if named else {}
    parts = []
    if where.get("workers"):
        shown = [f"dp {dp} stage {pp}" for dp, pp in where["workers"][:4]]
        more = len(where["workers"]) - len(shown)
        parts.append(f"worker {', '.join(shown)}" + (f" and {more} more" if more else ""))
    if "stage" in where:
        parts.append(f"stage {where['stage']}")
    if where.get("link"):
        ends = " to ".join(f"dp {dp} stage {pp}" for dp, pp in where["link"])
        parts.append(f"link {ends}")
    if where.get("hosts"):
        parts.append(f"host {', '.join(map(str, where['hosts'][:4]))}")
    return "; ".join(parts) or None


def hosts_of(meta: Mapping[str, Any], ranks: Sequence[int]) -> str | None:
    """The hosts of ranks, as pushed with a trace; None where it says none."""
    pushed = meta.get("hosts")
    places = [pushed.get(str(rank)) for rank in ranks] if isinstance(pushed, Mapping) else []
    names = dict.fromkeys(str(place[0])[:100] for place in places if place)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(list(names)[:4]) + more or None


def gain_of(result: Mapping[str, Any]) -> str | None:
    """The best remedy's sentence; None where none gains a percent."""
    best = max(result.get("remedies", []), key=lambda remedy: remedy["gain"], default=None)
    return str(best["text"]) if best is not None and best["gain"] >= 0.01 else None
