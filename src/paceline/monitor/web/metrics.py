"""/metrics for Prometheus: base units, and ``_total`` for counters.

Each metric has one series per job, independent of its ranks, steps and microbatches. The joinable
``paceline_job_info`` has the job's labels. Jobs not seen for a week are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.monitor.store import alerts, figures
from paceline.monitor.store.events import events_of_slow
from paceline.monitor.web.envelope import BUCKETS_S, HttpCounts
from paceline.monitor.web.event_cost import step_loss
from paceline.monitor.web.security import Principal

_SEEN_S = 7 * 86_400.0

Labels = Mapping[str, Any]
Sample = tuple[Labels, float | None]

#: Metric -> column of the job, help, factor to base units.
_OF_JOB = (
    ("slowdown_ratio", "slowdown", "S of the latest session: step time over the ideal one.", 1.0),
    ("waste_ratio", "waste", "Share of the GPU time lost to stragglers, 1 - 1/S.", 1.0),
    ("step_seconds", "step_s", "Median time of the latest steps.", 1.0),
    ("healthy_step_seconds", "healthy_s", "Step time without fail-slows.", 1.0),
    ("last_step", "last_step", "Number of the latest step.", 1.0),
    ("last_seen_timestamp_seconds", "seen_at", "Time of the job's latest data.", 1.0),
)
_TOTALS = (
    ("sessions_total", "n_sessions", "Profiling sessions.", 1.0),
    ("gpu_seconds_lost_total", "gpu_hours_lost", "GPU time lost to stragglers.", 3600.0),
)


def metrics_text(
    service: Any, counts: HttpCounts, principal: Principal, version: str, accept: str
) -> tuple[bytes, str]:
    """All metrics that a principal may see, and their content type according to ``accept``.

    Metrics of the service itself need a principal of all projects.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(service, counts, principal, version))
    if principal.project == "*":
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@dataclass(frozen=True, eq=False)
class _Metrics(Collector):
    """Collects the current state of the store and the service at each request."""

    service: Any
    counts: HttpCounts
    principal: Principal
    version: str

    def collect(self) -> Iterator[Metric]:
        """The families with a sample."""
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterator[Metric]:
        service, project = self.service, self.principal.project
        yield _family("paceline_build_info", "gauge", "Version.", [({"version": self.version}, 1)])
        seen = figures.seen_jobs(service.engine, project, service.clock() - _SEEN_S)
        with service.engine.connect() as connection:
            events = events_of_slow(connection)
        yield from _jobs(seen, service.config.labels_of_metrics, events)
        fires, sent = alerts.counts(service.engine)
        names = ("project", "rule", "importance")
        mine = [row for row in fires if self.principal.sees(row["project"])]
        rows = [({name: row[name] for name in names}, row["n"]) for row in mine]
        yield _family("paceline_alerts_firing", "gauge", "Alerts that fire.", rows)
        if project == "*":
            yield from _service(service, sent)
            yield from _http(self.counts)


