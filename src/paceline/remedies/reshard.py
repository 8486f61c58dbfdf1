"""Keep parameters gathered between forward and backward (FSDP's reshard_after_forward=False)."""

from __future__ import annotations

from paceline.errors import NotApplicableError
from paceline.graph.program_steps import PASSES, Pass
from paceline.remedies.outcome import need_gain, outcome
from paceline.remedies.programs import (
    Replica,
    edited,
    needed_gathers,
    regraphed,
    without,
)
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.trace import OpKind


def propose(case: Case) -> Remedy:
    """Do not gather parameters again after the forward has gathered them.

    Raises:
        NotApplicableError: nothing is gathered again, or the gathers cost almost nothing.
    """
    if not (case.measured.graph.kind == OpKind.PARAMS_ALL_GATHER).any():
        raise NotApplicableError("the trace has no gather of parameters (params-all-gather)")
    counts: list[tuple[int, int]] = []

    def edit(replica: Replica) -> None:
        for stage in range(len(replica.steps)):
            passes = needed_gathers(replica, stage)
            again = gathered_again(replica, stage, passes)
            counts.append((len(again), len(passes)))
            without(replica, stage, again)

    replicas = edited(case.measured, edit)
    n_again, n_all = (sum(column) for column in zip(*counts, strict=True))
    if not n_again:
        raise NotApplicableError("no parameters are gathered again in the backward pass")
    new = regraphed(case.measured, replicas, case.delays)
    after = case.predicted(new.durations, new.delays)
    need_gain(case, after, "keeping parameters gathered until the backward pass")
    return outcome(
        case,
        KIND,
        "keep parameters gathered between forward and backward",
        after,
        {"gathers_dropped": n_again, "gathers": n_all},
        notes=(
            "FSDP2: reshard_after_forward=False",
            "memory: from forward to backward all gathered parameters of a stage stay on each "
            "GPU (2 bytes each in 16 bits); the trace does not say whether they fit",
        ),
    )


def gathered_again(replica: Replica, stage: int, passes: dict[int, Pass]) -> list[int]:
    """Gathers of units that a forward has gathered and that no backward has released since."""
    order = {of_pass: number for number, of_pass in enumerate(_passes(replica, stage))}
    backwards = [of_pass for of_pass in order if of_pass.kind == OpKind.BACKWARD_COMPUTE]
    units = _units(replica, passes)
    there: dict[tuple[int, int], Pass] = {}
    again = []
    for gather in sorted(passes, key=lambda op: order[passes[op]]):
        unit, now = units[gather], passes[gather]
        since = there.get(unit)
        gone = since is None or any(
            order[since] <= order[past] < order[now] and past.chunk == now.chunk
            for past in backwards
        )
        if gone:
            there[unit] = now
        else:
            again.append(gather)
    return again


def _units(replica: Replica, passes: dict[int, Pass]) -> dict[int, tuple[int, int]]:
    """Gather -> its unit.

    A backward gathers units that a forward has gathered. If the two share no unit number, the trace
    does not have the units (:mod:`paceline.trace.unit_numbers`). They are then counted within each
    pass, for a pass gathers a unit once.
    """
    told = {gather: replica.unit(gather) for gather in passes}
    of_backwards = {g for g, of_pass in passes.items() if of_pass.kind == OpKind.BACKWARD_COMPUTE}
    of_forwards = passes.keys() - of_backwards
    if {told[g] for g in of_backwards} & {told[g] for g in of_forwards}:
        return told
    n_of_pass: dict[Pass, int] = {}
    counted = {}
    for gather in sorted(passes, key=lambda op: int(replica.ops.rank[op])):
        of_pass = passes[gather]
        number = n_of_pass[of_pass] = n_of_pass.get(of_pass, -1) + 1
        counted[gather] = (of_pass.chunk, number)
    return counted


def _passes(replica: Replica, stage: int) -> list[Pass]:
    """The passes of a stage in the order in which they begin."""
    computes = (op for op in replica.steps[stage] if op >= 0 and replica.kind(op) in PASSES)
    return list(dict.fromkeys(replica.pass_of(op) for op in computes))


KIND = RemedyKind(
    "keep-parameters",
    "keep gathered parameters between forward and backward",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
    of_programs=True,
)
