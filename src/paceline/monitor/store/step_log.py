"""Step times that instances share, in PostgreSQL: the log, the series, the detectors' states.

The instance that receives a push writes a row of the log. The owner of the row's shard reads rows
in the order of (position, seq). The position is the number of the transaction. All rows below the
oldest running transaction are final, so a reader that stops there misses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

_NOW = "extract(epoch from clock_timestamp())"
_XID = "pg_current_xact_id()::text::bigint"
_HORIZON = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
#: Smaller parts of a series are joined when its job is saved.
_PART_ROWS = 4096

#: Shards of the jobs (number of the job modulo this), each owned by one instance.
SHARDS = 32

#: (position, seq) of a row of the log.
Place = tuple[int, int]


@dataclass(frozen=True)
class NewBlock:
    """A batch to be written to the log."""

    job_id: int
    shard: int
    key: bytes
    block: bytes


@dataclass(frozen=True)
class Logged:
    """A batch of the log."""

    place: Place
    at: float
    job_id: int
    block: bytes


@dataclass(frozen=True)
class JobState:
    """A job's saved detector.

    Attributes:
        place: place in the log up to which it has seen all rows.
        detector, ranks: contents of the files; None: no file.
    """

    place: Place
    detector: bytes | None
    ranks: bytes | None


def append(engine: Engine, blocks: Sequence[NewBlock]) -> set[tuple[int, bytes]]:
    """Write batches in one transaction; returns (job, key) of the new ones.

    Raises:
        IntegrityError: a batch belongs to a removed job.
    """
    statement = text(
        "INSERT INTO step_log (job_id, shard, key, block, position, at) "
        f"SELECT j, s, k, b, {_XID}, {_NOW} FROM unnest(CAST(:jobs AS bigint[]), "
        "CAST(:shards AS int[]), CAST(:keys AS bytea[]), CAST(:blocks AS bytea[])) "
        "AS new (j, s, k, b) ORDER BY j, k ON CONFLICT (job_id, key) DO NOTHING "
        "RETURNING job_id, key"
    )
    values = {
        "jobs": [block.job_id for block in blocks],
        "shards": [block.shard for block in blocks],
        "keys": [block.key for block in blocks],
        "blocks": [block.block for block in blocks],
    }
    with engine.begin() as connection:
        rows = connection.execute(statement, values)
        return {(int(row.job_id), bytes(row.key)) for row in rows}


def horizon(engine: Engine) -> int:
    """The position below which no further row can appear."""
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT {_HORIZON}")).scalar_one())


def between(
    engine: Engine, shards: Sequence[int], after: Place, before: int, limit: int
) -> list[Logged]:
    """Rows of some shards after a place, with positions below ``before``, in order."""
    query = text(
        "SELECT position, seq, at, job_id, block FROM step_log "
        "WHERE shard = ANY(:shards) AND position >= :p AND (position, seq) > (:p, :s) "
        "AND position < :before ORDER BY position, seq LIMIT :limit"
    )
    values = {"shards": list(shards), "p": after[0], "s": after[1]}
    with engine.connect() as connection:
        rows = connection.execute(query, {**values, "before": before, "limit": limit})
        return [_logged(row) for row in rows]


def of_job(engine: Engine, job_id: int, after: Place, since: float = 0.0) -> Iterable[Logged]:
    """Rows of a job after a place that arrived at ``since`` or later, in order, in pieces."""
    query = text(
        "SELECT position, seq, at, job_id, block FROM step_log "
        "WHERE job_id = :job AND (position, seq) > (:p, :s) AND at >= :since "
        f"AND position < {_HORIZON} ORDER BY position, seq LIMIT 500"
    )
    while True:
        values = {"job": job_id, "p": after[0], "s": after[1], "since": since}
        with engine.connect() as connection:
            rows = [_logged(row) for row in connection.execute(query, values)]
        yield from rows
        if len(rows) < 500:
            return
        after = rows[-1].place


def _logged(row: tuple[int, int, float, int, bytes]) -> Logged:
    position, seq, at, job_id, block = row
    return Logged((int(position), int(seq)), float(at), int(job_id), bytes(block))


def unread_jobs(engine: Engine, shards: Sequence[int], before: int) -> list[int]:
    """Jobs of some shards that run, or have rows that no saved detector has seen."""
    query = text(
        "SELECT id FROM jobs WHERE status = 'running' AND id % :n = ANY(:shards) UNION "
        "SELECT DISTINCT l.job_id FROM step_log l LEFT JOIN job_states s ON s.job_id = l.job_id "
        "WHERE l.shard = ANY(:shards) AND l.position < :before "
        "AND (s.job_id IS NULL OR (l.position, l.seq) > (s.position, s.seq))"
    )
    values = {"shards": list(shards), "before": before, "n": SHARDS}
    with engine.connect() as connection:
        return [int(number) for number in connection.execute(query, values).scalars()]


def state_of(engine: Engine, job_id: int) -> JobState | None:
    """A job's saved detector, or None."""
    return kept_of(engine, job_id)[0]


def kept_of(engine: Engine, job_id: int) -> tuple[JobState | None, bytes]:
    """A job's saved detector, and its series."""
    query = text(
        "SELECT s.position, s.seq, s.detector, s.ranks, (SELECT string_agg(rows, '' ORDER BY id) "
        "FROM step_rows WHERE job_id = :job) AS rows FROM (SELECT CAST(:job AS bigint) AS id) j "
        "LEFT JOIN job_states s ON s.job_id = j.id"
    )
    with engine.connect() as connection:
        row = connection.execute(query, {"job": job_id}).one()
    rows = bytes(row.rows or b"")
    if row.position is None:
        return None, rows
    files = [None if value is None else bytes(value) for value in (row.detector, row.ranks)]
    return JobState((int(row.position), int(row.seq)), *files), rows


