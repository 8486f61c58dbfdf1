"""A large job whose programs are recorded layer by layer, as a dataset of one file per step.

    python benchmarks/program_trace.py FOLDER --dp 16 --tp 8 --pp 8 --microbatches 32 --steps 10

1F1B; a layer is two computes, each with a tensor-parallel collective behind it; weights are
gathered and gradients reduced layer by layer, over all replicas or over ``--shard`` of them. One
worker is slow, all durations vary by 2%.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.graph.build import build_graph
from paceline.graph.graph import Durations, StepGraph
from paceline.graph.replica import ReplicaOps
from paceline.simulate import timeline
from paceline.sources import parquet
from paceline.trace import Job, OpKind, Trace
from paceline.trace.trace import N_KINDS, Program

K = OpKind

#: Seconds that an op takes.
TYPICAL_S = {
    K.FORWARD_COMPUTE: 1e-3,
    K.BACKWARD_COMPUTE: 2e-3,
    K.TENSOR_COMM: 2e-4,
    K.PARAMS_ALL_GATHER: 1e-3,
    K.GRADS_REDUCE_SCATTER: 1e-3,
    K.OPTIMIZER: 5e-3,
}
OTHER_S = 1e-4

#: Collectives of parameters and gradients.
WEIGHT_KINDS = (K.PARAMS_ALL_GATHER, K.GRADS_REDUCE_SCATTER)


class _Worker:
    """One program: each op a row (kind, chunk, microbatch, part, issued, awaited)."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def launch(self, kind: OpKind, part: int = 0, microbatch: int = -1) -> int:
        chunk = 0 if microbatch >= 0 else -1
        self.rows.append([kind, chunk, microbatch, part, len(self.rows), -1])
        return len(self.rows) - 1

    def wait(self, op: int) -> None:
        self.rows[op][5] = len(self.rows) - 1


