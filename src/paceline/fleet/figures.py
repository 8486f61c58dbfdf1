"""A study's figures: the numbers and curves of ``definitions`` from its two tables.

All work is on arrays, so a million jobs take seconds. What-if paper, 3.1, 4, 5.1 to 5.3, 6, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.errors import FleetError
from paceline.fleet import bootstrap
from paceline.fleet.bootstrap import Estimate
from paceline.fleet.columns import ANALYSED
from paceline.fleet.definitions import (
    COMPUTE_KINDS,
    DEFINITIONS,
    HALF,
    KINDS,
    SEQUENCES,
    SEVERE,
    STRAGGLING,
    Definition,
)

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = Mapping[str, Any]

#: Row index for a job that does not count.
LEFT_OUT = -1

#: Sizes with numbers of jobs in the paper (3.1).
SIZES = (128, 256, 512, 5000)


@dataclass(frozen=True)
class Curve:
    """A distribution: ``values`` in ascending order, and the rows of their jobs."""

    values: Array
    row: npt.NDArray[Any]


@dataclass(frozen=True)
class Figure:
    """Content of a figure.

    Attributes:
        definition: title, axis, and the paper's numbers.
        numbers: name -> an :class:`Estimate`, or a plain number.
        curves: name -> distribution; empty for scatters.
        points: for scatters: x, y and the row of the jobs.
        jobs: number of jobs in it.
    """

    definition: Definition
    numbers: Numbers
    curves: Mapping[str, Curve]
    points: tuple[Array, Array, npt.NDArray[np.int64]] | None
    jobs: int


class Jobs:
    """The jobs that count, as arrays; a missing number is NaN.

    Attributes:
        table: their rows.
        slow: [job] whether it straggles, as the verdict of ``paceline analyze`` takes S: without
            variation that passes and that no finding explains.
        known: [job] whether a job has a slowdown; others are left out of shares and means of waste.
    """

    def __init__(self, table: pa.Table) -> None:
        import pyarrow.compute as pc

        left_out = table.filter(pc.equal(table["rule"], "discrepancy"))["discrepancy"]
        #: Discrepancies of jobs that are left out for this reason.
        self.too_far: Array = left_out.drop_null().to_numpy()
        counted = pc.equal(table["status"], ANALYSED)
        if not pc.all(counted).as_py():
            table = table.filter(counted)
        if any(column.num_chunks > 1 for column in table.columns):
            table = table.combine_chunks()
        self.table = table
        self.slowdown = self.numbers("slowdown")
        self.waste = np.maximum(np.nan_to_num(self.numbers("waste")), 0.0)
        self.hours = np.nan_to_num(self.numbers("gpu_hours"))
        self.lost = self.waste * self.hours
        self._of_kind: dict[tuple[str, str], Array] = {}
        judged = self.numbers("slowdown_judged")  # unknown in studies of older versions
        judged = np.where(np.isfinite(judged), judged, self.slowdown)
        self.slow: Mask = judged >= STRAGGLING
        self.known: Mask = np.isfinite(self.slowdown)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def numbers(self, name: str) -> Array:
        """[job] a column; NaN where it is null."""
        column = self.table[name].cast("double").fill_null(float("nan"))
        values: Array = column.to_numpy()
        return values

    def of_kind(self, name: str, kind: str) -> Array:
        """[job] the value of one key of a column of maps; NaN where a row lacks it."""
        import pyarrow.compute as pc

        if (name, kind) not in self._of_kind:
            found = pc.map_lookup(self.table[name], query_key=kind, occurrence="first")
            self._of_kind[name, kind] = found.fill_null(float("nan")).to_numpy()
        return self._of_kind[name, kind]

    def name(self, row: int) -> str:
        """Name of a job."""
        if row == LEFT_OUT:
            return "a job that is left out"
        return str(self.table["name"][row].as_py())


def compute(jobs: Jobs, steps: pa.Table) -> dict[str, Figure]:
    """All figures.

    Args:
        jobs: the jobs that count.
        steps: rows of :data:`paceline.fleet.columns.STEPS`; rows of other jobs are ignored.
    """
    return {
        "waste": _waste(jobs),
        "steps": _steps(jobs, steps),
        "kinds": _kinds(jobs),
        "gpus": _sizes(jobs),
        "m_w": _m_w(jobs),
        "m_s": _m_s(jobs),
        "m_s_slow": _last_stage(jobs, "m_s_slow", jobs.slow),
        "correlation": _correlation(jobs),
        "sequences": _sequences(jobs),
        "discrepancy": _discrepancy(jobs),
    }


def named(figures: Mapping[str, Figure], name: str) -> Figure:
    """One figure by its name.

    Raises:
        FleetError: there is none of that name.
    """
    if name not in figures:
        raise FleetError(f"there is no figure {name!r}; there are {', '.join(figures)}")
    return figures[name]


def _curve(values: Array, rows: npt.NDArray[Any]) -> Curve:
    finite = np.isfinite(values)
    values, rows = values[finite], rows[finite]
    order = np.argsort(values)
    return Curve(values[order], rows[order])


def _figure(
    name: str, numbers: Numbers, curves: Mapping[str, Curve], jobs: int | None = None
) -> Figure:
    n = max((len(curve.values) for curve in curves.values()), default=0)
    return Figure(DEFINITIONS[name], numbers, curves, None, n if jobs is None else jobs)


def _all(jobs: Jobs) -> npt.NDArray[np.int64]:
    return np.arange(len(jobs))


def _waste(jobs: Jobs) -> Figure:
    known = np.flatnonzero(jobs.known)
    curve = _curve(jobs.waste[known], known)
    numbers = {
        "straggling": bootstrap.share(int(jobs.slow.sum()), len(known)),
        "slow_with_passing": bootstrap.share(
            int((jobs.slowdown[known] >= STRAGGLING).sum()), len(known)
        ),
        "gpu_hours_wasted": bootstrap.weighted(jobs.waste[known], jobs.hours[known]),
        "p50": bootstrap.quantile(curve.values, 0.50),
        "p90": bootstrap.quantile(curve.values, 0.90),
        "p99": bootstrap.quantile(curve.values, 0.99),
    }
    return _figure("waste", numbers, {"waste": curve})


def _steps(jobs: Jobs, steps: pa.Table) -> Figure:
    """Slowdowns of steps over their job's, without an interval, which would need the jobs."""
    import pyarrow.compute as pc

    keys = steps["key"].combine_chunks()
    if hasattr(keys, "dictionary"):
        number, distinct = keys.indices.to_numpy(zero_copy_only=False), keys.dictionary
    else:
        encoded = keys.dictionary_encode()
        number, distinct = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary
    row = pc.index_in(distinct, value_set=jobs.table["key"].combine_chunks())
    row_of_key = row.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    row_of_step = row_of_key[number]
    kept = row_of_step >= 0
    kept[kept] = jobs.slow[row_of_step[kept]]
    rows = row_of_step[kept]
    own = steps["slowdown"].to_numpy()[kept]
    curve = _curve(own / jobs.slowdown[rows], rows)
    numbers = {
        "steps": len(curve.values),
        "p50": float(np.quantile(curve.values, 0.5)) if len(curve.values) else None,
        "p90": float(np.quantile(curve.values, 0.9)) if len(curve.values) else None,
    }
    n_jobs = int(np.count_nonzero(np.bincount(rows, minlength=1)))
    return _figure("steps", numbers, {"steps": curve}, n_jobs)


