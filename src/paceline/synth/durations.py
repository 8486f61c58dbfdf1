"""Durations of a synthesised job: healthy ones, slowed by one cause after another."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, StepGraph
from paceline.synth.programs import FAMILY, families_of
from paceline.synth.sequences import microbatch_costs
from paceline.synth.spec import SynthSpec
from paceline.trace import OpKind
from paceline.trace.kinds import DP_KINDS

#: Forward, backward, and the weights' half of a split backward.
_COMPUTES = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.WEIGHT_COMPUTE)

#: Collectives that a slow NIC slows. The gradient clip's is left out: small, and over all ranks.
_NIC_KINDS = (DP_KINDS | {OpKind.EXPERT_COMM}) - {OpKind.OPTIMIZER_CLIP_MAIN_GRAD}


def cause_rng(spec: SynthSpec, cause: str) -> np.random.Generator:
    """Random generator of one cause, independent of other causes."""
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
    """Durations of all ops, and the injected causes.

    Args:
        spec: the job.
        graph: its ops.
        healthy: [op] seconds without noise and causes; None: ``spec.base_s`` of each kind.
    """
    durations = Durations.empty(graph, spec.steps)
    noise = cause_rng(spec, "noise")
    for v, block in enumerate(durations.blocks):
        ops = graph.variant_ops(v)
        base = _usual_s(spec, graph, v) if healthy is None else healthy[ops].copy()
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
    """Give the members of a transfer the time of the first, as they end together."""
    graph = durations.graph
    for v, block in enumerate(durations.blocks):
        pairs = graph.variant_pairs(v)
        block[pairs[:, 1]] = block[pairs[:, 0]]
    for members in graph.dp_groups:
        _set_group(durations, members, _of_groups(durations, members))


def _of_groups(durations: Durations, members: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """[step, replica] seconds of a collective for the first replica of the replica's group."""
    graph = durations.graph
    _, first, group = np.unique(
        graph.sets_of(int(members[0])), return_index=True, return_inverse=True
    )
    per_replica = np.empty((durations.n_steps, graph.n_dp))
    for op in members[::-1].tolist():  # one member per variant
        per_replica[:, graph.variant_dps[int(graph.variant[op])]] = durations.row(op)
    of_group: npt.NDArray[np.float64] = per_replica[:, first[group.reshape(-1)]]
    return of_group


def _set_group(
    durations: Durations, members: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64]
) -> None:
    """Set the durations of a collective's members to [step, replica] seconds."""
    graph = durations.graph
    for op in members:
        durations.row(op)[:] = seconds[:, graph.variant_dps[int(graph.variant[op])]]


def _usual_s(spec: SynthSpec, graph: StepGraph, variant: int) -> npt.NDArray[np.float64]:
    """[op] healthy seconds; the parts of a pass share the seconds of its kind."""
    ops = graph.variant_ops(variant)
    of_kind = np.array([spec.base_s[kind] for kind in OpKind])
    if spec.split:  # ``base_s`` has a whole backward, which includes the weights' half
        rest = of_kind[OpKind.BACKWARD_COMPUTE] - of_kind[OpKind.WEIGHT_COMPUTE]
        of_kind[OpKind.BACKWARD_COMPUTE] = max(rest, 0.0)
    base: npt.NDArray[np.float64] = of_kind[graph.kind[ops]]
    if spec.layers is not None:
        of_pass = np.bincount(graph.pass_of[ops] - ops.start, minlength=len(base))
        base /= of_pass[graph.pass_of[ops] - ops.start]
        layers = spec.layers.layers
        pieces = {
            OpKind.PARAMS_ALL_GATHER: layers,
            OpKind.GRADS_REDUCE_SCATTER: layers if spec.layers.fsdp else spec.layers.buckets,
            OpKind.SEPARATE_GRADS_ALL_REDUCE: layers,
        }
        for kind, n_pieces in pieces.items():
            base[graph.kind[ops] == kind] /= n_pieces
    return base


def _computes(graph: StepGraph, variant: int) -> npt.NDArray[np.bool_]:
    kind = graph.kind[graph.variant_ops(variant)]
    computes: npt.NDArray[np.bool_] = np.isin(kind, [int(k) for k in _COMPUTES])
    return computes


def _replicas(spec: SynthSpec, dp: int, peer: int | None = None) -> list[int]:
    """Replicas of a data-parallel rank, or only that of one peer."""
    peers = range(spec.job.peers) if peer is None else (peer,)
    return [dp * spec.job.peers + number for number in peers]


