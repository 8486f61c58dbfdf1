"""Replay a queue: jobs arrive, a policy gives them GPUs, they run and end.

    done = replay_queue(jobs, gpus=1024, policy="srtf")
    done.jct_s, done.deadline_ratio, done.makespan_s, done.timeline

Time is continuous: the replay goes from one arrival, end or requested call to the next. With slots
it goes from one slot boundary to the next, as in schedulers that decide at intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from paceline.errors import QueueError
from paceline.jit import compiled
from paceline.scheduling.jobs import (
    NO_THROUGHPUTS,
    Array,
    Ints,
    JobList,
    Speeds,
    Throughputs,
    speeds_of,
)
from paceline.scheduling.queue import Policy, Queue
from paceline.scheduling.result import QueueReplay, Timeline

Progress = Callable[[int, int], None]

#: From this number of jobs on, compiling the loops is worth its time.
COMPILE_FROM = 100


@dataclass(frozen=True, kw_only=True)
class SlowNodes:
    """Permanently slow nodes.

    Attributes:
        share: share of the nodes, 0 to 1.
        factor: factor on the time of work on a slow node.
    """

    share: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 1 <= self.factor < np.inf:
            raise QueueError("slow nodes need a share of 0 to 1 and a factor of at least 1")


@dataclass(frozen=True)
class SlowJobs:
    """Slowdowns S of measured jobs, such as a fleet study's; every job draws one.

    Attributes:
        slowdowns: [measured job] S, at least 1.
    """

    slowdowns: Array

    def __post_init__(self) -> None:
        values = self.slowdowns
        if not len(values) or not (np.isfinite(values) & (values >= 1)).all():
            raise QueueError("slow jobs need slowdowns, each at least 1")


def replay_queue(
    jobs: JobList,
    gpus: int,
    policy: Policy | str = "fifo",
    throughputs: Throughputs = NO_THROUGHPUTS,
    *,
    node_gpus: int | None = None,
    rescale_s: float = 0.0,
    slot_s: float = 0.0,
    slow: SlowNodes | SlowJobs | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> QueueReplay:
    """Replay the jobs under a policy.

    Args:
        jobs: the jobs.
        gpus: GPUs of the cluster.
        policy: a name of ``POLICIES``, or a function of (queue, free GPUs, now) that returns the
            GPUs of every job in the queue.
        throughputs: throughputs of the elastic jobs.
        node_gpus: GPUs of a node; None = 8, or all of a smaller cluster.
        rescale_s: seconds of standstill for each change of a job's GPUs after its start.
        slot_s: seconds between decisions; 0 = at every event.
        slow: slow nodes, or slowdowns of jobs. A job runs at the speed of its slowest node; its
            nodes are drawn again whenever its GPUs change. A job's own slowdown does not change.
        seed: seed of these draws.
        progress: called with (jobs that ended, jobs).

    Raises:
        QueueError: the cluster, the policy or its decision is impossible.
    """
    cluster = Cluster.of(gpus, node_gpus, rescale_s, slot_s)
    speeds = speeds_of(jobs, throughputs, gpus)
    chosen = policy_of(policy)
    state = _State(jobs, speeds, cluster, slow, seed)
    prepare = getattr(chosen, "prepare", None)
    if prepare is not None:
        prepare(state.queue)
    else:
        _need_asked(jobs, speeds, gpus, name_of(policy))
    while state.advance():
        if progress is not None:
            progress(state.ended, len(jobs))
        state.apply(chosen, name_of(policy))
    return state.result(name_of(policy))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Resources that jobs share.

    Attributes:
        gpus: GPUs, in whole nodes.
        node_gpus: GPUs of a node.
        rescale_s: seconds that a change of its GPUs costs a job.
        slot_s: seconds between decisions; 0 = none.
    """

    gpus: int
    node_gpus: int
    rescale_s: float
    slot_s: float

    @classmethod
    def of(cls, gpus: int, node_gpus: int | None, rescale_s: float, slot_s: float) -> Cluster:
        """The checked resources."""
        if gpus < 1:
            raise QueueError(f"a cluster has at least 1 GPU, not {gpus}")
        node = min(8, gpus) if node_gpus is None else node_gpus
        if node < 1 or gpus % node:
            raise QueueError(f"{gpus} GPUs are no whole nodes of {node}; say how many a node has")
        for name, value in (("rescale_s", rescale_s), ("slot_s", slot_s)):
            if not 0 <= value < np.inf:
                raise QueueError(f"{name} must be at least 0 seconds, not {value:g}")
        return cls(gpus=gpus, node_gpus=node, rescale_s=rescale_s, slot_s=slot_s)


