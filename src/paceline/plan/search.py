"""Search: all legal plans for a number of GPUs that fit, ranked by time, cost or GPUs.

    found = search(llm, cluster, 1024, 1536, tokens=300e9)
    found.plan(0), found.step_time_s[0], found.dollars[0]

Every plan that fits is evaluated exactly (``plan.assemble``), without a shortlist by a cheaper
estimate. The numbers equal those of ``predict``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from paceline.errors import PlanError
from paceline.model.cluster import Cluster
from paceline.model.compute import ComputeCost
from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.memory_rules import DEFAULT_RULES, MemoryRules
from paceline.model.plan import Plan
from paceline.plan.assemble import Assembly
from paceline.plan.cost import causal_share, dollars_per_day, mfu, training_days, training_steps
from paceline.plan.interval import Interval, interval
from paceline.plan.mapper import Mapper
from paceline.plan.pipeline import INTERPRETED_COMPUTES
from paceline.plan.space import RECOMPUTES, Candidates, Space, candidates
from paceline.units import in_gib, short_percent

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
Objective = Literal["time", "cost", "gpus"]

#: Most computes in one call of the compiled walk (0.2 s), so that Ctrl-C takes effect.
_BLOCK = 20_000_000

#: Largest multiple of the GPUs in the search for a number that fits.
_DOUBLINGS = 8


@dataclass(frozen=True)
class SearchResult:
    """Plans that fit, best first.

    Attributes:
        llm: the model.
        cluster: the machines.
        objective: quantity of the ranking.
        legal: all legal plans.
        rows: [plan] rows of these plans in ``legal``.
        step_time_s: [plan].
        memory_bytes: [plan] on each GPU of the fullest stage.
        mfu: [plan] model FLOPs utilisation.
        tokens: tokens to train on; None = not said.
        pruned: reason -> number of excluded plans.
        seconds: duration of the search.
        rules: how the software uses memory.
    """

    llm: LLM
    cluster: Cluster
    objective: Objective
    legal: Candidates
    rows: Ints
    step_time_s: Array
    memory_bytes: Array
    mfu: Array
    tokens: float | None
    pruned: dict[str, int]
    seconds: float
    rules: MemoryRules = DEFAULT_RULES

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self, i: int) -> Plan:
        """The plan at rank ``i``."""
        return self.legal.plan(int(self.rows[i]))

    def interval(self, i: int) -> Interval:
        """Range of measured steps for the plan at rank ``i``."""
        return interval(self.llm, self.plan(i), self.cluster, float(self.step_time_s[i]))

    @cached_property
    def expandable(self) -> npt.NDArray[np.bool_]:
        """[plan] whether it fits only with expandable segments."""
        alone: npt.NDArray[np.bool_] = self.memory_bytes > self.rules.room(
            self.cluster.gpu.memory_bytes
        )
        return alone

    @cached_property
    def gpus(self) -> Ints:
        """[plan] GPUs."""
        gpus: Ints = self.legal.gpus[self.rows]
        return gpus

    @property
    def has_one_count(self) -> bool:
        """Whether all plans have the same number of GPUs, so that the fastest is the cheapest."""
        return int(self.gpus.min()) == int(self.gpus.max())

    @property
    def steps(self) -> int | None:
        """Steps of the training."""
        if self.tokens is None:
            return None
        return training_steps(self.tokens, self.llm, self.legal.base.global_batch)

    @cached_property
    def days(self) -> Array | None:
        """[plan] days to train on the tokens."""
        return None if self.steps is None else training_days(self.steps, self.step_time_s)

    @cached_property
    def dollars_per_day(self) -> Array | None:
        """[plan] dollars."""
        price = self.cluster.price_per_gpu_hour
        return None if price is None else dollars_per_day(self.gpus.astype(np.float64), price)

    @cached_property
    def dollars(self) -> Array | None:
        """[plan] dollars to train on the tokens."""
        if self.days is None or self.dollars_per_day is None:
            return None
        dollars: Array = self.days * self.dollars_per_day
        return dollars

    @cached_property
    def mfu_causal(self) -> Array:
        """[plan] MFU without the masked half of attention."""
        share: Array = self.mfu * causal_share(self.llm, self.legal.base)
        return share

    @cached_property
    def gpu_seconds(self) -> Array:
        """[plan] GPU-seconds of one step: the cost at any price of a GPU."""
        work: Array = self.step_time_s * self.gpus
        return work

    @cached_property
    def pareto(self) -> npt.NDArray[np.bool_]:
        """[plan] whether no plan is both faster and cheaper."""
        return pareto(self.step_time_s, self.gpu_seconds)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All quantities by name, one value per plan, without unknown quantities."""
        names = ("tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "zero", "sequence_parallel")
        columns: dict[str, npt.NDArray[Any]] = {"gpus": self.gpus}
        columns |= {name: self.legal.columns[name][self.rows] for name in names}
        if self.legal.columns["shards"].any():
            columns["shards"] = self.legal.columns["shards"][self.rows]
        recompute = self.legal.columns["recompute"][self.rows]
        columns["recompute"] = np.array(RECOMPUTES)[recompute]
        columns["even_layers"] = self.legal.columns["layout"][self.rows] == 0
        measures = (
            "step_time_s",
            "memory_bytes",
            "mfu",
            "mfu_causal",
            "days",
            "dollars_per_day",
            "dollars",
        )
        for name in (*measures, "pareto", "expandable"):
            values = getattr(self, name)
            columns |= {} if values is None else {name: values}
        return columns


def pareto(time_s: Array, cost: Array) -> npt.NDArray[np.bool_]:
    """[plan] whether it is on the Pareto front; of equal plans only the first."""
    order = np.lexsort((cost, time_s))
    before = np.append(np.inf, np.minimum.accumulate(cost[order])[:-1])
    best = np.zeros(len(time_s), dtype=bool)
    best[order] = cost[order] < before
    return best


def search(
    llm: LLM,
    cluster: Cluster,
    gpus: int | Sequence[int],
    global_batch: int,
    *,
    objective: Objective = "time",
    tokens: float | None = None,
    max_days: float | None = None,
    budget: float | None = None,
    cost: ComputeCost | None = None,
    rules: MemoryRules = DEFAULT_RULES,
    progress: Progress | None = None,
    mapper: Mapper = map,
    **options: Any,
) -> SearchResult:
    """Evaluate every legal plan.

    Args:
        llm: the model.
        cluster: the machines.
        gpus: the number of GPUs, or several numbers (``range(2000, 3401)``).
        global_batch: samples of a step.
        objective: "time" (of a step), "cost" (GPU-time), "gpus" (fewest).
        tokens: tokens to train on, for days and dollars.
        max_days: leave out plans that take longer.
        budget: leave out plans that cost more [dollars].
        cost: seconds of an operator; None = the roofline of the cluster's GPU.
        rules: memory rules of the software, and the share that stays free.
        progress: called with (done, total).
        mapper: maps the evaluation over blocks of plans that fit.
        options: fields of :class:`Space` (``max_tp``, ``micro_batches``, ...) or of ``Plan``, which
            then hold for all plans (``precision``, ``flash``, ``schedule``, ...).

    Raises:
        PlanError: no plan is legal, fits, or is within the limits; the message names the closest
            one.
        ModelError: an option is out of range.
    """
    begin = time.perf_counter()
    if objective not in get_args(Objective):
        raise PlanError(f"objective must be one of {', '.join(get_args(Objective))}")
    space = _space(cluster, gpus, global_batch, options)
    cluster.gpu.peak(space.base.precision)  # raises if the GPU lacks it
    legal = candidates(llm, space)
    assembly = Assembly(CostModel(llm, cluster, cost), legal, rules)
    memory = _memory(assembly, progress)
    fits = memory <= rules.most_room(cluster.gpu.memory_bytes)
    if not fits.any():
        raise PlanError(_too_large(assembly, cluster, space, memory))
    rows, times = _times(assembly, np.flatnonzero(fits), progress, mapper)
    pruned = {**legal.pruned}
    if not fits.all():
        pruned["does not fit into memory"] = int((~fits).sum())
    result = _ranked_result(
        llm, cluster, objective, legal, rows, times, memory[rows], tokens, pruned
    )
    result = _within_limits(result, max_days, budget)
    return replace(result, seconds=time.perf_counter() - begin, rules=rules)


def _space(
    cluster: Cluster, gpus: int | Sequence[int], global_batch: int, options: dict[str, Any]
) -> Space:
    counts = (gpus,) if isinstance(gpus, int) else gpus
    if not isinstance(counts, range) or counts.step < 1:
        counts = sorted(set(counts))
    space_fields = set(Space.__dataclass_fields__) - {"gpus", "base", "node_gpus"}
    limits = {name: value for name, value in options.items() if name in space_fields}
    shared = {name: value for name, value in options.items() if name not in space_fields}
    base = Plan(global_batch=global_batch, **shared)
    return Space(gpus=counts, base=base, node_gpus=cluster.node.gpus, **limits)


def _memory(assembly: Assembly, progress: Progress | None) -> Array:
    memory = np.zeros(len(assembly.legal))
    for rows in assembly.shapes():
        memory[rows] = assembly.peak_bytes(rows)
        if progress is not None:
            progress(0, len(memory))
    return memory


def _times(
    assembly: Assembly, fits: Ints, progress: Progress | None, mapper: Mapper
) -> tuple[Ints, Array]:
    """Rows in the order of their evaluation, and [row] seconds of a step."""
    fitting = np.zeros(len(assembly.legal), dtype=bool)
    fitting[fits] = True
    computes = assembly.computes(np.arange(len(fitting)))
    fast = int(computes[fitting].sum()) > INTERPRETED_COMPUTES
    blocks = [
        block for shape in assembly.shapes() for block in _blocks(shape[fitting[shape]], computes)
    ]
    times = []
    done, total = 0, int(computes[fitting].sum())
    evaluated = mapper(partial(assembly.step_times, fast=fast), blocks)
    for block, seconds in zip(blocks, evaluated, strict=True):
        times.append(seconds)
        done += int(computes[block].sum())
        if progress is not None:
            progress(done, total)
    return np.concatenate(blocks), np.concatenate(times)


def _blocks(rows: Ints, computes: Ints) -> Iterator[Ints]:
    if len(rows):
        work = np.cumsum(computes[rows]) // _BLOCK
        yield from np.split(rows, np.flatnonzero(np.diff(work)) + 1)


def _ranked_result(
    llm: LLM,
    cluster: Cluster,
    objective: Objective,
    legal: Candidates,
    rows: Ints,
    times: Array,
    memory: Array,
    tokens: float | None,
    pruned: dict[str, int],
) -> SearchResult:
    """The ranking; of equally good plans the one with less memory comes first."""
    gpus = legal.gpus[rows]
    first = {"time": times, "cost": times * gpus, "gpus": gpus}[objective]
    order = np.lexsort((memory, times * gpus, times, first))
    rows, times, memory = rows[order], times[order], memory[order]
    peak = cluster.gpu.peak(legal.base.precision)
    share = mfu(llm, legal.base, times, gpus[order].astype(np.float64), peak)
    return SearchResult(
        llm, cluster, objective, legal, rows, times, memory, share, tokens, pruned, 0.0
    )


def _within_limits(
    result: SearchResult, max_days: float | None, budget: float | None
) -> SearchResult:
    """The result without plans that take or cost too much."""
    for name, limit, unit in (("max_days", max_days, "days"), ("budget", budget, "dollars")):
        if limit is None:
            continue
        values: Array | None = getattr(result, unit)
        if values is None:
            lacking = "tokens" if result.tokens is None else "a price per GPU-hour (--price)"
            raise PlanError(f"{name} needs {lacking}")
        within = values <= limit
        if not within.any():
            best = int(np.argmin(values))
            raise PlanError(
                f"no plan stays within {limit:,g} {unit}; the closest, "
                f"{result.plan(best).describe()} on {result.gpus[best]:,} GPUs, takes "
                f"{values[best]:,.1f}"
            )
        pruned = {**result.pruned}
        if not within.all():
            pruned[f"more than {limit:,g} {unit}"] = int((~within).sum())
        arrays = ("rows", "step_time_s", "memory_bytes", "mfu")
        kept_arrays: dict[str, Any] = {array: getattr(result, array)[within] for array in arrays}
        result = replace(result, pruned=pruned, **kept_arrays)
    return result


def _with(rules: MemoryRules) -> str:
    return "" if rules.expandable_segments is False else ", with expandable segments"


def _too_large(assembly: Assembly, cluster: Cluster, space: Space, memory: Array) -> str:
    """A message with the plan closest to fitting, and a sufficient number of GPUs."""
    llm, legal, rules = assembly.llm, assembly.legal, assembly.rules
    least = int(np.argmin(memory))
    room = rules.most_room(cluster.gpu.memory_bytes)
    text = (
        f"none of {len(legal):,} legal plans for {llm.name} fits into {in_gib(room)} "
        f"({short_percent(1 - rules.least_reserve)} of {cluster.gpu.name}{_with(rules)}); "
        f"the closest, "
        f"{legal.plan(least).describe()} on {legal.gpus[least]:,} GPUs, needs "
        f"{in_gib(memory[least])}"
    )
    for doubling in range(1, _DOUBLINGS + 1):
        gpus = {n << doubling for n in (space.gpus[0], space.gpus[-1])}
        wider = replace(space, gpus=sorted(gpus))
        try:
            wider_legal = candidates(llm, wider)
        except PlanError:
            continue
        bytes_ = _memory(Assembly(assembly.model, wider_legal, rules), None)
        if bytes_.min() <= room:
            i = int(np.argmin(bytes_))
            return (
                f"{text}; {wider_legal.gpus[i]:,} GPUs would do ({wider_legal.plan(i).describe()})"
            )
    zero = "" if 3 in space.zeros else "zero 3, "
    return f"{text}; use {zero}GPUs with more memory, a larger max_tp or smaller micro batches"
