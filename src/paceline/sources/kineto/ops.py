"""One rank's profile -> its operations, before its place in the job is known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from paceline.errors import TraceError
from paceline.sources.kineto.events import Profile, Range, Span, Transfer
from paceline.sources.kineto.loads import behind_waits
from paceline.trace import OpKind

#: A run with fewer kernels than this share of the longest run's belongs to no microbatch. It may be
#: loss scaling, or a copy before a send. Kernels are counted, since a busy host makes times noisy.
SHORT_SHARE = 0.3

_TRANSFER_KIND = {
    "SEND_F": OpKind.FORWARD_SEND,
    "RECV_F": OpKind.FORWARD_RECV,
    "SEND_B": OpKind.BACKWARD_SEND,
    "RECV_B": OpKind.BACKWARD_RECV,
}
_IN_COMPUTE = {
    ("F", True): OpKind.FORWARD_SEND,
    ("F", False): OpKind.FORWARD_RECV,
    ("B", True): OpKind.BACKWARD_SEND,
    ("B", False): OpKind.BACKWARD_RECV,
}


class RankOp(NamedTuple):
    """An operation. If ``kind`` is None, it is a transfer whose direction follows from ``peer``.

    Times are in seconds. ``launch_s`` is the host's launch of its last kernel. ``tail_s`` is the
    time when the GPU had done the work after a backward. ``loaded_s`` is the end of the last wait
    for data in front of a forward. ``kernel`` is the correlation of a
    collective's kernel. ``part``, ``issued``, ``awaited`` and ``group`` are those of a trace; they
    are known if the rank's program is.
    """

    kind: OpKind | None
    step: int
    start_s: float
    end_s: float
    stage: int = -1
    microbatch: int = -1
    peer: int = -1
    sends: bool = False
    launch_s: float = 0.0
    tail_s: float = 0.0
    loaded_s: float = -inf
    part: int = -1
    issued: int = -1
    awaited: int = -1
    group: int = -1
    kernel: int = -1


def rank_ops(
    profile: Profile, steps: Sequence[Span], unplaced: Counter[str], aside: Counter[str]
) -> list[RankOp]:
    """Computes, transfers and updates of a rank within its steps.

    The ranges of ``torch.distributed.pipelining`` give the kind of each op. Without them a compute
    is a run of kernels of one direction, between one call to send or receive and the next.

    Args:
        profile: the rank's file.
        steps: its steps.
        unplaced: reason -> count; ops without a place are counted here.
        aside: counts runs that belong to no microbatch.

    Raises:
        TraceError: the ranges are of a schedule that splits or overlaps passes. Or there are no
            ranges, and nothing else distinguishes backwards from forwards.
    """
    for named in profile.ranges:
        _check_action(named, profile)
    clock = _Steps(steps)
    ops = list(_updates(profile, clock))
    if any(item.action in ("F", "B") for item in profile.ranges):
        return ops + _by_ranges(profile, clock, unplaced)
    for item in profile.transfers:
        step = clock.at(item.launch_s)
        if step is None:
            unplaced["sends and recvs outside of any step"] += 1
        else:
            op = RankOp(None, step, item.start_s, item.end_s, peer=item.peer, sends=item.sends)
            ops.append(op)
    return ops + list(_runs(profile, clock, aside))


class _Steps:
    """The steps, to find the step of a moment."""

    def __init__(self, steps: Sequence[Span]) -> None:
        self.steps = steps
        self.begin_s = [step.start_s for step in steps]

    def at(self, time_s: float) -> int | None:
        """The step's number; None between steps."""
        index = bisect_right(self.begin_s, time_s) - 1
        if index < 0 or time_s >= self.steps[index].end_s:
            return None
        return self.steps[index].number


def _updates(profile: Profile, clock: _Steps) -> Iterator[RankOp]:
    """The optimizer's update of each step."""
    spans: dict[int, tuple[float, float]] = {}
    for update in profile.optimizer:
        # The middle decides: the end of the update may be the end of its step.
        step = clock.at((update.start_s + update.end_s) / 2)
        window = _window(profile, update) if profile.on_gpu else update[:2]
        if step is not None and window is not None:
            low, high = spans.get(step, window)
            spans[step] = (min(low, window[0]), max(high, window[1]))
    for step, (start_s, end_s) in spans.items():
        yield RankOp(OpKind.OPTIMIZER, step, start_s, end_s)


def _window(
    profile: Profile, span: Span | Range, backward: bool | None = None
) -> tuple[float, float] | None:
    """First start and last end of the kernels that were launched within a range of the host."""
    work = profile.work
    low, high = np.searchsorted(work.launch_s, [span.start_s, span.end_s])
    inside = slice(int(low), int(high))
    chosen = (
        np.ones(high - low, dtype=bool) if backward is None else work.backward[inside] == backward
    )
    if not chosen.any():
        return None
    return float(work.start_s[inside][chosen].min()), float(work.end_s[inside][chosen].max())


