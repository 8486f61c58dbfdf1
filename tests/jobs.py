"""Small random jobs as raw rows, timed by the oracle itself."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oracle import EMBEDDING, Oracle
from paceline.trace import Columns, Job, OpKind, Trace, arrange

BASE_S = {"forward-compute": 0.1, "backward-compute": 0.2, "gc": 0.02, "optimizer": 0.05}


@dataclass(frozen=True)
class Spec:
    """What a job looks like; ``microbatches`` holds one number per data-parallel rank."""

    pp: int = 2
    vpp: int = 1
    microbatches: tuple[int, ...] = (4, 4)
    steps: int = 2
    schedule: str = "1f1b"
    overlapped: bool = False
    noops: str = "none"  # none, zero, random
    gather: bool = True
    scatter: bool = True
    layernorm: bool = True
    embedding: bool = True
    gc: bool = True
    clip: bool = True
    optimizer: bool = True
    delays: bool = True
    spread: float = 0.5
    named_chunks: bool = True  # collectives carry their chunk, else -1
    shared_transfers: bool = False  # members of one transfer end together
    first_step: int = 0
    seed: int = 0
    slow: tuple[tuple[int, int, float], ...] = field(default=())  # (dp, pp, factor)

    @property
    def job(self) -> Job:
        return Job(dp_size=len(self.microbatches), pp_size=self.pp, vpp_size=self.vpp)


def compute_order(spec: Spec, pp: int, n: int) -> list[tuple[str, int, int]]:
    """(direction, chunk, microbatch) in the order in which a stage computes."""
    total, group = n * spec.vpp, spec.pp * spec.vpp
    forward, backward = [], []
    for k in range(total):
        chunk = (k % group) // spec.pp if spec.vpp > 1 else 0
        microbatch = k // group * spec.pp + k % spec.pp if spec.vpp > 1 else k
        forward.append(("forward-compute", chunk, microbatch))
        backward.append(("backward-compute", spec.vpp - 1 - chunk, microbatch))
    if spec.schedule == "gpipe":
        return forward + backward
    ahead = (spec.pp - pp - 1) * (2 if spec.vpp > 1 else 1) + (spec.vpp - 1) * spec.pp
    ahead = min(ahead, total)
    order = forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        order += [f, b]
    return order + backward[total - ahead :]


def stage_ops(spec: Spec, pp: int, n: int) -> list[tuple[str, int, int]]:
    """(kind, chunk, microbatch) of one stage; the ops of each stream in the order they run."""
    ops = []
    chunks = range(spec.vpp)
    if spec.gather:
        ops += [("params-all-gather", c if spec.named_chunks else -1, -1) for c in chunks]
    for kind, chunk, microbatch in compute_order(spec, pp, n):
        way = kind.split("-")[0]
        for op in (f"{way}-recv", kind, f"{way}-send"):
            at_start = op in ("forward-recv", "backward-send")
            place = 0 if at_start else spec.pp * spec.vpp - 1
            if op != kind and chunk * spec.pp + pp == place and spec.noops == "none":
                continue
            ops.append((op, chunk, microbatch if op == kind else -1))
    if spec.gc:
        ops.append(("gc", -1, -1))
    if spec.layernorm:
        ops.append(("layernorm-grads-all-reduce", -1, -1))
    if spec.embedding and pp in (0, spec.pp - 1):
        ops.append((EMBEDDING, -1, -1))
    if spec.scatter:
        ops += [
            ("grads-reduce-scatter", c if spec.named_chunks else -1, -1) for c in reversed(chunks)
        ]
    if spec.overlapped:
        ops.append(("separate-grads-all-reduce", -1, -1))
    if spec.clip:
        ops.append(("optimizer-clip-main-grad", -1, -1))
    if spec.optimizer:
        ops.append(("optimizer", -1, -1))
    return ops


def skeleton(spec: Spec) -> list[dict]:
    """All rows, with their place in the stage's order as a stand-in for the start."""
    rows = []
    for step in range(spec.first_step, spec.first_step + spec.steps):
        for dp, n in enumerate(spec.microbatches):
            for pp in range(spec.pp):
                count: dict[str, int] = {}
                for place, (kind, chunk, microbatch) in enumerate(stage_ops(spec, pp, n)):
                    seq = count[kind] = count.get(kind, -1) + 1
                    row = {"step": step, "dp": dp, "pp": pp, "kind": kind, "seq": seq}
                    row |= {"chunk": chunk, "microbatch": microbatch}
                    rows.append(row | {"start": float(place), "duration": 0.0})
    return rows


