"""Another order of work: overlap gradient reduction, 1F1B, interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.chunks import (
    EVEN_SHARE,
    FEW_REPLICAS,
    chunk_counts,
    even_shares,
    shares_by_layers,
)
from paceline.remedies.outcome import MAX_OPEN_GAP, finding_of, need_gain, outcome
from paceline.remedies.parameter_ops import stay_late
from paceline.remedies.places import least_difference, typical_places
from paceline.remedies.regraph import (
    n_microbatches,
    overlap_buckets,
    schedule_of,
    with_overlap,
)
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.remedies.reschedule import one_chunk_shares, with_schedule
from paceline.remedies.typical import of_steps, spread_steps, times_of_steps
from paceline.remedies.variation import variation_of
from paceline.trace import OpKind
from paceline.units import seconds

Array = npt.NDArray[np.float64]

#: Numbers of chunks are compared on evenly spread steps: COMPARED_VALUES durations in total, but at
#: least COMPARED_STEPS steps. Only the best is simulated on all steps.
COMPARED_VALUES, COMPARED_STEPS = 1 << 19, 2

#: 275 jobs were run again in chunks (benchmarks/truth.py). For 95% of them the gain lay within 1.7
#: points of the predicted one.
MARGIN = 0.017


def overlap_dp(case: Case) -> Remedy:
    """Reduce gradients during the backward pass.

    Options: ``buckets``, the number of parts in which a chunk's gradients are reduced during its
    last backward. The default is one reduction after that backward.

    Raises:
        RemedyError: the number of buckets is not positive.
        NotApplicableError: the job does so already, it reduces nothing, or nothing could hide the
            reduction.
    """
    graph = case.measured.graph
    buckets = int(case.options.get("buckets", 1))
    if buckets < 1:
        raise RemedyError(f"{buckets} buckets are not possible; give 1 or more")
    if (graph.kind == OpKind.SEPARATE_GRADS_ALL_REDUCE).any():
        raise NotApplicableError("gradients are reduced during the backward pass already")
    scatter = graph.kind == OpKind.GRADS_REDUCE_SCATTER
    if not scatter.any():
        raise NotApplicableError("the trace has no reduction of gradients (grads-reduce-scatter)")
    if buckets == 1 and (graph.chunk[scatter].max() < 1 or case.measured.job.vpp_size == 1):
        raise NotApplicableError(
            "with one chunk per stage its gradients are complete only when the last backward has "
            "ended; give --buckets to predict the gain of reducing them in parts"
        )
    new = with_overlap(case.measured, case.delays)
    if buckets > 1:
        overlap_buckets(new.durations, buckets)
    after = case.predicted(new.durations, new.delays)
    need_gain(case, after, "overlapping the reduction of gradients")
    bucket_text = f", in {buckets} buckets" if buckets > 1 else ""
    return outcome(
        case,
        OVERLAP,
        f"reduce gradients during the backward pass{bucket_text}",
        after,
        {"overlap": True, "buckets": buckets},
        notes=(
            "computes are assumed to be as fast beside a reduction as alone; they share memory "
            "and, on NVIDIA GPUs, multiprocessors with it",
        ),
    )


def one_f_one_b(case: Case) -> Remedy:
    """Run 1F1B in place of GPipe.

    Raises:
        NotApplicableError: the job does not run GPipe, or 1F1B is not faster.
    """
    _need_pipeline(case)
    graph = case.measured.graph
    if schedule_of(graph) != "gpipe":
        raise NotApplicableError("the job does not run GPipe")
    new = with_schedule(case.measured, "1f1b", one_chunk_shares(graph.n_pp), case.delays)
    after = case.predicted(new.durations, new.delays)
    need_gain(case, after, "1F1B (which needs far less memory for activations than GPipe)")
    return outcome(
        case,
        ONE_F_ONE_B,
        "run 1F1B in the place of GPipe",
        after,
        {"schedule": "1f1b"},
        notes=("it also keeps the activations of fewer microbatches: at most as many as stages",),
    )


def interleave(case: Case) -> Remedy:
    """Run interleaved 1F1B, each stage in chunks.

    Options: ``chunks``, the number per stage; the default is the best of 2 to 4 that layers allow.

    Raises:
        RemedyError: the requested number of chunks is not possible.
        NotApplicableError: the job, its layers or its microbatches do not allow it, it gains
            nothing, or the trace leaves its effect open.
    """
    requested = case.options.get("chunks")
    if requested is not None and int(requested) < 2:
        raise RemedyError(f"{requested} chunks per stage are not possible; give 2 or more")
    _need_pipeline(case)
    graph = case.measured.graph
    counts = {n_microbatches(graph, v) for v in range(graph.n_variants)}
    if bad := sorted(n for n in counts if n % graph.n_pp):
        raise NotApplicableError(
            f"interleaved 1F1B needs a multiple of the {graph.n_pp} stages as microbatches, "
            f"not {bad[0]}"
        )
    trial = _Trial(case)
    table = trial.compare(chunk_counts(case))
    chunks = int(min(table, key=lambda row: float(row["step_time_s"]))["chunks"])
    share = trial.share(chunks)
    after = trial.predicted(share)
    need_gain(case, after, f"interleaving ({chunks} chunks per stage)")
    even_reading = _even_reading(trial, share, after)
    short_reading = _short_reading(trial, share, after)
    return outcome(
        case,
        INTERLEAVE,
        f"interleave the pipeline: {chunks} chunks per stage",
        after,
        {"schedule": "interleaved", "chunks": chunks, "compared": table},
        notes=tuple(_interleave_notes(case, chunks, even_reading is not None)),
        otherwise=[reading for reading in (even_reading, short_reading) if reading is not None],
        margin=MARGIN,
    )


class _Trial:
    """Tries numbers of chunks."""

    def __init__(self, case: Case) -> None:
        self.case, self.measured, self.delays = case, case.measured, case.delays
        self.loads = typical_places(case.measured.durations)  # of one chunk per stage
        self.least = np.maximum(EVEN_SHARE, least_difference(case.measured.durations))
        uneven = finding_of(case, "sequence-length") is not None
        self.variation = variation_of(case.measured.durations, by_microbatch=uneven)
        group = finding_of(case, "dp-network")
        self.late = group.evidence.get("members", ()) if group else ()

    def share(self, chunks: int) -> Array:
        """[kind, stage, chunk] share of a stage's computes in each chunk."""
        return shares_by_layers(self.loads, self.case.layers, chunks, self.least)

    def predicted(self, share: Array, *, late: bool = True) -> Prediction:
        """The job in chunks; with ``late``, late members end the collectives of each chunk late."""
        case = self.case
        new = with_schedule(self.measured, "interleaved", share, self.delays, self.variation)
        if late:
            stay_late(new.durations, self.measured.durations, self.late)
        return case.predicted(new.durations, new.delays)

    def compare(self, options: list[int]) -> list[dict[str, Any]]:
        """Mean step time with each number of chunks, over some steps."""
        trial = copy(self)
        durations = self.measured.durations
        most = COMPARED_VALUES * durations.n_steps // durations.values.size
        sample = spread_steps(durations.n_steps, max(COMPARED_STEPS, most))
        trial.measured = of_steps(self.measured, sample)
        trial.delays = None if self.delays is None else times_of_steps(self.delays, sample)
        trial.variation = self.variation.steps(sample)
        return [
            {"chunks": chunks, "step_time_s": trial.predicted(self.share(chunks)).mean_s}
            for chunks in options
        ]