def _by_ranges(profile: Profile, clock: _Steps, unplaced: Counter[str]) -> list[RankOp]:
    ops: list[RankOp] = []
    launch_s = [item.launch_s for item in profile.transfers]
    used = [False] * len(launch_s)
    received: dict[tuple[int, str, int, int], float] = {}
    for item in profile.ranges:
        step = clock.at(item.start_s)
        if item.action not in ("F", "B", *_TRANSFER_KIND):
            continue
        if step is None:
            unplaced["pipelining ranges outside of any step"] += 1
            continue
        low, high = bisect_left(launch_s, item.start_s), bisect_right(launch_s, item.end_s)
        inside = profile.transfers[low:high]
        used[low:high] = [True] * (high - low)
        for transfer in inside:
            kind = _TRANSFER_KIND.get(item.action) or _IN_COMPUTE[item.action, transfer.sends]
            ops.append(
                RankOp(kind, step, transfer.start_s, transfer.end_s, item.stage, item.microbatch)
            )
        if item.action in _TRANSFER_KIND:
            if not inside:
                unplaced["SEND and RECV ranges without a transfer"] += 1
            elif item.action.startswith("RECV"):
                key = (step, item.action[-1], item.stage, item.microbatch)
                received[key] = max(transfer.end_s for transfer in inside)
            continue
        arrived = received.get((step, item.action, item.stage, item.microbatch), item.start_s)
        window = _compute_window(profile, item, inside, arrived)
        if window is None:
            unplaced["pipelining ranges without kernels"] += 1
            continue
        kind = OpKind.FORWARD_COMPUTE if item.action == "F" else OpKind.BACKWARD_COMPUTE
        ops.append(RankOp(kind, step, *window, item.stage, item.microbatch))
    unplaced["sends and recvs outside of pipelining ranges"] += used.count(False)
    return ops


def _compute_window(
    profile: Profile, item: Range, inside: Sequence[Transfer], arrived_s: float
) -> tuple[float, float] | None:
    """Begin and end of a compute's kernels; on CPU, of its range without transfers."""
    if profile.on_gpu:
        return _window(profile, item, backward=False if item.action == "F" else None)
    start_s, end_s = max(item.start_s, arrived_s), item.end_s
    for transfer in inside:
        if transfer.sends:
            end_s = min(end_s, transfer.launch_s)
        else:
            start_s = max(start_s, transfer.end_s)
    return start_s, max(start_s, end_s)


def _check_action(item: Range, profile: Profile) -> None:
    if item.action in ("I", "W"):
        what = "splits backwards in two (I, W)"
    elif item.action.startswith("PP:"):
        what = f"runs {item.action!r}"
    elif item.action == "1F1B" or item.action.endswith(")"):
        raise TraceError(
            f"{profile.path}: its schedule runs a forward beside a backward (DualPipe's "
            f"{item.action!r}); a trace can hold that, but these ranges do not name the stage, the "
            "chunk and the microbatch of both. Write a trace with them (docs/trace-format.md); "
            "paceline ranks reports on the file alone"
        )
    else:
        return
    raise TraceError(
        f"{profile.path}: its schedule {what}, which this reader does not take apart; only "
        "schedules of whole forwards and backwards (GPipe, 1F1B, interleaved 1F1B) can be read. "
        "paceline ranks reports on the file alone"
    )


def _runs(profile: Profile, clock: _Steps, aside: Counter[str]) -> Iterator[RankOp]:
    """Runs of kernels (on CPU: operators) of one direction, in the order of their launch."""
    work = profile.work
    if not len(work.launch_s):
        return
    if not work.backward.any():
        what = "kernels of another thread than the main one" if profile.on_gpu else "autograd ops"
        raise TraceError(
            f"{profile.path} has no {what}, so its forwards and backwards cannot be told apart; "
            "profile whole steps, with the ranges of torch.distributed.pipelining where one thread "
            "launches both"
        )
    outside = np.ones(len(work.launch_s), dtype=bool)
    for span in (*profile.optimizer, *profile.cleared, *profile.loads):
        low, high = np.searchsorted(work.launch_s, [span.start_s, span.end_s])
        outside[low:high] = False
    begin_s = np.array(clock.begin_s)
    index = np.searchsorted(begin_s, work.launch_s, side="right") - 1
    end_s = np.array([step.end_s for step in clock.steps])
    outside &= (index >= 0) & (work.launch_s < end_s[index])
    rows = np.flatnonzero(outside)
    if not len(rows):
        return
    launch_s = work.launch_s[rows]
    cut = np.searchsorted(np.array([item.launch_s for item in profile.transfers]), launch_s)
    cells = np.stack([index[rows], cut, work.backward[rows]])
    first = np.flatnonzero(np.append(True, (np.diff(cells) != 0).any(axis=0)))
    until = np.maximum.reduceat(work.end_s[rows], first)
    behind = np.append(first[1:], len(rows))
    step, backward = index[rows][first], work.backward[rows][first]
    for run in np.flatnonzero(~backward) if profile.loads else ():
        first[run] = behind_waits(launch_s, int(first[run]), int(behind[run]), profile.loads)
    n_items = behind - first
    loaded_s = np.append(-inf, [load.end_s for load in profile.loads])
    for s in np.unique(step):
        # Kernels behind the last backward (the loss, the gradients' norm) are no forward.
        here = np.flatnonzero(step == s)
        last = here[backward[here]].max(initial=-1)
        aside["after the last backward"] += int((here > last).sum())
        here = here[here <= last]
        for direction in (False, True):
            runs = here[backward[here] == direction]
            long = n_items[runs] >= SHORT_SHARE * n_items[runs].max(initial=0)
            aside["too short"] += int((~long).sum())
            kind = OpKind.BACKWARD_COMPUTE if direction else OpKind.FORWARD_COMPUTE
            for run in runs[long]:
                low, high = first[run], behind[run]
                yield RankOp(
                    kind,
                    clock.steps[s].number,
                    float(work.start_s[rows[low:high]].min()),
                    float(until[run]),
                    launch_s=float(launch_s[high - 1]),
                    loaded_s=float(loaded_s[loaded_s <= launch_s[low]].max()),
                )
