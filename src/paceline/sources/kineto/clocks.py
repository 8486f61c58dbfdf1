"""Comparison of the ranks' clocks: a collective ends at the same moment on all its members."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.sources.kineto.events import Profile

#: Offsets below these are noise. With kernels, members see the end of a collective some
#: microseconds apart. If threads of the host wait for it, each sees the end once it runs again.
NOISE_S, HOST_NOISE_S = 20e-6, 10e-3

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Clocks:
    """Offsets of the ranks' clocks.

    Attributes:
        offset_s: global rank -> lead of its clock over the first rank's, seconds.
        note: how the clocks were compared.
        aligned: whether all clocks could be compared.
    """

    offset_s: Mapping[int, float]
    note: str
    aligned: bool


def align(profiles: Sequence[Profile]) -> Clocks:
    """Compare the ends of the same (group, sequence number) on the ranks that took part.

    A rank is compared with a rank whose offset is known, along the groups that connect them. The
    offset is the median over their collectives, and 0 if that is within their spread.
    """
    ends = {profile.rank: _ends(profile) for profile in profiles}
    members: dict[_Key, list[int]] = defaultdict(list)
    for rank, of_rank in ends.items():
        for key in of_rank:
            members[key].append(rank)
    shared: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, ranks in members.items():
        first = ranks[0]
        for rank in ranks[1:]:
            apart = ends[rank][key] - ends[first][key]
            shared[first][rank].append(apart)
            shared[rank][first].append(-apart)
    noise_s = NOISE_S if all(profile.on_gpu for profile in profiles) else HOST_NOISE_S
    offset = {profiles[0].rank: 0.0}
    waiting = [profiles[0].rank]
    while waiting:
        known = waiting.pop()
        for rank, distances in shared[known].items():
            if rank not in offset:
                offset[rank] = offset[known] + _typical(np.array(distances), noise_s)
                waiting.append(rank)
    alone = [profile.rank for profile in profiles if profile.rank not in offset]
    offset |= dict.fromkeys(alone, 0.0)
    furthest = max(abs(value) for value in offset.values())
    if alone and len(profiles) > 1:
        note = (
            f"clocks of {len(alone)} ranks are kept: they share no collective with rank "
            f"{profiles[0].rank}"
        )
    else:
        note = f"clocks were up to {furthest * 1e3:.3g} ms apart at the ends of collectives"
    return Clocks(offset, note, not alone)


def _typical(apart_s: npt.NDArray[np.float64], noise_s: float) -> float:
    middle = float(np.median(apart_s))
    spread = float(np.median(np.abs(apart_s - middle)))
    return middle if abs(middle) > max(3 * spread, noise_s) else 0.0


def _ends(profile: Profile) -> dict[_Key, float]:
    """(group, name, number) -> end of each collective, seconds; groups by ranks and purpose."""
    groups = {group.name: f"{group.purpose} {group.ranks}" for group in profile.groups}
    begin_s = [step.start_s for step in profile.steps]
    counted: dict[tuple[str, str], int] = defaultdict(int)
    ends = {}
    for item in profile.collectives:
        if not item.group and len(profile.groups) != 1:
            continue  # gloo does not name the group
        group = groups.get(item.group, item.group)
        if item.seq >= 0:
            ends[group, "", item.seq] = item.end_s
            continue
        # Without a number, count those of a name in each step: files may begin at different steps.
        at = bisect_right(begin_s, item.launch_s) - 1
        name = f"{item.name} of step {profile.steps[at].number if at >= 0 else -1}"
        ends[group, name, counted[group, name]] = item.end_s
        counted[group, name] += 1
    return ends
