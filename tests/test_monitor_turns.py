"""Who has much to do, or asks much, holds up nobody: jobs take turns, addresses have a limit."""

import json
import logging
import socket
from dataclasses import replace

import numpy as np
import pytest

import requires

requires.installed("starlette")

from monitor_web import eventually, monitor
from paceline.monitor import detectors as module
from paceline.monitor import live_job as live_jobs
from paceline.monitor import turns
from paceline.monitor.bus import Bus
from paceline.monitor.detectors import Detectors
from paceline.monitor.live_job import LiveJob
from paceline.monitor.log import JsonLines
from paceline.monitor.step_files import Batch, StepFiles
from paceline.monitor.step_series import NAME
from paceline.monitor.step_stream import Closed, Stream
from paceline.monitor.store import events, jobs
from paceline.monitor.store.database import open_database
from paceline.monitor.turns import Turns
from paceline.monitor.web import limits
from paceline.monitor.web.limits import Connections


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Detectors that stop finish what waits, however long a busy machine takes for it."""
    monkeypatch.setattr(module, "STOP_S", 3600.0)


class TestTurns:
    def test_owners_take_turns_and_each_ones_work_is_in_order(self, monkeypatch):
        monkeypatch.setattr(turns, "TURN_S", 0.0)
        seen, line = [], Turns()

        def work(name, n):
            for k in range(n):
                seen.append(f"{name}{k}")
                yield

        line.add(1, work("a", 3))
        line.add(1, work("b", 1))
        line.add(2, work("c", 1))
        while line:
            line.take()
        assert seen == ["a0", "c0", "a1", "a2", "b0"]

    def test_a_turn_lasts_for_all_that_is_done_in_its_time(self, monkeypatch):
        monkeypatch.setattr(turns, "TURN_S", 60.0)
        seen, line = [], Turns()
        for k in range(3):
            line.add(1, (seen.append(k) for _ in ()))
            line.add(2, (None for _ in range(1)))
        line.take()
        assert 1 not in line
        assert 2 in line

    def test_what_is_dropped_is_ended(self):
        ended, line = [], Turns()

        def work():
            try:
                yield
            finally:
                ended.append(1)

        line.add(7, work())
        line.take()
        assert line.drop() == [7]
        assert (ended, bool(line)) == ([1], False)


def story(seed=1, ranks=2, steps=200, slow=slice(80, 130)):
    """[step, rank] seconds of a job that is slow for a while."""
    times = 1 + 0.004 * np.random.default_rng(seed).normal(size=(steps, ranks))
    times[slow] *= 1.4
    return times


def one_batch(times, *, source="start/0", number="0", at=1000.0):
    """All steps in one batch."""
    steps, ranks = times.shape
    return Batch(
        source,
        number,
        at,
        np.repeat(np.arange(steps), ranks),
        np.tile(np.arange(ranks, dtype=np.int32), steps),
        times.ravel().astype("f4"),
        ranks,
    )


class Site:
    """Detectors of some jobs, which work once they are started."""

    def __init__(self, folder):
        self.folder, self.now = folder, 2000.0
        folder.mkdir(exist_ok=True)
        self.engine = open_database(f"sqlite:///{folder / 'db'}")
        self.told = []
        self.new()

    def new(self):
        self.files = StepFiles(self.folder / "steps")
        self.detectors = Detectors(
            self.engine, self.files, Bus(), lambda: self.now, lambda *it: self.told.append(it)
        )

    def job(self, name):
        return jobs.register(self.engine, "default", name, 1.0)

    def push(self, job, batch):
        end = self.files.append(job.id, batch)
        if end is not None:
            self.detectors.feed(job, replace(batch, end=end))

    def run(self):
        """Work on all that waits, and save."""
        self.detectors.start()
        self.detectors.stop()
        self.files.close()

    def die_after(self, n_turns):
        """Work for so many turns at most, then come to an end without saving anything."""
        take, self.detectors._tick = self.detectors._turns.take, lambda *_, **__: None
        left = [n_turns]

        def counted():
            take()
            left[0] -= 1
            if not left[0]:
                self.detectors._stop_at = 0.0

        self.detectors._turns.take = counted
        self.detectors._queue.put(None)  # it ends at the latest when all is done
        self.detectors.start()
        self.detectors._thread.join()
        self.files.close()

    def events(self, job):
        found = events.list_events(self.engine, "*", job.id, None, 100)
        return [(e["kind"], e["start"], e["since_step"], e["ranks"]) for e in reversed(found)]

    def series(self, job):
        return (self.files.path(job.id) / NAME).read_bytes()


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "site")
    yield site
    site.engine.dispose()


@pytest.fixture
def short_turns(monkeypatch):
    """A turn is one step."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)


