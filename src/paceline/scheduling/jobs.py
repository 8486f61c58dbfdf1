"""The jobs of a queue, and their speeds by number of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from paceline.errors import QueueError

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class JobList:
    """Jobs in the order of their submission.

    A job is rigid or elastic. A rigid job runs on ``gpus``, and ``work`` is its seconds there. An
    elastic job has throughputs (``curve``), and ``work`` is its number of iterations.

    Attributes:
        job_id: [job] a name, unique.
        submitted_s: [job] seconds, ascending.
        work: [job] seconds of a rigid job, iterations of an elastic one; above 0.
        gpus: [job] requested GPUs; 0 = an elastic job without a request.
        curve: [job] the row of :class:`Throughputs`; "" = rigid.
        deadline_s: [job] latest time of its end; inf = no deadline.
        min_gpus, max_gpus: [job] bounds of an elastic job's GPUs; 0 = none.
        labels: name -> [job] text (user, queue, priority, ...).
    """

    job_id: tuple[str, ...]
    submitted_s: Array
    work: Array
    gpus: Ints
    curve: tuple[str, ...]
    deadline_s: Array
    min_gpus: Ints
    max_gpus: Ints
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.job_id)

    def __post_init__(self) -> None:
        """Raises QueueError: a value is out of range; the message names the job."""
        checks = (
            (~np.isfinite(self.submitted_s) | (self.submitted_s < 0), "its submission_time is"),
            (~np.isfinite(self.work) | (self.work <= 0), "its work is"),
            (self.gpus < 0, "its GPUs are"),
        )
        for bad, words in checks:
            if bad.any():
                i = int(np.argmax(bad))
                raise QueueError(f"job {self.job_id[i]}: {words} negative, zero or no number")
        early = self.deadline_s < self.submitted_s
        if early.any() or np.isnan(self.deadline_s).any():
            i = int(np.argmax(early | np.isnan(self.deadline_s)))
            raise QueueError(f"job {self.job_id[i]}: its deadline lies before its submission_time")
        if len(set(self.job_id)) < len(self.job_id):
            twice = Counter(self.job_id).most_common(1)[0][0]
            raise QueueError(f"job {twice} occurs twice; every row needs a job_id of its own")
        if (np.diff(self.submitted_s) < 0).any():
            raise QueueError("jobs must stand in the order of their submission")

    def groups(self, label: str) -> dict[str, JobList]:
        """Value of a label -> its jobs, from time 0 on.

        Raises:
            QueueError: the jobs have no such label.
        """
        if label not in self.labels:
            raise QueueError(f"jobs have no column {label!r}; {', '.join(self.labels) or 'none'}")
        rows: dict[str, list[int]] = {}
        for i, value in enumerate(self.labels[label]):
            rows.setdefault(value, []).append(i)
        return {
            value: self.select(np.array(places)).from_zero()
            for value, places in sorted(rows.items())
        }

    def from_zero(self) -> JobList:
        """The same jobs, the first submitted at 0."""
        first = self.submitted_s[0]
        return replace(
            self, submitted_s=self.submitted_s - first, deadline_s=self.deadline_s - first
        )

    def select(self, rows: Ints) -> JobList:
        """Only these jobs."""
        places = rows.tolist()
        arrays = ("submitted_s", "work", "gpus", "deadline_s", "min_gpus", "max_gpus")
        return replace(
            self,
            job_id=tuple(self.job_id[i] for i in places),
            curve=tuple(self.curve[i] for i in places),
            labels={name: tuple(texts[i] for i in places) for name, texts in self.labels.items()},
            **{name: getattr(self, name)[rows] for name in arrays},
        )


def job_list(
    job_id: Sequence[str],
    submitted_s: Sequence[float],
    work: Sequence[float],
    *,
    gpus: Sequence[int] | None = None,
    curve: Sequence[str] | None = None,
    deadline_s: Sequence[float] | None = None,
    min_gpus: Sequence[int] | None = None,
    max_gpus: Sequence[int] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> JobList:
    """Jobs in any order, with defaults for missing columns; see :class:`JobList`.

    Raises:
        QueueError: columns differ in length, or a value is out of range.
    """
    n = len(job_id)
    columns = (submitted_s, work, gpus, curve, deadline_s, min_gpus, max_gpus)
    if any(column is not None and len(column) != n for column in columns):
        raise QueueError(f"the columns of {n} jobs differ in length")
    order = np.argsort(np.asarray(submitted_s, dtype=np.float64), kind="stable")

    def ints(column: Sequence[int] | None) -> Ints:
        return np.asarray([0] * n if column is None else column, dtype=np.int64)

    texts = [""] * n if curve is None else list(curve)
    deadlines = [np.inf] * n if deadline_s is None else deadline_s
    places = order.tolist()
    return JobList(
        job_id=tuple(job_id[i] for i in places),
        submitted_s=np.asarray(submitted_s, dtype=np.float64)[order],
        work=np.asarray(work, dtype=np.float64)[order],
        gpus=ints(gpus)[order],
        curve=tuple(texts[i] for i in places),
        deadline_s=np.asarray(deadlines, dtype=np.float64)[order],
        min_gpus=ints(min_gpus)[order],
        max_gpus=ints(max_gpus)[order],
        labels={name: tuple(column[i] for i in places) for name, column in (labels or {}).items()},
    )


@dataclass(frozen=True)
class Throughputs:
    """Speeds of jobs of some sorts on numbers of GPUs.

    Attributes:
        names: [curve].
        counts: [level] numbers of GPUs, ascending.
        rates: [curve, level] iterations/s; 0 = cannot run there.
        plans: (curve, GPUs) -> the plan behind the rate, where one is known.
    """

    names: tuple[str, ...]
    counts: Ints
    rates: Array
    plans: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rates.shape != (len(self.names), len(self.counts)):
            raise QueueError("throughputs need a rate for every curve and number of GPUs")
        if len(self.counts) and (self.counts[0] < 1 or (np.diff(self.counts) <= 0).any()):
            raise QueueError("the throughputs' numbers of GPUs must be at least 1 and ascend")
        if not (np.isfinite(self.rates) & (self.rates >= 0)).all():
            raise QueueError("a throughput is negative or no number")

    @classmethod
    def of(cls, rates: Mapping[tuple[str, int], float]) -> Throughputs:
        """Throughputs from (curve, GPUs) -> iterations/s."""
        names = tuple(dict.fromkeys(name for name, _ in rates))
        counts = np.array(sorted({gpus for _, gpus in rates}), dtype=np.int64)
        table = np.zeros((len(names), len(counts)))
        for (name, gpus), rate in rates.items():
            table[names.index(name), np.searchsorted(counts, gpus)] = rate
        return cls(names, counts, table)

    def rate(self, name: str, gpus: int) -> float:
        """Iterations/s of a curve on a number of GPUs; 0 = unknown, or it cannot run."""
        level = int(np.searchsorted(self.counts, gpus))
        if name not in self.names or level == len(self.counts) or self.counts[level] != gpus:
            return 0.0
        return float(self.rates[self.names.index(name), level])


#: No elastic jobs.
NO_THROUGHPUTS = Throughputs((), np.zeros(0, dtype=np.int64), np.zeros((0, 0)))


@dataclass(frozen=True)
class Speeds:
    """Input of the replay: speeds of all jobs, in rows that equal jobs share.

    Attributes:
        counts: [level] GPUs, ascending.
        rates: [row, level] units of work per second; 0 if a job cannot run, or if fewer GPUs are
            equally fast. Positive values ascend along a row.
        row: [job] its row.
        asked_rate: [job] units of work per second on the requested GPUs; 0 = no request, or it
            cannot run on them.
    """

    counts: Ints
    rates: Array
    row: Ints
    asked_rate: Array


def speeds_of(jobs: JobList, throughputs: Throughputs, total: int) -> Speeds:
    """The speeds of all jobs on at most ``total`` GPUs.

    A rigid job runs on its GPUs only. A level with more GPUs and no more speed is left out.

    Raises:
        QueueError: a curve is not among the throughputs.
    """
    elastic = np.array([bool(curve) for curve in jobs.curve], dtype=bool)
    counts = np.union1d(throughputs.counts, jobs.gpus[jobs.gpus > 0])
    counts = counts[counts <= total]
    level = np.minimum(np.searchsorted(counts, jobs.gpus), max(0, len(counts) - 1))
    possible = counts[level] == jobs.gpus if len(counts) else np.zeros(len(jobs), dtype=bool)
    asked_rate = np.where(possible & ~elastic, 1.0, 0.0)
    # One row per level for rigid jobs, a row of zeros for jobs that fit nowhere, then the curves.
    rates = [*np.eye(len(counts)), np.zeros(len(counts))]
    row = np.where(possible & ~elastic, level, len(counts))
    known = {name: k for k, name in enumerate(throughputs.names)}
    places = np.searchsorted(counts, throughputs.counts[throughputs.counts <= total])
    rows: dict[tuple[str, int, int], int] = {}
    for i in np.flatnonzero(elastic).tolist():
        key = (jobs.curve[i], int(jobs.min_gpus[i]), int(jobs.max_gpus[i]))
        asked_rate[i] = throughputs.rate(key[0], int(jobs.gpus[i])) if possible[i] else 0.0
        if key not in rows:
            if key[0] not in known:
                raise QueueError(
                    f"job {jobs.job_id[i]}: no throughputs of {key[0]!r}; they have "
                    f"{', '.join(throughputs.names[:8]) or 'none'}"
                )
            curve = np.zeros(len(counts))
            curve[places] = throughputs.rates[known[key[0]], : len(places)]
            curve[(counts < key[1]) | (counts > (key[2] or total))] = 0
            rows[key] = len(rates)
            rates.append(_rising(curve))
        row[i] = rows[key]
    return Speeds(counts, np.array(rates).reshape(len(rates), len(counts)), row, asked_rate)


def _rising(rates: Array) -> Array:
    """The rates, with 0 for levels that are not faster than a smaller level."""
    before = np.append(0.0, np.maximum.accumulate(rates)[:-1])
    return np.where(rates > before, rates, 0.0)
