"""A ledger from the totals of another goodput tool.

- Google's ml-goodput-measurement 0.2.3: ``WorkloadMetricDetails`` (``goodput_time``,
  ``badput_time`` by ``BadputType``, ``total_elapsed_time``, in seconds), with the types' names.
- NVIDIA's one logger, metrics of its v1 tracker (Megatron-LM core 0.20.0), in Weights & Biases'
  ``wandb-summary.json`` or any object that has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.ledger.categories import CATEGORIES, GOOGLE, ONE_LOGGER
from paceline.ledger.ledger import Ledger
from paceline.sources.run_logs.files import json_objects

_APP_START, _APP_FINISH = "app_start_time", "app_finish_time"
_LOOP_START = "app_train_loop_start_time"
_TRAIN = "train_iterations_time_total"
_NOT_TOLD = "that tool does not tell it"


def read_totals(path: Path, *, gpus: int | None = None) -> Ledger:
    """A ledger from a JSON object of totals.

    Raises:
        TraceError: it comes from neither tool, a value is no number, or the parts exceed the whole.
    """
    objects = json_objects(path)
    if len(objects) == 1:
        (totals,) = objects
        try:
            if "badput_time" in totals:
                return _of_google(totals, gpus)
            if _TRAIN in totals:
                return _of_one_logger(totals, gpus)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    raise TraceError(
        f"{path} has no badput_time (ml-goodput-measurement) and no {_TRAIN} (one logger)"
    )


def _of_google(totals: Mapping[str, Any], gpus: int | None) -> Ledger:
    seconds = {"productive": sum(map(float, totals["goodput_time"].values()))}
    for name, value in totals["badput_time"].items():
        bare = str(name).rsplit(".", 1)[-1].upper()
        if isinstance(value, Mapping):
            for event, spent in value.items():
                is_evaluation = "EVAL" in str(event).upper()
                category = "evaluation" if is_evaluation else GOOGLE[bare]
                seconds[category] = seconds.get(category, 0.0) + float(spent)
        else:
            seconds[GOOGLE[bare]] = seconds.get(GOOGLE[bare], 0.0) + float(value)
    total_s = float(totals["total_elapsed_time"]) - float(totals.get("total_excluded_time") or 0)
    notes = ("a restart's own initialisation is in startup",)
    steps = int(totals.get("max_productive_step") or 0)
    starts = int(totals.get("disruption_count") or 0) + 1
    return _ledger("ml-goodput-measurement", total_s, seconds, steps, starts, gpus, notes)


def _of_one_logger(totals: Mapping[str, Any], gpus: int | None) -> Ledger:
    seconds = {ONE_LOGGER[name]: float(totals[name]) for name in ONE_LOGGER if name in totals}
    times_s = {
        name: float(totals[name]) / 1e3
        for name in (_APP_START, _LOOP_START, _APP_FINISH)
        if name in totals
    }
    notes: tuple[str, ...] = ()
    if _APP_START in times_s and _LOOP_START in times_s:
        seconds["startup"] = times_s[_LOOP_START] - times_s[_APP_START]
    if _APP_START in times_s and _APP_FINISH in times_s:
        total_s = times_s[_APP_FINISH] - times_s[_APP_START]
    else:
        total_s = sum(seconds.values())
        notes = ("the application's start and finish are missing: the total is that of the rows",)
    steps = int(totals.get("tracked_train_iterations") or 0)
    return _ledger("one logger", total_s, seconds, steps, 1, gpus, notes)


def _ledger(
    tool: str,
    total_s: float,
    seconds: dict[str, float],
    steps: int,
    starts: int,
    gpus: int | None,
    notes: tuple[str, ...],
) -> Ledger:
    rest = total_s - sum(seconds.values())
    if rest < -0.01 * total_s:
        raise TraceError(f"the parts of {tool} exceed its {total_s:.6g} s by {-rest:.3g} s")
    seconds["unknown"] = seconds.get("unknown", 0.0) + max(rest, 0.0)
    rows = {name: seconds.get(name) for name in CATEGORIES}
    reasons = {name: _NOT_TOLD for name, value in rows.items() if value is None}
    return Ledger(tool, total_s, rows, reasons, steps, 0, starts, gpus, notes)
