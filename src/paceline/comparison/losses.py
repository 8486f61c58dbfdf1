"""Cost of workers and hosts beside their peers.

It is the step with only a worker as measured and all else ideal, minus the same for the typical
worker. T_ideal would be the wrong reference. A slow worker is part of the means in the ideal
durations. Once it is gone, all others would seem to have become slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.comparison.interval import Means, certain, difference, means_of
from paceline.comparison.result import Change, HostChange, WorkerChange
from paceline.graph import Measured
from paceline.trace.job import device_name
from paceline.whatif import Part, Scenario, WhatIf, ideal_durations, simulate_scenarios

Array = npt.NDArray[np.float64]

#: (dp, pp) -> (host, gpu).
Hosts = Mapping[tuple[int, int], tuple[str, str]]


@dataclass(frozen=True)
class Lost:
    """Data of one job for the tables of workers and hosts.

    Attributes:
        measured, result: the job.
        hosts: hosts of its workers; may be empty.
        units: units in a step.
    """

    measured: Measured
    result: WhatIf
    hosts: Hosts
    units: float


def worker_changes(before: Lost, after: Lost) -> tuple[WorkerChange, ...]:
    """All workers by the size of their change, the largest first."""
    means_before, means_after = (_worker_means(side) for side in (before, after))
    change, low, high = difference(means_before, means_after, means_before.mean.size)
    rows = [
        WorkerChange(
            dp=dp,
            pp=pp,
            slowdown=(
                float(before.result.by_worker[pp, dp]),
                float(after.result.by_worker[pp, dp]),
            ),
            loss_s=(float(means_before.mean[pp, dp]), float(means_after.mean[pp, dp])),
            change=change_of(*(float(x[pp, dp]) for x in (change, low, high))),
            hosts=(_place(before.hosts, dp, pp), _place(after.hosts, dp, pp)),
        )
        for pp, dp in np.ndindex(means_before.mean.shape)
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.change.seconds)))


def change_of(seconds: float, low: float, high: float) -> Change:
    """A change; NaN ends are no interval."""
    interval = None if np.isnan(low) or np.isnan(high) else (low, high)
    return Change(seconds, interval)


def _worker_means(side: Lost) -> Means:
    """[pp, dp] seconds per unit."""
    times = side.result.by_worker_by_step * side.result.ideal_s[:, None, None]
    losses_s = beside_typical(times.reshape(len(times), -1)).reshape(times.shape)
    return means_of(losses_s).scaled(1 / side.units)


def beside_typical(times: Array) -> Array:
    """[step, row] seconds, less those of the typical row: the lower median, of two the faster."""
    middle = (times.shape[1] - 1) // 2
    return times - np.partition(times, middle, axis=1)[:, middle : middle + 1]


def _place(hosts: Hosts, dp: int, pp: int) -> str:
    return device_name(*hosts.get((dp, pp), ("", "")))


def host_changes(before: Lost, after: Lost) -> tuple[HostChange, ...]:
    """All hosts of either job by the size of their change, the largest first."""
    sides = [_host_means(side) for side in (before, after)]
    names = list(dict.fromkeys([*sides[0], *sides[1]]))
    rows = []
    for name in names:
        (mean_before, n_before), (mean_after, n_after) = (_of_host(side, name) for side in sides)
        change, low, high = difference(mean_before, mean_after, len(names))
        rows.append(
            HostChange(
                host=name,
                workers=(n_before, n_after),
                loss_s=(
                    float(mean_before.mean) if n_before else None,
                    float(mean_after.mean) if n_after else None,
                ),
                change=change_of(float(change), float(low), float(high)),
            )
        )
    return tuple(sorted(rows, key=lambda row: -abs(row.change.seconds)))


def _of_host(side: Mapping[str, tuple[Means, int]], name: str) -> tuple[Means, int]:
    """Cost of a host; nothing, for sure, where the job does not use it."""
    return side.get(name, (certain(np.array(0.0)), 0))


def _host_means(side: Lost) -> dict[str, tuple[Means, int]]:
    """Host -> seconds per unit, and how many workers it has."""
    workers: dict[str, list[tuple[int, int]]] = {}
    for worker, (host, _) in side.hosts.items():
        workers.setdefault(host, []).append(worker)
    names = [name for name in workers if name]
    times = _only(side.measured, [workers[name] for name in names])
    means = means_of(beside_typical(times.T)).scaled(1 / side.units)
    return {name: (means.row(i), len(workers[name])) for i, name in enumerate(names)}


def _only(measured: Measured, groups: Sequence[Sequence[tuple[int, int]]]) -> Array:
    """[group, step] T with only the workers of a group as measured, all else ideal."""
    ideal = ideal_durations(measured.durations)
    scenarios = [Scenario.only(Part.of_workers(list(group))) for group in groups]
    return simulate_scenarios(measured.durations, ideal, scenarios)
