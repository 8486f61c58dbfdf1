"""Kineto: Chrome traces of the PyTorch profiler, one file per rank.

Three sources determine the kind of an op. First come the ranges of
``torch.distributed.pipelining``. Without them the launching thread decides (forward: the main one,
backward: autograd's), with the calls to send and receive. Steps are ``ProfilerStep#N``, else
updates of the optimizer, else the period of the communication. Places in the job come from the
names of the process groups in ``distributedInfo``, or else from the job. See
:mod:`paceline.sources.kineto.profile` for the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.errors import TraceError
from paceline.sources.imported import Imported, OpTable
from paceline.sources.json_stream import first_events
from paceline.sources.kineto.clocks import align
from paceline.sources.kineto.events import Collective, Group, Profile, Work
from paceline.sources.kineto.headers import check_headers
from paceline.sources.kineto.hybrid import with_groups
from paceline.sources.kineto.loads import waits_by_step
from paceline.sources.kineto.notes import Way
from paceline.sources.kineto.ops import RankOp, rank_ops
from paceline.sources.kineto.overlap import check_overlaps, overlapped_ops, overlaps, with_tails
from paceline.sources.kineto.place import Places, find_places
from paceline.sources.kineto.profile import read_profile
from paceline.sources.kineto.programs import has_program, program_ops
from paceline.sources.kineto.steps import CERTAINTY, find_steps
from paceline.sources.kineto.stream_programs import streamed_ops
from paceline.sources.kineto.transfers import end_together, with_direction
from paceline.trace import Job, OpKind

#: All-reduces over the data-parallel group below this share of the largest are no gradients; they
#: may be the loss or counters.
GRADIENT_SHARE = 0.01

_NO_WORK = Work(np.empty(0), np.empty(0), np.empty(0), np.empty(0, dtype=bool))


def matches(path: Path) -> bool:
    """Whether the file is a profile: events of the profiler's categories, or its header."""
    start = first_events(path, 200)
    if start is None:
        return False
    events, header = start
    known = {"cpu_op", "user_annotation", "kernel", "cuda_runtime", "Operator", "Trace"}
    return "distributedInfo" in header or any(
        isinstance(event.get("cat"), str) and event["cat"] in known for event in events
    )


def read(
    paths: Sequence[Path], job: Job | None = None, steps: frozenset[int] | None = None
) -> Imported:
    """Read the profiles of all ranks of a job.

    Args:
        paths: one file per rank, gzip or not.
        job: degrees of parallelism; None takes them from the process groups or the ranges.
        steps: step numbers to keep; None keeps all.

    Raises:
        TraceError: a file is damaged or no profile, ranks are missing, or their steps, places or
            counts contradict each other.
    """
    if not paths:
        raise TraceError("no profiles are given; give one file per rank")
    check_headers(paths, job)
    unplaced: Counter[str] = Counter()
    aside: Counter[str] = Counter()
    profiles, ops_of, ways = [], {}, {}
    for path in paths:
        profile = read_profile(path)
        unplaced.update(profile.unplaced)
        spans, ways[profile.rank] = find_steps(profile)
        # Faults of other steps do not matter; where no step is left, table.finish says so.
        spans = tuple(s for s in spans if steps is None or s.number in steps) or spans
        profile = with_groups(replace(profile, steps=tuple(spans)))
        if not has_program(profile):
            ops = rank_ops(profile, spans, unplaced, aside)
            check_overlaps(ops, profile)
            ops_of[profile.rank] = with_tails(ops, profile)
            profile = replace(profile, host=None, copies=())
        # The kernels are not needed any more; the other ranks need the memory.
        profiles.append(replace(profile, work=_NO_WORK, steps=spans))
    if len(set(ways.values())) > 1:
        raise TraceError(
            "some profiles have ProfilerStep or Optimizer.step ranges, others not, so their steps "
            "cannot be matched; profile all ranks alike"
        )
    places, clocks = find_places(profiles, job), align(profiles)
    programmed = _programmed(profiles, places)
    if programmed:
        ops_of = program_ops(profiles)
    for profile in profiles:
        ops = ops_of[profile.rank]
        if not programmed:
            ops += _collectives(profile, places, unplaced)
        ahead_s = clocks.offset_s[profile.rank]
        ops_of[profile.rank] = [
            op._replace(start_s=op.start_s - ahead_s, end_s=op.end_s - ahead_s)
            for op in with_direction(ops, profile.rank, places, unplaced)
        ]
    streamed = _streamed(profiles, places)
    if streamed:
        ops_of = _stream_programs(profiles, ops_of, clocks.offset_s, unplaced)
    overlapped = not streamed and _overlapped(profiles, places, ops_of)
    if overlapped:
        ops_of = overlapped_ops(ops_of)
    on_host = not any(profile.on_gpu for profile in profiles)
    if on_host and not programmed:
        end_together(ops_of, places)
    table = OpTable()
    for rank, ops in ops_of.items():
        _add(table, rank, ops, places)
    way = Way(
        runs=not programmed
        and not any(item.action in ("F", "B") for p in profiles for item in p.ranges),
        overlapped=overlapped,
        streamed=streamed,
        by_rule=streamed and any(p.stream is not None and p.stream.by_rule for p in profiles),
        programmed=programmed,
        on_host=on_host,
        hidden_waits=0
        if on_host or streamed
        else sum(_hidden_waits(profile, places) for profile in profiles),
    )
    steps_by = next(iter(ways.values()))
    imported = table.finish(
        places.job,
        str(paths[0]) if len(paths) == 1 else f"{len(paths)} profiles",
        steps=steps,
        unplaced=unplaced,
        certainty=CERTAINTY[steps_by] * places.certainty * way.certainty(places.job.vpp_size),
        notes=(f"steps are the {steps_by}", places.note, clocks.note, *way.notes(aside)),
        by_order=True,
    )
    numbers, shape = imported.trace.steps.tolist(), imported.trace.rank.shape
    waits = waits_by_step(profiles, places.of_rank, numbers, shape)
    return replace(imported, trace=replace(imported.trace, data_wait_s=waits))


