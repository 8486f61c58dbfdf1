"""A trace from blocks of whole steps, so that only one block's columns are in memory at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import NoStepError, TraceError
from paceline.trace.columns import Columns
from paceline.trace.door import arrange, extremes_of
from paceline.trace.job import Job
from paceline.trace.trace import Program, Trace

#: Operations whose columns are in memory at once.
BLOCK_ROWS = 1 << 19

#: Row columns of a trace and of its program -> their types, and their values where a block has
#: none.
_ROWS: dict[str, tuple[type[np.generic], int]] = {
    "chunk": (np.int16, -1),
    "microbatch": (np.int32, -1),
    "start": (np.float64, 0),
    "end": (np.float64, 0),
    "late": (np.bool_, 0),
    "part": (np.int32, 0),
    "issued": (np.int32, 0),
    "awaited": (np.int32, -1),
    "group": (np.int32, -1),
}
_PROGRAM = ("part", "issued", "awaited", "group")


class BlocksDifferError(Exception):
    """Blocks have to be arranged together: their peers differ, or one has no whole step."""


def ranges_of_steps(n_ops: npt.NDArray[Any], n_rows: int) -> list[tuple[int, int]]:
    """Ranges of steps with about ``n_rows`` operations each, and at least one step.

    Args:
        n_ops: [step] operations.
        n_rows: operations of a range.

    Returns:
        the position of each range's first step, and of the step behind its last one.
    """
    before = np.cumsum(n_ops, dtype=np.int64) - n_ops
    edges = np.flatnonzero(np.diff(before // n_rows)) + 1
    return list(pairwise([0, *edges.tolist(), len(before)]))


def arrange_blocks(blocks: Iterable[Columns], n_rows: int, job: Job, where: str) -> Trace:
    """The trace of columns that come in blocks, as :func:`arrange` would make it of them all.

    Starts are absolute. Warnings that count rows count those of a block.

    Args:
        blocks: columns of whole steps; the steps ascend from block to block. Empty ones count as
            none.
        n_rows: rows of all blocks together, or more.
        job: degrees of parallelism.
        where: the name of the source, for messages.

    Raises:
        TraceError: as :func:`arrange` raises it.
        BlocksDifferError: not all blocks have the same peers, or one has no whole step.
    """
    rows: dict[str, npt.NDArray[Any]] = {}
    done: list[Trace] = []  # without their rows
    filled = 0
    for block in blocks:
        if not len(block):
            continue
        try:
            trace = arrange(block, job, where, extremes_of(block))
        except NoStepError:
            raise BlocksDifferError from None
        if done and trace.job != done[0].job:
            raise BlocksDifferError
        for name, values in _rows_of(trace).items():
            if name not in rows:
                kind, none = _ROWS[name]
                rows[name] = np.full(n_rows, none, dtype=kind)
            rows[name][filled : filled + len(trace)] = values
        filled += len(trace)
        done.append(_without_rows(trace))
    if not done:
        raise TraceError(f"{where} has no rows; is it the right file?")
    rows = {name: values[:filled] for name, values in rows.items()}
    return replace(
        done[0],
        steps=np.concatenate([trace.steps for trace in done]),
        counts=np.concatenate([trace.counts for trace in done]),
        step_start_s=np.concatenate([trace.step_start_s for trace in done]),
        rank=np.max([trace.rank for trace in done], axis=0),
        chunk=rows["chunk"],
        microbatch=rows["microbatch"],
        start=rows["start"],
        end=rows["end"],
        late=rows.get("late"),
        program=_program(rows),
        warnings=tuple(dict.fromkeys(text for trace in done for text in trace.warnings)),
        left_out={step: why for trace in done for step, why in trace.left_out.items()},
    )


def _rows_of(trace: Trace) -> dict[str, npt.NDArray[Any]]:
    """The columns of a trace that it has."""
    owners = {name: trace.program if name in _PROGRAM else trace for name in _ROWS}
    values = {name: getattr(owner, name, None) for name, owner in owners.items()}
    return {name: column for name, column in values.items() if column is not None}


def _program(rows: dict[str, npt.NDArray[Any]]) -> Program | None:
    if "issued" not in rows:
        return None
    return Program(rows["part"], rows["issued"], rows["awaited"], rows.get("group"))


def _without_rows(trace: Trace) -> Trace:
    """The same without the columns of its rows, which take the memory."""
    none = {name: _ROWS[name][0] for name in ("chunk", "microbatch", "start", "end")}
    empty: dict[str, Any] = {name: np.empty(0, dtype=kind) for name, kind in none.items()}
    return replace(trace, **empty, late=None, program=None)
