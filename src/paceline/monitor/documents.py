"""The report documents of sessions, out of the blobs."""

from __future__ import annotations

import json
import logging

from paceline.errors import ResultError
from paceline.monitor.blobs import RESULT, Blobs, result_key
from paceline.monitor.log import log
from paceline.results.document import JobReport

#: Longest document that is read.
MAX_BYTES = 256 << 20


def read_report(blobs: Blobs, session_id: int, most: int = MAX_BYTES) -> JobReport | None:
    """A session's document; None where there is none, or none that can be read.

    Args:
        blobs: where results are.
        session_id: which session.
        most: bytes that are read at most.
    """
    try:
        with blobs.open(result_key(session_id, RESULT)) as file:
            return JobReport.from_mapping(json.loads(file.read(most)))
    except FileNotFoundError:  # removed by age, or not written
        return None
    except (ResultError, ValueError) as error:  # ValueError: no JSON
        log(logging.WARNING, "no result", session=session_id, error=str(error))
        return None