def _kinds(jobs: Jobs) -> Figure:
    curves, numbers = {}, {}
    for kind, label in KINDS.items():
        values = jobs.of_kind("waste_by_kind", kind)
        curve = _curve(np.maximum(values, 0.0), _all(jobs))
        if len(curve.values):
            curves[label] = curve
            numbers[kind] = {
                "p50": bootstrap.quantile(curve.values, 0.5),
                "p90": bootstrap.quantile(curve.values, 0.9),
            }
    return _figure("kinds", numbers, curves)


def _sizes(jobs: Jobs) -> Figure:
    gpus = jobs.numbers("gpus")
    known = np.flatnonzero(gpus > 0)
    numbers = {"rank_correlation": _rank_correlation(gpus[known], jobs.slowdown[known])}
    points = gpus[known], jobs.slowdown[known], known
    return Figure(DEFINITIONS["gpus"], numbers, {}, points, len(known))


def _rank_correlation(x: Array, y: Array) -> Estimate:
    """Spearman's rank correlation, with Fisher's interval."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y, n = x[finite], y[finite], int(finite.sum())
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Estimate(None, None, None, n)
    rho = float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])
    if n < bootstrap.LEAST:
        return Estimate(rho, None, None, n)
    # Bonett and Wright 2000: the variance of Fisher's z of a rank correlation.
    middle = np.arctanh(np.clip(rho, -0.999999, 0.999999))
    apart = 1.96 * np.sqrt((1 + rho**2 / 2) / (n - 3))
    return Estimate(rho, float(np.tanh(middle - apart)), float(np.tanh(middle + apart)), n)


def _ranks(values: Array) -> Array:
    """Mean ranks of ties."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2)[index.reshape(-1)]
    return ranks


def _mean_slowdown(jobs: Jobs, mask: Mask) -> Estimate:
    return bootstrap.mean(jobs.slowdown[mask])


