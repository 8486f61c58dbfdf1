"""A batch that is sent again while its first try is under way: steps are judged in their order."""

import threading

import pytest

import requires

requires.installed("starlette", "sqlalchemy")

from monitor_web import eventually, monitor
from paceline.monitor.store import jobs
from paceline.monitor.under_way import UnderWay
from step_batches import of_step


def test_the_next_step_waits_for_a_first_try_that_is_slow(tmp_path):
    """The connection of the first try is cut behind the disk's answer; the client sends it again.

    The series lacked the step before: the detector saw the next one first (found by the faults of
    ``monitor_faults.py`` on a machine at a load of 70).
    """
    with monitor(tmp_path) as site:
        service = site.service
        job = jobs.register(service.engine, "llm", "job", service.clock())
        feed, is_held, may_go = service.detectors.feed, threading.Event(), threading.Event()

        def slow_once(key, batch):
            if not is_held.is_set():
                is_held.set()
                assert may_go.wait(60)
            feed(key, batch)

        service.detectors.feed = slow_once
        taken = []
        first = threading.Thread(target=service.take_steps, args=(job, of_step(0, [1.0])))

        def send_again():
            taken.append(service.take_steps(job, of_step(0, [1.0])))
            taken.append(service.take_steps(job, of_step(1, [1.0])))

        again = threading.Thread(target=send_again)
        first.start()
        assert is_held.wait(60)
        again.start()
        again.join(0.5)
        assert again.is_alive()
        assert taken == []
        may_go.set()
        first.join(60)
        again.join(60)
        assert taken == [False, True]
        eventually(lambda: service.steps.series(job.id).step.tolist() == [0, 1])


def test_who_fails_lets_the_next_one_begin():
    under_way = UnderWay()
    with pytest.raises(OSError, match="full"), under_way.alone("a"):
        raise OSError("full")
    with under_way.alone("a"), under_way.alone("b"):
        pass
