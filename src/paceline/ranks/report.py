"""The reports of one or several ranks' profiles, without the whole job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.ranks.breakdown import Breakdown, StreamIdle, Timeline, streams_idle
from paceline.ranks.kernels import Kernel, Launches, launches, top_kernels
from paceline.ranks.passes import Passes, passes_of
from paceline.sources.devices import read_devices
from paceline.sources.kineto.device import RankFile
from paceline.sources.kineto.events import Span
from paceline.units import seconds

#: Version of the JSON form; the next one when a field changes its meaning or is dropped.
SCHEMA_VERSION = 1

#: Communication times of ranks that differ by less are equal.
LEVEL_RATIO = 1.1


#: Note where there are no times of a device.
NO_DEVICE = (
    "no event of a device is in the files, so compute, communication and idle times are unknown; "
    "profile with ProfilerActivity.CUDA, or nsys profile --trace cuda,nvtx"
)


@dataclass(frozen=True)
class StepReport:
    """One step of a rank.

    Attributes:
        number: as in ``ProfilerStep#N``.
        step_s: that range on the host, seconds.
        device: uses of the time from the step's first kernel to that of the next step, or to its
            last kernel's end; None without kernels.
    """

    number: int
    step_s: float
    device: Breakdown | None


@dataclass(frozen=True)
class RankReport:
    """Content of one rank's profile.

    Attributes:
        path: the file.
        rank: global rank; None if unknown.
        world_size: number of the job's ranks; 0 = unknown.
        device_name: name of the device, and its process if a file has several; '' = unknown.
        steps: its ``ProfilerStep`` ranges; empty if the job did not call ``prof.step()``.
        device: uses of the time from the device's first event to its last end; None without events.
        kernels: by their time, the longest first.
        streams: idle time of each stream.
        launches: how the host launched the device's work.
        operators: outermost operators on the host, by time; only if ``device`` is None.
        passes: forwards, backwards and gradients of weights, if there are ranges such as
            ``attn(F)``.
    """

    path: Path
    rank: int | None
    world_size: int
    device_name: str
    steps: tuple[StepReport, ...]
    device: Breakdown | None
    kernels: tuple[Kernel, ...]
    streams: tuple[StreamIdle, ...]
    launches: Launches
    operators: tuple[Kernel, ...]
    passes: Passes | None = None

    @property
    def label(self) -> str:
        """``rank 3``, or the device if the rank is unknown."""
        return f"rank {self.rank}" if self.rank is not None else self.device_name or "rank not told"

    @property
    def communication_s(self) -> float:
        """Communication time of the device, seconds; 0 without events."""
        return 0.0 if self.device is None else self.device.communication_s

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return {
            "file": str(self.path),
            "rank": self.rank,
            "world_size": self.world_size,
            "device_name": self.device_name,
            "steps": [
                {
                    "number": step.number,
                    "step_s": step.step_s,
                    "device": None if step.device is None else step.device.to_mapping(),
                }
                for step in self.steps
            ],
            "device": None if self.device is None else self.device.to_mapping(),
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "streams": [asdict(stream) for stream in self.streams],
            "launches": asdict(self.launches),
            "operators": [asdict(operator) for operator in self.operators],
            "passes": None if self.passes is None else self.passes.to_mapping(),
        }


@dataclass(frozen=True)
class RanksReport:
    """The reports of some ranks of a job, by rank.

    Attributes:
        ranks: one report per file.
        notes: limits of the numbers, and the use of more ranks.
    """

    ranks: tuple[RankReport, ...]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return {
            "schema": SCHEMA_VERSION,
            "ranks": [rank.to_mapping() for rank in self.ranks],
            "notes": list(self.notes),
        }


def rank_report(paths: str | Path | Sequence[str | Path], *, last_step: bool = True) -> RanksReport:
    """Report on profiles of ``torch.profiler`` and other tools, of any ranks of a job.

    Nothing is simulated: with some ranks only, the slowdown S cannot be known.

    Args:
        paths: one file, or several of one job; gzip or not.
        last_step: include the last ``ProfilerStep``, which HTA leaves out by default.

    Raises:
        TraceError: a file is unreadable or no profile, or two are of one rank or of several jobs.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not given:
        raise TraceError("no profile is given; give one file per rank")
    reports: list[RankReport] = []
    notes: dict[str, None] = {}
    for path in given:
        devices = read_devices(path)
        reports += [_report(file, last_step) for file in devices.ranks]
        notes |= dict.fromkeys(devices.notes)
    reports.sort(key=lambda report: -1 if report.rank is None else report.rank)
    _check_one_job(reports)
    return RanksReport(tuple(reports), (*_notes(reports), *notes))


