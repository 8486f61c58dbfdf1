"""Repair the network of a group; share the work of experts and context ranks evenly."""

from __future__ import annotations

from paceline.diagnose.peer_groups import peer_causes
from paceline.diagnose.remove import scale_transfers
from paceline.remedies.outcome import copy_of, needed_finding, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.remedies.replace import name_workers
from paceline.whatif import ideal_durations


def fix_peer_network(case: Case) -> Remedy:
    """Repair the links of a group's members: NVLink, NVSwitch, PCIe, or the network.

    Raises:
        NotApplicableError: no group is slow.
    """
    finding = needed_finding(case, "peer-network", "slow group within passes")
    workers = [(int(replica), int(pp)) for replica, pp in finding.where["workers"]]
    return outcome(
        case,
        NETWORK,
        f"repair what connects {name_workers(case.measured.job, workers)}",
        _without(case, "peer-network"),
        {"workers": [list(worker) for worker in workers]},
        notes=(
            "which member's link it is the trace cannot show: test them pairwise",
            "the group comes to take what the others take; the members' own jitter stays",
        ),
    )


def balance_experts(case: Case) -> Remedy:
    """Give all experts of a group equally many tokens: by capacity, loss, or redundant experts.

    Raises:
        NotApplicableError: the experts have even work.
    """
    finding = needed_finding(case, "expert-imbalance", "uneven experts")
    return outcome(
        case,
        EXPERTS,
        "give all experts of a group as many tokens",
        _without(case, "expert-imbalance"),
        {"busiest_over_mean": finding.evidence["busiest_over_mean"]},
        notes=(
            "each member takes the mean of its group in every layer and step, times what lasts on "
            "it; the exchange of tokens is as it was",
        ),
    )


def balance_context(case: Case) -> Remedy:
    """Share the sequence evenly among context-parallel ranks (zigzag, or by attention's cost).

    Raises:
        NotApplicableError: the context ranks have even work.
    """
    finding = needed_finding(case, "context-imbalance", "uneven context ranks")
    return outcome(
        case,
        CONTEXT,
        "share sequences evenly among the context-parallel ranks",
        _without(case, "context-imbalance"),
        {"busiest_over_mean": finding.evidence["busiest_over_mean"]},
        notes=(
            "each rank takes the mean of its group in every layer and step, times what lasts on it",
        ),
    )


def _without(case: Case, cause: str) -> Prediction:
    durations = case.measured.durations
    causes = peer_causes(durations, ideal_durations(durations), case.result.steps)
    changed = copy_of(durations)
    effects = [candidate.effect for candidate in causes if candidate.cause == cause]
    scale_transfers(changed, [scaling for effect in effects for scaling in effect.scaled])
    return case.predicted(changed)


NETWORK = RemedyKind(
    "fix-peer-network",
    "repair what connects the members of slow groups",
    frozenset({"peer-network"}),
    fix_peer_network,
    whole_passes=False,
    of_programs=True,
)
EXPERTS = RemedyKind(
    "balance-experts",
    "give all experts of a group as many tokens",
    frozenset({"expert-imbalance"}),
    balance_experts,
    whole_passes=False,
    of_programs=True,
)
CONTEXT = RemedyKind(
    "balance-context",
    "share sequences evenly among context-parallel ranks",
    frozenset({"context-imbalance"}),
    balance_context,
    whole_passes=False,
    of_programs=True,
)
KINDS = (NETWORK, EXPERTS, CONTEXT)
