"""Records of Google's goodput library (ml-goodput-measurement 0.2.3, ``src/goodput.py``).

An entry is a mapping with ``job_name`` and a time under one of the keys below, in seconds since the
epoch. Cloud Logging stores the entries; its export (``gcloud logging read --format json``) has them
under ``jsonPayload``. A step has only a start. It lasts until the next step starts, or until the
end of the job. Entries of Orbax (``checkpoint_badput_calculator.py``) give the time that
checkpoints blocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.run_logs.timeline import (
    Pause,
    PauseKind,
    Start,
    Steps,
    Timeline,
    no_steps,
    steps_of,
)

#: A key that the first entries of such a log have.
CUE = '"job_name"'
_STEP, _COUNT = "step_start_time", "step_count"
_JOB_START, _JOB_END = "job_start_time", "job_end_time"
_CUSTOM, _CUSTOM_TYPE = "custom_badput_event", "custom_badput_event_type"
_INTERVALS: dict[str, PauseKind] = {
    "tpu_init": "setup",
    "training_prep": "setup",
    "data_loading": "data",
}
#: Orbax' event -> kind, key of its begin, key of the seconds it blocked.
_CHECKPOINTS: dict[str, tuple[PauseKind, str, str]] = {
    "save": (
        "checkpoint",
        "checkpoint_manager_blocking_start_time",
        "checkpoint_manager_blocking_duration_secs",
    ),
    "restore": ("restore", "checkpoint_manager_start_time", "checkpoint_manager_duration_secs"),
}
_KINDS: frozenset[PauseKind] = frozenset({"setup", "data", "checkpoint", "restore", "other"})


def is_entry(entry: object) -> bool:
    """Whether an object of a file is a record of the library."""
    return isinstance(entry, dict) and "job_name" in _payload(entry)


def _payload(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = entry.get("jsonPayload", entry.get("payload", entry))
    return payload if isinstance(payload, dict) else {}


def read_google(entries: Iterable[Mapping[str, Any]], where: str) -> Timeline:
    """The timeline of records, given in the order in which they were written.

    Raises:
        TraceError: they are of several jobs, a value is no number, or nothing is recorded.
    """
    payloads = [payload for entry in entries if (payload := _payload(entry))]
    jobs = sorted({str(payload["job_name"]) for payload in payloads if "job_name" in payload})
    if len(jobs) > 1:
        raise TraceError(f"{where} holds several jobs ({', '.join(jobs)[:200]}); give one")
    reader = _Reader()
    try:
        for payload in payloads:
            reader.take(payload)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"{where} is damaged ({type(error).__name__}: {error})") from None
    starts = reader.starts()
    if not any(len(start.steps) for start in starts):
        raise TraceError(f"{where} records no step before another one or before the job's end")
    evaluations: frozenset[PauseKind] = frozenset({"evaluation"})
    kinds = _KINDS | evaluations if reader.names_evaluations else _KINDS
    notes = () if reader.has_end else ("the log has no end of the job: its last step is left out",)
    return Timeline("ml-goodput-measurement", tuple(starts), kinds, notes=notes)


class _Reader:
    """Collects entries into starts of the job."""

    def __init__(self) -> None:
        self._closed: list[Start] = []
        self._steps: list[tuple[int, float]] = []
        self._pauses: list[Pause] = []
        self._open: dict[str, float] = {}
        self._begin: float | None = None
        self._end: float | None = None
        self.names_evaluations = self.has_end = False

    def take(self, payload: Mapping[str, Any]) -> None:
        if _JOB_START in payload:
            self._close()
            self._begin = float(payload[_JOB_START])
        elif _JOB_END in payload:
            self._end = float(payload[_JOB_END])
            self.has_end = True
        elif _STEP in payload:
            number = int(payload[_COUNT])
            if self._steps and number <= self._steps[-1][0]:
                self._close()  # an unannounced restart
            self._steps.append((number, float(payload[_STEP])))
        elif payload.get("event_type") in _CHECKPOINTS:
            kind, begin_key, seconds_key = _CHECKPOINTS[payload["event_type"]]
            if payload.get(begin_key) is not None and payload.get(seconds_key) is not None:
                begin = float(payload[begin_key])
                self._pauses.append(Pause(kind, begin, begin + float(payload[seconds_key])))
        else:
            self._interval(payload)

    def _interval(self, payload: Mapping[str, Any]) -> None:
        for name in (*_INTERVALS, _CUSTOM):
            kind = str(payload.get(_CUSTOM_TYPE, name))
            if f"{name}_start_time" in payload:
                self._open[kind] = float(payload[f"{name}_start_time"])
            elif f"{name}_end_time" in payload and kind in self._open:
                end = float(payload[f"{name}_end_time"])
                self._pauses.append(Pause(self._kind(name, kind), self._open.pop(kind), end))

    def _kind(self, name: str, custom: str) -> PauseKind:
        if name != _CUSTOM:
            return _INTERVALS[name]
        if "eval" in custom.lower() or "valid" in custom.lower():
            self.names_evaluations = True
            return "evaluation"
        return "checkpoint" if "checkpoint" in custom.lower() else "other"

    def _close(self) -> None:
        """End the present start of the job."""
        if self._steps or self._pauses or self._begin is not None:
            times = [at for _, at in self._steps] + [pause.end_s for pause in self._pauses]
            begin = self._begin
            if begin is None:
                begin = min([at for _, at in self._steps] + [p.begin_s for p in self._pauses])
            end = max([begin, *times, *([] if self._end is None else [self._end])])
            self._closed.append(
                Start(
                    begin,
                    end,
                    self._table(),
                    tuple(self._pauses),
                    has_begin=self._begin is not None,
                    has_ended=self._end is not None,
                )
            )
        self._steps, self._pauses, self._open = [], [], {}
        self._begin = self._end = None

    def _table(self) -> Steps:
        """Each step until the next one starts; the last until the job's end, if that is known."""
        ends = [at for _, at in self._steps[1:]] + ([] if self._end is None else [self._end])
        if not ends:
            return no_steps()
        rows = zip(self._steps, ends, strict=False)
        return steps_of((number, 1, begin, end) for (number, begin), end in rows)

    def starts(self) -> list[Start]:
        self._close()
        return self._closed
