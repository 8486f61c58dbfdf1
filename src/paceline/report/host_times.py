"""Host times as lines of text."""

from __future__ import annotations

from math import isnan

from paceline.detect.host_times import STANDS_OUT, RankTimes, TimesReport
from paceline.sources.host_times.table import COMPUTE, STEP, WAIT

HEADING = "rank  group      step       compute    x others  waits in sync  late by  last"


def times_lines(report: TimesReport) -> list[str]:
    """The report for a terminal."""
    lines = [f"{report.steps} steps of {report.format} files, times of the hosts"]
    lines += [
        f"  {name:<28}{_ms(median)}  ({_ms(least).strip()} to {_ms(most).strip()}"
        f"{_ratio(report.imbalance[name])})"
        for name, (median, least, most) in report.measures.items()
    ]
    if report.ranks:
        lines += ["", HEADING]
        lines += [_rank_line(rank) for rank in report.ranks]
        lines += ["", _verdict(report)]
    lines += [f"note: {note}" for note in report.notes]
    return lines


def _rank_line(rank: RankTimes) -> str:
    step, compute, wait = (
        _ms(rank.median_s.get(name, float("nan"))) for name in (STEP, COMPUTE, WAIT)
    )
    factor = "-" if isnan(rank.factor) else f"{rank.factor:.2f}"
    last = "-" if isnan(rank.last) else f"{rank.last:.0%}"
    mark = " <" if rank.stands_out else ""
    return (
        f"{rank.rank:>4}  {rank.group or 'all':<9}{step}  {compute}  {factor:>8}  {wait:>13}"
        f"{_ms(rank.late_s)}  {last:>4}{mark}"
    )


def _verdict(report: TimesReport) -> str:
    slow = [rank for rank in report.ranks if rank.stands_out]
    if all(isnan(rank.factor) and isnan(rank.late_s) for rank in report.ranks):
        return "a slow rank cannot be found: no rank has another to be compared with"
    if not slow:
        return "nobody stands out"
    return "stands out: " + "; ".join(f"rank {rank.rank} {_reason(rank)}" for rank in slow)


def _reason(rank: RankTimes) -> str:
    if rank.factor > STANDS_OUT:
        return f"computes {rank.factor:.2f} times as long as comparable ranks"
    return f"is the last to synchronise in {rank.last:.0%} of the steps"


def _ratio(imbalance: float) -> str:
    return "" if isnan(imbalance) else f"; slowest {imbalance:.2f} times the fastest"


def _ms(seconds: float) -> str:
    return f"{'-':>9}" if isnan(seconds) else f"{seconds * 1e3:>6.1f} ms"
