"""The folder that ``analyze --out`` fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paceline.errors import OutputError
from paceline.files import Writer, check_not_input, check_targets, make_folder, write_files
from paceline.graph import Measured
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.report.perfetto import trace_writer
from paceline.report.result_json import json_writer, worker_csv_writer
from paceline.report.timeline import draw_ideal
from paceline.results.document import JobReport
from paceline.whatif import WhatIf

RESULT, WORKERS, IDEAL = "result.json", "by_worker.csv", "ideal.json.gz"
REPORT = "report.html"


def check_folder(
    folder: Path,
    extra: Iterable[str] = (),
    inputs: Sequence[Path | None] = (),
    *,
    force: bool = False,
) -> None:
    """Check that :func:`write_folder` may write; call it before a long analysis.

    Args:
        folder: target folder.
        extra: names of further files.
        inputs: input paths, which must not be overwritten.
        force: overwrite.

    Raises:
        OutputError: one of the files exists or is an input.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; --out takes a folder")
    targets = [folder / name for name in (RESULT, WORKERS, IDEAL, REPORT, *extra)]
    check_targets(targets, force=force)
    check_not_input(targets, inputs)


def write_folder(
    report: JobReport,
    result: WhatIf,
    measured: Measured,
    folder: Path,
    *,
    gpu_hour_cost: float | None = None,
    per_step_workers: bool = False,
    extra: Mapping[str, Writer] | None = None,
    force: bool = False,
) -> tuple[str, ...]:
    """Write the document, the workers' table, the ideal timeline and, with a diagnosis, the page.

    Args:
        report: the document, with the slowdown of every worker in every step.
        result: its analysis, for the drawings.
        measured: graph and durations, for the drawings.
        folder: the target folder.
        gpu_hour_cost: price of a GPU-hour, in the user's currency.
        per_step_workers: keep the slowdown of every worker in every step in ``result.json``.
        extra: further files, name -> writer.
        force: overwrite.

    Returns:
        Notes for the user.

    Raises:
        OutputError: a file exists and ``force`` is not given, or cannot be written.
    """
    document = report if per_step_workers else report.without_workers_by_step()
    writers: dict[Path, Writer] = {
        folder / RESULT: json_writer(document),
        folder / WORKERS: worker_csv_writer(report),
    }
    notes = []
    try:
        drawing = draw_ideal(measured)
        writers[folder / IDEAL] = trace_writer(
            drawing.scenes,
            measured.job,
            drawing.about,
            replica_names=drawing.replica_names,
            compress=True,
        )
    except OutputError as error:  # too large for any viewer; the numbers are still useful
        notes.append(f"{IDEAL} is not written: {error}")
    if report.findings is not None:
        writers[folder / REPORT] = report_writer(
            report,
            Drawings.of(measured, result),
            gpu_hour_cost=gpu_hour_cost,
            perfetto=IDEAL if folder / IDEAL in writers else None,
        )
    writers |= {folder / name: writer for name, writer in (extra or {}).items()}
    make_folder(folder)
    write_files(writers, force=force)
    return (*notes, f"wrote {', '.join(str(path) for path in writers)}")
