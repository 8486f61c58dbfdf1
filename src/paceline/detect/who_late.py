"""Late ranks from a log of collective calls without durations, by the order of arrivals.

A slow rank calls a collective later than its peers, which wait for it. After the call all continue
together, so at the next call the rank is less late. A wrong clock shifts a rank equally at every
call. Lateness is therefore measured by its growth within the step. A rank with constant lateness is
named only if it exceeds any likely clock error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.detect.who import Suspect
from paceline.occurrence import occurrence
from paceline.trace.calls import CallLog

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Lateness below this share of a step is noise of the hosts.
MIN_SHARE = 0.02
#: A late rank arrives last in at least this share of the steps.
MOSTLY_LAST = 0.8
#: Least lateness relative to the latest rank.
NEARLY_AS_LATE = 0.8
#: Clocks synchronised over a network (NTP) rarely differ more.
CLOCKS_APART_S = 0.05


@dataclass(frozen=True)
class _Profile:
    """A rank's lateness, by the place of the call in the step.

    Attributes:
        rank: its number.
        late_s: [place] median over the steps; 0 = equal to the median of its peers.
        last: [place] share of the steps in which it arrived last.
        at_s: [place] median time of the call within the step.
        op: [place] index of the operation.
    """

    rank: int
    late_s: Floats
    last: Floats
    at_s: Floats
    op: Ints


def who_is_late(log: CallLog, step: Ints, step_s: float) -> tuple[Suspect, ...]:
    """Ranks that others wait for, at most one suspect with growing lateness; may be empty.

    Ranks about as late as the latest one are named together. The stages of a replica wait for each
    other, so the slow stage is unknown.

    Args:
        log: calls; durations are not used.
        step: [call] its step; -1 = no counted step.
        step_s: the typical step time.
    """
    profiles = _profiles(log, step)
    grown = {p.rank: _growth(p) for p in profiles}
    most = max(grown.values(), default=0.0)
    if most >= MIN_SHARE * step_s:
        latest = max(profiles, key=lambda p: grown[p.rank])
        ranks = tuple(p.rank for p in profiles if grown[p.rank] >= NEARLY_AS_LATE * most)
        return (_suspect(log, latest, ranks, most, step_s),)
    return tuple(_always_late(p, step_s) for p in profiles if _is_always_late(p, step_s))


def _growth(profile: _Profile) -> float:
    """The rank's delay where it arrives last, beyond that of its most punctual call."""
    at_last = profile.last >= MOSTLY_LAST
    if not at_last.any():
        return 0.0
    late_s = float(profile.late_s[at_last].max())
    return min(late_s, late_s - float(profile.late_s.min()))


def _is_always_late(profile: _Profile, step_s: float) -> bool:
    least_s = float(profile.late_s.min())
    return bool(
        (profile.last >= MOSTLY_LAST).all()
        and least_s > CLOCKS_APART_S
        and least_s > MIN_SHARE * step_s
    )


def _suspect(
    log: CallLog, profile: _Profile, ranks: tuple[int, ...], late_s: float, step_s: float
) -> Suspect:
    place = int(np.argmax(np.where(profile.last >= MOSTLY_LAST, profile.late_s, -np.inf)))
    punctual = int(np.argmin(profile.late_s))
    work_s = profile.at_s[place] - profile.at_s[punctual]
    # If the punctual call is after the late one in the step, the work began in the step before.
    work_s = float(work_s if work_s > late_s else work_s + step_s)
    others_s = max(work_s - late_s, 1e-9)
    return Suspect(
        kind="compute",
        ranks=ranks,
        place=f"rank {ranks[0]}" if len(ranks) == 1 else f"one of ranks {_list(ranks)}",
        factor=work_s / others_s,
        share=late_s / step_s,
        text=(
            f"comes {late_s * 1e3:.3g} ms later to {log.ops[profile.op[place]]} than its peers, "
            f"last in {profile.last[place]:.0%} of the steps; {work_s / others_s:.2f}x as long to "
            "get there (order of arrivals; the log has no durations"
            + (", so it does not show which rank waited for which)" if ranks[1:] else ")")
        ),
    )


def _list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if ranks[8:] else "")


def _always_late(profile: _Profile, step_s: float) -> Suspect:
    late_s = float(profile.late_s.min())
    return Suspect(
        kind="compute",
        ranks=(profile.rank,),
        place=f"rank {profile.rank}",
        factor=step_s / max(step_s - late_s, 1e-9),
        share=late_s / step_s,
        text=(
            f"comes {late_s * 1e3:.3g} ms later than its peers to every call, or its clock is "
            "ahead by as much: check the clock first"
        ),
    )


