"""Synthesised traces, written as the files of other tools."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import OpKind, Trace

K = OpKind

#: The first step's start, seconds since 1970; one step every STEP_S.
EPOCH_S, STEP_S = 1.75e9, 20.0

VESCALE = {
    K.PARAMS_ALL_GATHER: "unshard-all-gather",
    K.GRADS_REDUCE_SCATTER: "grad-reduce-scatter",
}


def make_trace(kinds: set[OpKind] | None = None, **spec) -> Trace:
    """A job with a slow worker and equal durations else; only ``kinds``, if they are given."""
    spec = {"dp": 2, "pp": 2, "microbatches": 4, "steps": 3, "noise": 0.0} | spec
    slow = SlowWorker(spec["dp"] - 1, 0, 1.4)
    trace = synthesize(SynthSpec(slow_workers=(slow,), **spec))
    return trace if kinds is None else only(trace, kinds)


def only(trace: Trace, kinds: set[OpKind]) -> Trace:
    """The trace with ops of some kinds alone."""
    from dataclasses import replace

    from paceline.trace import Columns, arrange

    rows = np.isin(trace.kind, list(kinds))
    columns = Columns(
        step=trace.step,
        dp=trace.dp,
        pp=trace.pp,
        rank=trace.rank[trace.dp, trace.pp],
        kind=trace.kind,
        start=trace.start,
        duration=trace.end - trace.start,
        seq=trace.seq,
        chunk=trace.chunk,
        microbatch=trace.microbatch,
    ).take(rows)
    return replace(arrange(columns, trace.job), truth=None)


def ops_of(trace: Trace) -> Iterator[dict]:
    """The ops of a trace with absolute times, by rank and start."""
    columns = {
        name: getattr(trace, name)
        for name in ("step", "dp", "pp", "kind", "chunk", "microbatch", "start", "end")
    }
    # As programs do: communication is launched before the compute that need not wait for it.
    compute = columns["kind"] <= K.BACKWARD_COMPUTE
    order = np.lexsort((compute, columns["start"], columns["step"]))
    for row in order.tolist():
        op = {name: values[row].item() for name, values in columns.items()}
        base = EPOCH_S + STEP_S * op["step"]
        op |= {"kind": OpKind(op["kind"]), "rank": int(trace.rank[op["dp"], op["pp"]])}
        yield op | {"start": op["start"] + base, "end": op["end"] + base}


def same(got: Trace, truth: Trace, within_s: float = 2e-6) -> None:
    """Assert that two traces agree: times as far as a file of absolute microseconds holds them."""
    assert got.job.dp_size == truth.job.dp_size
    assert got.job.pp_size == truth.job.pp_size
    np.testing.assert_array_equal(got.steps, truth.steps)
    np.testing.assert_array_equal(got.counts, truth.counts)
    np.testing.assert_array_equal(got.microbatch, truth.microbatch)
    np.testing.assert_array_equal(got.chunk, truth.chunk)
    assert np.abs(got.start - truth.start).max() < within_s
    assert np.abs(got.end - truth.end).max() < within_s


def dump(value: object, path: Path) -> Path:
    data = json.dumps(value, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def load(path: Path) -> object:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def timelines(trace: Trace, folder: Path, suffix: str = ".json", tp: int = 1) -> list[Path]:
    """NDTimeline's files, one per host; a host has the ranks of one stage."""
    events = defaultdict(list)
    for op in ops_of(trace):
        for peer in range(tp):
            event = {
                "name": VESCALE.get(op["kind"], op["kind"].label),
                "ph": "X",
                "cat": "ndtimeline",
                "pid": op["dp"],
                "tid": op["rank"] * tp + peer,
                "ts": op["start"] * 1e6,
                "dur": (op["end"] - op["start"]) * 1e6,
                "args": {"rank": op["rank"] * tp + peer, "step": op["step"], "tp": peer},
            }
            event["args"]["pp"] = op["pp"]
            events[op["pp"]].append(event)
    return [dump(found, folder / f"host{pp}{suffix}") for pp, found in sorted(events.items())]