def make_rows(spec: Spec) -> list[dict]:
    """A consistent trace: random durations and launch delays, simulated by the oracle."""
    rng = random.Random(spec.seed)
    rows = skeleton(spec)
    oracle = Oracle(rows, spec.pp, spec.vpp)
    slow = {(dp, pp): factor for dp, pp, factor in spec.slow}
    durations, delays, shared = [], [], {}
    for i, row in enumerate(rows):
        seconds = BASE_S.get(row["kind"], 0.01) * rng.uniform(1 - spec.spread, 1 + spec.spread)
        if row["kind"] in ("forward-compute", "backward-compute"):
            seconds *= slow.get((row["dp"], row["pp"]), 1.0)
        if oracle.noop[i]:
            seconds = rng.choice((0.0, 0.003)) if spec.noops == "random" else 0.0
        if spec.shared_transfers and oracle.group[i] is not None:
            seconds = shared.setdefault(oracle.group[i], seconds)
        durations.append(seconds)
        delays.append(rng.expovariate(50) if spec.delays and rng.random() < 0.5 else 0.0)
    return timed(rows, oracle, durations, delays)


def timed(rows, oracle, durations, delays) -> list[dict]:
    """The rows as they run with these durations and delays, each step from 0 on."""
    launch, end = oracle.run(durations, delays)
    first: dict[int, float] = {}
    for row, at in zip(rows, launch, strict=True):
        first[row["step"]] = min(first.get(row["step"], at), at)
    return [
        row | {"start": at - first[row["step"]], "duration": until - at}
        for row, at, until in zip(rows, launch, end, strict=True)
    ]


def retimed(rows: list[dict], spec: Spec, longer) -> list[dict]:
    """The rows of a job whose operations take ``longer(row)`` seconds more, timed again."""
    oracle = Oracle(rows, spec.pp, spec.vpp)
    durations = [d + longer(row) for d, row in zip(oracle.durations, rows, strict=True)]
    return timed(rows, oracle, durations, oracle.delays)


def random_spec(seed: int) -> Spec:
    """Any mix of schedules, sizes and optional ops."""
    rng = random.Random(seed)
    vpp = rng.choice((1, 1, 1, 2, 4))
    pp = rng.choice((1, 2, 3, 4)) if vpp == 1 else rng.choice((2, 3))
    dp = rng.choice((1, 2, 3)) if vpp < 4 else rng.choice((1, 2))
    unit = pp if vpp > 1 else 1
    counts = [rng.randint(1, 6 if vpp == 1 else 2) * unit for _ in range(dp)]
    if rng.random() < 0.6:
        counts = counts[:1] * dp
    return Spec(
        pp=pp,
        vpp=vpp,
        microbatches=tuple(counts),
        steps=rng.choice((1, 2, 3)),
        schedule=rng.choice(("gpipe", "1f1b", "1f1b")),
        overlapped=rng.random() < 0.5,
        noops=rng.choice(("none", "zero", "random")),
        gather=rng.random() < 0.8,
        scatter=rng.random() < 0.8,
        layernorm=rng.random() < 0.7,
        embedding=rng.random() < 0.7,
        gc=rng.random() < 0.5,
        clip=rng.random() < 0.7,
        optimizer=rng.random() < 0.7,
        delays=rng.random() < 0.7,
        named_chunks=rng.random() < 0.7,
        seed=seed,
    )


def columns_of(rows: list[dict], **dtypes: str) -> Columns:
    """Rows -> raw columns; ``dtypes`` sets the width of some of them."""
    values = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "kind"}
    if "rank" not in values:
        values["rank"] = values["dp"] * (int(values["pp"].max()) + 1) + values["pp"]
    values = {name: array.astype(dtypes.get(name, array.dtype)) for name, array in values.items()}
    kind = np.array([OpKind.from_label(row["kind"]) for row in rows], dtype=np.int8)
    return Columns(kind=kind, **values)


def trace_of(rows: list[dict], job: Job | None = None) -> Trace:
    return arrange(columns_of(rows), job)


def table_of(rows: list[dict], optype: str = "string") -> pa.Table:
    """Rows -> the columns of the file format."""
    columns = columns_of(rows)
    n_pp = int(columns.pp.max()) + 1
    compute = columns.microbatch >= 0
    labels = pa.array(
        [row["kind"] for row in rows], pa.large_string() if "large" in optype else None
    )
    return pa.table(
        {
            "dp_rank": columns.dp,
            "stage": columns.pp,
            "rank": columns.rank,
            "step": columns.step,
            "optype": labels.dictionary_encode() if optype == "categorical" else labels,
            "start_ts": columns.start,
            "duration": columns.duration,
            "seq_id": columns.seq,
            "mc": columns.chunk,
            "mb_id": columns.microbatch,
            "gmc": np.where(compute, columns.chunk * n_pp + columns.pp, -1),
        }
    )


def write_rows(rows: list[dict], path: Path, optype: str = "string") -> Path:
    pq.write_table(table_of(rows, optype), path)
    return path


__all__ = [
    "Spec",
    "columns_of",
    "make_rows",
    "random_spec",
    "replace",
    "table_of",
    "trace_of",
    "write_rows",
]