def _slow_computes(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    for worker in spec.slow_workers:
        for replica in _replicas(spec, worker.dp, worker.peer):
            v = int(graph.replica_variant[replica])
            own = _computes(graph, v) & (graph.pp[graph.variant_ops(v)] == worker.pp)
            ops = np.flatnonzero(own)
            durations.block(v)[ops, :, graph.dp_index[replica]] *= worker.factor
        fields = asdict(worker)
        if worker.peer is None:
            del fields["peer"]
        causes.append({"cause": "slow-worker", **fields})
    if spec.slow_last_stage:
        _slow_stage(durations, spec.pp - 1, spec.slow_last_stage)
        forward, backward = spec.slow_last_stage
        causes.append({"cause": "slow-last-stage", "forward": forward, "backward": backward})
    if spec.stage_factors:
        for pp, factors in enumerate(spec.stage_factors):
            _slow_stage(durations, pp, factors)
        causes.append({"cause": "stage-factors", "factors": [list(f) for f in spec.stage_factors]})
    _sequences(spec, durations, causes)
    _experts(spec, durations, causes)


def _slow_stage(durations: Durations, pp: int, factors: tuple[float, float]) -> None:
    """Multiply the forward and the backward computes of a stage."""
    graph = durations.graph
    for kind, factor in zip(_COMPUTES, (*factors, factors[1]), strict=True):
        for v, block in enumerate(durations.blocks):
            span = graph.variant_ops(v)
            block[(graph.kind[span] == kind) & (graph.pp[span] == pp)] *= factor


def _sequences(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Give microbatches unequal costs: drawn, or from the lengths of their sequences."""
    if spec.sequence_imbalance:
        shape = (max(spec.replica_microbatches), spec.steps, spec.dp)
        cost = _lognormal(cause_rng(spec, "sequence"), spec.sequence_imbalance, shape)
        _multiply_microbatches(spec, durations, cost)
        causes.append({"cause": "sequence-imbalance", "cv": spec.sequence_imbalance})
    if spec.seqlens is not None:
        costs = microbatch_costs(spec.seqlens, spec.sequence_mix)
        _multiply_microbatches(spec, durations, costs.transpose(2, 0, 1))
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


def _multiply_microbatches(
    spec: SynthSpec, durations: Durations, cost: npt.NDArray[np.float64]
) -> None:
    """Multiply all computes of a microbatch by its cost [microbatch, step, dp]."""
    graph = durations.graph
    for v, block in enumerate(durations.blocks):
        ops = np.flatnonzero(_computes(graph, v))
        microbatch = graph.microbatch[graph.variant_ops(v)][ops]
        block[ops] *= cost[microbatch][:, :, graph.variant_dps[v] // spec.job.peers]


def _experts(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Give experts different loads in each layer, microbatch and step, with the same mean.

    A microbatch's backward has the loads of its forward.
    """
    layers, graph = spec.layers, durations.graph
    if layers is None or not layers.expert_imbalance:
        return
    rng = cause_rng(spec, "experts")
    n_parts = len(layers.inner_kinds(spec.tp))
    n_replicas = spec.job.replicas
    group = families_of(spec.job, layers)[FAMILY[OpKind.EXPERT_COMM]]
    n_microbatches = max(spec.replica_microbatches)
    shape = (spec.pp, spec.vpp, layers.layers, n_microbatches, spec.steps, n_replicas)
    load = _lognormal(rng, layers.expert_imbalance, shape)
    for number in np.unique(group):
        load[..., group == number] /= load[..., group == number].mean(axis=-1, keepdims=True)
    for v, block in enumerate(durations.blocks):
        span = graph.variant_ops(v)
        kind, part = graph.kind[span], graph.part[span]
        forward, backward = (kind == k for k in _COMPUTES[:2])
        # Experts compute between two exchanges, the last collectives of a layer's forward.
        between = np.where(forward, n_parts - 1, 1)
        ops = np.flatnonzero((forward | backward) & (part % n_parts == between))
        layer = np.where(forward, part // n_parts, layers.layers - 1 - part // n_parts)[ops]
        at = (graph.pp[span][ops], graph.chunk[span][ops], layer, graph.microbatch[span][ops])
        block[ops] *= load[at][..., graph.variant_dps[v]]
    causes.append({"cause": "expert-imbalance", "cv": layers.expert_imbalance})


def _slow_transfers(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    graph = durations.graph
    lanes = [(link, lane) for link in spec.slow_links for lane in _replicas(spec, link.dp)]
    for link, replica in lanes:
        v, dp = int(graph.replica_variant[replica]), int(graph.dp_index[replica])
        span = graph.variant_ops(v)
        pairs = graph.variant_pairs(v) + span.start
        ends = {link.pp, (link.pp + 1) % spec.pp}
        p2p = graph.kind[pairs[:, 0]] <= OpKind.BACKWARD_RECV
        joined = [set(stages) == ends for stages in graph.pp[pairs].tolist()]
        slow = pairs[p2p & np.array(joined, dtype=bool)].ravel() - span.start
        durations.block(v)[slow, :, dp] *= link.factor
    causes += [{"cause": "slow-link", **asdict(link)} for link in spec.slow_links]
    for number, nic in enumerate(spec.slow_nics):
        hit = cause_rng(spec, f"nic{number}").random(spec.steps) < nic.probability
        factor = np.where(hit, nic.factor, 1.0)
        _slow_groups(spec, durations, (nic.dp, nic.pp), _NIC_KINDS, factor)
        name = "slow-nic" if nic.probability == 1 else "flapping-nic"
        causes.append({"cause": name, **asdict(nic), "steps": np.flatnonzero(hit).tolist()})

    for peers in spec.slow_peers:
        factor = np.full(spec.steps, peers.factor)
        inner = frozenset({OpKind.TENSOR_COMM, OpKind.CONTEXT_COMM})
        _slow_groups(spec, durations, (peers.dp, peers.pp), inner, factor)
        causes.append({"cause": "slow-peers", **asdict(peers)})


def _slow_groups(
    spec: SynthSpec,
    durations: Durations,
    worker: tuple[int, int],
    kinds: frozenset[OpKind],
    factor: npt.NDArray[np.float64],
) -> None:
    """Multiply the collectives of a worker (dp, pp), of some kinds, by [step] factors."""
    graph = durations.graph
    dp, pp = worker
    for members in graph.dp_groups:
        if OpKind(int(graph.kind[members[0]])) in kinds and graph.pp[members[0]] == pp:
            sets = graph.sets_of(int(members[0]))
            slow = np.isin(sets, sets[_replicas(spec, dp)])
            seconds = _of_groups(durations, members)
            seconds *= np.where(slow, factor[:, None], 1.0)
            _set_group(durations, members, seconds)


def _pauses(spec: SynthSpec, durations: Durations, causes: list[dict[str, Any]]) -> None:
    """Lengthen some forwards, which Python launches, by pauses of its garbage collection."""
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
