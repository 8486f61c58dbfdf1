"""The folder of a search for plans: all plans, the result, the page, a launch file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from paceline.errors import OutputError
from paceline.files import Writer, check_targets, make_folder, text_writer, write_files
from paceline.plan.launch.files import FRAMEWORKS
from paceline.plan.search import SearchResult
from paceline.report.search import to_mapping
from paceline.report.search_page import page_writer

PLANS, RESULT, REPORT = "plans.parquet", "result.json", "report.html"


def json_writer(result: SearchResult, top: int) -> Writer:
    """The writer of ``result.json``."""
    content = f"{json.dumps(to_mapping(result, top), indent=1)}\n".encode()
    return lambda file: _write(file, content)


def parquet_writer(result: SearchResult) -> Writer:
    """The writer of ``plans.parquet``: every plan that fits, best first."""

    def write(file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(result.columns()), file)

    return write


def check_folder(folder: Path, *, force: bool = False, launch: str | None = None) -> None:
    """Check that :func:`write_folder` may write.

    Raises:
        OutputError: one of the files exists.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; --out takes a folder")
    names = [PLANS, RESULT, REPORT, *([FRAMEWORKS[launch][0]] if launch else [])]
    check_targets([folder / name for name in names], force=force)


def write_folder(
    result: SearchResult,
    top: int,
    folder: Path,
    *,
    force: bool = False,
    launch: tuple[str, str] | None = None,
) -> str:
    """Write all plans, the result, the page, and a launch file; returns a note for the user.

    ``launch`` has the name of a framework and the text of its launch file.

    Raises:
        OutputError: a file exists and ``force`` is not given, or cannot be written.
    """
    writers = {
        folder / PLANS: parquet_writer(result),
        folder / RESULT: json_writer(result, top),
        folder / REPORT: page_writer(result, top, launch),
    }
    if launch is not None:
        framework, text = launch
        writers[folder / FRAMEWORKS[framework][0]] = text_writer(text)
    make_folder(folder)
    write_files(writers, force=force)
    return f"wrote {', '.join(str(path) for path in writers)}"


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
