"""Selection of the processes in a folder that are the ranks of its latest job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from paceline.errors import TraceError
from paceline.sources.call_logs.nccl_profiler import Process, read_processes
from paceline.units import count, several

#: Two processes of one rank run at once if they share more than this part of the shorter one's
#: time. A rank restarted on another host may overlap by the difference of the clocks.
MAX_SHARED: Final = 0.5
#: Most ranks in a note.
_NAMED: Final = 8


def read_ranks(paths: Sequence[Path]) -> tuple[dict[int, Process], list[str]]:
    """The latest process of each rank of the latest job, and notes.

    Raises:
        TraceError: a file is damaged, there is no communicator, a process has several ranks, or two
            processes had one rank at the same time.
    """
    processes = [process for process in read_processes(paths) if process.communicators]
    if not processes:
        raise TraceError(f"{paths[0]} and the files beside it have no communicator; did NCCL run?")
    _refuse_several_ranks(processes)
    latest, notes = _latest_job(processes)
    of_rank, more = _by_rank(latest)
    return of_rank, [*notes, *more]


def _refuse_several_ranks(processes: Sequence[Process]) -> None:
    """Refuse a process with several GPUs, whose files do not distinguish its ranks."""
    for process in processes:
        places = {(name, rank) for name, rank, _ in process.communicators.values()}
        if len(places) > len({name for name, _ in places}):
            raise TraceError(
                f"{_name(process)} has several ranks of one communicator; start one process per "
                "GPU, as torchrun does"
            )


def _latest_job(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """The processes without jobs that ended before the latest job began; and notes."""
    jobs = _jobs(processes)
    latest = max(jobs, key=lambda job: max(_begun_ns(process) for process in job))
    first_ns = min(_span_ns(process)[0] for process in latest)
    earlier = [
        job
        for job in jobs
        if job is not latest and max(_span_ns(process)[1] for process in job) < first_ns
    ]
    left_out = sum(map(len, earlier))
    if not left_out:
        return list(processes), []
    rest = [process for job in jobs if job not in earlier for process in job]
    what = "an earlier job" if len(earlier) == 1 else f"{len(earlier):,} earlier jobs"
    return rest, [f"{count(left_out, 'process', 'processes')} of {what} are left out"]


def _jobs(processes: Sequence[Process]) -> list[list[Process]]:
    """[job] its processes: those that share communicators, directly or through others."""
    job_of: dict[int, int] = {}  # a communicator's identity -> the number of a job
    members: dict[int, list[Process]] = defaultdict(list)
    for number, process in enumerate(processes):
        names = {name for name, _, _ in process.communicators.values()}
        first, *others = sorted({job_of[name] for name in names if name in job_of}) or [number]
        for other in others:
            members[first] += members.pop(other)
            job_of |= {name: first for name, job in job_of.items() if job == other}
        job_of |= dict.fromkeys(names, first)
        members[first].append(process)
    return list(members.values())


def _by_rank(processes: Sequence[Process]) -> tuple[dict[int, Process], list[str]]:
    """The latest process of each rank, and notes.

    The launcher gives the rank (RANK); else it is the rank in the process's largest communicator.
    """
    of_rank: dict[int, Process] = {}
    again: dict[int, None] = {}
    for job in sorted(_jobs(processes), key=lambda job: max(map(_begun_ns, job))):
        of_job: dict[int, Process] = {}
        for process in sorted(job, key=_begun_ns):
            rank = _rank(process)
            earlier = of_job.get(rank, of_rank.get(rank))
            if earlier is not None:
                _refuse_two_at_once(rank, earlier, process)
                again[rank] = None
            of_job[rank] = process
        # A replaced job loses all its ranks, as ranks of two jobs do not belong together.
        for other in _jobs([*of_rank.values()]):
            replaced = {_rank(process) for process in other}
            if replaced & of_job.keys():
                of_rank = {rank: one for rank, one in of_rank.items() if rank not in replaced}
        of_rank |= of_job
    notes = []
    if again:
        named = f"rank{'s' * (len(again) != 1)} {several([*map(str, sorted(again))], _NAMED)}"
        notes.append(f"several processes here had {named}; the one that began last counts")
    largest = max(ranks for one in processes for _, _, ranks in one.communicators.values())
    if len(of_rank) < largest:
        notes.append(f"{largest - len(of_rank)} of {largest} ranks have no files here")
    return dict(sorted(of_rank.items())), notes


def _rank(process: Process) -> int:
    given = process.meta.get("rank")
    if isinstance(given, int) and given >= 0:
        return given
    return max(process.communicators.values(), key=lambda entry: entry[2])[1]


def _refuse_two_at_once(rank: int, earlier: Process, later: Process) -> None:
    """Refuse two processes that were one rank at the same time: of two jobs, or without RANK."""
    if (earlier.meta.get("host"), earlier.meta["pid"]) == (
        later.meta.get("host"),
        later.meta["pid"],
    ):
        return  # the plugin was loaded twice
    (begin, end), (begin_too, end_too) = _span_ns(earlier), _span_ns(later)
    shared = min(end, end_too) - max(begin, begin_too)
    if shared > MAX_SHARED * min(end - begin, end_too - begin_too):
        raise TraceError(
            f"{_name(earlier)} and {_name(later)} both ran as rank {rank} at the same time: give "
            "each job a folder of its own, and each process its rank (RANK)"
        )


def _name(process: Process) -> str:
    return f"process {process.meta['pid']} on {process.meta.get('host')}"


def _begun_ns(process: Process) -> int:
    return int(str(process.meta["begun_ns"]))


def _span_ns(process: Process) -> tuple[int, int]:
    """The times of its first and last record; without records, that of its begin."""
    times = process.records["time_ns"]
    begun = _begun_ns(process)
    return (int(times.min()), int(times.max())) if len(times) else (begun, begun)
