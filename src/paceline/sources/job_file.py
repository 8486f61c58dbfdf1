"""The job's YAML file."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import TraceError
from paceline.trace import Job


def read_job(path: Path) -> Job:
    """The job described by a YAML file (``dp_size``, ``pp_size``, ``tp_size``, ...).

    Raises:
        TraceError: the file is missing, no YAML mapping, or its degrees are wrong.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise TraceError(f"the job file {path} cannot be read: {reason}") from None
    try:
        values = yaml.safe_load(text)
    # ValueError: 2025-13-01, which is no date.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise TraceError(f"the job file {path} is not YAML: {reason}") from None
    if not isinstance(values, dict):
        raise TraceError(f"the job file {path} holds no mapping of degrees (dp_size: 8, ...)")
    return Job.from_mapping(values, where=f"the job file {path}")