def _short_reading(trial: _Trial, share: Array, after: Prediction) -> Prediction | None:
    """The prediction if late members are less late in smaller collectives; None without them.

    Raises:
        NotApplicableError: the two predictions differ by too much.
    """
    if not trial.late:
        return None
    otherwise = trial.predicted(share, late=False)
    if abs(otherwise.mean_s / after.mean_s - 1) > MAX_OPEN_GAP:
        raise NotApplicableError(
            f"the trace leaves open what interleaving does: a step takes {after.mean_s:.4g} s if "
            f"late workers are as late in each chunk's collectives as now, {otherwise.mean_s:.4g} "
            "s if they are less late in smaller collectives; repair these workers first"
        )
    return otherwise


def _even_reading(trial: _Trial, share: Array, after: Prediction) -> Prediction | None:
    """The prediction if all chunks of a stage compute equally long; None if that is ruled out.

    It is ruled out if the layers are known and enough replicas tell slow machines from an overfull
    stage.

    Raises:
        NotApplicableError: the two predictions differ by too much.
    """
    case = trial.case
    graph = case.measured.graph
    even = even_shares(graph.n_pp, share.shape[2])
    if (share == even).all() or (graph.n_dp > FEW_REPLICAS and case.layers is not None):
        return None
    otherwise = trial.predicted(even)
    if abs(otherwise.mean_s / after.mean_s - 1) > MAX_OPEN_GAP:
        hint = (
            "with so few replicas, slow machines look the same"
            if case.layers is not None
            else "give --layers to rule that out"
        )
        raise NotApplicableError(
            f"the trace leaves open what interleaving does: a step takes {seconds(after.mean_s)} "
            "if the extra time of the first or last stage is the embedding or the loss layer, "
            f"{seconds(otherwise.mean_s)} if all layers of the stage are slower; {hint}"
        )
    return otherwise


def _interleave_notes(case: Case, chunks: int, is_open: bool) -> Iterator[str]:
    if case.layers is None:
        yield (
            "the layers of the stages are unknown: all stages are assumed to have the same "
            f"number, a multiple of {chunks}; --layers checks that"
        )
    yield (
        f"a chunk is assumed to take 1/{chunks} of its stage's layers, with the embedding in the "
        "first chunk and the loss in the last; small chunks may use the GPU less efficiently"
    )
    if is_open:
        yield "the interval includes the gain if all chunks of a stage compute equally long"
    yield (
        f"there are {chunks} times as many transfers between stages, each as long as now on the "
        "same link, and the activations of more microbatches are kept"
    )
    if case.measured.graph.n_pp > 2:
        yield (
            "the link from the last stage to the first, which the job does not use now, is "
            "assumed to be as fast as the median link"
        )


def _need_pipeline(case: Case) -> None:
    if case.measured.graph.n_pp == 1:
        raise NotApplicableError("the job has one stage: there is no pipeline to reorder")
    if case.measured.job.vpp_size > 1:
        raise NotApplicableError(
            f"the job runs {case.measured.job.vpp_size} chunks per stage already; other schedules "
            "are predicted from one chunk per stage only"
        )


OVERLAP = RemedyKind(
    "overlap-dp",
    "reduce gradients during the backward pass",
    frozenset(),
    overlap_dp,
    architecture=True,
    rebuilds=True,
)
ONE_F_ONE_B = RemedyKind(
    "1f1b",
    "run 1F1B in the place of GPipe",
    frozenset(),
    one_f_one_b,
    architecture=True,
    rebuilds=True,
)
INTERLEAVE = RemedyKind(
    "interleave",
    "run interleaved 1F1B, each stage in chunks",
    frozenset(),
    interleave,
    architecture=True,
    rebuilds=True,
)
KINDS = (OVERLAP, ONE_F_ONE_B, INTERLEAVE)
