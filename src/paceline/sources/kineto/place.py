"""Places of the ranks of some profiles in the job: data-parallel rank and pipeline stage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import TraceError
from paceline.sources.kineto.events import Profile
from paceline.sources.kineto.hybrid import hybrid_groups
from paceline.trace import Job

#: Descriptions of process groups: Megatron-Core's, then those of a DeviceMesh (from memory).
_PIPELINE = re.compile(r"PIPELINE_MODEL_PARALLEL_GROUP|(?:mesh_)?(?:pp|pipeline)", re.IGNORECASE)
_DATA = re.compile(r"DATA_PARALLEL_GROUP|(?:mesh_)?(?:dp|dp_replicate|data)", re.IGNORECASE)
_TENSOR = re.compile(r"TENSOR_MODEL_PARALLEL_GROUP|(?:mesh_)?(?:tp|tensor)", re.IGNORECASE)

#: Advice about files that do not make a whole job.
RANKS_HINT = "paceline ranks reports on the ranks that are here"


@dataclass(frozen=True)
class Places:
    """Places of the ranks in the job.

    Attributes:
        of_rank: global rank -> (dp, pp).
        job: degrees of parallelism.
        note: how the places were found.
        certainty: 0 to 1.
    """

    of_rank: Mapping[int, tuple[int, int]]
    job: Job
    note: str
    certainty: float


def find_places(profiles: Sequence[Profile], job: Job | None) -> Places:
    """The place of each rank: from named process groups, the job, or the pipeline's ranges.

    Raises:
        TraceError: ranks are missing or repeated, or their places are ambiguous.
    """
    _check_ranks(profiles)
    found = (
        _by_hybrid(profiles, job)
        or _by_groups(profiles, job)
        or _by_job(profiles, job)
        or _by_stages(profiles)
    )
    found = found or _by_world(profiles)
    _check_all(found, len(profiles))
    return found


def check_places(profiles: Sequence[Profile], job: Job | None) -> None:
    """Refuse files that are not a whole job, by their ranks and process groups, without events.

    Raises:
        TraceError: ranks are missing or are there twice.
    """
    _check_ranks(profiles)
    places = _by_hybrid(profiles, job) or _by_groups(profiles, job) or _by_job(profiles, job)
    if places is None:
        _need_all(profiles)
    else:
        _check_all(places, len(profiles))


def _check_all(places: Places, n_files: int) -> None:
    have = set(places.of_rank.values())
    for dp in range(places.job.dp_size):
        for pp in range(places.job.pp_size):
            if (dp, pp) not in have:
                raise TraceError(
                    f"no profile is of dp {dp}, stage {pp}; {n_files} files "
                    f"are given for {places.job.dp_size} dp ranks x {places.job.pp_size} stages: "
                    f"give one file per rank, or {RANKS_HINT}"
                )


def _check_ranks(profiles: Sequence[Profile]) -> None:
    seen: dict[int, Profile] = {}
    for profile in profiles:
        if profile.rank in seen:
            raise TraceError(
                f"{seen[profile.rank].path} and {profile.path} are both of rank {profile.rank}; "
                "give one file per rank"
            )
        if 0 < profile.world_size <= profile.rank:
            raise TraceError(
                f"{profile.path} is of rank {profile.rank}, but its world_size is "
                f"{profile.world_size}; is it damaged?"
            )
        seen[profile.rank] = profile
    sizes = sorted({profile.world_size for profile in profiles})
    if len(sizes) > 1:
        raise TraceError(
            f"the profiles are of jobs of {' and '.join(map(str, sizes))} ranks; give files of "
            "one run"
        )


def _by_hybrid(profiles: Sequence[Profile], job: Job | None) -> Places | None:
    """For hybrid sharding alone: all ranks are data parallel, though both groups have only some."""
    if any(hybrid_groups(profile) is None for profile in profiles):
        return None
    n = profiles[0].world_size
    if job is not None and (job.dp_size, job.ranks) != (n, n):
        return None
    of_rank = {profile.rank: (profile.rank, 0) for profile in profiles}
    note = "groups of shards and replicas: data parallel only"
    return Places(of_rank, job or Job(dp_size=n, pp_size=1), note, 1.0)


def _by_groups(profiles: Sequence[Profile], job: Job | None) -> Places | None:
    """The ranks' positions in the groups that are named after their purpose."""
    of_rank, sizes = {}, set()
    for profile in profiles:
        pp, pp_size = _position(profile, _PIPELINE)
        dp, dp_size = _position(profile, _DATA)
        if pp is None and dp is None:
            return None
        of_rank[profile.rank] = (dp or 0, pp or 0)
        sizes.add((dp_size, pp_size, _position(profile, _TENSOR)[1]))
    if len(sizes) > 1:
        raise TraceError(
            "the profiles' process groups are of different sizes (dp, pp, tp: "
            f"{sorted(sizes)[:4]}); give files of one run"
        )
    dp_size, pp_size, tp_size = sizes.pop()
    known = job or Job(
        dp_size=dp_size, pp_size=pp_size, tp_size=tp_size, vpp_size=_chunks(profiles, pp_size)
    )
    return Places(of_rank, known, "places follow the names of the process groups", 1.0)


