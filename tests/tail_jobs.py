"""Jobs with noise in tails, written as a user would write them and simulated by recurrence.

A worker's program is a list of instructions. Each worker runs as far as it can; a transfer begins
when its last member is there and the one before it in its queue has ended. Shares no code with the
package, nor with the other generators of these tests.
"""

import math
import random
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

GATHER, SCATTER, BETWEEN = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
TENSOR, EXPERT, CLIP = "tensor-comm", "expert-comm", "optimizer-clip-main-grad"
F, B, W = "forward-compute", "backward-compute", "weight-compute"
DOWN, UP = "forward", "backward"


@dataclass(frozen=True)
class Worker:
    dp: int
    stage: int = 0
    peer: int = 0


@dataclass
class Program:
    """The instructions of a worker: ("run" | "post" | "wait", ...)."""

    steps: list = field(default_factory=list)
    n: dict = field(default_factory=dict)

    def run(self, kind, microbatch=-1, part=0, chunk=-1, cost=1.0):
        self.steps.append(("run", kind, microbatch, part, chunk, cost))

    def post(self, kind, name, *, meeting=None, part=0, chunk=-1, group=-1, cost=1.0):
        """Launch; members of one ``meeting`` meet, else the n-th of a kind and group do."""
        nth = self.n[kind, group] = self.n.get((kind, group), -1) + 1
        self.steps.append(("post", kind, name, meeting, part, chunk, group, nth, cost))

    def wait(self, name):
        self.steps.append(("wait", name))

    def meet(self, kind, name, **more):
        self.post(kind, name, **more)
        self.wait(name)


class DeadlockError(Exception):
    pass


class Step:
    """One step: ``rows`` of all workers, and ``seconds`` from the first start to the last end.

    Args:
        programs: Worker -> Program.
        took: (worker, nth op, instruction) -> seconds.
        members: (worker, instruction) -> (key of the queue, how many meet).
    """

    def __init__(self, programs, took, members):
        self.took, self.members = took, members
        self.clock = dict.fromkeys(programs, 0.0)
        self.at = dict.fromkeys(programs, 0)
        self.rows = {w: [] for w in programs}
        self.named = {w: {} for w in programs}
        self.waiting, self.posted, self.free, self.next = {}, {}, {}, {}
        programs = {w: p.steps for w, p in programs.items()}
        moving = True
        while moving:
            moving = [self._advance(w, steps) for w, steps in programs.items()]
            moving = any(moving)
        if any(self.at[w] < len(steps) for w, steps in programs.items()):
            raise DeadlockError
        every = [row for rows in self.rows.values() for row in rows]
        self.seconds = max(r["end"] for r in every) - min(r["start"] for r in every)

    def _advance(self, w, steps):
        begun = self.at[w]
        while self.at[w] < len(steps):
            step = steps[self.at[w]]
            rows = self.rows[w]
            if step[0] == "wait":
                row = self.named[w][step[1]]
                if "end" not in row:
                    break
                if row["awaited"] < 0:
                    row["awaited"] = len(rows) - 1
                self.clock[w] = max(self.clock[w], row["end"])
            elif step[0] == "run":
                _, kind, microbatch, part, chunk, _ = step
                seconds = self.took(w, len(rows), step)
                row = {"kind": kind, "mb": microbatch, "part": part, "chunk": chunk, "group": -1}
                row |= {"start": self.clock[w], "awaited": -1, "seconds": seconds}
                self.clock[w] += seconds
                rows.append(row | {"end": self.clock[w]})
            else:
                _, kind, name, _, part, chunk, group, _, _ = step
                row = {"kind": kind, "mb": -1, "part": part, "chunk": chunk, "group": group}
                row |= {"start": self.clock[w], "awaited": -1}
                row["seconds"] = self.took(w, len(rows), step)
                rows.append(row)
                self.named[w][name] = row
                self._arrive(w, step, row)
            self.at[w] += 1
        return self.at[w] > begun

    def _arrive(self, w, step, row):
        meeting, nth = step[3], step[7]
        queue, n_members = self.members(w, step)
        key = (queue, meeting if meeting is not None else nth)
        self.posted.setdefault(key, []).append(row)
        if len(self.posted[key]) < n_members:
            return
        if meeting is not None:
            self._transfer(self.posted[key], 0.0)
            return
        while len(self.posted.get((queue, self.next.get(queue, 0)), ())) == n_members:
            nth = self.next.get(queue, 0)
            self.free[queue] = self._transfer(self.posted[queue, nth], self.free.get(queue, 0.0))
            self.next[queue] = nth + 1

    def _transfer(self, rows, free):
        begin = max(free, *(row["start"] for row in rows))
        for row in rows:
            row["end"] = begin + row["seconds"]
        return max(row["end"] for row in rows)


