"""Groups within a pass: slow connections among their members.

Tensor-, context- and expert-parallel ranks communicate in every layer. All collectives of a group
in a step count together: one lasts microseconds, and a slow connection slows them all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.groups import (
    Group,
    SlowGroup,
    each_of,
    group_evidence,
    healthy,
    in_steps,
    slow_groups,
)
from paceline.diagnose.remove import Effect
from paceline.diagnose.uneven import uneven_causes
from paceline.graph import Durations
from paceline.trace import OpKind
from paceline.trace.kinds import PEER_KINDS

Array = npt.NDArray[np.float64]

#: Most members listed in a group's name.
MAX_MEMBERS = 64

_NAMES = {
    OpKind.TENSOR_COMM: "tensor-parallel group",
    OpKind.EXPERT_COMM: "expert-parallel group",
    OpKind.CONTEXT_COMM: "context-parallel group",
}


def peer_causes(
    durations: Durations, ideal: Array, steps: npt.NDArray[np.int64]
) -> list[Candidate]:
    """Slow groups within passes, and unevenly shared work within passes.

    Args:
        durations: as measured.
        ideal: [op] the usual transfer time of the op's kind and part, seconds.
        steps: [step] step numbers.
    """
    if not np.isin(durations.graph.kind, [int(kind) for kind in PEER_KINDS]).any():
        return []
    groups = list(_groups(durations, ideal))
    slow = slow_groups(groups)
    candidates = [_of_groups(durations, slow, steps, len(groups))] if slow else []
    return candidates + uneven_causes(durations)


def _groups(durations: Durations, ideal: Array) -> Iterator[Group]:
    """Each set of members that communicates within passes, with all its collectives of a kind."""
    graph = durations.graph
    for kind in sorted(PEER_KINDS):
        for stage in range(graph.n_pp):
            ops = np.flatnonzero((graph.kind == kind) & (graph.pp == stage))
            for family in np.unique(graph.family[graph.group[ops]]).tolist():
                own = ops[graph.family[graph.group[ops]] == family]
                usual_s = max(float(ideal[own].sum()), 1e-9)
                times = np.sum([durations.row(op) for op in own.tolist()], axis=0) / usual_s
                sets = graph.families[family]
                for number in np.unique(sets).tolist():
                    met = np.flatnonzero(sets == number)
                    if len(met) < 2:
                        continue
                    workers = [(int(replica), stage) for replica in met]
                    one_each = own.reshape(-1, 1)
                    each = None if len(own) == 1 else each_of(durations, ideal, one_each, met)
                    yield Group(kind, stage, own, times[:, met], workers, usual_s, each)


def _of_groups(
    durations: Durations, slow: list[SlowGroup], steps: npt.NDArray[np.int64], n_groups: int
) -> Candidate:
    worst = slow[0]
    name = durations.graph.worker_name(*worst.group.workers[0])
    return Candidate(
        "peer-network",
        f"the {_NAMES[worst.group.kind]} of {name} communicates {worst.factor:.1f}x slow"
        f"{in_steps(worst)}",
        {"workers": [list(worker) for worker in worst.group.workers[:MAX_MEMBERS]]},
        group_evidence(slow, steps, n_groups),
        Effect(scaled=tuple(s for entry in slow for s in healthy(durations, entry))),
        "a group whose members send more than others' takes longer in all steps, too"
        if worst.lasting
        else "",
        worst.chance,
    )
