"""The report documents of sessions, from the blobs."""

from __future__ import annotations

import json
import logging

from paceline.errors import ResultError
from paceline.monitor.blobs import RESULT, Blobs, result_key
from paceline.monitor.log import log
from paceline.results.document import JobReport

#: Largest document that is read, bytes.
MAX_BYTES = 256 << 20


def read_report(blobs: Blobs, session_id: int, most: int = MAX_BYTES) -> JobReport | None:
    """A session's document; None if missing or unreadable.

    Args:
        blobs: the store of results.
        session_id: number of the session.
        most: most bytes to read.
    """
    try:
        with blobs.open(result_key(session_id, RESULT)) as file:
            return JobReport.from_mapping(json.loads(file.read(most)))
    except FileNotFoundError:  # removed because of its age, or not written
        return None
    except (ResultError, ValueError) as error:  # ValueError: no JSON
        log(logging.WARNING, "no result", session=session_id, error=str(error))
        return None
