"""Rows that wait, by a clock that was ahead and is set back."""

import pytest

import requires

requires.installed("sqlalchemy")

from sqlalchemy import column, literal, select

from paceline.monitor import analysis_pool
from paceline.monitor.alerts import channels, delivery, settings
from paceline.monitor.store.database import open_database
from paceline.monitor.store.due import MOST_AHEAD_S, due, is_due
from paceline.monitor.store.tables import sessions

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("ahead_s", "is_so"),
    [(-1.0, True), (0.0, True), (1.0, False), (MOST_AHEAD_S, False), (86_400.0, True)],
)
def test_a_row_is_due_once_its_time_has_come_or_cannot_be_meant(tmp_path, ahead_s, is_so):
    assert is_due(NOW + ahead_s, NOW) is is_so
    engine = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    row = select(literal(NOW + ahead_s).label("next_at")).subquery()
    with engine.connect() as connection:
        assert bool(connection.execute(select(due(row.c.next_at, NOW))).scalar_one()) is is_so
    engine.dispose()


def test_a_row_without_a_time_is_due():
    assert "next_at IS NULL" in str(due(column("next_at"), NOW))
    assert sessions.c.next_at.nullable


def test_nothing_waits_longer_than_what_a_clock_that_was_ahead_is_told_by():
    doubled = 2**analysis_pool._MOST_DOUBLED
    assert analysis_pool._PAUSE_S * doubled <= MOST_AHEAD_S
    assert 1.2 * delivery.MAX_WAIT_S <= MOST_AHEAD_S  # a fifth more by chance
    assert channels.REPEAT_S <= MOST_AHEAD_S
    assert settings.GROUP_WAIT_S <= MOST_AHEAD_S
