"""The plans of a search: all combinations of degrees, and the reasons why some are illegal.

The rules are those of ``model.plan_check.problems``; a test compares the two plan by plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.plan import OVERLAPPING, Plan, Recompute, Schedule
from paceline.model.plan_check import problems

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]
_Layouts = tuple[tuple[int, ...] | None, ...]

RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")

#: More combinations than this take gigabytes.
_MAX_PLANS = 20_000_000

#: Least tokens per rank for context parallelism by default: with fewer it rarely helps.
_CP_TOKENS = 4096


#: Most GPUs: more than any cluster has, few enough to list all numbers.
MOST_GPUS = 10_000_000


class Exclusion(NamedTuple):
    """A rule of one framework against plans that are legal otherwise.

    Attributes:
        reason: its name, for the count of excluded plans.
        applies: columns of :class:`Candidates` -> [plan] whether it excludes the plan.
    """

    reason: str
    applies: Callable[[Columns], npt.NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The values to try; the bounds are inclusive.

    Attributes:
        gpus: numbers of GPUs, ascending.
        base: common fields of all plans (global batch, precision, flash, overlaps, schedule). Its
            degrees, micro batch, recomputation and ZeRO stage are ignored.
        node_gpus: GPUs of a node. tp must divide it or be a multiple, because groups that cross
            nodes only sometimes are not modelled.
        max_tp: tensor-parallel ranks; None = a node's GPUs.
        max_pp: stages; None = up to the number of layers.
        max_dp: replicas; None = any.
        max_cp: context-parallel ranks (powers of two); None = by the sequence length.
        max_ep: expert-parallel ranks (powers of two); None = up to the number of experts.
        max_vpp: chunks per stage.
        micro_batches: samples per microbatch.
        recomputes: kinds of recomputation.
        zeros: ZeRO stages.
        shards: ranks that share a copy of the parameters with ZeRO 3 (HSDP); 0 = all.
        sequence_parallels: False, True or both.
        uneven: if layers do not divide evenly, the first and the last chunk have fewer, because of
            embedding and output (as in the training of Llama 3 and DeepSeek-V3). With vpp > 1 each
            has at most one layer less (Megatron-Core's account-for-embedding and account-for-loss).
        sharded_pipelines: try ZeRO 3 with pp > 1, too (FSDP2 under a pipeline).
        exclusions: rules of a framework, beside those of ``model.plan_check``.
    """

    gpus: Sequence[int]
    base: Plan
    node_gpus: int = 8
    max_tp: int | None = None
    max_pp: int | None = None
    max_dp: int | None = None
    max_cp: int | None = None
    max_ep: int | None = None
    max_vpp: int = 8
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    recomputes: tuple[Recompute, ...] = RECOMPUTES
    zeros: tuple[int, ...] = (0, 1, 2, 3)
    shards: tuple[int, ...] = (0,)
    sequence_parallels: tuple[bool, ...] = (False, True)
    uneven: bool = True
    sharded_pipelines: bool = False
    exclusions: tuple[Exclusion, ...] = ()

    def __post_init__(self) -> None:
        if not self.gpus or self.gpus[0] < 1:
            raise PlanError("the search needs a number of GPUs >= 1")
        if self.gpus[-1] > MOST_GPUS:
            raise PlanError(
                f"{self.gpus[-1]:,} GPUs are beyond any cluster; a search takes {MOST_GPUS:,}"
            )
        for name in ("max_tp", "max_pp", "max_dp", "max_cp", "max_ep", "max_vpp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"{name} must be at least 1, not {value}")
        for name in ("micro_batches", "recomputes", "zeros", "shards", "sequence_parallels"):
            if not getattr(self, name):
                raise PlanError(f"the search has no {name} to try")
        if min(self.shards) < 0:
            raise PlanError(f"shards must be at least 0, not {min(self.shards)}")
        if self.base.offload_layers:
            raise PlanError(
                "a search does not try offload_layers; take it out, or use paceline predict",
                fields=("offload_layers",),
            )


@dataclass(frozen=True)
class Candidates:
    """Legal plans, one per row.

    Attributes:
        columns: tp, pp, dp, cp, ep, vpp, micro_batch, zero, shards, sequence_parallel (0, 1),
            recompute (index into :data:`RECOMPUTES`), layout (index into ``layouts``).
        layouts: layers of each chunk; None = even.
        pruned: reason -> number of excluded plans (each counted once, by its first reason).
        base: their common fields.
    """

    columns: Columns
    layouts: _Layouts
    pruned: dict[str, int]
    base: Plan

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def plan(self, i: int) -> Plan:
        """Plan ``i``."""
        row = {name: int(column[i]) for name, column in self.columns.items()}
        return replace(
            self.base,
            tp=row["tp"],
            pp=row["pp"],
            dp=row["dp"],
            cp=row["cp"],
            ep=row["ep"],
            vpp=row["vpp"],
            micro_batch=row["micro_batch"],
            schedule=self._schedule(row["vpp"]),
            recompute=RECOMPUTES[row["recompute"]],
            zero=row["zero"],
            shards=row["shards"],
            sequence_parallel=bool(row["sequence_parallel"]),
            layers_per_stage=self.layouts[row["layout"]],
        )

    def _schedule(self, vpp: int) -> Schedule:
        if vpp > 1 and not self.base.splits_backward:
            return "1f1b"  # becomes interleaved
        return self.base.schedule

    @property
    def gpus(self) -> Ints:
        """[plan] GPUs."""
        c = self.columns
        gpus: Ints = c["tp"] * c["pp"] * c["dp"] * c["cp"]
        return gpus


def candidates(llm: LLM, space: Space) -> Candidates:
    """All legal plans of a space.

    Raises:
        PlanError: no plan is left; the message counts the reasons.
    """
    columns, layouts, pruned = _legal(llm, space)
    if not len(columns["tp"]):
        raise PlanError(_nothing(llm, space, pruned))
    return Candidates(columns, layouts, pruned, space.base)


def _legal(llm: LLM, space: Space) -> tuple[Columns, _Layouts, dict[str, int]]:
    """Columns of :class:`Candidates`, its layouts, and the excluded plans."""
    listing = _Listing(llm, space)
    columns = listing.degrees()
    columns = listing.tensor(columns)
    columns = listing.batches(columns)
    columns = listing.layouts(columns)
    columns = listing.memory_savings(columns)
    return columns, tuple(listing.layers), listing.pruned


def _nothing(llm: LLM, space: Space, pruned: dict[str, int]) -> str:
    low, high = space.gpus[0], space.gpus[-1]
    gpus = f"{low} GPUs" if low == high else f"{low} to {high} GPUs"
    if not pruned:
        return (
            f"no combination of degrees within the limits multiplies to {gpus}; allow larger "
            "max_tp, max_pp or max_dp, or give a range of GPUs"
        )
    reasons = sorted(pruned.items(), key=lambda item: -item[1])
    counted = "; ".join(f"{reason} ({count:,})" for reason, count in reasons[:4])
    excluded = any(exclusion.reason in pruned for exclusion in space.exclusions)
    advice = "Try another zero or sequence_parallel" if excluded else _nearest(llm, space)
    return (
        f"no legal plan for {llm.name} on {gpus} with global_batch {space.base.global_batch}; "
        f"plans ruled out: {counted}. {advice}"
    )


#: Largest distance from the requested GPUs in the search for legal numbers.
_NEAR = 2048


def _nearest(llm: LLM, space: Space) -> str:
    """The numbers of GPUs with a legal plan that are closest to the requested ones."""
    low, high = space.gpus[0], space.gpus[-1]
    less, more = min(low // 4, _NEAR), min(high // 4 + 8, _NEAR)
    around = range(max(1, low - less), high + more)
    columns = _legal(llm, replace(space, gpus=around))[0]
    gpus = columns["tp"] * columns["pp"] * columns["dp"] * columns["cp"]
    below, above = gpus[gpus < low], gpus[gpus > high]
    near = [f"{n:,}" for n in (*below[below == below.max(initial=0)][:1], *np.sort(above)[:1])]
    if not near:
        return "Nor are there any on about as many GPUs; try another global batch"
    return f"{' or '.join(near)} GPUs have legal plans; or try another global batch"


def label(reason: str) -> str:
    """A reason without numbers, to count "heads 96 not divisible by tp 7" with similar ones."""
    return re.sub(r"(?<!>) \d+\b", "", reason.partition(":")[0])


class _Listing:
    """Combines one choice after another, and counts the plans that each rule excludes."""

    def __init__(self, llm: LLM, space: Space) -> None:
        self.llm, self.space = llm, space
        self.pruned: dict[str, int] = {}
        self.layers: list[tuple[int, ...] | None] = [None]
        self.vpps = range(1, space.max_vpp + 1)
        if space.base.splits_backward:
            self.vpps = range(space.base.vpp, space.base.vpp + 1)
        self.combinations = len(space.micro_batches) * len(self.vpps) * len(space.zeros)
        self.combinations *= len(space.sequence_parallels) * len(space.recomputes)

    def _drop(self, columns: Columns, bad: npt.NDArray[np.bool_], reason: str) -> Columns:
        count = int(bad.sum()) * self.combinations
        if not count:
            return columns
        self.pruned[reason] = self.pruned.get(reason, 0) + count
        return {name: column[~bad] for name, column in columns.items()}

    def _cross(self, columns: Columns, name: str, values: Sequence[int]) -> Columns:
        n = len(columns["tp"])
        _check_size(n * len(values))
        crossed = {key: np.repeat(column, len(values)) for key, column in columns.items()}
        crossed[name] = np.tile(np.array(values, dtype=np.int64), n)
        return crossed

    def degrees(self) -> Columns:
        """All tp, pp, dp, cp (and ep) with a product among the numbers of GPUs."""
        space, llm = self.space, self.llm
        counts = space.gpus
        if isinstance(counts, range):
            gpus = np.arange(counts.start, counts.stop, counts.step)
        else:
            gpus = np.array(counts, dtype=np.int64)
        top = int(gpus[-1])
        max_cp = space.max_cp or min(16, max(1, llm.seq_len // _CP_TOKENS))
        tp = np.arange(1, min(space.max_tp or space.node_gpus, top) + 1)
        cp = _powers(min(max_cp, top))
        pp = np.arange(1, min(space.max_pp or llm.layers, llm.layers, top) + 1)
        replica = (tp[:, None, None] * cp[:, None] * pp).ravel()
        first, last = -(-gpus[0] // replica), top // replica
        if space.max_dp is not None:
            last = np.minimum(last, space.max_dp)
        n_dps = np.maximum(last - first + 1, 0)
        _check_size(int(n_dps.sum()))
        row = np.repeat(np.arange(len(replica)), n_dps)
        dp = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(n_dps) - n_dps, n_dps)
        exact = np.isin(replica[row] * dp, gpus)
        row, dp = row[exact], dp[exact]
        i, remainder = np.divmod(row, len(cp) * len(pp))
        columns = {
            "tp": tp[i],
            "cp": cp[remainder // len(pp)],
            "pp": pp[remainder % len(pp)],
            "dp": dp,
        }
        eps = [1]
        if llm.moe is not None:
            eps = _powers(min(space.max_ep or llm.moe.experts, llm.moe.experts)).tolist()
        return self._cross(columns, "ep", eps)

    def tensor(self, columns: Columns) -> Columns:
        """Rules about tp, cp and ep."""
        columns = self._probe(columns, sequence_parallel=False)
        node, tp = self.space.node_gpus, columns["tp"]
        if self.space.gpus[-1] > node:
            bad = (node % tp != 0) & (tp % node != 0)
            columns = self._drop(columns, bad, "tp groups across the boundaries of nodes")
        if self.llm.moe is not None:
            bad = (self.llm.moe.experts % columns["ep"]) != 0
            columns = self._drop(columns, bad, "experts not divisible by ep")
            ranks = columns["tp"] * columns["cp"] * columns["dp"]
            bad = ranks % columns["ep"] != 0
            columns = self._drop(columns, bad, "tp x cp x dp not divisible by ep")
        return columns

    def _probe(self, columns: Columns, *, sequence_parallel: bool) -> Columns:
        """Drop combinations that ``problems`` refuses because of tp and cp."""
        for tp, cp in np.unique(np.stack([columns["tp"], columns["cp"]]), axis=1).T.tolist():
            probe = Plan(
                tp=tp,
                cp=cp,
                global_batch=1,
                sequence_parallel=sequence_parallel,
                precision=self.space.base.precision,
                flash=self.space.base.flash,
                overlap_tp=self.space.base.overlap_tp and sequence_parallel,
                adapter_rank=self.space.base.adapter_rank,
            )
            reasons = problems(probe, self.llm)
            if reasons:
                bad = (columns["tp"] == tp) & (columns["cp"] == cp)
                if sequence_parallel:
                    bad &= columns["sequence_parallel"] == 1
                columns = self._drop(columns, bad, label(reasons[0]))
        return columns

    def batches(self, columns: Columns) -> Columns:
        """Micro batches that divide the global batch."""
        sizes = self.space.micro_batches
        columns = self._cross(columns, "micro_batch", sizes)
        self.combinations //= len(sizes)
        bad = self.space.base.global_batch % (columns["dp"] * columns["micro_batch"]) != 0
        return self._drop(columns, bad, "global_batch not divisible by dp x micro_batch")

    def layouts(self, columns: Columns) -> Columns:
        """Chunks per stage, and the layers of each chunk."""
        columns = self._cross(columns, "vpp", self.vpps)
        self.combinations //= len(self.vpps)
        bad = (columns["vpp"] > 1) & (columns["pp"] == 1)
        columns = self._drop(columns, bad, "vpp needs pp > 1")
        if self.space.base.schedule == "gpipe":
            columns = self._drop(columns, columns["vpp"] > 1, "gpipe has one chunk per stage")
        shapes = np.stack([columns["pp"], columns["vpp"]])
        distinct, index = np.unique(shapes, axis=1, return_inverse=True)
        layout = [self._layout(pp * vpp, vpp) for pp, vpp in distinct.T.tolist()]
        columns["layout"] = np.array(layout, dtype=np.int64)[index.reshape(-1)]
        columns = self._drop(columns, columns["layout"] < 0, "layers not divisible by pp x vpp")
        if self.space.base.splits_backward:
            return self._split(columns)
        samples = columns["dp"] * columns["micro_batch"]
        odd = self.space.base.global_batch // samples % columns["pp"] != 0
        reason = "microbatches not divisible by pp, which the interleaved schedule needs"
        return self._drop(columns, odd & (columns["vpp"] > 1), reason)

    def _split(self, columns: Columns) -> Columns:
        """Conditions of schedules with split backwards on stages and microbatches."""
        name, batch = self.space.base.schedule, self.space.base.global_batch
        if name in OVERLAPPING:
            few = batch // (columns["dp"] * columns["micro_batch"]) < 2 * columns["pp"]
            columns = self._drop(
                columns, few, f"microbatches fewer than 2 x pp, which {name} needs"
            )
        if name == "dualpipe":
            m = batch // (columns["dp"] * columns["micro_batch"])
            odd = (columns["pp"] % 2 == 1) | (m % 2 == 1)
            columns = self._drop(columns, odd, "pp or microbatches odd; dualpipe needs them even")
        return columns

    def _layout(self, chunks: int, vpp: int) -> int:
        """Index of the layout for this number of chunks; -1 = there is none."""
        layers = self.llm.layers
        per_chunk = -(-layers // chunks)
        fewer = per_chunk * chunks - layers
        last = -(-fewer // 2)
        if fewer == 0:
            return 0
        if not self.space.uneven or chunks < 2 or last >= per_chunk or (vpp > 1 and fewer > 2):
            return -1
        counts = (per_chunk - fewer // 2, *[per_chunk] * (chunks - 2), per_chunk - last)
        if counts not in self.layers:
            self.layers.append(counts)
        return self.layers.index(counts)

    def memory_savings(self, columns: Columns) -> Columns:
        """ZeRO, sequence parallelism, recomputation."""
        space = self.space
        columns = self._cross(columns, "zero", space.zeros)
        self.combinations //= len(space.zeros)
        needs_one = (2,) if space.sharded_pipelines else (2, 3)
        bad = np.isin(columns["zero"], needs_one) & (columns["pp"] > 1)
        words = "zero 2 needs pp 1" if space.sharded_pipelines else "zero 2 and 3 need pp 1"
        columns = self._drop(columns, bad, words)
        columns = self._sharding(columns)
        copies = space.base.copies
        # Legal, but the same plan several times.
        single = columns["dp"] * columns["cp"] * copies == 1
        usual = 1 if 1 in space.zeros else space.zeros[0]
        bad = single & (columns["zero"] != usual)
        columns = self._drop(columns, bad, "zero makes no difference with one replica")
        columns = self._cross(
            columns, "sequence_parallel", [int(x) for x in space.sequence_parallels]
        )
        self.combinations //= len(space.sequence_parallels)
        columns = self._probe(columns, sequence_parallel=True)
        if space.base.overlap_tp:
            bad = (columns["tp"] > 1) & (columns["sequence_parallel"] == 0)
            columns = self._drop(columns, bad, "overlap_tp needs sequence_parallel")
        for reason, applies in space.exclusions:
            columns = self._drop(columns, applies(columns), reason)
        indices = [RECOMPUTES.index(name) for name in space.recomputes]
        columns = self._cross(columns, "recompute", indices)
        self.combinations //= len(space.recomputes)
        return columns

    def _sharding(self, columns: Columns) -> Columns:
        """Numbers of ranks that share the parameters with ZeRO 3."""
        columns = self._cross(columns, "shards", self.space.shards)
        c, ranks = columns, columns["dp"] * columns["cp"]
        hybrid = c["shards"] > 0
        # Equal plans: these are not alternatives.
        same = hybrid & ((c["zero"] != 3) | (c["shards"] >= ranks))
        columns = {name: column[~same] for name, column in c.items()}
        c, ranks = columns, columns["dp"] * columns["cp"]
        size, hybrid = np.maximum(1, c["shards"]), c["shards"] > 0
        bad = hybrid & ((ranks % size != 0) | (size % c["cp"] != 0))
        columns = self._drop(columns, bad, "shards must divide dp x cp")
        if self.llm.moe is None:
            return columns
        bad = (columns["shards"] > 0) & (columns["tp"] * columns["ep"] > 1)
        return self._drop(columns, bad, "shards of experts need tp 1 and ep 1")


def _check_size(n: int) -> None:
    if n > _MAX_PLANS:
        raise PlanError(
            f"{n:,} combinations are more than a search can hold; give fewer numbers of GPUs, or "
            "smaller max_tp, max_pp, max_dp, max_cp or max_vpp"
        )


def _powers(most: int) -> Ints:
    """Powers of two up to ``most``."""
    return 2 ** np.arange(most.bit_length())
