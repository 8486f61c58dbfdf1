"""The door: raw columns in any order -> a validated :class:`Trace` in canonical order."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import NoStepError, TraceError
from paceline.trace.columns import Columns, describe
from paceline.trace.job import Job
from paceline.trace.kinds import OpKind
from paceline.trace.peers import has_peers, merge_peers
from paceline.trace.peers_apart import has_inner, meets_peers, peers_apart, with_groups
from paceline.trace.placing import Extremes, Parts
from paceline.trace.placing import place as place_parts
from paceline.trace.plausible import check_lengths
from paceline.trace.program import late_of, program_of
from paceline.trace.summed import rotation_warnings
from paceline.trace.trace import N_KINDS, Trace, absolute_starts

#: Largest error of a start time, as a share of a typical compute op; coarser files are refused.
COARSE_SHARE = 0.01

#: A resolution of start times that suffices for any op.
FINE_S = 1e-6

#: Number of rows that are sampled to check the unit of durations.
_SAMPLED = 1_000_000

#: Most cells (steps x ranks x stages, from their numbers) per row; more mean a corrupt number.
MAX_CELLS_PER_ROW = 64


#: Field of :class:`Columns` -> its column in a trace file, for messages.
_LABELS = {"dp": "dp_rank", "pp": "stage", "seq": "seq_id", "chunk": "mc", "microbatch": "mb_id"}
_LABELS |= {"start": "start_ts"}

#: Columns of whole numbers.
_WHOLE = (
    "step",
    "dp",
    "pp",
    "rank",
    "seq",
    "chunk",
    "microbatch",
    "part",
    "issued",
    "awaited",
    "group",
    "peer",
)

#: From here on, float64 cannot represent every whole number.
MAX_WHOLE = 2.0**53

#: Largest chunk and microbatch that a trace can hold.
_LARGEST = {"chunk": 2**15 - 1, "microbatch": 2**31 - 1}


def arrange(
    columns: Columns, job: Job | None, where: str = "trace", extremes: Extremes | None = None
) -> Trace:
    """Check the columns and put their rows into canonical order.

    Several ranks recorded for the same (dp, pp), tensor-parallel peers, become one worker. A
    compute op takes their longest duration. A communication op takes their latest start and latest
    end.

    Args:
        columns: the raw columns.
        job: degrees of parallelism; None takes dp, pp and vpp from the data.
        where: the name of the source, for messages.
        extremes: lowest and highest numbers of the whole trace, if the columns are only some of its
            steps. Then ``step_start_s`` is the first start, even for relative starts.

    Raises:
        TraceError: times are empty, NaN, negative, too coarse or impossible, ranks or stages
            contradict the job, or rows are duplicated.
    """
    if len(columns) == 0:
        raise TraceError(f"{where} has no rows; is it the right file?")
    columns = _whole_numbers(columns, where)
    job = None if job is None else replace(job, peers=1)  # the data has the job
    _check_times(columns, where)
    job, warnings = _job_of(extremes or extremes_of(columns), job, where)
    every = max(1, len(columns) // _SAMPLED)
    sample = columns.duration[::every][columns.kind[::every] <= OpKind.BACKWARD_COMPUTE]
    warnings += _unit_doubts(sample)
    trace, place = _place(columns, job, where, warnings, absolute=extremes is not None)
    longest = float((trace.end - trace.start).max())
    warnings += check_lengths(trace, where, longest, place)
    return replace(trace, warnings=tuple(warnings))


def arrange_parts(parts: Parts, job: Job | None, where: str) -> Trace | None:
    """The trace of a table in parts; None if :func:`arrange` must check it.

    It accepts complete tables in order, with finite float64 times. For other tables,
    :func:`arrange` reports the error or corrects it.

    Args:
        parts: the table.
        job: degrees of parallelism; None takes dp, pp and vpp from the data.
        where: the name of the source, for messages.

    Raises:
        TraceError: ranks or stages that contradict the job.
    """
    job = None if job is None else replace(job, peers=1)
    job, warnings = _job_of(parts.extremes, job, where)
    placed = place_parts(parts, job.replicas, job.pp_size)
    if placed is None:
        return None
    shape = (len(placed.steps), job.replicas, job.pp_size, N_KINDS)
    every = max(1, parts.n_rows // _SAMPLED)
    rows = np.arange(0, parts.n_rows, every)
    cell = np.searchsorted(np.cumsum(placed.counts, dtype=np.int64), rows, side="right")
    warnings += _unit_doubts(placed.end[rows[cell % N_KINDS <= OpKind.BACKWARD_COMPUTE]])
    longest, latest = float(placed.end.max()), float(np.abs(placed.start).max())
    if np.spacing(latest) > FINE_S:
        return None
    counts = placed.counts.reshape(shape)
    step_start_s = _relative(placed.start, placed.end, counts)
    trace = Trace(
        job=job,
        steps=placed.steps,
        counts=counts,
        chunk=placed.chunk,
        microbatch=placed.microbatch,
        start=placed.start,
        end=placed.end,
        step_start_s=step_start_s,
        rank=placed.rank.reshape(job.replicas, job.pp_size),
    )
    try:
        strange = bool(check_lengths(trace, where, longest))
    except TraceError:
        strange = True
    # ``arrange`` names the row.
    return None if strange else replace(trace, warnings=tuple(warnings))


def extremes_of(columns: Columns) -> Extremes:
    """The lowest and the highest number of each column of whole numbers."""
    names = [f.name for f in fields(Extremes)]
    values = (getattr(columns, name) for name in names)
    return Extremes(*((int(column.min()), int(column.max())) for column in values))


def _place(
    columns: Columns, job: Job, where: str, warnings: list[str], *, absolute: bool = False
) -> tuple[Trace, npt.NDArray[np.int64] | None]:
    """The trace of any table, and [row] its index in the trace; None if rows were merged."""
    worker, cell, steps = _cells(columns, job, where)
    rank = _ranks(columns, worker, job)
    left_out: dict[int, str] = {}
    merged = _has_peers(columns, rank, worker, cell)
    if merged:
        apart = peers_apart(columns, worker, job, where)
        columns, job, merged = apart.columns, apart.job, bool(apart.reason)
        worker, cell, steps = _cells(columns, job, where)
        rank = _ranks(columns, worker, job)
    if merged:
        columns, left_out, note = merge_peers(columns, worker, cell, job.workers, where)
        warnings.append(f"{note}; {apart.reason}")
        if len(columns) == 0:
            raise NoStepError(f"{where}: no step is whole; {next(iter(left_out.values()))}")
        _, cell, steps = _cells(columns, job, where)
    if has_inner(columns):
        columns = with_groups(columns, job)
        warnings += rotation_warnings(columns, where)
        if not merged and job.peers == 1 and meets_peers(columns):
            warnings.append(
                f"{where}: one rank of each (dp, stage) recorded collectives with its peers: its "
                "waits for them count as transfer, and no single GPU can be named"
            )
    shape = (len(steps), job.replicas, job.pp_size, N_KINDS)
    counts = np.bincount(cell, minlength=int(np.prod(shape))).astype(np.int32)
    place, renumbered = _places(columns, cell, counts, where)
    if renumbered:
        warnings.append(
            f"seq_id does not rise with start_ts in {renumbered} places; renumbered by start_ts"
        )
    start, end = np.empty(len(place), dtype=np.float64), np.empty(len(place), dtype=np.float64)
    start[place], end[place] = columns.start, columns.duration
    step_start_s = _relative(start, end, counts.reshape(shape), absolute=absolute)
    trace = Trace(
        job=job,
        steps=steps,
        counts=counts.reshape(shape),
        chunk=_scatter(columns.chunk, place, np.int16),
        microbatch=_microbatches(columns, place),
        start=start,
        end=end,
        step_start_s=step_start_s,
        rank=rank.reshape(job.replicas, job.pp_size),
        left_out=left_out,
        program=program_of(columns, cell, place, where),
        late=late_of(columns, place, where),
    )
    return trace, None if merged else place


def _has_peers(
    columns: Columns,
    rank: npt.NDArray[np.int64],
    worker: npt.NDArray[np.int32],
    cell: npt.NDArray[np.int32],
) -> bool:
    """Whether several ranks recorded one (dp, pp)."""
    if columns.peer is not None:
        return bool((columns.peer != columns.peer[0]).any())
    return bool((np.take(rank, worker) != columns.rank).any()) and has_peers(columns.rank, cell)


def _whole_numbers(columns: Columns, where: str) -> Columns:
    """Integer columns as integers; whole floats are accepted."""
    changed: dict[str, Any] = {}
    for name in _WHOLE:
        values = getattr(columns, name)
        if values is None:
            continue
        if np.issubdtype(values.dtype, np.integer):
            if values.dtype == np.uint64:  # mixed with signed numbers it would become float
                changed[name] = values.astype(np.int64)
            continue
        if not np.issubdtype(values.dtype, np.floating):
            label = _LABELS.get(name, name)
            raise TraceError(f"{where}: column {label} holds {values.dtype}, not numbers")
        values = values.astype(np.float64)
        bad = ~((np.abs(values) < MAX_WHOLE) & (np.floor(values) == values))
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                f"{where}: column {_LABELS.get(name, name)} has {int(bad.sum())} values that are "
                "no whole number, "
                f"the first in row {row} ({values[row]})"
            )
        changed[name] = values.astype(np.int64)
    return replace(columns, **changed) if changed else columns


def _check_times(columns: Columns, where: str) -> None:
    for name in ("start", "duration"):
        values = getattr(columns, name)
        if not np.issubdtype(values.dtype, np.number) or np.iscomplexobj(values):
            label = _LABELS.get(name, name)
            raise TraceError(f"{where}: column {label} holds {values.dtype}, not seconds")
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                f"{where}: {int(bad.sum())} rows have no finite {name}, the first is row {row} "
                f"({describe(columns, row)}); drop or repair them"
            )
    if columns.duration.min() < 0:
        bad = columns.duration < 0
        row = int(np.argmax(bad))
        raise TraceError(
            f"{where}: {int(bad.sum())} rows have a negative duration, the first is row {row} "
            f"({describe(columns, row)}: {columns.duration[row]:g} s)"
        )
    _check_resolution(columns, where)


def _unit_doubts(computes_s: npt.NDArray[Any]) -> list[str]:
    """A hint if durations of computes do not look like seconds."""
    if not len(computes_s):
        return []
    median = float(np.median(computes_s))
    if 1e-6 <= median <= 100:
        return []
    return [f"a typical compute takes {median:.3g} s; are start_ts and duration in seconds?"]


def _check_resolution(columns: Columns, where: str) -> None:
    """Refuse times with a resolution that is too coarse for their ops."""
    ends = (columns.start.min(), columns.start.max())
    latest = max(ends, key=abs)
    whole = np.issubdtype(columns.start.dtype, np.integer)
    resolution = 1.0 if whole else abs(float(np.spacing(latest)))
    if resolution <= FINE_S:
        return
    compute = columns.kind <= OpKind.BACKWARD_COMPUTE
    typical = columns.duration[compute if compute.any() else columns.duration > 0]
    if len(typical) == 0:
        return
    median = float(np.median(typical))
    if resolution > COARSE_SHARE * median:
        raise TraceError(
            f"{where}: start_ts is {columns.start.dtype} and reaches {float(latest):g} s, where it "
            f"resolves only {resolution:.2g} s; a typical compute op lasts {median:.2g} s. "
            "Write start_ts as float64, or relative to each step's start"
        )


def _job_of(extremes: Extremes, job: Job | None, where: str) -> tuple[Job, list[str]]:
    """The given job, checked against the data, or otherwise the job from the data."""
    for name in ("step", "dp", "pp"):
        lowest = getattr(extremes, name)[0]
        if lowest < 0:
            raise TraceError(f"{where}: {_LABELS.get(name, name)} {lowest} is negative")
    for name, largest in _LARGEST.items():
        for number in getattr(extremes, name):
            if not -1 <= number <= largest:
                raise TraceError(
                    f"{where}: {_LABELS[name]} {number} is not in -1 to {largest}; is it corrupt?"
                )
    n_dp, n_pp = extremes.dp[1] + 1, extremes.pp[1] + 1
    n_chunks = max(extremes.chunk[1] + 1, 1)
    if job is None:
        return Job(dp_size=n_dp, pp_size=n_pp, vpp_size=n_chunks), []
    for key, have, said in (
        ("dp_size", n_dp, job.dp_size),
        ("pp_size", n_pp, job.pp_size),
        ("vpp_size", n_chunks, job.vpp_size),
    ):
        if have != said:
            what = {"dp_size": "dp ranks", "pp_size": "stages", "vpp_size": "chunks"}[key]
            raise TraceError(
                f"{where} contradicts the job: {key} is {said}, the trace has {what} 0 to "
                f"{have - 1}; is it the job file of this trace?"
            )
    warnings = []
    if job.world_size != job.ranks:
        warnings.append(
            f"the job's world_size is {job.world_size}, the product of its degrees is {job.ranks}"
        )
    highest = extremes.rank[1]
    if highest >= job.world_size:
        warnings.append(f"rank {highest} was recorded, but world_size is {job.world_size}")
    return job, warnings


def _step_index(step: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """[row] index of its step, and [step] ascending numbers; dense numbers use a lookup table."""
    low, high = int(step.min()), int(step.max())
    if low == high:
        return np.zeros(len(step), dtype=np.int32), np.array([low], dtype=np.int64)
    if high - low > max(4 * len(step), 1 << 20):
        numbers, index = np.unique(step, return_inverse=True)
        return index, numbers.astype(np.int64)
    present = np.zeros(high - low + 1, dtype=bool)
    offset = step - low if low else step
    present[offset] = True
    table = np.cumsum(present, dtype=np.int32) - np.int32(1)
    return table[offset], (np.flatnonzero(present) + low).astype(np.int64)


def _cells(
    columns: Columns, job: Job, where: str
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """[row] numbers of its worker (dp, pp) and its cell (step, dp, pp, kind); [step] numbers."""
    index, steps = _step_index(columns.step)
    n_cells = len(steps) * job.workers * N_KINDS
    if n_cells > MAX_CELLS_PER_ROW * (len(columns) + N_KINDS) or n_cells >= 2**31:
        raise TraceError(
            f"{where}: {job.dp_size} dp ranks x {job.pp_size} stages in {len(steps)} steps cannot "
            f"be told from {len(columns)} rows; is a dp_rank or stage corrupt?"
        )
    worker = columns.dp.astype(np.int32)
    if job.peers > 1 and columns.peer is not None:
        worker *= job.peers
        worker += columns.peer.astype(np.int32, copy=False)
    worker *= job.pp_size
    worker += columns.pp.astype(np.int32, copy=False)
    cell = index.astype(np.int32)
    cell *= job.workers
    cell += worker
    cell *= N_KINDS
    cell += columns.kind
    return worker, cell, steps


def _ranks(columns: Columns, worker: npt.NDArray[np.int32], job: Job) -> npt.NDArray[np.int64]:
    """[worker] the rank that recorded it; the last one of several."""
    rank = np.full(job.workers, -1, dtype=np.int64)
    last = np.append(np.flatnonzero(worker[1:] != worker[:-1]), len(worker) - 1)  # of each run
    rank[worker[last]] = columns.rank[last]
    return rank


def _places(
    columns: Columns, cell: npt.NDArray[np.int32], counts: npt.NDArray[np.int32], where: str
) -> tuple[npt.NDArray[np.int64], int]:
    """[row] its index in canonical order, and the number of rows whose seq contradicts the starts.

    If seq numbers each cell 0, 1, 2, ..., as the format requires, the index is a sum. Only wrong
    numbering needs a sort.
    """
    first = np.cumsum(counts, dtype=np.int64) - counts
    seq = columns.seq
    place = first[cell]
    place += seq
    dense = bool(seq.min() >= 0) and bool((seq < counts[cell]).all())
    if dense:
        seen = np.zeros(len(cell), dtype=bool)
        seen[place] = True
        dense = bool(seen.all())
    if dense:
        start = np.empty(len(cell), dtype=np.float64)
        start[place] = columns.start
        back = (
            np.flatnonzero(start[1:] < start[:-1]) + 1
        )  # np.diff would allocate another such array
        starts_cell = np.zeros(len(cell) + 1, dtype=bool)
        starts_cell[first] = True
        if starts_cell[back].all():
            return place, 0
    order = np.lexsort((seq, columns.start, cell))
    _check_duplicates(columns, cell, order, where)
    ranked = np.empty(len(cell), dtype=np.int64)
    ranked[order] = np.arange(len(cell))
    # A gap (a missing op) is not a contradiction, but seq that does not ascend with the start is.
    backwards = (np.diff(cell[order]) == 0) & (seq[order][1:] <= seq[order][:-1])
    return ranked, int(backwards.sum())


def _check_duplicates(
    columns: Columns, cell: npt.NDArray[np.int32], order: npt.NDArray[Any], where: str
) -> None:
    same = np.diff(cell[order]) == 0
    for values in (columns.seq[order], columns.start[order]):
        same &= values[1:] == values[:-1]
    if same.any():
        row = int(order[int(np.argmax(same)) + 1])
        raise TraceError(
            f"{where}: {int(same.sum())} rows are there twice, the first is row {row} "
            f"({describe(columns, row)}); was a file appended to itself?"
        )


def _scatter(
    values: npt.NDArray[Any], place: npt.NDArray[np.int64], dtype: type[np.generic]
) -> npt.NDArray[Any]:
    out = np.empty(len(values), dtype=dtype)
    out[place] = values
    return out


def _microbatches(columns: Columns, place: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Microbatches in canonical order; only computes keep the file's number."""
    microbatch = columns.microbatch.astype(np.int32)
    passes = (columns.kind <= OpKind.BACKWARD_COMPUTE) | (columns.kind == OpKind.WEIGHT_COMPUTE)
    microbatch[~passes] = -1
    return _scatter(microbatch, place, np.int32)


def _relative(
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int32],
    *,
    absolute: bool = False,
) -> npt.NDArray[np.float64]:
    """In place, make starts relative to their step's first; in ``end``, turn durations into ends.

    Returns the [step] absolute starts, NaN where unknown; the recorded ones if ``absolute``.
    """
    per_step = counts.sum(axis=(1, 2, 3), dtype=np.int64)
    first = np.cumsum(per_step) - per_step
    base = np.minimum.reduceat(start, first)
    for low, high, zero in zip(first, first + per_step, base, strict=True):
        start[low:high] -= zero
        end[low:high] += start[low:high]
    return base if absolute else absolute_starts(base)
