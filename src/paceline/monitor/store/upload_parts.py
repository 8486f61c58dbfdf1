"""Parts of unfinished uploads, shared by all instances."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError

from paceline.monitor.store.tables import upload_parts


@dataclass(frozen=True)
class Part:
    """A part of an upload.

    Attributes:
        offset: position of the first byte.
        size: number of bytes.
        key: key in the bucket.
    """

    offset: int
    size: int
    key: str


def parts_of(engine: Engine, upload_id: str) -> list[Part]:
    """The contiguous parts of an upload, in order."""
    table = upload_parts
    query = select(table.c.offset, table.c.size, table.c.key).where(table.c.upload_id == upload_id)
    with engine.connect() as connection:
        return [Part(*row) for row in connection.execute(query.order_by(table.c.offset))]


def add(engine: Engine, upload_id: str, part: Part) -> bool:
    """Record a part; False if another part begins there, or the upload was removed."""
    row = {"upload_id": upload_id, "offset": part.offset, "size": part.size, "key": part.key}
    try:
        with engine.begin() as connection:
            connection.execute(insert(upload_parts).values(**row))
    except IntegrityError:
        return False
    return True


def remove(engine: Engine, upload_id: str) -> None:
    """Remove the parts of an upload that restarts."""
    with engine.begin() as connection:
        connection.execute(delete(upload_parts).where(upload_parts.c.upload_id == upload_id))