class ProfileWriter:
    """PyTorch profiles of CUDA ranks in the documented format, with Megatron's group names."""

    MAIN, AUTOGRAD = 100, 200

    def __init__(
        self, trace: Trace, ahead_s: dict[int, float] | None = None, ranges: bool = False
    ) -> None:
        self.trace, self.ranges = trace, ranges
        self.ahead_s = ahead_s or {}
        self.events: dict[int, list[dict]] = defaultdict(list)
        self.correlation = 0
        self.seq: dict[tuple[int, str], int] = defaultdict(int)
        self.host_s: dict[int, float] = defaultdict(float)
        for op in ops_of(trace):
            self._op(op)
        self._steps()

    def groups(self, dp: int, pp: int) -> dict[str, tuple[str, list[int]]]:
        rank, job = self.trace.rank, self.trace.job
        ends = sorted({int(rank[dp, 0]), int(rank[dp, job.pp_size - 1])})
        return {
            "default_pg": ("0", rank.ravel().tolist()),
            "DATA_PARALLEL_GROUP": (f"{10 + pp}", rank[:, pp].tolist()),
            "PIPELINE_MODEL_PARALLEL_GROUP": (f"{30 + dp}", rank[dp].tolist()),
            "EMBEDDING_GROUP": (f"{50 + dp}", ends),
        }

    def write(self, folder: Path, suffix: str = ".json.gz") -> list[Path]:
        paths = []
        for (dp, pp), rank in np.ndenumerate(self.trace.rank):
            config = [
                {"pg_name": name, "pg_desc": purpose, "pg_size": len(ranks), "ranks": ranks}
                for purpose, (name, ranks) in self.groups(dp, pp).items()
            ]
            value = {
                "schemaVersion": 1,
                "distributedInfo": {
                    "backend": "nccl",
                    "rank": int(rank),
                    "world_size": self.trace.rank.size,
                    "pg_config": config,
                },
                "traceEvents": self.events[int(rank)],
                "baseTimeNanoseconds": int(EPOCH_S * 1e9),
            }
            paths.append(dump(value, folder / f"rank{rank}{suffix}"))
        return paths

    def _add(self, rank: int, name: str, cat: str, start: float, end: float, tid: int, **args):
        # Before its kernel the host needs 5 us; all of it relative to the base.
        zero = EPOCH_S - self.ahead_s.get(rank, 0.0)
        event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid}
        event |= {"ts": (start - zero) * 1e6, "dur": (end - start) * 1e6, "args": args}
        self.events[rank].append(event)

    def _at(self, rank: int, start: float) -> float:
        """When the host launches: 5 us before the GPU can start, one after another."""
        self.host_s[rank] = max(self.host_s[rank] + 2e-6, start - 5e-6)
        return self.host_s[rank]

    def _launched(self, rank, name, start, end, tid, at, stream, **args) -> None:
        self.correlation += 1
        link = {"correlation": self.correlation}
        self._add(rank, "cudaLaunchKernel", "cuda_runtime", at, at + 1e-6, tid, **link)
        self._add(rank, name, "kernel", start, end, stream, **link, **args)

    def _op(self, op: dict) -> None:
        rank, kind, start, end = op["rank"], op["kind"], op["start"], op["end"]
        if kind in (K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.OPTIMIZER):
            tid = self.AUTOGRAD if kind == K.BACKWARD_COMPUTE else self.MAIN
            cuts = np.linspace(start, end, 4)
            began = self._at(rank, start)
            for low, high in pairwise(cuts):
                at = self._at(rank, start)
                self._launched(rank, "gemm_kernel<4>", low, high, tid, at, stream=7)
            if kind != K.OPTIMIZER:
                action = "B" if kind == K.BACKWARD_COMPUTE else "F"
                self._range(op, action, op["microbatch"], began, at + 1e-6)
            if kind == K.OPTIMIZER:
                name = "Optimizer.step#AdamW.step"
                self._add(rank, name, "user_annotation", began, at + 1e-6, self.MAIN)
        elif kind in (K.FORWARD_SEND, K.FORWARD_RECV, K.BACKWARD_SEND, K.BACKWARD_RECV):
            forward = kind in (K.FORWARD_SEND, K.BACKWARD_RECV)
            sends = kind in (K.FORWARD_SEND, K.BACKWARD_SEND)
            peer = (op["pp"] + (1 if forward else -1)) % self.trace.job.pp_size
            purpose = "PIPELINE_MODEL_PARALLEL_GROUP"
            args = {"Dst Rank" if sends else "Src Rank": peer}
            at = self._comm(
                op, "send" if sends else "recv", purpose, "ncclDevKernel_SendRecv", **args
            )
            action = f"{'SEND' if sends else 'RECV'}_{kind.label[0].upper()}"
            self.seq[rank, f"{action}{op['step']}"] += 1
            n = self.seq[rank, f"{action}{op['step']}"] - 1
            self._range(op, action, n, at - 1e-7, at + 1.5e-6)
        else:
            name, purpose, kernel = {
                K.PARAMS_ALL_GATHER: ("_allgather_base", "DATA_PARALLEL_GROUP", "AllGather"),
                K.GRADS_REDUCE_SCATTER: (
                    "_reduce_scatter_base",
                    "DATA_PARALLEL_GROUP",
                    "ReduceScatter",
                ),
                K.EMBEDDING_GRADS_ALL_REDUCE: ("allreduce", "EMBEDDING_GROUP", "AllReduce"),
                K.OPTIMIZER_CLIP_MAIN_GRAD: ("allreduce", "default_pg", "AllReduce"),
            }[kind]
            self._comm(op, name, purpose, f"ncclDevKernel_{kernel}_Sum_f32_RING_LL")

    def _range(self, op: dict, action: str, microbatch: int, begin: float, end: float) -> None:
        if self.ranges:
            name = f"PP:{op['pp']}{action}{microbatch}"
            self._add(op["rank"], name, "user_annotation", begin, end, self.MAIN)

    def _comm(self, op: dict, name: str, purpose: str, kernel: str, **peer: int) -> float:
        rank = op["rank"]
        group, ranks = self.groups(op["dp"], op["pp"])[purpose]
        elements = 1 if op["kind"] == K.OPTIMIZER_CLIP_MAIN_GRAD else 4096
        args = {"Collective name": name, "Process Group Name": group, "In msg nelems": elements}
        args |= peer
        args["Process Group Ranks"] = str(ranks)
        if not peer:
            args["Seq"] = self.seq[rank, group] = self.seq[rank, group] + 1
        at = self._at(rank, op["start"])
        self._add(rank, "record_param_comms", "cpu_op", at, at + 2e-6, self.MAIN, **args)
        tid = self.MAIN
        self._launched(rank, kernel, op["start"], op["end"], tid, at + 1e-6, 20, **args)
        return at

    def _steps(self) -> None:
        for rank in self.events:
            for step in self.trace.steps.tolist():
                begin = EPOCH_S + STEP_S * step - 1e-4
                name = f"ProfilerStep#{step}"
                self._add(rank, name, "user_annotation", begin, begin + STEP_S - 1e-6, self.MAIN)


#: The kinds that a profile tells.
PROFILED = {
    *(K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.FORWARD_SEND, K.FORWARD_RECV, K.BACKWARD_SEND),
    *(K.BACKWARD_RECV, K.PARAMS_ALL_GATHER, K.GRADS_REDUCE_SCATTER, K.OPTIMIZER),
    K.EMBEDDING_GRADS_ALL_REDUCE,
}
