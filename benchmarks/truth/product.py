"""Ask the product: the only file here that knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import REMEDIES, Case, advise
from paceline.results.document import JobReport
from paceline.results.headline import headline, is_healthy
from paceline.trace import Columns, Job, OpKind, Trace, arrange
from paceline.trace.seqlens import SeqLens
from paceline.whatif import analyze
from world.data import Lengths


@dataclass(frozen=True)
class Answer:
    """What the product says of a trace, in plain values."""

    slowdown: float
    waste: float
    discrepancy: float
    replay_error: float
    launch_slowdown: float
    simulated_s: float
    traced_s: float
    healthy: bool
    is_healthy: bool
    headline: str
    clocks_corrected: bool
    clock_std_s: float
    clock_offset_s: list[list[float]]
    findings: list[dict[str, Any]]
    remedies: list[dict[str, Any]]
    refused: dict[str, str]
    warnings: list[str]


def trace_of(rows: Mapping[str, np.ndarray], dp: int, stages: int, chunks: int) -> Trace:
    """Rows of the world as the product's trace."""
    labels, number = np.unique(rows["kind"], return_inverse=True)
    codes = np.array([OpKind.from_label(str(label)) for label in labels], dtype=np.int8)
    columns = {name: column for name, column in rows.items() if name != "kind"}
    job = Job(dp_size=dp, pp_size=stages, vpp_size=chunks)
    return arrange(Columns(kind=codes[number], **columns), job)


def seqlens_of(lengths: Lengths, microbatches: tuple[int, ...]) -> SeqLens:
    """Sequence lengths in the product's form."""
    n_steps = 1 + max(step for step, _, _ in lengths)
    ptr = np.zeros((n_steps, len(microbatches), max(microbatches), 2), dtype=np.int64)
    flat: list[int] = []
    for place in np.ndindex(*ptr.shape[:3]):
        begin = len(flat)
        flat += lengths.get(place, [])
        ptr[place] = begin, len(flat)
    return SeqLens(np.arange(n_steps), ptr, np.array(flat, dtype=np.int64))


def ask(trace: Trace, layers: tuple[int, ...], seqlens: SeqLens | None) -> Answer:
    """The whole way of ``paceline diagnose --layers``."""
    measured = from_trace(trace)
    result = analyze(measured)
    diagnosis = diagnose(measured, result, seqlens=seqlens)
    case = Case(measured, result, diagnosis, layers, seqlens)
    advice = advise(case, REMEDIES)
    report = JobReport.of(result, advice)
    remedies = sorted(report.every_remedy, key=lambda remedy: -remedy.gain)
    return Answer(
        slowdown=result.slowdown,
        waste=result.waste,
        discrepancy=result.discrepancy,
        replay_error=result.replay_error,
        launch_slowdown=result.launch_slowdown,
        simulated_s=float(result.simulated_s.mean()),
        traced_s=float(result.traced_s.mean()),
        healthy=bool(result.healthy),
        is_healthy=bool(is_healthy(report)),
        headline=headline(report),
        clocks_corrected=bool(result.clocks.corrected),
        clock_std_s=float(result.clocks.std_s),
        clock_offset_s=result.clocks.offset_s.tolist(),
        findings=[finding.to_mapping() for finding in diagnosis.findings],
        remedies=[remedy.to_mapping() for remedy in remedies],
        refused=dict(advice.not_applicable),
        warnings=list(result.warnings),
    )


def dump(trace: Trace, path: Path) -> None:
    """Write a trace for ``paceline diagnose``."""
    from paceline.sources import parquet

    parquet.write(trace, path, force=True)
