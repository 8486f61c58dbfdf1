"""Keep parameters gathered between forward and backward (FSDP's reshard_after_forward=False)."""

from __future__ import annotations

from paceline.errors import NotApplicableError
from paceline.graph.program_steps import Pass
from paceline.remedies.outcome import need_gain, outcome
from paceline.remedies.programs import (
    Replica,
    changed_job,
    needed_gathers,
    needed_programs,
    without,
)
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.trace import OpKind


def propose(case: Case) -> Remedy:
    """Do not gather parameters again that were gathered in the forward.

    Raises:
        NotApplicableError: nothing is gathered again, or the gathers cost next to nothing.
    """
    needed_programs(case.measured)
    if not (case.measured.graph.kind == OpKind.PARAMS_ALL_GATHER).any():
        raise NotApplicableError("the trace has no gather of parameters (params-all-gather)")
    counts: list[tuple[int, int]] = []

    def edit(replica: Replica) -> None:
        for stage in range(len(replica.steps)):
            passes = needed_gathers(replica, stage)
            again = gathered_again(replica, stage, passes)
            counts.append((len(again), len(passes)))
            without(replica, stage, again)

    new = changed_job(case.measured, edit, case.delays)
    n_again, n_all = (sum(column) for column in zip(*counts, strict=True))
    if not n_again:
        raise NotApplicableError("no parameters are gathered again in the backward pass")
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
    """Gathers of units that are still there since a forward; a backward gives them back."""
    place = {step: at for at, step in enumerate(replica.steps[stage])}
    there: dict[tuple[int, int], bool] = {}
    again = []
    for gather in sorted(passes, key=lambda op: place[~op]):
        unit = replica.unit(gather)
        if there.get(unit, False):
            again.append(gather)
        there[unit] = passes[gather][0] == OpKind.FORWARD_COMPUTE
    return again


KIND = RemedyKind(
    "keep-parameters",
    "keep gathered parameters between forward and backward",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
)
