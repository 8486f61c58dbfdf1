"""Slow workers from a trace: each worker's exact slowdown, by its computes or by its transfers.

A worker that is slow step after step comes before one that loses more in a few steps. For this, the
costliest steps of a worker are its spikes if they hold most of its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.detect.who import Suspect, alike_groups, lower_median, name_ranks, name_steps
from paceline.graph import Durations, Measured
from paceline.trace.kinds import LOCAL_KINDS, OpKind
from paceline.units import percent
from paceline.whatif import Part, Scenario, WhatIf, ideal_durations, simulate_scenarios

Worker = tuple[int, int]  # (dp, pp)
Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

#: A worker that alone slows the job by less is healthy, like a job (WhatIf.HEALTHY_BELOW). So is
#: one with less than this share of the worst worker's effect.
_OF_WORST = 0.25
#: Largest share of the steps that may be a worker's spikes, which hold more than half of its loss.
#: Of fewer steps none is a spike.
_SPIKES, _FEWEST = 0.1, 4
#: Least excess of a worker's S_w before a change, as a share of that since. Then it did not change.
#: A host's share of the time, too.
AS_BEFORE = 0.75
_KINDS = {"compute": LOCAL_KINDS, "communication": frozenset(OpKind) - LOCAL_KINDS}


@dataclass(frozen=True, eq=False)
class _Judged:
    """Steps by which workers are judged.

    Attributes:
        durations: of these steps.
        ideal: [op] seconds.
        ideal_s, job_s: [step] seconds of an ideal step, and of the job's.
        s_w: [pp, dp] S_w.
        lasting: [pp, dp] S_w of the typical step, without variation that passes; None: unknown.
        others_alike: whether other steps had no such variation. These steps are the only peers if
            all workers are slow.
    """

    durations: Durations
    ideal: Array
    ideal_s: Array
    job_s: Array
    s_w: Array
    lasting: Array | None
    others_alike: bool

    def seconds_of(self, scenarios: Sequence[Scenario]) -> Array:
        """[scenario, step] seconds."""
        times: Array = simulate_scenarios(self.durations, self.ideal, scenarios)
        return times

    @property
    def is_slow(self) -> Mask:
        """[pp, dp] whether the worker is a suspect."""
        return _stand_out(self.s_w)


def _stand_out(s_w: Array) -> Mask:
    """[...] whether the S_w of a worker is that of a slow one."""
    bar = max(WhatIf.HEALTHY_BELOW, 1 + _OF_WORST * (float(s_w.max()) - 1))
    is_slow: Mask = s_w >= bar
    return is_slow


def who_slow_before(
    suspects: Sequence[Suspect], measured: Measured, result: WhatIf, before: WhatIf
) -> tuple[Suspect, ...]:
    """The suspects of whom all workers were as slow in steps before, in most of these.

    Args:
        suspects: suspects of the slow steps, from :func:`who_from_trace`.
        measured: the slow steps.
        result: their analysis.
        before: analysis of healthy steps of the same workers.
    """
    if before.by_worker.shape != result.by_worker.shape:
        return ()
    usual = np.median(before.by_worker_by_step, axis=0)  # a spike is no lasting slowness
    since = np.maximum(result.by_worker, np.median(result.by_worker_by_step, axis=0))
    was_slow = (usual >= WhatIf.HEALTHY_BELOW) & (usual - 1 >= AS_BEFORE * (since - 1))
    ranks: set[int] = set()
    for pp, dp in np.argwhere(was_slow):
        ranks.update(ranks_of([(int(dp), int(pp))], measured))
    return tuple(
        suspect
        for suspect in suspects
        if suspect.ranks and not suspect.steps and ranks.issuperset(suspect.ranks)
    )


def is_lasting(suspect: Suspect, measured: Measured, result: WhatIf) -> bool:
    """Whether medians over the steps show a suspect's slowness; True where they are unknown."""
    if result.lasting is None:
        return True
    return any(
        suspect.ranks and set(ranks_of([(int(dp), int(pp))], measured)) <= set(suspect.ranks)
        for pp, dp in np.argwhere(result.lasting.by_worker >= WhatIf.HEALTHY_BELOW)
    )


