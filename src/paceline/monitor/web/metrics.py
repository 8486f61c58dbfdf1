"""/metrics in Prometheus' text format: base units, ``_total`` for what only grows.

A job is a series each, whatever its number of ranks, steps and microbatches; what describes it
stands in ``paceline_job_info``, to be joined. Jobs not seen for a week are left out.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.monitor.store import alerts, figures
from paceline.monitor.web.envelope import BUCKETS_S, HttpCounts
from paceline.monitor.web.security import Principal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SEEN_S = 7 * 86_400.0
_STARTED_AT = time.time()

Labels = Mapping[str, Any]
Sample = tuple[Labels, float | None]

#: Metric -> column of the job, help, factor to base units.
_OF_JOB = (
    ("slowdown_ratio", "slowdown", "S of the latest session: step time over the ideal one.", 1.0),
    ("waste_ratio", "waste", "Share of the GPU time lost to stragglers, 1 - 1/S.", 1.0),
    ("step_seconds", "step_s", "Median time of the latest steps.", 1.0),
    ("healthy_step_seconds", "healthy_s", "Step time without fail-slows.", 1.0),
    ("last_step", "last_step", "Number of the latest step.", 1.0),
    ("last_seen_timestamp_seconds", "seen_at", "When the job last sent something.", 1.0),
)
_TOTALS = (
    ("sessions_total", "n_sessions", "Profiling sessions.", 1.0),
    ("gpu_seconds_lost_total", "gpu_hours_lost", "GPU time lost to stragglers.", 3600.0),
)


def metrics_text(service: Any, counts: HttpCounts, principal: Principal, version: str) -> str:
    """All metrics that a principal may see; those of the service itself only for all projects."""
    lines = list(_family("paceline_build_info", "gauge", "Version.", [({"version": version}, 1)]))
    lines += _jobs(figures.seen_jobs(service.engine, principal.project, service.clock() - _SEEN_S))
    fires, sent = alerts.counts(service.engine)
    names = ("project", "rule", "importance")
    mine = [row for row in fires if principal.sees(row["project"])]
    rows = [({name: row[name] for name in names}, row["n"]) for row in mine]
    lines += _family("paceline_alerts_firing", "gauge", "Alerts that fire.", rows)
    if principal.project == "*":
        lines += _service(service, sent)
        lines += _http(counts)
        lines += _process()
    return "\n".join(lines) + "\n"


def _jobs(rows: list[dict[str, Any]]) -> Iterable[str]:
    keys = [{"project": row["project"], "job": row["name"]} for row in rows]
    pairs = list(zip(keys, rows, strict=True))
    info = [({**key, **_described(row)}, 1.0) for key, row in pairs]
    yield from _family("paceline_job_info", "gauge", "What the job is.", info)
    slow = [(key, float(row["slow_since_step"] is not None)) for key, row in pairs]
    yield from _family("paceline_job_fail_slow", "gauge", "1 while a fail-slow goes on.", slow)
    for kind, table in (("gauge", _OF_JOB), ("counter", _TOTALS)):
        for name, column, text, factor in table:
            samples = [(key, _times(row[column], factor)) for key, row in pairs]
            yield from _family(f"paceline_job_{name}", kind, text, samples)


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    given = {name.removesuffix("_size"): size for name, size in row["degrees"].items()}
    degrees = {name: given.get(name, "") for name in ("dp", "pp", "tp")}
    return {
        "status": row["status"],
        "gpus": row["gpus"] or "",
        "cause": row["cause"] or "",
        **degrees,
    }


def _service(service: Any, sent: list[dict[str, Any]]) -> Iterable[str]:
    sessions = [
        ({"status": k}, n) for k, n in sorted(figures.session_counts(service.engine).items())
    ]
    yield from _family("paceline_sessions", "gauge", "Sessions in the store.", sessions)
    uploads: list[Sample] = [({}, figures.open_uploads(service.engine))]
    yield from _family("paceline_uploads", "gauge", "Uploads under way.", uploads)
    waiting: list[Sample] = [({}, service.detectors.n_waiting)]
    text = "Step samples that wait for the detectors."
    yield from _family("paceline_step_samples_waiting", "gauge", text, waiting)
    rows = [({name: row[name] for name in ("channel", "state")}, row["n"]) for row in sent]
    yield from _family("paceline_alert_messages", "gauge", "Messages by channel and state.", rows)


def _http(counts: HttpCounts) -> Iterable[str]:
    requests = [
        ({"method": method, "handler": handler, "status": status}, n)
        for (method, handler, status), n in sorted(counts.requests.items())
    ]
    yield from _family("paceline_http_requests_total", "counter", "Requests answered.", requests)
    running: list[Sample] = [({}, counts.running)]
    yield from _family("paceline_http_requests_running", "gauge", "Requests under way.", running)
    name = "paceline_http_request_duration_seconds"
    yield f"# HELP {name} Time to answer."
    yield f"# TYPE {name} histogram"
    for handler, buckets in sorted(counts.buckets.items()):
        total = 0
        for end, n in zip((*BUCKETS_S, "+Inf"), buckets, strict=True):
            total += n
            yield _line(f"{name}_bucket", {"handler": handler, "le": end}, total)
        yield _line(f"{name}_sum", {"handler": handler}, counts.seconds[handler])
        yield _line(f"{name}_count", {"handler": handler}, total)


def _process() -> Iterable[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu: list[Sample] = [({}, usage.ru_utime + usage.ru_stime)]
    yield from _family("process_cpu_seconds_total", "counter", "CPU time of the service.", cpu)
    memory: list[Sample] = [({}, _resident_bytes())]
    yield from _family("process_resident_memory_bytes", "gauge", "Memory of the service.", memory)
    start: list[Sample] = [({}, _STARTED_AT)]
    yield from _family("process_start_time_seconds", "gauge", "When the service began.", start)


def _resident_bytes() -> float | None:
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 (not a file of ours)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux
        return None


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterable[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for labels, value in known:
            yield _line(name, labels, value)


def _line(name: str, labels: Labels, value: float) -> str:
    said = ",".join(f'{key}="{_escaped(str(each))}"' for key, each in labels.items() if each != "")
    return f"{name}{{{said}}} {value!r}" if said else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
