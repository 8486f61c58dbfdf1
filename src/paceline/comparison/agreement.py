"""Properties that two jobs must share before their steps can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import ComparisonError
from paceline.graph import Measured, StepGraph
from paceline.trace import OpKind
from paceline.trace.kinds import PASSES

#: Tokens per step may differ by this share: packing rarely fills every step alike.
TOKENS_AGREE = 0.01

_DEGREES = tuple((name, f"{name}_size") for name in ("dp", "pp", "tp", "dsp", "vpp"))

#: Two graphs are the same if these arrays are equal.
_ARRAYS = (
    *("kind", "pp", "seq", "chunk", "microbatch", "dep_ptr", "dep", "group", "spans_dp", "noop"),
    *("part", "families", "family", "variant_ptr", "replica_variant"),
)


@dataclass(frozen=True)
class Disagreement:
    """A difference that makes a step of one job unlike a step of the other.

    Attributes:
        what: dp, pp, tp, dsp, vpp, microbatches, kinds, schedule, dependencies, layers or tokens.
        before, after: its values, for people.
    """

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Load:
    """A job's work, as far as it is known beside its trace; None = unknown.

    Attributes:
        layers: transformer layers of the model.
        tokens: [step] tokens of each step.
    """

    layers: int | None = None
    tokens: npt.NDArray[np.float64] | None = None


EMPTY_LOAD = Load()


def check_alike(
    before: Measured,
    after: Measured,
    load_before: Load = EMPTY_LOAD,
    load_after: Load = EMPTY_LOAD,
) -> None:
    """Refuse jobs whose steps cannot be compared.

    Raises:
        ComparisonError: the jobs are unlike; the message lists the differences.
    """
    unlike = disagreements(before, after, load_before, load_after)
    if unlike:
        raise ComparisonError(
            "these are unlike jobs: "
            + "; ".join(f"{row.what}: {row.before} before, {row.after} after" for row in unlike),
            tuple((row.what, row.before, row.after) for row in unlike),
        )


def disagreements(
    before: Measured, after: Measured, load_before: Load, load_after: Load
) -> tuple[Disagreement, ...]:
    """The differences, the most general first; empty if the steps can be compared."""
    return (
        *_degrees(before, after),
        *_microbatches(before, after),
        *_kinds(before.graph, after.graph),
        *_structure(before, after),
        *_work(load_before, load_after),
    )


def _degrees(before: Measured, after: Measured) -> list[Disagreement]:
    pairs = [(name, getattr(before.job, f), getattr(after.job, f)) for name, f in _DEGREES]
    return [
        Disagreement(name, str(mine), str(theirs)) for name, mine, theirs in pairs if mine != theirs
    ]


def _microbatches(before: Measured, after: Measured) -> list[Disagreement]:
    counts_before, counts_after = before.microbatches, after.microbatches
    if len(counts_before) == len(counts_after):
        agree = bool((counts_before == counts_after).all())
    else:  # what a replica has is what can agree
        agree = set(counts_before.tolist()) == set(counts_after.tolist())
    if agree:
        return []
    texts = [_per_replica(counts) for counts in (counts_before, counts_after)]
    if texts[0] == texts[1]:
        dp = int(np.argmax(counts_before != counts_after))
        texts = [
            f"{text}; {counts[dp]} on dp {dp}"
            for text, counts in zip(texts, (counts_before, counts_after), strict=True)
        ]
    return [Disagreement("microbatches", texts[0], texts[1])]


def _per_replica(counts: npt.NDArray[np.int64]) -> str:
    """``16 per replica``, or ``12 to 18 per replica, 64 in all``."""
    low, high = int(counts.min()), int(counts.max())
    if low == high:
        return f"{low} per replica"
    return f"{low} to {high} per replica, {int(counts.sum())} in all"


def _kinds(before: StepGraph, after: StepGraph) -> list[Disagreement]:
    kinds_before, kinds_after = (set(np.unique(graph.kind).tolist()) for graph in (before, after))
    if kinds_before == kinds_after:
        return []
    only = [_labels(kinds_before - kinds_after), _labels(kinds_after - kinds_before)]
    texts = [
        ", ".join(
            f"{word} {kinds}" for word, kinds in (("with", mine), ("without", others)) if kinds
        )
        for mine, others in (only, only[::-1])
    ]
    return [Disagreement("kinds", texts[0], texts[1])]


def _labels(kinds: set[int]) -> str:
    return " and ".join(OpKind(kind).label for kind in sorted(kinds))


def _structure(before: Measured, after: Measured) -> list[Disagreement]:
    """Another order of the same operations; only called if the operations agree."""
    graph_before, graph_after = before.graph, after.graph
    if (
        same_operations(graph_before, graph_after)
        or _degrees(before, after)
        or _microbatches(before, after)
    ):
        return []
    for pp in range(graph_before.n_pp):
        first, second = _order(graph_before, pp), _order(graph_after, pp)
        if len(first) == len(second) and not (first == second).all():
            at = int(np.argmax((first != second).any(axis=1)))
            texts = (f"{_words(row[at])} is compute {at} of stage {pp}" for row in (first, second))
            return [Disagreement("schedule", *texts)]
    if _kinds(graph_before, graph_after):
        return []
    texts = (
        f"{g.n_ops:,} operations, {len(g.dep):,} dependencies in a step"
        for g in (graph_before, graph_after)
    )
    return [Disagreement("dependencies", *texts)]


def same_operations(first: StepGraph, second: StepGraph) -> bool:
    """Whether both graphs have the same operations and dependencies, place by place."""
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in _ARRAYS)


def _order(graph: StepGraph, pp: int) -> npt.NDArray[np.int64]:
    """[compute, 3] kind, chunk and microbatch of a stage's computes in the order they run."""
    ops = graph.order[(graph.pp[graph.order] == pp) & (graph.variant[graph.order] == 0)]
    ops = ops[np.isin(graph.kind[ops], PASSES)]
    return np.stack([graph.kind[ops], graph.chunk[ops], graph.microbatch[ops]], axis=1).astype(
        np.int64
    )


def _words(compute: npt.NDArray[np.int64]) -> str:
    kind, chunk, microbatch = compute.tolist()
    of_chunk = f", chunk {chunk}" if chunk > 0 else ""
    return f"{OpKind(kind).label} of microbatch {microbatch}{of_chunk}"


def _work(before: Load, after: Load) -> list[Disagreement]:
    rows = []
    if before.layers is not None and after.layers is not None and before.layers != after.layers:
        rows.append(Disagreement("layers", str(before.layers), str(after.layers)))
    if before.tokens is not None and after.tokens is not None:
        tokens_before, tokens_after = float(before.tokens.mean()), float(after.tokens.mean())
        if abs(tokens_after - tokens_before) > TOKENS_AGREE * max(tokens_before, tokens_after):
            rows.append(
                Disagreement(
                    "tokens", f"{tokens_before:,.0f} per step", f"{tokens_after:,.0f} per step"
                )
            )
    return rows
