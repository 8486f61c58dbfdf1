"""Call logs of Megatron, FSDP and DeepSpeed jobs with known steps, for tests and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.trace import OpKind, Trace
from paceline.trace.calls import CallLog

Call = tuple[str, int, str]  # op, bytes, communicator

MB = 2**20


def megatron(layers: int = 4, microbatches: int = 8, buckets: int = 2) -> list[Call]:
    """Tensor parallelism in every layer, pipeline sends, gradients and parameters at the end."""
    forward = [("AllReduce", 8 * MB, "tp")] * (2 * layers)
    one = [("Recv", 4 * MB, "pp"), *forward, ("Send", 4 * MB, "pp")]
    step = [call for _ in range(2 * microbatches) for call in one]
    step += [("ReduceScatter", 64 * MB, "dp")] * buckets + [("AllReduce", 4, "world")]
    return step + [("AllGather", 64 * MB, "dp")] * buckets


def fsdp(layers: int = 24) -> list[Call]:
    """Gather every layer forward and backward, scatter its gradients, and the norm of them."""
    gather = ("AllGather", 32 * MB, "dp")
    step = [("AllGather", 50 * MB, "dp"), *[gather] * layers]
    step += [call for _ in range(layers) for call in (gather, ("ReduceScatter", 32 * MB, "dp"))]
    return [*step, ("ReduceScatter", 50 * MB, "dp"), ("AllReduce", 4, "dp")]


def deepspeed(layers: int = 12, microbatches: int = 4, buckets: int = 5) -> list[Call]:
    """ZeRO 2 with expert parallelism: all-to-all in the layers, buckets of gradients, gathers."""
    layer = [("AllToAll", 16 * MB, "ep")] * 2
    step = layer * (2 * layers * microbatches)
    step += [("Reduce", (20 + bucket) * MB, "dp") for bucket in range(buckets)]
    return [*step, ("AllReduce", 4, "world"), *[("AllGather", 40 * MB, "dp")] * buckets]


def of_length(calls: int) -> list[Call]:
    """A step of exactly so many calls, all but the last few of them equal layers."""
    tail: list[Call] = [("ReduceScatter", 64 * MB, "dp"), ("AllReduce", 4, "world")]
    layer: list[Call] = [("AllGather", MB, "dp"), ("AllReduce", MB, "tp"), ("AllReduce", MB, "tp")]
    return [*(layer * calls)[: calls - len(tail)], *tail]


@dataclass(frozen=True)
class Made:
    """A log and the truth: [rank, step] when each step began, and one more for the end."""

    log: CallLog
    start_s: np.ndarray


def make(
    steps_of_ranks: list[list[Call]],
    steps: int,
    *,
    step_s: float | np.ndarray = 1.0,
    noise: float = 0.02,
    missing: int = 0,
    extra: int = 0,
    seed: int = 0,
) -> Made:
    """Synthesise a log, rows of all ranks interleaved by time.

    Args:
        steps_of_ranks: the calls of one step of each rank.
        steps: number of steps.
        step_s: mean step time, or one for each step.
        noise: coefficient of variation of the step times; calls stray by half their distance.
        missing: calls left out, in each rank.
        extra: calls of other operations put in, in each rank.
        seed: of all randomness.
    """
    rng = np.random.default_rng(seed)
    durations = np.broadcast_to(step_s, steps) * np.maximum(0.2, 1 + noise * rng.normal(size=steps))
    edges = 100.0 + np.append(0.0, np.cumsum(durations))
    rows: list[tuple[float, int, Call]] = []
    starts = []
    for rank, calls in enumerate(steps_of_ranks):
        n = len(calls)
        # Calls fill the first nine tenths of a step: then the optimizer.
        share = 0.9 * (np.arange(n) + 0.5 * rng.random((steps, n))) / n
        share[:, 0] = 0.0005 * rng.random(steps)
        times = (edges[:-1, None] + share * durations[:, None]).ravel()
        starts.append(edges)
        names = calls * steps
        gone = rng.choice(len(names), missing, replace=False)
        keep = np.setdiff1d(np.arange(len(names)), gone)
        rows += [(float(times[at]), rank, names[at]) for at in keep]
        rows += [
            (float(at), rank, calls[int(rng.integers(n))])
            for at in rng.uniform(edges[0], edges[-1], extra)
        ]
    return Made(to_log(sorted(rows, key=lambda row: (row[0], row[1]))), np.array(starts))


def to_log(rows: list[tuple[float, int, Call]]) -> CallLog:
    """A call log of (time, rank, call)."""
    ops = sorted({call[0] for _, _, call in rows})
    communicators = sorted({call[2] for _, _, call in rows})
    op_of = {name: at for at, name in enumerate(ops)}
    communicator_of = {name: at for at, name in enumerate(communicators)}
    return CallLog(
        np.array([rank for _, rank, _ in rows]),
        np.array([time for time, _, _ in rows]),
        np.array([op_of[call[0]] for _, _, call in rows]),
        np.array([call[1] for _, _, call in rows]),
        np.array([communicator_of[call[2]] for _, _, call in rows]),
        tuple(ops),
        tuple(communicators),
    )


_OPS = {
    OpKind.FORWARD_SEND: ("Send", 4 * MB, 1),
    OpKind.FORWARD_RECV: ("Recv", 4 * MB, -1),
    OpKind.BACKWARD_SEND: ("Send", 4 * MB, -1),
    OpKind.BACKWARD_RECV: ("Recv", 4 * MB, 1),
    OpKind.PARAMS_ALL_GATHER: ("AllGather", 64 * MB, 0),
    OpKind.GRADS_REDUCE_SCATTER: ("ReduceScatter", 64 * MB, 0),
}


def of_trace(trace: Trace) -> CallLog:
    """What a hook into the collectives would have logged of a job whose trace is known."""
    step_s = trace.traced_step_s()
    begin_s = np.append(0.0, np.cumsum(step_s))[:-1]
    step = np.searchsorted(trace.steps, trace.step)
    columns = zip(
        *(trace.dp.tolist(), trace.pp.tolist(), trace.kind.tolist()),
        *((begin_s[step] + trace.start).tolist(), (trace.end - trace.start).tolist()),
        strict=True,
    )
    rows = []
    for dp, pp, kind, start_s, seconds in columns:
        if kind not in _OPS:
            continue
        op, size, to = _OPS[kind]
        group = f"pp{dp}.{min(pp, pp + to)}" if to else f"dp{pp}"
        rows.append((start_s, pp * trace.job.dp_size + dp, (op, size, group), seconds))
    rows.sort(key=lambda row: row[:2])
    log = to_log([row[:3] for row in rows])
    return replace(log, duration_s=np.array([row[3] for row in rows]))
