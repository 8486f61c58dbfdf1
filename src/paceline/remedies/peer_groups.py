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
        f"repair the connections between {name_workers(case.measured.job, workers)}",
        _without(case, "peer-network"),
        {"workers": [list(worker) for worker in workers]},
        notes=(
            "the trace cannot show which member's link is slow: test them pairwise",
            "the group is assumed to become as fast as the others; its members keep their jitter",
        ),
    )


def balance_experts(case: Case) -> Remedy:
    """Give all experts of a group equal numbers of tokens: by capacity, loss, or redundant experts.

    Raises:
        NotApplicableError: the experts have even work.
    """
    return _balance(
        case,
        EXPERTS,
        "expert-imbalance",
        "uneven experts",
        "give all experts of a group as many tokens",
        "; the exchange of tokens does not change",
    )


def balance_context(case: Case) -> Remedy:
    """Share the sequence evenly among context-parallel ranks (zigzag, or by attention's cost).

    Raises:
        NotApplicableError: the context ranks have even work.
    """
    return _balance(
        case,
        CONTEXT,
        "context-imbalance",
        "uneven context ranks",
        "share sequences evenly among the context-parallel ranks",
    )


def _balance(
    case: Case, kind: RemedyKind, cause: str, description: str, action: str, exchange: str = ""
) -> Remedy:
    finding = needed_finding(case, cause, description)
    notes = [
        "each member is assumed to take its group's mean time in every layer and step; members "
        f"still differ as they do in computes beside the exchange{exchange}"
    ]
    noise_is_known = finding.evidence["computes_beside"] > 0
    if not noise_is_known:
        notes.append(
            "every compute follows an exchange, so uneven shares cannot be told from noise, "
            "which would stay: the interval reaches down to no gain"
        )
    return outcome(
        case,
        kind,
        action,
        _without(case, cause),
        {"busiest_over_mean": finding.evidence["busiest_over_mean"]},
        notes=notes,
        otherwise=() if noise_is_known else (case.before,),
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
    "repair the connections between the members of slow groups",
    frozenset({"peer-network"}),
    fix_peer_network,
    whole_passes=False,
    repairs=True,
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
