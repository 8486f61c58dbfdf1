"""Replicas with other numbers of microbatches: their graphs and durations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit, fit_computes
from paceline.errors import GraphError, NotApplicableError
from paceline.graph import Durations, Measured, ReplicaOps, StepGraph, build_graph
from paceline.graph.computes import computes_of
from paceline.graph.schedules import SCHEDULES, replica_ops
from paceline.remedies.regraph import Regraphed, ops_of
from paceline.remedies.remedy import predicted_step_s
from paceline.trace import OpKind
from paceline.trace.kinds import P2P_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Kinds with one op per microbatch; the other ops stay unchanged.
PER_MICROBATCH = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, *P2P_KINDS)

#: Schedules by likelihood, for traces of few microbatches that fit several.
BY_LIKELIHOOD = ("1f1b", "interleaved", "gpipe")


@dataclass(frozen=True)
class Resizer:
    """Gives the replicas of a job other numbers of microbatches.

    Attributes:
        measured: graph and durations of the trace.
        schedule: the schedule that its replicas follow, a key of ``SCHEDULES``.
        counts: [dp] present numbers of microbatches.
        unit: counts must be multiples of this.
    """

    measured: Measured
    schedule: str
    counts: Ints
    unit: int

    @cached_property
    def typical(self) -> tuple[Array, ...]:
        """Per variant [group, dp of the variant] usual seconds of a group of similar ops.

        For computes this is the time of an average microbatch on the worker. So a replica that has
        cheap sequences in the traced steps does not look fast. For all other ops it is the median.
        """
        graph, durations = self.measured.graph, self.measured.durations
        fit = fit_computes(durations)
        n_chunks = fit.place.shape[1] // graph.n_pp
        average = _average_microbatch(fit)  # [kind, place]
        tables = []
        for v, (block, dps) in enumerate(zip(durations.blocks, graph.variant_dps, strict=True)):
            match, first = _match(graph, v, graph, v), graph.variant_ops(v).start
            usual = []
            for low, high in pairwise(match.ptr.tolist()):
                ops = match.members[low:high]
                kind, pp = int(graph.kind[first + ops[0]]), int(graph.pp[first + ops[0]])
                if kind <= OpKind.BACKWARD_COMPUTE:
                    place = pp * n_chunks + max(int(graph.chunk[first + ops[0]]), 0)
                    slow = fit.worker_total[kind, pp, dps]
                    usual.append(average[kind, place] * np.exp(fit.place[kind, place] + slow))
                else:
                    usual.append(np.median(block[ops].reshape(-1, block.shape[2]), axis=0))
            tables.append(np.stack(usual))
        return tuple(tables)

    def ops(self, variant: int, n: int) -> ReplicaOps:
        """The ops of a variant's replicas with ``n`` microbatches."""
        return _resize(self.measured, variant, self.schedule, n)

    def replica_s(self, n: int) -> Array:
        """[dp] seconds that each replica takes alone for ``n`` microbatches.

        Every op takes its usual time (see ``typical``).
        """
        graph = self.measured.graph
        times = np.empty(graph.n_dp)
        for v, dps in enumerate(graph.variant_dps):
            one_replica = build_graph(
                [self.ops(v, n)], np.zeros(1, dtype=np.int64), self.measured.job
            )
            # Replicas lie on the step axis, so that collectives do not join them.
            durations = Durations.empty(one_replica, len(dps))
            match = _match(one_replica, 0, graph, v)
            durations.block(0)[:, :, 0] = self.typical[v][match.group]
            times[dps] = predicted_step_s(durations)
        return times

    def durations(self, counts: Ints) -> Durations:
        """The durations of all steps if the replicas had ``counts`` [dp] microbatches."""
        return self.resized(counts).durations

    def resized(self, counts: Ints, delays: Durations | None = None) -> Regraphed:
        """The job if its replicas had ``counts`` [dp] microbatches, with launch delays if given.

        An added microbatch takes the times of another one of its replica and step, scaled to the
        cost of the microbatch that moved there. It does not take the launch delay of the step's
        first microbatch, which belongs to the step's start.
        """
        old = self.measured.durations
        graph = old.graph
        keys = np.stack([graph.replica_variant, counts], axis=1)
        distinct, replica_variant = np.unique(keys, axis=0, return_inverse=True)
        ops = [self.ops(int(v), int(n)) for v, n in distinct]
        job = self.measured.job
        new = Durations.empty(build_graph(ops, replica_variant.reshape(-1), job), old.n_steps)
        new_delays = None if delays is None else Durations.empty(new.graph, old.n_steps)
        for v, (former, _) in enumerate(distinct.tolist()):
            dps = graph.dp_index[new.graph.variant_dps[v]]
            match = _match(new.graph, v, graph, former)
            new.block(v)[:] = old.block(former)[match.source][:, :, dps]
            if delays is not None and new_delays is not None:
                new_delays.block(v)[:] = delays.block(former)[match.delay][:, :, dps]
        self._bring_costs(new, counts)
        return Regraphed(new, new_delays)

    def _bring_costs(self, new: Durations, counts: Ints) -> None:
        """Scale the computes of added microbatches to the cost of those that moved there, in place.

        The k-th microbatch that leaves a replica is the k-th that another receives. Further added
        or dropped microbatches cost as much as the replica's own.
        """
        graph, before = self.measured.graph, self.counts
        fit = fit_computes(self.measured.durations)
        computes = computes_of(new.graph)
        sources = [(dp, m) for dp in range(graph.n_dp) for m in range(counts[dp], before[dp])]
        targets = [(dp, m) for dp in range(graph.n_dp) for m in range(before[dp], counts[dp])]

        def cost(dp: int, microbatch: int) -> Array:  # [step] logarithm
            micro = fit.variants[int(graph.replica_variant[dp])].micro
            own: Array = micro[microbatch, :, int(graph.dp_index[dp])]
            return own

        for source, (dp, microbatch) in zip(sources, targets, strict=False):
            change = cost(*source) - cost(dp, microbatch % int(before[dp]))
            v, index = int(new.graph.replica_variant[dp]), int(new.graph.dp_index[dp])
            ops = computes.ops[v][:, :, microbatch]  # [kind, place]
            new.block(v)[ops, :, index] *= np.exp(fit.slope[..., None] * change)