def _m_w(jobs: Jobs) -> Figure:
    values = jobs.numbers("m_w")
    known = jobs.slow & np.isfinite(values)
    above = known & (values > HALF)
    numbers = {
        "above_half": bootstrap.share(int(above.sum()), int(known.sum())),
        "mean_slowdown_above": _mean_slowdown(jobs, above),
        "mean_slowdown": _mean_slowdown(jobs, known),
    }
    return _figure("m_w", numbers, {"M_W": _clipped(values, known)})


def _clipped(values: Array, mask: Mask) -> Curve:
    rows = np.flatnonzero(mask)
    return _curve(np.clip(values[rows], 0.0, 1.0), rows)


def _m_s(jobs: Jobs) -> Figure:
    return _last_stage(jobs, "m_s", np.ones(len(jobs), dtype=bool))


def _last_stage(jobs: Jobs, name: str, mask: Mask) -> Figure:
    """M_S; 0 with one stage, none for jobs without a loss."""
    single = jobs.numbers("pp") == 1
    values = np.where(single, 0.0, jobs.numbers("m_s"))
    known = mask & np.isfinite(values)
    numbers = {
        "at_least_half": bootstrap.share(int((values[known] >= HALF).sum()), int(known.sum())),
        "one_stage": bootstrap.share(int((mask & single).sum()), int(mask.sum())),
        "without_loss": int((mask & ~np.isfinite(values)).sum()),
    }
    return _figure(name, numbers, {"M_S": _clipped(values, known)})


def _correlation(jobs: Jobs) -> Figure:
    values = jobs.numbers("forward_backward_correlation")
    known = jobs.slow & np.isfinite(values)
    high = known & (values >= SEQUENCES)
    numbers = {
        "high": bootstrap.share(int(high.sum()), int(known.sum())),
        "mean_slowdown_high": _mean_slowdown(jobs, high),
    }
    rows = np.flatnonzero(known)
    return _figure("correlation", numbers, {"correlation": _curve(values[rows], rows)})


def _sequences(jobs: Jobs) -> Figure:
    length = jobs.numbers("max_seq_len")
    known = np.flatnonzero(length > 0)
    numbers = {"rank_correlation": _rank_correlation(length[known], jobs.slowdown[known])}
    points = length[known], jobs.slowdown[known], known
    return Figure(DEFINITIONS["sequences"], numbers, {}, points, len(known))


def _discrepancy(jobs: Jobs) -> Figure:
    values = np.concatenate([jobs.numbers("discrepancy"), jobs.too_far])
    rows = np.concatenate([_all(jobs), np.full(len(jobs.too_far), LEFT_OUT)])
    curve = _curve(values, rows)
    numbers = {
        "p50": bootstrap.quantile(curve.values, 0.5),
        "p90": bootstrap.quantile(curve.values, 0.9),
    }
    return _figure("discrepancy", numbers, {"discrepancy": curve})


def coverage(jobs: Jobs) -> dict[str, Any]:
    """Number of jobs, their sizes, and their GPU-hours (3.1)."""
    gpus = jobs.numbers("gpus")
    known = gpus > 0
    hours_given = _text_is(jobs, "gpu_hours_source", "given")
    return {
        "jobs": len(jobs),
        "gpu_hours": float(jobs.hours.sum()),
        "gpu_hours_given": int(hours_given.sum()),
        "gpu_hours_unknown": jobs.table["gpu_hours"].null_count,
        "sizes": {
            str(size): bootstrap.share(int((gpus >= size).sum()), int(known.sum()))
            for size in SIZES
        },
    }


def _text_is(jobs: Jobs, name: str, value: str) -> Mask:
    import pyarrow.compute as pc

    same: Mask = pc.equal(jobs.table[name], value).fill_null(False).to_numpy()
    return same


def severe(jobs: Jobs) -> dict[str, Any]:
    """Jobs with S above 3: sizes, and the shares due to single workers and to compute (4.1)."""
    bad = jobs.slowdown > SEVERE
    m_w, gpus = jobs.numbers("m_w"), jobs.numbers("gpus")
    by_kind = {kind: jobs.of_kind("waste_by_kind", kind) for kind in KINDS}
    compute_waste = _largest([by_kind[kind] for kind in COMPUTE_KINDS])
    other_waste = _largest([by_kind[kind] for kind in KINDS if kind not in COMPUTE_KINDS])
    n = int(bad.sum())
    return {
        "jobs": n,
        "share": bootstrap.share(n, int(jobs.known.sum())),
        "median_gpus": _median(gpus[bad]),
        "median_gpus_of_others": _median(gpus[~bad]),
        "by_workers": bootstrap.share(int((bad & (m_w > HALF)).sum()), n),
        "by_compute": bootstrap.share(int((bad & (compute_waste > other_waste)).sum()), n),
    }


def _largest(values: list[Array]) -> Array:
    largest: Array = np.max([np.nan_to_num(one) for one in values], axis=0)
    return largest


def _median(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None
