"""The analysis of one trace of a fleet: the result of ``paceline analyze`` as a row and steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import FleetError, GraphError, NoStepError, PacelineError, TraceError
from paceline.fleet.keys import AnalysisOptions

if TYPE_CHECKING:
    from paceline.diagnose import Finding
    from paceline.graph import Measured
    from paceline.remedies import Remedy
    from paceline.results.document import JobReport

Row = dict[str, Any]
#: (dp, pp) -> (host, gpu).
Places = dict[tuple[int, int], tuple[str, str]]

#: Memory of an analysis: the process with its packages, and 120 bytes an operation (measured).
BASE_BYTES, BYTES_PER_OPERATION = 150 << 20, 120

#: Causes that belong to a machine, not to the job.
_OF_MACHINES = ("worker", "link", "dp-network", "peer-network")


@dataclass(frozen=True)
class Analysis:
    """The outcome for a trace.

    Attributes:
        row: columns of ``jobs`` from the trace itself.
        steps: columns of ``steps`` without the job's columns.
        rule, error: rule and reason if there is no analysis; "" if there is one.
    """

    row: Row
    steps: dict[str, list[Any]]
    rule: str = ""
    error: str = ""


def analyse(
    trace: Path,
    meta: Path | None,
    hosts: Path | None,
    options: AnalysisOptions,
    memory_bytes: int | None = None,
) -> Analysis:
    """Read, simulate and diagnose a trace; the outcome has any error of the trace.

    Args:
        trace: its file or folder.
        meta: its job file, if there is one.
        hosts: the file with the hosts of its ranks, if there is one.
        options: options of the analysis.
        memory_bytes: limit of memory; None: no limit.
    """
    rule = "degrees"
    row: Row = {}
    try:
        from paceline.sources import read_job
        from paceline.sources.hosts import hosts_of_workers, read_hosts

        job = None if meta is None else read_job(meta)
        rule = "memory"
        _check_memory(trace, memory_bytes)
        rule = "corrupt"
        measured, n_rows = _measured(trace, job, options)
        row = {**_job_row(measured), "operations": n_rows}
        known = measured.places if hosts is None else read_hosts(hosts)
        places = hosts_of_workers(known, measured.rank)
        rule = "unfit"
        report, correlation = _report(measured, places)
    except NoStepError as error:
        return _failure(row, "steps", error)
    except GraphError as error:
        return _failure(row, "unfit", error)
    except TraceError as error:
        return _failure(row, _rule_of(error, rule), error)
    except (PacelineError, OSError) as error:
        return _failure(row, rule, error)
    except MemoryError:
        limit = "" if memory_bytes is None else f" than the {memory_bytes / 2**30:.1f} GiB it may"
        return Analysis(row, {}, "memory", f"it needs more memory{limit} take")
    except Exception as error:  # a bug costs one row, not the study
        return _failure(row, "internal", error)
    return Analysis({**row, **_report_row(report, correlation)}, _steps(report))


def _failure(row: Row, rule: str, error: Exception) -> Analysis:
    text, name = " ".join(str(error).split())[:500], type(error).__name__
    if rule == "internal":
        text = f"{name}: {text}"
    return Analysis(row, {}, rule, text or name)


def _rule_of(error: TraceError, rule: str) -> str:
    """The rule for an error; degrees inside a trace may be wrong."""
    return "degrees" if rule == "corrupt" and "_size" in str(error) else rule


def _check_memory(trace: Path, memory_bytes: int | None) -> None:
    """Refuse a trace that cannot fit into memory, by the row count of its parquet file."""
    from paceline.sources import parquet

    if memory_bytes is None or not parquet.matches(trace) or not parquet.is_whole(trace):
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        n_rows = int(pq.read_metadata(trace).num_rows)
    except (pa.ArrowException, OSError):
        return  # the reader reports the error
    need = BASE_BYTES + BYTES_PER_OPERATION * n_rows
    if need > memory_bytes:
        raise FleetError(
            f"its {n_rows:,} operations need about {need / 2**30:.1f} GiB of memory, and it may "
            f"take {memory_bytes / 2**30:.1f} GiB (--memory)"
        )


def _measured(trace: Path, job: Any, options: AnalysisOptions) -> tuple[Measured, int]:
    """Graph and durations, and the number of their rows."""
    from paceline.graph import from_trace
    from paceline.graph.from_files import read_for_graph

    read = read_for_graph(trace, job, steps=options.steps, ignore_kinds=options.ignore_kinds)
    return from_trace(read, keep_clocks=options.keep_clocks), len(read)


def _report(measured: Measured, places: Places) -> tuple[JobReport, float]:
    """The report of `paceline analyze`, and the correlation of the paper's Figure 11."""
    from paceline.diagnose import diagnose, forward_backward_correlation
    from paceline.remedies import REMEDIES, Case, advise
    from paceline.results.document import JobReport
    from paceline.whatif import analyze

    result = analyze(measured)
    advice = advise(Case(measured, result, diagnose(measured, result, places)), REMEDIES)
    correlation = forward_backward_correlation(measured.durations)
    return JobReport.of(result, advice, hosts=places), correlation


