"""Remedies that the product refuses: what the obvious change of that sort would really gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from truth.apply import interleaved, swapped, with_counts
from truth.case import Case
from world.data import contents_of
from world.faults import (
    Delay,
    LateMember,
    Loading,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
    UnevenData,
)
from world.plant import Setup, machine_number
from world.record import step_s, with_gc_every


def best_gain(case: Case, remedy: str, now_s: float) -> float | None:
    """The largest gain of the candidates for a remedy; None where there is nothing to change."""
    if remedy == "planned-gc":
        found = [f for f in case.world.faults if isinstance(f, Pauses)]
        return (
            1 - with_gc_every(case.world, case.setup, found[0].seconds, 100) / now_s
            if found
            else None
        )
    times = (
        [step_s(case.world, setup) for setup in _CANDIDATES[remedy](case)]
        if (remedy in _CANDIDATES)
        else []
    )
    return 1 - min(times) / now_s if times else None


def _replace(case: Case) -> Iterator[Setup]:
    slow = [f for f in case.world.faults if isinstance(f, SlowMachine)]
    if slow and case.world.dp > 1:
        numbers = frozenset(machine_number(case.world, (f.dp, f.stage)) for f in slow)
        yield replace(case.setup, new_machines=numbers)


def _links(case: Case) -> Iterator[Setup]:
    stages, links = case.world.stages, set()
    for fault in case.world.faults:
        if isinstance(fault, SlowLink):
            links.add((fault.dp, *sorted((fault.low, (fault.low + 1) % stages))))
        if isinstance(fault, SlowNic) and fault.messages and stages > 1:
            for other in (fault.stage - 1, fault.stage + 1):
                links.add((fault.dp, *sorted((fault.stage, other % stages))))
    if links:
        yield replace(case.setup, repaired_links=frozenset(links))


def _groups(case: Case) -> Iterator[Setup]:
    ill = [f.stage for f in case.world.faults if isinstance(f, SlowNic | LateMember)]
    if ill:
        yield replace(case.setup, repaired_groups=frozenset(ill))


def _layout(case: Case) -> Iterator[Setup]:
    """Layers move one by one from the heaviest virtual stage to the lightest."""
    if case.world.stages == 1:
        return
    extra = np.zeros(len(case.setup.layers))
    extra[0], extra[-1] = case.world.ends
    layers = np.array(case.setup.layers)
    while True:
        load = layers + extra
        give, take = int(np.argmax(np.where(layers > 1, load, -1))), int(np.argmin(load))
        if load[take] + 1 >= load[give]:
            break
        layers[give] -= 1
        layers[take] += 1
    if tuple(layers) != case.setup.layers:
        yield replace(case.setup, layers=tuple(int(n) for n in layers))


def _sequences(case: Case) -> Iterator[Setup]:
    """The dearest microbatch first, to the replica with the least so far that has room."""
    counts = case.setup.microbatches
    if not case.world.of(UnevenData) or len(counts) == 1:
        return
    attention, tokens = contents_of(case.world, counts)
    new = np.ones_like(attention), np.ones_like(tokens)
    for step in range(case.world.steps):
        places = [(dp, m) for dp, n in enumerate(counts) for m in range(n)]
        load, used = np.zeros(len(counts)), [0] * len(counts)
        for home in sorted(places, key=lambda place: -attention[step, place[0], place[1]]):
            full = [used[dp] >= counts[dp] for dp in range(len(counts))]
            dp = int(np.argmin(np.where(full, np.inf, load)))
            for table, old in zip(new, (attention, tokens), strict=True):
                table[step, dp, used[dp]] = old[step, home[0], home[1]]
            load[dp] += attention[step, home[0], home[1]]
            used[dp] += 1
    yield replace(case.setup, contents=new)


def _counts(case: Case) -> Iterator[Setup]:
    """One to three (groups of) microbatches leave the slowest replica, one for each other."""
    world, setup = case.world, case.setup
    slow = [f for f in world.faults if isinstance(f, SlowMachine)]
    unit = world.stages if setup.chunks > 1 else 1
    if not slow or world.dp == 1:
        return
    worst = max(slow, key=lambda fault: fault.factor).dp
    others = [dp for dp in range(world.dp) if dp not in {fault.dp for fault in slow}]
    for moved in range(1, 4):
        counts = list(setup.microbatches)
        counts[worst] -= moved * unit
        if counts[worst] < unit or not others:
            return
        for k in range(moved):
            counts[others[k % len(others)]] += unit
        yield with_counts(case, tuple(counts))


def _placements(case: Case) -> Iterator[Setup]:
    """The slowest machine to the ends of its pipeline; an end of a slow link to another replica."""
    world = case.world
    slow = [f for f in world.faults if isinstance(f, SlowMachine)]
    if slow and world.stages > 1:
        worst = max(slow, key=lambda fault: fault.factor)
        for stage in {0, world.stages // 2, world.stages - 1} - {worst.stage}:
            yield swapped(case, [((worst.dp, worst.stage), (worst.dp, stage))])
    for fault in world.faults:
        if isinstance(fault, SlowLink) and world.dp > 1:
            other = (fault.dp + 1) % world.dp
            yield swapped(case, [((fault.dp, fault.low), (other, fault.low))])


def _delays(case: Case) -> Iterator[Setup]:
    for fault in case.world.faults:
        if isinstance(fault, Delay):
            yield replace(case.setup, hidden=frozenset({fault.kind}))
        if isinstance(fault, Loading):
            yield replace(case.setup, hidden=frozenset({"loading"}))


def _overlap(case: Case) -> Iterator[Setup]:
    if case.setup.chunks > 1 and case.world.dp > 1 and not case.setup.overlap:
        yield replace(case.setup, overlap=True)


def _one_f_one_b(case: Case) -> Iterator[Setup]:
    if case.setup.schedule == "gpipe" and case.world.stages > 1:
        yield replace(case.setup, schedule="1f1b")


def _interleave(case: Case) -> Iterator[Setup]:
    setup, stages = case.setup, case.world.stages
    if setup.chunks == 1 and stages > 1 and all(n % stages == 0 for n in setup.microbatches):
        for chunks in (2, 4):
            yield interleaved(case, chunks)


_CANDIDATES = {
    "replace-worker": _replace,
    "fix-link": _links,
    "fix-nic": _groups,
    "stage-layout": _layout,
    "sequence-balance": _sequences,
    "micro-batches": _counts,
    "placement": _placements,
    "hide-delays": _delays,
    "overlap-dp": _overlap,
    "1f1b": _one_f_one_b,
    "interleave": _interleave,
}
