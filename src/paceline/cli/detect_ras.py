"""``paceline detect --collectives`` of NCCL RAS' statuses: ranks that have not arrived."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.detect.not_arrived import NotArrived
    from paceline.detect.not_arrived_text import NotArrivedText


def applies(files: Sequence[str]) -> bool:
    """Whether all files are statuses, of one kind."""
    from paceline.sources import nccl_ras, nccl_ras_text

    paths = [Path(name) for name in files]
    return all(path.is_file() for path in paths) and (
        all(map(nccl_ras.matches, paths)) or all(map(nccl_ras_text.matches, paths))
    )


def run(files: Sequence[str], step_times: str | None, *, as_json: bool) -> int:
    """Print which ranks are behind or missing."""
    from paceline.errors import DetectError

    if step_times is not None:
        raise DetectError(
            f"statuses of NCCL RAS have no time stamps to compare with {step_times}; give them "
            "alone"
        )
    result = _result([Path(name) for name in files])
    if as_json:
        print(json.dumps(result.to_mapping()))
        return 0
    print(result.explain())
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _result(paths: Sequence[Path]) -> NotArrived | NotArrivedText:
    from paceline.detect.not_arrived import not_arrived
    from paceline.detect.not_arrived_text import not_arrived_text
    from paceline.errors import DetectError
    from paceline.sources import nccl_ras, nccl_ras_text

    if not nccl_ras_text.matches(paths[0]):
        return not_arrived([nccl_ras.read(path) for path in paths])
    if len(paths) > 1:
        raise DetectError(
            "statuses of NCCL RAS as text have no time, so their order is unknown; give one, or "
            "use JSON: ncclras -f json (NCCL 2.28.7 or later)"
        )
    return not_arrived_text(nccl_ras_text.read(paths[0]))
