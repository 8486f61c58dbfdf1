"""Policies for jobs that run on their requested GPUs.

Each is a function of (queue, free GPUs, now). All use the remaining run time of a job. A replay of
a log knows it; for a live queue it would be an estimate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.jit import compiled
from paceline.scheduling.jobs import Array, Ints
from paceline.scheduling.queue import Policy, Queue

#: GPU-seconds after which a job leaves Tiresias' first queue: 3,250 in its authors' simulator. The
#: same number is in ElasticFlow's artifact (04a0109a, ElasticFlow/scheduler/jobs.py,
#: ``queue_limit``), which uses two queues, too.
LAS_LIMIT_GPU_S = 3250.0

#: Number of jobs in the queue from which the loops are worth compiling.
_COMPILE_FROM = 64


def fifo(queue: Queue, free: int, now: float) -> Ints:
    """First in, first out: no job passes the first job that waits."""
    return _loop(_in_turn, queue)(queue.asked, queue.gpus, free)


def backfill(queue: Queue, free: int, now: float) -> Ints:
    """FIFO with backfilling: a job may pass the first waiting job if that does not delay it.

    EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", 1995), with true run times.
    """
    return _loop(_easy, queue)(queue.asked, queue.gpus, queue.remaining_s, free)


def srtf(queue: Queue, free: int, now: float) -> Ints:
    """Shortest remaining time first, with preemption; jobs that do not fit are skipped."""
    return _by(queue, queue.remaining_s)


def edf(queue: Queue, free: int, now: float) -> Ints:
    """Earliest deadline first, with preemption, no admission; jobs that do not fit are skipped."""
    return _by(queue, queue.deadline_s)


def tiresias(queue: Queue, free: int, now: float, limit: float = LAS_LIMIT_GPU_S) -> Ints:
    """Least attained service, in two queues: Tiresias-L (Gu et al., NSDI 2019).

    A job with ``limit`` GPU-seconds goes behind all jobs with fewer. Within a queue, the first
    submitted job comes first. Jobs are preempted, and a long wait does not promote a job.
    """
    attained = queue.attained_gpu_s
    demoted = attained >= limit * (1 - 1e-9)
    wanted = _by(queue, demoted.astype(np.float64))
    rising = ~demoted & (wanted > 0)
    if rising.any():
        queue.wake(now + float(((limit - attained[rising]) / wanted[rising]).min()))
    return wanted


def _by(queue: Queue, key: Array) -> Ints:
    order = np.argsort(key, kind="stable")
    return _loop(_pack, queue)(order, queue.asked, queue.total)


def _loop(loop: Callable[..., Ints], queue: Queue) -> Callable[..., Ints]:
    return compiled(loop) if len(queue.jobs) > _COMPILE_FROM else loop


def _in_turn(asked: Ints, held: Ints, free: int) -> Ints:
    wanted = held.copy()
    for k in range(len(asked)):
        if wanted[k] == 0:
            if asked[k] > free:
                break
            wanted[k] = asked[k]
            free -= asked[k]
    return wanted


def _pack(order: Ints, asked: Ints, free: int) -> Ints:
    wanted = np.zeros_like(asked)
    for k in order:
        if asked[k] <= free:
            wanted[k] = asked[k]
            free -= asked[k]
            if free == 0:
                break
    return wanted


def _easy(asked: Ints, held: Ints, remaining_s: Array, free: int) -> Ints:
    wanted = held.copy()
    first = len(asked)
    for k in range(len(asked)):
        if wanted[k] == 0:
            if asked[k] > free:
                first = k
                break
            wanted[k] = asked[k]
            free -= asked[k]
    if first == len(asked) or free == 0:
        return wanted
    # Earliest start of the first waiting job, and the GPUs that remain beside it then.
    running = np.flatnonzero(wanted)
    order = running[np.argsort(remaining_s[running])]
    spare = free
    shadow_s = np.inf
    for k in order:
        spare += wanted[k]
        if spare >= asked[first]:
            shadow_s = remaining_s[k]
            break
    spare -= asked[first]
    for k in range(first + 1, len(asked)):
        if wanted[k] > 0 or asked[k] > free:
            continue
        if remaining_s[k] > shadow_s:
            if asked[k] > spare:
                continue
            spare -= asked[k]
        wanted[k] = asked[k]
        free -= asked[k]
    return wanted


def _elasticflow() -> Policy:
    from paceline.scheduling.elasticflow import ElasticFlow

    return ElasticFlow()


#: Name -> maker of the policy.
POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": lambda: fifo,
    "backfill": lambda: backfill,
    "srtf": lambda: srtf,
    "edf": lambda: edf,
    "tiresias": lambda: tiresias,
    "elasticflow": _elasticflow,
}
