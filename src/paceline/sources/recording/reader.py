"""The folder of a recorded run -> a trace, or step times (``paceline.record`` writes it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.blockfile import LATE, PEER_END
from paceline.errors import TraceError
from paceline.occurrence import count_in_runs
from paceline.sources.recording.doubts import doubts
from paceline.sources.recording.files import RankFile, read_files, torn_headers
from paceline.sources.recording.periods import step_periods
from paceline.sources.recording.places import recorded_places
from paceline.sources.step_times import StepTimes
from paceline.trace import Columns, Job, OpKind, Trace, arrange
from paceline.trace.door import extremes_of
from paceline.trace.program import turns_back
from paceline.trace.step_blocks import (
    BLOCK_ROWS,
    BlocksDifferError,
    arrange_blocks,
    ranges_of_steps,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


#: Fields of an operation with its place in its worker's program.
PROGRAM = ("part", "issued", "awaited", "group")

_PAIRS = (
    (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, 1),
    (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV, -1),
)


def read(
    path: Path,
    job: Job | None,
    ignore_kinds: frozenset[str] = frozenset(),
    steps: frozenset[int] | None = None,
) -> Trace:
    """Read the steps that all ranks have profiled, on rank 0's clock.

    If the job was started several times, a step comes from the last start that recorded it.

    Raises:
        TraceError: no rank recorded some worker, no step was recorded by all ranks, or ``arrange``
            refuses the operations.
    """
    return read_from(read_files(path), path, job, ignore_kinds, steps)


def read_from(
    files: Sequence[RankFile],
    path: Path,
    job: Job | None = None,
    ignore_kinds: frozenset[str] = frozenset(),
    steps: frozenset[int] | None = None,
) -> Trace:
    """As :func:`read`, from the files of the folder."""
    starts = _starts(files)
    whole = [start for start in starts if _is_whole(start)]
    missing = _missing_ranks(starts[0], path, fatal=not whole)
    warnings = [*missing, *torn_headers(path), *doubts(files)]
    chosen, left_out = _with_or_without_programs(*_choose(whole, path), path)
    chosen = _of_steps(chosen, steps)
    counts = Counter[str]()
    n_rows = sum(int(np.diff(file.first_op)[index].sum()) for file, index in chosen)
    if not n_rows:
        raise TraceError(f"{path}: the recorded steps hold no operation; name them with op()")
    base_ns = min(int(file.start_ns[index].min()) for file, index in chosen)
    job = job or _job(starts[0][0])
    try:
        blocks = (
            _seconds(_columns(block, ignore_kinds, chosen, counts), base_ns)
            for block in _blocks(chosen, BLOCK_ROWS)
        )
        trace = arrange_blocks(blocks, n_rows, job, str(path))
    except BlocksDifferError:
        counts.clear()
        columns = _seconds(_columns(chosen, ignore_kinds, chosen, counts), base_ns)
        trace = arrange(columns, job, str(path), extremes_of(columns))
    trace = replace(
        trace,
        step_start_s=trace.step_start_s + base_ns / 1e9,
        previous_end_s=_previous_ends(chosen, trace),
        data_wait_s=_data_waits(chosen, trace),
        periods=step_periods(starts),
        warnings=(*trace.warnings, *warnings, *_notes(counts, ignore_kinds)),
        left_out={**left_out, **trace.left_out},
        places=recorded_places(path),
    )
    return trace if steps is None else trace.select_steps(steps)


def steps_of_all_ranks(files: Sequence[RankFile], path: Path) -> tuple[Ints, Ints]:
    """([step] ascending numbers of the steps that :func:`read` takes, [step] their operations).

    Raises:
        TraceError: no rank recorded some worker, or no step was recorded by all ranks.
    """
    starts = _starts(files)
    whole = [start for start in starts if _is_whole(start)]
    _missing_ranks(starts[0], path, fatal=not whole)
    chosen, _ = _with_or_without_programs(*_choose(whole, path), path)
    step = np.concatenate([file.steps[index] for file, index in chosen])
    n_ops = np.concatenate([np.diff(file.first_op)[index] for file, index in chosen])
    numbers, of_step = np.unique(step, return_inverse=True)
    return numbers, np.bincount(of_step, weights=n_ops).astype(np.int64)


def load_recorded_step_times(folder: Path) -> StepTimes:
    """Duration of every step on every rank, profiled or not.

    Raises:
        TraceError: the folder holds no recording, or no step.
    """
    files = [file for start in reversed(_starts(read_files(folder))) for file in start]
    step = np.concatenate([file.times[:, 0] for file in files])
    if not len(step):
        raise TraceError(f"{folder} holds no step yet; is the job past its first one?")
    steps, row = np.unique(step, return_inverse=True)
    rank = np.repeat([file.rank for file in files], [len(file.times) for file in files])
    ranks, column = np.unique(rank, return_inverse=True)
    table = np.full((len(steps), len(ranks)), np.nan)
    table[row, column] = np.concatenate([file.times[:, 2] for file in files]) / 1e9
    warnings = torn_headers(folder)
    repeated = len(step) - len(np.unique(row * len(ranks) + column))
    if repeated:
        warnings.append(f"{repeated} samples repeat a step of their rank; the last counts")
    lost = sum(file.dropped[1] for file in files)
    if lost:
        warnings.append(f"{lost} step times were dropped because the disk was slow")
    return StepTimes(
        steps.astype(np.int64),
        ranks.astype(np.int64),
        table,
        tuple(warnings),
        data_wait_s=_data_waits_of_ranks(files, steps, ranks),
    )


def _data_waits_of_ranks(files: Sequence[RankFile], steps: Ints, ranks: Ints) -> Floats | None:
    """[step, rank] seconds of waits for data in every step; None: not measured."""
    waits_s = np.full((len(steps), len(ranks)), np.nan)
    for file in files:
        numbers = np.array(list(file.data_ns), dtype=np.int64)
        waited_s = np.array(list(file.data_ns.values()), dtype=np.int64) / 1e9
        known = np.isin(numbers, steps)
        row = np.searchsorted(steps, numbers[known])
        waits_s[row, np.searchsorted(ranks, file.rank)] = waited_s[known]
    return None if np.isnan(waits_s).all() else waits_s


def _starts(files: Sequence[RankFile]) -> list[list[RankFile]]:
    """The files by start of the job, the latest first, if they have the degrees of the latest."""
    sessions: dict[str, list[RankFile]] = {}
    for file in files:
        sessions.setdefault(file.session, []).append(file)
    starts = sorted(
        sessions.values(), key=lambda some: max(f.meta["started_ns"] for f in some), reverse=True
    )
    return [some for some in starts if some[0].degrees == starts[0][0].degrees]


def _is_whole(files: Sequence[RankFile]) -> bool:
    """Whether every worker has a rank that recorded it."""
    _, dp, pp = files[0].degrees[:3]
    return len({(file.meta["dp_rank"], file.meta["pp_rank"]) for file in files}) == dp * pp


def _missing_ranks(files: Sequence[RankFile], path: Path, *, fatal: bool) -> list[str]:
    world = files[0].degrees[0]
    seen = {file.rank for file in files}
    missing = [rank for rank in range(world) if rank not in seen]
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    said = f"{path} lacks the files of {len(missing)} of {world} ranks: {shown}"
    if fatal:
        needed = "copy them here; one rank of every (dp, stage) is needed"
        raise TraceError("; ".join([said, *torn_headers(path), needed]))
    if not _is_whole(files):
        return [f"{said} since the job's last start; earlier starts are read"]
    return [f"{said}; their tensor- or context-parallel peers stand for them"]


def _choose(
    starts: Sequence[Sequence[RankFile]], path: Path
) -> tuple[list[tuple[RankFile, Ints]], dict[int, str]]:
    """Each file with the indices of its steps to use; and left-out steps with the reason."""
    taken: set[int] = set()
    chosen: list[tuple[RankFile, Ints]] = []
    left_out: dict[int, str] = {}
    for files in starts:
        sets = [set(file.steps.tolist()) for file in files]
        common = set.intersection(*sets) - taken
        for number in set.union(*sets) - taken - common:
            lacking = next(f.rank for f, s in zip(files, sets, strict=True) if number not in s)
            left_out.setdefault(number, f"rank {lacking} has not recorded it")
        taken |= common
        wanted = np.array(sorted(common), dtype=np.int64)
        for file in files:
            numbers, last = np.unique(file.steps[::-1], return_index=True)
            place = len(file.steps) - 1 - last  # a step recorded twice: the later one
            chosen.append((file, place[np.isin(numbers, wanted)]))
    if not taken:
        number, reason = next(iter(left_out.items()), (0, "none was profiled"))
        raise TraceError(
            f"{path} has no step that all ranks recorded (step {number}: {reason}); wait for the "
            "next one, or see `paceline record status`"
        )
    return chosen, {n: why for n, why in left_out.items() if n not in taken}


def _with_or_without_programs(
    chosen: list[tuple[RankFile, Ints]], left_out: dict[int, str], path: Path
) -> tuple[list[tuple[RankFile, Ints]], dict[int, str]]:
    """The files with programs, if the latest start has them; else the files without programs.

    Raises:
        TraceError: ranks of one start differ.
    """
    used = [(file, index) for file, index in chosen if len(index)]
    of_start: dict[str, list[RankFile]] = {}
    for file, _ in used:
        of_start.setdefault(file.session, []).append(file)
    for files in of_start.values():
        lacking = [file.rank for file in files if not file.has_program]
        if 0 < len(lacking) < len(files):
            having = next(file.rank for file in files if file.has_program)
            raise TraceError(
                f"{path}: rank {having} recorded when it launches and waits, rank {lacking[0]} did "
                "not; record all ranks of a start with one version of Paceline"
            )
    programs = used[0][0].has_program
    for file, index in used:
        if file.has_program != programs:
            why = "its start recorded no programs" if programs else "its start recorded programs"
            left_out |= dict.fromkeys(file.steps[index].tolist(), f"{why}, unlike the latest start")
    return [(file, index) for file, index in used if file.has_program == programs], left_out


def _job(file: RankFile) -> Job:
    world, dp, pp, tp, cp, vpp = file.degrees
    return Job(dp, pp, tp, cp, vpp, world, str(file.meta.get("run", "")))


def _of_steps(
    chosen: list[tuple[RankFile, Ints]], steps: frozenset[int] | None
) -> list[tuple[RankFile, Ints]]:
    """Only the steps asked for; all of them where the recording has none of these."""
    if steps is None:
        return chosen
    wanted = np.array(sorted(step for step in steps if step < 2**63), dtype=np.int64)
    fewer = [(file, index[np.isin(file.steps[index], wanted)]) for file, index in chosen]
    fewer = [(file, index) for file, index in fewer if len(index)]
    return fewer or chosen


def _blocks(
    chosen: Sequence[tuple[RankFile, Ints]], n_rows: int
) -> Iterator[list[tuple[RankFile, Ints]]]:
    """Whole steps, ascending, with about ``n_rows`` operations each, at least one step."""
    step = np.concatenate([file.steps[index] for file, index in chosen])
    n_ops = np.concatenate([np.diff(file.first_op)[index] for file, index in chosen])
    numbers, of_step = np.unique(step, return_inverse=True)
    for first, last in ranges_of_steps(np.bincount(of_step, weights=n_ops), n_rows):
        low, high = numbers[first], numbers[last - 1]
        within = [
            (file, index[(file.steps[index] >= low) & (file.steps[index] <= high)])
            for file, index in chosen
        ]
        yield [(file, index) for file, index in within if len(index)]


def _columns(
    block: Sequence[tuple[RankFile, Ints]],
    ignore_kinds: frozenset[str],
    chosen: Sequence[tuple[RankFile, Ints]],
    counts: Counter[str],
) -> Columns:
    """The operations of some steps in ns (``start`` and ``duration``).

    Args:
        block: the files, each with the indices of its steps.
        ignore_kinds: kinds to leave out.
        chosen: the files of all steps; they decide which columns there are.
        counts: the dropped rows and the sends without an end are added here.
    """
    names = [*PROGRAM] if chosen[0][0].has_program else []
    if any(file.has_sums for file, _ in chosen):
        names.append("transfer")
    parts = [_rows(file, index, ignore_kinds, names) for file, index in block]
    counts["ignored"] += sum(n for _, n in parts)
    rows = {name: np.concatenate([rows.pop(name) for rows, _ in parts]) for name in [*parts[0][0]]}
    if len(rows["step"]):
        _number(rows)
        counts["alone"] += _peer_ends(rows, chosen[0][0].degrees[2])
    else:
        rows["seq"] = rows["step"]
    late = (rows["flags"] & LATE) > 0
    return Columns(
        **{name: rows[name] for name in ("step", "dp", "pp", "rank", "kind", "start", "seq")},
        duration=rows["end"] - rows["start"],
        chunk=rows["chunk"],
        microbatch=rows["microbatch"],
        late=late if late.any() else None,
        **{name: rows[name] for name in names},
    )


def _seconds(columns: Columns, base_ns: int) -> Columns:
    """The columns in seconds; starts are those since ``base_ns``."""
    return replace(
        columns,
        start=(columns.start - base_ns) / 1e9,
        duration=columns.duration / 1e9,
        transfer=None if columns.transfer is None else columns.transfer / 1e9,
    )


def _notes(counts: Mapping[str, int], ignore_kinds: frozenset[str]) -> list[str]:
    notes = []
    if counts["alone"]:
        notes.append(
            f"{counts['alone']} sends have no matching receive, so their end is that of the wait "
            "for them"
        )
    if counts["ignored"]:
        kinds = ", ".join(sorted(ignore_kinds))
        notes.append(f"{counts['ignored']} rows of the kinds {kinds} dropped")
    return notes


def _previous_ends(chosen: Sequence[tuple[RankFile, Ints]], trace: Trace) -> Floats:
    """[step, replica, pp] absolute end of the step before, profiled or not; NaN = unknown."""
    ends = np.full((len(trace.steps), *trace.rank.shape), -np.inf)
    for file, index in chosen:
        known = np.isin(file.steps[index], trace.steps)
        step = np.searchsorted(trace.steps, file.steps[index][known])
        replica, stage = _worker_of(file, trace)
        own = ends[step, replica, stage]
        ends[step, replica, stage] = np.maximum(own, _ends_before(file, index)[known])
    ends[np.isinf(ends)] = np.nan
    return ends


def _data_waits(chosen: Sequence[tuple[RankFile, Ints]], trace: Trace) -> Floats | None:
    """[step, replica, pp] longest wait for data of each worker's ranks; None: not measured."""
    waits = np.full((len(trace.steps), *trace.rank.shape), np.nan)
    for file, index in chosen:
        replica, stage = _worker_of(file, trace)
        for number in file.steps[index].tolist():
            step = int(np.searchsorted(trace.steps, number))
            known = step < len(trace.steps) and trace.steps[step] == number
            if known and number in file.data_ns:
                waited_s = file.data_ns[number] / 1e9
                waits[step, replica, stage] = np.fmax(waits[step, replica, stage], waited_s)
    return None if np.isnan(waits).all() else waits


