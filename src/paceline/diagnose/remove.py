"""Remove causes from durations, to simulate the job without them.

The effect of a cause is a factor of the computes, an excess of some computes, or a factor of some
transfers. Removing an effect on computes keeps the total work of each kind, as rebalancing would.
A slow worker is the exception: its extra time is no work, and vanishes with its slowness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.diagnose.fit import Fit
from paceline.graph import Durations
from paceline.graph.computes import KINDS, set_passes, whole_passes

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scaled:
    """Transfers whose times are scaled when their cause is removed.

    They are scaled, not capped at the usual time. Healthy transfers jitter, too. A cap at the
    median would promise more than a repair can give.

    Attributes:
        variant: replica structure.
        ops: op indices, counted from the variant's first.
        dp_index: the replica, counted within its variant; None: all of them.
        factor: factor of the times; broadcasts to [op, step, replica].
    """

    variant: int
    ops: npt.NDArray[np.int64]
    dp_index: int | None
    factor: Array


@dataclass(frozen=True)
class Effect:
    """Effect of a cause on durations.

    Attributes:
        factor: per variant, logarithms that broadcast to [kind, place, microbatch, step, dp].
        excess: per variant, [place, microbatch, step, dp] seconds added to forwards.
        scaled: transfers.
        rebalanced: removing the factor keeps the total work of each kind.
    """

    factor: tuple[Array, ...] | None = None
    excess: tuple[Array, ...] | None = None
    scaled: tuple[Scaled, ...] = ()
    rebalanced: bool = True


def without(durations: Durations, fit: Fit, effects: Sequence[Effect]) -> Durations:
    """The durations without the chosen causes; the same object if none is chosen."""
    if not effects:
        return durations
    changed = Durations(durations.graph, durations.n_steps, durations.values.copy())
    if any(effect.factor is not None or effect.excess is not None for effect in effects):
        for k in range(len(KINDS)):
            _computes_without(changed, fit, effects, k)
    scale_transfers(changed, [scaling for effect in effects for scaling in effect.scaled])
    return changed


def scale_transfers(durations: Durations, scalings: Sequence[Scaled]) -> None:
    """Scale transfers, in place."""
    for scaling in scalings:
        block = durations.block(scaling.variant)
        if scaling.dp_index is None:
            block[scaling.ops] *= scaling.factor
        else:
            block[scaling.ops, :, scaling.dp_index] *= scaling.factor[..., 0]


def _computes_without(changed: Durations, fit: Fit, effects: Sequence[Effect], kind: int) -> None:
    """Change the computes of one kind; rebalanced effects keep the sum of their seconds."""
    tables, slow = [], []
    before = after = 0.0
    passes = whole_passes(changed)
    for v, variant in enumerate(fit.variants):
        table = passes.of(v, variant.ops[kind])  # [place, microbatch, step, dp]
        factors = [(e.factor[v][kind], e.rebalanced) for e in effects if e.factor is not None]
        slowness = sum((factor for factor, rebalanced in factors if not rebalanced), np.zeros(1))
        slow.append(slowness > 0)
        before += float((table * np.exp(-slowness)).sum())
        for effect in effects:
            if effect.excess is not None and kind == 0:
                table -= effect.excess[v]
        for factor, _ in factors:
            table *= np.exp(-factor)
        after += float(table.sum())
        tables.append(table)
    scale = before / after if after > 0 else 1.0
    for v, (variant, table) in enumerate(zip(fit.variants, tables, strict=True)):
        set_passes(changed, v, variant.ops[kind], table * scale, slow=slow[v])