def resizer(measured: Measured) -> Resizer:
    """A function that resizes the replicas of a job.

    Raises:
        NotApplicableError: its ops follow no known schedule.
    """
    graph = measured.graph
    counts = np.array([_n_microbatches(graph, v) for v in range(graph.n_variants)])
    for name in BY_LIKELIHOOD:
        if all(_follows(measured, v, name, int(n)) for v, n in enumerate(counts)):
            unit = graph.n_pp if name == "interleaved" else 1
            return Resizer(measured, name, counts[graph.replica_variant], unit)
    raise NotApplicableError(
        "the order of operations follows none of the known schedules "
        f"({', '.join(BY_LIKELIHOOD)}): the effect of other numbers of microbatches is unknown"
    )


def _n_microbatches(graph: StepGraph, variant: int) -> int:
    span = graph.variant_ops(variant)
    first = (graph.kind[span] == OpKind.FORWARD_COMPUTE) & (graph.pp[span] == 0)
    return len(np.unique(graph.microbatch[span][first]))


def _resize(measured: Measured, variant: int, schedule: str, n: int) -> ReplicaOps:
    graph, job = measured.graph, measured.job
    old = ops_of(graph, variant)
    noops = bool(graph.noop[graph.variant_ops(variant)].any())
    new = replica_ops(SCHEDULES[schedule], graph.n_pp, n, job.vpp_size, noops=noops)
    kinds = [int(kind) for kind in PER_MICROBATCH]
    scaled, unscaled = np.isin(new.kind, kinds), ~np.isin(old.kind, kinds)
    columns = [
        np.concatenate([getattr(new, name)[scaled], getattr(old, name)[unscaled]])
        for name in ("kind", "pp", "seq", "chunk", "microbatch", "rank")
    ]
    order = np.lexsort((columns[2], columns[0], columns[1]))
    return ReplicaOps(*(column[order] for column in columns))


