"""Another order of work: overlap gradient reduction, 1F1B, interleaved 1F1B."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose import MIN_OF_STEP
from paceline.errors import RemedyError
from paceline.graph import Measured, StepGraph
from paceline.remedies.outcome import outcome
from paceline.remedies.regraph import (
    n_microbatches,
    overlap_buckets,
    schedule_of,
    with_overlap,
    with_schedule,
)
from paceline.remedies.remedy import Case, Remedy, RemedyKind, predicted_step_s
from paceline.remedies.typical import typical_job
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]

#: Chunks per stage tried where the user names none.
CHUNKS = (2, 3, 4)


def _need_gain(case: Case, after_s: Array, what: str) -> None:
    """RemedyError where the change gains next to nothing."""
    now, after = float(case.result.simulated_s.mean()), float(after_s.mean())
    if after > now * (1 - MIN_OF_STEP):
        raise RemedyError(
            f"{what} gains next to nothing: a step takes {after:.4g} s, now {now:.4g} s"
        )


def overlap_dp(case: Case) -> Remedy:
    """Reduce gradients during the backward pass.

    Options: ``buckets``, in how many parts the gradients of a chunk are reduced while its last
    backward still runs; without it a chunk's gradients are reduced as a whole, behind it.

    Raises:
        RemedyError: they are already, nothing is reduced, or there is nothing to hide it behind.
    """
    graph = case.measured.graph
    buckets = int(case.options.get("buckets", 1))
    if buckets < 1:
        raise RemedyError(f"{buckets} buckets are not possible; give 1 or more")
    if (graph.kind == OpKind.SEPARATE_GRADS_ALL_REDUCE).any():
        raise RemedyError("gradients are reduced during the backward pass already")
    scatter = graph.kind == OpKind.GRADS_REDUCE_SCATTER
    if not scatter.any():
        raise RemedyError("the trace has no reduction of gradients (grads-reduce-scatter)")
    if buckets == 1 and (graph.chunk[scatter].max() < 1 or case.measured.job.vpp_size == 1):
        raise RemedyError(
            "with one chunk per stage its gradients are complete only when the last backward has "
            "ended; give buckets to ask what reducing them in parts would gain"
        )
    durations = with_overlap(case.measured)
    if buckets > 1:
        overlap_buckets(durations, buckets)
    after_s = predicted_step_s(durations)
    _need_gain(case, after_s, "overlapping the reduction of gradients")
    parts = f", in {buckets} buckets" if buckets > 1 else ""
    return outcome(
        case,
        OVERLAP.name,
        f"reduce gradients during the backward pass{parts}",
        after_s,
        {"overlap": True, "buckets": buckets},
        causes=OVERLAP.causes,
        notes=(
            "computes are taken to be as fast beside a reduction as alone; they share memory and, "
            "on NVIDIA GPUs, multiprocessors with it",
        ),
    )


def one_f_one_b(case: Case) -> Remedy:
    """Run 1F1B in the place of GPipe.

    Raises:
        RemedyError: the job does not run GPipe, or 1F1B is not faster.
    """
    _need_pipeline(case)
    if schedule_of(case.measured.graph) != "gpipe":
        raise RemedyError("the job does not run GPipe")
    after_s = predicted_step_s(with_schedule(case.measured, "1f1b", 1))
    _need_gain(case, after_s, "1F1B (which needs far less memory for activations than GPipe)")
    return outcome(
        case,
        ONE_F_ONE_B.name,
        "run 1F1B in the place of GPipe",
        after_s,
        {"schedule": "1f1b"},
        causes=ONE_F_ONE_B.causes,
        notes=(
            "it also keeps the activations of at most as many microbatches as stages",
            TRANSFERS,
        ),
    )


def interleave(case: Case) -> Remedy:
    """Run interleaved 1F1B, each stage in chunks.

    Options: ``chunks``, how many per stage; without it the best of 2 to 4.

    Raises:
        RemedyError: the job or its number of microbatches does not allow it, or it gains nothing.
    """
    _need_pipeline(case)
    graph = case.measured.graph
    counts = {n_microbatches(graph, v) for v in range(graph.n_variants)}
    if bad := sorted(n for n in counts if n % graph.n_pp):
        raise RemedyError(
            f"interleaved 1F1B needs a multiple of the {graph.n_pp} stages as microbatches, "
            f"not {bad[0]}"
        )
    without_noise = typical_job(case.measured)
    table: list[dict[str, Any]] = [
        {"chunks": v, "step_time_s": float(_interleaved_s(without_noise, v)[0])}
        for v in _chunks(case)
    ]
    chunks = int(min(table, key=lambda row: float(row["step_time_s"]))["chunks"])
    after_s = _interleaved_s(case.measured, chunks)
    _need_gain(case, after_s, f"interleaving ({chunks} chunks per stage)")
    return outcome(
        case,
        INTERLEAVE.name,
        f"interleave the pipeline: {chunks} chunks per stage",
        after_s,
        {"schedule": "interleaved", "chunks": chunks, "without_noise": table},
        causes=INTERLEAVE.causes,
        notes=(
            f"a chunk is taken to compute for 1/{chunks} of its stage, embedding and loss part "
            "spread alike; small chunks may use the GPU worse",
            f"transfers between stages become {chunks} times as many, and the activations of more "
            "microbatches are kept",
            TRANSFERS,
        ),
    )


def _interleaved_s(measured: Measured, chunks: int) -> Array:
    return predicted_step_s(with_schedule(measured, "interleaved", chunks))


def _need_pipeline(case: Case) -> None:
    graph: StepGraph = case.measured.graph
    if graph.n_pp == 1:
        raise RemedyError("the job has one stage: there is no pipeline to reorder")
    if case.measured.job.vpp_size > 1:
        raise RemedyError(
            f"the job runs {case.measured.job.vpp_size} chunks per stage already; other schedules "
            "are predicted from one chunk per stage only"
        )


def _chunks(case: Case) -> list[int]:
    """Chunks per stage to try.

    Raises:
        RemedyError: the layers of a stage cannot be cut so.
    """
    asked = case.options.get("chunks")
    options = [int(asked)] if asked is not None else list(CHUNKS)
    if options[0] < 2:
        raise RemedyError(f"{options[0]} chunks per stage are not interleaved; give 2 or more")
    if case.layers is not None:
        options = [v for v in options if all(n >= v for n in case.layers)]
    if not options:
        raise RemedyError(
            f"stages of {list(case.layers or ())} layers cannot be cut into {asked or CHUNKS[0]} "
            "chunks"
        )
    return options


TRANSFERS = "sends and recvs take the median of their kind in the trace"

OVERLAP = RemedyKind(
    "overlap-dp",
    "reduce gradients during the backward pass",
    frozenset(),
    overlap_dp,
)
ONE_F_ONE_B = RemedyKind("1f1b", "run 1F1B in the place of GPipe", frozenset(), one_f_one_b)
INTERLEAVE = RemedyKind(
    "interleave", "run interleaved 1F1B, each stage in chunks", frozenset(), interleave
)
KINDS = (OVERLAP, ONE_F_ONE_B, INTERLEAVE)
