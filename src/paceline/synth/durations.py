"""Durations of a synthesised job: the healthy ones, then one cause after another."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.synth.sequences import microbatch_costs
from paceline.synth.spec import SynthSpec
from paceline.trace import OpKind


def cause_rng(spec: SynthSpec, cause: str) -> np.random.Generator:
    """Draws for one cause, independent of all others."""
    return np.random.default_rng([spec.seed, *cause.encode()])


def _lognormal(
    rng: np.random.Generator, cv: float, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Factors of mean 1 and the given coefficient of variation."""
    sigma = np.sqrt(np.log1p(cv * cv))
    factors: npt.NDArray[np.float64] = rng.standard_normal(shape)
    factors *= sigma
    factors -= sigma * sigma / 2
    return np.exp(factors, out=factors)


def make_durations(
    spec: SynthSpec, graph: StepGraph, healthy: npt.NDArray[np.float64] | None = None
) -> tuple[Durations, dict[str, Any]]:
    """Durations of all ops, and what was injected.

    Args:
        spec: the job.
        graph: its ops.
        healthy: [op] seconds without noise and causes; None: ``spec.base_s`` of each kind.
    """
    durations = Durations.empty(graph, spec.steps)
    noise = cause_rng(spec, "noise")
    for v, block in enumerate(durations.blocks):
        ops = graph.variant_ops(v)
        if healthy is None:
            base = np.array([spec.base_s[OpKind(int(kind))] for kind in graph.kind[ops]])
        else:
            base = healthy[ops].copy()
        base[graph.noop[ops]] = 0.0
        block[:] = base[:, None, None]
        if spec.noise:
            block *= _lognormal(noise, spec.noise, block.shape)
    _share_transfers(durations)
    causes: list[dict[str, Any]] = []
    _slow_computes(spec, durations, causes)
    _slow_transfers(spec, durations, causes)
    _pauses(spec, durations, causes)
    return durations, {"seed": spec.seed, "spec": spec.to_mapping(), "causes": causes}


def _share_transfers(durations: Durations) -> None:
    """The members of a transfer end together: all take the time of the first."""
    graph = durations.graph
    for v, block in enumerate(durations.blocks):
        pairs = graph.variant_pairs(v)
        block[pairs[:, 1]] = block[pairs[:, 0]]
    for members in graph.dp_groups:
        _set_group(durations, members, durations.row(members[0])[:, 0])


def _set_group(
    durations: Durations, members: npt.NDArray[np.int64], per_step: npt.NDArray[np.float64]
) -> None:
    for op in members:
        durations.row(op)[:] = per_step[:, None]


def _computes(graph: StepGraph, variant: int) -> npt.NDArray[np.bool_]:
    return graph.kind[graph.variant_ops(variant)] <= OpKind.BACKWARD_COMPUTE


def _slow_computes(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    for worker in spec.slow_workers:
        v = int(graph.replica_variant[worker.dp])
        ops = np.flatnonzero(_computes(graph, v) & (graph.pp[graph.variant_ops(v)] == worker.pp))
        durations.block(v)[ops, :, graph.dp_index[worker.dp]] *= worker.factor
        causes.append({"cause": "slow-worker", **asdict(worker)})
    if spec.slow_last_stage:
        _slow_stage(durations, spec.pp - 1, spec.slow_last_stage)
        forward, backward = spec.slow_last_stage
        causes.append({"cause": "slow-last-stage", "forward": forward, "backward": backward})
    if spec.stage_factors:
        for pp, factors in enumerate(spec.stage_factors):
            _slow_stage(durations, pp, factors)
        causes.append({"cause": "stage-factors", "factors": [list(f) for f in spec.stage_factors]})
    _sequences(spec, durations, causes)


def _slow_stage(durations: Durations, pp: int, factors: tuple[float, float]) -> None:
    """Multiply the forward and the backward computes of a stage."""
    graph = durations.graph
    kinds = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
    for kind, factor in zip(kinds, factors, strict=True):
        for v, block in enumerate(durations.blocks):
            span = graph.variant_ops(v)
            block[(graph.kind[span] == kind) & (graph.pp[span] == pp)] *= factor


def _sequences(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Microbatches of unequal cost: drawn, or from the lengths of their sequences."""
    if spec.sequence_imbalance:
        shape = (max(spec.replica_microbatches), spec.steps, spec.dp)
        cost = _lognormal(cause_rng(spec, "sequence"), spec.sequence_imbalance, shape)
        _multiply_microbatches(durations, cost)
        causes.append({"cause": "sequence-imbalance", "cv": spec.sequence_imbalance})
    if spec.seqlens is not None:
        costs = microbatch_costs(spec.seqlens, spec.sequence_mix)
        _multiply_microbatches(durations, costs.transpose(2, 0, 1))
        drawn = costs[spec.seqlens.exists]
        causes.append(
            {
                "cause": "sequence-lengths",
                "cv": float(drawn.std() / drawn.mean()),
                "mix": spec.sequence_mix,
                "sequences": len(spec.seqlens.lengths),
                "longest": int(spec.seqlens.lengths.max()),
            }
        )


def _multiply_microbatches(durations: Durations, cost: npt.NDArray[np.float64]) -> None:
    """Multiply all computes of a microbatch by its cost [microbatch, step, dp]."""
    graph = durations.graph
    for v, block in enumerate(durations.blocks):
        ops = np.flatnonzero(_computes(graph, v))
        microbatch = graph.microbatch[graph.variant_ops(v)][ops]
        block[ops] *= cost[microbatch][:, :, graph.variant_dps[v]]


def _slow_transfers(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    for link in spec.slow_links:
        v, dp = int(graph.replica_variant[link.dp]), int(graph.dp_index[link.dp])
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v) + span.start
        ends = {link.pp, (link.pp + 1) % spec.pp}
        p2p = graph.kind[pairs[:, 0]] <= OpKind.BACKWARD_RECV
        joined = [set(stages) == ends for stages in graph.pp[pairs].tolist()]
        slow = pairs[p2p & np.array(joined, dtype=bool)].ravel() - span.start
        durations.block(v)[slow, :, dp] *= link.factor
        causes.append({"cause": "slow-link", **asdict(link)})
    for number, nic in enumerate(spec.slow_nics):
        hit = cause_rng(spec, f"nic{number}").random(spec.steps) < nic.probability
        for members in graph.dp_groups:
            clip = graph.kind[members[0]] == OpKind.OPTIMIZER_CLIP_MAIN_GRAD
            if not clip and graph.pp[members[0]] == nic.pp:
                times = durations.row(members[0])[:, 0]
                _set_group(durations, members, np.where(hit, times * nic.factor, times))
        name = "slow-nic" if nic.probability == 1 else "flapping-nic"
        causes.append({"cause": name, **asdict(nic), "steps": np.flatnonzero(hit).tolist()})


def _pauses(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Garbage collection stops the interpreter: some forwards, launched from Python, get longer."""
    if not spec.gc_pauses:
        return
    probability, seconds = spec.gc_pauses
    rng, n_pauses = cause_rng(spec, "gc"), 0
    for v, block in enumerate(durations.blocks):
        ops = np.flatnonzero(durations.graph.kind[durations.graph.variant_ops(v)] == 0)
        hit = rng.random((len(ops), *block.shape[1:])) < probability
        block[ops] += hit * seconds
        n_pauses += int(hit.sum())
    causes.append(
        {"cause": "gc-pauses", "probability": probability, "seconds": seconds, "pauses": n_pauses}
    )
