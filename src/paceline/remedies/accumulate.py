"""Reduce gradients once per step: only the last microbatch communicates (no_sync)."""

from __future__ import annotations

from collections.abc import Collection

from paceline.errors import NotApplicableError
from paceline.graph.program_steps import REDUCTIONS, reduced_again
from paceline.remedies.outcome import need_gain, outcome
from paceline.remedies.programs import (
    Replica,
    edited,
    regraphed,
    without,
)
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.trace import OpKind


def propose(case: Case) -> Remedy:
    """Reduce the gradients of a unit or bucket in the last microbatch only.

    Raises:
        NotApplicableError: the job does so already, or the reductions cost almost nothing.
    """
    kinds = case.measured.graph.kind
    if not any((kinds == kind).any() for kind in REDUCTIONS):
        raise NotApplicableError("the trace has no reduction of gradients")
    predicted = _predicted(case, REDUCTIONS)
    if predicted is None:
        raise NotApplicableError("gradients are reduced once per step already")
    after, n_dropped = predicted
    need_gain(case, after, "reducing gradients in the last microbatch only")
    change = {"reductions_dropped": n_dropped}
    return outcome(
        case,
        KIND,
        "reduce gradients in the last microbatch only",
        after,
        change | _replicas_only(case),
        notes=_notes(sharded=bool((kinds == OpKind.PARAMS_ALL_GATHER).any())),
    )


def _predicted(case: Case, kinds: Collection[OpKind]) -> tuple[Prediction, int] | None:
    """The step, and the number of ops removed from the programs; None if no op is removed."""
    counts: list[int] = []

    def edit(replica: Replica) -> None:
        for stage in range(len(replica.steps)):
            steps = replica.steps[stage]
            early = [op for op in reduced_again(replica.ops, steps) if replica.kind(op) in kinds]
            counts.append(len(early))
            without(replica, stage, early)

    replicas = edited(case.measured, edit)
    if not sum(counts):
        return None
    new = regraphed(case.measured, replicas, case.delays)
    return case.predicted(new.durations, new.delays), sum(counts)


def _replicas_only(case: Case) -> dict[str, float]:
    """The gain if hybrid sharding scatters in each microbatch but all-reduces once per step."""
    kinds = case.measured.graph.kind
    if not all((kinds == kind).any() for kind in REDUCTIONS):
        return {}
    predicted = _predicted(case, (OpKind.SEPARATE_GRADS_ALL_REDUCE,))
    if predicted is None:
        return {}
    return {"gain_all_reduce_only": 1 - predicted[0].mean_s / case.before.mean_s}


def _notes(*, sharded: bool) -> tuple[str, ...]:
    if not sharded:
        return ("DDP: run all microbatches but the last under no_sync()",)
    return (
        "FSDP2: set_requires_gradient_sync(False) for all microbatches but the last",
        "memory: the whole stage's gradients stay unsharded until the last microbatch; the trace "
        "does not say whether they fit",
    )


KIND = RemedyKind(
    "accumulate",
    "reduce gradients in the last microbatch only",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
    of_programs=True,
)