def _worker_of(file: RankFile, trace: Trace) -> tuple[int, int]:
    """The worker (replica, pp) of a file's rank; peers that are merged are one worker."""
    dp, stage = int(file.meta["dp_rank"]), int(file.meta["pp_rank"])
    own = np.argwhere(trace.rank == file.rank)
    return (dp, stage) if trace.job.peers == 1 or not len(own) else (int(own[0, 0]), stage)


def _ends_before(file: RankFile, index: Ints) -> Floats:
    """[step of ``index``] end of the last operation in the step before, seconds; NaN = unknown.

    A step's operations end some time before the step. The usual time is that of profiled steps.
    """
    count = np.diff(file.first_op)
    ends = np.full(len(index), np.nan)
    if not len(file.times) or not count[index].any():
        return ends
    number, (begin_ns, end_ns) = file.times[:, 0], file.spans_ns.T
    order = np.argsort(begin_ns, kind="stable")
    at = np.searchsorted(begin_ns[order], file.start_ns[index])
    row = order[np.minimum(at, len(order) - 1)]
    timed = (begin_ns[row] == file.start_ns[index]) & (number[row] == file.steps[index])
    before = order[np.maximum(at - 1, 0)]
    follows = timed & (at > 0) & (number[before] == file.steps[index] - 1)
    last_ns = np.zeros(len(count), dtype=np.int64)
    last_ns[count > 0] = np.maximum.reduceat(file.ops["end_ns"], file.first_op[:-1][count > 0])
    ended = timed & (count[index] > 0)
    if follows.any() and ended.any():
        rest_ns = end_ns[row] - file.start_ns[index] - last_ns[index]
        ends[follows] = (end_ns[before][follows] - np.median(rest_ns[ended])) / 1e9
    return ends


