"""Workers whose optimizer takes longer than that of their peers in all steps.

The computes of such a worker are healthy. Its host may pause in each optimizer step, or its memory
or GPU may be slow there alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import robust, units
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.remove import Effect, Scaled
from paceline.diagnose.workers import pattern_of
from paceline.graph import Durations
from paceline.trace.kinds import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Least ratio to the peers' median, and least distance from them in standard errors. In 80
#: recordings of five newcomers' gloo jobs, the slowest healthy optimizer is 1.07 times its peers'.
MIN_FACTOR, MIN_ERRORS = 1.3, 6.0

#: With fewer steps the variation of a worker is not known.
MIN_STEPS = 4

#: An optimizer must be the longest of its stage in this share of the steps.
LONGEST_SHARE = 0.8

_SHARDS = (
    "the optimizer of this worker may have more parameters than that of its peers (uneven shards); "
    "then even shards help"
)

#: Id of the finding on workers of which the optimizer alone is slow.
OPTIMIZER = "optimizer"

_TINY_S = 1e-9


@dataclass(frozen=True)
class SlowOptimizer:
    """A worker whose optimizer is slow.

    Attributes:
        dp, stage: the worker.
        seconds, peers_s: median seconds a step, and the median of its peers'.
        variant: its replica structure.
        ops: its optimizers, counted from the variant's first op.
        dp_index: its index among the replicas of the variant.
    """

    dp: int
    stage: int
    seconds: float
    peers_s: float
    variant: int
    ops: Ints
    dp_index: int

    @property
    def factor(self) -> float:
        """Ratio to the peers."""
        return self.seconds / self.peers_s

    @property
    def repair(self) -> Scaled:
        """Its optimizers, as long as those of the peers."""
        return Scaled(self.variant, self.ops, self.dp_index, np.full((1, 1, 1), 1 / self.factor))


def slow_optimizers(durations: Durations) -> list[SlowOptimizer]:
    """Workers with slow optimizers, the slowest first."""
    graph = durations.graph
    if graph.n_dp < 2 or durations.n_steps < MIN_STEPS:
        return []
    found = []
    for stage in range(graph.n_pp):
        seconds = np.zeros((durations.n_steps, graph.n_dp))
        ops_of = []
        for v, dps in enumerate(graph.variant_dps):
            span = graph.variant_ops(v)
            ops = np.flatnonzero((graph.kind[span] == OpKind.OPTIMIZER) & (graph.pp[span] == stage))
            ops_of.append(ops)
            seconds[:, dps] = durations.block(v)[ops].sum(axis=0)
        if (seconds <= _TINY_S).any():
            continue  # some rank has none
        typical = np.median(seconds, axis=0)
        # The fastest is at most as long as any median of peers: this spares most of the work.
        for dp in np.flatnonzero(typical >= MIN_FACTOR * typical.min()).tolist():
            own, peers = seconds[:, dp], np.delete(seconds, dp, axis=1)
            over = np.log(own / np.median(peers, axis=1))
            error = float(robust.error_over_time(over[:, None])[0])
            clear = np.median(over) >= max(np.log(MIN_FACTOR), MIN_ERRORS * error)
            if not clear or (own > peers.max(axis=1)).mean() < LONGEST_SHARE:
                continue
            v = int(graph.replica_variant[dp])
            usual_s = float(np.median(own) / np.exp(np.median(over)))
            found.append(
                SlowOptimizer(
                    *(dp, stage, float(np.median(own)), usual_s),
                    *(v, ops_of[v], int(graph.dp_index[dp])),
                )
            )
    return sorted(found, key=lambda one: -one.factor)


def with_optimizers(worker: Candidate | None, durations: Durations) -> list[Candidate]:
    """The slow workers with their optimizers, and the optimizers of workers with healthy computes.

    Args:
        worker: workers whose computes are slow; None without any.
        durations: as measured.
    """
    slow = slow_optimizers(durations)
    named = set[tuple[int, int]]()
    if worker is not None:
        named = {(int(dp), int(stage)) for dp, stage in worker.where["workers"]}
    own = [one for one in slow if (one.dp, one.stage) in named]
    others = [one for one in slow if (one.dp, one.stage) not in named]
    if worker is not None and own:
        scaled = (*worker.effect.scaled, *(one.repair for one in own))
        too = f", its optimizer {own[0].factor:.2f}x" if len(named) == 1 else ""
        worker = replace(
            worker,
            text=worker.text + too,
            evidence={**worker.evidence, **_evidence(own)},
            effect=replace(worker.effect, scaled=scaled),
        )
    optimizers = _of_optimizers(others, durations) if others else None
    return [candidate for candidate in (worker, optimizers) if candidate is not None]


def _of_optimizers(slow: Sequence[SlowOptimizer], durations: Durations) -> Candidate:
    worst = slow[0]
    name = durations.graph.worker_name(worst.dp, worst.stage)
    takes = (
        f"{worst.factor:.2f}x as long as its peers' ({units.seconds(worst.seconds)}, peers "
        f"{units.seconds(worst.peers_s)})"
    )
    text = f"the optimizer of worker {name} takes {takes}"
    if len(slow) > 1:
        text = f"the optimizers of {len(slow)} workers are slow, the worst ({name}) takes {takes}"
    # All ranks update all parameters, unless each has a shard of them.
    sharded = not durations.graph.all_reduces and worst.factor < durations.graph.n_dp
    workers = [[one.dp, one.stage] for one in slow]
    pattern = pattern_of(workers, (durations.graph.n_pp, durations.graph.n_dp))
    return Candidate(
        "worker",
        text,
        {"workers": workers},
        {"steps": "all", "pattern": pattern, **_evidence(slow)},
        Effect(scaled=tuple(one.repair for one in slow), rebalanced=False),
        _SHARDS if sharded else "",
        part=OPTIMIZER,
    )


def _evidence(slow: Sequence[SlowOptimizer]) -> dict[str, Any]:
    return {
        "optimizer_factors": [one.factor for one in slow],
        "optimizer_s": [one.seconds for one in slow],
        "optimizer_peers_s": [one.peers_s for one in slow],
        "optimizer_threshold": MIN_FACTOR,
    }
