"""ElasticFlow: jobs that grow and shrink, and are admitted only if their deadlines hold.

Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning",
ASPLOS 2023; their artifact is github.com/pkusys/ElasticFlow at 04a0109a.

It has three parts. In each segment of time a job gets the free GPUs up to its share. The *minimum
satisfactory share* is the smallest share that ends the job in time. Jobs are served by deadline.
*Admission* refuses a job if it or an admitted one would be late. Remaining GPUs go, one level at a
time, to the job with the best *marginal return*.

Two changes ensure that no admitted job is ever late. First, a feasible plan is kept: if a new plan
for all jobs fails, the new job must fit into the present plan. Second, the plan includes the cost
of changes of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paceline.errors import QueueError
from paceline.jit import compiled
from paceline.scheduling.elasticflow_plan import fill, follow, spread
from paceline.scheduling.jobs import Array, Ints
from paceline.scheduling.queue import Queue

Marginal = Literal["saved", "added"]
Order = Literal["arrival", "shortest"]
Levels = Literal["powers", "all"]

#: From this number of jobs on, compiling the loops is worth its time.
_COMPILE_FROM = 24


@dataclass
class _Plan:
    """Reservations of admitted jobs with deadlines.

    Attributes:
        jobs: [row] places among all jobs.
        times_s: [segment + 1] begins of segments; the last one has no end.
        reserved: [row, segment] level, -1 = nothing.
    """

    jobs: list[int]
    times_s: Array
    reserved: Ints


class ElasticFlow:
    """The policy.

    Args:
        marginal: the job that gets the next level. With "saved", the one that saves most GPU-time
            per added GPU, as in the paper's text. With "added", the one that adds most, as in the
            artifact (``get_marginal``, ``allocate_free_gpus``).
        order: the job without GPUs that is served first: the first arrival, or the one with the
            least remaining work on its fastest level.
        levels: numbers of GPUs of an elastic job. With "powers", powers of two, as with buddy
            allocation and migration, where nothing fragments. With "all", all numbers in its
            throughputs; these must be whole nodes, or parts of a node that always fit.
        keep_share: a job never plans with less than its earlier share.
    """

    name = "elasticflow"

    def __init__(
        self,
        marginal: Marginal = "saved",
        order: Order = "arrival",
        levels: Levels = "powers",
        *,
        keep_share: bool = True,
    ) -> None:
        for value, choices in ((marginal, Marginal), (order, Order), (levels, Levels)):
            if value not in choices.__args__:  # type: ignore[attr-defined]
                raise QueueError(f"{value!r} is none of {', '.join(choices.__args__)}")  # type: ignore[attr-defined]
        self.marginal, self.order, self.levels = marginal, order, levels
        self.keep_share = keep_share

    def prepare(self, queue: Queue) -> None:
        """Set up for the jobs of a replay."""
        speeds, n = queue.speeds, len(queue.jobs)
        self._counts = speeds.counts
        self._rates = speeds.rates.copy()
        elastic = np.unique(speeds.row[[bool(curve) for curve in queue.jobs.curve]])
        if self.levels == "powers":
            powers = (self._counts & (self._counts - 1)) == 0
            self._rates[np.ix_(elastic, ~powers)] = 0.0
        else:
            _check_fit(self._counts[self._rates[elastic].any(axis=0)], queue.node_gpus)
        self._share = np.full(n, -1, dtype=np.int64)
        self._started = np.zeros(n, dtype=bool)
        self._plan = _Plan([], np.array([queue.now_s, np.inf]), np.zeros((0, 1), dtype=np.int64))
        fast = n >= _COMPILE_FROM
        self._fill = _choose(fill, fast)
        self._follow = _choose(follow, fast)
        self._spread = _choose(spread, fast)

    def __call__(self, queue: Queue, free: int, now: float) -> Ints:
        """Admit new jobs, and spread the GPUs; see :class:`~paceline.scheduling.queue.Policy`."""
        self._go_on(queue, now)
        for row in list(queue.arrived):
            if not self._rates[queue.speeds.row[row]].any():
                queue.refuse(row, "runs on no power of two of GPUs that there are")
            elif np.isfinite(queue.jobs.deadline_s[row]):
                self._admit(queue, row, now)
        wanted = self._spread_free(queue, now)
        self._started[queue.rows[wanted > 0]] = True
        if len(self._plan.times_s) > 2:
            queue.wake(float(self._plan.times_s[1]))
        return wanted

    def _go_on(self, queue: Queue, now: float) -> None:
        """Drop past segments, ended jobs, and reservations that jobs no longer need."""
        plan = self._plan
        stays = [k for k, row in enumerate(plan.jobs) if queue.all_remaining[row] > 0]
        first = max(0, int(np.searchsorted(plan.times_s, now, side="right")) - 1)
        times = plan.times_s[first:].copy()
        times[0] = now
        jobs = [plan.jobs[k] for k in stays]
        reserved = plan.reserved[stays, first:].copy()
        self._plan = _Plan(jobs, times, reserved)
        self._follow(
            *(self._facts(queue, jobs), self._plan.times_s, self._plan.reserved, 0.0),
            queue.rescale_s,
        )

    def _facts(self, queue: Queue, rows: list[int]) -> tuple[Any, ...]:
        """Facts of some jobs: remaining work, pause, level, whether started, deadline, rates."""
        places = np.array(rows, dtype=np.int64)
        held = queue.all_gpus[places]
        level = np.where(held > 0, np.searchsorted(self._counts, held), -1)
        return (
            queue.all_remaining[places],
            queue.pause[places],
            level,
            self._started[places],
            queue.jobs.deadline_s[places],
            self._rates[queue.speeds.row[places]],
        )

    def _admit(self, queue: Queue, row: int, now: float) -> None:
        """Plan for one more job, or refuse it."""
        plan = self._plan
        jobs = [*plan.jobs, row]
        order = np.argsort(queue.jobs.deadline_s[jobs], kind="stable")
        anew = self._try(queue, jobs, order, np.array([now, np.inf]), None)
        if anew is None:
            last = np.array([len(jobs) - 1])
            anew = self._try(queue, jobs, last, plan.times_s, plan.reserved)
        if anew is None:
            queue.refuse(row, self._reason(queue, row, now))
        else:
            self._plan = anew

    def _try(
        self, queue: Queue, jobs: list[int], order: Ints, times: Array, reserved: Ints | None
    ) -> _Plan | None:
        """A new plan for the jobs of ``order``; None = a job would be late."""
        segments, room = len(times) - 1, len(times) + len(order) + 1
        all_times = np.full(room + 1, np.inf)
        all_times[: segments + 1] = times
        levels = np.full((len(jobs), room), -1, dtype=np.int64)
        if reserved is not None:
            levels[: len(reserved), :segments] = reserved
        share = np.where(self.keep_share, self._share[jobs], -1)
        used = self._fill(
            order,
            self._facts(queue, jobs),
            *(share, self._counts, queue.total),
            *(queue.rescale_s, queue.slot_s, all_times, levels, segments),
        )
        if used < 0:
            return None
        self._share[jobs] = share
        return _Plan(jobs, all_times[: used + 1].copy(), levels[:, :used].copy())

    def _reason(self, queue: Queue, row: int, now: float) -> str:
        rates = self._rates[queue.speeds.row[row]]
        best = int(np.argmax(rates))
        over = now + queue.jobs.work[row] / rates[best] - queue.jobs.deadline_s[row]
        if over > 0:
            return f"alone on {self._counts[best]:,} GPUs it would end {over:,.0f} s late"
        return "it or a job admitted before would be late"

    def _spread_free(self, queue: Queue, now: float) -> Ints:
        """[job of the queue] GPUs: reserved ones and additional ones."""
        plan = self._plan
        rows = queue.rows
        gone = queue.refused
        base = np.full(queue.n, -1, dtype=np.int64)
        growing = np.array([int(row) not in gone for row in rows], dtype=bool)
        place = {row: k for k, row in enumerate(plan.jobs)}
        planned = np.array([place.get(int(row), -1) for row in rows], dtype=np.int64)
        base[planned >= 0] = plan.reserved[planned[planned >= 0], 0]
        facts = self._facts(queue, rows.tolist())
        safe = growing.copy()
        safe[planned >= 0] = self._safe(queue)[planned[planned >= 0]]
        level = self._spread(
            *(facts, base, growing, safe, self._counts, queue.total),
            *(queue.rescale_s, self.marginal == "saved", self.order == "arrival"),
        )
        return np.where(level >= 0, self._counts[np.maximum(level, 0)], 0)

    def _safe(self, queue: Queue) -> Any:
        """[row of the plan] whether its deadline allows a change now and a change back at any time.

        The worst time is just before the first change ends. A job that waits in the plan loses
        nothing by running now. But it has then started, and returning to the plan costs time.
        """
        plan, rescale_s = self._plan, queue.rescale_s
        if rescale_s == 0 or not plan.jobs:
            return np.ones(len(plan.jobs), dtype=bool)
        remaining, pause, level, started, deadline, rates = self._facts(queue, plan.jobs)
        begun = (remaining, pause, level, np.ones_like(started), deadline, rates)
        waiting = (remaining, 0 * pause, np.full_like(level, -1), *begun[3:])
        delayed = self._follow(begun, plan.times_s, plan.reserved.copy(), 2 * rescale_s, rescale_s)
        idle = self._follow(waiting, plan.times_s, plan.reserved.copy(), 0.0, rescale_s)
        return np.where(plan.reserved[:, 0] < 0, idle, delayed) <= deadline


def _check_fit(counts: Ints, node_gpus: int) -> None:
    """Refuse numbers of GPUs that could fragment nodes even with migration.

    Whole nodes and halves, quarters, ... of a node always fit if enough GPUs are free.
    """
    parts = counts % node_gpus
    odd = counts[(parts > 0) & ((node_gpus % np.maximum(parts, 1) > 0) | (parts & (parts - 1) > 0))]
    if len(odd):
        names = ", ".join(str(count) for count in odd[:5].tolist())
        raise QueueError(
            f"jobs on {names} GPUs do not always fit on nodes of {node_gpus}; leave these numbers "
            "out of the throughputs, or use powers of two only"
        )


def _choose(loop: Callable[..., Any], fast: bool) -> Callable[..., Any]:
    return compiled(loop) if fast else loop
