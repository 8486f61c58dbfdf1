"""NCCL's kernels in a profile -> sends, recvs and collectives.

The names of arguments are those of PyTorch's ``ParamCommsUtils`` (from memory): ``Collective
name``, ``Process Group Name``, ``In msg nelems`` and ``Seq``. A send or recv also has ``Dst Rank``
or ``Src Rank``, a number within its group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.sources.fields import optional_whole
from paceline.sources.kineto.events import Collective, Group, Transfer

_P2P = ("send", "recv")


class Call(NamedTuple):
    """A ``record_param_comms`` op: its begin (seconds), and its arguments."""

    start_s: float
    args: Any


class Kernel(NamedTuple):
    """A kernel of NCCL. Seconds."""

    correlation: int
    start_s: float
    end_s: float
    name: str
    args: Any
    launch_s: float = 0.0


#: A transfer, the name of its group, and its peer as the file has it.
_Sided = tuple[Transfer, str, int | None]


def communication(
    kernels: Sequence[Kernel],
    calls: Sequence[Call],
    groups: Sequence[Group],
    rank: int,
    unplaced: Counter[str],
) -> tuple[list[Transfer], list[Collective]]:
    """Sends and recvs, and all other communication.

    A batch of sends and recvs has one kernel, which gets all calls since the last such kernel.

    Args:
        kernels: NCCL's kernels.
        calls: the communication calls on the host.
        groups: the process groups that the rank is in.
        rank: global rank.
        unplaced: reason -> count; calls without a kernel are counted here.
    """
    calls = sorted(calls, key=lambda call: call.start_s)
    waiting = [call for call in calls if _name(call.args) in _P2P]
    others = [call for call in calls if _name(call.args) not in _P2P]
    waiting_s, others_s = ([call.start_s for call in part] for part in (waiting, others))
    transfers: list[_Sided] = []
    collectives = []
    n_done = 0
    for kernel in sorted(kernels, key=lambda kernel: kernel.launch_s):
        name = _name(kernel.args)
        # An all-to-all is made of sends and recvs, too.
        if "sendrecv" not in kernel.name.lower() or "all" in name:
            before = bisect_right(others_s, kernel.launch_s)
            args = kernel.args if name else others[before - 1].args if before else None
            collectives.append(_collective(kernel, args))
            continue
        ready = max(n_done, bisect_right(waiting_s, kernel.launch_s))
        done, n_done = waiting[n_done:ready], ready
        if not waiting and name in _P2P:  # no calls were recorded
            done = [Call(kernel.launch_s, kernel.args)]
        if not done:
            unplaced["kernels of sends and recvs without a call"] += 1
        transfers += [_transfer(kernel, call) for call in done]
    unplaced["calls to send and receive without a kernel"] += len(waiting) - n_done
    return _with_peers(transfers, groups, rank), collectives


def _transfer(kernel: Kernel, call: Call) -> _Sided:
    sends = _name(call.args) == "send"
    transfer = Transfer(call.start_s, kernel.start_s, kernel.end_s, sends, -1)
    peer = optional_whole(call.args.dst_rank if sends else call.args.src_rank)
    return transfer, str(call.args.process_group_name), peer


def _name(args: Any) -> str:
    return "" if args.collective_name is None else str(args.collective_name).lower()


def _collective(kernel: Kernel, args: Any | None) -> Collective:
    """The collective of a kernel; ``args`` are the arguments of PyTorch's call, None = unknown."""
    name, group, seq, elements = kernel.name.lower(), "", None, None
    if args is not None:
        name = _name(args) or name
        group = "" if args.process_group_name is None else str(args.process_group_name)
        seq, elements = optional_whole(args.seq), optional_whole(args.in_msg_nelems)
    return Collective(
        kernel.launch_s,
        kernel.start_s,
        kernel.end_s,
        # _reduce_scatter_base, allgather_into_tensor_coalesced, ncclDevKernel_AllGather_RING_LL
        name.replace("_", "").replace("nccldevkernel", "").replace("ncclkernel", ""),
        group,
        -1 if seq is None else seq,
        elements or 0,
        kernel.correlation,
    )


def _with_peers(transfers: Sequence[_Sided], groups: Sequence[Group], rank: int) -> list[Transfer]:
    """Peers as global ranks: the file counts them within the group, unless that is impossible."""
    members = {group.name: group.ranks for group in groups}
    with_ranks = [(transfer, members.get(name, ()), peer) for transfer, name, peer in transfers]
    within = all(
        peer < len(ranks) and ranks[peer] != rank
        for _, ranks, peer in with_ranks
        if peer is not None and ranks
    )
    return [
        transfer._replace(peer=-1 if peer is None else ranks[peer] if within and ranks else peer)
        for transfer, ranks, peer in with_ranks
    ]