def _rows(
    file: RankFile, index: Ints, ignore_kinds: frozenset[str], names: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """One file's operations in some of its steps, and the number of ignored ones."""
    count = np.diff(file.first_op)[index]
    begin = np.cumsum(count) - count
    ops = file.ops[np.arange(count.sum()) + np.repeat(file.first_op[index] - begin, count)]
    zero = np.repeat(file.start_ns[index], count)
    kind = _kinds(file, ops["kind"], ignore_kinds)
    keep = kind >= 0
    size = int(keep.sum())
    of_rank = {
        name: np.full(size, file.meta[field], dtype=np.int32)
        for name, field in (("rank", "rank"), ("dp", "dp_rank"), ("pp", "pp_rank"))
    }
    of_none = np.full(size, -1, dtype=np.int64)  # a file without sums
    return {
        **of_rank,
        "step": np.repeat(file.steps[index], count)[keep],
        "kind": kind[keep],
        "flags": ops["flags"][keep],
        "chunk": ops["chunk"][keep],
        "microbatch": ops["microbatch"][keep],
        "start": (zero + ops["start_ns"])[keep],
        "end": (zero + ops["end_ns"])[keep],
        **{name: ops[name][keep] if name in ops.dtype.fields else of_none for name in names},
    }, int(len(keep) - size)


def _kinds(
    file: RankFile, codes: npt.NDArray[np.uint8], ignore_kinds: frozenset[str]
) -> npt.NDArray[np.int8]:
    """[op] kinds, -1 where they are ignored; only those that occur are looked at."""
    labels = file.meta["kinds"]
    table = np.full(256, -1, dtype=np.int8)
    for code in np.unique(codes).tolist():
        label = labels[code] if code < len(labels) else f"number {code}"
        if label in ignore_kinds:
            continue
        try:
            table[code] = OpKind.from_label(label)
        except KeyError:
            raise TraceError(
                f"{file.path} has operations of the unknown kind {label!r}; drop them with "
                f"--ignore-kinds {label!r}"
            ) from None
    kinds: npt.NDArray[np.int8] = table[codes]
    return kinds


def _number(rows: dict[str, npt.NDArray[Any]]) -> None:
    """Sort the rows by rank, step, kind, chunk and start; add ``seq`` and ``seq_of_chunk``."""
    order = np.lexsort([rows[n] for n in ("start", "chunk", "kind", "step", "rank")])
    for name, values in rows.items():
        rows[name] = values[order]
    rows["seq_of_chunk"] = count_in_runs([rows[n] for n in ("rank", "step", "kind", "chunk")])
    order = np.lexsort([rows[n] for n in ("start", "kind", "step", "rank")])
    seq = np.empty(len(order), dtype=np.int64)
    seq[order] = count_in_runs([rows[n][order] for n in ("rank", "step", "kind")])
    rows["seq"] = seq


def _peer_ends(rows: dict[str, npt.NDArray[Any]], n_pp: int) -> int:
    """Give sends without an end of their own the end of the peer's receive, in place.

    Returns the number of sends without a matching receive.
    """
    if not (rows["flags"] & PEER_END).any():
        return 0
    numbers = {name: np.unique(rows[name], return_inverse=True)[1] for name in ("step", "rank")}
    peer = _peer_numbers(rows)[numbers["rank"]]
    along = rows["pp"]
    if turns_back(rows["kind"], rows["pp"], rows["chunk"], n_pp):
        along = np.where(rows["chunk"] % 2, n_pp - 1 - rows["pp"], rows["pp"])
    place = rows["chunk"].astype(np.int64) * n_pp + along
    key = numbers["step"].astype(np.int64)
    for values in (rows["dp"], peer, rows["seq_of_chunk"], place + 1):
        key = key * (int(values.max()) + 3) + values
    alone = 0
    for send, recv, onwards in _PAIRS:
        recvs = np.flatnonzero(rows["kind"] == recv)
        recvs = recvs[np.argsort(key[recvs])]
        sends = np.flatnonzero((rows["kind"] == send) & ((rows["flags"] & PEER_END) > 0))
        at = np.searchsorted(key[recvs], key[sends] + onwards)
        at_known = np.minimum(at, max(len(recvs) - 1, 0))
        met = (
            (key[recvs][at_known] == key[sends] + onwards)
            if len(recvs)
            else np.zeros(len(sends), dtype=bool)
        )
        ends = rows["end"][recvs[at_known[met]]]
        rows["end"][sends[met]] = np.maximum(ends, rows["start"][sends[met]])
        bound = rows["flags"][recvs[at_known[met]]] & LATE
        rows["flags"][sends[met]] = rows["flags"][sends[met]] & ~np.uint8(LATE) | bound
        alone += int((~met).sum())
    return alone


def _peer_numbers(rows: dict[str, npt.NDArray[Any]]) -> Ints:
    """[rank, ascending] its number among the ranks of its (dp, stage)."""
    ranks, first = np.unique(rows["rank"], return_index=True)
    worker = rows["dp"][first].astype(np.int64) * (int(rows["pp"].max()) + 1) + rows["pp"][first]
    order = np.lexsort([ranks, worker])
    peer = np.empty(len(ranks), dtype=np.int64)
    peer[order] = count_in_runs([worker[order]])
    return peer
