"""Jobs with one cause each, analysed to the end: for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np

from paceline.diagnose import Finding, diagnose
from paceline.graph import Measured, from_trace
from paceline.remedies import REMEDIES, Advice, Case, Remedy, advise
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.results.document import JobReport
from paceline.simulate import timeline
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, draw_seqlens, synthesize
from paceline.trace import Job, OpKind, Trace, arrange
from paceline.trace.seqlens import SeqLens
from paceline.whatif import WhatIf, analyze
from peer_jobs import runs, slow_connection, tokens
from program_jobs import columns_of, trace_of_runs
from sharded_jobs import BucketedJob, HybridJob, ShardedJob

JOB = SynthSpec(dp=8, pp=4, microbatches=8, steps=8)
COLLECTIVES = (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER)


@dataclass(frozen=True)
class Advised:
    """A job with all that is known of it."""

    measured: Measured
    result: WhatIf
    advice: Advice
    hosts: dict[tuple[int, int], tuple[str, str]]


def advised(
    trace: Trace,
    *,
    layers: tuple[int, ...] | None = None,
    seqlens: SeqLens | None = None,
    named: bool = False,
    **options: object,
) -> Advised:
    measured = from_trace(trace)
    result = analyze(measured)
    job = result.job
    hosts = {
        (dp, pp): (f"gpu-node-{dp:04d}-{pp:02d}.cluster-eu.example.org", str(pp % 8))
        for dp in range(job.dp_size if named else 0)
        for pp in range(job.pp_size)
    }
    diagnosis = diagnose(measured, result, hosts, seqlens)
    case = Case(measured, result, diagnosis, layers, seqlens, options)
    return Advised(measured, result, advise(case, REMEDIES), hosts)


def of(**changes) -> Advised:
    return advised(synthesize(replace(JOB, **changes)))


def named(**changes) -> Advised:
    return advised(synthesize(replace(JOB, **changes)), named=True)


def stretched(factors: list[float], **changes) -> Advised:
    """The job with all times of a step longer by a factor."""
    trace = synthesize(replace(JOB, steps=len(factors), **changes))
    first = np.append(trace.lane_rows()[:, 0], len(trace))
    for step, factor in enumerate(factors):
        rows = slice(first[step], first[step + 1])
        trace.start[rows] *= factor
        trace.end[rows] *= factor
    return advised(trace)


def retimed(change, **changes) -> Advised:
    """The job with ``change(graph, durations)`` made to its durations, timed again."""
    spec = replace(JOB, **changes)
    trace = synthesize(spec)
    measured = from_trace(trace)
    graph = measured.graph
    change(graph, measured.durations.array)
    line = timeline(measured.durations)
    rows = trace.lane_rows()
    for step in range(spec.steps):
        for dp in range(spec.dp):
            place = rows[step, dp] + np.arange(graph.n_ops)
            trace.start[place] = line.start.array[:, step, dp]
            trace.end[place] = line.end.array[:, step, dp]
    return advised(trace)


def _late_member(graph, durations) -> None:
    ops = np.isin(graph.kind, [int(kind) for kind in COLLECTIVES]) & (graph.pp == 1)
    durations[ops, :, 3] += 2.6


def _slow_optimizer(graph, durations) -> None:
    durations[(graph.kind == int(OpKind.OPTIMIZER)) & (graph.pp == 2), :, 5] *= 4


def _two_references(graph, durations) -> None:
    ops = np.isin(graph.kind, [int(kind) for kind in COLLECTIVES])
    durations[ops] *= np.where(np.arange(durations.shape[1]) % 2 == 0, 12, 1)[:, None]


def _data_loading() -> Advised:
    """A worker waits for its data, and all of them for the delays of their launches."""
    trace = synthesize(replace(JOB, launch_delay=(0.3, 1.0)))
    waits = np.full((trace.n_steps, *trace.rank.shape), 0.001)
    waits[:, 3] = 0.5
    return advised(replace(trace, data_wait_s=waits))


def _sequences() -> Advised:
    seqlens = draw_seqlens(JOB.dp, JOB.microbatches, JOB.steps, max_tokens=32_768, seed=1)
    spec = replace(JOB, seqlens=seqlens)
    return advised(synthesize(spec), seqlens=seqlens)


def _layers() -> Advised:
    trace = synthesize(replace(JOB, slow_last_stage=(2.07, 1.41)))
    return advised(trace, layers=(9, 9, 9, 9))


def _chunked_layers() -> Advised:
    spec = replace(JOB, vpp=2, slow_last_stage=(2.07, 1.41))
    return advised(synthesize(spec), layers=(8, 8, 8, 8))


def _buckets() -> Advised:
    job = BucketedJob(per_bucket=1, latency_s=0.02)
    return advised(job.trace(), latency_us=job.latency_s * 1e6)


def _most_of_a_stage() -> Advised:
    slow = tuple(SlowWorker(dp, 2, 1.4) for dp in range(6))
    return of(slow_workers=slow)


def _shard_groups() -> Advised:
    job = HybridJob(unit_s=0.2, node_speedup=8.0)
    return advised(job.trace(), ranks_per_node=4, node_speedup=8.0, latency_us=0.0)


def _context_ranks() -> Advised:
    columns = columns_of(runs("context-comm", tokens(0.6), dp=1, peers=4))
    return advised(arrange(columns, Job(dp_size=1, pp_size=1, dsp_size=4)))


#: Name -> job. Together they have every cause and every remedy, and some have a second reading.
JOBS: dict[str, Callable[[], Advised]] = {
    "healthy": lambda: of(),
    "small": lambda: of(slow_workers=(SlowWorker(3, 1, 1.025),), noise=0.002),
    "worker": lambda: named(slow_workers=(SlowWorker(3, 1, 1.5),)),
    "workers": lambda: named(
        slow_workers=tuple(SlowWorker(dp, pp, 1.4) for dp, pp in ((0, 0), (3, 1), (7, 3)))
    ),
    "optimizer beside a worker": lambda: retimed(
        _slow_optimizer, slow_workers=(SlowWorker(3, 1, 1.4),)
    ),
    "most of a stage": _most_of_a_stage,
    "stage": lambda: of(slow_last_stage=(2.07, 1.41)),
    "stage with layers": _layers,
    "stage in chunks with layers": _chunked_layers,
    "one replica": lambda: of(dp=1, slow_workers=(SlowWorker(0, 2, 1.5),)),
    "one stage": lambda: of(pp=1, slow_workers=(SlowWorker(3, 0, 1.3),)),
    "sequences": _sequences,
    "microbatches": lambda: of(sequence_imbalance=0.3),
    "gc": lambda: of(gc_pauses=(0.01, 0.3)),
    "link": lambda: named(slow_links=(SlowLink(2, 1, 60.0),)),
    "links": lambda: named(slow_links=(SlowLink(2, 1, 60.0), SlowLink(5, 0, 90.0))),
    "network": lambda: of(slow_nics=(SlowNic(1, 0, 20.0, 0.5),)),
    "late member": lambda: retimed(_late_member),
    "two references": lambda: retimed(_two_references, pp=1, steps=12),
    "launch delays": lambda: of(launch_delay=(0.3, 1.0)),
    "data loading": _data_loading,
    "trend": lambda: stretched([1 + 0.01 * step for step in range(16)]),
    "jump": lambda: stretched([1.0] * 14 + [1.2] * 12),
    "odd steps": lambda: stretched([1.5 if step in (0, 11) else 1.0 for step in range(20)]),
    "two modes": lambda: stretched([1.5 if step % 5 in (1, 3) else 1.0 for step in range(20)]),
    "slow everywhere": lambda: stretched([3000.0] * 8, slow_workers=(SlowWorker(3, 1, 1.5),)),
    "gpipe": lambda: of(schedule="gpipe", slow_workers=(SlowWorker(3, 1, 1.3),)),
    "sharded": lambda: advised(ShardedJob(microbatches=2, blocking_scatters=True).trace()),
    "buckets": _buckets,
    "shard groups": _shard_groups,
    "slow connection": lambda: advised(trace_of_runs(runs("tensor-comm", slow_connection))),
    "experts": lambda: advised(trace_of_runs(runs("expert-comm", tokens(0.6), dp=4, peers=1))),
    "context ranks": _context_ranks,
    "interleaved": lambda: of(vpp=2, slow_workers=(SlowWorker(3, 1, 1.3),)),
}


@cache
def job(name: str) -> Advised:
    """A job of :data:`JOBS`, made once."""
    return JOBS[name]()


def every_remedy(known: Advised) -> tuple[Remedy, ...]:
    return (*known.advice.remedies, *known.advice.architecture)


def report_of(known: Advised, **options: Any) -> JobReport:
    """The document of the job."""
    return JobReport.of(known.result, known.advice, hosts=known.hosts, **options)


def page_of(known: Advised) -> str:
    """The HTML report."""
    file = BytesIO()
    drawings = Drawings.of(known.measured, known.result)
    report_writer(report_of(known, per_step_workers=True), drawings)(file)
    return file.getvalue().decode()


#: Findings with the largest numbers and longest names there may be.
EXTREMES: dict[str, dict[str, Any]] = {
    "worker": {
        "where": {"workers": [[10_239, 127]] * 3000, "hosts": ["node-" + "x" * 80]},
        "evidence": {"factors": [1234.5] * 3000, "steps": list(range(99_990, 100_990))},
    },
    "stage-imbalance": {"where": {"stage": 127}, "evidence": {"loads_s": [1e-7] * 128}},
    "sequence-length": {"where": {}, "evidence": {"correlation": -0.001}},
    "gc": {"where": {}, "evidence": {"pauses": 10**7, "median_s": 7300.0, "total_s": 7.3e10}},
    "link": {"where": {"link": [[10_239, 126], [10_239, 127]]}, "evidence": {"n_links": 20_000}},
    "dp-network": {"where": {"workers": [[10_239, 127]] * 4000}, "evidence": {"late_s": 2.6}},
    "data-loading": {
        "where": {"workers": [[10_239, 127]] * 3000},
        "evidence": {"wait_s": [7300.0] * 3000, "peers_s": 1e-7, "pause_s": 7300.0},
    },
    "launch-delay": {"where": {}, "evidence": {"by_kind": {"separate-grads-all-reduce": 80.0}}},
    "drift": {"where": {}, "evidence": {"change": 123.4, "p_value": 1e-300}},
}


def extreme(cause: str, *, straggling: bool) -> tuple[Advised, Finding, Remedy]:
    """A job with one finding of :data:`EXTREMES`, inside S or outside it, and a remedy for it."""
    known = job("worker" if straggling else "launch delays")
    share = 0.98765 if straggling else None
    finding = Finding(
        cause, cause, "x is slow", share, 0.98765, (0.1, 0.2), 0.75, **EXTREMES[cause]
    )
    diagnosis = replace(known.advice.diagnosis, findings=(finding,))
    remedy = Remedy(
        "stage-layout", "split: gain", (cause,), 7301.4, 0.987, (0.9, 0.99), {"bound": True}
    )
    advice = replace(known.advice, diagnosis=diagnosis, remedies=(remedy,), architecture=())
    return replace(known, advice=advice), finding, remedy
