"""Where a monitored job's wall time went."""

import numpy as np
import pytest

from paceline.monitor.job_ledger import MEANINGS, healthy_slowdown, job_ledger, unknown_rows
from paceline.monitor.step_series import ROW


def rows_of(*steps):
    """Rows from (start, step, came at, seconds)."""
    rows = np.zeros(len(steps), ROW)
    for name, column in zip(
        ("start", "step", "at", "median_s"), zip(*steps, strict=True), strict=True
    ):
        rows[name] = column
    rows["max_s"] = rows["median_s"]
    return rows


def start(number, first, last, at, seconds, batch=1):
    """Steps that run from ``at`` on, sent by batches."""
    end = [at + seconds * (n + 1) for n in range(last - first + 1)]
    came = [end[min(n // batch * batch + batch, len(end)) - 1] for n in range(len(end))]
    return [(number, first + n, came[n], seconds) for n in range(len(end))]


def event(kind, start, since_step, factor, ranks=(0, 1)):
    return {
        "kind": kind, "start": start, "since_step": since_step, "factor": factor, "ranks": ranks,
    }  # fmt: skip


@pytest.mark.parametrize("batch", [1, 7])
def test_steps_restarts_and_steps_run_again_add_up(batch):
    rows = rows_of(*start(0, 1, 100, 1e9, 2.0, batch), *start(1, 81, 200, 1e9 + 500, 2.0, batch))
    ledger = job_ledger(rows, [], gpus=8)
    assert ledger.total_s == pytest.approx(500 + 240)
    assert ledger.seconds["productive"] == pytest.approx(400)
    assert ledger.seconds["lost_steps"] == pytest.approx(40)
    assert ledger.seconds["restarts"] == pytest.approx(300)
    assert sum(s for s in ledger.seconds.values() if s) == pytest.approx(ledger.total_s)
    assert ledger.seconds["checkpoints"] is None


def test_a_pause_between_steps_is_unknown():
    rows = rows_of(*start(0, 0, 99, 0, 1.0), *start(0, 100, 199, 160, 1.0))
    ledger = job_ledger(rows, [])
    assert ledger.seconds["unknown"] == pytest.approx(60)
    assert ledger.seconds["productive"] == pytest.approx(200)


def test_an_event_counts_in_its_own_start():
    slow = [(0, n, 100.0 + 1.5 * (n - 100), 1.5) for n in range(101, 201)]
    rows = rows_of(*start(0, 1, 100, 0, 1.0), *slow, *start(1, 1, 300, 1000, 1.0))
    ledger = job_ledger(rows, [event("onset", 0, 101, 1.5), event("relief", 0, 201, None)])
    assert ledger.lost_steps == 200  # all of the first start, slow or not
    assert ledger.seconds["fail_slow"] == 0
    ledger = job_ledger(rows[:200], [event("onset", 0, 101, 1.5)])
    assert ledger.seconds["fail_slow"] == pytest.approx(50)


def test_the_slower_of_two_groups_of_ranks_counts():
    rows = rows_of(*start(0, 1, 400, 0, 1.0))
    rows["median_s"][100:300] = 2.0
    rows["at"] = np.cumsum(rows["median_s"])
    events = [
        event("onset", 0, 101, 2.0, [0]),
        event("onset", 0, 151, 1.25, [1]),
        event("relief", 0, 301, 2.0, [0]),
        event("relief", 0, 351, 1.25, [1]),
    ]
    level_s = job_ledger(rows, events).seconds["fail_slow"]
    assert level_s == pytest.approx(200 * 2 * (1 - 1 / 2) + 50 * 1 * (1 - 1 / 1.25))


def test_steps_that_were_sent_after_the_event_have_no_clock():
    rows = rows_of(*start(0, 1, 100, 0, 2.0), *start(1, 101, 200, 100, 2.0))
    rows["at"] = np.linspace(1e9, 1e9 + 3, 200)
    ledger = job_ledger(rows, [])
    assert ledger.total_s == pytest.approx(400)
    assert ledger.seconds["restarts"] is None
    assert "sent after" in ledger.notes[0]


def test_two_starts_that_came_at_once_have_no_clock():
    rows = rows_of(*start(0, 1, 50, 0, 2.0, 50), *start(1, 51, 99, 3, 2.0, 49))
    assert job_ledger(rows, []).total_s == pytest.approx(198)


def test_steps_of_which_another_rank_is_the_slowest_each_time_add_up_to_the_wall_time():
    """One of four ranks ends a step 0.1 s late, at which the others' next step is as much longer.

    The late rank's next step is as much shorter. Each rank's steps take the wall time, 104 s.
    """
    took_s = np.ones((100, 4))
    for step in range(0, 80, 2):
        late = step // 2 % 4
        took_s[step, late] += 0.1
        took_s[step + 1] += 0.1
        took_s[step + 1, late] -= 0.1
    wall_s = took_s[:, 0].sum()
    assert took_s.sum(axis=0) == pytest.approx(wall_s)
    rows = rows_of(*start(0, 1, 100, 0, 1.0))
    rows["median_s"], rows["max_s"] = np.median(took_s, axis=1), took_s.max(axis=1)
    rows["at"] = np.cumsum(rows["median_s"])
    for at in (rows["at"], 1e9):  # as they ended; sent after the event
        rows["at"] = at
        ledger = job_ledger(rows, [])
        assert ledger.total_s == pytest.approx(wall_s)
        assert sum(s for s in ledger.seconds.values() if s) == pytest.approx(wall_s)
        assert ledger.seconds["unknown"] == pytest.approx(0, abs=1e-3)


def test_missing_steps_are_a_note():
    rows = rows_of(*start(0, 1, 200, 0, 1.0))
    ledger = job_ledger(rows[[*range(50), *range(60, 200)]], [])
    assert ledger.seconds["unknown"] == pytest.approx(10)
    assert ledger.notes == (
        "10 steps between the first and the last are missing: their time is in unknown",
    )


def test_no_step_is_no_ledger():
    assert job_ledger(np.zeros(0, ROW), []) is None
    rows = np.zeros(3, ROW)
    rows["median_s"] = np.nan
    assert job_ledger(rows, []) is None


@pytest.mark.parametrize(
    ("slowdown", "step_s", "healthy_s", "expected"),
    [
        (1.5, 3.0, 2.0, 1.0),  # the session is of the fail-slow, without which nothing straggles
        (1.5, 3.0, 2.2, 1.1),
        (1.5, 3.0, 3.0, 1.5),  # the session is of the healthy level
        (1.5, 3.0, 9.0, 1.5),  # another step than the traced one: no more than the session says
        (1.5, 3.0, None, 1.5),
        (0.99, 3.0, 3.2, 1.0),
        (None, None, 2.0, None),
    ],
)
def test_a_fail_slow_is_not_counted_among_the_stragglers_too(slowdown, step_s, healthy_s, expected):
    session = {"slowdown": slowdown, "step_s": step_s}
    assert healthy_slowdown(session, healthy_s) == pytest.approx(expected)


def test_reasons_are_about_the_monitor_not_about_a_log():
    ledger = job_ledger(rows_of(*start(0, 5, 100, 1e9, 2.0)), [])
    assert (
        ledger.reasons["stragglers"] == "no session is analysed; push a trace, or record operations"
    )
    assert ledger.reasons["restarts"] == "the step times begin at step 5"
    assert "step times do not tell" in ledger.reasons["checkpoints"]
    words = " ".join([*ledger.reasons.values(), *MEANINGS.values()])
    assert "the log " not in words.replace("the job's log", "")
    assert "--slowdown" not in words


def test_unknown_rows_of_one_reason_are_told_together():
    ledger = job_ledger(rows_of(*start(0, 1, 100, 1e9, 2.0)), [], slowdown=1.1)
    rows = unknown_rows(ledger)
    (names,) = (names for names in rows.values() if "checkpoints" in names)
    assert names == ["checkpoints", "evaluation", "data waits", "other", "startup"]
    assert sum(map(len, rows.values())) == len(ledger.reasons)
    assert unknown_rows(None) == {}
