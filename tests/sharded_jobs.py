"""FSDP and DDP jobs whose programs can be changed for real: what a remedy promises, run again.

Durations belong to what is done (the forward of unit 3 in microbatch 1 on rank 2), not to a place
in a program, so a changed program does the same work. It shares no code with the package.
"""

import random
from dataclasses import dataclass, field, replace

from program_jobs import Compute, Launch, Run, Wait, trace_of_runs

GATHER, SCATTER, FORWARD, BACKWARD = (
    "params-all-gather",
    "grads-reduce-scatter",
    "forward-compute",
    "backward-compute",
)
BETWEEN = "separate-grads-all-reduce"


@dataclass(frozen=True)
class ShardedJob:
    """A model of units over some data-parallel ranks, in one stage.

    Attributes:
        ahead: units ahead of which parameters are gathered; 0: when they are needed.
        blocking: gathers block where they are launched; the next one of a backward is launched a
            unit early all the same (FSDP2 on a CPU).
        reshard: parameters are gathered again in the backward.
        every: gradients are reduced in every microbatch.
        blocking_scatters: a scatter blocks where it is launched, else it is awaited a unit later.
        gather_s, scatter_s, forward_s: typical seconds of a unit; the backward takes twice as much.
        uneven: how far units differ.
        jitter: standard deviation of the logarithm of every single time.
        pause_s: longest time for which the host dawdles before some computes.
        slow: dp -> factor of its computes.
    """

    units: int = 5
    dp: int = 4
    microbatches: int = 1
    ahead: int = 0
    blocking: bool = False
    reshard: bool = True
    every: bool = True
    blocking_scatters: bool = False
    gather_s: float = 0.02
    scatter_s: float = 0.02
    forward_s: float = 0.03
    uneven: float = 0.3
    jitter: float = 0.02
    pause_s: float = 0.0
    steps: int = 6
    slow: dict = field(default_factory=dict)
    seed: int = 0
    groups = None

    def program(self):
        """Instructions of a rank, and what each op of it is."""
        steps, names = [], []

        def op(step, name):
            steps.append(step)
            names.append(name)

        def gather(way, m, u):
            op(Launch(GATHER, ("g", way, m, u), u), ("gather", way, m, u))
            gathered.add((way, m, u))

        last_scatter = None
        for m in range(self.microbatches):
            for way in ("forward", "backward"):
                order = list(range(self.units))[:: 1 if way == "forward" else -1]
                gathered = set()
                needs = way == "forward" or self.reshard
                for i, u in enumerate(order):
                    if needs and (way, m, u) not in gathered:
                        gather(way, m, u)
                    if needs and ("wait", way, m, u) not in gathered:
                        steps.append(Wait(("g", way, m, u)))
                    early = 1 if way == "backward" and self.blocking else 0
                    for v in order[i + 1 : i + 1 + max(self.ahead, early)]:
                        if needs and (way, m, v) not in gathered:
                            gather(way, m, v)
                            if self.blocking and not self.ahead:
                                steps.append(Wait(("g", way, m, v)))
                                gathered.add(("wait", way, m, v))
                    op(Compute(f"{way}-compute", m, 0), (way, m, u))
                    reduces = self.every or m == self.microbatches - 1
                    if way == "backward" and reduces:
                        if last_scatter is not None and not self.blocking_scatters:
                            steps.append(Wait(last_scatter))
                        last_scatter = ("s", m, u)
                        op(Launch(SCATTER, last_scatter, u), ("scatter", m, u))
                        if self.blocking_scatters:
                            steps.append(Wait(last_scatter))
        if last_scatter is not None and not self.blocking_scatters:
            steps.append(Wait(last_scatter))
        op(Compute("optimizer"), ("optimizer",))
        return steps, names

    def seconds(self, step, dp, name):
        unit = name[-1] if name[0] != "optimizer" else 0
        typical = {
            "gather": self.gather_s,
            "scatter": self.scatter_s,
            "forward": self.forward_s,
            "backward": 2 * self.forward_s,
            "optimizer": 0.1 * self.forward_s,
        }[name[0]]
        sort = "work" if name[0] in ("forward", "backward") else name[0]
        size = random.Random(f"{self.seed}/{sort}/{unit}").gauss(0, self.uneven)
        own = random.Random(f"{self.seed}/{step}/{dp}/{name}").gauss(0, self.jitter)
        factor = self.slow.get(dp, 1.0) if name[0] in ("forward", "backward") else 1.0
        return typical * factor * 2.718281828 ** (size + own)

    def pause(self, step, dp, name):
        rng = random.Random(f"pause/{self.seed}/{step}/{dp}/{name}")
        works = name[0] in ("forward", "backward")
        return rng.uniform(0, self.pause_s) if works and rng.random() < 0.3 else 0.0

    def runs(self):
        program, names = self.program()
        programs = {(dp, 0): program for dp in range(self.dp)}
        return [
            Run(
                programs,
                lambda key, step=step: self.seconds(step, key[0], names[key[2]]),
                lambda key, step=step: self.pause(step, key[0], names[key[2]]),
                groups=self.groups,
            )
            for step in range(self.steps)
        ]

    def step_s(self):
        """The mean step."""
        runs = self.runs()
        return sum(run.step_s for run in runs) / len(runs)

    def trace(self):
        return trace_of_runs(self.runs())


