"""Combinations of degrees that a framework cannot express, for the search and for its writer.

torchtitan v0.2.2, ``distributed/parallel_dims.py``: the mesh of FSDP is dp_shard x cp. It exists if
one of the two exceeds 1 (``fsdp_enabled``). Without it, ``models/*/infra/parallelize.py`` refuses
replicas beside other degrees. ``maybe_enable_amp`` (``distributed/utils.py``) leaves tp and pp in
fp32 then. Tensor parallelism always splits the norms (``apply_tp``, ``apply_non_moe_tp``).

Accelerate v1.14.0, ``parallelism_config.py``: the mesh of FSDP is dp_shard x cp, too. Replicas
beside tp or cp need dp_shard > 1. The plans for tensor parallelism of transformers 5.24
(``base_model_tp_plan``) split no norms, nor does AutoTP of DeepSpeed v0.19.5
(``module_inject/layers.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from paceline.errors import PlanError
from paceline.model.plan import Plan
from paceline.plan.space import Columns, Exclusion

Mask = npt.NDArray[np.bool_]

ACCELERATE = "Hugging Face Accelerate v1.14.0"
DEEPSPEED = "DeepSpeed v0.19.5"
TORCHTITAN = "torchtitan v0.2.2"

#: Framework of a launch file -> its name and version, for those with memory of their own.
SOFTWARE: MappingProxyType[str, str] = MappingProxyType(
    {"torchtitan": TORCHTITAN, "deepspeed": DEEPSPEED, "accelerate": ACCELERATE}
)

_COLUMNS = ("tp", "pp", "dp", "cp", "ep", "zero", "shards", "sequence_parallel")


def _unsharded(c: Columns) -> Mask:
    """[plan] whether no two ranks share the parameters."""
    sharers = np.where(c["shards"] > 0, c["shards"], c["dp"] * c["cp"])
    mask: Mask = (c["zero"] < 2) | (sharers == 1)
    return mask


def _optimizer_shards(c: Columns) -> Mask:
    mask: Mask = (c["zero"] == 1) & (c["dp"] * c["cp"] > 1)
    return mask


def _more_than_replicas(c: Columns) -> Mask:
    return _unsharded(c) & (c["tp"] * c["pp"] * c["cp"] * c["ep"] > 1)


def _unsplit_norms(c: Columns) -> Mask:
    mask: Mask = (c["tp"] > 1) & (c["sequence_parallel"] == 0)
    return mask


def _split_norms(c: Columns) -> Mask:
    mask: Mask = c["sequence_parallel"] == 1
    return mask


def _context_shards(c: Columns) -> Mask:
    mask: Mask = (c["zero"] >= 2) & (c["shards"] > 0) & (c["shards"] == c["cp"])
    return mask


def _rule(framework: str, what: str, applies: Callable[[Columns], Mask]) -> Exclusion:
    return Exclusion(f"{framework} cannot express {what}", applies)


#: Framework -> its rules. A reason is the message of its writer, too.
EXCLUSIONS: MappingProxyType[str, tuple[Exclusion, ...]] = MappingProxyType(
    {
        TORCHTITAN: (
            _rule(
                TORCHTITAN,
                "zero 1; its weights are sharded with the optimizer (zero 2 and 3)",
                _optimizer_shards,
            ),
            _rule(
                TORCHTITAN, "tp, pp, cp or ep > 1 without FSDP (zero 2 or 3)", _more_than_replicas
            ),
            _rule(TORCHTITAN, "tp > 1 without sequence_parallel", _unsplit_norms),
        ),
        DEEPSPEED: (_rule(DEEPSPEED, "sequence_parallel in its configuration", _split_norms),),
        ACCELERATE: (
            _rule(ACCELERATE, "zero 1 (use DeepSpeed's)", _optimizer_shards),
            _rule(ACCELERATE, "tp or cp > 1 without FSDP (zero 2 or 3)", _more_than_replicas),
            _rule(ACCELERATE, "shards of context-parallel ranks alone", _context_shards),
            _rule(ACCELERATE, "sequence_parallel", _split_norms),
        ),
    }
)


def refuse_excluded(framework: str, plan: Plan) -> None:
    """Raise an error if a rule of the framework excludes the plan.

    Raises:
        PlanError: one does; the message names it.
    """
    columns = {name: np.array([int(getattr(plan, name))]) for name in _COLUMNS}
    for reason, applies in EXCLUSIONS[framework]:
        if applies(columns)[0]:
            raise PlanError(reason, fields=_COLUMNS)
