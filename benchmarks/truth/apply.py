"""What each remedy does to the physical job, from what its text says.

- replace-worker: the workers named become machines of typical speed; all else stays, their links
  and NICs too, since the text speaks of computing only.
- fix-link: the links named take the usual time. fix-nic: all collectives of the stages named do,
  since the text says to repair "the data-parallel network of stage ...".
- stage-layout: the layers named, with what they cost and the parameters that they carry.
- sequence-balance: the assignment listed; where it is too long to be listed, the case is skipped.
- micro-batches: the counts named; a replica keeps its first microbatches, those that move bring
  what they hold.
- planned-gc: no automatic pauses; all workers pause for the seconds stated once in N steps.
- placement: the machines named change places one pair after the other; their speed, their NIC and
  their history move along, data and layers stay. A slow path lies between two machines: it idles
  once these are no neighbours in a pipeline.
- hide-delays: "step-start" hides data loading only; a kind hides every delay before it.
- overlap-dp: a bucket is reduced as soon as its gradients are complete; computes stay as fast.
- 1f1b, interleave: the order of work; layers of a stage are cut into chunks, embedding and loss
  stay at the model's two ends, every message pays its link, every launch its delay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from truth.case import Case
from world.data import contents_of, cost_of_lengths
from world.plant import Setup, placement
from world.record import simulate, step_s, undelayed_s, with_gc_every


class SkippedError(Exception):
    """The change cannot be applied; says why."""


Change = Mapping[str, Any]


def outcome_s(case: Case, remedy: Mapping[str, Any]) -> tuple[float, float | None]:
    """Mean step time with the remedy, by the stopwatch and without launch delays, seconds."""
    change = remedy["change"]
    if remedy["remedy"] == "planned-gc":
        seconds = with_gc_every(
            case.world, case.setup, float(change["pause_s"]), int(change["every_steps"])
        )
        return seconds, None
    job = simulate(case.world, changed_setup(case, remedy["remedy"], change))
    return float(job.step_s.mean()), undelayed_s(job)


def changed_setup(case: Case, name: str, change: Change) -> Setup:
    """The setup after a remedy.

    Raises:
        SkippedError: the remedy is unknown here, or does not say enough.
    """
    if name not in _CHANGES:
        raise SkippedError(f"no physical meaning of {name!r} is written here")
    try:
        return _CHANGES[name](case, change)
    except (KeyError, TypeError, IndexError) as error:
        raise SkippedError(f"the change of {name} is not understood: {error!r}") from None


def _replace(case: Case, change: Change) -> Setup:
    at = placement(case.world, case.setup)
    new = {int(at[dp, stage]) for dp, stage in change["workers"]}
    return replace(case.setup, new_machines=case.setup.new_machines | new)


def _links(case: Case, change: Change) -> Setup:
    links = {(a[0], *sorted((a[1], b[1]))) for a, b in change["links"]}
    return replace(case.setup, repaired_links=frozenset(links))


def _groups(case: Case, change: Change) -> Setup:
    stages = [g["stage"] for g in change.get("groups", ())]
    stages += [stage for _, stage in change.get("workers", ())]  # members that end late
    return replace(case.setup, repaired_groups=frozenset(stages))


def _layout(case: Case, change: Change) -> Setup:
    return replace(case.setup, layers=tuple(change["layers"]))


def _sequences(case: Case, change: Change) -> Setup:
    if "assignment" not in change:
        raise SkippedError("the assignment is too long to be listed")
    setup = case.setup
    attention, tokens = (table.copy() for table in contents_of(case.world, setup.microbatches))
    usual = case.sequences()
    old = attention.copy(), tokens.copy()
    lengths = {}
    for row in change["assignment"]:
        place = int(row["step"]), int(row["dp"]), int(row["microbatch"])
        if "lengths" in row:
            lengths[place] = row["lengths"]
        else:
            home = (place[0], *row["from"])
            attention[place], tokens[place] = old[0][home], old[1][home]
    if lengths and usual is not None:
        attention, tokens = cost_of_lengths(case.world, lengths, usual, attention.shape)
    return replace(setup, contents=(attention, tokens))


def with_counts(case: Case, counts: tuple[int, ...]) -> Setup:
    """The job with other numbers of microbatches; those that move bring what they hold."""
    world, before = case.world, case.setup.microbatches
    old = case.setup.contents or contents_of(world, before)
    new = tuple(np.ones((world.steps, world.dp, max(counts))) for _ in old)
    moved = [(dp, m) for dp in range(world.dp) for m in range(counts[dp], before[dp])]
    for dp in range(world.dp):
        for m in range(counts[dp]):
            home = (dp, m) if m < before[dp] else moved.pop(0)
            for table, source in zip(new, old, strict=True):
                table[:, dp, m] = source[:, home[0], home[1]]
    return replace(case.setup, microbatches=counts, contents=new)


def _counts(case: Case, change: Change) -> Setup:
    counts = list(case.setup.microbatches)
    for row in change["microbatches"]:
        counts[row["dp"]] = int(row["after"])
    return with_counts(case, tuple(counts))


def swapped(case: Case, swaps: list[tuple[tuple[int, int], tuple[int, int]]]) -> Setup:
    """The job with machines in each other's places."""
    at = placement(case.world, case.setup).copy()
    for a, b in swaps:
        at[tuple(a)], at[tuple(b)] = at[tuple(b)], at[tuple(a)]
    return replace(case.setup, machine_at=at)


def _swaps(case: Case, change: Change) -> Setup:
    return swapped(case, change["swaps"])


def _hide(case: Case, change: Change) -> Setup:
    names = change["hide"]
    names = [names] if isinstance(names, str) else list(names)
    hidden = {"loading" if name == "step-start" else name for name in names}
    return replace(case.setup, hidden=case.setup.hidden | hidden)


def _overlap(case: Case, change: Change) -> Setup:
    return replace(case.setup, overlap=True, buckets=int(change.get("buckets", 1)))


def _one_f_one_b(case: Case, change: Change) -> Setup:
    return replace(case.setup, schedule="1f1b")


def interleaved(case: Case, chunks: int) -> Setup:
    """The job in chunks: a stage's layers are shared out over them, the first ones get the rest."""
    stages = case.world.stages
    whole = np.array(case.setup.layers).reshape(-1, stages).sum(axis=0)
    layers = [int(n) // chunks + (c < int(n) % chunks) for c in range(chunks) for n in whole]
    return replace(case.setup, schedule="interleaved", chunks=chunks, layers=tuple(layers))


def _interleave(case: Case, change: Change) -> Setup:
    return interleaved(case, int(change["chunks"]))


_CHANGES: dict[str, Callable[[Case, Change], Setup]] = {
    "replace-worker": _replace,
    "fix-link": _links,
    "fix-nic": _groups,
    "stage-layout": _layout,
    "sequence-balance": _sequences,
    "micro-batches": _counts,
    "placement": _swaps,
    "hide-delays": _hide,
    "overlap-dp": _overlap,
    "1f1b": _one_f_one_b,
    "interleave": _interleave,
}


def truth_s(case: Case) -> float:
    """Mean step time of the job as it is, by the stopwatch, seconds."""
    return step_s(case.world, case.setup)
