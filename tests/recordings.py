"""Recordings made without waiting: the real recorder on a clock that a test sets, or old files."""

from dataclasses import dataclass

import numpy as np

from paceline import load
from paceline.blockfile import (
    CLOCK,
    CLOCK_ENTRY,
    KINDS,
    OP,
    STEP,
    STEP_HEAD,
    SUFFIX,
    TIME,
    TIMES,
    block,
    file_header,
)
from paceline.record.clocks import HostClock
from paceline.record.recorder import Recorder

MS = 1_000_000
BASE_NS = 1_750_000_000_000_000_000


class SetClock(HostClock):
    """A clock that stands where it is put (``t``, ns)."""

    def __init__(self, ahead_ns=0):
        self.t = 0
        self.ahead_ns = ahead_ns
        self.mark = self.now

    def now(self):
        return self.t + self.ahead_ns

    def resolve(self, mark):
        return mark


def recorder(folder, clock, **given):
    return Recorder(folder, every=1, flush_s=60, given=given, clock=clock)


def play(rec, clock, number, ops, step_ns):
    """One step: ops are (kind label, microbatch, chunk, start, end), ns; ``step_ns`` its times."""
    moments = [(start, i, True) for i, (*_, start, _) in enumerate(ops)]
    moments += [(end, i, False) for i, (*_, end) in enumerate(ops)]
    running = {}
    clock.t = step_ns[0]
    step = rec.step(number).__enter__()
    for when, i, begins in sorted(moments, key=lambda m: (m[0], not m[2])):
        clock.t = when
        if begins:
            kind, microbatch, chunk, _, _ = ops[i]
            running[i] = rec.launch(kind, microbatch, chunk)
        else:
            running[i].done()
    clock.t = step_ns[1]
    step.__exit__(None, None, None)


@dataclass
class RankStep:
    """Milliseconds of one rank in one step, in the order in which they pass.

    A rank waits for its data, works as a host, computes; all ranks meet in a collective (it takes
    the longest ``exchange``); the rank works as a host again and optimizes.
    """

    data: float = 0.0
    host: float = 0.0
    forward: float = 20.0
    backward: float = 40.0
    exchange: float = 4.0
    late: float = 0.0
    optimizer: float = 6.0


def data_parallel_job(folder, step_of, *, steps=24, ranks=4, every=1, meets=False, measures=False):
    """A recorded data-parallel job without a barrier: its gradients' exchange ties the ranks.

    Args:
        folder: of the recording.
        step_of: (step, rank) -> its :class:`RankStep`.
        steps: of the job.
        ranks: of the job.
        every: each n-th step is profiled, as chosen by ``steps=``.
        meets: whether all ranks meet behind the loading, in a collective that is not recorded, as
            the Trainer of transformers does to count the tokens.
        measures: whether waits for data are recorded.
    """
    clocks = [SetClock() for _ in range(ranks)]
    places = [{"rank": rank, "world": ranks, "dp": ranks} for rank in range(ranks)]
    recorders = [
        Recorder(folder, steps=range(0, steps, every), flush_s=60, given=place, clock=clock)
        for place, clock in zip(places, clocks, strict=True)
    ]
    free = [1000.0] * ranks
    for number in range(steps):
        of_ranks = [step_of(number, rank) for rank in range(ranks)]
        begin = [at + of.data + of.host for at, of in zip(free, of_ranks, strict=True)]
        if meets:
            begin = [max(begin)] * ranks
        ready = [at + of.forward + of.backward for at, of in zip(begin, of_ranks, strict=True)]
        met = max(ready) + max(of.exchange for of in of_ranks)
        for rank, (rec, clock, of) in enumerate(zip(recorders, clocks, of_ranks, strict=True)):
            own, held = begin[rank], met + of.late
            end = held + of.optimizer
            ops = [
                ("forward-compute", 0, 0, own, own + of.forward),
                ("backward-compute", 0, 0, own + of.forward, ready[rank]),
                ("grads-reduce-scatter", -1, -1, ready[rank], met),
                ("optimizer", -1, -1, held + 0.001, end),  # behind its wait
            ]
            in_ns = [(*op[:3], round(op[3] * MS), round(op[4] * MS)) for op in ops]
            rec.measures_data, rec.data_ns = measures, round(of.data * MS)
            play(rec, clock, number, in_ns, (round(free[rank] * MS), round(end * MS)))
            free[rank] = end
    for rec in recorders:
        rec.close()
    return load(folder)


def record_trace(trace, folder, ahead_ns=None, session="one", host="host"):
    """Every worker of a trace, as earlier versions recorded it: operations without programs.

    Clocks are ahead by [dp, pp] ns. ``host`` may contain ``{rank}``.
    """
    ahead_ns = np.zeros(trace.rank.shape, dtype=np.int64) if ahead_ns is None else ahead_ns
    folder.mkdir(parents=True, exist_ok=True)
    for (dp, pp), ahead in np.ndenumerate(ahead_ns):
        rank = int(dp * trace.job.pp_size + pp)
        before = len(list(folder.glob(f"rank-{rank:05d}-*{SUFFIX}")))
        place = {
            "rank": rank,
            "world": trace.job.workers,
            "tp": 1,
            "cp": 1,
            "run": folder.name,
            "dp": trace.job.dp_size,
            "pp": trace.job.pp_size,
            "vpp": trace.job.vpp_size,
            "dp_rank": int(dp),
            "pp_rank": int(pp),
            "session": session,
            "host": host.format(rank=rank),
            "pid": 1,
            "started_ns": BASE_NS + int(ahead),
            "clock": "HostClock",
            "kinds": list(KINDS),
        }
        data = file_header(place)
        data += block(CLOCK, CLOCK_ENTRY.pack(BASE_NS + int(ahead), int(ahead), 1000))
        data += b"".join(_blocks_of_steps(trace, dp, pp, int(ahead)))
        (folder / f"rank-{rank:05d}-{before}{SUFFIX}").write_bytes(data)


def _blocks_of_steps(trace, dp, pp, ahead):
    length_ns = int(1e9 * trace.traced_step_s().max()) + 10_000_000
    for i, number in enumerate(trace.steps.tolist()):
        rows = np.flatnonzero((trace.step == number) & (trace.dp == dp) & (trace.pp == pp))
        zero = BASE_NS + ahead + i * length_ns
        ops = [
            OP.pack(
                *(int(trace.kind[row]), 0, int(trace.chunk[row]), int(trace.microbatch[row])),
                *(round(trace.start[row] * 1e9), round(trace.end[row] * 1e9)),
            )
            for row in rows
        ]
        yield block(STEP, STEP_HEAD.pack(number, zero, length_ns, len(ops)) + b"".join(ops))
        yield block(TIMES, TIME.pack(number, zero, length_ns))