def _programmed(profiles: Sequence[Profile], places: Places) -> bool:
    """Whether the ranks are data parallel only and all profiles have their launches."""
    have = [has_program(profile) for profile in profiles]
    if any(have) and not all(have):
        odd = profiles[have.index(False)].path
        raise TraceError(
            f"{odd} is of another kind than the other ranks' profiles (its process groups, "
            "devices or transfers differ); profile all ranks alike"
        )
    if all(have) and places.job.dp_size != len(profiles):
        raise TraceError(
            f"the profiles are of {len(profiles)} ranks that exchange parameters and gradients "
            f"with all others, but the job has {places.job.dp_size} data-parallel ranks"
        )
    return all(have)


def _streamed(profiles: Sequence[Profile], places: Places) -> bool:
    """Whether all ranks are GPUs of a data-parallel job whose profiles have stream waits."""
    have = [
        profile.stream is not None and not profile.transfers and not profile.ranges
        for profile in profiles
    ]
    if any(have) and not all(have):
        odd = profiles[have.index(False)].path
        raise TraceError(
            f"{odd} has no stream waits, other ranks' profiles do; set enable_cuda_sync_events on "
            "all ranks"
        )
    streamed = all(have) and places.job.pp_size == 1
    if streamed:
        for profile in profiles:
            _check_groups(profile, places)
    return streamed


def _check_groups(profile: Profile, places: Places) -> None:
    """Refuse exchanges within some of the data-parallel ranks: a program needs those of all."""
    groups = {group.name: group for group in profile.groups}
    for name in {item.group for item in profile.collectives} & groups.keys():
        dp_ranks = {places.of_rank[rank][0] for rank in groups[name].ranks}
        if _over_data(groups[name], profile.rank, places) and len(dp_ranks) < places.job.dp_size:
            raise TraceError(
                f"{profile.path}: the process group {name} has {len(dp_ranks)} of the "
                f"{places.job.dp_size} data-parallel ranks (HSDP?), and this reader takes only "
                "groups of all; record such a job with paceline.record"
            )


