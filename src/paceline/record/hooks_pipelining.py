"""Hooks for the schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.record.recorder import Recorder

#: Functions that make a stage's transfers -> kind of transfer.
_TRANSFERS = (
    ("get_fwd_recv_ops", "forward-recv"),
    ("get_fwd_send_ops", "forward-send"),
    ("get_bwd_recv_ops", "backward-recv"),
    ("get_bwd_send_ops", "backward-send"),
)

Tag = tuple[str, int, int]


def instrument(recorder: Recorder, schedule: Any) -> None:
    """Record a schedule's forwards, backwards, sends and recvs.

    If the schedule splits the backward (zero bubble, DualPipeV), the gradients of inputs and of
    weights are separate operations. Successive stages on the same rank exchange tensors in memory.

    Args:
        recorder: the recorder.
        schedule: a schedule of ``torch.distributed.pipelining`` with one stage per rank,
            interleaved stages, or two stages as a V.

    Raises:
        ValueError: the arrangement of stages is unknown.
    """
    stages = sorted(_stages(schedule), key=lambda stage: int(stage.stage_index))
    n_pp, rank = int(stages[0].group_size), int(stages[0].group_rank)
    places = [int(stage.stage_index) for stage in stages]
    rounds = [chunk * n_pp + rank for chunk in range(len(stages))]
    if places not in (rounds, [rank, 2 * n_pp - 1 - rank]):
        raise ValueError(
            f"rank {rank} of {n_pp} has the stages {', '.join(map(str, places))}; only one stage "
            "per rank, interleaved ones and two as a V are known"
        )
    recorder.locate(_place(stages, n_pp))
    for chunk, stage in enumerate(stages):
        recorder.wrap(stage, "forward_one_chunk", _compute(recorder, "forward-compute", chunk))
        recorder.wrap(stage, "backward_one_chunk", _compute(recorder, "backward-compute", chunk))
        recorder.wrap(
            stage, "backward_weight_one_chunk", _compute(recorder, "weight-compute", chunk)
        )
        for name, kind in _TRANSFERS:
            recorder.wrap(stage, name, _tagged(recorder, kind, chunk))
    import torch.distributed.pipelining.schedules as schedules

    recorder.wrap(schedules, "_batch_p2p", _launched(recorder))


def _stages(schedule: Any) -> Sequence[Any]:
    one = getattr(schedule, "_stage", None)
    return [one] if one is not None else list(schedule._stages)


def _place(stages: Sequence[Any], n_pp: int) -> dict[str, int]:
    """The place from the stages' process group."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(stages[0].group or dist.group.WORLD)
    world = dist.get_world_size()
    known = {"pp": n_pp, "vpp": len(stages), "pp_rank": int(stages[0].group_rank)}
    apart = ranks[1] - ranks[0] if n_pp > 1 else 1
    if apart == 1:  # stages are neighbours: replicas come one after another
        known |= {"dp": world // n_pp, "dp_rank": ranks[0] // n_pp}
    elif apart * n_pp == world:  # stages are furthest apart, as in Megatron
        known |= {"dp": apart, "dp_rank": ranks[0]}
    return known


def _compute(recorder: Recorder, kind: str, chunk: int) -> Any:
    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            with recorder.op(kind, microbatch, chunk):
                return function(microbatch, *args, **kwargs)

        return compute

    return wrapper


def _tagged(recorder: Recorder, kind: str, chunk: int) -> Any:
    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def transfers(microbatch: int) -> Any:
            ops = function(microbatch)
            if recorder.is_profiling:
                for op in ops:
                    op.paceline_tag = (kind, microbatch, chunk)
            return ops

        return transfers

    return wrapper


def _launched(recorder: Recorder) -> Any:
    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        def batch_p2p(p2p_ops: list[Any], *args: Any, **kwargs: Any) -> Any:
            if not recorder.is_profiling:
                return function(p2p_ops, *args, **kwargs)
            tags: list[Tag | None] = [getattr(op, "paceline_tag", None) for op in p2p_ops]
            launched = {tag: recorder.launch(*tag) for tag in tags if tag is not None}
            works = function(p2p_ops, *args, **kwargs)
            if len(works) == len(tags):
                return [
                    work if tag is None else launched[tag].track(work)
                    for work, tag in zip(works, tags, strict=True)
                ]
            for op in launched.values():  # one work for all of them
                works = [op.track(work) for work in works]
            return works

        return batch_p2p

    return wrapper
