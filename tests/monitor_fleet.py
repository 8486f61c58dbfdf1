"""A monitor filled with synthesised jobs, and the real ones where they are: to test pages."""

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
from sqlalchemy import insert, update
from sqlalchemy.event import listen

from paceline.diagnose import diagnose, forward_backward_correlation
from paceline.graph import from_trace
from paceline.monitor.alerts.settings import Settings
from paceline.monitor.blobs import PERFETTO, REPORT, RESULT, FileBlobs, result_key
from paceline.monitor.bus import Bus
from paceline.monitor.config import Config
from paceline.monitor.detectors import Detectors
from paceline.monitor.projects import Projects
from paceline.monitor.rank_file import save_rank_map
from paceline.monitor.rank_map import RankMap
from paceline.monitor.step_files import StepFiles
from paceline.monitor.step_series import ROW, append_rows
from paceline.monitor.store.database import open_database
from paceline.monitor.store.tables import (
    alerts,
    deliveries,
    events,
    jobs,
    session_facts,
    sessions,
    silences,
)
from paceline.remedies import REMEDIES, Case, advise
from paceline.results.causes import cause_place, cause_remedy
from paceline.results.document import JobReport
from paceline.results.facts import best_gain, fleet_facts, main_cause
from paceline.results.headline import headline
from paceline.sources import load
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.whatif import analyze

NOW = 1_790_000_000.0
DAY_S = 86_400.0
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
REAL = ("AR", "SE", "ST")

SLOW = SynthSpec(dp=5, pp=3, microbatches=4, steps=6, slow_workers=(SlowWorker(3, 1, 1.5),))
HEALTHY = SynthSpec(dp=5, pp=3, microbatches=4, steps=4, noise=0.003)


def specs() -> list[SynthSpec]:
    """Jobs of all causes and sizes, more of them healthy or nearly so than not."""
    made = []
    for k in range(4):
        size = {"dp": 4 << k, "microbatches": 8, "steps": 4, "seed": k}
        made += [
            SynthSpec(pp=4, slow_last_stage=(1 + 0.12 * (k + 1), 1 + 0.08 * (k + 1)), **size),
            SynthSpec(pp=2, sequence_imbalance=0.05 + 0.09 * k, **size),
            SynthSpec(pp=2, gc_pauses=(0.02, 0.1 + 0.1 * k), **size),
            SynthSpec(pp=2, noise=0.004 * (k + 1), **size),
            SynthSpec(pp=4, noise=0.01 + 0.01 * k, **size),
        ]
    return [HEALTHY, SLOW, *made, SynthSpec(**LARGE), SynthSpec(**{**LARGE, "seed": 9})]


LARGE = {
    "dp": 64,
    "pp": 4,
    "microbatches": 4,
    "steps": 3,
    "slow_workers": (SlowWorker(40, 2, 1.8),),
}


@dataclass(frozen=True)
class Analysis:
    """What an analysis leaves: ``result.json``, the columns of its session, facts."""

    result: str
    columns: dict[str, Any]
    gpus: int
    degrees: dict[str, Any]
    facts: dict[str, Any]


def analysed(trace: Any, hosts: dict[tuple[int, int], tuple[str, str]] | None = None) -> Analysis:
    """What `paceline analyze --json --per-step-workers` prints, and the monitor's columns."""
    measured = from_trace(trace)
    result = analyze(measured)
    diagnosis = diagnose(measured, result, hosts or {})
    advice = advise(Case(measured, result, diagnosis), REMEDIES)
    report = JobReport.of(result, advice, hosts=hosts, per_step_workers=True)
    cause = main_cause(report)
    remedy = cause_remedy(report, cause)
    columns = {
        "first_step": min(report.steps),
        "last_step": max(report.steps),
        "step_s": float(report.traced_s.mean()),
        "slowdown": float(report.slowdown),
        "waste": max(0.0, float(report.waste)),
        "cause": cause,
        "headline": headline(report),
        "best_gain": best_gain(report),
        "slowdown_lasting": report.judged_slowdown,
        "slowdown_healthy": report.largest_slowdown if report.bounded else None,
        "place": cause_place(report, cause),
        "cause_gain": remedy and remedy.gain,
    }
    facts = fleet_facts(report, forward_backward_correlation(measured.durations))
    text = report.to_mapping()
    degrees = result.job.to_mapping()
    return Analysis(json.dumps(text), columns, result.job.world_size, degrees, facts)


