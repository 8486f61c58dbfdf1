"""A check of the store."""

from __future__ import annotations

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from paceline.monitor.log import without_secrets


def problem_of(engine: Engine) -> str | None:
    """The reason why the store is unusable; None if it works."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        return problem_in(error)
    return None


def problem_in(error: SQLAlchemyError) -> str:
    """The database's message in one line, without parameters and passwords."""
    return without_secrets(str(getattr(error, "orig", None) or error).partition("\n")[0][:200])