def who_from_trace(
    measured: Measured, result: WhatIf, before: WhatIf | None = None
) -> tuple[Suspect, ...]:
    """Slow workers of a trace, the costliest first, then workers with spikes; may be empty.

    S_w is the exact slowdown of a step if only worker w is as measured. Further simulations with
    only its computes, or only its transfers, distinguish the two.

    Args:
        measured: the measured trace.
        result: the analysis of it.
        before: analysis of healthy steps before it; None: there are none.
    """
    ideal = ideal_durations(measured.durations)
    times_s = (result.ideal_s, result.simulated_s)
    others_alike = before is not None and bool((before.by_worker < WhatIf.HEALTHY_BELOW).all())
    typical = None if result.lasting is None else result.lasting.by_worker
    whole = _Judged(measured.durations, ideal, *times_s, result.by_worker, typical, others_alike)
    is_spike = _spikes(whole, result.by_worker_by_step)
    calm = np.flatnonzero(~is_spike.any(axis=(1, 2)))
    if len(calm) == len(result.steps) or len(calm) < len(result.steps) / 2:
        return tuple(_suspects(measured, whole, whole.is_slow))
    usual = _of_steps(whole, calm)
    lasting = _suspects(measured, usual, usual.is_slow)
    passing = []
    for rows in np.unique(is_spike.reshape(len(is_spike), -1).T, axis=0):
        members = (is_spike == rows[:, None, None]).all(axis=0) & ~usual.is_slow
        if rows.any() and members.any():
            spikes = _of_steps(whole, np.flatnonzero(rows), usual.ideal, others_alike=True)
            steps = tuple(result.steps[rows].tolist())
            otherwise = float(usual.s_w[members].max())
            passing += [
                _as_spike(suspect, steps, len(result.steps), otherwise)
                for suspect in _suspects(measured, spikes, members)
            ]
    return (*lasting, *passing)


def _spikes(whole: _Judged, by_step: Array) -> Mask:
    """[step, pp, dp] the fewest steps that hold most of a suspect's loss, if they are few."""
    is_spike = np.zeros(by_step.shape, dtype=bool)
    n_steps = len(by_step)
    if n_steps < _FEWEST:
        return is_spike
    lost_s = (by_step - 1) * whole.ideal_s[:, None, None]
    for pp, dp in np.argwhere(whole.is_slow):
        costliest = np.argsort(-lost_s[:, pp, dp], kind="stable")
        held_s = np.cumsum(lost_s[costliest, pp, dp])
        count = int(np.argmax(held_s > held_s[-1] / 2)) + 1
        if count <= max(1, int(_SPIKES * n_steps)):
            is_spike[costliest[:count], pp, dp] = True
    return is_spike


def _of_steps(
    whole: _Judged, rows: Rows, ideal: Array | None = None, *, others_alike: bool | None = None
) -> _Judged:
    """Some of the steps, with an ideal of their own if none is given."""
    durations = whole.durations.of_steps(rows)
    ideal = ideal_durations(durations) if ideal is None else ideal
    n_pp, n_dp = whole.s_w.shape
    only = [Scenario.only(Part.of_workers([(dp, pp)])) for pp, dp in np.ndindex(n_pp, n_dp)]
    scenarios = [Scenario.ideal(), Scenario.measured(), *only]
    ideal_s, job_s, *alone_s = simulate_scenarios(durations, ideal, scenarios)
    s_w = np.array(alone_s).mean(axis=1).reshape(n_pp, n_dp) / ideal_s.mean()
    others_alike = whole.others_alike if others_alike is None else others_alike
    return _Judged(durations, ideal, ideal_s, job_s, s_w, whole.lasting, others_alike)


def _as_spike(suspect: Suspect, steps: tuple[int, ...], of: int, otherwise: float) -> Suspect:
    """A suspect of a few steps only; ``otherwise`` is its S_w in the others."""
    verb = "they make" if len(suspect.ranks) > 1 else "it makes"
    text = (
        f"{verb} {name_steps(steps)} {suspect.factor:.2f}x as long as if all were alike, and the "
        f"{of - len(steps):,} other traced steps {otherwise:.2f}x: a spike, not a lasting fault"
    )
    return replace(suspect, steps=steps, text=text, share=suspect.share * len(steps) / of)


def _suspects(measured: Measured, judged: _Judged, is_slow: Mask) -> list[Suspect]:
    """Suspects of some workers ([pp, dp] ``is_slow``), the costliest first."""
    workers = [(int(dp), int(pp)) for pp, dp in np.argwhere(is_slow)]
    if not workers:
        return []
    slowdown = _by_kind(judged, workers)
    suspects = []
    by_compute = slowdown[:, 0] >= slowdown[:, 1]
    by_transfers = ~by_compute & ~_shared(judged, is_slow, by_compute, slowdown[:, 1])
    if is_slow.all() and by_compute.all() and not judged.others_alike:
        by_compute = _beyond_variation(judged)[is_slow]
    for kind, mask in (("compute", by_compute), ("communication", by_transfers)):
        # Workers at both ends of a link, or behind a NIC, stay together, as the fault is between
        # them.
        alike = alike_groups(np.flatnonzero(mask), slowdown[:, 0])
        groups = alike if kind == "compute" else [np.flatnonzero(mask)]
        suspects += [
            _suspect(kind, [workers[at] for at in group], measured, judged)
            for group in groups
            if len(group)
        ]
    return sorted(suspects, key=lambda suspect: -suspect.share)


