"""Memory and step time of many plans at once, from shared parts.

A layer costs the same in all plans with equal tp, cp, ep, micro batch, recomputation and sequence
parallelism. Gradients cost the same in all plans with equal tp, cp, ep, dp, ZeRO and layout. Each
cost is computed once, by the model's own functions. The rest is array arithmetic over the plans of
one pipeline shape. Results equal ``memory_table`` and ``step_time_s`` of each plan (a test compares
random plans, to 1e-12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.model.activations import backward_work, end_activations, layer_activations
from paceline.model.costs import BUCKET_ELEMENTS, CostModel
from paceline.model.layer_costs import EXCHANGE, StageWork
from paceline.model.memory import (
    by_stage,
    end_stages,
    ends_in_flight,
    in_flight,
    place_parameters,
    stage_states,
)
from paceline.model.memory_peak import (
    framework_bytes,
    gathered_bytes,
    holds_gradients,
    vision_excess,
    workspace_bytes,
)
from paceline.model.memory_rules import DEFAULT_RULES, MemoryRules
from paceline.model.network import Group
from paceline.model.operators import LayerKind, layer_kind, mtp_kinds
from paceline.model.plan import Plan
from paceline.model.trainer_memory import trainer_bytes
from paceline.plan.pipeline import Pipelines
from paceline.plan.space import Candidates
from paceline.plan.split_pipeline import SplitPipelines
from paceline.plan.step import in_queue, meets_at_ends

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Key of the shared parts, within one pipeline shape.
_LAYER = ("tp", "cp", "ep", "micro_batch", "recompute", "sequence_parallel", "fsdp")
_HELD = (*_LAYER, "zero")
_SHARDS = ("tp", "cp", "ep", "dp", "zero", "shards")
_HAND_OVER = ("tp", "cp", "dp", "micro_batch", "sequence_parallel")
_ENDS = ("tp", "cp", "micro_batch", "sequence_parallel", "zero", "recompute")
_FLIGHT = ("dp", "micro_batch")
_STATES = (*_SHARDS, "micro_batch", "sequence_parallel")
_NORMS = ("tp", "sequence_parallel")


@dataclass(frozen=True)
class _Shards:
    """Costs that depend on the replicas, for several cases: [case, place] or [case, stage]."""

    gather: Array
    reduce: Array
    repeated: Array  # [case, direction, place] exchanged in every microbatch
    elements: Array  # [case, gathered or reduced, place]
    optimizer: Array
    embedding: Array  # [case, 1]
    clip: Array  # [case, 1]


class Assembly:
    """Evaluates the plans of a search.

    Args:
        model: costs of the model on the cluster.
        legal: the plans.
        rules: rules for the software's use of memory.
    """

    def __init__(
        self, model: CostModel, legal: Candidates, rules: MemoryRules = DEFAULT_RULES
    ) -> None:
        self.rules = rules
        self.model, self.llm, self.legal = model, model.llm, legal
        self.columns = {**legal.columns, "fsdp": legal.columns["zero"] == 3}
        self.kinds = [layer_kind(self.llm, i) for i in range(self.llm.layers)]
        self.distinct = sorted({*self.kinds, *mtp_kinds(self.llm)})
        self._activations_of: dict[tuple[int, ...], Array] = {}
        self._seconds: dict[tuple[int, ...], Array] = {}
        self._parameters: dict[object, tuple[Array, Array]] = {}

    def shapes(self) -> Iterator[Ints]:
        """Rows of plans that share (pp, vpp, layers of each chunk)."""
        c = self.legal.columns
        key = (c["pp"] * (1 + c["vpp"].max()) + c["vpp"]) * (1 + c["layout"].max()) + c["layout"]
        order = np.argsort(key, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(key[order])) + 1)

    def _shared(
        self, rows: Ints, names: tuple[str, ...], make: Callable[[tuple[int, ...], int], Any]
    ) -> tuple[list[Any], Ints]:
        """``make(key, first row)`` for each distinct key, and [row] the key's index."""
        key = np.stack([self.columns[name][rows] for name in names])
        distinct, first, index = np.unique(key, axis=1, return_index=True, return_inverse=True)
        values_of_keys = [
            make(tuple(values), int(rows[i]))
            for values, i in zip(distinct.T.tolist(), first.tolist(), strict=True)
        ]
        return values_of_keys, index.reshape(-1)

    def _counts(self, plan: Plan) -> Array:
        """[place, kind] layers."""
        counts = np.zeros((plan.chunks, len(self.distinct)))
        for place, layers in enumerate(plan.chunk_layers(self.llm)):
            for i in layers:
                counts[place, self.distinct.index(self.kinds[i])] += 1
        return counts

    def _mtp_counts(self) -> Array:
        """[kind] layers of the multi-token-prediction modules, times their runs."""
        counts = np.zeros(len(self.distinct))
        for kind in mtp_kinds(self.llm):
            counts[self.distinct.index(kind)] += self.llm.mtp_layers
        return counts

    # Memory.

    def peak_bytes(self, rows: Ints) -> Array:
        """[row] bytes on a GPU of the fullest stage; ``rows`` have one shape."""
        shape = self.legal.plan(int(rows[0]))
        counts = self._counts(shape)
        activations, layer = self._shared(rows, _HELD, self._activations)
        per_layer = np.stack(activations)  # [case, kept or temporary, kind]
        held_layers = counts.copy()
        held_layers[-1] += self._mtp_counts()
        kept_bytes, work = per_layer[layer, 0] @ held_layers.T, per_layer[layer, 1]
        flight, mb = self._shared(rows, _FLIGHT, lambda _, i: in_flight(self.legal.plan(i)))
        held_bytes = by_stage(shape, kept_bytes).mean(axis=1) * np.stack(flight)[mb]
        ends, end = self._shared(
            rows, _ENDS, lambda _, i: end_activations(self.llm, self.legal.plan(i), self.rules)
        )
        first, last, loss = np.array(ends).T
        counted, count = self._shared(
            rows, _FLIGHT, lambda _, i: ends_in_flight(self.legal.plan(i))
        )
        of_first, of_last = np.array(counted).T
        firsts, lasts = end_stages(shape)
        held_bytes[:, firsts] += (first[end] * of_first[count])[:, None]
        held_bytes[:, lasts] += (last[end] * of_last[count])[:, None]
        is_last = np.zeros(shape.pp)
        is_last[lasts] = 1.0
        present = by_stage(shape, counts.T).max(axis=1).T > 0  # [stage, kind]
        largest = np.where(present, work[:, None, :], 0.0).max(axis=2)
        if self.llm.vision is not None:
            excess = [
                vision_excess(self.llm, self.legal.plan(row), kept, self.rules)
                for row, kept in zip(rows.tolist(), kept_bytes[:, 0].tolist(), strict=True)
            ]
            largest[:, firsts] = np.maximum(largest[:, firsts], np.array(excess)[:, None])
        states, state = self._shared(
            rows, _STATES, lambda _, i: self._state_bytes(self.legal.plan(i))
        )
        early, at_loss, at_work, at_end = np.moveaxis(np.stack(states)[state], 1, 0)
        logits = last[end][:, None] * is_last
        total = early + np.maximum(
            held_bytes + loss[end][:, None] * is_last + at_loss,
            held_bytes - logits + largest + at_work,
        )
        peak: Array = np.maximum(total, at_end).max(axis=1)
        return peak

    def _activations(self, key: tuple[int, ...], row: int) -> Array:
        """[kept or temporary, kind] bytes of a layer."""
        if key not in self._activations_of:
            plan = self.legal.plan(row)
            of_kinds = []
            for kind in self.distinct:
                kept, again = layer_activations(self.llm, kind, plan, self.rules)
                of_kinds.append((kept, again + backward_work(self.llm, kind, plan, self.rules)))
            self._activations_of[key] = np.array(of_kinds).T
        return self._activations_of[key]

    def _state_bytes(self, plan: Plan) -> Array:
        """[states at the first two moments, gathered at these, all at the last; stage] bytes."""
        places = self._place_parameters(plan)
        parameters, gradients, optimizer = stage_states(self.llm, plan, self.rules, places)
        fixed = workspace_bytes(self.llm, plan) + framework_bytes(self.llm, plan)
        states = parameters + optimizer + fixed
        gathered = gathered_bytes(self.llm, plan, self.rules)
        gathered = gathered + trainer_bytes(self.llm, plan, self.rules, gathered, places)
        early = states + gradients * holds_gradients(plan)
        return np.stack([early, gathered[0], gathered[1], states + gradients + gathered[2]])

    def _place_parameters(self, plan: Plan) -> tuple[Array, Array]:
        key = (plan.tp, plan.ep, plan.pp, plan.vpp, plan.schedule, plan.layers_per_stage)
        if key not in self._parameters:
            self._parameters[key] = place_parameters(self.llm, plan)
        return self._parameters[key]

    # Time.

    def computes(self, rows: Ints) -> Ints:
        """[row] number of computes of a pipeline, which decides its evaluation time."""
        c = self.legal.columns
        computes: Ints = 2 * c["pp"][rows] * c["vpp"][rows] * self._microbatches(rows)
        return computes

    def step_times(self, rows: Ints, fast: bool | None = None) -> Array:
        """[row] seconds of a step; ``rows`` have one shape; ``fast``: see :class:`Pipelines`."""
        shape = self.legal.plan(int(rows[0]))
        forward, backward = self._compute_s(rows, shape)
        shard_values, shard = self._shared(
            rows, _SHARDS, lambda _, i: self._shard(self.legal.plan(i))
        )
        shards = _Shards(*(np.stack(column)[shard] for column in zip(*shard_values, strict=True)))
        gather, reduce = (
            by_stage(shape, x) for x in self._exposed(shape, shards, forward, backward)
        )
        for direction, seconds in enumerate((forward, backward)):
            seconds += self.model.exposed(shape, shards.repeated[:, direction], seconds)
        hand, pair = self._shared(
            rows, _HAND_OVER, lambda _, i: self.model.p2p_s(self.legal.plan(i))
        )
        ready, p2p = np.cumsum(gather, axis=1), np.stack(hand)[pair]
        if shape.splits_backward:
            ends = self._split_ends(rows, shape, forward, backward, p2p, ready, fast)
        else:
            pipelines = Pipelines(
                shape.schedule,
                *(shape.pp, shape.vpp, self._microbatches(rows), forward, backward),
                *(p2p, ready.reshape(forward.shape)),
            )
            ends = pipelines.ends(fast).reshape(gather.shape)
        norms, norm = self._shared(
            rows, _NORMS, lambda _, i: self.model.layernorm_s(self.legal.plan(i))
        )
        overlapped = shape.overlap_dp & (self._ranks(rows) * shape.copies > 1)
        times = _tail(shape, ends, gather, reduce, np.stack(norms)[norm], shards, overlapped)
        return times + self.model.efficiency.fixed_s

    def _split_ends(
        self,
        rows: Ints,
        shape: Plan,
        forward: Array,
        backward: Array,
        p2p: Array,
        ready: Array,
        fast: bool | None,
    ) -> Array:
        """[row, chunk, stage] ends for schedules with split backwards."""
        layer_seconds, layer = self._shared(rows, _LAYER, self._layer_parts)
        counts = self._layer_counts(shape)
        weight, *exchange = np.moveaxis(np.stack(layer_seconds)[layer] @ counts.T, 1, 0)
        return SplitPipelines(
            shape.schedule,
            np.array(shape.places),
            self._microbatches(rows),
            *(forward, backward, weight, (exchange[0], exchange[1])),
            *(p2p.max(axis=1), ready, shape.overlap_factor),
        ).ends(fast)

    def _microbatches(self, rows: Ints) -> Ints:
        c = self.legal.columns
        m: Ints = self.legal.base.global_batch // (c["dp"][rows] * c["micro_batch"][rows])
        return m

    def _ranks(self, rows: Ints) -> Ints:
        c = self.legal.columns
        ranks: Ints = c["dp"][rows] * c["cp"][rows]
        return ranks

    def _compute_s(self, rows: Ints, shape: Plan) -> tuple[Array, Array]:
        """[row, place] seconds of a forward and of a backward compute."""
        counts = self._layer_counts(shape)
        layer_seconds, layer = self._shared(rows, _LAYER, self._layer)
        seconds = np.stack(layer_seconds)[layer]  # [row, direction, kind]
        return seconds[:, 0] @ counts.T, seconds[:, 1] @ counts.T

    def _layer_counts(self, shape: Plan) -> Array:
        """[place, kind] layers, including the embedding and the output."""
        mtp = self.llm.mtp_layers
        counts = np.zeros((shape.chunks, len(self.distinct) + 3))
        counts[:, :-3] = self._counts(shape)
        counts[0, -3] += 1
        counts[-1, -2:] += (1 + mtp, mtp)
        counts[-1, :-3] += self._mtp_counts()
        return counts

    def _layer_parts(self, key: tuple[int, ...], row: int) -> Array:
        """[gradients of weights, forward's exchange, backward's; kind] seconds."""
        plan = self.legal.plan(row)
        names: list[LayerKind | str] = [*self.distinct, "embedding", "head", "mtp"]
        parts = [
            [self.model.layer_weight_s(name, plan), *self.model.layer(name, plan)[0][:, EXCHANGE]]
            for name in names
        ]
        return np.array(parts).T

    def _layer(self, key: tuple[int, ...], row: int) -> Array:
        """[direction, kind] seconds of each kind of layer, the embedding and the output."""
        if key not in self._seconds:
            plan = self.legal.plan(row)
            names: list[LayerKind | str] = [*self.distinct, "embedding", "head", "mtp"]
            seconds = [self.model.layer(name, plan)[0].sum(axis=1) for name in names]
            self._seconds[key] = np.stack(seconds, axis=1)
        return self._seconds[key]

    def _shard(self, plan: Plan) -> tuple[Array, ...]:
        """The fields of :class:`_Shards` for one plan."""
        model = self.model
        dense, expert = self._place_parameters(plan)
        work = StageWork(
            np.zeros((2, 1, plan.chunks)), np.zeros((2, 1)), dense, expert, np.zeros(plan.chunks)
        )
        gather, reduce = model.gradients_s(plan, work)
        return (
            *(gather, reduce, model.repeated_s(plan, *work.sizes)),
            np.stack(
                [
                    sum(n)
                    for n in (model.gathered(plan, *work.sizes), model.trained(plan, *work.sizes))
                ]
            ),
            model.optimizer_s(plan, work),
            np.array([model.embedding_s(plan)]),
            np.array([model.fabric.all_reduce(4.0, Group(plan.gpus, 1))]),
        )

    def _exposed(
        self, plan: Plan, shards: _Shards, forward: Array, backward: Array
    ) -> tuple[Array, Array]:
        """[row, place] exposed seconds of gathers and reductions (``CostModel._overlap``)."""
        if not plan.overlap_dp:
            return shards.gather, shards.reduce
        bucket = (plan.bucket_bytes or BUCKET_ELEMENTS * plan.grad_bytes) / plan.grad_bytes
        least = np.minimum(1.0, bucket / np.maximum(shards.elements, 1.0))
        exposed = []
        for direction, (total, room) in enumerate(
            ((shards.gather, forward), (shards.reduce, backward))
        ):
            exposed.append(self.model.overlapped(total, total * (1 - least[:, direction]), room)[1])
        return exposed[0], exposed[1]


