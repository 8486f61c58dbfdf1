"""Recordings made without waiting: the real recorder on a clock that a test sets."""

import numpy as np

from paceline.record.clocks import HostClock, Offset
from paceline.record.recorder import Recorder
from paceline.trace import OpKind


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


def record_trace(trace, folder, ahead_ns=None, session="one"):
    """Every worker of a trace records it as its rank; clocks are ahead by [dp, pp] ns."""
    ahead_ns = np.zeros(trace.rank.shape, dtype=np.int64) if ahead_ns is None else ahead_ns
    base_ns = 1_750_000_000_000_000_000
    length_ns = int(1e9 * trace.traced_step_s().max()) + 10_000_000
    for (dp, pp), ahead in np.ndenumerate(ahead_ns):
        clock = SetClock(int(ahead))
        clock.t = base_ns
        rec = recorder(
            folder,
            clock,
            rank=int(dp * trace.job.pp_size + pp),
            world=trace.job.workers,
            dp=trace.job.dp_size,
            pp=trace.job.pp_size,
            vpp=trace.job.vpp_size,
            dp_rank=int(dp),
            pp_rank=int(pp),
            session=session,
        )
        rec._writer.put_offset(Offset(clock.now(), int(ahead), 1000))
        for i, number in enumerate(trace.steps.tolist()):
            rows = np.flatnonzero((trace.step == number) & (trace.dp == dp) & (trace.pp == pp))
            zero = base_ns + i * length_ns
            ops = [
                (
                    OpKind(int(trace.kind[row])).label,
                    int(trace.microbatch[row]),
                    int(trace.chunk[row]),
                    zero + round(trace.start[row] * 1e9),
                    zero + round(trace.end[row] * 1e9),
                )
                for row in rows
            ]
            play(rec, clock, number, ops, (zero, zero + length_ns))
        rec.close()
