"""Phrases for the changes of a remedy: one per number, with unit and present value.

A phrase is omitted if its number is missing, as in results of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.remedies import Remedy
from paceline.results.words.names import link, with_kind_names, worker, workers
from paceline.units import count, percent, seconds, several, times

#: Most named entries of a list.
MAX_NAMED = 6

#: Embedding and loss below this share of a layer are noise.
MIN_SHARE = 0.05

Change = Mapping[str, Any]
Phrases = Iterator[str]


def change_phrases(remedy: Remedy, all_reduces: bool = False) -> list[str]:
    """The remedy's changes; empty for unknown remedies.

    Args:
        remedy: for a job.
        all_reduces: whether the job reduces its gradients to all ranks; for names of kinds.
    """
    of_remedy = OF_REMEDY.get(remedy.remedy)
    change = with_kind_names(remedy.change, all_reduces)
    return [] if of_remedy is None else list(of_remedy(change))


def _replace_worker(change: Change) -> Phrases:
    if places := change.get("workers"):
        yield f"{count(len(places), 'worker')} to replace: {workers(places, MAX_NAMED)}"


def _mend_optimizer(change: Change) -> Phrases:
    if places := change.get("workers"):
        yield f"{count(len(places), 'optimizer')} to mend: {workers(places, MAX_NAMED)}"


def _fix_link(change: Change) -> Phrases:
    if links := change.get("links"):
        names = several([link(ends) for ends in links], MAX_NAMED, "; ")
        yield f"{count(len(links), 'link')} to repair: {names}"


def _fix_nic(change: Change) -> Phrases:
    if groups := change.get("groups"):
        group_names = [f"{group['kind']} of stage {group['stage']}" for group in groups]
        yield f"{count(len(groups), 'group')} to repair: {several(group_names, MAX_NAMED, '; ')}"
    if places := change.get("workers"):
        yield f"{count(len(places), 'worker')} to look at: {workers(places, MAX_NAMED)}"
    if kinds := change.get("kinds"):
        yield f"late in {several(list(kinds), MAX_NAMED)}"


def _fix_peers(change: Change) -> Phrases:
    if places := change.get("workers"):
        yield f"{count(len(places), 'member')} of the group: {workers(places, MAX_NAMED)}"


def _even_shares(change: Change) -> Phrases:
    if busiest := change.get("busiest_over_mean"):
        yield f"the busiest member then takes the mean of its group, now {times(busiest)} the mean"


def _stage_layout(change: Change) -> Phrases:
    layers, now = change.get("layers"), change.get("layers_now")
    if layers and now:
        place = "stage, chunk after chunk" if "gap" in change else "stage"
        yield f"layers by {place}: {_numbers(layers)}; now {_numbers(now)}"
    loads, loads_now = change.get("loads_s"), change.get("loads_now_s")
    if loads and loads_now:
        yield (
            f"the busiest takes {seconds(max(loads))} per microbatch, now {seconds(max(loads_now))}"
        )
    even = change.get("load_even_s")
    if even is not None and loads_now:
        yield (
            f"every stage takes {seconds(even)} per microbatch, now between "
            f"{seconds(min(loads_now))} and {seconds(max(loads_now))}"
        )
    layer_s = change.get("layer_s") or (0.0, 0.0)
    for name, key in (("layer", "layer_s"), ("embedding", "embedding_s"), ("loss", "loss_s")):
        pair = change.get(key)
        if pair and sum(pair) > MIN_SHARE * sum(layer_s):
            yield f"{name}: {seconds(pair[0])} forward, {seconds(pair[1])} backward"
    if change.get("gap") is not None:
        bound = change.get("lower_bound_s")
        of = "" if bound is None else f" of {seconds(bound)}"
        yield f"at most {percent(change['gap'])} above the lower bound{of} of any split"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


#: A plan's exchanges, and its order of microbatches.
EXCHANGED = {
    "sequences": "sequences exchanged",
    "microbatches": "whole microbatches exchanged",
    "nothing": "nothing exchanged",
}
ORDERED = {
    "falling": "the most expensive first",
    "rising": "the cheapest first",
    "hill": "the cheap ones first and last",
}


def _plan_name(exchange: str, order: str) -> str:
    return f"{EXCHANGED.get(exchange, exchange)}, {ORDERED.get(order, order)}"


def _sequence_balance(change: Change) -> Phrases:
    moved_share, total = change.get("moved_between_ranks"), change.get("moves")
    nouns = ("sequence", "") if "tokens_per_rank" in change else ("microbatch", "microbatches")
    if moved_share is not None and total is not None:
        total_text = count(total, *nouns)
        if round(moved_share * total):
            yield (
                f"moves {round(moved_share * total):,} of {total_text} ({percent(moved_share)}) to "
                "another data-parallel rank"
            )
        else:
            yield f"none of {total_text} moves to another data-parallel rank"
    yield from _balance(change.get("balance_before") or {}, change.get("balance_after") or {})
    yield from _tokens(change)
    best_plan = (change.get("exchange"), change.get("order"))
    other_plans = [
        f"{_plan_name(plan['exchange'], plan['order'])} {percent(plan['gain'])}"
        for plan in change.get("alternatives") or ()
        if (plan["exchange"], plan["order"]) != best_plan
    ]
    if other_plans:
        yield f"other plans gain: {several(other_plans, 3, '; ')}"


def _even_microbatches(change: Change) -> Phrases:
    if (varied := change.get("coefficient_of_variation")) is not None:
        yield f"the cost of microbatches varies by {percent(varied)} now"
    if (less_s := change.get("without_extra_work_s")) is not None:
        yield f"without the extra work of the long one, a step would take {seconds(less_s)}"


def _balance(before: Change, after: Change) -> Phrases:
    if "ranks" in before and "ranks" in after:
        yield (
            f"the most expensive rank costs {times(after['ranks'])} the mean, now "
            f"{times(before['ranks'])}"
        )
    if "microbatches" in before and "microbatches" in after:
        yield (
            f"the most expensive microbatch costs {times(after['microbatches'])} the mean, now "
            f"{times(before['microbatches'])}"
        )


def _tokens(change: Change) -> Phrases:
    """The distribution of tokens; nothing if the lengths are unknown."""
    tokens = change.get("tokens_per_rank")
    if tokens:
        after, before = tokens["after"], tokens["before"]
        yield (
            f"a rank holds {after['min']:,} to {after['max']:,} tokens a step, now "
            f"{before['min']:,} to {before['max']:,}"
        )
        yield (
            f"the largest microbatch holds {after['largest_microbatch']:,} tokens, now "
            f"{before['largest_microbatch']:,}"
        )
    if change.get("max_tokens") is not None:
        yield f"no microbatch may hold more than {count(change['max_tokens'], 'token')}"
    if r2 := change.get("r2"):
        yield (
            f"the lengths explain {percent(r2['forward'])} of the variation of forward times, "
            f"{percent(r2['backward'])} of backward times"
        )


def _micro_batches(change: Change) -> Phrases:
    rows = change.get("microbatches") or []
    counts = [f"dp {row['dp']} gets {row['after']:,}, now {row['before']:,}" for row in rows]
    if counts:
        yield f"microbatches: {several(counts, MAX_NAMED, '; ')}"
    if change.get("total") is not None:
        yield f"{count(change['total'], 'microbatch', 'microbatches')} in all"
    if change.get("unit", 1) > 1:
        yield f"they move {change['unit']:,} at a time"
    over = change.get("slowest_replica_over_median")
    if over is not None:
        yield f"the slowest replica alone takes {times(over)} the median one"


def _planned_gc(change: Change) -> Phrases:
    if change.get("pause_s") is not None:
        yield f"a planned collection takes {seconds(change['pause_s'])}"
    n_collections, interval = (
        change.get("collections_seen"),
        change.get("steps_between_automatic"),
    )
    if n_collections is not None and interval is not None:
        yield (
            f"{count(n_collections, 'pause')} seen: a worker collects about once in "
            f"{_rounded(interval)} steps now"
        )
    rows = change.get("table") or []
    gains = [f"every {count(row['every_steps'], 'step')} {percent(row['gain'])}" for row in rows]
    if gains:
        yield f"gains by interval: {several(gains, MAX_NAMED)}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _placement(change: Change) -> Phrases:
    swaps = change.get("swaps") or []
    pairs = [f"{worker(first)} with {worker(second)}" for first, second in swaps]
    if pairs:
        yield f"{count(len(swaps), 'swap')}: {several(pairs, MAX_NAMED, '; ')}"


def _hide_delays(change: Change) -> Phrases:
    rows = change.get("alone") or []
    gains = [
        f"{_delays(row['hide'])} {percent(row['gain'])} ({seconds(row['saved_s'])} a step)"
        for row in rows
    ]
    if gains:
        yield f"gain of hiding each sort alone: {several(gains, MAX_NAMED)}"


def _delays(hide: str) -> str:
    names = {
        "step-start": "at the start of steps",
        "late-workers": "at the start of late workers' steps",
        "all": "all delays",
    }
    return names.get(hide, f"before {hide}")


def _load_ahead(change: Change) -> Phrases:
    if places := change.get("workers"):
        yield f"{count(len(places), 'worker')} with a slow loader: {workers(places, MAX_NAMED)}"


def _overlap(change: Change) -> Phrases:
    buckets = change.get("buckets")
    if buckets is not None:
        yield f"gradients of a chunk are reduced in {count(buckets, 'part')}"


def _one_f_one_b(change: Change) -> Phrases:
    if change.get("schedule") == "1f1b":
        yield "schedule: 1F1B"


def _interleave(change: Change) -> Phrases:
    if change.get("chunks") is not None:
        yield f"schedule: interleaved 1F1B with {count(change['chunks'], 'chunk')} per stage"
    rows = change.get("compared") or []
    step_times = [f"{count(row['chunks'], 'chunk')} {seconds(row['step_time_s'])}" for row in rows]
    if step_times:
        yield f"the mean step with: {', '.join(step_times)}"


def _prefetch(change: Change) -> Phrases:
    gains = [
        f"{count(row['distance'], 'unit')} {percent(row['gain'])}"
        for row in change.get("compared") or ()
    ]
    if gains:
        yield f"gains by distance: {', '.join(gains)}"


def _shard_groups(change: Change) -> Phrases:
    gains = [
        f"{count(row['shard'], 'rank')} {percent(row['gain'])}"
        for row in change.get("compared") or ()
    ]
    if gains:
        yield f"gains by ranks that share one copy: {', '.join(gains)}"
    if factor := change.get("memory_factor"):
        yield f"memory for sharded states: {times(factor)} the present"


def _keep_parameters(change: Change) -> Phrases:
    dropped, total = change.get("gathers_dropped"), change.get("gathers")
    if dropped and total:
        yield f"{count(dropped, 'gather')} of {total:,} vanish from a step"


def _accumulate(change: Change) -> Phrases:
    if dropped := change.get("reductions_dropped"):
        yield f"{count(dropped, 'reduction')} of a step vanish"
    if (gain := change.get("gain_all_reduce_only")) is not None:
        yield (
            "gain if only the all-reduce over replicas waits for the last microbatch: "
            f"{percent(gain)}"
        )


def _bucket_size(change: Change) -> Phrases:
    gains = [f"{times(row['size'])} {percent(row['gain'])}" for row in change.get("compared") or ()]
    if gains:
        yield f"gains by size, at the worst: {', '.join(gains)}"
    if latency := change.get("latency_s"):
        low, high = (seconds(end) for end in latency)
        yield f"latency of a reduction: {low if low == high else f'{low} to {high}'}"


OF_REMEDY: Mapping[str, Callable[[Change], Phrases]] = {
    "replace-worker": _replace_worker,
    "mend-optimizer": _mend_optimizer,
    "fix-link": _fix_link,
    "fix-nic": _fix_nic,
    "fix-peer-network": _fix_peers,
    "balance-experts": _even_shares,
    "balance-context": _even_shares,
    "stage-layout": _stage_layout,
    "sequence-balance": _sequence_balance,
    "even-microbatches": _even_microbatches,
    "micro-batches": _micro_batches,
    "planned-gc": _planned_gc,
    "placement": _placement,
    "load-ahead": _load_ahead,
    "hide-delays": _hide_delays,
    "overlap-dp": _overlap,
    "1f1b": _one_f_one_b,
    "interleave": _interleave,
    "prefetch": _prefetch,
    "keep-parameters": _keep_parameters,
    "shard-groups": _shard_groups,
    "accumulate": _accumulate,
    "bucket-size": _bucket_size,
}