def _tail(
    shape: Plan,
    ends: Array,
    gather: Array,
    reduce: Array,
    norms: Array,
    shards: _Shards,
    overlapped: npt.NDArray[np.bool_],
) -> Array:
    """[row] seconds until the last stage has updated its parameters, as in ``plan.step``.

    Args:
        shape: a plan of this shape.
        ends: [row, chunk, stage] end of the last backward; ``gather`` and ``reduce`` alike.
        gather: seconds before the first forward.
        reduce: seconds after the last backward.
        norms: [row, stage] seconds of the norms' gradients.
        shards: sharding costs of each row.
        overlapped: [row] whether gradients are reduced during the backward pass.
    """
    time: Array = ends.max(axis=1)
    stream = gather.sum(axis=1)
    queue = in_queue(np.moveaxis(ends, 1, 0), np.moveaxis(reduce, 1, 0))
    for end, scatter in zip(*queue, strict=True):
        stream = np.maximum(stream, end) + scatter
    time = np.where(overlapped[:, None], np.maximum(time, stream), time) + norms
    if meets_at_ends(shape):
        both = np.maximum(time[:, :1], time[:, -1:]) + shards.embedding
        time[:, :1], time[:, -1:] = both, both
    time = time + np.where(overlapped[:, None], 0.0, reduce.sum(axis=1))
    updated: Array = time.max(axis=1, keepdims=True) + shards.clip + shards.optimizer
    latest: Array = updated.max(axis=1)
    return latest
