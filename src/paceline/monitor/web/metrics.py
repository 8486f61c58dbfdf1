"""/metrics for Prometheus: base units, and ``_total`` for counters.

Each metric has one series per job, independent of its ranks, steps and microbatches. The joinable
``paceline_job_info`` has the job's labels. Jobs not seen for a week are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.monitor.levels import Levels
from paceline.monitor.store import alerts, figures
from paceline.monitor.web.envelope import BUCKETS_S, HttpCounts
from paceline.monitor.web.job_metrics import job_lines
from paceline.monitor.web.security import Principal

_SEEN_S = 7 * 86_400.0
#: The last line of OpenMetrics.
_END = b"# EOF\n"

Labels = Mapping[str, Any]
Sample = tuple[Labels, float | None]


@dataclass(frozen=True, eq=False)
class Metrics:
    """All metrics.

    Attributes:
        service: its store, settings and parts.
        version: version of Paceline.
        levels: changes of the jobs' levels, kept between two requests.
    """

    service: Any
    version: str
    levels: Levels = field(default_factory=Levels)

    def text(self, counts: HttpCounts, principal: Principal, accept: str) -> tuple[bytes, str]:
        """The metrics that a principal may see, and their content type according to ``accept``.

        Metrics of the service itself need a principal of all projects.
        """
        registry = CollectorRegistry()
        registry.register(_Families(self.service, counts, principal, self.version))
        if principal.project == "*":
            ProcessCollector(registry=registry)
        # Escaping by dots would double the underscores of these valid names.
        encode, content_type = choose_encoder(accept.replace("escaping=dots", ""))
        body = encode(registry)
        openmetrics = content_type.startswith("application/openmetrics-text")
        end = _END if openmetrics else b""
        lines = self._job_lines(principal.project, openmetrics)
        return body.removesuffix(end) + lines.encode() + end, content_type

    def _job_lines(self, project: str, openmetrics: bool) -> str:
        service = self.service
        rows = figures.seen_jobs(service.engine, project, service.clock() - _SEEN_S)
        with service.engine.connect() as connection:
            changes = self.levels.of(connection)
        labels = service.config.labels_of_metrics
        return job_lines(rows, labels, changes, openmetrics=openmetrics)


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    """Collects the current state of the service at each request."""

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
        fires, sent = alerts.counts(service.engine)
        names = ("project", "rule", "importance")
        mine = [row for row in fires if self.principal.sees(row["project"])]
        rows = [({name: row[name] for name in names}, row["n"]) for row in mine]
        yield _family("paceline_alerts_firing", "gauge", "Alerts that fire.", rows)
        if project == "*":
            yield from _service(service, sent)
            yield from _http(self.counts)


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
