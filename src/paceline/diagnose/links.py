"""Slow or flapping links between stages, judged against other links.

A link is compared with the links between the same stages in other replicas. These carry messages of
the same size, and the schedule makes their receivers wait equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.remove import Effect, Scaled
from paceline.graph import Durations, StepGraph
from paceline.trace.job import place_of
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]

#: A link is slow if its median transfer takes SLOW_TIMES the usual time and lies outside the spread
#: of links. A transfer is late from LATE_TIMES the usual time on.
SLOW_TIMES, LATE_TIMES = 1.3, 2.0

#: A link flaps if its share of late transfers exceeds that of other links by this much.
FLAP_SHARE = 0.02

#: A slow link lies this many robust standard deviations outside all links.
OUTLIER_SIGMAS = 6.0

#: Share of healthy jobs that show a flapping link by chance.
MAX_CHANCE = 1e-4

#: Assumed share of late transfers where other links have none.
RARE_SHARE = 1 / 500

#: Most links listed in the evidence; the rest is only counted.
MAX_LISTED = 256


@dataclass(frozen=True)
class _Links:
    """All links of a job, one per replica and pair of neighbouring stages.

    Attributes:
        dp, low, high: [link] replica and stages.
        level: [link] median transfer over the usual one of its kind.
        late: [link] number of late transfers.
        n: [link] number of transfers.
        source: [link] (variant, replica within it, index into ``tables``).
        tables: (ops [pair, 2], times over usual [pair, step, replica]) per variant and stages.
    """

    dp: npt.NDArray[np.int64]
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    level: Array
    late: npt.NDArray[np.int64]
    n: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    tables: Sequence[tuple[npt.NDArray[np.int64], Array]]

    def name(self, link: int) -> list[list[int]]:
        dp, low, high = (int(x[link]) for x in (self.dp, self.low, self.high))
        return [[dp, low], [dp, high]]

    def others_between(self, link: int) -> npt.NDArray[np.bool_]:
        """[link] mask of the links between the same stages in other replicas."""
        between: npt.NDArray[np.bool_] = self.low == self.low[link]
        between &= self.high == self.high[link]
        between[link] = False
        return between


def link_cause(durations: Durations, ideal: Array) -> Candidate | None:
    """Slow and flapping links; None where there are none.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind, seconds.
    """
    links = _links(durations, ideal)
    if links is None or len(links.dp) < 2:
        return None
    usual = _usual_levels(links)
    relative = links.level / usual
    noise = float(robust.spread(np.log(relative))) if len(relative) > 2 else 0.0
    slow = relative >= max(SLOW_TIMES, float(np.exp(min(OUTLIER_SIGMAS * noise, 50.0))))
    flapping = _flapping(links) & ~slow
    blamed = np.flatnonzero(slow | flapping)
    if not len(blamed) or (len(blamed) > len(slow) / 2 and len(slow) > 2):
        return None
    if len(slow) == 2 and slow.sum() == 1:
        # The ideal of two links is their mean, which the slow one makes too long.
        usual = np.full(2, links.level.min())
        relative = links.level / usual
    share = links.late / links.n
    excess = np.where(slow, relative - 1, share)
    blamed = blamed[np.argsort(-excess[blamed], kind="stable")]
    effects = tuple(
        effect
        for link in blamed.tolist()
        for effect in _effects(
            links, link, 1 / relative[link] if slow[link] else 1.0, float(usual[link])
        )
    )
    worst = int(blamed[0])
    return Candidate(
        "link",
        _text(durations.graph, links, worst, len(blamed), slow[worst], relative[worst]),
        {"link": links.name(worst)},
        {
            "median_over_usual": float(relative[worst]),
            "late_share": float(share[worst]),
            "links": [links.name(link) for link in blamed[:MAX_LISTED].tolist()],
            "n_links": len(blamed),
            "threshold": SLOW_TIMES,
            "source": "what-if paper, 4.3; falcon paper, 3",
        },
        Effect(scaled=effects),
        _ambiguity(links, blamed, durations.graph.n_dp),
    )


def _text(graph: StepGraph, links: _Links, worst: int, n: int, slow: bool, relative: float) -> str:
    (replica, low), (_, high) = links.name(worst)
    dp, _, *peers = place_of(replica, low, graph.peers)
    of_peer = "".join(f", peer {peer}" for peer in peers)
    share = links.late[worst] / links.n[worst]
    symptom = f"{relative:.1f}x slow" if slow else f"flapping ({share:.0%} of transfers late)"
    others = f" (and {n - 1} more)" if n > 1 else ""
    return f"the link between stages {low} and {high} of dp {dp}{of_peer} is {symptom}{others}"


def _ambiguity(links: _Links, blamed: npt.NDArray[np.int64], n_dp: int) -> str:
    """Another explanation, if no other replica has a healthy link between these stages."""
    is_blamed = np.zeros(len(links.dp), dtype=bool)
    is_blamed[blamed] = True
    without_peers = [
        link for link in blamed.tolist() if (is_blamed | ~links.others_between(link)).all()
    ]
    if not without_peers:
        return ""
    reason = "there is one replica" if n_dp == 1 else "all replicas show it"
    return (
        f"{reason}: these stages may exchange larger messages, or their receivers wait for other "
        "reasons than the link"
    )


def _links(durations: Durations, ideal: Array) -> _Links | None:
    graph = durations.graph
    p2p = [int(kind) for kind in P2P_KINDS]
    rows: list[npt.NDArray[np.int64]] = []
    levels: list[Array] = []
    tables: list[tuple[npt.NDArray[np.int64], Array]] = []
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v)
        pairs = pairs[np.isin(graph.kind[span][pairs[:, 0]], p2p)]
        stages = np.sort(graph.pp[span][pairs], axis=1)
        block = durations.block(v)
        for low, high in np.unique(stages, axis=0).tolist():
            ops = pairs[(stages == (low, high)).all(axis=1)]
            usual = np.maximum(ideal[span][ops], 1e-9)[..., None, None]
            over = np.maximum(block[ops[:, 0]] / usual[:, 0], block[ops[:, 1]] / usual[:, 1])
            levels.append(np.median(over, axis=(0, 1)))
            late = (over > LATE_TIMES).sum(axis=(0, 1))
            constant = (low, high, over.shape[0] * over.shape[1], v, len(tables))
            ones = np.ones((len(dps), 1), dtype=np.int64)
            rows.append(
                np.concatenate(
                    [dps[:, None], late[:, None], np.arange(len(dps))[:, None], ones * constant],
                    axis=1,
                )
            )
            tables.append((ops, over))
    if not rows:
        return None
    dp, late, index, low, high, n, variant, table = np.concatenate(rows).T
    source = np.stack([variant, index, table], axis=1)
    return _Links(dp, low, high, np.concatenate(levels), late, n, source, tables)


def _usual_levels(links: _Links) -> Array:
    """[link] the usual level of links between the stages; the schedule or message sizes explain it.

    If all links between two stages are equally slow, that is usual for them. It is not where most
    other pairs of stages have no slow links.
    """
    usual = np.ones(len(links.dp))
    stages, pair = np.unique(np.stack([links.low, links.high]), axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    of_pair = [np.flatnonzero(pair == number) for number in range(stages.shape[1])]
    typical = np.array([np.median(links.level[members]) for members in of_pair])
    slow_paths = typical >= SLOW_TIMES
    few = len(of_pair) > 2 and 2 * int(slow_paths.sum()) <= len(of_pair)
    for number, members in enumerate(of_pair):
        if slow_paths[number] and few:
            continue
        for link in members.tolist():
            others = links.level[members[members != link]]
            usual[link] = max(1.0, float(robust.median(others))) if len(others) else 1.0
    return usual


def _flapping(links: _Links) -> npt.NDArray[np.bool_]:
    """[link] whether the link has more late transfers than other links, beyond chance."""
    share = links.late / links.n
    flapping = np.zeros(len(share), dtype=bool)
    for link in np.flatnonzero(share >= FLAP_SHARE).tolist():
        others = np.delete(share, link)
        usual = max(float(np.median(others)), RARE_SHARE)
        count, n = int(links.late[link]), int(links.n[link])
        rare = robust.chance_of_count(count, n, usual) < MAX_CHANCE / len(share)
        flapping[link] = rare and share[link] - usual >= FLAP_SHARE
    return flapping


def _effects(links: _Links, link: int, factor: float, usual: float) -> list[Scaled]:
    """Effect on a link's transfers: all are scaled by ``factor``, late ones to the usual level."""
    variant, index, table = (int(x) for x in links.source[link])
    ops, over = links.tables[table]
    scaled = over[:, :, index] * factor  # [pair, step]
    late = scaled > LATE_TIMES * usual
    healthy = np.where(late, usual * factor / np.maximum(scaled, 1e-9), factor)[..., None]
    return [Scaled(variant, ops[:, side], index, healthy) for side in (0, 1)]
