"""The place of this process in its job, from arguments, torch.distributed, or the launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Launchers' variables: (rank, number of ranks).
_RANKS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
#: (run, restart): together they identify one start of the job.
_RUNS = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
)


@dataclass(frozen=True)
class Place:
    """The place of a process in its job.

    Attributes:
        rank: global rank.
        world: number of ranks.
        dp: replicas.
        pp: pipeline stages.
        tp: tensor-parallel ranks.
        cp: context-parallel ranks.
        vpp: model chunks per stage.
        dp_rank: this rank's replica.
        pp_rank: this rank's stage.
        run: the run's name.
        session: a name shared by all ranks of one start of the job; empty = unknown.
    """

    rank: int
    world: int
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    dp_rank: int
    pp_rank: int
    run: str
    session: str

    def to_mapping(self) -> dict[str, Any]:
        """The place in the form of the file's header."""
        return asdict(self)


def process_group() -> Any:
    """``torch.distributed`` if a process group is initialised, otherwise None; imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def find_place(
    folder: Path,
    given: Mapping[str, int | str | None],
    env: Mapping[str, str] = os.environ,
) -> Place:
    """The place of this process; ``given`` values (fields of :class:`Place`) take precedence.

    By default, ranks count in Megatron's order: tensor-parallel peers are neighbours, then
    context-parallel ones, then replicas, and stages are furthest apart.

    Raises:
        ValueError: the degrees do not multiply to the number of ranks, or a rank is out of range.
    """
    known = {**_launched(env), **_grouped(), **megatron_place()}
    known |= {name: value for name, value in given.items() if value is not None}
    number = {name: int(value) for name, value in known.items() if name not in ("run", "session")}
    tp, cp, pp = (number.get(name, 1) for name in ("tp", "cp", "pp"))
    world = number.get("world", tp * cp * pp * number.get("dp", 1))
    dp = number.get("dp", max(1, world // (tp * cp * pp)))
    rank = number.get("rank", 0)
    if min(tp, cp, pp, dp) < 1 or dp * tp * cp * pp != world or not 0 <= rank < world:
        raise ValueError(
            f"rank {rank} of {world} does not fit dp {dp} x pp {pp} x tp {tp} x cp {cp}; give "
            "dp=, pp=, tp= and cp= as the job has them"
        )
    return Place(
        rank=rank,
        world=world,
        dp=dp,
        pp=pp,
        tp=tp,
        cp=cp,
        vpp=number.get("vpp", 1),
        dp_rank=number.get("dp_rank", rank // (tp * cp) % dp),
        pp_rank=number.get("pp_rank", rank // (tp * cp * dp)),
        run=str(known.get("run") or folder.resolve().name),
        session=str(known.get("session") or ""),
    )


def _launched(env: Mapping[str, str]) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for rank, world in _RANKS:
        if env.get(rank, "").isdecimal() and env.get(world, "").isdecimal():
            found |= {"rank": int(env[rank]), "world": int(env[world])}
            break
    for run, restart in _RUNS:
        if env.get(run) and env[run] != "none":  # torchrun --standalone may set none
            found["session"] = f"{env[run]}.{env.get(restart, '0')}"
            if not _is_random(env[run]):
                found["run"] = env[run]
            break
    return found


def _is_random(name: str) -> bool:
    """Whether it is a UUID, which torchrun makes without ``--rdzv-id``."""
    return [len(part) for part in name.split("-")] == [8, 4, 4, 4, 12]


def _grouped() -> dict[str, int]:
    distributed = process_group()
    if distributed is None:
        return {}
    return {"rank": distributed.get_rank(), "world": distributed.get_world_size()}


def megatron_place() -> dict[str, int]:
    """The place from Megatron-Core's parallel state, if imported and initialised."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {
        "dp": state.get_data_parallel_world_size(),
        "pp": state.get_pipeline_model_parallel_world_size(),
        "tp": state.get_tensor_model_parallel_world_size(),
        "cp": state.get_context_parallel_world_size(),
        "vpp": state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "dp_rank": state.get_data_parallel_rank(),
        "pp_rank": state.get_pipeline_model_parallel_rank(),
    }
