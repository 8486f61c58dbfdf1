"""Sequence balance: redistribute sequences so that ranks and microbatches cost the same.

Lengths predict the cost of a microbatch (what-if paper, 5.3). Its authors redistributed the
sequences of a 32K job and gained 23.9% of throughput. In a pipeline the order of microbatches
within a rank matters equally, so it is chosen as well, by simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.errors import NotApplicableError
from paceline.remedies.even_microbatches import other_reading
from paceline.remedies.outcome import MAX_OPEN_GAP, outcome
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.remedies.sequence_plan import (
    MICROBATCHES,
    NOTHING,
    SEQUENCES,
    SequencePlan,
    balance,
    tokens_per_rank,
)
from paceline.remedies.sequence_search import Balancing, balance_of

#: A smaller gain does not justify the exchange of sequences.
MIN_GAIN = 0.01

#: ``change`` leaves out an assignment of more sequences (or microbatches) than this.
MAX_LISTED = 512

#: Orders as words for a sentence.
IN_ORDER = {
    "falling": "the dearest first",
    "rising": "the cheapest first",
    "hill": "the cheap ones first and last, the expensive ones in between",
}

AMBIGUOUS = (
    "with so few stages or replicas a slow worker looks like costly sequences, and moving its "
    "microbatches would not help: make sure that no worker is slow, or give the lengths"
)


def propose(case: Case) -> Remedy:
    """Redistribute sequences; without lengths, exchange whole microbatches.

    Options: ``max_tokens``, most tokens per microbatch (default: the largest traced microbatch).

    Raises:
        NotApplicableError: there is nothing to gain, or the lengths explain nothing.
        RemedyError: the limit of tokens is too low, or there are no lengths to apply it to.
        TraceError: the lengths do not match the trace.
    """
    balancing = balance_of(case)
    has_lengths = case.seqlens is not None
    after = case.predicted(balancing.durations)
    gain = 1 - after.mean_s / case.before.mean_s
    if gain < MIN_GAIN:
        raise NotApplicableError(
            "microbatches are balanced well enough: another assignment and order of them gains "
            f"{max(gain, 0.0):.1%} (under {MIN_GAIN:.0%})"
        )
    otherwise = None if balancing.otherwise is None else case.predicted(balancing.otherwise)
    if otherwise is not None and abs(otherwise.mean_s / after.mean_s - 1) > MAX_OPEN_GAP:
        raise NotApplicableError(
            "the trace leaves the effect of an exchange of microbatches open: a step takes "
            f"{after.mean_s:.4g} s if ranks that took longer had more expensive microbatches, "
            f"{otherwise.mean_s:.4g} s if they are slow; --seqlens tells that apart"
        )
    exchanged = balancing.plan.mostly
    verb = {
        SEQUENCES: "exchange sequences between ranks and microbatches; run",
        MICROBATCHES: "exchange whole microbatches between ranks; run",
        NOTHING: "let each rank run",
    }[exchanged]
    action = f"{verb} {IN_ORDER[balancing.order]}"
    return outcome(
        case,
        KIND,
        action,
        after,
        _change(balancing, exchanged, has_lengths),
        notes=(
            *_notes(balancing, exchanged, has_lengths),
            *([AMBIGUOUS] if _ambiguous(case) else other_reading(case)),
        ),
        otherwise=() if otherwise is None else (otherwise,),
    )


def _ambiguous(case: Case) -> bool:
    graph = case.measured.graph
    return case.seqlens is None and (graph.n_pp == 1 or graph.n_dp == 2)


def _change(balancing: Balancing, exchanged: str, has_lengths: bool) -> dict[str, Any]:
    exists = balancing.plan.before.exists
    change: dict[str, Any] = {
        "exchange": exchanged,
        "order": balancing.order,
        "max_tokens": balancing.max_tokens,
        "balance_before": balance(balancing.cost_before, exists),
        "balance_after": balance(balancing.cost_after, exists),
        "moved_between_ranks": balancing.plan.moved_share,
        "alternatives": [
            {"exchange": exchange, "order": order, "gain": gain}
            for (exchange, order), gain in balancing.gains.items()
        ],
    }
    if has_lengths and balancing.r2 is not None:
        change["tokens_per_rank"] = {
            "before": tokens_per_rank(balancing.plan.before),
            "after": tokens_per_rank(balancing.plan.after),
        }
        change["r2"] = {"forward": float(balancing.r2[0]), "backward": float(balancing.r2[1])}
    change["moves"] = len(balancing.plan.origin)
    if len(balancing.plan.origin) <= MAX_LISTED:
        change["assignment"] = list(_assignment(balancing.plan, has_lengths))
    return change


def _assignment(plan: SequencePlan, has_lengths: bool) -> Iterator[dict[str, Any]]:
    """Each microbatch and its new content: lengths, or the microbatch that moves there."""
    after = plan.after
    _, n_dp, most = after.ptr.shape[:3]
    slots = plan.slots_before
    for step, dp, microbatch in np.argwhere(after.exists).tolist():
        first, end = after.ptr[step, dp, microbatch].tolist()
        place = {"step": int(after.steps[step]), "dp": dp, "microbatch": microbatch}
        if has_lengths:
            yield {**place, "lengths": after.lengths[first:end].tolist()}
        else:
            home = int(slots[plan.origin[first]]) % (n_dp * most)
            yield {**place, "from": [home // most, home % most]}


def _notes(balancing: Balancing, exchanged: str, has_lengths: bool) -> Iterator[str]:
    if balancing.fixed:
        yield (
            "the same microbatches are long in all steps: this order is the same in all of them, "
            "and needs no lengths"
        )
    elif not has_lengths:
        yield (
            "without sequence lengths (--seqlens) only whole microbatches can be exchanged, by "
            "the times they took here; a live job needs the lengths to predict these times"
        )
    if exchanged == SEQUENCES and balancing.max_tokens is not None:
        n_steps = sum(exchange != SEQUENCES for exchange in balancing.plan.exchanged)
        if n_steps:
            yield (
                f"in {n_steps} of {len(balancing.plan.exchanged)} steps {balancing.max_tokens} "
                "tokens per microbatch leave no room to exchange sequences: "
                "whole microbatches there"
            )
    order_gains = [gain for (exchange, _), gain in balancing.gains.items() if exchange == NOTHING]
    if exchanged != NOTHING and order_gains and max(order_gains) >= MIN_GAIN:
        yield f"another order of each rank's own microbatches alone gains {max(order_gains):.1%}"
    yield "each step has the same sequences as before, so its gradients do not change"


KIND = RemedyKind(
    "sequence-balance",
    "distribute sequences over ranks and microbatches by their cost, and order them",
    frozenset({"sequence-length"}),
    propose,
)
