"""Programs of synthesised jobs: computes, launches and waits of each stage, layer by layer.

FSDP follows torch 2.13 (``distributed/fsdp/_fully_shard``). Within a pass, units are gathered
ahead. Before a unit's reduction, the program waits for the previous one. HSDP then reduces the
previous result over the shard's replicas. DDP launches a bucket after the last of its layers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.graph.replica import ReplicaOps
from paceline.graph.schedules import Schedule
from paceline.synth.layers import Layers
from paceline.trace import Job, OpKind

K = OpKind
Ints = npt.NDArray[np.int64]

#: For forward and backward: the compute, the recv before it, and the send after it.
_DIRECTIONS = (
    (K.FORWARD_COMPUTE, K.FORWARD_RECV, K.FORWARD_SEND),
    (K.BACKWARD_COMPUTE, K.BACKWARD_RECV, K.BACKWARD_SEND),
)

#: Kind of collective -> family of groups, as in :func:`families_of`.
FAMILY = {
    K.TENSOR_COMM: 1,
    K.CONTEXT_COMM: 2,
    K.EXPERT_COMM: 3,
    K.PARAMS_ALL_GATHER: 4,
    K.GRADS_REDUCE_SCATTER: 4,
    K.SEPARATE_GRADS_ALL_REDUCE: 5,
}


def program_replica(
    schedule: Schedule, job: Job, n_microbatches: int, layers: Layers
) -> ReplicaOps:
    """The ops of one replica in one step, sorted by (pp, kind, seq).

    Args:
        schedule: order of the passes.
        job: degrees of parallelism.
        n_microbatches: number of the replica's microbatches.
        layers: layers and communication within the passes.

    Raises:
        GraphError: the schedule does not allow these numbers.
    """
    tables = []
    for pp in range(job.pp_size):
        order = schedule(pp, job.pp_size, n_microbatches, job.vpp_size)
        stage = _Stage(layers, job, pp, n_microbatches)
        for backward, chunk, microbatch in zip(
            order.backward.tolist(), order.chunk.tolist(), order.microbatch.tolist(), strict=True
        ):
            stage.run_pass(backward, chunk, microbatch)
        stage.finish()
        rows = np.array(stage.rows, dtype=np.int64)
        rows = rows[np.lexsort((rows[:, 4], rows[:, 0]))]
        seq = np.arange(len(rows)) - np.searchsorted(rows[:, 0], rows[:, 0])
        tables.append(np.column_stack([rows, np.full(len(rows), pp), seq]))
    kind, chunk, microbatch, part, issued, awaited, stages, seq = np.concatenate(tables).T
    family = np.array([FAMILY.get(OpKind(k), 0) for k in range(len(OpKind))])[kind]
    return ReplicaOps(kind, stages, seq, chunk, microbatch, issued, part, awaited, family)


def families_of(job: Job, layers: Layers) -> Ints:
    """[family, replica] number of the replica's group, for the families of ``FAMILY``.

    A replica's number is dp * peers + peer, where peer = tp + tp_size * cp. Shard groups and expert
    groups have neighbouring data- and context-parallel ranks.
    """
    replica = np.arange(job.replicas)
    tp_size = min(job.tp_size, job.peers)
    tensor, shared = replica % tp_size, replica // tp_size
    shard = layers.shard or job.replicas // tp_size
    return np.stack(
        [
            np.zeros_like(replica),
            shared,
            shared // layers.cp * tp_size + tensor,
            shared // layers.ep * tp_size + tensor,
            shared // shard * tp_size + tensor,
            shared % shard * tp_size + tensor,
        ]
    )


class _Stage:
    """Writes the program of one stage.

    Attributes:
        rows: kind, chunk, microbatch, part, position and awaited of each op. ``awaited`` is the
            position of the last op launched before the wait, or -1.
    """

    def __init__(self, layers: Layers, job: Job, pp: int, n_microbatches: int) -> None:
        self.rows: list[list[int]] = []
        self._layers, self._job, self._pp = layers, job, pp
        self._last_microbatch = n_microbatches - 1
        self._inner = layers.inner_kinds(job.tp_size)
        self._replicates = 0 < layers.shard < job.dp_size * layers.cp
        self._gathered: set[int] = set()  # chunks gathered for the whole step
        self._scatter: tuple[int, int, int] | None = None  # op, unit, chunk
        self._reductions: list[int] = []

    def _launch(self, kind: OpKind, part: int = 0, chunk: int = -1, microbatch: int = -1) -> int:
        self.rows.append([int(kind), chunk, microbatch, part, len(self.rows), -1])
        return len(self.rows) - 1

    def _wait(self, op: int) -> None:
        self.rows[op][5] = len(self.rows) - 1

    def run_pass(self, backward: bool, chunk: int, microbatch: int) -> None:
        """Add a forward or backward of a microbatch, with its recv and send."""
        kind, recv, send = _DIRECTIONS[backward]
        ends = [self._pp == 0 and chunk == 0, self._is_last(chunk)]
        begins_here, ends_here = reversed(ends) if backward else ends
        alone = self._job.pp_size == 1  # chunks of a single stage need no transfers
        if not (begins_here or alone):
            self._wait(self._launch(recv))
        n = self._layers.layers
        order = range(n)[:: -1 if backward else 1]
        gathers: dict[int, int] = {}
        gathering = self._gathers(chunk)
        for place, layer in enumerate(order):
            if gathering:
                self._gather(order[place : place + 1], chunk, gathers)
                self._wait(gathers[layer])
                ahead = slice(place + 1, place + 1 + self._layers.prefetch)
                self._gather(order[ahead], chunk, gathers)
            self._layer(kind, place, chunk, microbatch)
            if backward and (microbatch == self._last_microbatch or not self._layers.accumulate):
                self._reduce(layer, chunk)
        if not (ends_here or alone):
            self._launch(send)

    def _is_last(self, chunk: int) -> bool:
        return self._pp == self._job.pp_size - 1 and chunk == self._job.vpp_size - 1

    def _gathers(self, chunk: int) -> bool:
        """Whether a pass of the chunk gathers its parameters."""
        if not self._layers.fsdp or chunk in self._gathered:
            return False
        if not self._layers.reshard:
            self._gathered.add(chunk)
        return True

    def _gather(self, units: range, chunk: int, gathers: dict[int, int]) -> None:
        """Launch gathers for units without one in this pass."""
        for unit in units:
            if unit not in gathers:
                gathers[unit] = self._launch(K.PARAMS_ALL_GATHER, unit, chunk)

    def _layer(self, kind: OpKind, place: int, chunk: int, microbatch: int) -> None:
        """Add a layer's computes and collectives; each collective is awaited at once."""
        backward = kind == K.BACKWARD_COMPUTE
        inner = self._inner[:: -1 if backward else 1]
        n_parts = max(1, len(inner))
        first, of_pass = place * n_parts, self._layers.layers * n_parts
        if not inner:
            self._launch(kind, first, chunk, microbatch)
        for number, collective in enumerate(inner, first):
            self._launch(kind, number, chunk, microbatch)
            self._wait(self._launch(collective, number + of_pass * backward))

    def _reduce(self, layer: int, chunk: int) -> None:
        """Launch the reductions of gradients that a layer's backward completed."""
        if self._layers.fsdp:
            self._replicate()
            self._scatter = (self._launch(K.GRADS_REDUCE_SCATTER, layer, chunk), layer, chunk)
            return
        n, buckets = self._layers.layers, self._layers.buckets
        bucket, after = (n - layer - 1) * buckets // n, (n - layer) * buckets // n
        if after > bucket:
            self._reductions.append(self._launch(K.GRADS_REDUCE_SCATTER, bucket, chunk))
        if layer == 0 and self._job.pp_size == 1:  # with more stages this would delay the send
            self._wait_for_reductions()

    def _replicate(self) -> None:
        """Wait for the previous reduction, and reduce its result over the shard's replicas."""
        if self._scatter is not None:
            op, unit, chunk = self._scatter
            self._wait(op)
            if self._replicates:
                all_reduce = self._launch(K.SEPARATE_GRADS_ALL_REDUCE, unit, chunk)
                self._reductions.append(all_reduce)
            self._scatter = None

    def _wait_for_reductions(self) -> None:
        for op in self._reductions:
            self._wait(op)
        self._reductions.clear()

    def finish(self) -> None:
        """Wait for all gradients, clip them and update."""
        self._replicate()
        self._wait_for_reductions()
        self._wait(self._launch(K.OPTIMIZER_CLIP_MAIN_GRAD))
        self._launch(K.OPTIMIZER)
