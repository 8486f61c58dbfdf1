"""Search for the split of layers over stages with the shortest step, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations
from paceline.graph.computes import KINDS, Computes, computes_of
from paceline.remedies.outcome import copy_of
from paceline.remedies.parameter_ops import ParameterOps
from paceline.remedies.places import typical_places
from paceline.remedies.remedy import Prediction
from paceline.remedies.stage_split import (
    LayerCosts,
    Layout,
    best_split,
    estimate_costs,
    moves,
    splits_within,
)
from paceline.remedies.typical import one_of_each, try_out, typical_durations
from paceline.trace import OpKind
from paceline.trace.kinds import MICROBATCH_KINDS

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Splits whose largest load is within this share of the best are tried, too. Their bubbles may
#: differ by as much.
NEAR_SHARE = 0.03
MAX_NEAR = 512

#: Number of best splits on typical durations that are simulated on all steps and replicas.
N_VERIFIED = 4

#: One-layer moves tried per round of the search, and rounds.
MAX_MOVES, MAX_ROUNDS = 2048, 40

#: Numbers of best moves that are combined. A round that gains less than MIN_STEP is the last.
JOINT_SIZES, MIN_STEP = (2, 3, 4, 6, 8), 2e-4

#: A layout closer to the present one wins if step times differ by less than this per moved layer.
MOVE_PENALTY = 5e-5

#: A gain below this is noise.
MIN_GAIN = 0.001


@dataclass(frozen=True)
class Bounds:
    """The user's limits: [virtual stage] least layers, [stage] most layers."""

    least: Ints
    most: Ints
    n_pp: int

    @property
    def n_chunks(self) -> int:
        """Chunks per stage."""
        return len(self.least) // self.n_pp

    @property
    def stage_least(self) -> Ints:
        """[stage] least layers, all chunks."""
        least: Ints = self.least.reshape(self.n_chunks, self.n_pp).sum(axis=0)
        return least

    def keep(self, layouts: Ints) -> Ints:
        """The layouts among [layout, virtual stage] that the bounds allow."""
        per_stage = layouts.reshape(len(layouts), self.n_chunks, self.n_pp).sum(axis=1)
        good = (layouts >= self.least).all(axis=1) & (per_stage <= self.most).all(axis=1)
        allowed: Ints = layouts[good]
        return allowed


