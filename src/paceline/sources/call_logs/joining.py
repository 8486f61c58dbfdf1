"""Add begins and ends from profiles, or from a recording of the hooks, to the plugin's calls.

Three clocks are involved. The plugin's host times are the wall clock of the rank's host. A
profile's times are the same wall clock as CUPTI and Kineto convert it. The hooks' times start at
that wall clock when the job begins. Afterwards they follow the monotonic clock. The exchange of
clocks converts them to rank 0's clock. So only the calls of a rank show the offset between the
plugin and the other file. The spread of the offset shows whether these are the same calls at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.call_logs.timed_calls import Floats, Ints, TimedCalls
from paceline.sources.kineto.clocks import align
from paceline.sources.kineto.events import Collective, Profile
from paceline.sources.recording.files import RankFile
from paceline.trace import OpKind, Trace

#: Largest spread of a match. A profile or the hooks see a launch about 10 us before or after the
#: plugin; a busy host adds to that. In a wrong match the spread is that of the times within steps.
SPREAD_S: Final = 2e-3
#: Wall clocks of one host differ by less. If they differ by more, only the content of calls counts.
SAME_CLOCK_S: Final = 1.0
#: The second-best match must be worse by this factor; otherwise the match is ambiguous.
_WORSE: Final = 3.0
#: Share of the recording's communication that must have a call of the plugin at its begin.
_MOST: Final = 0.8

#: Families of collectives by the beginnings of NCCL's and PyTorch's names, in this order.
_FAMILIES: Final = (
    *("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"),
    *("gather", "scatter", "send", "recv"),
)
_ELEMENT_BYTES: Final = (1, 2, 4, 8)

#: Flow of a call (send, recv, collective) -> the operations of a recording that it may be.
_KINDS_OF_FLOW: Final = {
    1: (OpKind.FORWARD_SEND, OpKind.BACKWARD_SEND),
    -1: (OpKind.FORWARD_RECV, OpKind.BACKWARD_RECV),
    0: (
        *(OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER, OpKind.LAYERNORM_GRADS_ALL_REDUCE),
        *(OpKind.EMBEDDING_GRADS_ALL_REDUCE, OpKind.SEPARATE_GRADS_ALL_REDUCE),
        *(OpKind.TENSOR_COMM, OpKind.EXPERT_COMM, OpKind.CONTEXT_COMM),
    ),
}


def with_profiles(calls: TimedCalls, profiles: Sequence[Profile]) -> TimedCalls:
    """Begins and ends of the profiles' kernels, on the first profile's clock.

    Collectives are matched by their order in their group, operation and size, for each rank and
    group. Sends and recvs are not: a profile has one kernel for a batch of them.

    Raises:
        TraceError: a profile's rank or collectives are not in the plugin's files, its calls match
            at several places, or clocks of ranks cannot be compared.
    """
    clocks = align(profiles)
    if not clocks.aligned:
        raise TraceError(f"{clocks.note}: waits between ranks cannot be measured")
    start_s, end_s = np.full(len(calls.rank), np.nan), np.full(len(calls.rank), np.nan)
    notes = [clocks.note] if len(profiles) > 1 else []
    for profile in profiles:
        ahead_s = clocks.offset_s[profile.rank]
        offsets = []
        for rows, collectives, offset_s in _matched(calls, profile):
            start_s[rows] = [one.start_s - ahead_s for one in collectives]
            end_s[rows] = [one.end_s - ahead_s for one in collectives]
            offsets.append(offset_s)
        offset_s = float(np.median(offsets))
        if abs(offset_s) > SAME_CLOCK_S:
            notes.append(
                f"rank {profile.rank}: the profile's clock is {offset_s:+,.1f} s off the plugin's; "
                "matched by the order and sizes of calls"
            )
    notes.append(f"{np.isfinite(end_s).sum():,} of {len(end_s):,} calls are in the profiles")
    return calls.with_times(start_s, end_s, *notes)


def _matched(calls: TimedCalls, profile: Profile) -> list[tuple[Ints, Sequence[Collective], float]]:
    """[group of a profile] rows of the plugin, collectives, and plugin's time minus profile's."""
    mine = np.flatnonzero(calls.rank == profile.rank)
    if not len(mine):
        raise TraceError(f"{profile.path}: the plugin's files have no rank {profile.rank}")
    of_group: dict[str, list[Collective]] = defaultdict(list)
    for one in sorted(profile.collectives, key=lambda one: one.launch_s):
        of_group[one.group].append(one)
    sizes = {group.name: len(group.ranks) for group in profile.groups}
    found = []
    for name, collectives in of_group.items():
        candidates = [
            place
            for group in np.unique(calls.group[mine]).tolist()
            if sizes.get(name, int(calls.members[group])) == calls.members[group]
            for place in _places(calls, mine[calls.group[mine] == group], collectives)
        ]
        found.append(_best(candidates, collectives, profile, name))
    if not found:
        raise TraceError(f"{profile.path} has no collectives of NCCL")
    return found


def _places(
    calls: TimedCalls, rows: Ints, collectives: Sequence[Collective]
) -> list[tuple[float, float, Ints]]:
    """(spread, offset, rows) of each place where a communicator's calls match the collectives."""
    rows = rows[np.argsort(calls.host_s[rows], kind="stable")]
    n = len(collectives)
    names = np.array([_family(op) for op in calls.ops])[calls.op[rows]]
    size, members = calls.size[rows], calls.members[calls.group[rows]]
    fits: dict[tuple[str, int], npt.NDArray[np.bool_]] = {}  # content -> [row] whether it matches
    firsts = np.arange(max(0, len(rows) - n + 1))
    for behind, one in enumerate(collectives):
        content = _family(one.name), one.elements
        if content not in fits:
            fits[content] = (names == content[0]) & _fits(size, one.elements, members)
        firsts = firsts[fits[content][firsts + behind]]
    launch_s = np.array([one.launch_s for one in collectives])
    places = []
    for first in firsts.tolist():
        here = rows[first : first + n]
        apart_s = calls.host_s[here] - launch_s
        offset_s = float(np.median(apart_s))
        spread_s = float(np.median(np.abs(apart_s - offset_s)))
        places.append((spread_s, offset_s, here))
    return places


