"""Logs of a job -> its timeline; the format is detected from the content."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources import recording
from paceline.sources.json_stream import head as head_of
from paceline.sources.json_stream import lines as lines_of
from paceline.sources.run_logs import google, megatron, mlperf_events, one_logger, steps_only
from paceline.sources.run_logs.dated_lines import pause_pattern
from paceline.sources.run_logs.recorded import read_recorded
from paceline.sources.run_logs.timeline import PauseKind, Timeline
from paceline.sources.step_logs import event_files, json_files, mlperf
from paceline.sources.step_logs.files import texts_of

#: Most lines of a log that are searched for the words of a tool.
_MAX_PREAMBLE = 1_000_000


def load_timeline(
    paths: Sequence[Path],
    pattern: str | None = None,
    *,
    checkpoint: str | None = None,
    evaluation: str | None = None,
) -> Timeline:
    """The timeline of a job from one or several logs. Each may hold several starts of the job.

    Args:
        paths: logs of one job. They are put in the order of their first dates; without dates the
            given order counts.
        pattern: pattern of a line of a step, for logs of no known format.
        checkpoint: pattern of the dated lines of checkpoints, by which a log of any format is read
            as :mod:`paceline.sources.run_logs.dated_lines` does.
        evaluation: the same of evaluations.

    Raises:
        TraceError: a log is of no known format or damaged, or logs with and without dates are
            mixed.
    """
    if not paths:
        raise TraceError("give the logs of a job")
    given: dict[PauseKind, re.Pattern[str]] = {}
    if checkpoint is not None:
        given["checkpoint"] = pause_pattern(checkpoint, "--checkpoint")
    if evaluation is not None:
        given["evaluation"] = pause_pattern(evaluation, "--evaluation")
    timelines = [_load(path, pattern, given) for path in paths]
    if len(timelines) == 1:
        return timelines[0]
    if len({timeline.has_clock for timeline in timelines}) > 1:
        raise TraceError("some of these logs have dates and some do not; give those with dates")
    has_clock = timelines[0].has_clock
    starts = [start for timeline in timelines for start in timeline.starts]
    if has_clock:
        starts.sort(key=lambda start: start.begin_s)
    return replace(
        timelines[0],
        tool=", ".join(dict.fromkeys(timeline.tool for timeline in timelines)),
        starts=tuple(starts),
        recorded=frozenset.intersection(*(timeline.recorded for timeline in timelines)),
        notes=tuple(dict.fromkeys(note for timeline in timelines for note in timeline.notes)),
        recordings=tuple(chain.from_iterable(timeline.recordings for timeline in timelines)),
    )


def _load(path: Path, pattern: str | None, given: Mapping[PauseKind, re.Pattern[str]]) -> Timeline:
    if pattern is None and not given and path.is_dir() and recording.matches(path):
        return read_recorded(path)
    is_table = path.suffix in (".parquet", ".pq")
    if pattern is not None or path.is_dir() or is_table or event_files.is_event_file(path):
        return steps_only.read_steps(path, pattern, given)
    if given:
        return steps_only.read_steps(path, None, given)
    head = head_of(path)
    if json_files.TRAINER_STATE in head:
        return steps_only.read_trainer_state(path)
    if json_files.PROMETHEUS in head[:1000]:
        raise TraceError(f"{path} has scrapes, not steps: no ledger can be made of it")
    if head.lstrip()[:1] in ("{", "[") and (google.CUE in head or one_logger.CUE in head):
        objects = json_objects(path)
        if any(google.is_entry(entry) for entry in objects[:100]):
            return google.read_google(objects, str(path))
        if objects and one_logger.is_record(objects[0]):
            return one_logger.read_one_logger(objects, str(path))
    return _read_text(path) or steps_only.read_steps(path, None)


def _read_text(path: Path) -> Timeline | None:
    """The timeline of a log of MLPerf or Megatron-LM; None for logs of other tools."""
    notes: list[str] = []
    lines = texts_of(path, notes)
    before: list[str] = []
    for line in lines:
        before.append(line)
        if mlperf.CUE in line:
            timeline = mlperf_events.read_mlperf_events(chain(before, lines), str(path))
            return replace(timeline, notes=(*notes, *timeline.notes))
        if megatron.CUE in line:
            timeline = megatron.read_megatron(chain(before, lines), str(path))
            return replace(timeline, notes=(*notes, *timeline.notes))
        if len(before) > _MAX_PREAMBLE:
            break
    return None


def json_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON file: a list of them, one per line, or a single one.

    Raises:
        TraceError: the file is no JSON, or holds other values than objects.
    """
    text = "\n".join(lines_of(path))
    try:
        content = json.loads(text)
    except RecursionError:
        raise TraceError(f"{path} is no JSON") from None
    except ValueError:
        return _json_lines(text.splitlines(), path)
    objects = content if isinstance(content, list) else [content]
    if not all(isinstance(entry, dict) for entry in objects):
        raise TraceError(f"{path} is no list of JSON objects")
    return objects


def _json_lines(lines: Iterable[str], path: Path) -> list[dict[str, Any]]:
    objects = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                raise TraceError(f"{path}:{number} is no JSON object")
            objects.append(entry)
    return objects
