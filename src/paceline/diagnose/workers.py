"""Slow workers: in all steps, or in some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline import robust
from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import Fit
from paceline.diagnose.levels import REPLICAS
from paceline.diagnose.remove import Effect
from paceline.diagnose.stages import loads
from paceline.graph import Durations

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Least slowness of a worker. Healthy GPUs of one model differ by 1 to 2% (Sinha et al., Not All
#: GPUs Are Created Equal, SC 2022).
MIN_SLOW_SHARE = 0.02

#: Least slowness in standard errors. Steps that differ make the error large.
MIN_ERRORS = 4.0

#: Least slowness in spreads of the job's workers. A slowness of ALWAYS_SLOW_SHARE needs no such
#: test.
MIN_SPREADS, ALWAYS_SLOW_SHARE = 4.0, 0.05

#: Fewer steps than ``FEW_STEPS`` do not show the variation of a worker's steps, so it is assumed.
#: Whole steps of the what-if paper's public jobs vary by 0.6 to 2.3%.
FEW_STEPS, USUAL_STEP_SPREAD = 4, 0.025

#: A worker below ALWAYS_SLOW_SHARE is not named if the slowest is this many times as slow.
DWARFING_RATIO = 2.0

#: Largest chance that noise shows a named worker. The slowest worker's chance lowers the finding's
#: confidence instead.
MAX_CHANCE = 0.01

#: Least number of workers for a meaningful spread.
MIN_WORKERS = 8

#: A worker is slow in a single step from STEP_SLOW on. It must also exceed STEP_ERRORS times the
#: standard error of its operations and the spread of all workers' steps.
STEP_SLOW, STEP_ERRORS = 0.05, 6.0

#: With fewer values per step, a worker's single steps are not judged.
MIN_MICROBATCHES = 4

#: If more than this share of the workers are slow in single steps, that is noise.
FEW_WORKERS = 0.1

#: Most step numbers in a message.
MAX_NAMED = 6


def worker_cause(durations: Durations, fit: Fit, steps: npt.NDArray[np.int64]) -> Candidate | None:
    """The slow workers; None if there are none.

    Args:
        durations: as measured.
        fit: of these durations.
        steps: [step] step numbers.
    """
    lasting, _ = slowness(fit)
    slow = lasting >= bars(durations, fit)
    slow &= (lasting >= ALWAYS_SLOW_SHARE) | (lasting >= lasting.max() / DWARFING_RATIO)
    if durations.n_steps >= FEW_STEPS:  # Student's t needs several steps
        by_noise = chances(lasting, fit, durations.n_steps)
        slow &= (lasting == lasting.max()) | (by_noise <= MAX_CHANCE)
    by_step = _step_deviations(durations, fit)  # [stage, step, dp] logarithms, mostly 0
    at_times = (by_step > 0).any(axis=1) & ~slow
    if at_times.sum() > max(1, FEW_WORKERS * at_times.size):
        at_times[:] = False
    by_step *= (slow | at_times)[:, None, :]
    if not slow.any() and not at_times.any():
        return None
    log_factor = np.where(slow[None, :, None, :], fit.worker_total[:, :, None, :], 0.0) + by_step
    effects = tuple(
        log_factor[:, fit.stage_of_place][:, :, None][..., dps]
        for dps in durations.graph.variant_dps
    )
    cost = lasting * slow + np.expm1(by_step).mean(axis=1)
    order = np.argsort(-cost, axis=None)[: int((slow | at_times).sum())]
    cells = [(int(i // slow.shape[1]), int(i % slow.shape[1])) for i in order]
    slow_steps = [_steps_of(cell, slow, by_step) for cell in cells]
    factors = [
        float(
            1 + lasting[cell] if slow[cell] else np.exp(_while_slow(by_step[cell[0], :, cell[1]]))
        )
        for cell in cells
    ]
    workers = [[dp, stage] for stage, dp in cells]
    ambiguous, alternative = _other_reading(fit, workers)
    evidence: dict[str, Any] = {
        "factors": factors,
        "threshold": 1 + MIN_SLOW_SHARE,
        "pattern": pattern_of(workers, slow.shape),
        "steps": "all" if slow_steps[0] is None else steps[slow_steps[0]].tolist(),
        "source": "what-if paper, 5.1",
    }
    worst = durations.graph.worker_name(*workers[0])
    return Candidate(
        "worker",
        _text(worst, len(workers), factors[0], slow_steps[0], steps),
        {"workers": workers},
        evidence,
        Effect(factor=effects, rebalanced=False),
        ambiguous,
        _chance(cells[0], lasting, slow, fit, durations.n_steps),
        alternative,
    )


def slowness(fit: Fit) -> tuple[Array, Array]:
    """[stage, dp] lasting slowness, 0.5 = 1.5x; and the same before levels are judged."""
    of_kinds = loads(fit)
    weight = (of_kinds / of_kinds.sum(axis=0))[:, :, None]
    lasting: Array = (weight * np.expm1(fit.worker_total)).sum(axis=0)
    apparent: Array = (weight * np.expm1(fit.worker + fit.level_seen)).sum(axis=0)
    return lasting, apparent


def bars(durations: Durations, fit: Fit) -> Array:
    """[stage, dp] the least slowness that counts."""
    _, apparent = slowness(fit)
    bar: Array = np.maximum(_bar(apparent, fit), _least_of_few(durations.n_steps))
    return bar


def _bar(apparent: Array, fit: Fit) -> Array:
    """[stage, dp] the same from the errors, given the spread of ``apparent``."""
    bar = np.maximum(MIN_SLOW_SHARE, MIN_ERRORS * fit.worker_error)
    if apparent.size >= MIN_WORKERS:
        of_workers: Array = np.asarray(MIN_SPREADS * robust.spread(apparent))
        bar = np.maximum(bar, np.minimum(of_workers, ALWAYS_SLOW_SHARE))
    return bar


def _least_of_few(n_steps: int) -> float:
    """The least slowness that counts in a trace of few steps, whose variation is assumed."""
    return 0.0 if n_steps >= FEW_STEPS else MIN_ERRORS * USUAL_STEP_SPREAD / math.sqrt(n_steps)


def _steps_of(cell: tuple[int, int], slow: Mask, by_step: Array) -> Mask | None:
    """[step] mask of the steps in which a worker is slow; None: all steps."""
    return None if slow[cell] else by_step[cell[0], :, cell[1]] > 0


def _while_slow(deviations: Array) -> float:
    return float(np.median(deviations[deviations > 0]))


def _text(
    worst: str,
    n_workers: int,
    factor: float,
    slow_steps: Mask | None,
    steps: npt.NDArray[np.int64],
) -> str:
    """The text of the finding; ``worst`` is the name of the slowest worker."""
    steps_in = ""
    if slow_steps is not None:
        numbers = steps[slow_steps].tolist()
        listed = ", ".join(map(str, numbers[:MAX_NAMED]))
        ellipsis = ", ..." if len(numbers) > MAX_NAMED else ""
        steps_in = f" in {len(numbers)} of {len(steps)} steps ({listed}{ellipsis})"
    if n_workers == 1:
        return f"worker {worst} is {factor:.2f}x slow{steps_in}"
    return f"{n_workers} workers are slow, the worst ({worst}) {factor:.2f}x{steps_in}"


def _other_reading(fit: Fit, workers: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Another explanation if most workers are slow, and the cause that it means."""
    stages = sorted({stage for _, stage in workers} & fit.mostly_slow)
    if stages:
        listed = ", ".join(map(str, stages))
        return (
            f"most workers of stage {listed} are slow: the stage may have too much work instead, "
            "and its other workers may be unusually fast; then another split of the layers helps",
            "stage-imbalance",
        )
    if REPLICAS in fit.mostly_slow:
        return (
            "most replicas are slower than a few: the few may have less work instead (shorter "
            "sequences); then distributing the work evenly helps",
            "sequence-length",
        )
    return "", ""


