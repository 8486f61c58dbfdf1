"""Common parts of all pages: static files, content policy, the job's line, the version."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from paceline.report.page.markup import foreign
from paceline.results.words.job import size_and_steps
from paceline.trace import Job


def static(name: str) -> str:
    """A file of ``page/static``."""
    return (files("paceline.report") / "page" / "static" / name).read_text(encoding="utf-8")


def content_policy(script: str) -> str:
    """The content policy: nothing is fetched, and only the page's own script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def job_line(job: Job, steps: Sequence[int]) -> str:
    """The job's name, size and steps."""
    name = f"<b>{foreign(job.name)}</b> · " if job.name else ""
    return f"{name}{size_and_steps(job, steps)}"


def paceline_version() -> str:
    """The running version of Paceline."""
    try:
        return version("paceline")
    except PackageNotFoundError:  # run from the source tree
        return "(not installed)"
