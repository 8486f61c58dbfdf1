"""Parts of uploads under way, of which each instance sees those of all."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError

from paceline.monitor.store.tables import upload_parts


@dataclass(frozen=True)
class Part:
    """Some bytes of an upload.

    Attributes:
        offset: of the first one.
        size: how many.
        key: where they lie in the bucket.
    """

    offset: int
    size: int
    key: str


def parts_of(engine: Engine, upload_id: str) -> list[Part]:
    """The parts of an upload, in order; each begins where the one before it ends."""
    table = upload_parts
    query = select(table.c.offset, table.c.size, table.c.key).where(table.c.upload_id == upload_id)
    with engine.connect() as connection:
        return [Part(*row) for row in connection.execute(query.order_by(table.c.offset))]


def add(engine: Engine, upload_id: str, part: Part) -> bool:
    """Note a part; False where another one begins there, or the upload is no more."""
    row = {"upload_id": upload_id, "offset": part.offset, "size": part.size, "key": part.key}
    try:
        with engine.begin() as connection:
            connection.execute(insert(upload_parts).values(**row))
    except IntegrityError:
        return False
    return True


def remove(engine: Engine, upload_id: str) -> None:
    """Forget the parts of an upload: it begins again."""
    with engine.begin() as connection:
        connection.execute(delete(upload_parts).where(upload_parts.c.upload_id == upload_id))
