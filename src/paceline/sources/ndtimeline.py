"""NDTimeline (veScale): timelines of hosts as Chrome trace events, and its raw text log.

The tool: https://github.com/volcengine/veScale, vescale/ndtimeline; what it records: what-if paper,
3.1 and Table 1. From Paceline's issue 6: per-host JSON arrays whose events have the metric as
``name``, ``ts`` and ``dur`` in microseconds, the DP rank as ``pid``, and ``rank``, ``step``, ``tp``
and ``pp`` in ``args``. From memory, not compared with the tool's source: the names of its metrics
(``unshard-all-gather``, ``grad-reduce-scatter``, ``grad-all-reduce``, ``cross-mesh-*``), and the
raw log's lines, which are therefore read by their fields wherever these stand: the same event as
one JSON object per line, or text with a metric's name and ``rank``, ``step``, ``dp``, ``pp``,
``ts`` and ``dur`` as ``name=value`` or ``name: value``. ``cross-mesh-send`` and ``-recv`` do not
say whether they carry activations or gradients, so they are counted but have no kind.

The tool synchronises the hosts' clocks, so times are taken as they are. It names no microbatch:
microbatches are counted within (rank, step, metric), by start.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import mapping, number, optional_whole, whole
from paceline.sources.imported import Imported, OpTable
from paceline.sources.json_stream import JsonStream, first_events, head, lines
from paceline.trace import Job, OpKind

#: Metrics whose names are not ours: veScale's, then those of the paper's Table 1.
METRICS = {
    "unshard-all-gather": OpKind.PARAMS_ALL_GATHER,
    "grad-reduce-scatter": OpKind.GRADS_REDUCE_SCATTER,
    "grad-all-reduce": OpKind.GRADS_REDUCE_SCATTER,
    "params-sync": OpKind.PARAMS_ALL_GATHER,
    "grads-sync": OpKind.GRADS_REDUCE_SCATTER,
    **{kind.label: kind for kind in OpKind},
}

#: Counting microbatches by start is right for every schedule that runs them in order; with several
#: chunks per stage it also takes Megatron's interleaved order for granted.
CERTAINTY, CERTAINTY_CHUNKS = 0.95, 0.8

#: Names up to which the user's own metrics are counted.
MAX_NAMES = 20

_METRIC = re.compile(r"(?<![\w-])(" + "|".join(METRICS) + r")(?![\w-])")
_FIELD = re.compile(r"\b([a-z_]+)['\"]?\s*[=:]\s*['\"]?(-?[\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
_FIELDS = {"dp": "dp", "dp_rank": "dp", "pid": "dp", "pp": "pp", "pp_rank": "pp", "stage": "pp"}
_FIELDS |= {"tp": "tp", "tp_rank": "tp", "rank": "rank", "step": "step", "ts": "ts", "dur": "dur"}


def matches(path: Path) -> bool:
    """Whether the file is a timeline: events named as metrics, with a rank and a step."""
    if _is_text(path):
        return any(_is_op(_of_line(line)) for line in head(path).splitlines())
    start = first_events(path, 200)
    return start is not None and any(map(_is_op, start[0]))


def read(
    paths: Sequence[Path], job: Job | None = None, steps: frozenset[int] | None = None
) -> Imported:
    """Read the timelines of all hosts of a job.

    Args:
        paths: one file per host (or rank), JSON or raw log, gzip or not.
        job: degrees of parallelism; None takes dp, pp and tp from the events, with one chunk per
            stage.
        steps: step numbers to keep; None keeps all.

    Raises:
        TraceError: a file is damaged or has no timeline, values are none, or ranks disagree.
    """
    ops, unplaced = OpTable(), Counter[str]()
    tp_size = 1
    for path in paths:
        before = len(ops)
        for place, event in _events(path):
            tp_size = max(tp_size, 1 + _add(ops, event, place, unplaced))
        if len(ops) == before:
            raise TraceError(f"{path} has no NDTimeline metric that is known; is it a timeline?")
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} timelines"
    if job is None:
        dp_size, pp_size = ops.degrees()
        job = Job(dp_size=dp_size, pp_size=pp_size, tp_size=tp_size)
    notes = ["microbatches are counted by start within rank, step and metric"]
    if job.vpp_size > 1:
        notes.append("chunks follow Megatron's interleaved order")
    return ops.finish(
        job,
        where,
        steps=steps,
        unplaced=unplaced,
        certainty=CERTAINTY if job.vpp_size == 1 else CERTAINTY_CHUNKS,
        notes=tuple(notes),
        by_order=True,
    )


def _add(ops: OpTable, event: Mapping[str, Any], place: str, unplaced: Counter[str]) -> int:
    """Add an event, if it is a known metric; returns its tensor-parallel rank."""
    args, kind = mapping(event, "args"), _kind(event)
    has_duration = event.get("ph", "X") == "X"
    if not (has_duration and _is_placed(event)):
        if kind is not None:
            reason = "without a rank or step" if has_duration else "whose ph is not X"
            unplaced[f"of known metrics {reason}"] += 1
        return 0
    if kind is None:
        name = f"with the metric {str(event.get('name'))[:40]!r}, which is not known"
        listed = name in unplaced or len(unplaced) < MAX_NAMES
        unplaced[name if listed else "with other metrics that are not known"] += 1
        return 0
    start_us, duration_us = number(event, "ts", place), number(event, "dur", place)
    if duration_us < 0:
        raise TraceError(f"{place}: dur {duration_us:g} is negative; is the file damaged?")
    ops.add(
        rank=whole(args, "rank", place),
        dp=whole(event, "pid", place),
        pp=whole(args, "pp", place),
        step=whole(args, "step", place),
        kind=kind,
        start_s=start_us * 1e-6,
        end_s=(start_us + duration_us) * 1e-6,
    )
    return optional_whole(args.get("tp")) or 0


def _kind(event: Mapping[str, Any]) -> OpKind | None:
    name = event.get("name")
    return METRICS.get(name) if isinstance(name, str) else None


def _is_placed(event: Mapping[str, Any]) -> bool:
    return {"rank", "step"} <= mapping(event, "args").keys()


def _is_op(event: Mapping[str, Any] | None) -> bool:
    return event is not None and _kind(event) is not None and _is_placed(event)


def _events(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The events of a file, each with its place for messages."""
    if not _is_text(path):
        for n, event in enumerate(JsonStream(path)):
            yield f"{path}, event {n}", event
        return
    for n, line in enumerate(lines(path), 1):
        event_of_line = _of_line(line)
        if event_of_line is not None:
            yield f"{path}, line {n}", event_of_line


def _is_text(path: Path) -> bool:
    """Whether the file is a raw log: no list of events and no object that has one."""
    start = head(path)
    if re.match(r"\s*\[\s*[{\]]", start):
        return False
    first = start.lstrip().partition("\n")[0]
    return not first.startswith("{") or _json_line(first) is not None


def _json_line(line: str) -> Mapping[str, Any] | None:
    """The event that a line holds as JSON."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("name"), str) else None


def _of_line(line: str) -> Mapping[str, Any] | None:
    """The event of a line of the raw log; None where it has none."""
    if line.lstrip().startswith("{"):
        return _json_line(line)
    metric = _METRIC.search(line)
    if metric is None:
        return None
    fields = {
        _FIELDS[name.lower()]: value
        for name, value in _FIELD.findall(line)
        if name.lower() in _FIELDS
    }
    if not ({"rank", "step"} <= fields.keys() or {"ts", "dur"} <= fields.keys()):
        return None  # prose
    event = {"name": metric[1], "ph": "X", "pid": fields.pop("dp", None)}
    event |= {name: fields.pop(name) for name in ("ts", "dur") if name in fields}
    return {**event, "args": fields}
