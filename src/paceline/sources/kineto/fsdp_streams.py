"""Waits of FSDP2's streams, by the rules of its source, if no stream wait is recorded.

Rules and names of ranges are those of torch 2.13 (``torch/distributed/fsdp/_fully_shard/``,
``_fsdp_param_group.py`` and ``_fsdp_state.py``). No profile of FSDP2 on CUDA was available.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.sources.kineto.events import UnitRange
from paceline.sources.kineto.streams import Bound, DeviceEvent


class FsdpRanges(NamedTuple):
    """Ranges of the host by start, seconds.

    Attributes:
        gathers: ``FSDP::all_gather (unit)``.
        copies: ``FSDP::all_gather_copy_out (unit)``, in front of which the main stream waits.
        reduces: ``FSDP::post_backward_reduce (unit)``.
        waits: ``FSDP::post_backward_rs_wait (unit)``, which waits for earlier reductions.
        ends: ``FSDP::root_post_backward_callback``, which waits for the last one.
        begins: ``FSDP::root_pre_forward``, in which gathers wait for the main stream.
    """

    gathers: Sequence[UnitRange]
    copies: Sequence[UnitRange]
    reduces: Sequence[UnitRange]
    waits: Sequence[UnitRange]
    ends: Sequence[UnitRange]
    begins: Sequence[UnitRange]


def fsdp_bounds(
    collectives: Sequence[DeviceEvent],
    main_launch_s: Sequence[float],
    ranges: FsdpRanges,
    forward: Mapping[int, bool],
) -> dict[int, Bound]:
    """Places of FSDP2's collectives in the main stream.

    Args:
        collectives: the kernels that communicate, by launch.
        main_launch_s: [event of the main stream] its launch, ascending.
        ranges: FSDP2's ranges.
        forward: correlation of a collective -> whether the main thread launched it.
    """

    def first_row(at_s: float) -> int:
        row = bisect_left(main_launch_s, at_s)
        return row if row < len(main_launch_s) else -1

    def rows_until(at_s: float) -> int:
        return bisect_left(main_launch_s, at_s) - 1

    bounds: dict[int, Bound] = {}
    for item in collectives:
        at_s = item.launch_s
        gather, reduce = _around(ranges.gathers, at_s), _around(ranges.reduces, at_s)
        if gather is not None:
            # A forward frees its copies behind the next copy-out, a backward at once.
            place = bisect_left(ranges.copies, at_s, key=lambda one: one.end_s)
            place -= 2 if forward.get(item.collective, True) else 1
            root = _before(ranges.begins, at_s)
            behind = max(
                rows_until(ranges.copies[place].end_s) if place >= 0 else -1,
                rows_until(root.start_s) if root else -1,
            )
            copy = _behind(ranges.copies, at_s, gather.unit)
            bounds[item.collective] = Bound(behind, first_row(copy.start_s) if copy else -1)
        elif reduce is not None:
            waits = [_behind(some, at_s) for some in (ranges.waits or ranges.reduces, ranges.ends)]
            needed_s = min((one.start_s for one in waits if one), default=float("inf"))
            bounds[item.collective] = Bound(rows_until(at_s), first_row(needed_s))
        else:
            bounds[item.collective] = Bound(rows_until(at_s), first_row(at_s))
    return bounds


def _around(ranges: Sequence[UnitRange], at_s: float) -> UnitRange | None:
    """The range around a moment; none is inside another."""
    one = _before(ranges, at_s)
    return one if one is not None and at_s < one.end_s else None


def _before(ranges: Sequence[UnitRange], at_s: float) -> UnitRange | None:
    """The last range that began up to a moment."""
    place = bisect_left(ranges, at_s, key=lambda one: one.start_s) - 1
    return ranges[place] if place >= 0 else None


def _behind(ranges: Sequence[UnitRange], at_s: float, unit: str | None = None) -> UnitRange | None:
    """The next range that begins after a moment, of a unit or of any."""
    place = bisect_left(ranges, at_s, key=lambda one: one.start_s)
    return next((one for one in ranges[place:] if unit is None or one.unit == unit), None)
