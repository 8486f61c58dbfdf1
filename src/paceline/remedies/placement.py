"""Swap workers: slow ones where they hurt least, slow links where nothing passes (falcon, S3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.diagnose import MIN_OF_STEP
from paceline.errors import NotApplicableError
from paceline.graph import Durations
from paceline.graph.computes import computes_of
from paceline.remedies.arrange import Arrangement, Positions, Search
from paceline.remedies.healthy import Worker, heal_links
from paceline.remedies.outcome import copy_of, finding_of, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.remedies.replace import blamed_workers, links_of

#: So many slow workers are moved, the slowest; more would make the search long.
MAX_MOVED = 6

Swap = tuple[Worker, Worker]
Link = tuple[int, int, int]  # (dp, low stage, high stage)


def propose(case: Case) -> Remedy:
    """Swap the places of workers so that slow ones and slow links cost least.

    Raises:
        NotApplicableError: no worker and no link is slow, or no swap helps.
    """
    graph = case.measured.graph
    slow = finding_of(case, "worker") is not None or "workers" in case.options
    workers = blamed_workers(case)[:MAX_MOVED] if slow else []
    link = finding_of(case, "link")
    if not workers and link is None:
        raise NotApplicableError("nothing to swap: no worker and no link is slow")
    if graph.n_dp == 1:
        raise NotApplicableError(
            "with one replica (dp 1) nothing shows what a slow worker or link would cost elsewhere"
        )
    durations, swaps = case.measured.durations, list[Swap]()
    if workers:
        found = Search(Arrangement(durations, computes_of(graph), workers), case.predicted).best()
        durations, swaps = found.durations, swaps_to(workers, found.positions)
    causes = ["worker"] if swaps else []
    after, now = case.predicted(durations), case.before.mean_s
    if link is not None:
        taken = {worker for swap in swaps for worker in swap} | set(workers)
        around = swaps_around(links_of(link), taken, graph.n_dp)
        healed = _without_links(case, durations, [idle for idle, _ in around])
        if after.mean_s - healed.mean_s > MIN_OF_STEP * now:
            after, swaps = healed, [*swaps, *(swap for _, swap in around)]
            causes.append("link")
    if not swaps or after.mean_s > now * (1 - MIN_OF_STEP):
        raise NotApplicableError(
            f"no swap of workers makes the step more than {MIN_OF_STEP:.1%} faster: the slow ones "
            "stand where they cost least"
        )
    return outcome(
        case,
        KIND,
        "swap " + ", ".join(f"{_name(a)} with {_name(b)}" for a, b in swaps),
        after,
        {"swaps": [[list(a), list(b)] for a, b in swaps]},
        causes=causes,
        notes=(MOVING, ONE_LINK) if "link" in causes else (MOVING,),
    )


MOVING = (
    "a worker is all GPUs of a (dp, stage); its speed moves with it, the data and the layers stay; "
    "swapping takes about a minute (falcon paper, 5.3)"
)
ONE_LINK = (
    "the slowness of a link is taken to lie between its two ends: once these no longer talk to "
    "each other it is gone; if it follows one of them, repair that one's NIC"
)


def _name(worker: Worker) -> str:
    return f"dp {worker[0]} stage {worker[1]}"


def _without_links(case: Case, durations: Durations, links: Sequence[Link]) -> Prediction:
    """The job once links idle."""
    changed = copy_of(durations)
    heal_links(changed, links)
    return case.predicted(changed)


def swaps_to(workers: Sequence[Worker], positions: Positions) -> list[Swap]:
    """Swaps, one after the other, that bring each worker to its position."""
    at = {worker: worker for worker in workers}  # where each worker stands now
    swaps = []
    for worker, target in zip(workers, positions, strict=True):
        here = at[worker]
        if here == target:
            continue
        swaps.append((here, target))
        for other, place in at.items():
            if place == target:
                at[other] = here
        at[worker] = target
    return swaps


def swaps_around(links: Sequence[Link], taken: set[Worker], n_dp: int) -> list[tuple[Link, Swap]]:
    """For each link a swap of one end with its stage's worker of another replica.

    Then the two ends are in no transfer and no data-parallel group together: the link idles.
    """
    slow = {(dp, low) for dp, low, _ in links} | {(dp, high) for dp, _, high in links}
    taken = taken | slow
    found = []
    for dp, low, high in links:
        options = [
            ((dp, end), (other, end))
            for end in (high, low)
            for other in np.roll(np.arange(n_dp), -dp - 1).tolist()
            if (other, end) not in taken
        ]
        if options:
            found.append(((dp, low, high), options[0]))
            taken.add(options[0][1])
    return found


KIND = RemedyKind(
    "placement",
    "swap workers: slow ones to where they cost least, slow links to where nothing passes",
    frozenset({"worker", "link"}),
    propose,
)
