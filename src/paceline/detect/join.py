"""Processes that torchrun, a job script or ``paceline validate`` started for a validation."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from paceline.detect.passes import Pass
from paceline.detect.validate import Effort, Injected, run_validation
from paceline.detect.verdict import Measurements
from paceline.errors import DetectError

_JOINED = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def joined_world() -> tuple[int, int] | None:
    """(rank, world size) if torchrun or a job script started this process, else None.

    Raises:
        DetectError: the variables are no numbers, or MASTER_PORT is missing.
    """
    if any(name not in os.environ for name in _JOINED):
        return None
    if "MASTER_PORT" not in os.environ:
        raise DetectError("RANK, WORLD_SIZE and MASTER_ADDR are set, MASTER_PORT is not; set it")
    try:
        rank, world_size = (int(os.environ[name]) for name in _JOINED[:2])
    except ValueError:
        raise DetectError("RANK and WORLD_SIZE in the environment must be whole numbers") from None
    if not 0 <= rank < world_size:
        raise DetectError(f"RANK={rank} is not below WORLD_SIZE={world_size}")
    return rank, world_size


def validate_joined(
    ranks: Sequence[int],
    passes: Sequence[Pass],
    *,
    effort: Effort,
    backend: str = "auto",
    injected: Injected | None = None,
    store: Any = None,
) -> Measurements:
    """Join the process group of the environment, measure, and leave it.

    For processes with no other work. A process that hangs in a library two seconds after its
    timeout reports this and ends with exit code 2. (Gloo waits five times its timeout for a peer
    that died during the rendezvous.)

    Args:
        ranks: ranks whose matrix products to measure.
        passes: links to measure.
        effort: amount of measurement; its timeout is also the group's.
        backend: "gloo", "nccl", or "auto": NCCL where each rank of this host has a GPU.
        injected: artificial slowness.
        store: rendezvous of the processes; None: at MASTER_ADDR.

    Raises:
        DetectError: as in ``run_validation``, or the group cannot be formed.
    """
    import torch
    from torch import distributed

    world = joined_world()
    assert world is not None
    rank, world_size = world
    local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "auto":
        enough = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
        backend = "nccl" if enough and distributed.is_nccl_available() else "gloo"
    if backend == "nccl":
        if local >= gpus:
            raise DetectError(f"rank {rank} has no GPU ({gpus} here); use --backend gloo")
        torch.cuda.set_device(local)
    patience = timedelta(seconds=effort.timeout_s)
    where: dict[str, Any] = {} if store is None else {"store": store}
    guard = threading.Timer(effort.timeout_s + 2.0, _end_process, (rank, effort.timeout_s))
    guard.daemon = True
    guard.start()
    try:
        distributed.init_process_group(
            backend, rank=rank, world_size=world_size, timeout=patience, **where
        )
        measured = run_validation(ranks, passes, effort=effort, injected=injected)
        distributed.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        words = str(error).strip().partition("\n")[0][:200]
        raise DetectError(f"rank {rank} cannot join the others: {words}") from error
    finally:
        guard.cancel()
    return measured


def _end_process(rank: int, timeout_s: float) -> None:
    message = f"rank {rank}: the validation hangs after {timeout_s:g} s; was a rank lost?"
    print(f"paceline: error: {message}", file=sys.stderr, flush=True)
    os._exit(2)
