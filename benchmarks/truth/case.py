"""A case of the benchmark, and which findings would be true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from world.data import Lengths, lengths_of
from world.faults import (
    Delay,
    HeavyEnds,
    LateMember,
    Loading,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
    UnevenData,
)
from world.plant import Setup, World
from world.programs import FORWARD, GATHER, SCATTER, SEPARATE


@dataclass(frozen=True, eq=False)
class Case:
    """A job to judge the product by.

    ``tags``: what tables group it by. ``lengths``: whether the product is told sequence lengths.
    """

    id: str
    part: str
    world: World
    setup: Setup
    tags: Mapping[str, Any]
    lengths: bool = False

    @property
    def size(self) -> int:
        """About how many operations it has: the large ones run first."""
        world, setup = self.world, self.setup
        return world.steps * world.stages * setup.chunks * sum(setup.microbatches)

    def sequences(self) -> Lengths | None:
        """What the product is told of the data."""
        return lengths_of(self.world, self.setup.microbatches) if self.lengths else None


Place = tuple[Any, ...]


@lru_cache(maxsize=64)
def injected(world: World, layers: tuple[int, ...]) -> dict[str, frozenset[Place]]:
    """Cause -> the places where it is, in the words of findings."""
    places: dict[str, set[Place]] = {}

    def add(cause: str, *where: Place) -> None:
        places.setdefault(cause, set()).update(where)

    last = world.stages - 1
    for fault in world.faults:
        if isinstance(fault, SlowMachine):
            add("worker", (fault.dp, fault.stage))
        elif isinstance(fault, HeavyEnds):
            add("stage-imbalance", *([(last,)] if fault.last else []))
            add("stage-imbalance", *([(0,)] if fault.first else []))
        elif isinstance(fault, SlowLink):
            add("link", _link(fault.dp, fault.low, world.stages))
        elif isinstance(fault, SlowNic):
            add("dp-network", *((fault.stage, kind) for kind in (GATHER, SCATTER, SEPARATE)))
            if fault.messages:  # both its links are slow
                for low in (fault.stage - 1, fault.stage):
                    add("link", _link(fault.dp, low % world.stages, world.stages))
        elif isinstance(fault, LateMember):
            add("dp-network", *((fault.stage, kind) for kind in fault.kinds))
            add("dp-network", *((fault.dp, fault.stage, kind) for kind in fault.kinds))
        elif isinstance(fault, UnevenData):
            add("sequence-length", ())
        elif isinstance(fault, Pauses):
            add("gc", ())
        elif isinstance(fault, Delay):
            add("launch-delay", (fault.kind,))
        elif isinstance(fault, Loading):
            add("launch-delay", (FORWARD,))
        if 0 < getattr(fault, "share", 1.0) < 1:
            add("drift", ())  # steps differ for good reason
    heaviest = max(layers)
    if min(layers) < heaviest:
        add(
            "stage-imbalance", *((q % world.stages,) for q, n in enumerate(layers) if n == heaviest)
        )
    return {cause: frozenset(where) for cause, where in places.items() if where}


def _link(dp: int, low: int, stages: int) -> Place:
    ends = sorted((low, (low + 1) % stages))
    return (dp, ends[0], ends[1])


def named(finding: Mapping[str, Any]) -> list[Place]:
    """The places that a finding names, worst first."""
    where, evidence = finding["where"], finding["evidence"]
    cause = finding["cause"]
    if cause == "worker":
        return [(int(dp), int(pp)) for dp, pp in where["workers"]]
    if cause == "stage-imbalance":
        return [(int(where["stage"]),)]
    if cause == "link":
        links = evidence.get("links") or [where["link"]]
        return [(int(a[0]), *sorted((int(a[1]), int(b[1])))) for a, b in links]
    if cause == "dp-network":
        if "workers" in where:  # members that end late
            kinds = [str(kind) for kind in evidence["kinds"]]
            return [(int(dp), int(pp), kind) for dp, pp in where["workers"] for kind in kinds]
        groups = evidence.get("groups") or [where["group"]]
        return [(int(group["stage"]), str(group["kind"])) for group in groups]
    if cause == "launch-delay":
        group = where.get("group") or {}
        return [(str(group.get("kind", "")),)]
    return [()]


@dataclass(frozen=True)
class Verdict:
    """Whether all places that a finding names are true, whether the first is, how many it lacks."""

    true: bool
    first: bool
    lacking: int


def judge(finding: Mapping[str, Any], truth: Mapping[str, frozenset[Place]]) -> Verdict:
    """Compare a finding with what was injected."""
    right = truth.get(finding["cause"], frozenset())
    places = named(finding)
    inside = [place in right for place in places]
    return Verdict(all(inside), inside[0], len(right - set(places)))