def _beyond_variation(judged: _Judged) -> Mask:
    """[pp, dp] whether a worker's computes are slow where those of all vary from step to step."""
    s_w = judged.s_w if judged.lasting is None else judged.lasting
    return _stand_out(s_w - (s_w.min() - 1))


def _by_kind(judged: _Judged, workers: Sequence[Worker]) -> Array:
    """[worker, 2] S_w of only a worker's computes, and of only its transfers."""
    scenarios = [
        Scenario.only(Part(kinds=group, workers=frozenset({worker})))
        for worker in workers
        for group in _KINDS.values()
    ]
    seconds = judged.seconds_of(scenarios).mean(axis=1).reshape(-1, 2)
    of_kind: Array = seconds / judged.ideal_s.mean()
    return of_kind


def _shared(judged: _Judged, is_slow: Mask, by_compute: Mask, by_transfers: Array) -> Mask:
    """[suspect] whether its transfers are no slower than those of workers beside it.

    A collective takes as long for all of its members. So one that is slow tells nothing about a
    member while another one computes longer. If all workers are slow by transfers, their only
    peers are other steps. Were transfers alike in these, it is the network, else variation.
    """
    if not by_compute.any() and is_slow.all():
        return np.full(len(by_transfers), not judged.others_alike)
    others = [(int(dp), int(pp)) for pp, dp in np.argwhere(~is_slow)]
    everyone = [*by_transfers, *(_by_kind(judged, others)[:, 1] if others else [])]
    bar = max(WhatIf.HEALTHY_BELOW - 1, _OF_WORST * (float(judged.s_w.max()) - 1))
    shared: Mask = by_transfers - lower_median(np.array(everyone)) < bar
    return shared


def _suspect(kind: str, workers: Sequence[Worker], measured: Measured, judged: _Judged) -> Suspect:
    s_w = [float(judged.s_w[pp, dp]) for dp, pp in workers]
    ranks = ranks_of(workers, measured)
    where = place_text(workers, measured)
    place = f"{name_ranks(ranks)} ({where})" if ranks else where
    alone_s = judged.seconds_of([Scenario.only(Part.of_workers(workers))]).mean()
    ideal_s, job_s = judged.ideal_s.mean(), judged.job_s.mean()
    factor = float(alone_s / ideal_s)
    s_w_text = f"S_w {min(s_w):.2f} to {max(s_w):.2f}" if len(s_w) > 1 else f"S_w {s_w[0]:.2f}"
    text = (
        f"alone {'they make' if len(workers) > 1 else 'it makes'} a step {factor:.2f}x as long as "
        f"the mean of all ranks would, the whole job {job_s / ideal_s:.2f}x ({s_w_text})"
    )
    if job_s > alone_s > ideal_s:
        verb = "they cause" if len(workers) > 1 else "it causes"
        share = percent(float((alone_s - ideal_s) / (job_s - ideal_s)), 0)
        text = (
            f"alone {verb} {share} of the stragglers' cost ({s_w_text} of S "
            f"{job_s / ideal_s:.2f}; both count from the mean of all ranks, the slow included)"
        )
    if kind == "communication" and len(workers) == judged.s_w.size:  # without a peer
        text = (
            f"transfers that take longer in some steps make a step {factor:.2f}x as long as if all "
            "were alike; in the healthy steps before, they were"
        )
    return Suspect(
        "compute" if kind == "compute" else "communication",
        ranks,
        place,
        factor,
        float((alone_s - ideal_s) / job_s),
        text,
    )


def ranks_of(workers: Sequence[Worker], measured: Measured) -> tuple[int, ...]:
    """Global ranks of workers; tensor-parallel ranks are neighbours, as in Megatron's order."""
    tp = measured.job.tp_size
    ranks: set[int] = set()
    for dp, pp in workers:
        rank = int(measured.rank[dp, pp])
        if rank < 0:
            return ()
        ranks.update(range(rank // tp * tp, rank // tp * tp + tp))
    return tuple(sorted(ranks))


def place_text(workers: Sequence[Worker], measured: Measured) -> str:
    """Workers in words: a stage, a link, or a list."""
    stages = sorted({pp for _, pp in workers})
    replicas = sorted({dp for dp, _ in workers})
    if len(stages) == 1 and len(replicas) == measured.job.replicas > 1:
        return f"all replicas of stage {stages[0]}"
    if len(replicas) == 1:
        plural = "s" * (len(stages) > 1)
        return f"stage{plural} {', '.join(map(str, stages))} of replica {replicas[0]}"
    names = [measured.job.worker_name(*w) for w in workers[:4]]
    n_others = len(workers) - len(names)
    return "; ".join(names) + (f" and {n_others} more" if n_others else "")