def one_stage(pp: int, n_pp: int, n_microbatches: int, n_layers: int) -> npt.NDArray[np.int64]:
    """[op, field] the program of one stage, 1F1B."""
    worker = _Worker()
    gathers = [worker.launch(K.PARAMS_ALL_GATHER, layer) for layer in range(n_layers)]
    scatters: list[int] = []

    def one_pass(kind: OpKind, recv: OpKind, send: OpKind, microbatch: int) -> None:
        forward = kind == K.FORWARD_COMPUTE
        first, last = (0, n_pp - 1) if forward else (n_pp - 1, 0)
        if pp != first:
            worker.wait(worker.launch(recv))
        for part in range(2 * n_layers):
            if forward and microbatch == 0 and part % 2 == 0:
                worker.wait(gathers[part // 2])
            worker.launch(kind, part, microbatch)
            worker.wait(worker.launch(K.TENSOR_COMM, part + 2 * n_layers * (not forward)))
            if not forward and microbatch == n_microbatches - 1 and part % 2:
                scatters.append(worker.launch(K.GRADS_REDUCE_SCATTER, part // 2))
        if pp != last:
            worker.launch(send)

    warmup = min(n_pp - 1 - pp, n_microbatches)
    order = [("F", m) for m in range(warmup)]
    for m in range(n_microbatches):
        order += [("F", warmup + m)] * (warmup + m < n_microbatches) + [("B", m)]
    for which, microbatch in order:
        if which == "F":
            one_pass(K.FORWARD_COMPUTE, K.FORWARD_RECV, K.FORWARD_SEND, microbatch)
        else:
            one_pass(K.BACKWARD_COMPUTE, K.BACKWARD_RECV, K.BACKWARD_SEND, microbatch)
    for scatter in scatters:
        worker.wait(scatter)
    worker.launch(K.OPTIMIZER)
    return np.array(worker.rows)


def one_replica(n_pp: int, n_microbatches: int, n_layers: int) -> ReplicaOps:
    """The ops of a replica, sorted by (pp, kind, seq)."""
    tables = []
    for pp in range(n_pp):
        rows = one_stage(pp, n_pp, n_microbatches, n_layers)
        rows = rows[np.lexsort((rows[:, 4], rows[:, 0]))]
        first = np.searchsorted(rows[:, 0], rows[:, 0])
        seq = np.arange(len(rows)) - first
        tables.append(np.column_stack([rows, np.full(len(rows), pp), seq]))
    kind, chunk, microbatch, part, issued, awaited, stage, seq = np.concatenate(tables).T
    return ReplicaOps(kind, stage, seq, chunk, microbatch, issued, part, awaited)


def durations_of_step(
    graph: StepGraph, rng: np.random.Generator, slow: tuple[int, int]
) -> Durations:
    """Durations [op, 1, dp] of one step; the worker ``slow`` (dp, pp) computes 1.3x slower."""
    typical = np.array([TYPICAL_S.get(OpKind(int(k)), OTHER_S) for k in range(N_KINDS)])
    table = Durations.empty(graph, 1)
    block = table.block(0)
    block[:] = typical[graph.kind][:, None, None] * rng.normal(1, 0.02, block.shape).clip(0.5)
    own = np.flatnonzero(np.isin(graph.kind, (0, 1)) & (graph.pp == slow[1]))
    block[own, :, slow[0]] *= 1.3
    return table


def write_dataset(
    folder: Path,
    dp: int,
    pp: int,
    microbatches: int,
    layers: int,
    steps: int,
    shard: int = 0,
    tp: int = 1,
) -> list[Path]:
    """Write one file per step, ``step-00000.parquet`` on; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(dp, pp, tp, peers=tp)
    replica = np.arange(job.replicas)
    weights = replica % tp + replica // tp // shard * tp if shard else replica % tp
    families = np.stack([np.zeros_like(replica), replica // tp, weights])
    ops = one_replica(pp, microbatches, layers)
    family = np.select(
        [ops.kind == K.TENSOR_COMM, np.isin(ops.kind, list(WEIGHT_KINDS))], [1, 2], 0
    )
    ops = replace(ops, family=family)
    group = np.where(family > 0, families.T[:, family], -1).ravel().astype(np.int32)
    dp = job.replicas
    graph = build_graph([ops], np.zeros(dp, dtype=np.int64), job, families)
    rng = np.random.default_rng(0)
    cell = ops.pp * N_KINDS + ops.kind
    counts = np.bincount(cell, minlength=pp * N_KINDS).reshape(1, 1, pp, N_KINDS)
    columns = (np.tile(v, dp).astype(np.int32) for v in (ops.part, ops.rank, ops.awaited))
    program = Program(*columns, group)
    paths = []
    at = 0.0
    for step in range(steps):
        line = timeline(durations_of_step(graph, rng, (dp // 2, pp // 2)))
        start, end = (table.block(0)[:, 0].T.ravel() for table in (line.start, line.end))
        trace = Trace(
            job=job,
            steps=np.array([step]),
            counts=np.broadcast_to(counts, (1, dp, pp, N_KINDS)).astype(np.int32),
            chunk=np.tile(ops.chunk, dp).astype(np.int16),
            microbatch=np.tile(ops.microbatch, dp).astype(np.int32),
            start=start + at,
            end=end + at,
            step_start_s=np.array([at]),
            rank=np.arange(dp * pp).reshape(dp, pp),
            program=program,
        )
        at += float(line.step_times()[0]) + 0.01
        paths.append(folder / f"step-{step:05d}.parquet")
        parquet.write(trace, paths[-1], force=True)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, default in (("dp", 16), ("pp", 8), ("microbatches", 32), ("layers", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel ranks of each dp rank")
    parser.add_argument("--shard", type=int, default=0, help="replicas that share weights; 0: all")
    args = vars(parser.parse_args())
    paths = write_dataset(**args)
    print(json.dumps({"files": len(paths), "bytes": sum(p.stat().st_size for p in paths)}))


if __name__ == "__main__":
    main()