def synthetic(most: int | None = None) -> list[Analysis]:
    """The analyses of the synthesised traces: healthy, slow (machines have names), others."""
    hosts = {(dp, pp): (f"node-{dp}", str(pp)) for dp in range(SLOW.dp) for pp in range(SLOW.pp)}
    return [analysed(synthesize(spec), hosts if spec is SLOW else None) for spec in specs()[:most]]


def real(folder: Path) -> dict[str, Analysis]:
    """The analyses of the three real jobs."""
    found = {}
    for name in REAL:
        trace = load(folder / f"trace-{name}.parquet", job=folder / f"meta-{name}.yaml")
        found[name] = analysed(trace)
    return found


class Monitor:
    """The part of the service that pages use, and what fills it.

    Args:
        folder: for the store and the blobs.
        clock: seconds since 1970.
        store: URL of the database; "" = SQLite in the folder.
    """

    def __init__(self, folder: Path, clock: Any = lambda: NOW, store: str = "") -> None:
        self.config = Config(data=folder, public_read=True, store=store)
        self.engine = open_database(self.config.store_url)
        if self.engine.dialect.name == "sqlite":  # nothing here must outlive a crash
            listen(self.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
            self.engine.dispose()
        self.blobs = FileBlobs(folder / "blobs")
        self.steps = StepFiles(folder / "steps")
        self.bus, self.clock = Bus(), clock
        self.alerts = SimpleNamespace(settings=Settings(()))
        self.projects = Projects(self.config.keep_days)
        self.detectors = Detectors(self.engine, self.steps, self.bus, clock, lambda *_: None)

    def add_job(self, name: str, **columns: Any) -> int:
        """A job; returns its number."""
        usual = {"project": "default", "name": name, "created_at": NOW - 90 * DAY_S}
        usual |= {"seen_at": NOW - 60, "status": "running"}
        with self.engine.begin() as connection:
            row = connection.execute(insert(jobs).values(**{**usual, **columns}))
            return int(row.inserted_primary_key[0])

    def add_session(
        self, job_id: int, at: float, made: Analysis | None, result: bool = True, **columns: Any
    ) -> int:
        """A session, analysed (``result``: with what came out), or as ``columns`` say."""
        values = {"job_id": job_id, "sha256": f"{job_id}-{at}", "size_bytes": 1000}
        values |= {"file_name": "trace.parquet", "created_at": at}
        if made is not None:
            lost = made.columns["waste"] * made.gpus * 12
            values |= {"status": "done", "finished_at": at + 5, "gpu_hours_lost": lost}
            values |= made.columns
        with self.engine.begin() as connection:
            row = connection.execute(insert(sessions).values(**{**values, **columns}))
            number = int(row.inserted_primary_key[0])
        if made is not None and result:
            self.put(number, RESULT, made.result.encode())
            self.add(session_facts, session_id=number, facts=made.facts)
        return number

    def put(self, session_id: int, name: str, content: bytes) -> None:
        """One of the results."""
        path = self.blobs.folder / result_key(session_id, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def sum_up(self, job_id: int, values: list[float], made: Analysis | None, **more: Any) -> None:
        """What the list of jobs says of a job."""
        columns: dict[str, Any] = {"trend": values[-20:], "n_sessions": len(values), **more}
        if made is not None:
            names = ("slowdown", "waste", "cause", "headline")
            columns = {**{n: made.columns[n] for n in names}, **columns}
            columns |= {"gpus": made.gpus, "degrees": made.degrees}
        with self.engine.begin() as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))

    def add_steps(self, job_id: int, times_s: np.ndarray, healthy_s: float) -> None:
        """Step times, from step 100 on."""
        rows = np.zeros(len(times_s), ROW)
        rows["step"] = np.arange(100, 100 + len(times_s))
        rows["at"] = NOW - np.arange(len(times_s))[::-1]
        rows["samples"], rows["slowest"] = 32, 11
        rows["max_s"], rows["median_s"], rows["healthy_s"] = times_s, times_s * 0.99, healthy_s
        folder = self.steps.path(job_id)
        folder.mkdir(parents=True, exist_ok=True)
        append_rows(folder, rows)

    def add_ranks(self, job_id: int, times_s: np.ndarray, restart: int) -> None:
        """[step, rank] step times, from step 100 on; before ``restart`` of the first start."""
        rank_map, ranks = RankMap(), np.arange(times_s.shape[1], dtype=np.int32)
        for number, durations_s in enumerate(times_s):
            row = np.zeros((), ROW)
            row["step"], row["start"], row["at"] = 100 + number, number >= restart, NOW
            row["median_s"] = np.median(durations_s)
            rank_map.add(row, ranks, durations_s)
        save_rank_map(rank_map, self.steps.path(job_id))

    def add(self, table: Any, **columns: Any) -> int:
        """A row."""
        with self.engine.begin() as connection:
            return int(connection.execute(insert(table).values(**columns)).inserted_primary_key[0])

    def close(self) -> None:
        """Let go of the files."""
        self.bus.close()
        self.engine.dispose()


