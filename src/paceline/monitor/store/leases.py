"""The work that each of several instances does: leases in PostgreSQL, by the database's clock.

An instance beats. One whose beat is too old has lost all that it owned, as soon as another one
takes it. An owner that writes locks the lease in the same transaction
(:func:`still_held`): so an owner that was paused, and comes back, writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from paceline.errors import MonitorError

_NOW = "extract(epoch from clock_timestamp())"
#: Rows of instances that are gone are removed after this time.
_FORGET_S = 86_400.0


#: Those of some jobs whose detectors are ours until the transaction ends.
Held = Callable[[Connection, Iterable[int]], set[int]]


def all_held(connection: Connection, job_ids: Iterable[int]) -> set[int]:
    """All, where one process has the store."""
    return set(job_ids)


class LeaseLost(MonitorError):  # noqa: N818 (an answer)
    """Another instance owns it now."""


@dataclass(frozen=True)
class Beat:
    """The answer to a beat.

    Attributes:
        now: the database's clock, seconds since 1970.
        serving: instances that serve, this one included.
        held: lease -> fencing number, of this instance.
    """

    now: float
    serving: int
    held: Mapping[str, int]


def declare(engine: Engine, names: Iterable[str]) -> None:
    """Make the leases that are missing."""
    statement = text(
        "INSERT INTO leases (name, fence) SELECT unnest(CAST(:names AS text[])), 0 "
        "ON CONFLICT DO NOTHING"
    )
    with engine.begin() as connection:
        connection.execute(statement, {"names": list(names)})


def beat(engine: Engine, owner: str, name: str, kind: str, life_s: float) -> Beat:
    """Live on for ``life_s`` from now."""
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
    """Take up to ``most`` leases of a kind that no living instance owns; lease -> fence."""
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
    """Let others take them."""
    statement = text("UPDATE leases SET owner = NULL WHERE owner = :owner AND name = ANY(:names)")
    with engine.begin() as connection:
        connection.execute(statement, {"owner": owner, "names": list(names)})


def leave(engine: Engine, owner: str) -> None:
    """Give all back: the instance ends."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET owner = NULL WHERE owner = :o"), {"o": owner})
        connection.execute(text("DELETE FROM instances WHERE id = :o"), {"o": owner})


def forget_dead(engine: Engine) -> None:
    """Remove rows of instances that are gone for long."""
    with engine.begin() as connection:
        connection.execute(
            text(f"DELETE FROM instances WHERE expires_at < {_NOW} - :age"), {"age": _FORGET_S}
        )


def still_held(connection: Connection, owner: str, leases: Mapping[str, int]) -> set[str]:
    """Those of some leases (name -> fence) that are still ours, until the transaction ends."""
    query = text(
        "SELECT name, fence FROM leases WHERE owner = :owner AND name = ANY(:names) "
        "ORDER BY name FOR SHARE"
    )
    rows = connection.execute(query, {"owner": owner, "names": sorted(leases)})
    return {row.name for row in rows if leases[row.name] == row.fence}


def living(engine: Engine) -> list[str]:
    """Numbers of the instances, of both kinds, that live."""
    with engine.connect() as connection:
        query = text(f"SELECT id FROM instances WHERE expires_at > {_NOW}")
        return list(connection.execute(query).scalars())
