"""The result as data: ``result.json`` (schema 1; later ones add keys, none changes) and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.plan.expect import Expectation
from paceline.remedies import Advice
from paceline.report.critical_path import path_mapping
from paceline.whatif import WhatIf

SCHEMA = 1


def to_mapping(
    result: WhatIf,
    advice: Advice | None = None,
    *,
    expectation: Expectation | None = None,
    per_step_workers: bool = False,
) -> dict[str, Any]:
    """The result as JSON knows it; ``docs/result-json.md`` lists the keys.

    Steps, stages and replicas are string keys, ``*_by_step`` forms have the step first, times are
    in seconds, and None stands for what has no value.

    Args:
        result: a finished analysis.
        advice: its diagnosis; None leaves out ``findings``, ``waterfall``, ``remedies`` and
            ``architecture``.
        expectation: the model of the job beside it; None leaves out ``expected``.
        per_step_workers: add ``by_worker_by_step``, one table [pp][dp] per step.
    """
    steps = [str(step) for step in result.steps.tolist()]
    mapping = {
        "schema": SCHEMA,
        "job": result.job.to_mapping(),
        "steps": result.steps.tolist(),
        "slowdown": _number(result.slowdown),
        "slowdown_paper": _number(result.slowdown_paper),
        "slow_mode_shares": _keyed(result.slow_mode_shares),
        "waste": _number(result.waste),
        "discrepancy": _number(result.discrepancy),
        "launch_slowdown": _number(result.launch_slowdown),
        "step_time_s": {
            "traced": dict(zip(steps, _numbers(result.traced_s), strict=True)),
            "simulated": dict(zip(steps, _numbers(result.simulated_s), strict=True)),
            "ideal": dict(zip(steps, _numbers(result.ideal_s), strict=True)),
        },
        "by_step": _keyed(result.by_step),
        "by_kind": _keyed(result.by_kind),
        "by_stage": _keyed(result.by_stage),
        "by_replica": _keyed(result.by_replica),
        "by_worker": _numbers(result.by_worker),
        "by_kind_by_step": _by_step(steps, result.by_kind, _kinds_by_step(result)),
        "by_stage_by_step": _by_step(steps, result.by_stage, result.by_stage_by_step),
        "by_replica_by_step": _by_step(steps, result.by_replica, result.by_replica_by_step),
        "slowest_workers": [[dp, pp, _number(s)] for dp, pp, s in result.slowest_workers],
        "m_w": _number(result.m_w),
        "m_w_paper": _number(result.m_w_paper),
        "m_s": _number(result.m_s),
        "m_w_only": _number(result.m_w_only),
        "m_s_only": _number(result.m_s_only),
        "replay_error": _number(result.replay_error),
        "launch_delay": {
            "by_kind": _keyed(result.launch_delay.by_kind),
            "step_start": _number(result.launch_delay.step_start),
        },
        "critical_path": path_mapping(result.critical_path),
        "clamped": {what: dict(counts) for what, counts in result.clamped.items()},
        "clock_offsets_s": {
            "std": _number(result.clocks.std_s),
            "corrected": result.clocks.corrected,
            "by_worker": _numbers(result.clocks.offset_s.T),
        },
        "step_modes": _modes(result),
        "not_judged": list(result.not_judged),
        "left_out_steps": {str(step): reason for step, reason in result.left_out_steps.items()},
        "warnings": list(result.warnings),
    }
    if per_step_workers:
        tables = _numbers(result.by_worker_by_step)
        mapping["by_worker_by_step"] = dict(zip(steps, tables, strict=True))
    if expectation is not None:
        mapping["expected"] = expectation.to_mapping()
    return mapping | (advice_mapping(advice) if advice else {})


def advice_mapping(advice: Advice) -> dict[str, Any]:
    """Findings, waterfall and remedies as JSON knows them."""
    fall = advice.fall
    drops = [{"name": d.name, "text": d.text, "seconds": _number(d.seconds)} for d in fall.drops]
    return {
        "slowdown_interval": list(advice.diagnosis.slowdown_interval),
        "findings": [finding.to_mapping() for finding in advice.diagnosis.findings],
        "waterfall": {"actual_s": fall.actual_s, "drops": drops, "compute_s": fall.compute_s},
        "remedies": [remedy.to_mapping() for remedy in advice.remedies],
        "architecture": [remedy.to_mapping() for remedy in advice.architecture],
        "remedies_not_applicable": dict(advice.not_applicable),
    }


def dumps(
    result: WhatIf,
    advice: Advice | None = None,
    *,
    expectation: Expectation | None = None,
    per_step_workers: bool = False,
) -> str:
    """The result as one line of JSON per key, so that people and ``diff`` can read it."""
    return lines_of_json(
        to_mapping(result, advice, expectation=expectation, per_step_workers=per_step_workers)
    )


def lines_of_json(mapping: Mapping[str, Any]) -> str:
    """One line of JSON per key."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in mapping.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def json_writer(
    result: WhatIf,
    advice: Advice | None = None,
    *,
    expectation: Expectation | None = None,
    per_step_workers: bool = False,
) -> Callable[[BinaryIO], None]:
    """What writes ``result.json``."""
    text = dumps(result, advice, expectation=expectation, per_step_workers=per_step_workers)
    return lambda file: _write(file, text)


def worker_csv_writer(result: WhatIf) -> Callable[[BinaryIO], None]:
    """What writes ``by_worker.csv``: the columns dp, pp, slowdown; the slowest worker first."""
    n_dp = result.by_worker.shape[1]
    flat = result.by_worker.ravel()
    worst = np.argsort(-np.round(flat, 12), kind="stable")  # ties by (pp, dp), as for M_W
    pp, dp = np.divmod(worst, n_dp)
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("dp", "pp", "slowdown"))
    rows.writerows(zip(dp.tolist(), pp.tolist(), flat[worst].tolist(), strict=True))
    return lambda file: _write(file, text.getvalue())


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


def _modes(result: WhatIf) -> dict[str, Any] | None:
    """The two modes of the traced step times, if they have two."""
    modes = result.step_modes
    if modes is None:
        return None
    return {"slow_steps": result.steps[modes.slow].tolist(), "ratio": modes.ratio}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _numbers(values: npt.NDArray[np.float64]) -> list[Any]:
    """Nested lists of an array; JSON has no NaN and no infinity, they become None."""
    finite = np.isfinite(values)
    if finite.all():
        return list(values.tolist())
    objects = values.astype(object)
    objects[~finite] = None
    return list(objects.tolist())


def _keyed(values: Mapping[Any, float]) -> dict[str, float | None]:
    return {str(key): _number(value) for key, value in values.items()}


def _kinds_by_step(result: WhatIf) -> npt.NDArray[np.float64]:
    """[step, kind], the kinds as in ``by_kind``."""
    return np.stack([result.by_kind_by_step[kind] for kind in result.by_kind], axis=1)


def _by_step(
    steps: Iterable[str], keys: Iterable[Any], values: npt.NDArray[np.float64]
) -> dict[str, dict[str, float]]:
    names = [str(key) for key in keys]
    return {
        step: dict(zip(names, row, strict=True))
        for step, row in zip(steps, _numbers(values), strict=True)
    }
