"""Causes that show in transfers: a slow or flapping link, a slow or flapping DP group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.diagnose.causes import Candidate
from paceline.diagnose.remove import Capped, Effect
from paceline.graph import Durations
from paceline.trace import OpKind
from paceline.trace.kinds import DP_KINDS, P2P_KINDS

Array = npt.NDArray[np.float64]

#: A link or group is slow if its median transfer takes so many times the usual one, and flaps if
#: this share of its transfers takes FLAP_TIMES the usual one. Shares of the step decide the rest.
SLOW_TIMES, FLAP_TIMES, FLAP_SHARE = 1.3, 2.0, 0.02


def transfer_causes(durations: Durations, ideal: Array) -> list[Candidate]:
    """Causes that show in communication.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind, seconds.
    """
    return [c for c in (_links(durations, ideal), _groups(durations, ideal)) if c is not None]


def _judge(times: Array) -> tuple[float, float, bool]:
    """Median and flapping share of transfers over the usual ones; whether that is too much."""
    middle = float(np.median(times))
    flapping = float((times > FLAP_TIMES).mean())
    return middle, flapping, middle >= SLOW_TIMES or flapping >= FLAP_SHARE


def _links(durations: Durations, ideal: Array) -> Candidate | None:
    graph = durations.graph
    caps, links, worst = [], [], 0.0
    p2p = [int(kind) for kind in P2P_KINDS]
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v)
        pairs = pairs[np.isin(graph.kind[span][pairs[:, 0]], p2p)]
        stages = np.sort(graph.pp[span][pairs], axis=1)
        block = durations.block(v)
        for low, high in np.unique(stages, axis=0).tolist():
            ops = pairs[(stages == (low, high)).all(axis=1)].ravel()
            usual = ideal[span][ops]
            over = block[ops] / np.maximum(usual, 1e-9)[:, None, None]  # [op, step, dp]
            for index in range(len(dps)):
                middle, flapping, slow = _judge(over[:, :, index])
                if slow:
                    dp = int(dps[index])
                    excess = float(np.maximum(over[:, :, index] - 1, 0).mean())
                    worst = max(worst, excess)
                    links.append((excess, middle, flapping, [[dp, low], [dp, high]]))
                    caps.append(Capped(v, ops, index, usual))
    n_links = graph.n_dp * max(1, graph.n_pp - 1)
    if not links or (len(links) > n_links / 2 and n_links > 2):
        return None
    links.sort(key=lambda link: -link[0])
    _, middle, flapping, link = links[0]
    (dp, low), (_, high) = link
    how = (
        f"{middle:.1f}x slow" if middle >= SLOW_TIMES else f"flapping ({flapping:.0%} of transfers)"
    )
    more = f" (and {len(links) - 1} more)" if len(links) > 1 else ""
    return Candidate(
        "link",
        f"the link between stages {low} and {high} of dp {dp} is {how}{more}",
        {"link": link},
        {
            "median_over_usual": middle,
            "flapping_share": flapping,
            "links": [entry[3] for entry in links[:16]],
            "threshold": SLOW_TIMES,
            "source": "what-if paper, 4.3; falcon paper, 3",
        },
        Effect(capped=tuple(caps)),
    )


def _groups(durations: Durations, ideal: Array) -> Candidate | None:
    graph = durations.graph
    caps: list[Capped] = []
    groups = []
    for members in graph.dp_groups:
        kind = OpKind(int(graph.kind[members[0]]))
        if kind not in DP_KINDS or kind == OpKind.OPTIMIZER_CLIP_MAIN_GRAD:
            continue
        usual = max(float(ideal[members[0]]), 1e-9)
        times = np.max([durations.row(op).max(axis=1) for op in members], axis=0) / usual  # [step]
        middle, flapping, slow = _judge(times)
        if not slow:
            continue
        excess = float(np.maximum(times - 1, 0).mean()) * usual
        stage = int(graph.pp[members[0]])
        groups.append((excess, middle, flapping, stage, kind.label))
        for op in members.tolist():
            v = int(graph.variant[op])
            rows = np.array([op - graph.variant_ptr[v]])
            caps.append(Capped(v, rows, None, np.array([usual])))
    if not groups:
        return None
    groups.sort(reverse=True)
    _, middle, flapping, stage, label = groups[0]
    how = f"{middle:.1f}x slow" if middle >= SLOW_TIMES else f"flapping ({flapping:.0%} of steps)"
    return Candidate(
        "dp-network",
        f"the data-parallel group of stage {stage} is {how} ({label})",
        {"group": {"stage": stage, "kind": label}},
        {
            "median_over_usual": middle,
            "flapping_share": flapping,
            "groups": [
                {"stage": g[3], "kind": g[4], "median_over_usual": g[1]} for g in groups[:16]
            ],
            "threshold": SLOW_TIMES,
            "source": "what-if paper, 4.3; falcon paper, 3",
        },
        Effect(capped=tuple(caps)),
    )