def fill(monitor: Monitor, made: list[Analysis], n_jobs: int = 200) -> None:
    """Jobs of all sizes with a history of up to 12 weeks."""
    rng = random.Random(7)
    for i in range(n_jobs):
        analysis = made[(i * 7) % len(made)]
        job_id = monitor.add_job(
            f"pretrain-{('7b', '70b', 'moe', 'vision')[i % 4]}-{i:03d}",
            status=rng.choice(("running", "running", "ended", "silent")),
            labels={"team": rng.choice(("core", "research")), "seq_len": 2048 << (i % 5)},
            seen_at=NOW - rng.uniform(5, 40 * DAY_S),
        )
        trend = []
        n_sessions = 1 + i % 5
        for k in range(n_sessions):
            wave = 1 + (analysis.columns["slowdown"] - 1) * rng.uniform(0.7, 1.2)
            columns = {"slowdown": wave, "waste": max(0.0, 1 - 1 / wave)}
            last = k == n_sessions - 1
            at = NOW - (n_sessions - 1 - k) * rng.uniform(3, 17) * DAY_S - 3600 * i / 10
            monitor.add_session(job_id, at, analysis, **({} if last else columns))
            trend.append(analysis.columns["slowdown"] if last else wave)
        lost = sum(max(0.0, 1 - 1 / s) for s in trend) * analysis.gpus * 12
        step_s = analysis.columns["step_s"]
        live = {"step_s": step_s, "healthy_s": step_s, "last_step": 1000 * i}
        monitor.sum_up(job_id, trend, analysis, gpu_hours_lost=lost, **live)


SLOWER = "step 1,604: rank 11: 1.35x slower since step 1,600; 2.8 s lost by 2026-09-21 13:08 UTC"