def _fits(size: Ints, elements: int, members: Ints) -> npt.NDArray[np.bool_]:
    """[row] whether its bytes may be ``elements`` elements, of one rank's part or of all."""
    bytes_of = [elements * width for width in _ELEMENT_BYTES]
    fits: npt.NDArray[np.bool_] = np.isin(size, bytes_of) | np.isin(size * members, bytes_of)
    return fits


def _best(
    places: Sequence[tuple[float, float, Ints]],
    collectives: Sequence[Collective],
    profile: Profile,
    name: str,
) -> tuple[Ints, Sequence[Collective], float]:
    where = f"{profile.path}: the {len(collectives):,} collectives of group {name or '(no name)'}"
    if not places:
        raise TraceError(
            f"{where} are nowhere in rank {profile.rank}'s calls of the plugin: give files of one "
            "run, recorded at the same time"
        )
    near = [place for place in places if abs(place[1]) <= SAME_CLOCK_S]
    # If the clocks agree, they select one of several similar steps.
    ordered = sorted(near, key=lambda place: abs(place[1])) if near else sorted(places)[:2]
    spread_s, offset_s, rows = ordered[0]
    if not near and len(ordered) > 1 and ordered[1][0] < _WORSE * spread_s:
        raise TraceError(
            f"{where} match the plugin's calls at several places, and the clocks are "
            f"{offset_s:+,.0f} s apart: synchronise them, or profile more steps"
        )
    if spread_s > SPREAD_S:
        raise TraceError(
            f"{where} differ from the plugin's calls by varying times ({spread_s * 1e3:,.1f} ms): "
            "they are not of one run, or a clock was set meanwhile"
        )
    return rows, collectives, offset_s


def _family(name: str) -> str:
    plain = name.lower().replace("_", "").removeprefix("nccl")
    return next((family for family in _FAMILIES if plain.startswith(family)), plain)


