"""Replace slow workers, repair slow links and slow data-parallel groups (falcon paper, S4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Finding
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.groups import group_causes
from paceline.diagnose.optimizers import OPTIMIZER, slow_optimizers
from paceline.diagnose.remove import scale_transfers
from paceline.diagnose.stages import loads
from paceline.errors import NotApplicableError, RemedyError
from paceline.graph import Durations
from paceline.graph.computes import computes_of
from paceline.remedies.carried import carried
from paceline.remedies.healthy import Worker, healthy_workers
from paceline.remedies.links import heal_links
from paceline.remedies.outcome import copy_of, finding_of, needed_finding, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.trace import Job
from paceline.trace.job import place_name
from paceline.whatif import ideal_durations

Array = npt.NDArray[np.float64]

#: Most workers named in a sentence.
MAX_NAMED = 4


def blamed_workers(case: Case) -> list[Worker]:
    """Slow workers (replica, pp), the slowest first, from the option ``workers`` or the finding.

    The option holds places, (dp, pp) or (dp, pp, peer). Without a peer, it means all peers.

    Raises:
        NotApplicableError: there is no such finding.
        RemedyError: the option is empty, or names workers that the job does not have.
    """
    if (places := case.options.get("workers")) is None:
        finding = needed_finding(case, "worker", "slow worker")
        return [(int(dp), int(pp)) for dp, pp in finding.where["workers"]]
    job = case.measured.job
    workers = [worker for place in places for worker in _workers_at(job, place)]
    if not workers:
        raise RemedyError("name at least one worker to replace")
    return workers


def _workers_at(job: Job, place: Sequence[int]) -> list[Worker]:
    dp, pp, *peers = (int(number) for number in place)
    limits = (job.dp_size, job.pp_size, *[job.peers] * len(peers))
    if len(peers) > 1 or not all(0 <= n < m for n, m in zip((dp, pp, *peers), limits, strict=True)):
        apart = f", peers 0 to {job.peers - 1}" if job.peers > 1 else ""
        raise RemedyError(
            f"there is no worker {place_name(place)}; the job has dp 0 to {job.dp_size - 1}, "
            f"stages 0 to {job.pp_size - 1}{apart}"
        )
    return [job.worker_at((dp, pp, peer)) for peer in peers or range(job.peers)]


def name_workers(job: Job, workers: Sequence[Worker]) -> str:
    """Names of workers for a sentence."""
    chosen = workers[:MAX_NAMED]
    names = "; ".join(job.worker_name(*worker) for worker in chosen)
    return names + (f" and {len(workers) - MAX_NAMED} more" if len(workers) > MAX_NAMED else "")


def replace_worker(case: Case) -> Remedy:
    """Replace slow machines with healthy ones.

    Options: ``workers`` [[dp, pp], ...], the workers to replace; the default is the finding's
    workers.

    Raises:
        RemedyError: the job does not have the workers named.
        NotApplicableError: no worker is slow, or none has healthy peers.
    """
    stage = _worker_or_stage(case)
    if stage is not None:
        return _replace_alone(case, stage)
    workers = blamed_workers(case)
    durations = case.measured.durations
    if durations.graph.n_dp == 1:
        raise NotApplicableError(
            "with one replica (dp 1) a worker has no peers that show the speed of a healthy one"
        )
    finding = None if "workers" in case.options else finding_of(case, "worker")
    slow = np.flatnonzero(_slow_steps(case, finding))
    part = copy_of(durations.of_steps(slow))
    if finding is None or finding.id != OPTIMIZER:  # else the computes are healthy
        for healthy in healthy_workers(part, computes_of(durations.graph), workers):
            healthy.apply(part)
    _mend_optimizers(part, workers)
    changed = copy_of(durations)
    for variant, block in enumerate(part.blocks):
        changed.block(variant)[:, slow] = block
    noun = "worker" if len(workers) == 1 else f"{len(workers)} workers:"
    before, after = _before_and_after(case, changed)
    return outcome(
        case,
        WORKER,
        f"replace {noun} {name_workers(case.measured.job, workers)}{_healthy_since(case)}",
        after,
        {"workers": [list(worker) for worker in workers]},
        before=before,
        notes=(
            "a healthy worker is assumed to be as fast as its peers: the median of the same op "
            "over the other data-parallel ranks, with the cost of its own microbatches",
        ),
    )


def mend_optimizer(case: Case) -> Remedy:
    """Make slow optimizers as fast as those of the peers, beside workers whose computes are slow.

    Raises:
        NotApplicableError: no optimizer is slow, or ``replace-worker`` mends it.
    """
    finding = next((f for f in case.diagnosis.findings if f.id == OPTIMIZER), None)
    if finding is None or finding is finding_of(case, "worker"):
        raise NotApplicableError(
            "nothing to do: no optimizer is slow beside slow computes of another worker"
        )
    workers = [(int(dp), int(pp)) for dp, pp in finding.where["workers"]]
    slow = np.flatnonzero(_slow_steps(case, finding))
    part = copy_of(case.measured.durations.of_steps(slow))
    _mend_optimizers(part, workers)
    changed = copy_of(case.measured.durations)
    for variant, block in enumerate(part.blocks):
        changed.block(variant)[:, slow] = block
    noun = "optimizer of worker" if len(workers) == 1 else "optimizers of workers"
    before, after = _before_and_after(case, changed)
    return outcome(
        case,
        OPTIMIZERS,
        f"mend the slow {noun} {name_workers(case.measured.job, workers)} (work of its host in "
        "each optimizer step, its memory), or replace it",
        after,
        {"workers": [list(worker) for worker in workers]},
        findings=(finding.id,),
        before=before,
        notes=("it is assumed to take the median time of its peers' optimizers",),
    )


def _before_and_after(case: Case, changed: Durations) -> tuple[Prediction, Prediction]:
    """The job as it is and with other durations; late ends are carried over where steps overlap."""
    return carried(case, changed) or (case.before, case.predicted(changed))


def _mend_optimizers(durations: Durations, workers: Sequence[Worker]) -> None:
    """Scale the slow optimizers of some workers to their peers', in place."""
    chosen = set(workers)
    repairs = [one.repair for one in slow_optimizers(durations) if (one.dp, one.stage) in chosen]
    scale_transfers(durations, repairs)