def _job_row(measured: Measured) -> Row:
    job = measured.job
    return {
        "name": job.name,
        "workers": job.workers,
        "gpus": job.world_size,
        "dp": job.dp_size,
        "pp": job.pp_size,
        "tp": job.tp_size,
        "cp": job.dsp_size,
        "vpp": job.vpp_size,
    }


def _report_row(report: JobReport, correlation: float) -> Row:
    from paceline.results.facts import main_cause
    from paceline.results.headline import headline

    names = (
        *("slowdown", "slowdown_paper", "slowdown_lasting", "waste", "discrepancy"),
        *("launch_slowdown", "replay_error", "m_w", "m_w_paper", "m_s", "m_w_only", "m_s_only"),
    )
    low, high = report.slowdown_interval or (None, None)
    clocks, modes, fall = report.clock_offsets_s, report.step_modes, report.waterfall
    remedies = [remedy for remedy in report.remedies if not remedy.is_conditional]
    best = max(remedies, key=lambda remedy: remedy.gain, default=None)
    return {
        **{name: getattr(report, name) for name in names},
        "slowdown_judged": report.judged_slowdown,
        "steps": len(report.steps),
        "traced_s": float(report.traced_s.sum()),
        "step_s": float(report.traced_s.mean()),
        "simulated_s": float(report.simulated_s.mean()),
        "ideal_s": float(report.ideal_s.mean()),
        "slowdown_low": low,
        "slowdown_high": high,
        "launch_step_start": report.launch_delay.step_start if report.launch_delay else None,
        "step_modes_ratio": modes.ratio if modes else None,
        "clock_std_s": clocks.std if clocks else None,
        "clocks_corrected": clocks.corrected if clocks else None,
        "forward_backward_correlation": correlation,
        "slowdown_by_kind": dict(report.by_kind),
        "cause": main_cause(report),
        "causes": [_cause(finding) for finding in report.diagnosis.findings],
        **_remedy(best if best is not None and best.gain > 0 else None),
        "slow_hosts": _hosts(report.diagnosis.findings),
        "actual_s": fall.actual_s if fall else None,
        "compute_s": fall.compute_s if fall else None,
        "headline": headline(report),
        "warnings": [warning.code for warning in report.warnings if warning.code],
    }


def _cause(finding: Finding) -> Row:
    from paceline.results.words.names import place

    low, high = finding.interval
    return {
        "cause": finding.cause,
        "share": finding.share,
        "share_of_step": finding.share_of_step,
        "low": float(low),
        "high": float(high),
        "confidence": finding.confidence,
        "place": place(finding.where),
    }


def _remedy(remedy: Remedy | None) -> Row:
    if remedy is None:
        return {}
    action = remedy.action or remedy.text
    return {"remedy": remedy.remedy, "remedy_gain": remedy.gain, "remedy_action": action}


def _hosts(findings: tuple[Finding, ...]) -> list[str]:
    of_machines = [finding for finding in findings if finding.cause in _OF_MACHINES]
    return sorted({str(host) for f in of_machines for host in f.where.get("hosts", ())})


def _steps(report: JobReport) -> dict[str, list[Any]]:
    """Columns of ``steps``, in the order of the steps."""
    times = report.step_time_s
    return {
        "step": list(report.steps),
        "step_time": [times.traced[step] for step in report.steps],
        "simulated": [times.simulated[step] for step in report.steps],
        "ideal": [times.ideal[step] for step in report.steps],
        "slowdown": [report.by_step[step] for step in report.steps],
    }
