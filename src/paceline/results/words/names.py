"""Names for users: causes, remedies, places, confidences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.trace.job import place_name
from paceline.trace.kinds import kind_name
from paceline.units import percent, several

CAUSES = {
    "worker": "Worker fault",
    "stage-imbalance": "Stage imbalance",
    "sequence-length": "Sequence-length imbalance",
    "gc": "Garbage collection",
    "link": "Slow link",
    "dp-network": "Data-parallel network",
    "peer-network": "Network within a group",
    "expert-imbalance": "Uneven experts",
    "context-imbalance": "Uneven context ranks",
    "unexplained": "Unexplained",
    "data-loading": "Data loading",
    "launch-delay": "Launch delay",
    "drift": "Change over time",
    "first-gather-exposed": "First gather exposed",
    "prefetch-late": "Prefetch too late",
    "bucket-too-large": "Last bucket exposed",
    "reduced-each-microbatch": "Reduced for each microbatch",
}

#: Cause of faulty hardware -> the hardware.
HARDWARE = {
    "worker": "workers",
    "link": "links",
    "dp-network": "groups",
    "peer-network": "groups",
}

#: Drops of the waterfall without a finding: their names and descriptions.
OTHERS = {
    "steps-overlap": ("Overlap of steps", "other ranks still run the step before"),
    "launch-delay": ("Launch delays", "time between operations"),
    "passing-variation": (
        "Other passing variation",
        "parts wait for the peer that is slow at the moment; no finding explains it",
    ),
    "unexplained": ("Other stragglers", "no known pattern"),
    "p2p": ("Transfers between stages", "sends and recvs"),
    "collectives": ("Collectives, optimizer", "and the rest of the tail"),
    "bubble": ("Pipeline bubble", "workers wait for their neighbours"),
}

#: Names of remedies that do not follow from their keys.
REMEDIES = {
    "1f1b": "1F1B",
    "fix-nic": "Fix NIC",
    "micro-batches": "Microbatches",
    "overlap-dp": "Overlap DP",
    "planned-gc": "Planned GC",
}

#: Least confidence for each word. Of findings from 90% on, at least 90% are true
#: (benchmarks/truth.py, docs/diagnosis.md).
LIKELY = (
    (0.99, "nearly certain"),
    (0.9, "very likely"),
    (0.7, "likely"),
    (0.5, "possible"),
    (0.0, "a guess"),
)

#: The same before a noun: "possibly worker dp 3".
ADVERBS = {"likely": "likely ", "possible": "possibly ", "a guess": "perhaps "}


def cause_name(cause: str) -> str:
    """``Worker fault``; an unknown cause keeps its key."""
    return CAUSES.get(cause, cause)


def remedy_name(remedy: str) -> str:
    """``Replace worker``."""
    return REMEDIES.get(remedy, remedy.replace("-", " ").capitalize())


def drop_name(drop: str) -> str:
    """Name of a drop of the waterfall."""
    return OTHERS[drop][0] if drop in OTHERS else cause_name(drop)


def likelihood(confidence: float) -> str:
    """The word for a confidence, ``very likely``."""
    return next((word for least, word in LIKELY if confidence >= least), LIKELY[-1][1])


def confidence_text(confidence: float) -> str:
    """``very likely (93%)``."""
    if confidence >= LIKELY[0][0]:
        return f"{LIKELY[0][1]} (over 99%)"  # no finding is certain
    # Rounded down: 89.7% must not become "90%", which has another word.
    floor = int(confidence * 100 + 1e-9) / 100
    return f"{likelihood(confidence)} ({percent(floor, 0)})"


def hedge(confidence: float) -> str:
    """Prefix of an uncertain cause; empty for a certain one."""
    return ADVERBS.get(likelihood(confidence), "")


def worker(place: Sequence[int]) -> str:
    """``dp 3, stage 1``."""
    return place_name(place)


def workers(places: Sequence[Sequence[int]], most: int) -> str:
    """``dp 3, stage 1; dp 4, stage 1 and 3 more``."""
    return several([worker(place) for place in places], most, "; ")


def link(ends: Sequence[Sequence[int]]) -> str:
    """``dp 0, stages 1 and 2``."""
    (dp, low, *peers), (_, high, *_) = ends
    of_peer = "".join(f", peer {int(peer)}" for peer in peers)
    return f"dp {int(dp)}{of_peer}, stages {int(low)} and {int(high)}"


def hosts(where: Mapping[str, Any], most: int) -> str:
    """The hosts of a finding's place; empty if unknown."""
    return several([str(host) for host in where.get("hosts") or ()], most)


def place(where: Mapping[str, Any], most: int = 4) -> str:
    """The place of a finding, as in ``worker dp 3, stage 1; host node-7``; empty without one."""
    phrases = []
    if where.get("workers"):
        phrases.append(f"worker {workers(where['workers'], most)}")
    if "stage" in where:
        phrases.append(f"stage {where['stage']}")
    if where.get("link"):
        phrases.append(f"link {' to '.join(map(worker, where['link']))}")
    if where.get("hosts"):
        phrases.append(f"host {', '.join(map(str, where['hosts'][:most]))}")
    return "; ".join(phrases)


def with_kind_names(values: Mapping[str, Any], all_reduces: bool) -> dict[str, Any]:
    """Evidence or a change, with the names of kinds for people instead of their labels.

    Args:
        values: evidence of a finding, or change of a remedy.
        all_reduces: whether the job reduces its gradients to all ranks.
    """
    named = dict(values)
    for key in ("by_kind", "slow_over_fast_by_kind"):
        if isinstance(values.get(key), Mapping):
            named[key] = {kind_name(kind, all_reduces): x for kind, x in values[key].items()}
    if kinds := values.get("kinds"):
        named["kinds"] = [kind_name(kind, all_reduces) for kind in kinds]
    for key, of_row in (("groups", "kind"), ("alone", "hide")):
        if rows := values.get(key):
            named[key] = [{**row, of_row: kind_name(row[of_row], all_reduces)} for row in rows]
    return named