def _position(profile: Profile, purpose: re.Pattern[str]) -> tuple[int | None, int]:
    """The rank's place in its group of that purpose, and the group's size; (None, 1) without."""
    for group in profile.groups:
        if purpose.fullmatch(group.purpose):
            return group.ranks.index(profile.rank), len(group.ranks)
    return None, 1


def _by_job(profiles: Sequence[Profile], job: Job | None) -> Places | None:
    """Megatron's order of ranks: tensor (and context) parallel, then data, then pipeline."""
    if job is None:
        return None
    inner = job.tp_size * job.dsp_size
    of_rank = {}
    for profile in profiles:
        if profile.rank >= job.ranks:
            raise TraceError(
                f"{profile.path} is of rank {profile.rank}, but the job has {job.ranks} ranks; "
                "is it the job file of these profiles?"
            )
        outer = profile.rank // inner
        of_rank[profile.rank] = (outer % job.dp_size, outer // job.dp_size)
    note = "places follow the job's degrees in Megatron's order (tp, dp, pp)"
    return Places(of_rank, job, note, 0.9)


def _by_stages(profiles: Sequence[Profile]) -> Places | None:
    """The stages that the ranges of torch.distributed.pipelining name; replicas by rank."""
    stages = {
        profile.rank: sorted({item.stage for item in profile.ranges if item.stage >= 0})
        for profile in profiles
    }
    if not all(stages.values()):
        return None
    n_chunks = max(len(numbers) for numbers in stages.values())
    n_stages = 1 + max(numbers[-1] for numbers in stages.values())
    if n_stages > 4096 or n_stages % n_chunks:
        raise TraceError(
            f"the profiles' ranges name {n_stages} stages, {n_chunks} on a rank; give one file per "
            "rank of one run"
        )
    pp_size = n_stages // n_chunks
    of_rank: dict[int, tuple[int, int]] = {}
    replicas = [0] * pp_size
    for rank, numbers in sorted(stages.items()):
        pp = numbers[0]
        if numbers != list(range(pp, n_stages, pp_size)):
            raise TraceError(
                f"rank {rank} has the stages {numbers[:8]} of {n_stages}; only schedules that "
                "deal the stages out in turns can be read (no V schedules)"
            )
        of_rank[rank] = (replicas[pp], pp)
        replicas[pp] += 1
    _need_all(profiles)
    job = Job(dp_size=max(replicas), pp_size=pp_size, vpp_size=n_chunks)
    return Places(of_rank, job, "stages are those of the ranges, replicas are by rank", 0.95)


def _by_world(profiles: Sequence[Profile]) -> Places:
    """One pipeline over all ranks, or, without sends and recvs, data parallelism only."""
    _need_all(profiles)
    n = len(profiles)
    if not any(profile.transfers for profile in profiles):
        of_rank = {profile.rank: (profile.rank, 0) for profile in profiles}
        return Places(of_rank, Job(dp_size=n, pp_size=1), "no transfers: data parallel only", 0.9)
    if any(len(profile.groups) > 1 for profile in profiles):
        raise TraceError(
            "the profiles do not name their process groups by purpose; pass --job with dp_size, "
            "pp_size and tp_size"
        )
    of_rank = {profile.rank: (0, profile.rank) for profile in profiles}
    return Places(of_rank, Job(dp_size=1, pp_size=n), "one pipeline over all ranks", 0.9)


def _need_all(profiles: Sequence[Profile]) -> None:
    """Refuse missing ranks where process groups do not tell the ranks' places."""
    ranks = {profile.rank for profile in profiles}
    size = max(max(profile.world_size for profile in profiles), max(ranks) + 1)
    if len(ranks) < size:
        missing = next(rank for rank in range(size) if rank not in ranks)
        here = "1 profile is" if len(ranks) == 1 else f"{len(ranks)} profiles are"
        raise TraceError(
            f"{here} here, but the job has {size} ranks (rank {missing}'s is missing): give the "
            f"profiles of all {size} ranks; {RANKS_HINT}. Of a job with tensor parallelism, one "
            "rank of each group is enough with --job"
        )


def _chunks(profiles: Sequence[Profile], pp_size: int) -> int:
    stages = [item.stage for profile in profiles for item in profile.ranges]
    return max(1, (max(stages, default=-1) + 1) // pp_size)
