"""Record a running job: cheap times of its steps and operations, one file per rank.

    import paceline.record as record

    recorder = record.start("runs/job-17")
    for number in range(steps):
        with recorder.step(number):
            with recorder.op("forward-compute", microbatch=0):
                ...

It imports only the standard library, so the training job pays for nothing else; it uses torch if
the job has it. See ``docs/record.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.record import data_loading, push
from paceline.record.data_loading import batches
from paceline.record.recorder import Recorder
from paceline.record.steps import Operation, Step

__all__ = [
    "Operation",
    "Recorder",
    "Step",
    "batches",
    "current",
    "instrument_ddp",
    "instrument_deepspeed",
    "instrument_fsdp",
    "instrument_groups",
    "instrument_megatron",
    "instrument_model",
    "instrument_torch_pipelining",
    "start",
]

log = logging.getLogger("paceline.record")

#: Module of hooks -> the training framework or part that it records.
_HOOKS = {
    "hooks_ddp": "DistributedDataParallel",
    "hooks_deepspeed": "DeepSpeed engine",
    "hooks_fsdp": "fully_shard (FSDP2)",
    "hooks_groups": "passes of a module, collectives of process groups",
    "hooks_megatron": "Megatron-Core",
    "hooks_pipelining": "torch.distributed.pipelining",
}

_current: Recorder | None = None


def start(
    folder: str | Path,
    *,
    every: int = 10,
    steps: Container[int] | None = None,
    rank: int | None = None,
    world: int | None = None,
    dp: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    cp: int | None = None,
    vpp: int | None = None,
    dp_rank: int | None = None,
    pp_rank: int | None = None,
    run: str | None = None,
    sync_every: int = 100,
    device: str | None = None,
    flush_s: float = 1.0,
    sync_timeout_s: float = 60.0,
) -> Recorder:
    """Start the recorder of this process; call it on every rank, after the process group exists.

    Missing values come from torch.distributed and Megatron's parallel state if these are
    initialised, otherwise from the environment of torchrun, Slurm or MPI. The call never raises. If
    it cannot record, it logs one line with the reason and returns a recorder that is off. If the
    environment has PACELINE_MONITOR, rank 0 starts a process that pushes the recording.

    Args:
        folder: folder of the run; every rank writes its own file into it.
        every: record the operations of one step in ``every``, at a place that changes; step times
            are kept for all steps.
        steps: record the operations of these steps instead (any container with ``in``).
        rank: global rank.
        world: number of ranks.
        dp: replicas.
        pp: pipeline stages.
        tp: tensor-parallel ranks.
        cp: context-parallel ranks.
        vpp: model chunks per stage.
        dp_rank: this rank's replica; None = by Megatron's order of ranks.
        pp_rank: this rank's stage; None = by Megatron's order of ranks.
        run: the run's name.
        sync_every: compare clocks after one step in ``sync_every``, by a collective call between
            two steps; 0 = only now.
        device: "cpu" or "cuda"; None = cuda if torch has a GPU.
        flush_s: seconds between two appends to the file.
        sync_timeout_s: longest wait of a clock comparison for a missing rank. After such a timeout
            clocks are no longer compared. This call makes the first comparison.
    """
    global _current
    if _current is not None:
        _current.close()
    given = {
        "rank": rank,
        "world": world,
        "dp": dp,
        "pp": pp,
        "tp": tp,
        "cp": cp,
        "vpp": vpp,
        "dp_rank": dp_rank,
        "pp_rank": pp_rank,
        "run": run,
    }
    _current = Recorder(
        folder,
        every=every,
        steps=steps,
        sync_every=sync_every,
        device=device,
        flush_s=flush_s,
        sync_timeout_s=sync_timeout_s,
        given=given,
    )
    if _current.is_on:
        data_loading.instrument(_current)
        push.start(Path(folder), _current.rank)
    return _current


def current() -> Recorder | None:
    """The recorder that was started last; None before the first."""
    return _current


def instrument_torch_pipelining(schedule: Any) -> None:
    """Record the computes, sends and receives of a ``torch.distributed.pipelining`` schedule.

    Call it after :func:`start` and before the first step; it also gives the recorder the stage. The
    loop still names its steps: ``with recorder.step(number): schedule.step(...)``.
    """
    _instrument("hooks_pipelining", schedule)


def instrument_ddp(model: Any) -> None:
    """Record a DistributedDataParallel model: passes, exchange of gradients, torch's optimizers."""
    _instrument("hooks_ddp", model)


def instrument_fsdp(model: Any) -> None:
    """Record a model sharded by ``fully_shard``: passes, first gather, last scatter, optimizers."""
    _instrument("hooks_fsdp", model)


def instrument_deepspeed(engine: Any) -> None:
    """Record a DeepSpeed engine, ZeRO 0 to 3: passes, gathers, reductions, norm, optimizer."""
    _instrument("hooks_deepspeed", engine)


def instrument_groups(
    *, tensor: Any = None, context: Any = None, expert: Any = None, each: bool = True
) -> None:
    """Record the collectives within passes, so that each rank of a group is a separate worker.

    Call it in addition to the hooks of the framework, on every rank. Give :func:`start` the degrees
    ``tp`` and ``cp``. Collectives inside a compiled model (torch.compile) are not seen.

    Args:
        tensor: this rank's tensor-parallel process group, or a device mesh of one dimension.
        context: its context-parallel group.
        expert: its expert-parallel group.
        each: record each collective. False records three numbers per pass instead: this rank's
            compute time, its time in the calls, and the number of calls times the fastest call.
    """
    groups = {"tensor": tensor, "context": context, "expert": expert}
    told = {name: group for name, group in groups.items() if group is not None}
    _instrument("hooks_groups", told, each=each)


def instrument_model(model: Any) -> None:
    """Record forwards and backwards of a module without data parallelism, and torch's optimizers.

    Use it for a model that is only tensor-, context- or expert-parallel.
    """
    _instrument("hooks_groups", {}, model)


def instrument_megatron() -> None:
    """Record an installed Megatron-Core: passes, transfers, gathers, gradients, optimizer.

    Call it after Megatron's model-parallel state is initialised and before training.
    """
    _instrument("hooks_megatron")


def _instrument(hooks: str, *args: Any, **options: Any) -> None:
    """Install a module of hooks on the recorder; log a line if something does not fit."""
    recorder = _current
    if recorder is None or not recorder.is_on:
        return
    what = _HOOKS[hooks]
    try:
        module = import_module(f"paceline.record.{hooks}")
        module.instrument(recorder, *args, **options)
        recorder.note(what)
    except Exception as error:
        line = " ".join(f"{error}".split())
        log.error("not recorded (%s): %s", hooks, line)
        recorder.note(f"{what}: {line}", "name its operations in the loop (docs/record.md)")
