"""Recorded jobs of two ranks that load batches, compute and exchange, on clocks that are set."""

from paceline.record.recorder import Recorder
from recordings import BASE_NS, SetClock, play

MS = 1_000_000


def job(
    folder,
    work_ms,
    *,
    wait_ms=None,
    steps=20,
    profiled=range(1000),
    inside=True,
    late_ms=0,
    rest_ms=0,
):
    """A recorded data-parallel job of two ranks.

    Args:
        folder: of the recording.
        work_ms: (step, rank) -> ms of the rank's computes.
        wait_ms: (step, rank) -> ms of its wait for its batch; None: not measured.
        steps: of the job.
        profiled: numbers of the profiled steps.
        inside: whether the loop asks for the batch inside the step; else before it.
        late_ms: of rank 1 between its batch and its first operation.
        rest_ms: of a step behind the exchange, in no operation.
    """
    clocks = [SetClock() for _ in range(2)]
    for clock in clocks:
        clock.t = BASE_NS
    recorders = [
        Recorder(
            folder,
            steps=profiled,
            flush_s=60,
            given={"rank": rank, "world": 2, "dp": 2},
            clock=clock,
        )
        for rank, clock in enumerate(clocks)
    ]
    free_ms = 1000.0
    for number in range(steps):
        waits = [wait_ms(number, rank) if wait_ms else 0.0 for rank in range(2)]
        works = [work_ms(number, rank) for rank in range(2)]
        begins = [free_ms + waits[0], free_ms + waits[1] + late_ms]
        met = max(begin + work for begin, work in zip(begins, works, strict=True)) + 4
        for rank, (rec, clock) in enumerate(zip(recorders, clocks, strict=True)):
            begin = begins[rank]
            done = begin + works[rank]
            ops = [
                ("forward-compute", 0, 0, begin, begin + works[rank] / 4),
                ("backward-compute", 0, 0, begin + works[rank] / 4, done),
                ("grads-reduce-scatter", -1, -1, done, met),
            ]
            in_ns = [(*op[:3], *(BASE_NS + round(at * MS) for at in op[3:])) for op in ops]
            rec.measures_data, rec.data_ns = wait_ms is not None, round(waits[rank] * MS)
            span = (free_ms + (0 if inside else waits[rank]), met + rest_ms)
            play(rec, clock, number, in_ns, tuple(BASE_NS + round(at * MS) for at in span))
        free_ms = met + rest_ms
    for rec in recorders:
        rec.close()
    return folder
