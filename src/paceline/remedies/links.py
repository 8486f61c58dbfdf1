"""Times of slow links if they were as healthy as their peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError
from paceline.graph import Durations, StepGraph
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def heal_links(durations: Durations, links: Iterable[tuple[int, int, int]]) -> None:
    """Give the transfers of links (dp, low stage, high stage) the usual times, in place.

    The usual time is the median of the same transfer in the same step over the replicas with a
    healthy link. Without such replicas it is the median of the kind in the step over all healthy
    links.

    Raises:
        NotApplicableError: all links are slow.
    """
    by_stages: dict[tuple[int, int], set[int]] = {}
    for dp, low, high in links:
        by_stages.setdefault((low, high), set()).add(dp)
    before = Durations(durations.graph, durations.n_steps, durations.values.copy())
    for stages, dps in by_stages.items():
        if len(dps) < durations.graph.n_dp:
            _heal_by_replicas(durations, stages, dps)
        else:
            _heal_by_links(durations, before, stages, by_stages)


def _heal_by_replicas(
    durations: Durations, stages: tuple[int, int], blamed: Collection[int]
) -> None:
    graph, steps = durations.graph, np.arange(durations.n_steps)
    ops = [_transfers(durations, v, stages) for v in range(graph.n_variants)]
    is_blamed = [np.isin(dps, list(blamed)) for dps in graph.variant_dps]
    usual = [durations.block(v)[ops[v]][..., ~is_blamed[v]] for v in range(graph.n_variants)]
    by_step = [np.moveaxis(table, 1, 0).reshape(len(steps), -1) for table in usual]
    anywhere = np.median(np.concatenate(by_step, axis=1), axis=1)
    for v in range(graph.n_variants):
        if is_blamed[v].any():
            has_peers = usual[v].shape[-1] > 0
            typical = np.median(usual[v], axis=-1) if has_peers else anywhere[None]
            durations.block(v)[np.ix_(ops[v], steps, is_blamed[v])] = typical[..., None]


def _heal_by_links(
    durations: Durations,
    before: Durations,
    stages: tuple[int, int],
    blamed: Mapping[tuple[int, int], Collection[int]],
) -> None:
    """Heal links where all replicas' links between two stages are slow, by other stages' links."""
    graph = durations.graph
    for kind in P2P_KINDS:
        peers: list[Array] = []  # [step, transfer]
        for v, dps in enumerate(graph.variant_dps):
            for others in _linked_stages(graph, v) - {stages}:
                ops = _transfers(durations, v, others, kind)
                healthy = ~np.isin(dps, list(blamed.get(others, ())))
                table = before.block(v)[ops][..., healthy]
                peers.append(np.moveaxis(table, 1, 0).reshape(durations.n_steps, -1))
        if not sum(table.size for table in peers):
            raise NotApplicableError(
                f"the link between stages {stages[0]} and {stages[1]} has no healthy peers: all "
                "links are slow"
            )
        usual = np.median(np.concatenate(peers, axis=1), axis=1)
        for v in range(graph.n_variants):
            durations.block(v)[_transfers(durations, v, stages, kind)] = usual[:, None]


def _linked_stages(graph: StepGraph, variant: int) -> set[tuple[int, int]]:
    """The (low, high) pairs of stages that have a link."""
    stages = np.sort(graph.pp[graph.variant_ops(variant)][graph.variant_pairs(variant)], axis=1)
    return {(int(low), int(high)) for low, high in np.unique(stages, axis=0)}


def _transfers(
    durations: Durations, variant: int, stages: tuple[int, int], kind: OpKind | None = None
) -> Ints:
    """Sends and recvs (or one of both) between two stages, counted from the variant's first op."""
    graph = durations.graph
    span = graph.variant_ops(variant)
    pairs = graph.variant_pairs(variant)
    p2p = np.isin(graph.kind[span][pairs[:, 0]], [int(kind) for kind in P2P_KINDS])
    between = (np.sort(graph.pp[span][pairs], axis=1) == stages).all(axis=1)
    ops: Ints = pairs[p2p & between].ravel()
    return ops if kind is None else ops[graph.kind[span][ops] == kind]
