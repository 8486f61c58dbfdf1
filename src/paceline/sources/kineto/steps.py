"""The steps in a rank's profile."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from paceline.errors import TraceError
from paceline.sources.kineto.events import Profile, Span

#: Longest cycle of communication that is searched for.
MAX_PERIOD = 20_000

#: Way to find the steps -> its certainty.
CERTAINTY = {"ProfilerStep ranges": 1.0, "Optimizer.step ranges": 0.9, "period": 0.7}


def find_steps(profile: Profile) -> tuple[tuple[Span, ...], str]:
    """The whole steps, by start, and the way they were found (a key of ``CERTAINTY``).

    Raises:
        TraceError: no way finds steps.
    """
    if profile.steps:
        return profile.steps, "ProfilerStep ranges"
    steps = _by_optimizer(profile)
    if len(steps):
        return steps, "Optimizer.step ranges"
    return _by_period(profile), "period"


def _by_optimizer(profile: Profile) -> tuple[Span, ...]:
    """A step goes from one update to the next; several updates without a backward are one."""
    launched = profile.work.launch_s[profile.work.backward]
    ends: list[float] = []
    for update in profile.optimizer:
        before = np.searchsorted(launched, [ends[-1] if ends else -np.inf, update.start_s])
        if ends and before[0] == before[1]:
            ends[-1] = max(ends[-1], update.end_s)
        else:
            ends.append(update.end_s)
    return tuple(Span(low, high, n) for n, (low, high) in enumerate(pairwise(ends)))


def _by_period(profile: Profile) -> tuple[Span, ...]:
    """Steps are cycles of the rank's communication; a step begins after the collectives.

    Sends and recvs follow each other within a step, and collectives of gradients and parameters end
    it. So a step begins at the longest stretch without collectives.
    """
    tokens = sorted(
        [
            (item.launch_s, ("send" if item.sends else "recv", item.peer, 0))
            for item in profile.transfers
        ]
        + [(item.launch_s, (item.name, item.group, item.elements)) for item in profile.collectives],
        key=lambda token: token[0],
    )
    names = {name: code for code, name in enumerate(dict.fromkeys(name for _, name in tokens))}
    codes = np.array([names[name] for _, name in tokens], dtype=np.int64)
    period = next(
        (
            p
            for p in range(2, min(len(codes) // 2, MAX_PERIOD) + 1)
            if (codes[p:] == codes[:-p]).all()
        ),
        0,
    )
    transfer = np.array([name[0] in ("send", "recv") for _, name in tokens], dtype=bool)
    cycle = transfer[:period]
    if not period or cycle.all() or not cycle.any():
        raise TraceError(
            f"{profile.path} has no ProfilerStep#N and no Optimizer.step ranges, and its "
            "communication shows no period; call prof.step() after each step"
        )
    # Two cycles, so that a stretch may cross the end of a cycle.
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], np.tile(cycle, 2), [0]]).astype(int)))
    begin, end = bounds[::2], bounds[1::2]
    phase = int(begin[int(np.argmax(np.minimum(end - begin, period)))]) % period
    starts = range(phase, len(tokens), period)
    # A step begins when the collective in front of its first transfer has been launched.
    cuts = [tokens[at - 1][0] for at in starts if at > 0]
    return tuple(Span(low, high, n) for n, (low, high) in enumerate(pairwise(cuts)))
