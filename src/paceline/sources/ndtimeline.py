"""NDTimeline (veScale): timelines of hosts as Chrome trace events, and its raw text log.

The tool: https://github.com/volcengine/veScale, held against commit 20cf5c7 (March 2026),
legacy/vescale/ndtimeline. ``predefined.py`` has the metrics. ``handlers/local_timeline_handler.py``
writes JSON arrays per host. There ``name`` is the metric, ``ts`` and ``dur`` are in microseconds,
``pid`` is the DP rank, and ``args`` has ``rank``, ``step``, ``tp`` and ``pp``.
``handlers/local_raw_handler.py`` writes the raw log (:mod:`paceline.sources.ndtimeline_raw`). The
what-if paper describes the records (3.1 and Table 1).

Two further forms are read, which the tool does not write. One has an event per line as a JSON
object. The other has lines with a metric's name and ``name=value`` for ``rank``, ``step``, ``dp``,
``pp``, ``ts`` and ``dur``.

``forward-send-backward-recv`` and ``backward-send-forward-recv`` are two transfers of one call.
``cross-mesh-send`` and ``-recv`` do not tell whether they carry activations or gradients, so they
are counted but have no kind.

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

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.fields import mapping, number, optional_whole, whole
from paceline.sources.fused import Halves
from paceline.sources.imported import MAX_NUMBER, Imported, OpTable
from paceline.sources.json_stream import JsonStream, first_events, head, lines
from paceline.sources.ndtimeline_raw import Flush, flush_of, is_raw
from paceline.trace import Job, OpKind

#: Metric -> kind: names of veScale, names of the paper's Table 1, and Paceline's own labels.
METRICS = {
    "unshard-all-gather": OpKind.PARAMS_ALL_GATHER,
    "grad-reduce-scatter": OpKind.GRADS_REDUCE_SCATTER,
    "grad-all-reduce": OpKind.GRADS_REDUCE_SCATTER,
    "params-sync": OpKind.PARAMS_ALL_GATHER,
    "grads-sync": OpKind.GRADS_REDUCE_SCATTER,
    **{kind.label: kind for kind in OpKind},
}

#: Metrics of calls that make two transfers.
FUSED = {
    "forward-send-backward-recv": (OpKind.FORWARD_SEND, OpKind.BACKWARD_RECV),
    "backward-send-forward-recv": (OpKind.BACKWARD_SEND, OpKind.FORWARD_RECV),
}

#: Certainty of microbatches counted by start. The count is right for every schedule that runs them
#: in order. With several chunks per stage it also assumes Megatron's interleaved order.
CERTAINTY, CERTAINTY_CHUNKS = 0.95, 0.8

#: A larger time comes from a damaged file.
MAX_TIME_S = 1e294

#: Metrics of unknown names are counted by name up to this number of names.
MAX_NAMES = 20

_METRIC = re.compile(r"(?<![\w-])(" + "|".join((*FUSED, *METRICS)) + r")(?![\w-])")
_FIELD = re.compile(r"\b([a-z_]+)['\"]?\s*[=:]\s*['\"]?(-?[\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
_FIELDS = {"dp": "dp", "dp_rank": "dp", "pid": "dp", "pp": "pp", "pp_rank": "pp", "stage": "pp"}
_FIELDS |= {"tp": "tp", "tp_rank": "tp", "rank": "rank", "step": "step", "ts": "ts", "dur": "dur"}


def matches(path: Path) -> bool:
    """Whether the file is a timeline: events named as metrics, with a rank and a step."""
    if _is_text(path):
        text = head(path)
        return is_raw(text) or any(_is_op(_of_line(line)) for line in text.splitlines())
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
        TraceError: a file is damaged or has no timeline, a value is invalid, or ranks disagree.
    """
    ops, halves, unplaced = OpTable(), Halves(), Counter[str]()
    wanted = _Wanted(steps)
    tp_size = 1
    for path in paths:
        before = len(ops) + wanted.n_others
        for place, event in _events(path, unplaced):
            if isinstance(event, Flush):
                tp = _add_flush(ops, halves, event, place, unplaced, wanted)
            else:
                tp = _add(ops, halves, event, place, unplaced, wanted)
            tp_size = max(tp_size, 1 + tp)
        if len(ops) + wanted.n_others == before:
            raise TraceError(f"{path} has no NDTimeline metric that is known; is it a timeline?")
    where = str(paths[0]) if len(paths) == 1 else f"{len(paths)} timelines"
    wanted.check(ops, where)
    n_fused = halves.settle(ops)
    if job is None:
        dp_size, pp_size = ops.degrees()
        job = Job(dp_size=dp_size, pp_size=pp_size, tp_size=tp_size)
    notes = ["microbatches are counted by start within rank, step and metric"]
    if n_fused:
        notes.append(
            f"{n_fused} sends and recvs are halves of fused calls: they begin with the call and "
            "end at the latest when the first of its two sides ended"
        )
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