def ranks_of(engine: Engine, job_id: int) -> bytes | None:
    """The last saved rank map of a job."""
    query = text("SELECT ranks FROM job_states WHERE job_id = :job")
    with engine.connect() as connection:
        value = connection.execute(query, {"job": job_id}).scalar_one_or_none()
    return None if value is None else bytes(value)


def save_state(connection: Connection, job_id: int, state: JobState) -> None:
    """Replace a job's saved detector."""
    statement = text(
        "INSERT INTO job_states (job_id, position, seq, saved_at, detector, ranks) "
        f"SELECT id, :p, :s, {_NOW}, :detector, :ranks FROM jobs WHERE id = :job "
        "ON CONFLICT (job_id) DO UPDATE SET position = excluded.position, seq = excluded.seq, "
        "saved_at = excluded.saved_at, detector = excluded.detector, ranks = excluded.ranks"
    )
    values = {"job": job_id, "p": state.place[0], "s": state.place[1]}
    connection.execute(statement, {**values, "detector": state.detector, "ranks": state.ranks})


def rows_of(engine: Engine, job_id: int) -> bytes:
    """The series of a job, all parts joined."""
    query = text("SELECT rows FROM step_rows WHERE job_id = :job ORDER BY id")
    with engine.connect() as connection:
        return b"".join(map(bytes, connection.execute(query, {"job": job_id}).scalars()))


def add_rows(connection: Connection, parts: Mapping[int, tuple[int, float, bytes]]) -> None:
    """Add (rows, time of the last one, bytes) to the series of jobs, except removed ones."""
    statement = text(
        "INSERT INTO step_rows (job_id, n, last_at, rows) SELECT j, n, a, r FROM unnest("
        "CAST(:jobs AS bigint[]), CAST(:n AS int[]), CAST(:at AS float8[]), "
        "CAST(:rows AS bytea[])) AS new (j, n, a, r) "
        "WHERE EXISTS (SELECT 1 FROM jobs WHERE id = j FOR KEY SHARE)"
    )
    ids = sorted(parts)
    columns = list(zip(*(parts[number] for number in ids), strict=True))
    names = ("n", "at", "rows")
    values = {name: list(column) for name, column in zip(names, columns, strict=True)}
    connection.execute(statement, {"jobs": ids, **values})


def last_parts(connection: Connection, job_ids: Sequence[int]) -> dict[int, bytes]:
    """Job -> the last part of its series."""
    query = text(
        "SELECT DISTINCT ON (job_id) job_id, rows FROM step_rows WHERE job_id = ANY(:jobs) "
        "ORDER BY job_id, id DESC"
    )
    found = connection.execute(query, {"jobs": list(job_ids)})
    return {int(row.job_id): bytes(row.rows) for row in found}


def join_rows(connection: Connection, job_id: int) -> None:
    """Join the small parts at the end of a series."""
    query = text(
        "SELECT id, n, last_at, rows FROM step_rows WHERE job_id = :job AND id > COALESCE((SELECT "
        "max(id) FROM step_rows WHERE job_id = :job AND n >= :many), 0) ORDER BY id"
    )
    found = connection.execute(query, {"job": job_id, "many": _PART_ROWS}).all()
    if len(found) < 2:
        return
    remove = text("DELETE FROM step_rows WHERE id = ANY(:ids)")
    connection.execute(remove, {"ids": [row.id for row in found]})
    joined = b"".join(bytes(row.rows) for row in found)
    part = sum(row.n for row in found), float(found[-1].last_at), joined
    add_rows(connection, {job_id: part})


def trim(engine: Engine, log_before: float, rows_before: float | None) -> int:
    """Remove old seen rows of the log and old parts of series; returns the rows removed."""
    statement = text(
        "DELETE FROM step_log l USING job_states s WHERE s.job_id = l.job_id AND l.at < :before "
        "AND (l.position, l.seq) <= (s.position, s.seq)"
    )
    with engine.begin() as connection:
        removed = connection.execute(statement, {"before": log_before}).rowcount
        if rows_before is not None:
            old = text("DELETE FROM step_rows WHERE last_at < :before")
            connection.execute(old, {"before": rows_before})
    return int(removed)


def begin_anew_behind(engine: Engine) -> bool:
    """Reset positions after a move to another PostgreSQL, which numbers transactions anew.

    Returns:
        whether there was such a move.
    """
    ahead = text(f"SELECT COALESCE(max(position), 0) > {_XID} FROM step_log")
    with engine.begin() as connection:
        if not connection.execute(ahead).scalar_one():
            return False
        connection.execute(text("UPDATE step_log SET position = 0"))
        connection.execute(text("UPDATE job_states SET position = 0, seq = 0"))
    return True


def shared_key(engine: Engine, name: str, value: bytes) -> bytes:
    """A secret that all instances share; ``value`` becomes it if there is none."""
    insert = text("INSERT INTO shared_keys (name, value) VALUES (:n, :v) ON CONFLICT DO NOTHING")
    query = text("SELECT value FROM shared_keys WHERE name = :n")
    with engine.begin() as connection:
        connection.execute(insert, {"n": name, "v": value})
        return bytes(connection.execute(query, {"n": name}).scalar_one())