def _profiles(log: CallLog, step: Ints) -> list[_Profile]:
    """The lateness of each rank in collectives that all members have."""
    codes = log.codes()
    meetings = [
        meeting
        for group in range(len(log.communicators))
        if (meeting := _meetings(log, codes, step, group)) is not None
    ]
    if not meetings:
        return []
    rows, call, of_step = (np.concatenate(columns) for columns in zip(*meetings, strict=True))
    place = _number(codes[rows], _nth(np.stack([log.rank[rows], of_step, codes[rows]])))
    call = _number(call, log.communicator[rows])
    late_s, last = _lateness(log.time_s[rows], call)
    return [
        _profile(log, of_step[mine], rows[mine], place[mine], late_s[mine], last[mine])
        for mine in (np.flatnonzero(log.rank[rows] == rank) for rank in np.unique(log.rank[rows]))
    ]


def _meetings(log: CallLog, codes: Ints, step: Ints, group: int) -> tuple[Ints, Ints, Ints] | None:
    """(row, number of the call, step) of a group's collectives that all its members have.

    The begin of a step is found for each rank separately and may differ by calls. Calls are
    therefore matched by their order in the group, with the steps of its first rank.
    """
    own = np.flatnonzero((log.communicator == group) & collectives(log)[log.op])
    members = [own[log.rank[own] == rank] for rank in np.unique(log.rank[own])]
    if len(members) < 2:
        return None
    first = members[0]
    inside = step[first] >= 0
    if not inside.any():
        return None
    n_a_step = -(-int(inside.sum()) // len(np.unique(step[first][inside])))
    matched = np.full((len(members), len(first)), -1)
    for i, rows in enumerate(members):
        shift = _shift(log.time_s, codes, first, rows, n_a_step)
        at = np.arange(len(first)) + shift
        has = (at >= 0) & (at < len(rows))
        has[has] = codes[rows[at[has]]] == codes[first[has]]
        matched[i, has] = rows[at[has]]
    whole = inside & (matched >= 0).all(axis=0)
    if not whole.any():
        return None
    calls = np.flatnonzero(whole)
    return (
        matched[:, calls].reshape(-1),
        np.tile(calls, len(members)),
        np.tile(step[first[calls]], len(members)),
    )


def collectives(log: CallLog) -> npt.NDArray[np.bool_]:
    """[op] whether all members meet, unlike in a send and recv."""
    return np.array(["send" not in op.lower() and "recv" not in op.lower() for op in log.ops])


def _shift(time_s: Floats, codes: Ints, first: Ints, rows: Ints, n_a_step: int) -> int:
    """Offset in calls of ``rows`` from ``first``, with equal calls nearest in time."""
    middle = len(first) // 2
    guess = int(np.searchsorted(time_s[rows], time_s[first[middle]])) - middle
    best, best_key = guess, (np.inf, np.inf)
    for shift in range(guess - n_a_step - 1, guess + n_a_step + 2):
        low, high = max(0, -shift), min(len(first), len(rows) - shift)
        if high - low < max(1, min(len(first), len(rows)) // 2):
            continue
        ours, theirs = first[low:high], rows[low + shift : high + shift]
        unequal = float((codes[ours] != codes[theirs]).mean())
        apart_s = float(np.median(np.abs(time_s[ours] - time_s[theirs])))
        key = (round(unequal, 1), apart_s)
        if key < best_key:
            best, best_key = shift, key
    return best


def _lateness(time_s: Floats, call: Ints) -> tuple[Floats, Floats]:
    """[row] seconds after the median of the call's other members, and 1.0 for the last member."""
    order = np.lexsort((time_s, call))
    first = np.flatnonzero(np.diff(call[order], prepend=-1))
    count = np.diff(np.append(first, len(order)))
    place = np.arange(len(order)) - np.repeat(first, count)
    n, begin, sorted_s = np.repeat(count, count), np.repeat(first, count), time_s[order]
    # The median of n ascending times without one of them.
    low, high = (n - 2) // 2, (n - 1) // 2
    low_s, high_s = (sorted_s[begin + at + (place <= at)] for at in (low, high))
    late_s, last = np.empty(len(order)), np.empty(len(order))
    late_s[order] = sorted_s - (low_s + high_s) / 2
    last[order] = place == n - 1
    return late_s, last


def _profile(
    log: CallLog, step: Ints, rows: Ints, place: Ints, late_s: Floats, last: Floats
) -> _Profile:
    steps, at = np.unique(step, return_inverse=True)
    begin_s = np.full(len(steps), np.inf)
    np.minimum.at(begin_s, at, log.time_s[rows])
    within_s = log.time_s[rows] - begin_s[at]
    places = [np.flatnonzero(place == number) for number in np.unique(place)]
    return _Profile(
        rank=int(log.rank[rows[0]]),
        late_s=np.array([np.median(late_s[of]) for of in places]),
        last=np.array([last[of].mean() for of in places]),
        at_s=np.array([np.median(within_s[of]) for of in places]),
        op=np.array([log.op[rows[of[0]]] for of in places]),
    )


def _number(*columns: Ints) -> Ints:
    """[row] one number per distinct row."""
    _, numbers = np.unique(np.stack(columns), axis=1, return_inverse=True)
    named: Ints = numbers.reshape(-1).astype(np.int64)
    return named


def _nth(columns: Ints) -> Ints:
    """[row] how many equal rows are before it."""
    label = _number(*columns)
    return occurrence((label,), np.argsort(label, kind="stable"))