def with_recording(calls: TimedCalls, trace: Trace, files: Sequence[RankFile]) -> TimedCalls:
    """Begins and ends of the recorded operations, on rank 0's clock.

    A call belongs to the operation that was launched just before it. If an operation has several
    calls, their begins and ends are not known, and their times stay unknown.

    Args:
        calls: calls of the plugin.
        trace: the recording's trace.
        files: the recording's files.

    Raises:
        TraceError: recorded operations have no calls at their begin: clocks or runs differ.
    """
    start_s, end_s = np.full(len(calls.rank), np.nan), np.full(len(calls.rank), np.nan)
    base_s = trace.step_start_s[np.searchsorted(trace.steps, trace.step)]
    kind, rank = trace.kind, trace.rank[trace.replica, trace.pp]
    n_shared = 0
    for file in files:
        mine, calls_of_rank = rank == file.rank, calls.rank == file.rank
        if not calls_of_rank.any() or not np.isfinite(base_s[mine]).any():
            continue
        ahead_s = _ahead_s(file, trace.steps)
        seen_s = calls.host_s[calls_of_rank] - ahead_s
        op_s = base_s + trace.start
        mine &= (op_s >= seen_s.min() - SPREAD_S) & (op_s <= seen_s.max())
        n_seen = n_matched = 0
        for flow, kinds in _KINDS_OF_FLOW.items():
            ops = np.flatnonzero(mine & np.isin(kind, [int(one) for one in kinds]))
            rows = np.flatnonzero(calls_of_rank & (calls.flow == flow))
            ops = ops[np.argsort(op_s[ops], kind="stable")]
            begin_s, until_s = op_s[ops], base_s[ops] + trace.end[ops]
            of_op, counts = _launched(begin_s, until_s, calls.host_s[rows] - ahead_s)
            alone = (of_op >= 0) & (counts[of_op] == 1) if len(ops) else of_op >= 0
            start_s[rows[alone]] = begin_s[of_op[alone]]
            end_s[rows[alone]] = until_s[of_op[alone]]
            n_shared += int((counts > 1).sum())
            n_seen, n_matched = n_seen + len(ops), n_matched + int((counts > 0).sum())
        if n_matched < _MOST * n_seen:
            raise TraceError(
                f"only {n_matched:,} of {n_seen:,} communications that rank {file.rank} recorded "
                "have a call of the plugin at their begin: the clock was set between them, or they "
                "are of two runs"
            )
    if not np.isfinite(end_s).any():
        raise TraceError(
            "no recorded operation is a call of the plugin: ranks, runs or clocks differ"
        )
    notes = [f"{np.isfinite(end_s).sum():,} of {len(end_s):,} calls are in the recorded steps"]
    if n_shared:
        notes.append(f"{n_shared:,} recorded operations of several calls are left out")
    return calls.with_times(start_s, end_s, *notes)


def _ahead_s(file: RankFile, steps: Ints) -> float:
    """Lead of the rank's own clock over rank 0's, by the steps that have both times."""
    shared, at, of_times = np.intersect1d(file.steps, file.times[:, 0], return_indices=True)
    wanted = np.isin(shared, steps)
    apart_ns = file.times[of_times[wanted], 1] - file.start_ns[at[wanted]]
    return float(np.median(apart_ns)) * 1e-9 if wanted.any() else 0.0


def _launched(begin_s: Floats, end_s: Floats, host_s: Floats) -> tuple[Ints, Ints]:
    """([call] its operation, -1 = none; [op] its number of calls).

    The hooks note an operation's begin, and then NCCL is called. So a call belongs to an operation
    that began just before the call and still runs: the first such operation without a call. If all
    of them have calls, the call is a further one of the last operation.
    """
    order = np.argsort(host_s, kind="stable")
    first = np.searchsorted(begin_s, host_s - SPREAD_S)
    behind = np.searchsorted(begin_s, host_s, side="right")
    counts = np.zeros(len(begin_s), dtype=np.int64)
    of_op = np.full(len(host_s), -1)
    for call in order.tolist():
        near = [op for op in range(first[call], behind[call]) if host_s[call] <= end_s[op]]
        if near:
            of_op[call] = next((op for op in near if not counts[op]), near[-1])
            counts[of_op[call]] += 1
    return of_op, counts