class TestJobs:
    def test_a_job_with_much_to_do_does_not_hold_up_another(self, site, short_turns):
        large, small = site.job("large"), site.job("small")
        done = {}  # job of an event -> steps of the large one that were closed by then

        def on_event(job_id, _):
            live = site.detectors._live.get(large.id)
            done.setdefault(job_id, live.stream.last_step if live else -1)

        site.detectors._on_event = on_event
        site.detectors._live[large.id] = LiveJob(large, Stream(), site.now)
        site.detectors._live[small.id] = LiveJob(small, Stream(), site.now)
        site.push(large, one_batch(story(steps=2000, slow=slice(1500, 1900))))
        site.push(small, one_batch(story(steps=200)))
        site.run()
        assert 80 <= done[small.id] < 200
        assert done[large.id] >= 1500
        assert [kind for kind, *_ in site.events(large)] == ["onset", "relief"]

    def test_the_events_of_a_batch_are_told_when_all_of_it_is_judged(self, site, short_turns):
        """Else a fail-slow that it ends would be told as one that goes on."""
        job, stored = site.job("late"), []
        site.detectors._on_event = lambda *_: stored.append(len(site.events(job)))
        site.push(job, one_batch(story(steps=2000, slow=slice(1500, 1900))))
        site.run()
        assert stored == [2, 2]

    def test_taking_up_a_job_after_a_restart_does_not_hold_up_another(self, site, short_turns):
        large, small = site.job("large"), site.job("small")
        site.files.append(large.id, one_batch(story(steps=2000, slow=slice(1000, 1200))))
        site.files.append(small.id, one_batch(story(steps=200)))
        site.detectors.resume([large, small])
        site.run()
        told = [job_id for job_id, _ in site.told]
        assert told == [small.id] * 2 + [large.id] * 2
        assert jobs.by_id(site.engine, large.id)["last_step"] == 1999

    def test_turns_do_not_change_what_is_found(self, tmp_path, monkeypatch):
        found = []
        for name, turn_s in (("long", 1e9), ("short", 0.0)):
            monkeypatch.setattr(turns, "TURN_S", turn_s)
            site = Site(tmp_path / name)
            pair = [site.job("a"), site.job("b")]
            for seed, job in enumerate(pair):
                again = story(seed + 5)[:120]
                site.push(job, one_batch(story(seed)))
                site.push(job, one_batch(again, source="two/0", at=1500.0))
                site.push(job, one_batch(story(seed + 5), source="two/0", number="1", at=1600.0))
            site.run()
            found.append([(site.events(job), site.series(job)) for job in pair])
            site.engine.dispose()
        assert found[0] == found[1]
        assert [kind for kind, *_ in found[0][0][0]] == ["onset", "relief"] * 2

    @pytest.mark.parametrize("turns_each", [1, 7, 83, 90, 133, 150])
    @pytest.mark.parametrize("saved", [False, True])
    def test_an_end_in_the_middle_of_a_batch_loses_and_doubles_nothing(
        self, site, short_turns, monkeypatch, turns_each, saved
    ):
        if saved:
            monkeypatch.setattr(module, "_SAVE_SAMPLES", 1)
        job, whole = site.job("job"), story()
        site.push(job, one_batch(whole[:50]))
        site.run()
        site.new()
        site.push(job, one_batch(whole, number="1", at=1100.0))
        for n in (turns_each, 2 * turns_each):
            site.die_after(n)
            site.new()
            site.detectors.resume([job])
        site.run()
        site.new()
        site.detectors.resume([job])
        site.run()
        assert [kind for kind, *_ in site.events(job)] == ["onset", "relief"]
        assert len(site.told) == 2
        assert site.files.series(job.id, points=0).step.tolist() == list(range(200))

    def test_a_job_is_not_saved_in_the_middle_of_a_batch(self, site, short_turns, monkeypatch):
        monkeypatch.setattr(module, "_SAVE_SAMPLES", 1)
        monkeypatch.setattr(module, "TICK_S", 0.0)  # it is looked at after every turn
        job, saved = site.job("job"), []
        real = live_jobs.save_stream

        def save(stream, folder):
            saved.append(stream.last_step)
            real(stream, folder)

        monkeypatch.setattr(live_jobs, "save_stream", save)
        site.detectors._live[job.id] = LiveJob(job, Stream(), site.now)
        site.push(job, one_batch(story()[:60]))
        site.push(job, one_batch(story()[:70], number="1"))
        site.run()
        assert set(saved) == {59, 69}

    def test_only_some_jobs_are_taken_up_at_a_time(self, site, short_turns, monkeypatch):
        monkeypatch.setattr(module, "_MAX_LOADS", 3)
        many = [site.job(f"job-{n}") for n in range(20)]
        for n, job in enumerate(many):
            site.files.append(job.id, one_batch(story(n, steps=30, slow=slice(0, 0))))
        at_a_time, real = [], module.load_stream

        def load(folder):
            at_a_time.append(site.detectors._n_loading)
            return real(folder)

        monkeypatch.setattr(module, "load_stream", load)
        site.detectors.resume(many)
        site.run()
        assert (len(at_a_time), max(at_a_time)) == (20, 3)
        assert {jobs.by_id(site.engine, job.id)["last_step"] for job in many} == {29}

    def test_steps_that_were_waited_for_are_closed_in_turns_too(
        self, site, short_turns, monkeypatch
    ):
        monkeypatch.setattr(module, "TICK_S", 0.0)
        large, small = site.job("large"), site.job("small")
        half = one_batch(story(steps=500, ranks=1, slow=slice(0, 0)))  # one rank of two is silent
        half = Batch(**{**vars(half), "world": 2})
        order = []
        monkeypatch.setattr(
            module, "append_rows", lambda folder, rows: order.append((folder.name, len(rows)))
        )
        site.now = 1000.0
        site.push(large, half)
        site.detectors.start()
        eventually(lambda: not site.detectors.n_waiting)
        site.now = 1100.0
        eventually(lambda: order)
        site.push(small, one_batch(story(steps=3), at=1100.0))
        eventually(lambda: any(name == str(small.id) for name, _ in order))
        site.detectors.stop()
        names = [name for name, _ in order]
        assert names.count(str(large.id)) == 500
        assert names.index(str(small.id)) < 499
        assert max(n for _, n in order) == 1

    def test_a_batch_of_very_many_steps_pauses_while_it_is_added(self, monkeypatch):
        monkeypatch.setattr("paceline.monitor.step_stream.PAUSE_STEPS", 10)
        found = list(Stream().take(one_batch(story(steps=100, slow=slice(0, 0)))))
        assert found[:10] == [None] * 10
        assert [int(one.row["step"]) for one in found if isinstance(one, Closed)] == list(
            range(100)
        )


