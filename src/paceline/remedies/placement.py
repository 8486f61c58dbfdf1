"""Swap workers: slow ones where they hurt least, slow links where nothing passes (falcon, S3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.diagnose import MIN_OF_STEP
from paceline.errors import RemedyError
from paceline.graph import Durations
from paceline.graph.computes import computes_of
from paceline.remedies.arrange import Arrangement, Positions, Search
from paceline.remedies.healthy import Worker, heal_links
from paceline.remedies.outcome import copy_of, finding_of, outcome
from paceline.remedies.remedy import Case, Remedy, RemedyKind, predicted_step_s
from paceline.remedies.replace import blamed_workers, links_of

#: So many slow workers are moved, the slowest; more would make the search long.
MAX_MOVED = 6

Swap = tuple[Worker, Worker]
Link = tuple[int, int, int]  # (dp, low stage, high stage)
Array = npt.NDArray[np.float64]


def propose(case: Case) -> Remedy:
    """Swap the places of workers so that slow ones and slow links cost least.

    Raises:
        RemedyError: no worker and no link is slow, or no swap helps.
    """
    graph = case.measured.graph
    slow = finding_of(case, "worker") is not None or "workers" in case.options
    workers = blamed_workers(case)[:MAX_MOVED] if slow else []
    link = finding_of(case, "link")
    if not workers and link is None:
        raise RemedyError("nothing to swap: no worker and no link is slow")
    if graph.n_dp == 1:
        raise RemedyError(
            "with one replica (dp 1) nothing shows what a slow worker or link would cost elsewhere"
        )
    durations, swaps = case.measured.durations, list[Swap]()
    if workers:
        found = Search(Arrangement(durations, computes_of(graph), workers)).best()
        durations, swaps = found.durations, swaps_to(workers, found.positions)
    after_s = predicted_step_s(durations)
    now = float(case.result.simulated_s.mean())
    torn = False
    if link is not None:
        taken = {worker for swap in swaps for worker in swap} | set(workers)
        around = swaps_around(links_of(link), taken, graph.n_dp)
        healed_s = _without_links(durations, [each for each, _ in around])
        if torn := bool(float((after_s - healed_s).mean()) > MIN_OF_STEP * now):
            after_s, swaps = healed_s, [*swaps, *(swap for _, swap in around)]
    if not swaps or float(after_s.mean()) > now * (1 - MIN_OF_STEP):
        raise RemedyError(
            f"no swap of workers makes the step more than {MIN_OF_STEP:.1%} faster: the slow ones "
            "stand where they cost least"
        )
    return outcome(
        case,
        KIND.name,
        "swap " + ", ".join(f"{_name(a)} with {_name(b)}" for a, b in swaps),
        after_s,
        {"swaps": [[list(a), list(b)] for a, b in swaps]},
        causes=KIND.causes,
        notes=(MOVING, ONE_LINK) if torn else (MOVING,),
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


def _without_links(durations: Durations, links: Sequence[Link]) -> Array:
    """[step] step times once links idle."""
    changed = copy_of(durations)
    heal_links(changed, links)
    return predicted_step_s(changed)


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
