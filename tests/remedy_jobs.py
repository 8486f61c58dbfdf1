"""Jobs made of layers, with faults and launch delays, timed by the oracle's stopwatch.

A change of the job is made in the job itself, which is run again: that is the truth that
predictions are held against. Nothing here knows how the package predicts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from jobs import Spec, skeleton, trace_of
from oracle import Oracle
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import Case
from paceline.whatif import analyze

LAYER_S = {"forward-compute": 0.005, "backward-compute": 0.010}
#: Of a stage of 12 layers; collectives grow with the layers.
GATHER_S, SCATTER_S, LAYERS = 0.018, 0.036, 12
OTHER_S = {"layernorm-grads-all-reduce": 1e-4, "embedding-grads-all-reduce": 0.010}
OTHER_S |= {"separate-grads-all-reduce": 0.005, "optimizer-clip-main-grad": 0.004}
OTHER_S |= {"optimizer": 0.018, "gc": 0.0}


@dataclass(frozen=True)
class LayeredJob:
    """A job; ``layers`` of each stage, ``loss`` in layers, faults by (dp, stage)."""

    dp: int = 4
    pp: int = 4
    microbatches: int = 8
    chunks: int = 1
    layers: int = LAYERS
    loss: float = 0.0
    schedule: str = "1f1b"
    overlapped: bool = False
    steps: int = 2
    noise: float = 0.01
    seed: int = 0
    workers: dict[tuple[int, int], float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)  # (dp, lower stage)
    delays: dict[str, float] = field(default_factory=dict)  # by kind
    loading_s: float = 0.0
    counts: tuple[int, ...] | None = None

    @property
    def spec(self) -> Spec:
        counts = self.counts or (self.microbatches,) * self.dp
        return Spec(
            pp=self.pp, vpp=self.chunks, microbatches=counts, steps=self.steps,
            schedule=self.schedule, overlapped=self.overlapped, gc=False,
        )  # fmt: skip

    def _seconds(self, row: dict) -> float:
        kind, pp, chunk = row["kind"], row["pp"], row["chunk"]
        if kind in LAYER_S:
            last = pp == self.pp - 1 and chunk == self.chunks - 1
            seconds = LAYER_S[kind] * (self.layers / self.chunks + self.loss * last)
            return seconds * self.workers.get((row["dp"], pp), 1.0)
        if kind.endswith(("send", "recv")):
            onward = kind in ("forward-send", "backward-recv")
            low = pp if onward else (pp - 1) % self.pp
            pair = {low, (low + 1) % self.pp}
            slow = [
                f for (dp, at), f in self.links.items() if dp == row["dp"] and {at, at + 1} == pair
            ]
            return 0.001 * (slow[0] if slow else 1.0)
        whole = {"params-all-gather": GATHER_S, "grads-reduce-scatter": SCATTER_S}.get(kind)
        return OTHER_S[kind] if whole is None else whole * self.layers / LAYERS / self.chunks

    def _noise(self, row: dict, key: object) -> float:
        """Members of a transfer end together, so they vary together."""
        who = key or tuple(row[n] for n in ("step", "dp", "pp", "kind", "seq"))
        return max(0.2, random.Random(f"{self.seed} {who}").gauss(1.0, self.noise))

    def rows(self) -> list[dict]:
        rows = skeleton(self.spec)
        oracle = Oracle(rows, self.pp, self.chunks)
        durations = [
            0.0 if oracle.noop[i] else self._seconds(row) * self._noise(row, oracle.group[i])
            for i, row in enumerate(rows)
        ]
        delays = [self.delays.get(row["kind"], 0.0) for row in rows]
        for i, row in enumerate(rows):
            if row["kind"] == "forward-compute" and row["pp"] == 0 and row["seq"] == 0:
                delays[i] += self.loading_s
        launch, end = oracle.run(durations, delays)
        first: dict[int, float] = {}
        for row, at in zip(rows, launch, strict=True):
            first[row["step"]] = min(first.get(row["step"], at), at)
        return [
            row | {"start": at - first[row["step"]], "duration": until - at}
            for row, at, until in zip(rows, launch, end, strict=True)
        ]

    def step_s(self) -> float:
        """The mean step time by the stopwatch."""
        last: dict[int, float] = defaultdict(float)
        for row in self.rows():
            last[row["step"]] = max(last[row["step"]], row["start"] + row["duration"])
        return sum(last.values()) / len(last)

    def case(self, layers: tuple[int, ...] | None = None, **options: object) -> Case:
        measured = from_trace(trace_of(self.rows(), self.spec.job))
        result = analyze(measured)
        return Case(measured, result, diagnose(measured, result), layers, None, options)
