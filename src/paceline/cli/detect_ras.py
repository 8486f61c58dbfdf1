"""``paceline detect --collectives`` of NCCL RAS' statuses: who has not arrived."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def applies(files: Sequence[str]) -> bool:
    """Whether all files are statuses."""
    from paceline.sources import nccl_ras

    return all(Path(name).is_file() and nccl_ras.matches(Path(name)) for name in files)


def run(files: Sequence[str], step_times: str | None, *, as_json: bool) -> int:
    """Print which ranks are behind or missing."""
    from paceline.detect.not_arrived import not_arrived
    from paceline.errors import DetectError
    from paceline.sources import nccl_ras

    if step_times is not None:
        raise DetectError(
            f"statuses of NCCL RAS have no times to compare with {step_times}; give them alone"
        )
    result = not_arrived([nccl_ras.read(Path(name)) for name in files])
    if as_json:
        print(json.dumps(result.to_mapping()))
        return 0
    print(result.explain())
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