@dataclass(frozen=True)
class HybridJob(ShardedJob):
    """Some ranks share one copy of the parameters; gradients are reduced between copies (HSDP).

    A ring passes each share from rank to rank: a latency each time, and bytes over the link.

    Attributes:
        shard: ranks that share a copy.
        per_node: ranks on a node.
        latency_s: of a hop.
        unit_s: bytes of a unit over the bandwidth of a rank's network adapter.
        node_speedup: how many times as fast links within a node are.
        scatter_passes: how often a scatter's bytes go round; gloo's is an all-reduce.
    """

    dp: int = 8
    shard: int = 8
    per_node: int = 4
    latency_s: float = 0.0
    unit_s: float = 0.04
    node_speedup: float = 8.0
    scatter_passes: int = 1

    def program(self):
        steps, names = super().program()
        if self.shard == self.dp:
            return steps, names
        scatters = {s.name: s for s in steps if isinstance(s, Launch) and s.kind == SCATTER}
        ops = iter(names)
        hybrid, hybrid_names, between = [], [], []
        for step in steps:
            if isinstance(step, Compute) and step.kind == "optimizer":
                hybrid += [Wait(name) for name in between]
            hybrid.append(step)
            if not isinstance(step, Wait):
                hybrid_names.append(next(ops))
            elif step.name in scatters:
                name = ("a", *step.name[1:])
                hybrid.append(Launch(BETWEEN, name, scatters[step.name].part))
                hybrid_names.append(("between", *step.name[1:]))
                if self.blocking_scatters:
                    hybrid.append(Wait(name))
                else:
                    between.append(name)
        return hybrid, hybrid_names

    def ring_s(self, ranks, on_node):
        """Seconds in which a ring passes a whole unit round."""
        fast = self.node_speedup if on_node == ranks else min(self.node_speedup, on_node)
        return (ranks - 1) * (self.latency_s + self.unit_s / ranks / fast)

    def seconds(self, step, dp, name):
        shard, copies = self.shard, self.dp // self.shard
        typical = self.ring_s(shard, min(shard, self.per_node))
        if name[0] == "between":
            small = replace(self, unit_s=self.unit_s / shard)
            typical = 2 * small.ring_s(copies, max(1, self.per_node // shard))
        like = ("scatter", *name[1:]) if name[0] == "between" else name
        passes = self.scatter_passes if name[0] == "scatter" else 1
        whole = replace(self, gather_s=typical, scatter_s=passes * typical)
        return ShardedJob.seconds(whole, step, dp, like)

    @property
    def groups(self):
        """Kind -> [dp] group."""
        copy = [dp // self.shard for dp in range(self.dp)]
        same = [dp % self.shard for dp in range(self.dp)]
        return {GATHER: copy, SCATTER: copy, BETWEEN: same} if self.shard < self.dp else {}


@dataclass(frozen=True)
class BucketedJob:
    """A DDP model of layers, whose gradients are reduced in buckets of some layers.

    Attributes:
        layers: of the model.
        per_bucket: layers in a bucket.
        latency_s: of a reduction.
        layer_s: bytes of a layer over the bandwidth, seconds.
        backward_s: of a layer; each layer varies on its own, however they are put into buckets.
        every: gradients are reduced in every microbatch.
    """

    layers: int = 16
    per_bucket: int = 4
    dp: int = 4
    microbatches: int = 1
    latency_s: float = 0.002
    layer_s: float = 0.01
    backward_s: float = 0.02
    every: bool = True
    jitter: float = 0.02
    pause_s: float = 0.0
    steps: int = 6
    slow: dict = field(default_factory=dict)
    seed: int = 0

    def program(self):
        steps, names = [], []

        def op(step, name):
            steps.append(step)
            names.append(name)

        for m in range(self.microbatches):
            op(Compute(FORWARD, m, 0), ("forward", m, 0))
            launched = []
            for low in range(0, self.layers, self.per_bucket):
                high = min(self.layers, low + self.per_bucket)
                op(Compute(BACKWARD, m, 0), ("backward", m, low, high))
                if self.every or m == self.microbatches - 1:
                    launched.append((m, low))
                    op(Launch(SCATTER, (m, low), low), ("reduce", m, low, high))
            steps += [Wait(name) for name in launched]
        op(Compute("optimizer"), ("optimizer",))
        return steps, names

    def seconds(self, step, dp, name):
        def own(*what):
            rng = random.Random(f"{self.seed}/{step}/{dp}/{what}")
            return 2.718281828 ** rng.gauss(0, self.jitter)

        slow = self.slow.get(dp, 1.0)
        layers = sum(own(name[:2], layer) for layer in range(*name[2:])) if len(name) == 4 else 0
        if name[0] == "reduce":
            return self.latency_s + layers * self.layer_s
        if name[0] == "backward":
            return layers * self.backward_s * slow
        whole_s = self.layers * self.backward_s / 2 if name[0] == "forward" else 0.003
        return whole_s * slow * own(name)

    def pause(self, step, dp, name):
        return ShardedJob.pause(self, step, dp, name) if name[0] == "forward" else 0.0

    groups = None
    runs = ShardedJob.runs
    step_s, trace = ShardedJob.step_s, ShardedJob.trace
