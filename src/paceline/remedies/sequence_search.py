"""The best assignment of sequences, by simulation: the exchange and the order of microbatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit, fit_computes, pauses
from paceline.diagnose.same_microbatches import same_microbatches
from paceline.diagnose.sequences import fit_sequence_cost, matching, microbatch_counts
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import Durations, Measured
from paceline.graph.computes import KINDS
from paceline.remedies.remedy import Case, predicted_step_s
from paceline.remedies.sequence_assign import exchange_microbatches, plan_sequences
from paceline.remedies.sequence_plan import ORDERS, SequencePlan, in_order, unchanged_plan
from paceline.trace.seqlens import SeqLens

Array = npt.NDArray[np.float64]

#: No gain is predicted if lengths explain a smaller share of the durations.
MIN_R2 = 0.5

#: Number of spread steps on which plans are compared; only the best is simulated on all.
COMPARED_STEPS = 3


@dataclass(frozen=True)
class Balancing:
    """A plan with the data behind it.

    Attributes:
        plan: the new place of each sequence; without lengths, of each microbatch.
        order: one of ``ORDERS``: microbatches within a rank, by cost.
        durations: the durations under the plan.
        cost_before, cost_after: [step, dp, microbatch] seconds on all stages, both kinds (without
            lengths: relative to the typical microbatch).
        gains: (exchanges, order) -> gain of that plan over some steps, the best first.
        max_tokens: limit per microbatch; None without lengths.
        r2: [kind] share of forward and backward durations that lengths explain; None without them.
        fixed: whether the same microbatches are long in all steps, so that the plan is the same.
        otherwise: the durations if some replicas are slow and their microbatches not expensive;
            None if there is no doubt.
    """

    plan: SequencePlan
    order: str
    durations: Durations
    cost_before: Array
    cost_after: Array
    gains: dict[tuple[str, str], float]
    max_tokens: int | None = None
    r2: Array | None = None
    fixed: bool = False
    otherwise: Durations | None = None

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write the whole assignment as parquet (see :meth:`SequencePlan.write`).

        Without lengths every microbatch counts as one sequence of length 1.
        """
        self.plan.write(path, force=force)


def balance_of(case: Case) -> Balancing:
    """The best plan for a case (option ``max_tokens``: see :func:`balance_sequences`)."""
    measured, limit = case.measured, case.options.get("max_tokens")
    if case.seqlens is None:
        if limit is not None:
            raise RemedyError("max_tokens needs sequence lengths: give them with --seqlens FILE")
        return balance_microbatches(measured)
    return balance_sequences(measured, case.seqlens, limit)


def balance_sequences(
    measured: Measured, seqlens: SeqLens, max_tokens: int | None = None
) -> Balancing:
    """Plan where each sequence goes, by the cost of lengths in the trace.

    Args:
        measured: graph and durations of the trace.
        seqlens: lengths for its steps, and perhaps for others.
        max_tokens: most tokens per microbatch; None: the tokens of the largest one.

    Raises:
        TraceError: the lengths do not match the trace.
        NotApplicableError: the lengths explain almost nothing.
        RemedyError: the limit is below the longest sequence.
    """
    lengths = matching(seqlens, measured)
    fit = fit_computes(measured.durations)
    cost = fit_sequence_cost(measured.durations, fit, lengths)
    if cost.r2.min() < MIN_R2:
        raise NotApplicableError(
            f"the sequence lengths explain {cost.r2[0]:.0%} of the variation of forwards and "
            f"{cost.r2[1]:.0%} of backwards (R^2; {MIN_R2:.0%} is needed): are they of this job?"
        )
    limit = _limit(lengths, max_tokens)

    def seconds(plan: SequencePlan) -> Array:
        total: Array = cost.by_kind(plan.after).sum(axis=0)
        return total

    old = cost.seconds(*lengths.moments())  # [kind, place, step, dp, microbatch]

    def ratio(plan: SequencePlan) -> Array:
        new = cost.seconds(*plan.after.moments())
        return np.divide(new, old, out=np.ones_like(new), where=old > 0)

    plans = [plan_sequences(lengths, cost.total, limit)]
    if lengths.moments()[0].max() <= limit:  # microbatches may stay as they are
        start = unchanged_plan(lengths)
        plans += [exchange_microbatches(lengths, seconds(start)), start]
    best = _best(measured.durations, fit, plans, seconds, ratio)
    return replace(best, max_tokens=limit, r2=cost.r2)


def _limit(seqlens: SeqLens, max_tokens: int | None) -> int:
    largest = int(seqlens.moments()[0].max())
    if max_tokens is None:
        return largest
    longest = max(int(seqlens.lengths[a:b].max()) for a, b in seqlens.ptr[seqlens.exists].tolist())
    if max_tokens < longest:
        raise RemedyError(
            f"max_tokens is {max_tokens}, but one sequence has {longest} tokens: give at least "
            f"that many (the largest microbatch has {largest})"
        )
    return max_tokens


