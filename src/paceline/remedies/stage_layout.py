"""Another split of the layers over the stages (what-if paper, 5.2).

If the layers of the stages are unknown, only a bound is given: the gain of perfectly even stages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import fit_computes
from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.layout_search import MIN_GAIN, Bounds, LayoutSearch
from paceline.remedies.outcome import MOVED_MARGIN, copy_of, outcome
from paceline.remedies.places import typical_places
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.remedies.stage_split import Layout

Array = npt.NDArray[np.float64]


def propose(case: Case) -> Remedy:
    """The best contiguous split of the layers over the stages, or a bound on its gain.

    Options: ``min_layers`` (1) per stage and chunk; ``max_layers``, a number or one per stage, to
    limit memory.

    Raises:
        RemedyError: the layers do not match the job, or the bounds leave no split.
        NotApplicableError: there is one stage, no split is faster, or no stage shows the cost of a
            layer.
    """
    if case.measured.graph.n_pp == 1:
        raise NotApplicableError("the job has one stage: there is nothing to split")
    if case.layers is None:
        return _bound(case)
    layers = _layers(case, case.layers)
    graph = case.measured.graph
    bounds = bounds_of(case, len(layers), sum(layers))
    search = LayoutSearch(case.measured.durations, layers, bounds, case.predicted)
    layout, after = search.best(case.before)
    if layout == layers:
        raise NotApplicableError(
            f"the layers {list(layers)} are split in the best way: no allowed split is more than "
            f"{MIN_GAIN:.1%} faster"
        )
    costs = search.costs
    change: dict[str, Any] = {
        "layers": list(layout),
        "layers_now": list(layers),
        "layer_s": np.median(costs.per_layer, axis=1).tolist(),
        "embedding_s": costs.extra[:, 0].tolist(),
        "loss_s": costs.extra[:, -1].tolist(),
        "loads_s": costs.of(np.array(layout)).sum(axis=0).tolist(),
        "loads_now_s": costs.loads.sum(axis=0).tolist(),
    }
    if bounds.n_chunks > 1:
        bound = search.lower_bound()
        change["lower_bound_s"] = bound
        change["gap"] = float(search.noise_free(layout) / bound - 1)
    return outcome(
        case,
        KIND,
        f"split the layers {_layout_text(layout, graph.n_pp)} instead of "
        f"{_layout_text(layers, graph.n_pp)}",
        after,
        change,
        notes=_notes(bounds, change),
        margin=MOVED_MARGIN,
    )


def _bound(case: Case) -> Remedy:
    """Gain of equally loaded stages; replicas and workers keep their speed.

    No split gains more under 1F1B or GPipe, whose step follows the busiest stage.
    """
    fit = fit_computes(case.measured.durations)
    seconds = typical_places(case.measured.durations)  # [kind, place]
    scale = seconds.mean(axis=1, keepdims=True) / seconds
    changed = copy_of(case.measured.durations)
    for v, variant in enumerate(fit.variants):
        changed.block(v)[variant.ops] *= scale[:, :, None, None, None]
    after, now = case.predicted(changed), case.before.mean_s
    if after.mean_s > now * (1 - MIN_GAIN):
        raise NotApplicableError(f"a split with equally loaded stages gains under {MIN_GAIN:.1%}")
    n_pp = case.measured.graph.n_pp
    return outcome(
        case,
        KIND,
        "split the layers so that all stages are equally loaded (a split of whole layers gains "
        "at most this)",
        after,
        {
            "bound": True,
            "loads_now_s": _per_stage(seconds, n_pp).tolist(),
            "load_even_s": float(_per_stage(seconds, n_pp).mean()),
        },
        notes=(
            f"the trace does not have the layers of the stages: --layers with {n_pp} numbers "
            "gives the best split of whole layers and its gain",
        ),
    )


def _per_stage(seconds: Array, n_pp: int) -> Array:
    """[stage] seconds of a microbatch, both kinds and all chunks, from [kind, place]."""
    loads: Array = seconds.sum(axis=0).reshape(n_pp, -1).sum(axis=1)
    return loads


def _layout_text(layout: Layout, n_pp: int) -> str:
    """A layout in words: commas between stages, slashes between chunks."""
    rows = [layout[i : i + n_pp] for i in range(0, len(layout), n_pp)]
    return " / ".join(",".join(map(str, row)) for row in rows)


def _notes(bounds: Bounds, change: dict[str, Any]) -> list[str]:
    notes = [
        "all layers of the model are assumed to be equal; the machines of each stage keep their "
        "speed",
        "the split is chosen for healthy workers; its gain is predicted with the present workers",
        "a stage with more layers needs more memory (1F1B: the first stages most): limit it with "
        "--max-layers",
    ]
    if len(bounds.least) == 2:
        notes.append(
            "with two stages embedding and loss cannot be told apart: the embedding is assumed "
            "to take 0 s"
        )
    if "gap" in change:
        notes.append(
            "the split was found by search; without noise its step is at most "
            f"{change['gap']:.1%} above a lower bound for all splits (all computes of a stage, "
            "fill, drain and tail)"
        )
    return notes


def _layers(case: Case, requested: tuple[int, ...]) -> Layout:
    """[virtual stage] the present layers, checked.

    Raises:
        RemedyError: the number of entries differs from the stages (or stages x chunks).
    """
    n_pp, n_chunks = case.measured.graph.n_pp, case.measured.job.vpp_size
    layers = tuple(int(count) for count in requested)
    if min(layers, default=0) < 0 or sum(layers) == 0:
        raise RemedyError(f"layers {list(layers)} are not valid numbers of layers")
    if len(layers) == n_pp * n_chunks:
        return layers
    if len(layers) != n_pp:
        every = f", or {n_pp * n_chunks}, chunk by chunk" if n_chunks > 1 else ""
        raise RemedyError(
            f"{len(layers)} numbers of layers ({list(layers)}) for {n_pp} stages; give one per "
            f"stage{every}"
        )
    if any(count % n_chunks for count in layers):
        raise RemedyError(
            f"layers {list(layers)} cannot be {n_chunks} equal chunks per stage; give "
            f"{n_pp * n_chunks} numbers: chunk 0 of all stages, then chunk 1"
        )
    return tuple(count // n_chunks for count in layers) * n_chunks


def bounds_of(case: Case, n_virtual: int, total: int) -> Bounds:
    """The user's bounds for ``total`` layers on ``n_virtual`` virtual stages.

    Raises:
        RemedyError: the options are not valid bounds, or leave no split.
    """
    n_pp = case.measured.graph.n_pp
    least = int(case.options.get("min_layers", 1))
    max_layers = case.options.get("max_layers")
    most = np.atleast_1d(np.array(total if max_layers is None else max_layers, dtype=np.int64))
    if least < 0 or most.shape not in ((1,), (n_pp,)):
        raise RemedyError(
            f"min_layers is a number from 0 on, max_layers one number or one for each of the "
            f"{n_pp} stages; not {least} and {max_layers}"
        )
    most = np.broadcast_to(most, n_pp)
    if least * n_virtual > total or most.sum() < total:
        raise RemedyError(
            f"{total} layers do not fit: at least {least} on each of {n_virtual} (stage, chunk), "
            f"at most {most.tolist()} on the stages"
        )
    return Bounds(np.full(n_virtual, least), most, n_pp)


KIND = RemedyKind(
    "stage-layout",
    "split the layers over the stages so that all stages are equally loaded",
    frozenset({"stage-imbalance"}),
    propose,
)