class TestStarts:
    def test_an_onset_at_the_step_of_an_earlier_starts_onset_is_one_more(self, site):
        job = site.job("job")
        for start in range(3):
            times = story(steps=110)
            site.push(job, one_batch(times, source=f"{start}/0", at=1000.0 + 100 * start))
        site.run()
        found = [one for one in site.events(job) if one[0] == "onset"]
        assert [start for _, start, *_ in found] == [0, 1, 2]
        assert len({since for _, _, since, _ in found}) == 1
        assert len(site.told) == len(site.events(job)) == 5  # and a relief where one began anew

    def test_a_restart_of_the_service_finds_them_again_and_stores_none_twice(self, site):
        job = site.job("job")
        for start in range(2):
            times = story(steps=110)
            site.push(job, one_batch(times, source=f"{start}/0", at=1000.0 + 100 * start))
        site.die_after(10)
        before = site.events(job)
        for _ in range(2):
            site.new()
            site.detectors.resume([job])
            site.die_after(10)
        assert site.events(job) == before
        assert len(before) == 3


@pytest.fixture
def lines():
    written = []

    class Keep(logging.Handler):
        def emit(self, record):
            written.append(json.loads(JsonLines().format(record)))

    handler = Keep()
    logger = logging.getLogger("paceline.monitor")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


class TestConnections:
    def test_an_address_has_so_many_and_others_are_not_concerned(self, lines):
        counted = Connections(2, {"10.0.0.9"})
        assert [counted.enter("10.0.0.1") for _ in range(4)] == [True, True, False, False]
        assert counted.enter("10.0.0.2")
        counted.leave("10.0.0.1")
        assert counted.enter("10.0.0.1")
        assert not counted.enter("10.0.0.1")
        told = [line for line in lines if line["event"] == "too many connections"]
        assert [line["client"] for line in told] == ["10.0.0.1"]  # once a minute

    @pytest.mark.parametrize("free", ["10.0.0.9", "127.0.0.1", "127.3.2.1", "::1", ""])
    def test_this_machine_and_proxies_may_have_more(self, free):
        counted = Connections(2, {"10.0.0.9"})
        assert all(counted.enter(free) for _ in range(9))

    def test_none_is_remembered_once_it_is_gone(self):
        counted = Connections(2, ())
        for n in range(9):
            assert counted.enter(f"10.0.0.{n}")
            counted.leave(f"10.0.0.{n}")
            assert counted.enter("10.9.9.9") is (n < 2)
        assert list(counted._open) == ["10.9.9.9"]

    def test_a_server_ends_those_that_are_too_many(self, tmp_path, monkeypatch, lines):
        monkeypatch.setattr(limits, "_is_local", lambda address: address != "127.0.0.2")
        with monitor(tmp_path, connections_per_address=3) as site:

            def connect():
                address = ("127.0.0.1", site.port)
                return socket.create_connection(address, 20, source_address=("127.0.0.2", 0))

            def answer(connection):
                try:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                    said = b""
                    while not said.endswith(b"}"):
                        part = connection.recv(4096)
                        if not part:
                            break
                        said += part
                    return said[9:12]
                except OSError:
                    return b""

            idle = [connect() for _ in range(3)]
            assert answer(idle[0]) == b"200"
            for _ in range(5):
                with connect() as more:
                    assert answer(more) == b""
            assert site.ask("GET", "/healthz").status == 200  # of another address
            assert [answer(each) for each in idle] == [b"200"] * 3
            idle.pop().close()

            def again():
                with connect() as more:
                    return answer(more) == b"200"

            eventually(again)
            for each in idle:
                each.close()
        told = [line for line in lines if line["event"] == "too many connections"]
        assert [line["client"] for line in told] == ["127.0.0.2"]