def _follows(measured: Measured, variant: int, schedule: str, n: int) -> bool:
    """Whether the schedule reproduces the traced graph of a variant exactly."""
    graph = measured.graph
    span = graph.variant_ops(variant)
    edges = slice(int(graph.dep_ptr[span.start]), int(graph.dep_ptr[span.stop]))
    try:
        ops = _resize(measured, variant, schedule, n)
        rebuilt = build_graph([ops], np.zeros(1, dtype=np.int64), measured.job)
    except GraphError:
        return False
    return (
        np.array_equal(rebuilt.kind, graph.kind[span])
        and np.array_equal(rebuilt.pp, graph.pp[span])
        and np.array_equal(rebuilt.noop, graph.noop[span])
        and np.array_equal(np.diff(rebuilt.dep_ptr), np.diff(graph.dep_ptr)[span])
        and np.array_equal(rebuilt.dep, graph.dep[edges] - span.start)
    )


def _average_microbatch(fit: Fit) -> Array:
    """[kind, place] the mean cost of microbatches over the cost of the typical one."""
    costs = np.concatenate([variant.micro.ravel() for variant in fit.variants])
    average: Array = np.exp(fit.slope[..., None] * costs).mean(axis=-1)
    return average


@dataclass(frozen=True)
class _Match:
    """The old op that each new op resembles.

    Attributes:
        source: [new op] the old op whose times it takes, counted from its variant's first.
        delay: [new op] the old op whose launch delay it takes.
        group: [new op] number of its group of similar ops.
        members: [old op] by group.
        ptr: [group + 1] where the old ops of a group start in ``members``.
    """

    source: Ints
    delay: Ints
    group: Ints
    members: Ints
    ptr: Ints


def _match(new: StepGraph, new_variant: int, old: StepGraph, old_variant: int) -> _Match:
    """Match ops by kind, stage, chunk and content; the n-th of a group to the n-th.

    Where a replica has more microbatches than before, the matching starts again with the first.
    """
    new_key, new_order = _keys(new, new_variant)
    old_key, old_order = _keys(old, old_variant)
    distinct, first, n_old = np.unique(old_key[old_order], return_index=True, return_counts=True)
    group = np.searchsorted(distinct, new_key[new_order])
    starts = np.searchsorted(new_key[new_order], distinct)
    nth = np.arange(len(new_order)) - starts[group]
    source = np.empty(len(new_order), dtype=np.int64)
    source[new_order] = old_order[first[group] + nth % n_old[group]]
    n = n_old[group]
    delay_nth = np.where(nth < n, nth, np.minimum(1 + (nth - n) % np.maximum(n - 1, 1), n - 1))
    delay = np.empty(len(new_order), dtype=np.int64)
    delay[new_order] = old_order[first[group] + delay_nth]
    group_of_op = np.empty(len(new_order), dtype=np.int64)
    group_of_op[new_order] = group
    return _Match(source, delay, group_of_op, old_order, np.append(first, len(old_order)))


def _keys(graph: StepGraph, variant: int) -> tuple[Ints, Ints]:
    """[op] a key that similar ops share, and the ops' order by key, then microbatch or sequence."""
    span = graph.variant_ops(variant)
    scaled = np.isin(graph.kind[span], [int(kind) for kind in PER_MICROBATCH])
    seq = graph.seq[span].astype(np.int64)
    most = int(graph.chunk.max()) + 2
    key = graph.kind[span].astype(np.int64) * graph.n_pp + graph.pp[span]
    key = (key * most + graph.chunk[span] + 1) * 2 + graph.noop[span]
    key = key * (int(graph.seq[~np.isin(graph.kind, PER_MICROBATCH)].max(initial=0)) + 1)
    key = key + np.where(scaled, 0, seq)
    nth = np.where(graph.microbatch[span] >= 0, graph.microbatch[span], seq)
    return key, np.lexsort((nth, key))