def _worker_or_stage(case: Case) -> int | None:
    """The stage that is overfull, or has a slow worker; None unless one replica leaves that open.

    Of the option ``workers`` that stage's worker alone is allowed.
    """
    finding = finding_of(case, "stage-imbalance")
    if case.measured.graph.n_dp > 1 or finding is None or finding.alternative != "worker":
        return None
    stage = int(finding.where["stage"])
    places = case.options.get("workers")
    return stage if places is None or [list(p) for p in places] == [[0, stage]] else None


def _replace_alone(case: Case, stage: int) -> Remedy:
    """Gain of a replaced worker without peers, if its stage has as much work as the others."""
    fit = fit_computes(case.measured.durations)
    own = fit.stage_of_place == stage
    load_s = loads(fit)  # [kind, stage]
    others_s = np.delete(load_s, stage, axis=1).mean(axis=1)
    scale = np.where(own, (others_s / load_s[:, stage])[:, None], 1.0)  # [kind, place]
    changed = copy_of(case.measured.durations)
    for v, variant in enumerate(fit.variants):
        changed.block(v)[variant.ops] *= scale[:, :, None, None, None]
    return outcome(
        case,
        WORKER,
        f"replace worker {name_workers(case.measured.job, [(0, stage)])}, if its stage has as "
        "much work as the others",
        case.predicted(changed),
        {"workers": [[0, stage]], "if_equal_stages": True},
        notes=(
            "with one replica no peer shows the speed of a healthy worker: its computes are "
            "assumed to take the mean of the other stages",
        ),
    )


def _slow_steps(case: Case, finding: Finding | None) -> npt.NDArray[np.bool_]:
    """[step] where the finding's workers are slow; all steps if it does not say it of all workers.

    The steps of a finding on several workers are those of the worst, unless all begin or end to be
    slow at one step. None: workers that the user names, in all steps.
    """
    every = np.ones(len(case.result.steps), dtype=bool)
    if finding is None:
        return every
    steps = finding.evidence.get("steps")
    if not isinstance(steps, list):
        return every
    slow = np.isin(case.result.steps, steps)
    one_change = int(np.diff(slow).sum()) == 1
    return slow if one_change or len(finding.where["workers"]) == 1 else every


def _healthy_since(case: Case) -> str:
    """The end of the slowness that the finding tells, for a sentence; mostly empty."""
    finding = finding_of(case, "worker")
    if case.options.get("workers") is not None or finding is None:
        return ""
    step = finding.evidence.get("healthy_since")
    return "" if step is None else f" (healthy again since step {step:,})"