def bubble_order(stages, stage, microbatches, interleaved=1):
    """(way, chunk, microbatch) of 1F1B, or of Megatron's interleaved 1F1B."""
    v, n = interleaved, microbatches
    if v == 1:
        ahead = min(n, stages - stage - 1)
        forwards = [(DOWN, 0, m) for m in range(n)]
        backwards = [(UP, 0, m) for m in range(n)]
    else:
        ahead = min(n * v, 2 * (stages - stage - 1) + (v - 1) * stages)

        def place(k):
            block, inside = divmod(k, stages * v)
            return inside // stages, block * stages + inside % stages

        forwards = [(DOWN, *place(k)) for k in range(n * v)]
        backwards = [(UP, v - 1 - place(k)[0], place(k)[1]) for k in range(n * v)]
    order = forwards[:ahead]
    for pair in zip(forwards[ahead:], backwards, strict=False):
        order += pair
    return order + backwards[len(forwards) - ahead :]


@dataclass(frozen=True)
class TailJob:
    """A random job. Noise: each op takes (1 + |normal| * noise), and ``tails`` of them 1.5 to 3x.

    Attributes:
        dp, pp, tp: degrees.
        microbatches, layers, chunks: of a replica, of a chunk, of a stage.
        sharded: "fsdp", "hsdp" (groups of two ranks) or "ddp" (buckets).
        split: backwards are split (ZB-H1).
        experts: each layer meets in expert-comm.
        slow: {Worker: factor} of computes.
        slow_link: {(dp, low stage): factor}.
        slow_group: {(kind, stage): factor}.
        lengths: relative spread of the cost of microbatches.
        pauses: share of forwards that pause for ``pause_s``.
        drift: spread of the slow wander of each worker's speed from step to step.
    """

    dp: int = 4
    pp: int = 1
    tp: int = 1
    microbatches: int = 1
    layers: int = 4
    chunks: int = 1
    sharded: str = "fsdp"
    split: bool = False
    experts: bool = False
    noise: float = 0.0
    even: bool = False
    tails: float = 0.0
    drift: float = 0.0
    slow: dict = field(default_factory=dict)
    slow_link: dict = field(default_factory=dict)
    slow_group: dict = field(default_factory=dict)
    lengths: float = 0.0
    pauses: float = 0.0
    pause_s: float = 0.3
    forward_s: float = 0.04
    gather_s: float = 0.015
    p2p_s: float = 0.004
    steps: int = 12
    seed: int = 0

    @cached_property
    def workers(self):
        return [
            Worker(d, s, t) for d in range(self.dp) for s in range(self.pp) for t in range(self.tp)
        ]

    def program(self, w):
        """The instructions of a worker."""
        p = Program()
        at_once = self.pp > 1 and not self.split
        order = bubble_order(self.pp, w.stage, self.microbatches, self.chunks)
        left = dict.fromkeys(range(self.chunks), self.microbatches)
        weights = []
        for way, chunk, m in order:
            place = chunk * self.pp + w.stage
            last = self.chunks * self.pp - 1
            before, after = (place - 1, place + 1) if way == DOWN else (place + 1, place - 1)
            if 0 <= before <= last:
                p.meet(f"{way}-recv", (way, chunk, m, "r"), meeting=(way, w.dp, w.peer, m, before))
            if way == DOWN:
                self._forward(p, w, chunk, m)
            else:
                left[chunk] -= 1
                self._backward(p, w, chunk, m, reduce=left[chunk] == 0 or self.pp == 1)
            if 0 <= after <= last:
                p.post(f"{way}-send", (way, chunk, m, "s"), meeting=(way, w.dp, w.peer, m, place))
            if way == UP and self.split:
                weights.append(m)
                if len(weights) > self.pp - w.stage - 1:
                    p.run(W, weights.pop(0), 0, 0, self._cost(w, 0))
        for m in weights:
            p.run(W, m, 0, 0, self._cost(w, 0))
        if at_once or self.split:
            for c in reversed(range(self.chunks)):
                self._reduce(p, w, c, c)
        for name in [s[2] for s in p.steps if s[0] == "post" and s[1] in (SCATTER, BETWEEN)]:
            p.wait(name)
        p.meet(CLIP, "clip", cost=0.02)
        p.run("optimizer", cost=0.3)
        return p

    def _cost(self, w, part):
        """Layers differ in size, alike on all workers."""
        return 1 + 0.2 * random.Random(f"{self.seed}/size/{part}").random()

    def _forward(self, p, w, chunk, m):
        units = range(self.layers)
        fsdp = self.sharded != "ddp" and self.pp == 1
        if fsdp:
            p.post(GATHER, ("g", m, 0), part=0, group=self._group(w))
        for u in units:
            if fsdp and u + 1 < self.layers:
                p.post(GATHER, ("g", m, u + 1), part=u + 1, group=self._group(w))
            if fsdp:
                p.wait(("g", m, u))
            p.run(F, m, u, chunk, self._cost(w, u))
            self._inner(p, w, ("f", chunk, m, u))

    def _backward(self, p, w, chunk, m, reduce):
        fsdp = self.sharded != "ddp" and self.pp == 1
        units = list(range(self.layers))[::-1]
        if fsdp:
            p.post(GATHER, ("h", m, units[0]), part=units[0], group=self._group(w))
        for at, u in enumerate(units):
            if fsdp and at + 1 < self.layers:
                p.post(GATHER, ("h", m, u - 1), part=u - 1, group=self._group(w))
            if fsdp:
                p.wait(("h", m, u))
            p.run(B, m, u, chunk, (1 if self.split else 2) * self._cost(w, u))
            self._inner(p, w, ("b", chunk, m, u))
            if reduce and self.pp == 1:
                self._reduce(p, w, (m, u), u)

    def _reduce(self, p, w, name, part):
        p.post(SCATTER, ("s", name), part=part, group=self._group(w))
        if self.sharded == "hsdp":
            p.wait(("s", name))
            p.post(BETWEEN, ("a", name), part=part, group=100 + w.dp % 2)

    def _inner(self, p, w, name):
        if self.tp > 1:
            p.meet(TENSOR, ("t", name), cost=0.1)
        if self.experts:
            p.meet(EXPERT, ("e", name), cost=0.3)

    def _group(self, w):
        return w.dp // 2 * 2 if self.sharded == "hsdp" else -1

    def members(self, w, step):
        _, kind, _, meeting, _, _, group, _, _ = step
        if meeting is not None:
            return "p2p", 2
        if kind == CLIP:
            return CLIP, len(self.workers)
        if kind == TENSOR:
            return (kind, w.dp, w.stage), self.tp
        size = 2 if group >= 0 and kind != BETWEEN else self.dp // 2 if group >= 0 else self.dp
        return (kind, w.stage, w.peer, group), size

    def _draw(self, *key):
        return random.Random(f"{self.seed}/{key}")

    def took(self, number, w, nth, step):
        """Seconds of an op."""
        rng = self._draw(number, w, nth)
        spread = rng.gauss(0, 1)
        factor = math.exp(self.noise * spread) if self.even else 1 + self.noise * abs(spread)
        if rng.random() < self.tails:
            factor *= rng.uniform(1.5, 3.0)
        kind, cost = step[1], step[-1]
        if step[0] == "run":
            factor *= math.exp(self._wander(w, number)) * self.slow.get(w, 1.0)
            if kind in (F, B, W):
                length = self._draw("length", number, w.dp, step[2]).gauss(0, 1)
                factor *= math.exp(self.lengths * length)
            seconds = self.forward_s * cost * factor
            return seconds + self.pause_s * (kind == F and rng.random() < self.pauses)
        if kind.endswith(("send", "recv")):
            way = 1 if kind in ("forward-send", "backward-recv") else 0
            low = (w.stage if way else w.stage - 1) % self.pp
            return self.p2p_s * factor * self.slow_link.get((w.dp, low), 1.0)
        # Members of a collective end together, but for some noise of each.
        _, _, _, _, part, _, group, n, _ = step
        shared = self._draw("transfer", number, kind, w.stage, group, n).gauss(0, 1)
        own = 1 + 0.002 * abs(spread)
        factor = own * (1 + self.noise * abs(shared)) * self.slow_group.get((kind, w.stage), 1.0)
        size = self._cost(w, part) if kind in (GATHER, SCATTER, BETWEEN) else 1.0
        return self.gather_s * cost * size * factor

    def _wander(self, w, number):
        """A random walk of the speed that comes back to its mean."""
        value = 0.0
        for at in range(number + 1) if self.drift else ():
            value = 0.8 * value + 0.6 * self.drift * self._draw("wander", w, at).gauss(0, 1)
        return value

    @cached_property
    def runs(self):
        programs = {w: self.program(w) for w in self.workers}
        return [
            Step(programs, lambda w, n, s, k=number: self.took(k, w, n, s), self.members)
            for number in range(self.steps)
        ]

    @cached_property
    def step_s(self):
        return sum(run.seconds for run in self.runs) / len(self.runs)

    def table(self):
        """The columns of the trace format."""
        rows = []
        for number, run in enumerate(self.runs):
            for w, ops in run.rows.items():
                rank = (w.dp * self.pp + w.stage) * self.tp + w.peer
                place = {"dp_rank": w.dp, "stage": w.stage, "rank": rank, "step": number}
                seen = {}
                for issued, op in enumerate(ops):
                    seq = seen[op["kind"]] = seen.get(op["kind"], -1) + 1
                    row = place | {"optype": op["kind"], "seq_id": seq, "mb_id": op["mb"]}
                    row |= {"start_ts": op["start"], "duration": op["end"] - op["start"]}
                    row |= {"mc": op["chunk"], "gmc": -1, "part": op["part"], "issued": issued}
                    row |= {"awaited": op["awaited"], "group": op["group"], "peer": w.peer}
                    rows.append(row)
        table = pa.Table.from_pylist(rows)
        if self.tp == 1:
            table = table.drop_columns("peer")
        if self.sharded != "hsdp":
            table = table.drop_columns("group")
        return table

    def write(self, path):
        pq.write_table(self.table(), path)
        return path