class LayoutSearch:
    """Tries splits by simulation: on typical durations first, then on the whole trace."""

    def __init__(
        self,
        durations: Durations,
        layers: Layout,
        bounds: Bounds,
        predict: Callable[[Durations], Prediction],
    ) -> None:
        self.durations, self.layers, self.bounds = durations, layers, bounds
        self.predict = predict
        self.computes: Computes = computes_of(durations.graph)
        place_s = typical_places(durations)
        virtual = np.arange(len(layers))
        #: [virtual stage] its index among the computes, which are ordered by stage
        self.place = virtual % bounds.n_pp * bounds.n_chunks + virtual // bounds.n_pp
        self.costs: LayerCosts = estimate_costs(place_s[:, self.place], layers)
        self.parameters = ParameterOps(durations, layers, bounds.n_pp)
        self.graph = one_of_each(durations.graph)
        self.typical = typical_durations(durations)
        for v, ops in enumerate(self.computes.ops):
            self.typical[durations.graph.variant_ops(v).start + ops] = place_s[..., None]

    def scales(self, layouts: Ints) -> Array:
        """[kind, layout, virtual stage] computes over the present computes."""
        now = np.maximum(self.costs.of(np.array(self.layers)), 1e-12)
        scales: Array = self.costs.of(layouts) / now[:, None, :]
        return scales

    def rank(self, layouts: Ints) -> Array:
        """[layout] step times on typical durations, seconds."""
        scales = self.scales(layouts)

        def change(durations: Durations, rows: slice) -> None:
            for v, every in enumerate(self.computes.ops):
                ops = every[:, self.place]  # [kind, virtual stage, microbatch]
                factor = np.moveaxis(scales[:, rows], 1, 2)  # [kind, virtual stage, layout]
                durations.block(v)[ops] *= factor[:, :, None, :, None]
                self.parameters.scale(durations, v, layouts[rows])

        return try_out(self.graph, self.typical, len(layouts), change)

    def noise_free(self, layout: Layout) -> float:
        """The step time of a layout on typical durations."""
        return float(self.rank(np.array([layout]))[0])

    def verify(self, layout: Layout) -> Prediction:
        """The prediction for a layout on all steps and replicas."""
        changed = copy_of(self.durations)
        scale = self.scales(np.array([layout]))[:, 0]
        for v, ops in enumerate(self.computes.ops):
            block = changed.block(v)
            for k in range(len(KINDS)):
                for virtual in np.flatnonzero(scale[k] != 1).tolist():
                    block[ops[k, self.place[virtual]]] *= scale[k, virtual]
            self.parameters.scale(changed, v, np.array([layout]))
        return self.predict(changed)

    def best(self, now: Prediction) -> tuple[Layout, Prediction]:
        """The best layout and its step times; the present one if none is better."""
        scores: dict[Layout, float] = {}
        self._score_into(scores, [self.layers, *self._starts()])
        for _ in range(MAX_ROUNDS):
            centre = min(scores, key=lambda layout: scores[layout])
            before = scores[centre]
            near = self.bounds.keep(moves(centre, self.bounds.least.tolist()))
            if len(near) > MAX_MOVES:
                near = np.random.default_rng(0).permutation(near)[:MAX_MOVES]
            self._score_into(scores, map(tuple, near.tolist()))
            self._score_into(scores, self._joint_moves(centre, near, scores))
            if min(scores.values()) >= before * (1 - MIN_STEP):
                break
        best, after = self.layers, now
        least = now.mean_s * (1 - MIN_GAIN)
        for layout in sorted(scores, key=lambda layout: scores[layout])[:N_VERIFIED]:
            if layout != self.layers and (times := self.verify(layout)).mean_s < least:
                best, after, least = layout, times, times.mean_s
        return best, after

    def _score_into(self, scores: dict[Layout, float], layouts: Iterable[Layout]) -> None:
        """Step times of layouts not yet scored, with a small penalty for every moved layer."""
        new = [layout for layout in dict.fromkeys(layouts) if layout not in scores]
        if new:
            table = np.array(new)
            n_moved = np.abs(table - np.array(self.layers)).sum(axis=1) / 2
            times = self.rank(table) * (1 + MOVE_PENALTY * n_moved)
            scores.update(zip(new, times.tolist(), strict=True))

    def _joint_moves(self, centre: Layout, near: Ints, scores: dict[Layout, float]) -> list[Layout]:
        """Layouts that combine several of the best moves, to save rounds."""
        order = np.argsort([scores[tuple(layout)] for layout in near.tolist()], kind="stable")
        steps = np.cumsum(near[order[: max(JOINT_SIZES)]] - np.array(centre), axis=0)
        joined = np.array(centre) + steps[[k - 1 for k in JOINT_SIZES if k <= len(steps)]]
        return [tuple(layout) for layout in self.bounds.keep(joined).tolist()]

    def _starts(self) -> list[Layout]:
        """Starts of the search: splits with the smallest largest load, or nearly so."""
        table, least = self._stage_table(), self.bounds.stage_least
        total = sum(self.layers)
        load, split = best_split(table, total, least, self.bounds.most)
        near = splits_within(table, total, least, self.bounds.most, load * (1 + NEAR_SHARE))
        return [
            self._over_chunks(layout) for layout in dict.fromkeys([split, *islice(near, MAX_NEAR)])
        ]

    def _stage_table(self) -> Array:
        """[stage, layers] load of a stage by its number of layers, all chunks together."""
        counts = np.arange(sum(self.layers) + 1)
        shape = (2, self.bounds.n_chunks, self.bounds.n_pp)
        per_layer = self.costs.per_layer.reshape(shape).min(axis=1)  # [kind, stage]
        extra = self.costs.extra.reshape(shape).sum(axis=1)
        table: Array = (per_layer[..., None] * counts + extra[..., None]).sum(axis=0)
        return np.maximum(table, 0.0)

    def _over_chunks(self, split: Layout) -> Layout:
        """Layers per stage, spread evenly over the stage's chunks."""
        n_chunks = self.bounds.n_chunks
        rows = [[n // n_chunks + (c < n % n_chunks) for n in split] for c in range(n_chunks)]
        return tuple(count for row in rows for count in row)

    def lower_bound(self) -> float:
        """Lower bound in seconds for all splits under interleaved 1F1B, on typical durations.

        It is the larger of two bounds:

        - A stage computes all its microbatches after the first forward of the stages before it and
          before their last backward, each with its fewest layers. The dynamic programme finds the
          split with the smallest largest sum of these.
        - The last chunk of the last stage sees the first microbatch after the forwards of all other
          chunks. It sees the last microbatch before all their backwards. Between these, the last
          stage computes its earlier chunks for all but ``n_pp`` microbatches.

        Both bounds include the first stage's time before and after its computes.
        """
        n_pp, bounds = self.bounds.n_pp, self.bounds
        least = self.costs.of(bounds.least).sum(axis=0)  # [virtual stage] smallest load
        fill = np.append(0.0, np.cumsum(least[: n_pp - 1]))
        layer_s = float(self.costs.per_layer.sum(axis=0).min())
        first_s = layer_s * sum(self.layers) + float(self.costs.extra.sum())
        bounds_s = []
        for ops in self.computes.ops:
            n = ops.shape[2]
            table = n * self._stage_table() + fill[:, None]
            bounds_s.append(best_split(table, sum(self.layers), bounds.stage_least, bounds.most)[0])
            earlier = float(least[n_pp - 1 : -1 : n_pp].sum())
            bounds_s.append(first_s + (n - 1) * float(least[-1]) + max(0, n - n_pp) * earlier)
        return max(bounds_s) + self._outside()

    def _outside(self) -> float:
        """Seconds of the first stage before its first and after its last compute."""
        graph = self.graph
        outside = (graph.pp == 0) & ~np.isin(graph.kind, [int(kind) for kind in MICROBATCH_KINDS])
        # Later gathers may hide behind computes, and so may all but the last scatter.
        outside &= (graph.kind != OpKind.PARAMS_ALL_GATHER) | (graph.seq == 0)
        scatter = graph.kind == OpKind.GRADS_REDUCE_SCATTER
        outside &= ~scatter | (graph.seq == graph.seq[scatter].max(initial=0))
        outside_s = np.where(outside, self.typical, 0.0)
        return float(try_out(graph, outside_s, 1, lambda durations, rows: None)[0])