def balance_microbatches(measured: Measured) -> Balancing:
    """Plan an exchange of whole microbatches, by their cost in the trace.

    Args:
        measured: graph and durations of the trace.
    """
    fit = fit_computes(measured.durations)
    counts = microbatch_counts(measured.graph)
    exists = np.broadcast_to(
        np.arange(counts.max()) < counts[:, None], (len(measured.steps), len(counts), counts.max())
    )
    end = np.cumsum(exists).reshape(exists.shape)
    items_of_steps = SeqLens(
        measured.steps,
        np.stack([end - exists, end], axis=-1),
        np.ones(int(exists.sum()), dtype=np.int64),
    )
    logs = np.zeros(exists.shape)
    for variant, dps in zip(fit.variants, measured.graph.variant_dps, strict=True):
        # If a replica is equally slower on all its stages, its microbatches count as expensive,
        # unless its level stands out. A single slow worker does not count: the fastest place does
        # not contain its delay.
        own = variant.micro + _lower_median(fit.worker[:, :, dps].reshape(-1, len(dps)))
        logs[:, dps, : len(own)] = own.transpose(1, 2, 0)
    same = same_microbatches(measured.graph, fit)
    fixed = bool(same.shown.all() and len(same.profile))
    # A plan by the times of each step would put its noise in order, too, and promise that.
    expected = np.broadcast_to(same.profile, logs.shape) if fixed else logs

    def log_cost(plan: SequencePlan, costs: Array) -> Array:
        of_item = costs[exists]  # an item is a microbatch: the one that starts there
        return np.where(exists, of_item[np.minimum(plan.after.ptr[..., 0], len(of_item) - 1)], 0.0)

    def relative(plan: SequencePlan) -> Array:
        return np.where(exists, np.exp(log_cost(plan, expected)), 0.0)

    def ratio(plan: SequencePlan) -> Array:
        change: Array = np.exp(fit.slope[:, :, None, None, None] * (log_cost(plan, logs) - logs))
        return change

    start = unchanged_plan(items_of_steps)
    plans = [start]
    if not fixed:  # else all ranks have the same costs
        plans.insert(0, exchange_microbatches(items_of_steps, relative(start)))
    best = replace(_best(measured.durations, fit, plans, relative, ratio), fixed=fixed)
    doubt = fit.level_in_doubt
    if not doubt.any():
        return best
    # A slow replica keeps its level, so a microbatch that leaves it is cheaper than it seemed.
    levels = np.broadcast_to(doubt[:, None], exists.shape)
    homes = best.plan.after.ptr[..., 0]
    items = levels[exists][np.minimum(homes, int(exists.sum()) - 1)]
    stay = fit.slope[:, :, None, None, None] * np.where(exists, levels - items, 0.0)
    scaler, steps = _Scaler(measured.durations, fit), np.arange(measured.durations.n_steps)
    return replace(best, otherwise=scaler.scale(ratio(best.plan) * np.exp(stay), steps))


def _lower_median(values: Array) -> Array:
    """The lower median along the first axis."""
    middle = (len(values) - 1) // 2
    median: Array = np.partition(values, middle, axis=0)[middle]
    return median


def _best(
    durations: Durations,
    fit: Fit,
    plans: list[SequencePlan],
    cost: Callable[[SequencePlan], Array],
    ratio: Callable[[SequencePlan], Array],
) -> Balancing:
    """The plan and order with the shortest steps, by simulation.

    Args:
        durations: as measured.
        fit: fit of these durations.
        plans: the plans to compare.
        cost: plan -> [step, dp, microbatch].
        ratio: plan -> [kind, place, step, dp, microbatch] new over old durations.
    """
    n_steps = durations.n_steps
    sample = np.unique(np.linspace(0, n_steps - 1, min(COMPARED_STEPS, n_steps)).astype(np.int64))
    scaler = _Scaler(durations, fit)
    before = float(predicted_step_s(scaler.scale(None, sample)).mean())
    tried: dict[tuple[str, str], tuple[float, SequencePlan]] = {}
    for plan in plans:
        for order in ORDERS:
            ordered = in_order(plan, cost(plan), order)
            step_s = predicted_step_s(scaler.scale(ratio(ordered), sample))
            tried.setdefault((plan.mostly, order), (1 - float(step_s.mean()) / before, ordered))
    gains = dict(sorted(((key, gain) for key, (gain, _) in tried.items()), key=lambda g: -g[1]))
    best_key = next(iter(gains))
    best = tried[best_key][1]
    return Balancing(
        plan=best,
        order=best_key[1],
        durations=scaler.scale(ratio(best), np.arange(n_steps)),
        cost_before=cost(unchanged_plan(best.before)),
        cost_after=cost(best),
        gains=gains,
    )


class _Scaler:
    """Makes computes longer or shorter, except their pauses, which do not change."""

    def __init__(self, durations: Durations, fit: Fit) -> None:
        self.durations, self.fit = durations, fit
        excess = [pauses(durations, fit, k) for k in range(len(KINDS))]
        # [kind][variant] [place, microbatch, step, dp] seconds; None where nothing pauses
        self.excess = [
            of_variants if any(e.any() for e in of_variants) else None for of_variants in excess
        ]

    def scale(self, ratio: Array | None, steps: npt.NDArray[np.int64]) -> Durations:
        """Durations of some steps, computes multiplied by [kind, place, step, dp, microbatch]."""
        graph = self.durations.graph
        changed = Durations.empty(graph, len(steps))
        for v, (variant, dps) in enumerate(zip(self.fit.variants, graph.variant_dps, strict=True)):
            block = changed.block(v)
            block[:] = self.durations.block(v)[:, steps]
            if ratio is None:
                continue
            for k, of_kind in enumerate(self.excess):
                for place, ops in enumerate(variant.ops[k]):
                    ratios = ratio[k, place][np.ix_(steps, dps, np.arange(len(ops)))]
                    factor = ratios.transpose(2, 0, 1)
                    table = block[ops] * factor
                    if of_kind is not None:
                        table += of_kind[v][place][:, steps] * (1 - factor)
                    block[ops] = table
        return changed
