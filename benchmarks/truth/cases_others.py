"""Healthy jobs under ten kinds of noise, weak causes, and clocks."""

from __future__ import annotations

import numpy as np

from truth.case import Case
from truth.cases_remedies import Size, name_of
from world.faults import (
    Fault,
    HeavyEnds,
    LateMember,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
    UnevenData,
)
from world.noise import (
    Bursts,
    Clocks,
    CommonSteps,
    GaussianOps,
    HeavyTails,
    LognormalMembers,
    LognormalOps,
    Noise,
    Spread,
    TwoClocks,
    Wander,
)
from world.plant import World, even_setup
from world.programs import CLIP, GATHER, SCATTER

#: Ten kinds of noise, each mild and strong; beside it a little of the usual.
NOISES: dict[str, tuple[tuple[Noise, ...], tuple[Noise, ...]]] = {
    "gaussian": ((GaussianOps(0.003),), (GaussianOps(0.01),)),
    "lognormal": ((LognormalOps(0.01),), (LognormalOps(0.03),)),
    "members": ((LognormalMembers(0.2),), (LognormalMembers(0.3),)),
    "tails": ((HeavyTails("student", 0.15),), (HeavyTails("pareto", 0.4),)),
    "wander": ((Wander(0.01, 0.9),), (Wander(0.02, 0.98),)),
    "common-steps": ((CommonSteps(0.006),), (CommonSteps(0.022),)),
    "bursts": ((Bursts(1.2, 0.002, 4),), (Bursts(1.5, 0.004, 6),)),
    "two-clocks": ((TwoClocks(0.02),), (TwoClocks(0.05),)),
    "spread": ((Spread(0.005),), (Spread(0.01),)),
    "coarse": ((), ()),
}
COARSE = (Clocks(skew_s=0.0003, quantum_s=1e-5), Clocks(skew_s=0.0009, quantum_s=1e-4))

HEALTHY_SIZES: tuple[Size, ...] = (
    (1, 4, 8, 1), (2, 1, 8, 1), (2, 2, 8, 1), (3, 2, 6, 1), (4, 4, 16, 1), (8, 1, 16, 1),
    (8, 4, 16, 2), (16, 2, 8, 1), (16, 8, 16, 1), (64, 1, 4, 1),
)  # fmt: skip


def healthy_cases(seed: int) -> list[Case]:
    """Every noise on every size, mild and strong in turn."""
    cases = []
    for name, strengths in NOISES.items():
        for place, size in enumerate(HEALTHY_SIZES):
            number, strong = 200 + len(cases), place % 2
            dp, stages, microbatches, chunks = size
            clocks = COARSE[strong] if name == "coarse" else Clocks()
            noise = (GaussianOps(0.003), *strengths[strong])
            world = World(
                seed * 1000 + number, dp, stages, 8, microbatches, noise=noise, clocks=clocks
            )
            tags = {"noise": name, "strong": bool(strong), "size": name_of(size)}
            word = "strong" if strong else "mild"
            id_ = f"s{seed}/healthy/{number}-{name}-{word}/{name_of(size)}"
            cases.append(Case(id_, "healthy", world, even_setup(world, microbatches, chunks), tags))
    return cases


def _weak(size: Size, rng: np.random.Generator) -> dict[str, tuple[Fault, ...]]:
    """Weak causes, alone and in pairs, by name."""
    dp, stages = size[0], size[1]
    at = int(rng.integers(dp)), int(rng.integers(stages))
    other = (at[0] + 1) % dp, (at[1] + 1) % stages
    link = int(rng.integers(stages - 1))
    alone: dict[str, tuple[Fault, ...]] = {
        "worker-1.03": (SlowMachine(*at, 1.03),),
        "worker-1.05": (SlowMachine(*at, 1.05),),
        "worker-1.10": (SlowMachine(*at, 1.10),),
        "replica-1.04": tuple(SlowMachine(at[0], stage, 1.04) for stage in range(stages)),
        "two-of-a-stage": (SlowMachine(at[0], at[1], 1.2), SlowMachine(other[0], at[1], 1.2)),
        "2-of-8-steps": (SlowMachine(*at, 1.4, 0.25),),
        "link-8x": (SlowLink(at[0], link, 8.0),),
        "nic-2x": (SlowNic(*at, 2.0),),
        "gc": (Pauses(0.004, 0.15),),
        "sequences": (UnevenData(cv=0.08),),
        "last-stage": (HeavyEnds(last=1.5),),
    }
    pairs = (
        ("worker-1.10", "link-8x"), ("worker-1.10", "gc"), ("nic-2x", "last-stage"),
        ("sequences", "worker-1.10"),
    )  # fmt: skip
    return alone | {f"{a}+{b}": alone[a] + alone[b] for a, b in pairs}


def weak_cases(seed: int) -> list[Case]:
    """Fifteen weak mixes on four sizes, at four strengths of noise."""
    cases = []
    sizes: tuple[Size, ...] = ((3, 2, 6, 1), (4, 4, 16, 1), (8, 4, 16, 2), (16, 2, 8, 1))
    for place, size in enumerate(sizes):
        rng = np.random.default_rng([seed, 5, place])
        for kind, (name, faults) in enumerate(_weak(size, rng).items()):
            number = 400 + len(cases)
            cv = (0.003, 0.01, 0.015, 0.02)[(place + kind) % 4]
            dp, stages, microbatches, chunks = size
            world = World(
                seed * 1000 + number, dp, stages, 8, microbatches, faults=faults,
                noise=(LognormalOps(cv),),
            )  # fmt: skip
            tags = {"cause": name, "noise": cv, "size": name_of(size)}
            id_ = f"s{seed}/weak/{number}-{name}-noise{cv:g}/{name_of(size)}"
            cases.append(Case(id_, "weak", world, even_setup(world, microbatches, chunks), tags))
    return cases


def clock_cases(seed: int) -> list[Case]:
    """Members that end late on perfect clocks; clocks that are off; clocks that drift."""
    cases: list[Case] = []

    def add(name: str, size: Size, faults: tuple[Fault, ...], clocks: Clocks) -> None:
        number = 600 + len(cases)
        dp, stages, microbatches, chunks = size
        world = World(
            seed * 1000 + number, dp, stages, 8, microbatches, faults=faults, clocks=clocks
        )
        id_ = f"s{seed}/clocks/{number}-{name}/{name_of(size)}"
        tags = {"what": name, "size": name_of(size)}
        cases.append(Case(id_, "clocks", world, even_setup(world, microbatches, chunks), tags))

    for size in ((4, 1, 8, 1), (4, 2, 8, 1), (8, 4, 16, 1)):
        for ms in (5, 20, 50):
            for word, kinds in (("all", (GATHER, SCATTER, CLIP)), ("scatter", (SCATTER,))):
                late = LateMember(1, size[1] - 1, ms / 1e3, kinds)
                add(f"late-{ms}ms-{word}", size, (late,), Clocks())
        for ms in (2, 5, 10, 20, 50):
            add(f"skew-{ms}ms", size, (), Clocks(skew_s=ms / 1e3))
            if ms in (5, 20):
                slow = (SlowMachine(2, 0, 1.4),)
                add(f"skew-{ms}ms+worker", size, slow, Clocks(skew_s=ms / 1e3))
        for ms in (0.2, 1, 5):
            add(f"drift-{ms:g}ms", size, (), Clocks(drift_s=ms / 1e3))
            add(f"drift-{ms:g}ms+worker", size, (SlowMachine(2, 0, 1.4),), Clocks(drift_s=ms / 1e3))
    return cases
