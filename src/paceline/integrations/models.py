"""Finds the objects that a training loop calls among the live objects, and hooks them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import paceline.record as record
from paceline.record.place import megatron_place, process_group
from paceline.record.recorder import Recorder

#: Dimension of a device mesh (names of torchtitan and Accelerate) -> purpose of its group.
_TENSOR = "tp"


def hook(recorder: Recorder, core: Any = None, optimizers: Iterable[Any] = ()) -> None:
    """Record the wrapper of a model: DeepSpeed's engine, DDP, FSDP2, a pipeline schedule, Megatron.

    For an object that cannot be recorded, the recording gets a note.

    Args:
        recorder: the recorder.
        core: the model, wrapped or not; None = the models of the optimizers.
        optimizers: torch's optimizers.
    """
    if megatron_place():
        record.instrument_megatron()
        return
    modules = alive("torch.nn", "Module")
    engine = _class("deepspeed", "DeepSpeedEngine")
    engines = [module for module in modules if engine and isinstance(module, engine)]
    if engines:
        for one in engines:
            record.instrument_deepspeed(one)
        return
    trained = _trained(core, optimizers)
    owners = [module for module in modules if _owns(module, trained)]
    if not owners:
        recorder.note(
            "passes: no module holds the parameters that are trained",
            "call record.instrument_ddp(model) or its like yourself (docs/record.md)",
        )
        return
    tp = _locate(recorder, owners)
    schedules = alive("torch.distributed.pipelining.schedules", "_PipelineSchedule")
    for schedule in schedules:
        record.instrument_torch_pipelining(schedule)
    roots = _top(owners)
    if not _refused(recorder, roots, owners) and not _hook_exchange(owners) and not schedules:
        _hook_plain(recorder, roots, tp)


def megatron_steps() -> bool:
    """Whether Megatron's own loop is running, which names its steps."""
    return bool(megatron_place()) and "megatron.training.training" in sys.modules


def alive(module: str, name: str) -> list[Any]:
    """All objects of a class, if its module is imported; objects in a frozen heap are missing."""
    cls = _class(module, name)
    if cls is None:
        return []
    objects = gc.get_objects()
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, cls)}
    return [one for one in objects if type(one) in types]


def _class(module: str, name: str) -> Any:
    cls = getattr(sys.modules.get(module), name, None)
    return cls if isinstance(cls, type) else None


def _trained(core: Any, optimizers: Iterable[Any]) -> set[int]:
    """Ids of the trained parameters."""
    if core is not None:
        return {id(p) for p in core.parameters() if p.requires_grad}
    return {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}


def _owns(module: Any, trained: set[int]) -> bool:
    return any(id(p) in trained for p in module.parameters())


def _top(modules: Sequence[Any]) -> list[Any]:
    """The modules that are inside no other of the given ones."""
    inside = {id(inner) for outer in modules for inner in outer.modules() if inner is not outer}
    return [module for module in modules if id(module) not in inside]


def _locate(recorder: Recorder, owners: Sequence[Any]) -> int:
    """The tensor-parallel degree and its group, from the parameters' device mesh."""
    for parameter in owners[0].parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and _TENSOR in (mesh.mesh_dim_names or ()):
            tensor = mesh[_TENSOR]
            if tensor.size() > 1:
                recorder.locate({"tp": tensor.size()})
                record.instrument_groups(tensor=tensor)
            return int(tensor.size())
    return 1


def _hook_exchange(owners: Sequence[Any]) -> bool:
    """Record data parallelism with its passes; returns whether there is any."""
    ddp = _class("torch.nn.parallel", "DistributedDataParallel")
    fsdp = _class("torch.distributed.fsdp", "FSDPModule")
    replicated = [module for module in owners if ddp and isinstance(module, ddp)]
    sharded = _top([module for module in owners if fsdp and isinstance(module, fsdp)])
    for module in replicated:
        record.instrument_ddp(module)
    for module in sharded:
        record.instrument_fsdp(module)
    return bool(replicated or sharded)


def _refused(recorder: Recorder, roots: Sequence[Any], owners: Sequence[Any]) -> bool:
    """Whether a wrapper hides its passes; notes advice for it."""
    refused = False
    names = {type(module).__name__ for module in owners}
    for name, how in _HOW.items():
        if name in names:
            recorder.note(f"passes and exchange: {name}", how)
            refused = True
    compiled = [one for one in roots if getattr(one, "_compiled_call_impl", None) is not None]
    if compiled and not refused:
        recorder.note(f"passes and exchange: {type(compiled[0]).__name__} is compiled", _COMPILED)
        refused = True
    return refused


_COMPILED = "compile the model before it is wrapped in DDP, or its layers one by one"

_HOW = {
    "FullyShardedDataParallel": "FSDP1 is not known: use fully_shard (Accelerate: fsdp_version: 2)",
    "DataParallel": "one process drives all GPUs: start one for each (torchrun)",
    "OptimizedModule": _COMPILED,
}


def _hook_plain(recorder: Recorder, roots: Sequence[Any], tp: int) -> None:
    """Record the outermost module that the loop calls, without torch's exchange of gradients."""
    model = max(roots, key=lambda root: sum(1 for _ in root.parameters()))
    if hasattr(model, "training_step"):  # Lightning calls this, not the module
        children = [child for child in model.children() if any(True for _ in child.parameters())]
        if len(children) != 1:
            recorder.note(
                f"passes: {type(model).__name__} calls {len(children)} modules of its own",
                "name the passes in training_step: paceline.record.current().op(...)",
            )
            return
        (model,) = children
    record.instrument_model(model)
    group = process_group()
    if group is not None and group.get_world_size() > tp:
        recorder.note(
            f"exchange of gradients: {type(model).__name__} is neither DDP nor fully_shard",
            "where the loop reduces them, name that: recorder.op('grads-reduce-scatter')",
        )
