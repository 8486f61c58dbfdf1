"""Swap workers: slow ones to places where they cost least, slow links out of use (falcon, S3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.diagnose import MIN_OF_STEP
from paceline.diagnose.fit import fit_computes
from paceline.errors import NotApplicableError
from paceline.graph import Durations
from paceline.graph.computes import computes_of
from paceline.remedies.arrange import Arrangement, Search, Swap, swaps_to
from paceline.remedies.chunks import FEW_REPLICAS
from paceline.remedies.healthy import Worker
from paceline.remedies.links import heal_links
from paceline.remedies.outcome import MOVED_MARGIN, copy_of, finding_of, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.remedies.replace import blamed_workers, links_of, name_workers
from paceline.trace import Job

#: A stage with this share of extra time may have a heavy load instead of slow workers.
HEAVY_SHARE = 0.05

#: Most slow workers to move; more would make the search long.
MAX_MOVED = 6

Link = tuple[int, int, int]  # (dp, low stage, high stage)


def propose(case: Case) -> Remedy:
    """Swap workers so that slow workers and slow links cost least.

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
            "with one replica (dp 1) the trace does not show the cost of a slow worker or link "
            "at another place"
        )
    durations, swaps = case.measured.durations, list[Swap]()
    if workers:
        arrangement = Arrangement(durations, computes_of(graph), workers)
        best = Search(arrangement, case.predicted, _closed_stages(case)).best()
        durations, swaps = best.durations, swaps_to(workers, best.positions)
    causes = ["worker"] if swaps else []
    after, now = case.predicted(durations), case.before.mean_s
    otherwise = None
    if link is not None:
        links = [
            slow_link
            for slow_link in links_of(link)
            if not set(_ends(slow_link)) & nic_suspects(case)
        ]
        occupied = {worker for swap in swaps for worker in swap} | set(workers)
        around = swaps_around(links, occupied, graph.n_dp)
        healed = _without_links(case, durations, [idle for idle, _ in around])
        if after.mean_s - healed.mean_s > MIN_OF_STEP * now:
            after, otherwise = healed, after
            swaps += [swap for _, swap in around]
            causes.append("link")
    if not swaps or after.mean_s > now * (1 - MIN_OF_STEP):
        raise NotApplicableError(
            f"no swap of workers makes the step more than {MIN_OF_STEP:.1%} faster: the slow ones "
            "already are where they cost least, or a NIC is slow and would move along"
        )
    return outcome(
        case,
        KIND,
        f"swap {_named(case.measured.job, swaps)}",
        after,
        {"swaps": [[list(a), list(b)] for a, b in swaps]},
        causes=causes,
        notes=(MOVING, ONE_LINK) if otherwise else (MOVING,),
        otherwise=() if otherwise is None else (otherwise,),
        margin=MOVED_MARGIN,
    )


def _closed_stages(case: Case) -> frozenset[int]:
    """Stages with an uncertain typical speed: they have few workers, and most may be slow."""
    n_dp, n_pp = case.measured.graph.n_dp, case.measured.graph.n_pp
    if n_dp > FEW_REPLICAS:
        return frozenset()
    place = np.exp(
        fit_computes(case.measured.durations).place
    )  # the workers' factors contradict it
    loads = place.sum(axis=0).reshape(n_pp, -1).sum(axis=1)
    usual = np.sort(loads)[(n_pp - 1) // 2]
    return frozenset(np.flatnonzero(loads > (1 + HEAVY_SHARE) * usual).tolist())


def _ends(link: Link) -> tuple[Worker, Worker]:
    dp, low, high = link
    return (dp, low), (dp, high)


def nic_suspects(case: Case) -> set[Worker]:
    """Workers that may have a slow NIC instead of a slow path to a neighbour.

    All links of such a worker are slow. It has several links, or its stage's group is slow, too.
    """
    link, group = finding_of(case, "link"), finding_of(case, "dp-network")
    slow = set(links_of(link)) if link else set()
    groups = group.evidence.get("groups", ()) if group else ()
    stages = {int(entry["stage"]) for entry in groups}
    suspects = set()
    for worker in {end for slow_link in slow for end in _ends(slow_link)}:
        links = _links_at(case, worker)
        if links <= slow and (len(links) > 1 or worker[1] in stages):
            suspects.add(worker)
    return suspects


def _links_at(case: Case, worker: Worker) -> set[Link]:
    """The links of a worker; only stages with chunks link the last stage to the first."""
    (dp, stage), n_pp = worker, case.measured.graph.n_pp
    around = case.measured.job.vpp_size > 1
    neighbours = [n % n_pp for n in (stage - 1, stage + 1) if around or 0 <= n < n_pp]
    return {(dp, min(stage, n), max(stage, n)) for n in neighbours}


MOVING = (
    "a worker is all GPUs of a (dp, stage); its speed moves with it, the data and the layers stay; "
    "swapping takes about a minute (falcon paper, 5.3)"
)
ONE_LINK = (
    "a slow link is assumed to be slow between its two ends: once these no longer communicate, "
    "the slowness is gone; if it follows one of them, the swap gains nothing (the interval "
    "includes that): repair that worker's NIC"
)


def _named(job: Job, swaps: Sequence[tuple[Worker, Worker]]) -> str:
    return ", ".join(f"{name_workers(job, [a])} with {name_workers(job, [b])}" for a, b in swaps)


def _without_links(case: Case, durations: Durations, links: Sequence[Link]) -> Prediction:
    """The prediction with these links healed: without traffic they cost nothing."""
    changed = copy_of(durations)
    heal_links(changed, links)
    return case.predicted(changed)


def swaps_around(
    links: Sequence[Link], occupied: set[Worker], n_dp: int
) -> list[tuple[Link, Swap]]:
    """For each link, a swap of one end with the worker of its stage in another replica.

    Then the two ends share no transfer and no data-parallel group, so the link is idle.
    """
    slow = {(dp, low) for dp, low, _ in links} | {(dp, high) for dp, _, high in links}
    occupied = occupied | slow
    swaps = []
    for dp, low, high in links:
        options = [
            ((dp, end), (replica, end))
            for end in (high, low)
            for replica in np.roll(np.arange(n_dp), -dp - 1).tolist()
            if (replica, end) not in occupied
        ]
        if options:
            swaps.append(((dp, low, high), options[0]))
            occupied.add(options[0][1])
    return swaps


KIND = RemedyKind(
    "placement",
    "swap workers: slow ones to places where they cost least, slow links out of use",
    frozenset({"worker", "link"}),
    propose,
)