def links_of(finding: Finding) -> list[tuple[int, int, int]]:
    """(dp, low stage, high stage) of the links that a finding blames."""
    ends = finding.evidence.get("links") or [finding.where["link"]]
    return [(int(a[0]), int(a[1]), int(b[1])) for a, b in ends]


def fix_link(case: Case) -> Remedy:
    """Repair the links of a link finding.

    Raises:
        NotApplicableError: no link is slow, or there is no other link to compare it with.
    """
    links = links_of(needed_finding(case, "link", "slow link"))
    changed = copy_of(case.measured.durations)
    heal_links(changed, links)
    job = case.measured.job
    names = ", ".join(
        f"{job.replica_name(replica).replace(',', '')} stages {low}-{high}"
        for replica, low, high in links[:MAX_NAMED]
    )
    others = f" and {len(links) - MAX_NAMED} more" if len(links) > MAX_NAMED else ""
    return outcome(
        case,
        LINK,
        f"repair the link {names}{others}"
        if len(links) == 1
        else f"repair the links {names}{others}",
        case.predicted(changed),
        {"links": [[[dp, low], [dp, high]] for dp, low, high in links]},
        notes=(
            "a healthy link is assumed to take the median of the same transfer over the other "
            "replicas' links; if all of these are slow, the median of the other links in the "
            "same step",
        ),
    )


def fix_nic(case: Case) -> Remedy:
    """Repair the cause of slow data-parallel groups, or of a member that ends late.

    Raises:
        NotApplicableError: no group is slow and no member late.
    """
    finding = needed_finding(case, "dp-network", "slow data-parallel group")
    durations = case.measured.durations
    causes = group_causes(durations, ideal_durations(durations), case.result.steps)
    changed = copy_of(durations)
    scale_transfers(changed, [scaling for cause in causes for scaling in cause.effect.scaled])
    if "group" not in finding.where:
        return _on_time(case, finding, changed)
    entries: Sequence[dict[str, Any]] = finding.evidence["groups"]
    stages = sorted({int(entry["stage"]) for entry in entries})
    noun = "stage" if len(stages) == 1 else "stages"
    member = finding.evidence.get("in_all")
    return outcome(
        case,
        NIC,
        f"repair the data-parallel network of {noun} {', '.join(map(str, stages))}",
        case.predicted(changed),
        {"groups": [{"stage": entry["stage"], "kind": entry["kind"]} for entry in entries]},
        notes=(
            "the trace cannot show which member's NIC is slow: a collective ends everywhere at "
            "once; test the members pairwise (falcon paper, 4.3)"
            if member is None
            else f"worker {case.measured.job.worker_name(*member)} is in all slow groups: test its "
            "NIC first",
            "a group that is slow in all steps is assumed to become as fast as other stages' "
            "groups; one that is slow in some steps, as fast as in its other steps; the members "
            "keep their jitter",
        ),
    )


def _on_time(case: Case, finding: Finding, changed: Durations) -> Remedy:
    """The remedy that makes late members end with the others."""
    workers = [(int(dp), int(pp)) for dp, pp in finding.where["workers"]]
    return outcome(
        case,
        NIC,
        f"find out why {name_workers(case.measured.job, workers)} end collectives late",
        case.predicted(changed),
        {"workers": [list(worker) for worker in workers], "kinds": finding.evidence["kinds"]},
        notes=(
            "a healthy member is assumed to end with the median member of its group; it keeps "
            "its jitter",
        ),
    )


WORKER = RemedyKind(
    "replace-worker",
    "replace slow workers with healthy machines",
    frozenset({"worker"}),
    replace_worker,
    whole_passes=False,
    repairs=True,
)
LINK = RemedyKind(
    "fix-link",
    "repair slow links between stages",
    frozenset({"link"}),
    fix_link,
    whole_passes=False,
    repairs=True,
)
NIC = RemedyKind(
    "fix-nic",
    "repair slow data-parallel groups",
    frozenset({"dp-network"}),
    fix_nic,
    whole_passes=False,
    repairs=True,
)
OPTIMIZERS = RemedyKind(
    "mend-optimizer",
    "make slow optimizers as fast as their peers', beside slow computes of other workers",
    frozenset({"worker"}),
    mend_optimizer,
    whole_passes=False,
    repairs=True,
)
KINDS = (WORKER, OPTIMIZERS, LINK, NIC)
