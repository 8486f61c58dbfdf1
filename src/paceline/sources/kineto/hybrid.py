"""Hybrid sharding (HSDP) on the host: the groups of FSDP2's collectives, by its ranges.

Gloo does not say the group of a collective. FSDP2's ranges do (torch 2.13,
``_fsdp_param_group.py``, ``_fsdp_collectives.py``): ``FSDP::all_gather`` gathers within the shard
group, ``FSDP::post_backward_reduce`` scatters within it and then sums over the replicas. The two
groups are named after the dimensions of the device mesh.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from paceline.errors import TraceError
from paceline.sources.kineto.events import Collective, Group, Profile
from paceline.sources.kineto.marks import launched_kind, range_at

#: Names of the dimensions in PyTorch's documentation of HSDP, and in torchtitan 0.3.
_REPLICAS: Final = re.compile(r"(?:mesh_)?(?:dp_)?replicate")
_SHARDS: Final = re.compile(r"(?:mesh_)?(?:dp_)?shard|(?:mesh_)?fsdp")


def hybrid_groups(profile: Profile) -> tuple[Group, Group] | None:
    """The groups of a rank's replicas and shards; None unless these two make up all ranks."""
    inner = _inner(profile)
    replicas = [group for group in inner if _REPLICAS.fullmatch(group.purpose)]
    shards = [group for group in inner if _SHARDS.fullmatch(group.purpose)]
    if len(inner) != 2 or len(replicas) != 1 or len(shards) != 1:
        return None
    ((across,), (within,)) = replicas, shards
    whole = len(across.ranks) * len(within.ranks) == profile.world_size
    return (across, within) if whole else None


def _inner(profile: Profile) -> list[Group]:
    """Groups of only some ranks; each once, even if the program made its mesh several times."""
    some = [group for group in profile.groups if 1 < len(group.ranks) < profile.world_size]
    return list({(group.purpose, group.ranks): group for group in some}.values())


def with_groups(profile: Profile) -> Profile:
    """The profile with the group of each collective, if it is of a hybrid-sharded job on the host.

    Raises:
        TraceError: the groups are ambiguous: the job does not use FSDP2, or its mesh has other
            names. Or a collective of parameters or gradients is outside of FSDP's ranges.
    """
    host, groups = profile.host, hybrid_groups(profile)
    if host is None:
        return profile
    if not host.gathers or groups is None:
        _refuse_unknown(profile, "FSDP's" if host.gathers else "its")
        return profile
    launches = tuple(item._replace(group=_group(profile, item, *groups)) for item in host.launches)
    return replace(profile, collectives=launches, host=replace(host, launches=launches))


def _group(profile: Profile, item: Collective, replicas: Group, shards: Group) -> str:
    """The name of the group that ran a collective; '' for a barrier and the like."""
    host = profile.host
    assert host is not None
    if range_at(item.launch_s, host.gathers) is not None:
        return shards.name
    if range_at(item.launch_s, host.reduces) is not None:
        return replicas.name if item.name == "allreduce" else shards.name
    stepping = any(step.start_s <= item.launch_s < step.end_s for step in profile.steps)
    if stepping and launched_kind(item.name) is not None:
        raise TraceError(
            f"{profile.path}: {item.name} was called outside of FSDP's ranges, and gloo does not "
            "say whether shards, replicas or all ranks took part; leave such steps out with "
            "--steps, or record the job with paceline.record"
        )
    return ""


def _refuse_unknown(profile: Profile, whose: str) -> None:
    """Refuse collectives whose groups are unknown: gloo names no group at its collectives."""
    inner = _inner(profile)
    piped = profile.transfers or any(item.action in ("F", "B") for item in profile.ranges)
    launches = profile.host.launches if profile.host is not None else ()
    exchanges = any(launched_kind(item.name) is not None for item in launches)
    if not (inner and exchanges) or piped or profile.on_gpu:
        return
    names = ", ".join(f"{group.purpose or group.name} ({len(group.ranks)})" for group in inner)
    raise TraceError(
        f"{profile.path}: {whose} collectives run in some of the groups {names}, and gloo does not "
        "say in which; of such jobs only FSDP2 on a device mesh of the dimensions replicate and "
        "shard (or dp_replicate, dp_shard) is read. Record the job with paceline.record"
    )