def _chance(worst: tuple[int, int], lasting: Array, slow: Mask, fit: Fit, n_steps: int) -> float:
    """Upper bound on the chance that noise shows a worker as slow as the worst one."""
    if not slow[worst] or n_steps < 2:
        return 0.0  # STEP_ERRORS covers single steps
    return float(chances(lasting, fit, n_steps)[worst])


def chances(lasting: Array, fit: Fit, n_steps: int) -> Array:
    """[stage, dp] upper bounds on the chance that noise shows any worker as slow as this one."""
    if n_steps < 2:
        return np.zeros_like(lasting)
    t = lasting / np.maximum(fit.worker_error, 1e-12)
    return np.minimum(1.0, robust.student_chance(t, n_steps) * lasting.size)


def pattern_of(workers: Sequence[Sequence[int]], shape: tuple[int, ...]) -> str:
    """Arrangement of the slow workers in the job."""
    replicas, stages = {dp for dp, _ in workers}, {pp for _, pp in workers}
    if len(workers) == 1:
        return "one worker"
    if len(replicas) == 1:
        return "all of one dp rank" if len(stages) == shape[0] else "one dp rank"
    return "one stage" if len(stages) == 1 else "several workers"


def _step_deviations(durations: Durations, fit: Fit) -> Array:
    """[stage, step, dp] logarithm of a worker's slowness in single steps; 0 below the thresholds.

    With one stage, the median of a step's microbatches is used.
    """
    graph = durations.graph
    deviations = np.zeros((graph.n_pp, durations.n_steps, graph.n_dp))
    errors = np.zeros((graph.n_pp, graph.n_dp))
    for variant, dps in zip(fit.variants, graph.variant_dps, strict=True):
        for stage in range(graph.n_pp):
            if graph.n_pp == 1:
                flat = variant.micro
                sigma = robust.spread(flat - np.median(flat, axis=0))
            else:
                residual = variant.residual[:, fit.stage_of_place == stage]
                flat = residual.reshape(
                    -1, *residual.shape[-2:]
                )  # [kind x chunk x microbatch, step, dp]
                sigma = float(fit.sigma.max())
            if len(flat) < MIN_MICROBATCHES:
                continue
            middle = np.median(flat, axis=0)
            errors[stage, dps] = robust.MEDIAN_ERROR * sigma / np.sqrt(len(flat))
            deviations[stage][:, dps] = middle
    noise = np.maximum(errors[:, None], robust.spread(deviations))
    usual = MIN_ERRORS * USUAL_STEP_SPREAD if durations.n_steps < FEW_STEPS else STEP_SLOW
    bar = np.maximum(usual, STEP_ERRORS * noise)
    slow: Array = np.where(deviations > bar, deviations, 0.0)
    return slow