def _stream_programs(
    profiles: Sequence[Profile],
    ops_of: Mapping[int, Sequence[RankOp]],
    offset_s: Mapping[int, float],
    unplaced: Counter[str],
) -> dict[int, list[RankOp]]:
    """Rank -> its ops with their places in the program of its main stream."""
    programs = {}
    for profile in profiles:
        stream, ops = profile.stream, ops_of[profile.rank]
        assert stream is not None
        lost = [op for op in ops if op.kernel >= 0 and op.kernel not in stream.bounds]
        unplaced["collectives whose launch is not in the file"] += len(lost)
        stream = stream.ran_later(-offset_s[profile.rank])
        programs[profile.rank] = streamed_ops(ops, stream, profile.steps, profile.optimizer)
    return programs


def _overlapped(
    profiles: Sequence[Profile], places: Places, ops_of: Mapping[int, Sequence[RankOp]]
) -> bool:
    """Whether all ranks are GPUs of a data-parallel job that exchange gradients in backwards."""
    return (
        places.job.pp_size == 1
        and all(p.on_gpu and not p.transfers and not p.ranges for p in profiles)
        and all(overlaps(ops) for ops in ops_of.values())
    )


def _add(table: OpTable, rank: int, ops: Sequence[RankOp], places: Places) -> None:
    dp, pp = places.of_rank[rank]
    for op in ops:
        assert op.kind is not None  # with_direction sets it
        compute = op.kind <= OpKind.BACKWARD_COMPUTE
        table.add(
            rank=rank,
            dp=dp,
            pp=pp,
            step=op.step,
            kind=op.kind,
            start_s=op.start_s,
            end_s=op.end_s,
            chunk=op.stage // places.job.pp_size if compute and op.stage >= 0 else -1,
            microbatch=op.microbatch if compute else -1,
            part=op.part,
            issued=op.issued,
            awaited=op.awaited,
            group=op.group,
        )


def _collectives(profile: Profile, places: Places, unplaced: Counter[str]) -> list[RankOp]:
    """Collectives over the rank's data-parallel peers, and those of tied embeddings."""
    groups = {group.name: group for group in profile.groups}
    if len(groups) == 1:  # gloo does not name the group, but there is only one
        groups[""] = profile.groups[0]
    over_data = {name for name, group in groups.items() if _over_data(group, profile.rank, places)}
    largest = max((c.elements for c in profile.collectives if c.group in over_data), default=0)
    ops = []
    for item in profile.collectives:
        group = groups.get(item.group)
        if group is None:
            unplaced["collectives of unknown groups"] += 1
            continue
        kind = _kind(item, largest) if item.group in over_data else None
        if "EMBEDDING" in group.purpose and "allreduce" in item.name:
            kind = OpKind.EMBEDDING_GRADS_ALL_REDUCE
        number = next(
            (s.number for s in profile.steps if s.start_s <= item.launch_s < s.end_s), None
        )
        if kind is not None and number is not None:
            op = RankOp(kind, number, item.start_s, item.end_s, launch_s=item.launch_s)
            ops.append(op._replace(kernel=item.kernel))
        elif kind is not None:
            unplaced["collectives outside of any step"] += 1
    return ops


def _hidden_waits(profile: Profile, places: Places) -> int:
    """Number of all-to-alls of several replicas in a profile's steps: experts exchange tokens."""
    groups = {group.name: group for group in profile.groups}
    return sum(
        "alltoall" in item.name
        and item.group in groups
        and _over_data(groups[item.group], profile.rank, places)
        and any(step.start_s <= item.launch_s < step.end_s for step in profile.steps)
        for item in profile.collectives
    )


def _over_data(group: Group, rank: int, places: Places) -> bool:
    """Whether a group has ranks of one stage only, of several replicas."""
    known = [places.of_rank[other] for other in group.ranks if other in places.of_rank]
    stage = places.of_rank[rank][1]
    return all(pp == stage for _, pp in known) and len({dp for dp, _ in known}) > 1


def _kind(item: Collective, largest: int) -> OpKind | None:
    if "reducescatter" in item.name:
        return OpKind.GRADS_REDUCE_SCATTER
    if "allgather" in item.name:
        return OpKind.PARAMS_ALL_GATHER
    if "allreduce" in item.name and item.elements >= GRADIENT_SHARE * largest:
        return OpKind.GRADS_REDUCE_SCATTER
    return None
