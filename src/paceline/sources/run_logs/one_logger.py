"""Spans of NVIDIA's one logger, as its ``FileExporter`` writes them.

Held against nv-one-logger-core and nv-one-logger-training-telemetry 2.3.1. Each line is a JSON
object; its ``type`` is start, stop, complete or event. Iterations have no spans. Instead, an event
``training_metrics_update`` gives their total time every ``log_every_n_train_iterations``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.run_logs.timeline import Pause, PauseKind, Start, Timeline, steps_of

#: A key that every line of such a file has.
CUE = '"count"'
_APPLICATION, _LOOP, _METRICS = "application", "training_loop", "training_metrics_update"
_SPANS: dict[str, PauseKind] = {
    "distributed_code_initialization": "setup",
    "data_loader_initialization": "setup",
    "model_initialization": "setup",
    "optimizer_initialization": "setup",
    "checkpoint_load": "restore",
    "checkpoint_save_sync": "checkpoint",
    "checkpoint_save_async": "checkpoint",
    "checkpoint_save_finalization": "checkpoint",
    "validation_loop": "evaluation",
    "testing_loop": "evaluation",
}
_KINDS: frozenset[PauseKind] = frozenset({"setup", "restore", "checkpoint", "evaluation"})


def is_record(record: object) -> bool:
    """Whether an object of a file is a record of one logger."""
    return isinstance(record, dict) and {"type", "count", "pid"} <= set(record)


def read_one_logger(records: Iterable[Mapping[str, Any]], where: str) -> Timeline:
    """The timeline of one file, which holds one start of the job.

    Raises:
        TraceError: a record is damaged, or no record gives the end of iterations.
    """
    try:
        start = _start(list(records))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"{where} is damaged ({type(error).__name__}: {error})") from None
    if start is None or not len(start.steps):
        raise TraceError(f"{where} has no {_METRICS}: set log_every_n_train_iterations")
    notes = ("iterations after the last metrics update are not in the log",)
    return Timeline("nv-one-logger", (start,), _KINDS, notes=notes if not start.has_ended else ())


def _start(records: list[Mapping[str, Any]]) -> Start | None:
    begins: dict[str, float] = {}
    spans: list[tuple[str, float, float]] = []
    updates: list[Mapping[str, Any]] = []
    for record in records:
        name = record.get("name", "")
        if "start_event" in record:
            begins[record["id"]] = _seconds(record["start_event"])
        if "stop_event" in record:
            spans.append((name, begins[record["id"]], _seconds(record["stop_event"])))
        if record["type"] == "event" and record["event"]["name"] == _METRICS:
            updates.append(record["event"]["attributes"])
    if not begins:
        return None
    application = [(begin, end) for name, begin, end in spans if name == _APPLICATION]
    begin = min(begins.values())
    last = float(updates[-1]["last_logged_train_iterations_finish_timestamp_sec"]) if updates else 0
    end = max([begin, last, *(end for _, _, end in spans)])
    pauses = tuple(Pause(_SPANS[n], b, e) for n, b, e in spans if n in _SPANS)
    loops = [b for r in records if r.get("name") == _LOOP for b in [begins.get(r["id"])] if b]
    steps = steps_of(_rows(updates, min(loops, default=begin)))
    ended = bool(application)
    return Start(begin, end, steps, pauses, has_begin=True, has_ended=ended)


def _rows(
    updates: list[Mapping[str, Any]], loop_begin_s: float
) -> list[tuple[int, int, float, float]]:
    """(last step, count, begin, end) between updates, whose totals count from the loop's begin."""
    rows = []
    before_s, before_n = loop_begin_s, 0
    for update in updates:
        n = int(update["num_iterations"])
        end_s = float(update["last_logged_train_iterations_finish_timestamp_sec"])
        if n > before_n:
            rows.append((int(update["current_iteration"]), n - before_n, before_s, end_s))
            before_s, before_n = end_s, n
    return rows


def _seconds(event: Mapping[str, Any]) -> float:
    return float(event["attributes"]["timestamp_msec"]) / 1e3
