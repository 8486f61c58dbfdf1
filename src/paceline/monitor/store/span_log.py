"""Requests with spans that instances share in PostgreSQL until they become a session.

A request that became part of a session stays for a while without content, so that a repetition is
recognised.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from paceline.monitor.store.step_log import SHARDS

_NOW = "extract(epoch from clock_timestamp())"
#: Rows read at a time.
_ROWS = 100


@dataclass(frozen=True)
class Waiting:
    """The requests of a job that belong to no session yet.

    Attributes:
        job_id: number of the job.
        newest: number of the newest request.
        size: bytes of all requests.
        first_at, last_at: arrival of the first and the last one, seconds since 1970.
    """

    job_id: int
    newest: int
    size: int
    first_at: float
    last_at: float


def append(engine: Engine, job_id: int, key: bytes, line: bytes) -> bool:
    """Store a request; False if it is already stored.

    Raises:
        IntegrityError: the job was removed.
    """
    with engine.begin() as connection:
        return bool(_add(connection, job_id, [(key, line)]))


def add_rest(connection: Connection, job_id: int, lines: Sequence[tuple[bytes, bytes]]) -> None:
    """Store (key, line) of spans that a session left over."""
    _add(connection, job_id, lines)


def _add(connection: Connection, job_id: int, lines: Sequence[tuple[bytes, bytes]]) -> int:
    statement = text(
        "INSERT INTO span_log (job_id, key, line, size, at) "
        f"VALUES (:job, :key, :line, :size, {_NOW}) ON CONFLICT (job_id, key) DO NOTHING"
    )
    rows = [
        {"job": job_id, "key": key, "line": zlib.compress(line, 1), "size": len(line)}
        for key, line in lines
    ]
    return sum(connection.execute(statement, row).rowcount for row in rows)


def waiting(engine: Engine, shards: Sequence[int]) -> list[Waiting]:
    """Jobs of some shards with waiting requests."""
    query = text(
        "SELECT job_id, max(seq) AS newest, sum(size) AS size, min(at) AS first_at, "
        "max(at) AS last_at FROM span_log WHERE line IS NOT NULL AND job_id % :n = ANY(:shards) "
        "GROUP BY job_id ORDER BY job_id"
    )
    with engine.connect() as connection:
        rows = connection.execute(query, {"n": SHARDS, "shards": list(shards)})
        return [
            Waiting(
                int(row.job_id), int(row.newest), int(row.size), float(row.first_at), row.last_at
            )
            for row in rows
        ]


def lines_of(engine: Engine, job_id: int, most_bytes: int) -> list[tuple[int, bytes]]:
    """(number, line) of a job's waiting requests, the oldest first, up to some bytes."""
    query = text(
        "SELECT seq, line FROM span_log WHERE job_id = :job AND line IS NOT NULL AND seq > :after "
        "ORDER BY seq LIMIT :limit"
    )
    found: list[tuple[int, bytes]] = []
    after, size = 0, 0
    with engine.connect() as connection:
        while size < most_bytes:
            values = {"job": job_id, "after": after, "limit": _ROWS}
            rows = connection.execute(query, values).all()
            found += [(int(row.seq), zlib.decompress(bytes(row.line))) for row in rows]
            size += sum(len(line) for _, line in found[-len(rows) :]) if rows else 0
            if len(rows) < _ROWS:
                break
            after = found[-1][0]
    return found


def spend(connection: Connection, job_id: int, numbers: Sequence[int]) -> None:
    """Drop the content of requests that became part of a session."""
    statement = text(
        f"UPDATE span_log SET line = NULL, at = {_NOW} WHERE job_id = :job AND seq = ANY(:numbers)"
    )
    connection.execute(statement, {"job": job_id, "numbers": list(numbers)})


def remove_older(engine: Engine, before: float) -> int:
    """Remove older requests without a whole step; returns bytes."""
    statement = text(
        "WITH gone AS (DELETE FROM span_log WHERE line IS NOT NULL AND at < :before "
        "RETURNING octet_length(line) AS size) SELECT COALESCE(sum(size), 0) FROM gone"
    )
    with engine.begin() as connection:
        return int(connection.execute(statement, {"before": before}).scalar_one())


def forget_spent(engine: Engine, before: float) -> None:
    """Remove requests whose spans went into sessions before then."""
    statement = text("DELETE FROM span_log WHERE line IS NULL AND at < :before")
    with engine.begin() as connection:
        connection.execute(statement, {"before": before})
