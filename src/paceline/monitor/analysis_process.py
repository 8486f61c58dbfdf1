"""One session's analysis in a separate process: ``python -m paceline.monitor.analysis_process``.

Arguments: the trace, and a folder for the results with settings.json (``memory_bytes``, ``meta`` as
pushed). It writes result.json, report.html, ideal.json.gz and summary.json there. It ends with code
2 and one line of reason, or with 4 if the results cannot be written. Any other failure affects only
this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.graph import Durations
    from paceline.results.document import JobReport

SETTINGS, SUMMARY = "settings.json", "summary.json"

#: Exit code: the results cannot be written, which the trace does not cause.
UNWRITABLE = 4

#: A larger share of the step that waits for data take counts as this one.
_MOST_DATA = 0.99

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Analyse; returns the exit code."""
    trace, folder = Path(arguments[0]), Path(arguments[1])
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    _limit(int(settings["memory_bytes"]))
    from paceline.errors import OutputError, PacelineError

    try:
        summary = analyse(trace, folder, settings["meta"])
        (folder / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
    except (OutputError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return UNWRITABLE
    except PacelineError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except MemoryError:
        print("out of memory", file=sys.stderr)
        return 3
    return 0


def analyse(path: Path, folder: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Run `paceline analyze --out`, and keep the parts for the store."""
    from paceline.diagnose import diagnose
    from paceline.graph import from_trace
    from paceline.monitor.rank_groups import hosts_of
    from paceline.remedies import REMEDIES, Case, advise
    from paceline.report.folder import write_folder
    from paceline.report.page.figures import MAX_STEP_VALUES
    from paceline.results.document import JobReport
    from paceline.sources.hosts import hosts_of_workers
    from paceline.whatif import analyze

    measured = from_trace(_trace(path, meta))
    result = analyze(measured)
    hosts = hosts_of_workers({**measured.places, **hosts_of(meta)}, measured.rank)
    diagnosis = diagnose(measured, result, hosts)
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    report = JobReport.of(result, advice, hosts=hosts, per_step_workers=True)
    by_step = result.by_worker_by_step.size <= MAX_STEP_VALUES
    write_folder(report, result, measured, folder, per_step_workers=by_step)
    return _summary(report, measured.durations)


def _summary(report: JobReport, durations: Durations) -> dict[str, Any]:
    """The columns of a session."""
    from paceline.diagnose import forward_backward_correlation
    from paceline.results.causes import cause_facts, cause_place, cause_remedy
    from paceline.results.facts import best_gain, fleet_facts
    from paceline.results.headline import headline, named_cause

    cause = named_cause(report)
    remedy = cause_remedy(report, cause)
    return {
        "first_step": min(report.steps),
        "last_step": max(report.steps),
        "step_s": float(report.traced_s.mean()),
        "steps_s": float(report.traced_s.sum()),
        "slowdown": float(report.slowdown),
        "waste": max(0.0, float(report.waste)),
        "cause": cause,
        "headline": headline(report),
        "best_gain": best_gain(report),
        "slowdown_lasting": _lasting(report, cause, durations),
        "slowdown_healthy": float(report.largest_slowdown) if report.bounded else None,
        "data_loading": _data_loading(report),
        "place": cause_place(report, cause),
        "cause_gain": None if remedy is None else float(remedy.gain),
        "gpus": report.job.world_size,
        "degrees": report.job.to_mapping(),
        "facts": {
            **fleet_facts(report, forward_backward_correlation(durations)),
            "causes": cause_facts(report),
        },
    }


def _data_loading(report: JobReport) -> float | None:
    """The share of the step that waits for data take; None without such a finding."""
    found = (f for f in report.diagnosis.findings if f.cause == "data-loading")
    return next((min(max(float(f.share_of_step), 0.0), _MOST_DATA) for f in found), None)


def _lasting(report: JobReport, cause: str, durations: Durations) -> float:
    """S without variation that passes. Without a known cause, what chance may explain passes."""
    from paceline.whatif.ideal import reference
    from paceline.whatif.lasting import beyond_chance

    lasting = float(report.judged_slowdown)
    if cause != "unexplained" or report.slowdown_lasting is None:
        return lasting
    return min(lasting, beyond_chance(durations, reference(durations)))


def _trace(path: Path, meta: Mapping[str, Any]) -> Any:
    from paceline.sources import load, otlp
    from paceline.trace import Job

    degrees = meta.get("job")
    job = Job.from_mapping(degrees, where="the job that was pushed") if degrees else None
    if otlp.matches(path):
        steps = meta.get("steps")
        chosen = frozenset(steps) if isinstance(steps, list) and steps else None
        return otlp.read([path], job, chosen).trace
    return load(path, job)


def _limit(memory_bytes: int) -> None:
    """Limit memory, lower the priority, and end with the service."""
    os.nice(5)
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
