"""Fields of the document, from the results of an analysis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.remedies import Advice
from paceline.results.answers import plain_finding, plain_remedy
from paceline.results.communication import plain_communication
from paceline.results.keys import Clocks, StepModes, StepTimes
from paceline.results.path import PathSummary
from paceline.whatif import WhatIf
from paceline.whatif.modes import step_modes

Array = npt.NDArray[np.float64]


def numbers_of(result: WhatIf) -> dict[str, Any]:
    """Fields that are numbers or short lists."""
    names = (
        *("job", "slowdown", "slowdown_paper", "waste", "discrepancy", "launch_slowdown"),
        *("slowest_workers", "m_w", "m_w_paper", "m_s", "m_w_only", "m_s_only", "replay_error"),
        *("launch_delay", "not_judged"),
    )
    clocks, steps = result.clocks, tuple(result.steps.tolist())
    return {
        **{name: getattr(result, name) for name in names},
        "overlap_s": float(result.overlap_s.mean()),
        "steps": steps,
        "slow_mode_shares": dict(result.slow_mode_shares),
        "critical_path": PathSummary.of(result.critical_path),
        "clamped": {kind: dict(counts) for kind, counts in result.clamped.items()},
        "clock_offsets_s": Clocks(clocks.std_s, clocks.corrected, clocks.offset_s.T),
        "step_modes": modes_of(steps, result.traced_s),
        "left_out_steps": dict(result.left_out_steps),
        "warnings": result.doubts,
        "microbatches": tuple(result.microbatches.tolist()),
        "slowdown_lasting": None if result.lasting is None else result.lasting.slowdown,
        "by_worker_lasting": None if result.lasting is None else result.lasting.by_worker,
    }


def tables_of(result: WhatIf, *, per_step_workers: bool) -> dict[str, Any]:
    """Fields by step and by part."""
    steps = result.steps.tolist()
    times = (result.traced_s, result.simulated_s, result.ideal_s)
    kinds = np.stack([result.by_kind_by_step[kind] for kind in result.by_kind], axis=1)
    return {
        "step_time_s": StepTimes(*(_by_key(steps, seconds) for seconds in times)),
        "by_step": dict(result.by_step),
        "by_kind": dict(result.by_kind),
        "by_stage": dict(result.by_stage),
        "by_replica": dict(result.by_replica),
        "by_worker": result.by_worker,
        "by_kind_by_step": _rows(steps, result.by_kind, kinds),
        "by_stage_by_step": _rows(steps, result.by_stage, result.by_stage_by_step),
        "by_replica_by_step": _rows(steps, result.by_replica, result.by_replica_by_step),
        "by_worker_by_step": (
            dict(zip(steps, result.by_worker_by_step, strict=True)) if per_step_workers else None
        ),
    }


def answers_of(advice: Advice, result: WhatIf) -> dict[str, Any]:
    """Fields of the diagnosis."""
    job, healthy = result.job, advice.diagnosis.healthy
    low, high = advice.diagnosis.slowdown_interval
    return {
        "slowdown_interval": (float(low), float(high)),
        "slowdown_healthy": (
            None if healthy is None else float(result.simulated_s.mean() / healthy.step_s.mean())
        ),
        "findings": tuple(plain_finding(f, job) for f in advice.diagnosis.findings),
        "waterfall": advice.fall,
        "remedies": tuple(plain_remedy(r, job) for r in advice.remedies),
        "architecture": tuple(plain_remedy(r, job) for r in advice.architecture),
        "not_applicable": dict(advice.not_applicable),
        "hints": advice.hints,
        "masked": advice.masked,
        "communication": plain_communication(advice.communication, job),
    }


def host_of(name: str | tuple[str, str]) -> tuple[str, str]:
    """(host, gpu); gpu is "" if unknown."""
    host, gpu = (name, "") if isinstance(name, str) else name
    return str(host), str(gpu)


def modes_of(steps: Sequence[int], traced_s: Array) -> StepModes | None:
    """The two lengths of the traced steps, if there are two."""
    modes = step_modes(traced_s)
    if modes is None:
        return None
    slow = tuple(step for step, is_slow in zip(steps, modes.slow, strict=True) if is_slow)
    return StepModes(slow, modes.ratio)


def _by_key(names: Iterable[int], values: Array) -> dict[int, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _rows(steps: Sequence[int], keys: Iterable[Any], values: Array) -> dict[int, dict[Any, float]]:
    """Step -> part -> value, from [step, part]."""
    key_list = list(keys)
    return {
        step: dict(zip(key_list, row, strict=True))
        for step, row in zip(steps, values.tolist(), strict=True)
    }
