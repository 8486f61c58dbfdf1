"""A slow NIC: the sends of one worker are slow to both of its neighbours.

In a single pipeline, two of three links may be slow, so the median link does not show the usual
time. The direction of messages does. Messages between two stages have the same size in both
directions. So a worker with a slow NIC sends more slowly to both neighbours than they send to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.links import LATE_TIMES, MAX_CHANCE
from paceline.diagnose.remove import Effect, Scaled
from paceline.graph import Durations
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SENDS = (OpKind.FORWARD_SEND, OpKind.BACKWARD_SEND)

#: Least number of slow directions. A single slow direction is a slow link.
MIN_DIRECTIONS = 2

#: A step shows the slow worker if each of its sends takes this many times any other worker's send.
STEP_TIMES = 1.3


@dataclass(frozen=True)
class _Way:
    """The messages from one stage to another in one replica.

    Attributes:
        dp, sender, receiver: the replica and its stages.
        variant, index: the replica's variant, and its index within the variant.
        pairs: [pair, 2] ops of the two ends, the send first, counted from the variant's first.
        over: [pair, step] times over the usual time of the kind.
    """

    dp: int
    sender: int
    receiver: int
    variant: int
    index: int
    pairs: Ints
    over: Array


def nic_cause(durations: Durations, ideal: Array) -> Candidate | None:
    """The worker whose sends are slow to all its neighbours; None if there is none.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind, seconds.
    """
    ways = list(_ways(durations, ideal))
    if not ways:
        return None
    typical = np.array([np.median(way.over) for way in ways])
    worst = ways[int(typical.argmax())]
    own = np.array([(way.dp, way.sender) == (worst.dp, worst.sender) for way in ways])
    n_own, n_others = int(own.sum()), int((~own).sum())
    usual = float(np.median(typical[~own])) if n_others else 0.0
    if n_own < MIN_DIRECTIONS or usual <= 0 or typical[own].min() < LATE_TIMES * usual:
        return None
    by_step = np.stack([np.median(way.over, axis=0) for way in ways])
    shown = by_step[own].min(axis=0) >= STEP_TIMES * by_step[~own].max(axis=0)
    # Chance that the worker's directions are the slowest if all orders are equally likely.
    by_chance = 1 / math.comb(len(ways), n_own)
    workers = len({(way.dp, way.sender) for way in ways})
    chance = workers * robust.chance_of_count(int(shown.sum()), len(shown), by_chance)
    if chance >= MAX_CHANCE:
        return None
    factor = float(np.median(typical[own])) / usual
    name = durations.graph.worker_name(worst.dp, worst.sender)
    links = [
        [[way.dp, stage] for stage in sorted((way.sender, way.receiver))]
        for way, is_own in zip(ways, own.tolist(), strict=True)
        if is_own
    ]
    return Candidate(
        "link",
        f"messages from worker {name} to {n_own} stages are {factor:.1f}x slow: its NIC",
        {"link": links[0]},
        {
            "median_over_usual": factor,
            "late_share": float(np.mean([way.over > LATE_TIMES * usual for way in _of(ways, own)])),
            "links": links,
            "n_links": len(links),
            "in_all": [worst.dp, worst.sender],
            "threshold": LATE_TIMES,
            "source": "what-if paper, 4.3; falcon paper, 3",
        },
        Effect(scaled=tuple(_effects(ways, worst, factor, usual))),
        chance=chance,
    )


def _of(ways: Sequence[_Way], chosen: npt.NDArray[np.bool_]) -> list[_Way]:
    return [way for way, is_chosen in zip(ways, chosen.tolist(), strict=True) if is_chosen]


def _ways(durations: Durations, ideal: Array) -> Iterator[_Way]:
    graph = durations.graph
    kinds, sends = [int(kind) for kind in P2P_KINDS], [int(kind) for kind in _SENDS]
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        kind, stage = graph.kind[span], graph.pp[span]
        pairs = graph.variant_pairs(v)
        pairs = pairs[np.isin(kind[pairs[:, 0]], kinds)]
        backwards = ~np.isin(kind[pairs[:, 0]], sends)
        pairs[backwards] = pairs[backwards][:, ::-1]  # the send first
        block = durations.block(v)
        for sender, receiver in np.unique(stage[pairs], axis=0).tolist():
            own = pairs[(stage[pairs] == (sender, receiver)).all(axis=1)]
            usual = np.maximum(ideal[span][own], 1e-9)[..., None, None]
            over = np.maximum(block[own[:, 0]] / usual[:, 0], block[own[:, 1]] / usual[:, 1])
            for index, dp in enumerate(dps.tolist()):
                yield _Way(dp, sender, receiver, v, index, own, over[:, :, index])


def _effects(ways: Sequence[_Way], worst: _Way, factor: float, usual: float) -> Iterator[Scaled]:
    """The worker's transfers without its slowness.

    Its sends are scaled down, and none of its transfers stays late. Its receives can be late, too,
    for their requests pass the slow NIC.
    """
    for way in ways:
        if way.dp != worst.dp or worst.sender not in (way.sender, way.receiver):
            continue
        share = 1 / factor if way.sender == worst.sender else 1.0
        late = way.over * share > LATE_TIMES * usual
        healthy = np.where(late, usual / np.maximum(way.over, 1e-9), share)[..., None]
        for side in (0, 1):
            yield Scaled(way.variant, way.pairs[:, side], way.index, healthy)