class _Wanted:
    """The steps asked for. Of other steps it keeps the number of parts, and the range of steps."""

    def __init__(self, steps: frozenset[int] | None) -> None:
        self._steps = steps
        self.n_others = 0
        self._low, self._high = MAX_NUMBER, 0

    def has(self, step: int, n_parts: int = 1) -> bool:
        """Whether a step is asked for; counts its parts if not."""
        if self._steps is None or step in self._steps:
            return True
        self.n_others += n_parts
        self._low, self._high = min(self._low, step), max(self._high, step)
        return False

    def of(self, step: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """[part] whether its step is asked for."""
        numbers, parts = np.unique(step, return_counts=True)
        has = [self.has(*pair) for pair in zip(numbers.tolist(), parts.tolist(), strict=True)]
        return np.isin(step, numbers[np.array(has, dtype=bool)])

    def check(self, ops: OpTable, where: str) -> None:
        """Refuse timelines without a step that was asked for."""
        if self.n_others and not len(ops):
            raise TraceError(
                f"{where} has none of the steps asked for; it has {self._low} to {self._high}"
            )


def _add(
    ops: OpTable,
    halves: Halves,
    event: Mapping[str, Any],
    place: str,
    unplaced: Counter[str],
    wanted: _Wanted,
) -> int:
    """Add an event, if it is a known metric; returns its tensor-parallel rank."""
    args, kinds = mapping(event, "args"), _kinds(event.get("name"))
    has_duration = event.get("ph", "X") == "X"
    if not (has_duration and _is_placed(event)):
        if kinds:
            reason = "without a rank or step" if has_duration else "whose ph is not X"
            unplaced[f"of known metrics {reason}"] += 1
        return 0
    if not kinds:
        _count_unknown(unplaced, str(event.get("name")))
        return 0
    start_us, duration_us = number(event, "ts", place), number(event, "dur", place)
    if duration_us < 0:
        raise TraceError(f"{place}: dur {duration_us:g} is negative; is the file damaged?")
    rank, pp, step = (whole(args, name, place) for name in ("rank", "pp", "step"))
    dp, tp = whole(event, "pid", place), optional_whole(args.get("tp")) or 0
    if not wanted.has(step):
        return tp
    start_s, end_s = start_us * 1e-6, (start_us + duration_us) * 1e-6
    for kind in kinds:
        halves.note(tp, is_half=len(kinds) > 1)
        ops.add(rank=rank, dp=dp, pp=pp, step=step, kind=kind, start_s=start_s, end_s=end_s)
    return tp


def _add_flush(
    ops: OpTable,
    halves: Halves,
    flush: Flush,
    place: str,
    unplaced: Counter[str],
    wanted: _Wanted,
) -> int:
    """Add the parts of a line of the raw log, as :func:`_add` adds an event."""
    kinds = _kinds(flush.name)
    if not kinds:
        _count_unknown(unplaced, flush.name, len(flush.step))
        return 0
    times = np.abs([flush.start_s, flush.duration_s])
    if not (times < MAX_TIME_S).all():
        raise TraceError(f"{place}: a time should be a number of seconds; is the file damaged?")
    if (flush.duration_s < 0).any():
        shortest = flush.duration_s.min()
        raise TraceError(f"{place}: duration {shortest:g} is negative; is the file damaged?")
    kept = wanted.of(flush.step)
    start_s = flush.start_s[kept]
    for kind in kinds:
        halves.note(flush.tp, is_half=len(kinds) > 1, n_ops=len(start_s))
        ops.add_all(
            rank=flush.rank,
            dp=flush.dp,
            pp=flush.pp,
            step=flush.step[kept],
            kind=kind,
            start_s=start_s,
            end_s=start_s + flush.duration_s[kept],
        )
    return flush.tp if len(flush.step) else 0


def _count_unknown(unplaced: Counter[str], metric: str, n_events: int = 1) -> None:
    name = f"with the metric {metric[:40]!r}, which is not known"
    listed = name in unplaced or len(unplaced) < MAX_NAMES
    unplaced[name if listed else "with other metrics that are not known"] += n_events


def _kinds(name: object) -> tuple[OpKind, ...]:
    """The ops of a metric: two transfers of a fused call, one operation, or no known one."""
    if not isinstance(name, str):
        return ()
    return FUSED.get(name) or ((METRICS[name],) if name in METRICS else ())


def _is_placed(event: Mapping[str, Any]) -> bool:
    return {"rank", "step"} <= mapping(event, "args").keys()


def _is_op(event: Mapping[str, Any] | None) -> bool:
    return event is not None and bool(_kinds(event.get("name"))) and _is_placed(event)


def _events(path: Path, unplaced: Counter[str]) -> Iterator[tuple[str, Mapping[str, Any] | Flush]]:
    """The events of a file, or the lines of its raw log, each with its place for messages."""
    if not _is_text(path):
        for n, event in enumerate(JsonStream(path)):
            yield f"{path}, event {n}", event
        return
    for n, line in enumerate(lines(path), 1):
        if is_raw(line):
            flush = flush_of(line)
            if flush is None:
                unplaced["in lines that are cut off or have no step"] += 1
            else:
                yield f"{path}, line {n}", flush
            continue
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
    """The event that a line of text holds; None if it has none."""
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
