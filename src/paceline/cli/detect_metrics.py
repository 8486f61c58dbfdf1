"""``paceline detect --collectives`` with NCCL Inspector's files for Prometheus: the late ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def files_of(names: Sequence[str]) -> list[Path] | None:
    """The files, also from folders; None unless all are the Inspector's files for Prometheus."""
    from paceline.sources import nccl_metrics

    paths: list[Path] = []
    for path in map(Path, names):
        paths += sorted(path.glob("*.prom")) if path.is_dir() else [path]
    is_metrics = [path.is_file() and nccl_metrics.matches(path) for path in paths]
    return paths if paths and all(is_metrics) else None


def run(paths: Sequence[Path], step_times: str | None, *, as_json: bool) -> int:
    """Print the ranks that others wait for, and the slow communicators."""
    from dataclasses import replace

    from paceline.detect.mean_waits import mean_waits
    from paceline.errors import DetectError
    from paceline.sources import nccl_metrics

    if step_times is not None:
        raise DetectError(
            f"NCCL Inspector's means have no time stamps to compare with {step_times}; give them "
            "alone"
        )
    means, notes = nccl_metrics.read(paths)
    result = mean_waits(means)
    result = replace(result, notes=(*notes, *result.notes))
    if as_json:
        print(json.dumps(result.to_mapping()))
        return 0
    print(result.explain())
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