def slow_steps(rng: np.random.Generator, n: int = 3000) -> np.ndarray:
    """Step times of a fail-slow from the middle to three quarters."""
    times = rng.normal(2.0, 0.02, n)
    times[n // 2 : 3 * n // 4] *= 1.35
    return times


def ranks_times(rng: np.random.Generator, n: int, ranks: int) -> np.ndarray:
    """The same of ranks that do not wait for one another: rank 11 is slow, rank 40 a little."""
    times = rng.normal(2.0, 0.03, (n, ranks))
    times[n // 2 : 3 * n // 4, 11] *= 1.35
    times[n // 4 :, 40] *= 1.08
    return times


def add_showpiece(monitor: Monitor, made: Analysis, later: Analysis) -> int:
    """A job with everything: sessions, step times, events, alerts, report; returns its number."""
    job_id = monitor.add_job("showpiece", labels={"importance": "critical", "team": "core"})
    trend = []
    for k in range(6):
        wave = 1.02 + 0.01 * k
        monitor.add_session(
            job_id,
            NOW - (8 - k) * DAY_S,
            later,
            slowdown=wave,
            waste=1 - 1 / wave,
        )
        trend.append(wave)
    last = monitor.add_session(job_id, NOW - 3600, made, last_step=2960)  # within the fail-slow
    monitor.put(last, REPORT, b"<!doctype html><title>Report</title>")
    monitor.put(last, PERFETTO, b"...")
    trend.append(made.columns["slowdown"])
    hosts = {str(rank): [f"node-{rank // 4}", str(rank % 4)] for rank in range(64)}
    failed = {"status": "failed", "reason": "line 3: no column 'step'", "meta": {"hosts": hosts}}
    monitor.add_session(job_id, NOW - 60, None, **failed)
    n = 3000
    monitor.add_steps(job_id, slow_steps(np.random.default_rng(1), n), 2.0)
    monitor.add_ranks(job_id, ranks_times(np.random.default_rng(2), n, 64), 2600)
    for kind, step, text in (
        ("onset", 100 + n // 2, SLOWER),
        (
            "relief",
            100 + 3 * n // 4,
            "step 2,354: rank 11: healthy again since step 2,350, after 1.35x; 8.8 minutes lost",
        ),
    ):
        monitor.add(
            events,
            job_id=job_id,
            at=NOW - (3100 - step),
            kind=kind,
            step=step + 4,
            since_step=step,
            factor=1.35,
            lost_s=525.0,
            ranks=[11],
            text=text,
        )
    monitor.sum_up(job_id, trend, made, gpu_hours_lost=812.4)
    live = {"step_s": 2.71, "healthy_s": 2.0, "last_step": 3099, "slow_since_step": 2900}
    monitor.sum_up(job_id, trend, None, **live, n_sessions=8)
    add_alerts(monitor, job_id, last, made)
    return job_id


def add_alerts(monitor: Monitor, job_id: int, session_id: int, made: Analysis) -> None:
    """One that fires and one that is over, with their messages, and a silence."""
    shared = {"job_id": job_id, "project": "default", "labels": {"team": "core"}}
    fires = monitor.add(
        alerts,
        fingerprint="a",
        rule="slow-job",
        session_id=session_id,
        importance="critical",
        headline=f"S = {made.columns['slowdown']:.2f}, 1.1 or more. {made.columns['headline']}",
        cause=made.columns["cause"],
        place="dp 3, stage 1 (node-3, GPU 1)",
        gain="18%: replace the worker",
        status="firing",
        started_at=NOW - 3500,
        updated_at=NOW - 3500,
        **shared,
    )
    over = monitor.add(
        alerts,
        fingerprint="b",
        rule="fail-slow",
        importance="warning",
        headline=f"Fail-slow: {SLOWER}; 99 GPU-hours are at stake in 24 hours at this level.",
        status="resolved",
        started_at=NOW - 2 * DAY_S,
        updated_at=NOW - DAY_S,
        ended_at=NOW - DAY_S,
        **shared,
    )
    message = {"status": "firing", "next_at": NOW, "attempts": 1}
    monitor.add(deliveries, alert_id=fires, channel="slack", state="delivered", **message)
    monitor.add(deliveries, alert_id=fires, channel="mail", state="waiting", **message)
    monitor.add(deliveries, alert_id=over, channel="mail", state="given-up", **message)
    monitor.add(
        silences,
        project="default",
        rule="job-silent",
        job=None,
        until=NOW + 3 * 3600,
        comment="maintenance of the cluster",
        created_at=NOW,
    )


def app_of(monitor: Monitor, project: str = "default") -> Any:
    """The pages as the service serves them: with its headers, for a reader of one project."""
    from starlette.applications import Starlette

    from paceline.monitor.web.envelope import Envelope, HttpCounts
    from paceline.monitor.web.pages import routes
    from paceline.monitor.web.security import Principal

    inner = Starlette(routes=routes(monitor))
    principal = Principal("tester", project, "read")

    async def known(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["principal"] = principal
        await inner(scope, receive, send)

    return Envelope(known, HttpCounts())


@contextmanager
def serving(app: Any) -> Any:
    """The app on a free port of this machine; yields its URL."""
    import socket

    import uvicorn

    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(5)
