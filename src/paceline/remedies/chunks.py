"""Chunks of a stage: the numbers that its layers allow, and each chunk's share of the computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.remedy import Case

Array = npt.NDArray[np.float64]

#: Numbers of chunks per stage to try if the user gives none.
CHUNKS = (2, 3, 4)

#: With up to this many replicas, a stage of several slow workers looks like an overfull stage.
FEW_REPLICAS = 3

#: Stages whose load differs by less than this share have equal loads up to noise.
EVEN_SHARE = 0.01


def chunk_counts(case: Case) -> list[int]:
    """Numbers of chunks to try: the option ``chunks``, or values of ``CHUNKS`` that layers allow.

    Raises:
        RemedyError: the requested number does not divide the stages' layers, or ``layers`` does not
            have one entry per stage.
        NotApplicableError: no number divides the layers.
    """
    requested, layers = case.options.get("chunks"), case.layers
    options = list(CHUNKS) if requested is None else [int(requested)]
    if layers is None:
        return options
    n_pp = case.measured.graph.n_pp
    if len(layers) != n_pp:
        raise RemedyError(f"{len(layers)} numbers of layers ({list(layers)}) for {n_pp} stages")
    allowed = [v for v in options if all(n > 0 and n % v == 0 for n in layers)]
    if not allowed:
        error = NotApplicableError if requested is None else RemedyError
        raise error(
            f"stages of {', '.join(map(str, layers))} layers cannot be cut into "
            f"{' or '.join(map(str, options))} chunks of equal size"
        )
    return allowed


def even_shares(n_stages: int, n_chunks: int) -> Array:
    """[kind, stage, chunk] equal shares of all chunks."""
    return np.full((2, n_stages, n_chunks), 1 / n_chunks)


def shares_by_layers(
    loads: Array, layers: Sequence[int] | None, n_chunks: int, least: Array | float = EVEN_SHARE
) -> Array:
    """[kind, stage, chunk] each chunk's share of its stage's computes.

    The layers of a stage are cut into equal chunks. The first stage's time beyond its layers is the
    embedding, which goes to its first chunk. The last stage's time beyond its layers is the loss,
    which goes to its last chunk. The cost of a layer is the median of the interior stages; with two
    stages, the smaller of both.

    Args:
        loads: [kind, stage] seconds of a microbatch.
        layers: [stage] layers; None: all stages have the same number.
        n_chunks: chunks per stage.
        least: [kind] share of a stage's load below which a difference is noise.
    """
    n_stages = loads.shape[1]
    count = np.ones(n_stages) if layers is None else np.array(layers, dtype=np.float64)
    per_layer = loads / count
    interior = per_layer[:, 1:-1]
    usual = np.median(interior, axis=1) if n_stages > 2 else per_layer.min(axis=1)
    share = even_shares(n_stages, n_chunks)
    for stage, chunk in ((0, 0), (n_stages - 1, n_chunks - 1)):
        extra = loads[:, stage] - usual * count[stage]
        extra = np.where(extra > least * loads[:, stage], extra / loads[:, stage], 0.0)
        share[:, stage] *= (1 - extra)[:, None]
        share[:, stage, chunk] += extra
    return share
