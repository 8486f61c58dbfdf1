"""Kernels by their share of a device's time, and their launches by the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.sources.kineto.device import RankFile, Work

#: Share of the events that begin before their call has ended, above which the calls are not
#: launches. It is 1.00 on MTIA (calls that last as long as the work), at most 0.4 on NVIDIA and
#: AMD.
_MAX_EARLY = 0.5


@dataclass(frozen=True)
class Kernel:
    """All events of one name.

    Attributes:
        name: name in the file.
        work: its purpose: ``compute``, ``communication``, ``memory`` or ``other``.
        count: number of events.
        total_s: sum of their durations, seconds.
        share: of the durations of all events of the device.
    """

    name: str
    work: str
    count: int
    total_s: float
    share: float


@dataclass(frozen=True)
class Launches:
    """How the host launched a device's kernels and copies.

    Attributes:
        count: events whose launch is in the file.
        missing: events whose launch is not in the file.
        delay_median_s: from the launching call's end to the event's begin, seconds, at least 0 (as
            HTA's ``get_cuda_kernel_launch_stats``).
        delay_p95_s: the 95th percentile of the same.
        shorter_than_launch: share of events that are shorter than the call that launched them.

    The last three are None without launches, or if most events begin before their call ends. Such a
    call lasts as long as the work instead of only launching it.
    """

    count: int
    missing: int
    delay_median_s: float | None
    delay_p95_s: float | None
    shorter_than_launch: float | None


def top_kernels(file: RankFile, events: npt.NDArray[np.bool_]) -> tuple[Kernel, ...]:
    """Kernels by their time, the longest first; one entry for each name and kind of work."""
    if not events.any():
        return ()
    duration_s = (file.end_s - file.start_s)[events]
    keys, inverse, counts = np.unique(
        np.stack([file.name[events], file.work[events]]),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    totals_s = np.bincount(inverse.ravel(), weights=duration_s)
    whole_s = float(totals_s.sum()) or 1.0
    return tuple(
        Kernel(
            name=file.names[int(keys[0, row])],
            work=Work(int(keys[1, row])).name.lower(),
            count=int(counts[row]),
            total_s=float(totals_s[row]),
            share=float(totals_s[row]) / whole_s,
        )
        for row in np.argsort(-totals_s, kind="stable")
    )


def launches(file: RankFile, events: npt.NDArray[np.bool_]) -> Launches:
    """The launches of a file's events."""
    launched = events & ~np.isnan(file.launch_s)
    n = int(launched.sum())
    missing = int(events.sum()) - n
    delay_s = (file.start_s - file.launched_s)[launched]
    if not n or (delay_s < 0).mean() > _MAX_EARLY:
        return Launches(n, missing, None, None, None)
    delay_s = delay_s.clip(min=0)
    call_s = (file.launched_s - file.launch_s)[launched]
    shorter = (file.end_s - file.start_s)[launched] < call_s
    return Launches(
        count=n,
        missing=missing,
        delay_median_s=float(np.median(delay_s)),
        delay_p95_s=float(np.quantile(delay_s, 0.95)),
        shorter_than_launch=float(shorter.mean()),
    )
