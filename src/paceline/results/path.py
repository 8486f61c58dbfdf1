"""The critical path in a result document: shares of the mean step, and the slack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.results.forms import (
    NUMBER,
    TEXT,
    WHOLE,
    Form,
    array,
    list_of,
    object_of,
    optional,
    tuple_of,
)
from paceline.results.record import Key, record
from paceline.whatif.critical_path import CriticalPath
from paceline.whatif.segments import Sort
from paceline.whatif.slack import Slack

#: Most workers in ``by_worker``; a path rarely passes more.
TOP_WORKERS = 32

Array = npt.NDArray[np.float64]

#: (dp, pp, share).
WorkerShare = tuple[int, int, float]


@dataclass(frozen=True)
class LeadingWorker:
    """The worker with the largest share, and the number of steps in which it has the largest."""

    dp: int
    pp: int
    share: float
    steps: int


@dataclass(frozen=True)
class LeadingKind:
    """The kind of operation with the largest share, and the number of such steps."""

    kind: str
    share: float
    steps: int


@dataclass(frozen=True)
class StepShares:
    """Shares of one step; ``worker`` has the largest share."""

    by_sort: Mapping[str, float]
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    worker: WorkerShare


@dataclass(frozen=True)
class Extent:
    """Minimum and median of the slack of some operations, seconds."""

    least: float
    median: float


@dataclass(frozen=True)
class SlackSummary:
    """Slack: time by which operations could last longer without moving their step's end, seconds.

    Attributes:
        steps: numbers of the covered steps.
        by_kind, by_stage: slack of their operations (of stages: forward and backward computes).
        by_worker: [pp, dp] minimum over a worker's computes.
        near_workers: number of workers with less than 1% of the mean step.
        median_by_worker: [pp, dp] median over a worker's computes; None in older documents.
    """

    steps: tuple[int, ...]
    by_kind: Mapping[str, Extent]
    by_stage: Mapping[int, Extent]
    by_worker: Array
    near_workers: int
    median_by_worker: Array | None = None

    @classmethod
    def of(cls, slack: Slack) -> SlackSummary:
        """The slack in the document."""
        return cls(
            steps=tuple(slack.steps.tolist()),
            by_kind={kind: Extent(*pair) for kind, pair in slack.by_kind.items()},
            by_stage={stage: Extent(*pair) for stage, pair in slack.by_stage.items()},
            by_worker=slack.least_s,
            near_workers=slack.near_workers,
            median_by_worker=slack.median_s,
        )


@dataclass(frozen=True)
class PathSummary:
    """Parts of the step, as shares of the mean step.

    Attributes:
        step_s: step -> length of its path, seconds.
        by_sort, by_kind, by_stage: each sums to 1.
        by_worker: the largest shares, largest first.
        leading_worker, leading_kind: the largest shares over all paths together.
        by_step: the shares of each step.
        slack: slack of the other operations; None if not computed.
    """

    step_s: Mapping[int, float]
    by_sort: Mapping[str, float]
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_worker: tuple[WorkerShare, ...]
    leading_worker: LeadingWorker
    leading_kind: LeadingKind
    by_step: Mapping[int, StepShares]
    slack: SlackSummary | None = None

    @classmethod
    def of(cls, path: CriticalPath) -> PathSummary:
        """The shares of a path."""
        steps = path.steps.tolist()
        worker, kind = path.leading_worker, path.leading_kind
        return cls(
            step_s=dict(zip(steps, path.step_s.tolist(), strict=True)),
            by_sort=dict(path.by_sort),
            by_kind=dict(path.by_kind),
            by_stage=dict(path.by_stage),
            by_worker=_workers(path),
            leading_worker=LeadingWorker(*worker.name, worker.share, worker.n_steps),
            leading_kind=LeadingKind(kind.name, kind.share, kind.n_steps),
            by_step={step: _of_step(path, index) for index, step in enumerate(steps)},
            slack=None if path.slack is None else SlackSummary.of(path.slack),
        )

    def steps_led_by(self, dp: int, pp: int) -> int:
        """Number of steps in which no worker has a larger share."""
        return sum(step.worker[:2] == (dp, pp) for step in self.by_step.values())


def _workers(path: CriticalPath) -> tuple[WorkerShare, ...]:
    shares = path.by_worker
    order = np.argsort(-shares, axis=None, kind="stable")[:TOP_WORKERS]
    pp, dp = np.unravel_index(order, shares.shape)
    rows = zip(dp.tolist(), pp.tolist(), shares[pp, dp].tolist(), strict=True)
    return tuple((d, p, share) for d, p, share in rows if share > 0)


def _of_step(path: CriticalPath, index: int) -> StepShares:
    length = float(path.step_s[index])
    workers = path.worker_s[index]
    pp, dp = (int(i) for i in np.unravel_index(workers.argmax(), workers.shape))
    sorts = zip(Sort, path.sort_s[index].tolist(), strict=True)
    return StepShares(
        by_sort={sort.label: seconds / length for sort, seconds in sorts},
        by_kind={kind: float(seconds[index]) / length for kind, seconds in path.kind_s.items()},
        by_stage={stage: s / length for stage, s in enumerate(path.stage_s[index].tolist())},
        worker=(dp, pp, float(workers[pp, dp]) / length),
    )


_SHARES: tuple[Key, ...] = (
    Key("by_sort", object_of(str, NUMBER), "compute, transfer, delay, occupied -> share"),
    Key("by_kind", object_of(str, NUMBER), "kind of operation (and launch-delay) -> share"),
    Key("by_stage", object_of(int, NUMBER), "stage -> share"),
)
_WORKER: Form[Any] = tuple_of(WHOLE, WHOLE, NUMBER)
_EXTENT = record(Extent, (Key("least", NUMBER), Key("median", NUMBER)))

_SLACK = record(
    SlackSummary,
    (
        Key("steps", list_of(WHOLE)),
        Key("by_kind", object_of(str, _EXTENT)),
        Key("by_stage", object_of(int, _EXTENT)),
        Key("by_worker", array(2), "[pp][dp] the least of a worker's computes, seconds"),
        Key("near_workers", WHOLE, "workers with less slack than 1% of the mean step"),
        Key("median_by_worker", optional(array(2)), "[pp][dp] the median, seconds"),
    ),
)

#: The critical path in ``result.json``.
PATH: Form[PathSummary] = record(
    PathSummary,
    (
        Key("step_s", object_of(int, NUMBER), "step -> length of its path, seconds"),
        *_SHARES,
        Key("by_worker", list_of(_WORKER), "[dp, pp, share], the largest first"),
        Key(
            "leading_worker",
            record(
                LeadingWorker,
                (Key("dp", WHOLE), Key("pp", WHOLE), Key("share", NUMBER), Key("steps", WHOLE)),
            ),
        ),
        Key(
            "leading_kind",
            record(LeadingKind, (Key("kind", TEXT), Key("share", NUMBER), Key("steps", WHOLE))),
        ),
        Key(
            "by_step",
            object_of(int, record(StepShares, (*_SHARES, Key("worker", _WORKER)))),
            "step -> its shares",
        ),
        Key("slack", optional(_SLACK)),
    ),
)
