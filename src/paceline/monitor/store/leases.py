"""Division of work between instances: leases in PostgreSQL, by the database's clock.

An instance sends heartbeats. If its last one is too old, other instances may take its leases. A
writing owner locks its lease in the same transaction (:func:`still_held`), so that an owner that
was paused writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from paceline.errors import MonitorError

_NOW = "extract(epoch from clock_timestamp())"
#: Time until rows of lost instances are removed.
_FORGET_S = 86_400.0


#: The jobs whose detectors are ours until the transaction ends.
Held = Callable[[Connection, Iterable[int]], set[int]]


def all_held(connection: Connection, job_ids: Iterable[int]) -> set[int]:
    """All jobs, as one process has the store."""
    return set(job_ids)


class LeaseLost(MonitorError):  # noqa: N818 (an answer)
    """Another instance owns the lease now."""


@dataclass(frozen=True)
class Beat:
    """The result of a heartbeat.

    Attributes:
        now: the database's clock, seconds since 1970.
        serving: number of serving instances, including this one.
        held: this instance's leases -> fencing number.
    """

    now: float
    serving: int
    held: Mapping[str, int]


def declare(engine: Engine, names: Iterable[str]) -> None:
    """Create missing leases."""
    statement = text(
        "INSERT INTO leases (name, fence) SELECT unnest(CAST(:names AS text[])), 0 "
        "ON CONFLICT DO NOTHING"
    )
    with engine.begin() as connection:
        connection.execute(statement, {"names": list(names)})


def beat(engine: Engine, owner: str, name: str, kind: str, life_s: float) -> Beat:
    """Extend the instance's life to ``life_s`` from now."""
    upsert = text(
        "INSERT INTO instances (id, name, kind, started_at, expires_at) "
        f"VALUES (:id, :name, :kind, {_NOW}, {_NOW} + :life) "
        "ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at"
    )
    look = text(
        f"SELECT {_NOW}, (SELECT count(*) FROM instances "
        f"WHERE kind = 'serve' AND expires_at > {_NOW})"
    )
    with engine.begin() as connection:
        connection.execute(upsert, {"id": owner, "name": name, "kind": kind, "life": life_s})
    with engine.begin() as connection:
        now, serving = connection.execute(look).one()
        mine = text("SELECT name, fence FROM leases WHERE owner = :owner")
        held = {row.name: int(row.fence) for row in connection.execute(mine, {"owner": owner})}
    return Beat(float(now), int(serving), held)


def take(engine: Engine, owner: str, prefix: str, most: int) -> dict[str, int]:
    """Take up to ``most`` leases of a kind without a living owner; lease -> fence."""
    statement = text(
        "UPDATE leases SET owner = :owner, fence = fence + 1 WHERE name IN ("
        "  SELECT name FROM leases WHERE name LIKE :prefix AND (owner IS NULL OR NOT EXISTS ("
        f"    SELECT 1 FROM instances WHERE instances.id = leases.owner AND expires_at > {_NOW})) "
        "  ORDER BY name LIMIT :most FOR UPDATE SKIP LOCKED) "
        "RETURNING name, fence"
    )
    values = {"owner": owner, "prefix": f"{prefix}%", "most": most}
    with engine.begin() as connection:
        return {row.name: int(row.fence) for row in connection.execute(statement, values)}


def give_back(engine: Engine, owner: str, names: Sequence[str]) -> None:
    """Release leases to other instances."""
    statement = text("UPDATE leases SET owner = NULL WHERE owner = :owner AND name = ANY(:names)")
    with engine.begin() as connection:
        connection.execute(statement, {"owner": owner, "names": list(names)})


def leave(engine: Engine, owner: str) -> None:
    """Release all leases, as the instance ends."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET owner = NULL WHERE owner = :o"), {"o": owner})
        connection.execute(text("DELETE FROM instances WHERE id = :o"), {"o": owner})


def forget_dead(engine: Engine) -> None:
    """Remove rows of instances lost long ago."""
    with engine.begin() as connection:
        connection.execute(
            text(f"DELETE FROM instances WHERE expires_at < {_NOW} - :age"), {"age": _FORGET_S}
        )


def still_held(connection: Connection, owner: str, leases: Mapping[str, int]) -> set[str]:
    """The leases (name -> fence) among these that stay ours until the transaction ends."""
    query = text(
        "SELECT name, fence FROM leases WHERE owner = :owner AND name = ANY(:names) "
        "ORDER BY name FOR SHARE"
    )
    rows = connection.execute(query, {"owner": owner, "names": sorted(leases)})
    return {row.name for row in rows if leases[row.name] == row.fence}


def living(engine: Engine) -> list[str]:
    """Numbers of the living instances of both kinds."""
    with engine.connect() as connection:
        query = text(f"SELECT id FROM instances WHERE expires_at > {_NOW}")
        return list(connection.execute(query).scalars())
