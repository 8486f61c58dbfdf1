"""Faulty jobs: each cause alone and with an unrelated one, over sizes; and flapping collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from truth.case import Case
from world.faults import (
    Delay,
    Fault,
    HeavyEnds,
    Loading,
    Pauses,
    SlowLink,
    SlowMachine,
    SlowNic,
    UnevenData,
)
from world.noise import (
    CommonSteps,
    HeavyTails,
    LognormalMembers,
    LognormalOps,
    Noise,
    Spread,
    Wander,
)
from world.plant import World, even_setup
from world.programs import BACKWARD, FORWARD

STEPS = 8

#: (dp, stages, microbatches, chunks)
SIZES = (
    (1, 2, 4, 2), (1, 4, 8, 1), (2, 1, 8, 1), (2, 2, 4, 1), (2, 4, 16, 1), (3, 1, 6, 1),
    (3, 2, 6, 1), (4, 2, 8, 2), (4, 4, 16, 1), (4, 8, 32, 1), (8, 1, 16, 1), (8, 2, 8, 1),
    (8, 4, 16, 2), (16, 4, 16, 1), (64, 1, 4, 1), (64, 2, 8, 1), (64, 8, 16, 1),
)  # fmt: skip

Rng = np.random.Generator
Size = tuple[int, int, int, int]


@dataclass(frozen=True)
class Cause:
    """How to do it to a job of a size, and the least of it that it needs."""

    faults: Callable[[Size, Rng], tuple[Fault, ...]]
    dp: int = 1
    stages: int = 1


def _at(size: Size, rng: Rng) -> tuple[int, int]:
    return int(rng.integers(size[0])), int(rng.integers(size[1]))


def _link(size: Size, rng: Rng, factor: float, share: float = 1.0) -> tuple[Fault, ...]:
    return (SlowLink(int(rng.integers(size[0])), int(rng.integers(size[1] - 1)), factor, share),)


def _two_workers(size: Size, rng: Rng) -> tuple[Fault, ...]:
    one, other = (int(n) for n in rng.choice(size[0], 2, replace=False))
    stages = rng.integers(size[1], size=2)
    return SlowMachine(one, int(stages[0]), 1.3), SlowMachine(other, int(stages[1]), 1.6)


def _replica(size: Size, rng: Rng) -> tuple[Fault, ...]:
    dp = int(rng.integers(size[0]))
    return tuple(SlowMachine(dp, stage, 1.25) for stage in range(size[1]))


CAUSES: dict[str, Cause] = {
    "worker": Cause(lambda size, rng: (SlowMachine(*_at(size, rng), 1.5),)),
    "mild-worker": Cause(lambda size, rng: (SlowMachine(*_at(size, rng), 1.15),)),
    "two-workers": Cause(_two_workers, dp=3),
    "replica": Cause(_replica, dp=2, stages=2),
    "worker-at-times": Cause(lambda size, rng: (SlowMachine(*_at(size, rng), 1.6, 0.5),), stages=2),
    "last-stage": Cause(lambda size, rng: (HeavyEnds(last=5.0),), stages=2),
    "sequences": Cause(lambda size, rng: (UnevenData(cv=0.35),)),
    "lengths": Cause(lambda size, rng: (UnevenData(max_tokens=32768),), dp=2),
    "gc": Cause(lambda size, rng: (Pauses(0.03, 0.25),)),
    "link": Cause(lambda size, rng: _link(size, rng, 40.0), stages=2),
    "flapping-link": Cause(lambda size, rng: _link(size, rng, 80.0, 0.1), stages=2),
    "nic": Cause(lambda size, rng: (SlowNic(*_at(size, rng), 6.0),), dp=2),
    "flapping-nic": Cause(lambda size, rng: (SlowNic(*_at(size, rng), 10.0, 0.375),), dp=2),
    "port": Cause(lambda size, rng: (SlowNic(*_at(size, rng), 15.0, 1.0, True),), dp=2, stages=2),
    "delay": Cause(lambda size, rng: (Delay(FORWARD, 0.006),)),
    "delay-backward": Cause(lambda size, rng: (Delay(BACKWARD, 0.006),)),
    "loading": Cause(lambda size, rng: (Loading(0.4),)),
    "jitter": Cause(lambda size, rng: ()),
    "gpipe": Cause(lambda size, rng: (SlowMachine(*_at(size, rng), 1.3),), stages=2),
    "overlapped": Cause(lambda size, rng: (SlowMachine(*_at(size, rng), 1.3),), dp=2),
}

#: What else is wrong, so that a prediction has to keep apart what does not belong together.
SECONDS = ("", "delay", "link", "worker", "last-stage", "jitter")

JITTER = LognormalOps(0.15)

#: What a job does beside its faults, in turn.
BACKGROUNDS: tuple[tuple[Noise, ...], ...] = (
    (LognormalOps(0.005),),
    (LognormalOps(0.015), LognormalMembers(0.05)),
    (LognormalOps(0.01), Wander(0.01, 0.9), CommonSteps(0.006), Spread(0.004)),
    (LognormalOps(0.02), HeavyTails("pareto", 0.3), LognormalMembers(0.1), Spread(0.007)),
)

#: The product lists an assignment of up to 512 microbatches or sequences: small jobs for these.
FEW = {"sequences": 64, "lengths": 16}


def fits(cause: str, size: Size) -> bool:
    """Whether a job of a size can have it."""
    need = CAUSES[cause]
    dp, stages, microbatches, chunks = size
    if cause == "gpipe" and chunks > 1:
        return False
    few = dp * microbatches <= FEW.get(cause, dp * microbatches)  # in a step
    return few and dp >= need.dp and stages >= need.stages


def faulty_cases(seed: int) -> list[Case]:
    """Each cause with each second one, on two sizes in turn."""
    cases: list[Case] = []
    turn = 0
    for cause in CAUSES:
        for second in SECONDS:
            if second == cause:
                continue
            sizes = [s for s in SIZES if fits(cause, s) and (not second or fits(second, s))]
            for _ in range(2):
                cases.append(_case(seed, len(cases), cause, second, sizes[turn % len(sizes)]))
                turn += 7
    return cases


def _case(seed: int, number: int, cause: str, second: str, size: Size) -> Case:
    rng = np.random.default_rng([seed, number])
    faults = _faults(cause, second, size, rng)
    noise = BACKGROUNDS[number % len(BACKGROUNDS)]
    noise += (JITTER,) if "jitter" in (cause, second) else ()
    dp, stages, microbatches, chunks = size
    steps = STEPS // 2 if cause == "lengths" else STEPS
    world = World(seed * 1000 + number, dp, stages, steps, microbatches, faults=faults, noise=noise)
    setup = even_setup(world, microbatches, chunks)
    if cause == "gpipe":
        setup = replace(setup, schedule="gpipe")
    if cause == "overlapped":
        setup = replace(setup, overlap=True, separate=True)
    name = cause + (f"+{second}" if second else "")
    id_ = f"s{seed}/remedies/{number:03d}-{name}/{name_of(size)}"
    tags = {"cause": cause, "second": second, "size": name_of(size)}
    return Case(id_, "remedies", world, setup, tags, lengths=cause == "lengths")


def _faults(cause: str, second: str, size: Size, rng: Rng) -> tuple[Fault, ...]:
    """A cause and an unrelated one: not both on one machine, where the size allows."""
    faults = CAUSES[cause].faults(size, rng)
    if not second:
        return faults
    for _ in range(20):
        others = CAUSES[second].faults(size, rng)
        if not _places(faults) & _places(others):
            break
    return faults + others


def _places(faults: tuple[Fault, ...]) -> set[tuple[int, int]]:
    """Machines that faults touch: of a link the one that sends forward."""
    found = set()
    for fault in faults:
        if isinstance(fault, SlowMachine | SlowNic):
            found.add((fault.dp, fault.stage))
        elif isinstance(fault, SlowLink):
            found.add((fault.dp, fault.low))
    return found


def name_of(size: Size) -> str:
    """A size in a word."""
    dp, stages, microbatches, chunks = size
    return f"{dp}x{stages}m{microbatches}" + (f"v{chunks}" if chunks > 1 else "")


def flapping_cases(seed: int) -> list[Case]:
    """One DP group whose collectives are slow in a share of the steps (pp = 1)."""
    cases = []
    for dp in (2, 4, 16, 64):
        for share in (0.2, 0.4, 0.5, 0.6, 0.8):
            number = 800 + len(cases)
            fault = SlowNic(dp - 1, 0, 10.0, share)
            world = World(seed * 1000 + number, dp, 1, 20, 8, faults=(fault,))
            id_ = f"s{seed}/flapping/{number}-{share:.0%}/{dp}x1m8"
            tags = {"share": share, "dp": dp, "cause": "flapping", "second": ""}
            cases.append(Case(id_, "flapping", world, even_setup(world, 8), tags))
    return cases