def policy_of(policy: Policy | str) -> Policy:
    """A new policy of a name, without state of earlier replays."""
    from paceline.scheduling.policies import POLICIES

    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise QueueError(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    made: Policy = POLICIES[policy]()
    return made


def name_of(policy: Policy | str) -> str:
    """Name of a policy in results."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "name", None) or getattr(policy, "__name__", "policy"))


def _need_asked(jobs: JobList, speeds: Speeds, gpus: int, name: str) -> None:
    lacking = (jobs.gpus == 0) | ((speeds.asked_rate == 0) & (jobs.gpus <= gpus))
    if lacking.any():
        i = int(np.argmax(lacking))
        why = (
            "does not say its num_gpu"
            if jobs.gpus[i] == 0
            else (f"has no throughput on the {jobs.gpus[i]} GPUs that it asks for")
        )
        raise QueueError(
            f"job {jobs.job_id[i]} {why}; policy {name} needs it, elasticflow does not"
        )


@dataclass
class _State:
    """State of all jobs during the replay."""

    jobs: JobList
    speeds: Speeds
    cluster: Cluster
    slow: SlowNodes | SlowJobs | None
    seed: int
    now: float = 0.0
    ended: int = 0
    queue: Queue = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.jobs)
        self.queue = Queue(self.jobs, self.speeds, self.cluster.gpus, self.cluster.node_gpus)
        self.queue.rescale_s = self.cluster.rescale_s
        self.queue.slot_s = self.cluster.slot_s
        self._rng = np.random.default_rng(self.seed)
        if isinstance(self.slow, SlowJobs):
            self.queue.slowness = self._rng.choice(self.slow.slowdowns, n)
        self._start = np.full(n, np.nan)
        self._end = np.full(n, np.nan)
        self._restarts = np.zeros(n, dtype=np.int64)
        self._gpu_s = self.queue.all_attained
        self._counts = self.speeds.counts
        self._changed = np.zeros(n, dtype=np.int64)
        self._arrived = 0
        self._times: list[float] = []
        self._rows: list[int] = []
        self._gpus: list[int] = []
        self._first = float(self.jobs.submitted_s[0]) if n else 0.0
        self.now = self._first
        fast = n >= COMPILE_FROM
        self._walk: Callable[..., tuple[float, int]] = compiled(_walk) if fast else _walk
        self._give: Callable[..., int] = compiled(_give) if fast else _give

    def advance(self) -> bool:
        """Go to the next event; False if there is none."""
        queue, submitted = self.queue, self.jobs.submitted_s
        following = submitted[self._arrived] if self._arrived < len(submitted) else np.inf
        until = min(float(following), max(queue.wake_s, np.nextafter(self.now, np.inf)))
        n = queue.n
        arrays = (queue.all_remaining, queue.rate, queue.pause, self._gpu_s, queue.all_gpus)
        slot = self.cluster.slot_s
        self.now, queue.n = self._walk(
            self.now, until, self._first, slot, queue.active, n, *arrays, self._end
        )
        self.ended += n - queue.n
        if np.isinf(self.now):
            if queue.n:
                waiting = self.jobs.job_id[queue.active[0]]
                raise QueueError(f"job {waiting} would wait for ever under this policy")
            return False
        while self._arrived < len(submitted) and submitted[self._arrived] <= self.now:
            queue.arrive(self._arrived)
            self._arrived += 1
        return True

    def apply(self, policy: Policy, name: str) -> None:
        """Call the policy, and apply its decision to the jobs."""
        queue = self.queue
        queue.now_s, queue.wake_s = self.now, np.inf
        if not queue.n:
            return
        held = int(queue.gpus.sum())
        wanted = np.asarray(policy(queue, self.cluster.gpus - held, self.now), dtype=np.int64)
        self.ended += queue.drop_refused()
        if queue.kept is not None:
            wanted = wanted[queue.kept]
        if len(wanted) != queue.n:
            raise QueueError(f"policy {name} answers for {len(wanted)} of {queue.n} jobs")
        if isinstance(self.slow, SlowNodes):
            self._draw_nodes(wanted, self.slow)
        speeds = (self._counts, self.speeds.rates, self.speeds.row, self.speeds.asked_rate)
        jobs = (queue.active, queue.n, wanted, self.jobs.gpus, *speeds, queue.slowness)
        facts = (queue.all_gpus, queue.rate, queue.pause, self._start, self._restarts)
        count = self._give(self.now, self.cluster.rescale_s, *jobs, *facts, self._changed)
        changed = self._changed
        if count < 0 or queue.gpus.sum() > self.cluster.gpus:
            self._complain(wanted, count, name)
        for i in changed[:count].tolist():
            self._times.append(self.now)
            self._rows.append(i)
            self._gpus.append(int(queue.all_gpus[i]))

    def _draw_nodes(self, wanted: Ints, slow: SlowNodes) -> None:
        """For jobs with changed GPUs, draw whether they get a slow node."""
        active = self.queue.rows
        moved = (wanted != self.queue.all_gpus[active]) & (wanted > 0)
        nodes = -(-wanted[moved] // self.cluster.node_gpus)
        hit = self._rng.random(len(nodes)) < 1 - (1 - slow.share) ** nodes
        self.queue.slowness[active[moved]] = np.where(hit, slow.factor, 1.0)

    def _complain(self, wanted: Ints, count: int, name: str) -> None:
        if count < 0:
            k = -1 - count
            job = self.jobs.job_id[self.queue.active[k]]
            raise QueueError(f"policy {name}: job {job} cannot run on {wanted[k]:,} GPUs")
        raise QueueError(
            f"policy {name} gives {wanted.sum():,} GPUs; there are {self.cluster.gpus:,}"
        )

    def result(self, name: str) -> QueueReplay:
        """Outcome of all jobs."""
        timeline = Timeline(
            np.array(self._times), np.array(self._rows, dtype=np.int64), np.array(self._gpus)
        )
        return QueueReplay(
            jobs=self.jobs,
            policy=name,
            gpus=self.cluster.gpus,
            start_s=self._start,
            end_s=self._end,
            gpu_seconds=self._gpu_s,
            restarts=self._restarts,
            refused=self.queue.refused,
            timeline=timeline,
        )


def _walk(
    now: float,
    until: float,
    first: float,
    slot: float,
    active: Ints,
    n: int,
    remaining: Array,
    rate: Array,
    pause: Array,
    gpu_seconds: Array,
    gpus: Ints,
    end: Array,
) -> tuple[float, int]:
    """Run jobs to the next event; returns (its time, number of jobs in ``active``)."""
    then = until
    for k in range(n):
        i = active[k]
        if rate[i] > 0:
            then = min(then, now + pause[i] + remaining[i] / rate[i])
    if slot > 0 and then < np.inf:
        then = max(then, first + np.ceil((then - first) / slot - 1e-9) * slot)
    if then == np.inf:
        return then, n
    left = 0
    for k in range(n):
        i = active[k]
        ends = np.inf
        if rate[i] > 0:
            ends = now + pause[i] + remaining[i] / rate[i]
        elapsed = min(ends, then) - now
        if slot > 0:
            elapsed = then - now
        gpu_seconds[i] += gpus[i] * elapsed
        if ends <= then * (1 + 1e-12) + 1e-9:  # a rest within rounding is not work
            remaining[i] = 0.0
            gpus[i] = 0
            end[i] = min(ends, then)
            continue
        remaining[i] -= max(0.0, elapsed - pause[i]) * rate[i]
        pause[i] = max(0.0, pause[i] - elapsed)
        active[left] = i
        left += 1
    return then, left


def _give(
    now: float,
    rescale_s: float,
    active: Ints,
    n: int,
    wanted: Ints,
    asked: Ints,
    counts: Ints,
    rates: Array,
    row: Ints,
    asked_rate: Array,
    slowness: Array,
    gpus: Ints,
    rate: Array,
    pause: Array,
    start: Array,
    restarts: Ints,
    changed: Ints,
) -> int:
    """Assign GPUs to jobs; writes the changed jobs and returns their number.

    Returns -1 - k if the k-th job of the queue cannot run on its GPUs.
    """
    count = 0
    for k in range(n):
        i = active[k]
        if wanted[k] == gpus[i]:
            continue
        speed = 0.0
        if wanted[k] == asked[i]:
            speed = asked_rate[i]
        elif wanted[k] > 0:
            for level in range(len(counts)):
                if counts[level] == wanted[k]:
                    speed = rates[row[i], level]
        if wanted[k] < 0 or (wanted[k] > 0 and speed <= 0):
            return -1 - k
        gpus[i] = wanted[k]
        rate[i] = speed / slowness[i]
        pause[i] = 0.0
        if wanted[k] > 0:
            if np.isnan(start[i]):
                start[i] = now
            else:
                restarts[i] += 1
                pause[i] = rescale_s
        changed[count] = i
        count += 1
    return count