def _report(file: RankFile, last_step: bool) -> RankReport:
    steps = file.steps if last_step or len(file.steps) < 2 else file.steps[:-1]
    events = _taken(file, last_step)
    timeline = Timeline(file, events) if events.any() else None
    return RankReport(
        path=file.path,
        rank=file.rank,
        world_size=file.world_size,
        device_name=file.device,
        steps=tuple(_steps(file, steps, timeline, events)),
        device=None if timeline is None else timeline.breakdown(),
        kernels=top_kernels(file, events),
        streams=streams_idle(file, events),
        launches=launches(file, events),
        operators=_operators(file),
        passes=None if timeline is None else passes_of(file, events),
    )


def _taken(file: RankFile, last_step: bool) -> npt.NDArray[np.bool_]:
    """[event] whether it counts.

    As in HTA: with several steps, the events launched until their end, else all.
    """
    if len(file.steps) < 2 or np.isnan(file.launch_s).all():
        return np.ones(len(file.start_s), dtype=bool)
    last = file.steps[-1]
    with np.errstate(invalid="ignore"):
        if last_step:
            return np.asarray(file.launch_s <= last.end_s)
        return np.asarray(file.launch_s < last.start_s)


def _steps(
    file: RankFile,
    steps: Sequence[Span],
    timeline: Timeline | None,
    events: npt.NDArray[np.bool_],
) -> Iterable[StepReport]:
    begun = [_first_start_s(file, step, events) for step in steps]
    for place, step in enumerate(steps):
        low_s = begun[place]
        device = None
        if timeline is not None and low_s is not None:
            following = [at_s for at_s in begun[place + 1 :] if at_s is not None]
            device = timeline.breakdown(low_s, following[0] if following else None)
        yield StepReport(step.number, step.end_s - step.start_s, device)


def _first_start_s(file: RankFile, step: Span, events: npt.NDArray[np.bool_]) -> float | None:
    """Begin of the first event that a step launched; without launches, within the range."""
    at_s = file.start_s if np.isnan(file.launch_s).all() else file.launch_s
    inside = events & (at_s >= step.start_s) & (at_s < step.end_s)
    return float(file.start_s[inside].min()) if inside.any() else None


def _operators(file: RankFile) -> tuple[Kernel, ...]:
    operators = file.operators
    if not len(operators.name):
        return ()
    totals_s = np.bincount(operators.name, operators.end_s - operators.start_s)
    counts = np.bincount(operators.name)
    whole_s = float(totals_s.sum()) or 1.0
    return tuple(
        Kernel(file.names[row], "host", int(counts[row]), float(totals_s[row]), total / whole_s)
        for row in np.argsort(-totals_s, kind="stable").tolist()
        if counts[row] and (total := float(totals_s[row])) >= 0
    )


def _check_one_job(reports: Sequence[RankReport]) -> None:
    ranks = Counter(report.rank for report in reports if report.rank is not None)
    for rank, n in ranks.items():
        if n > 1:
            paths = [str(report.path) for report in reports if report.rank == rank]
            raise TraceError(
                f"{paths[0]} and {paths[1]} are both of rank {rank}; give one file per rank"
            )
    sizes = sorted({report.world_size for report in reports if report.world_size})
    if len(sizes) > 1:
        raise TraceError(
            f"the profiles are of jobs of {' and '.join(map(str, sizes))} ranks; give files of "
            "one run"
        )


def _notes(reports: Sequence[RankReport]) -> Iterable[str]:
    """Questions that these ranks cannot answer."""
    world = max(report.world_size for report in reports)
    if world > len(reports):
        yield (
            f"{len(reports)} of {world} ranks: the job's slowdown S and who slows whom need the "
            "profiles of all; then use paceline import"
        )
    devices = [report for report in reports if report.device is not None]
    if not devices:
        yield NO_DEVICE
    yield from _waiting_notes([rank for rank in devices if rank.communication_s > 0])
    if any(report.launches.missing for report in devices):
        missing = sum(report.launches.missing for report in devices)
        yield (
            f"the launches of {missing:,} events are not in the files; idle time in front of them "
            "counts as the device's"
        )
    if any(not report.steps for report in reports):
        yield (
            "files without ProfilerStep#N are one window; call prof.step() after each step, under "
            "Nsight Systems put an NVTX range 'step N' around it"
        )


def _waiting_notes(ranks: Sequence[RankReport]) -> Iterable[str]:
    """The part of the communication that may be waiting, according to these ranks."""
    if len(ranks) == 1:
        yield (
            "a communication kernel also runs while it waits for other ranks; which part of its "
            "time that is, profiles of these ranks would tell"
        )
    if len(ranks) < 2 or len({tuple(step.number for step in rank.steps) for rank in ranks}) > 1:
        return
    least = min(ranks, key=lambda rank: rank.communication_s)
    most = max(ranks, key=lambda rank: rank.communication_s)
    if most.communication_s > LEVEL_RATIO * least.communication_s:
        yield (
            f"communication takes {seconds(least.communication_s)} on {least.label}, "
            f"{seconds(most.communication_s)} on {most.label}: where they run the same "
            "collectives, the difference is waiting for a rank that comes late, as "
            f"{least.label} may"
        )
