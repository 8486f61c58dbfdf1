"""Fail-slows of a diagnosed trace: slow machines and links with their factors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph.computes import computes_of
from paceline.mitigate.fault import COMPUTE, LINK, Fault, Worker
from paceline.remedies.arrange import Arrangement
from paceline.remedies.outcome import finding_of
from paceline.remedies.remedy import Case
from paceline.remedies.replace import blamed_workers, links_of
from paceline.trace.job import place_of
from paceline.trace.kinds import P2P_KINDS

#: Least factor over peers of a fail-slow (falcon paper, 4.3: 1.1 times the median).
MIN_FACTOR = 1.1


def faults_of(case: Case) -> tuple[Fault, ...]:
    """The slow workers and links that the diagnosis found, and their factors."""
    if case.measured.graph.n_dp == 1:
        return ()  # the usual level is unknown
    suspects = list[tuple[str, Worker, float, Worker | None]]()
    if finding_of(case, "worker") is not None:
        measured = case.measured
        factors = Arrangement(
            measured.durations, computes_of(measured.graph), blamed_workers(case)
        ).factors
        peers = measured.job.peers
        suspects += [
            (COMPUTE, place_of(*worker, peers), float(np.median(f)), None)
            for worker, f in factors.items()
        ]
    link = finding_of(case, "link")
    for dp, low, high in links_of(link) if link is not None else ():
        ends = [place_of(dp, stage, case.measured.job.peers) for stage in (low, high)]
        suspects.append((LINK, ends[0], _link_factor(case, dp, low, high), ends[1]))
    return tuple(
        Fault(kind, worker, factor, other_end)
        for kind, worker, factor, other_end in suspects
        if factor >= MIN_FACTOR
    )


def _link_factor(case: Case, dp: int, low: int, high: int) -> float:
    """Median of a link's transfer times over the median of other replicas' links."""
    durations = case.measured.durations
    graph = durations.graph
    own_s, usual_s = list[npt.NDArray[np.float64]](), list[npt.NDArray[np.float64]]()
    for v, dps in enumerate(graph.variant_dps):
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v)
        p2p = np.isin(graph.kind[span][pairs[:, 0]], [int(kind) for kind in P2P_KINDS])
        between = (np.sort(graph.pp[span][pairs], axis=1) == (low, high)).all(axis=1)
        block = durations.block(v)[pairs[p2p & between].ravel()]
        own_s.append(block[..., dps == dp].ravel())
        usual_s.append(block[..., dps != dp].ravel())
    usual = float(np.median(np.concatenate(usual_s)))
    return float(np.median(np.concatenate(own_s))) / usual if usual > 0 else 1.0