def _jobs(
    rows: list[dict[str, Any]],
    labels: Sequence[str],
    events: Mapping[int, Sequence[Mapping[str, Any]]],
) -> Iterator[Metric]:
    keys = [{"project": row["project"], "job": row["name"]} for row in rows]
    pairs = list(zip(keys, rows, strict=True))
    info = [({**key, **_description(row, labels)}, 1.0) for key, row in pairs]
    yield _family("paceline_job_info", "gauge", "Name, labels and shape of the job.", info)
    slow = [(key, float(row["slow_since_step"] is not None)) for key, row in pairs]
    yield _family("paceline_job_fail_slow", "gauge", "1 during a fail-slow.", slow)
    text = "Median time of the latest steps over that of healthy ones: S without a trace."
    over = [(key, _ratio(row["step_s"], row["healthy_s"])) for key, row in pairs]
    yield _family("paceline_job_step_slowdown_ratio", "gauge", text, over)
    losses = [(key, step_loss(row, events.get(row["id"], ()))) for key, row in pairs]
    slow_losses = [(key, loss) for key, loss in losses if loss is not None]
    text = "Share of the GPU time lost to the current fail-slow, by step times."
    shares = [(key, loss.waste) for key, loss in slow_losses]
    yield _family("paceline_job_step_waste_ratio", "gauge", text, shares)
    text = "GPU time lost so far to the current fail-slow, by step times."
    lost = [(key, _times(loss.gpu_hours_lost, 3600.0)) for key, loss in slow_losses]
    yield _family("paceline_job_fail_slow_gpu_seconds_lost", "gauge", text, lost)
    text = "GPU-hours that a running job would lose in the next day at its current speed."
    stakes = [(key, row["stake_gpu_hours"]) for key, row in pairs]
    yield _family("paceline_job_stake_gpu_hours", "gauge", text, stakes)
    for kind, table in (("gauge", _OF_JOB), ("counter", _TOTALS)):
        for name, column, text, factor in table:
            samples = [(key, _times(row[column], factor)) for key, row in pairs]
            yield _family(f"paceline_job_{name}", kind, text, samples)


def _description(row: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    sizes = {name.removesuffix("_size"): size for name, size in row["degrees"].items()}
    degrees = {name: sizes.get(name, "") for name in ("dp", "pp", "tp")}
    return {
        "status": row["status"],
        "gpus": row["gpus"] or "",
        "cause": row["cause"] or "",
        **degrees,
        **{f"label_{name}": str(row["labels"].get(name, ""))[:200] for name in labels},
    }


def _service(service: Any, sent: list[dict[str, Any]]) -> Iterator[Metric]:
    sessions = [
        ({"status": k}, n) for k, n in sorted(figures.session_counts(service.engine).items())
    ]
    yield _family("paceline_sessions", "gauge", "Sessions in the store.", sessions)
    uploads = figures.open_uploads(service.engine)
    yield _family("paceline_uploads", "gauge", "Uploads under way.", [({}, uploads)])
    text = "Step samples waiting for the detectors."
    waiting = service.detectors.n_waiting
    yield _family("paceline_step_samples_waiting", "gauge", text, [({}, waiting)])
    n_blobs, n_bytes = service.blobs.waiting
    text = "Traces and results waiting for the bucket."
    yield _family("paceline_blobs_waiting", "gauge", text, [({}, n_blobs)])
    yield _family("paceline_blobs_waiting_bytes", "gauge", text, [({}, n_bytes)])
    text = "1 while traces and results can be read."
    yield _family("paceline_blobs_up", "gauge", text, [({}, float(not service.blobs.problem))])
    free = shutil.disk_usage(service.config.data).free
    yield _family("paceline_disk_free_bytes", "gauge", "Of the data folder.", [({}, free)])
    rows = [({name: row[name] for name in ("channel", "state")}, row["n"]) for row in sent]
    yield _family("paceline_alert_messages", "gauge", "Messages by channel and state.", rows)


def _http(counts: HttpCounts) -> Iterator[Metric]:
    requests = [
        ({"method": method, "handler": handler, "status": status}, n)
        for (method, handler, status), n in sorted(counts.requests.items())
    ]
    yield _family("paceline_http_requests_total", "counter", "Requests answered.", requests)
    text = "Requests under way."
    yield _family("paceline_http_requests_running", "gauge", text, [({}, counts.running)])
    durations = HistogramMetricFamily(
        "paceline_http_request_duration_seconds", "Time to answer.", labels=["handler"]
    )
    ends = [*map(str, BUCKETS_S), "+Inf"]
    for handler, buckets in sorted(counts.buckets.items()):
        cumulated = zip(ends, accumulate(buckets), strict=True)
        durations.add_metric([handler], list(cumulated), counts.seconds[handler])
    yield durations


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Metric:
    """A family of the samples with a value; empty labels are left out."""
    family = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        if value is not None:
            texts = {key: str(label) for key, label in labels.items() if label != ""}
            family.add_sample(name, texts, value)
    return family


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
