"""Step times are judged as they come, whatever ends the service meanwhile."""

import errno
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from monitor_web import eventually
from paceline.detect import levels, machine_code
from paceline.monitor import detectors as module
from paceline.monitor.bus import Bus
from paceline.monitor.detectors import Detectors
from paceline.monitor.pulse import Pulse
from paceline.monitor.step_files import StepFiles
from paceline.monitor.store import events, jobs
from paceline.monitor.store.database import open_database
from step_batches import of_step


class Site:
    """Detectors on a store and files of their own, restarted at will."""

    def __init__(self, folder):
        self.folder, self.now = folder, 0.0
        self.jumps = []  # of the clock, that nobody has heard of yet
        self.engine = open_database(f"sqlite:///{folder / 'db'}")
        self.job = jobs.register(self.engine, "default", "job", 1.0)
        self.told = []
        self.start()

    def start(self):
        self.files = StepFiles(self.folder / "steps")
        self.detectors = Detectors(
            self.engine,
            self.files,
            Bus(),
            lambda: self.now,
            lambda *it: self.told.append(it),
            jump_s=lambda: self.jumps.pop() if self.jumps else 0.0,
        )
        self.detectors.start()
        self.detectors.resume([self.job])

    def push(self, one):
        self.now = max(self.now, one.at)
        end = self.files.append(self.job.id, one)
        if end is not None:
            self.detectors.feed(self.job, replace(one, end=end))

    def jump(self, seconds):
        """The clock jumps: as much later, or earlier."""
        self.now += seconds
        self.jumps.append(seconds)
        eventually(lambda: not self.jumps)

    def crash(self):
        """Without saving anything."""
        self.detectors._tick = lambda *_, **__: None
        self.detectors.stop()
        self.files.close()

    def stop(self):
        self.detectors.stop()
        self.files.close()

    def events(self):
        found = events.list_events(self.engine, "*", self.job.id, None, 100)
        return [(e["kind"], e["since_step"], tuple(e["ranks"])) for e in reversed(found)]

    def row(self):
        return jobs.by_id(self.engine, self.job.id)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.engine.dispose()


def story(seed=1, ranks=4, steps=200, slow=slice(80, 130)):
    """A job that is slow for a while; rank 3 notices some steps later."""
    times = 1 + 0.004 * np.random.default_rng(seed).normal(size=(steps, ranks))
    times[slow] *= 1.4
    times[slow.start : slow.start + 6, 3] /= 1.4
    return [of_step(step, row) for step, row in enumerate(times)]


class TestDetectors:
    def test_a_slow_time_is_one_onset_and_one_relief(self, site):
        for one in story():
            site.push(one)
        site.stop()
        (onset, since, ranks), (relief, until, _) = site.events()
        assert (onset, relief, ranks) == ("onset", "relief", (0, 1, 2, 3))
        assert abs(since - 80) <= 3
        assert abs(until - 130) <= 3
        assert len(site.told) == 2
        row = site.row()
        assert (row["status"], row["last_step"], row["slow_since_step"]) == ("running", 199, None)
        assert row["seen_at"] == 1199.0
        assert row["step_s"] == pytest.approx(1, abs=0.02)

    def test_only_live_steps_show_that_a_job_runs(self, site):
        def state(after):
            def is_there():
                site.now += 5  # the time to write rows
                return site.row()["last_step"] == after

            eventually(is_there)
            return site.row()["status"], site.row()["seen_at"]

        for step in range(60):
            site.push(of_step(step, [1.0] * 4, source="a/recorded"))
        assert state(59) == ("new", 1059.0)
        assert jobs.silence_quiet(site.engine, 1e9) == []
        site.push(of_step(60, [1.0] * 4, source="a/push", at=2e4))
        assert state(60) == ("running", 2e4)
        assert len(jobs.silence_quiet(site.engine, 1e9)) == 1
        site.push(of_step(61, [1.0] * 4, source="a/recorded", at=4e4))
        assert state(61) == ("silent", 2e4)
        jobs.end(site.engine, site.job.id, 5e4)
        site.push(of_step(62, [1.0] * 4, source="a/recorded", at=6e4))
        assert state(62) == ("ended", 5e4)
        site.stop()

    def test_ticks_that_take_long_leave_most_turns_to_batches(self, site, monkeypatch):
        """Where each tick took longer than TICK_S, one job had a turn between two of them."""
        monkeypatch.setattr(module, "TICK_S", 0.0)
        tick, ticks = site.detectors._tick, []

        def slow_tick(*args, **options):
            ticks.append(bool(site.detectors._turns))
            time.sleep(0.1)
            tick(*args, **options)

        monkeypatch.setattr(site.detectors, "_tick", slow_tick)
        others = [jobs.register(site.engine, "default", f"job-{n}", 1.0) for n in range(60)]
        for job in others:
            batch = of_step(0, [1.0, 1.0])
            end = site.files.append(job.id, batch)
            site.detectors.feed(job, replace(batch, end=end))
        while site.detectors.n_waiting:
            time.sleep(0.01)
        assert sum(ticks) < len(others) / 2
        site.stop()

    def test_jobs_are_judged_while_machine_code_is_made_and_by_it_once_it_is_there(
        self, site, monkeypatch
    ):
        goes_on, calls = threading.Event(), []

        def slowly_made():
            calls.append(threading.current_thread().name)
            goes_on.wait(60)
            return levels.advance

        monkeypatch.setattr(levels, "compiled_advance", slowly_made)
        monkeypatch.setattr(levels, "INTERPRETED_SAMPLES", 100)
        for name in ("_is_begun", "_is_ready"):
            monkeypatch.setattr(machine_code, name, False)
        for one in story():
            site.push(one)
        eventually(lambda: not site.detectors.n_waiting)
        assert [kind for kind, _, _ in site.events()] == ["onset", "relief"]
        assert calls == ["paceline-compiler"]
        goes_on.set()
        eventually(lambda: machine_code._is_ready)
        other = jobs.register(site.engine, "default", "other", 1.0)
        first = of_step(0, [1.0] * 4)  # of a new job
        site.files.append(other.id, first)
        site.detectors.feed(other, first)
        eventually(lambda: not site.detectors.n_waiting)
        assert set(calls[1:]) == {"paceline-detectors"}
        site.stop()

    def test_a_job_let_go_while_the_clock_was_ahead_lacks_no_step(self, site):
        """The batch that took it up again was in a file "older" than what the detector had seen."""
        day, now = 86_400.0, time.time()
        ahead = [(step, now + day + step) for step in range(5)]
        for step, at in [*ahead, *((step, now + step) for step in range(5, 10))]:
            if step == 5:  # idle for long enough: saved, and let go
                site.now = now + day + 1000.0
                eventually(lambda: site.job.id not in site.detectors._live)
            site.now = at
            batch = replace(of_step(step, [1.0, 1.0]), at=at)
            end = site.files.append(site.job.id, batch)
            site.detectors.feed(site.job, replace(batch, end=end))
            eventually(lambda: not site.detectors.n_waiting)
        site.stop()
        assert site.files.series(site.job.id).step.tolist() == list(range(10))

    def test_an_accepted_level_is_healthy_after_a_restart_too(self, site):
        steps = story(steps=300, slow=slice(80, 300))
        for one in steps[:150]:
            site.push(one)
        site.detectors.accept(site.job)
        site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset", "relief"]
        assert site.row()["slow_since_step"] is None
        site.start()
        site.detectors.accept(site.job)  # it is not slow: nothing happens
        for one in steps[150:]:
            site.push(one)
        site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset", "relief"]
        assert site.row()["healthy_s"] == pytest.approx(1.4, abs=0.02)
        text = events.list_events(site.engine, "*", site.job.id, None, 1)[0]["text"]
        assert "slow until this level was accepted as healthy" in text

    @pytest.mark.parametrize(
        ("labels", "kinds"), [({"like": "run-*"}, []), ({"like": "llm"}, []), ({}, ["onset"])]
    )
    def test_what_earlier_runs_show_at_the_same_step_is_planned(self, site, labels, kinds):
        for number in range(3):
            of_group = {"like": "llm"}
            site.job = jobs.register(site.engine, "default", f"run-{number}", 1.0, labels=of_group)
            for one in story(seed=number, steps=150, slow=slice(80, 150)):
                site.push(one)
        site.job = jobs.register(site.engine, "default", "now", 1.0, labels=labels)
        site.stop()  # what is pushed before is in the series then
        site.start()
        for one in story(seed=9, steps=150, slow=slice(80, 150)):
            site.push(one)
        site.stop()
        assert [kind for kind, *_ in site.events()] == kinds

    @pytest.mark.parametrize("factor", [1.06, 1.01])
    def test_a_run_that_is_slow_from_its_first_step_is_told_once(self, site, factor):
        for number in range(3):
            site.job = jobs.register(site.engine, "default", f"run-{number}", 1.0)
            for one in story(seed=number, steps=60, slow=slice(0, 0)):
                site.push(one)
        site.job = jobs.register(site.engine, "default", "now", 1.0, labels={"like": "run-*"})
        site.stop()
        site.start()
        for one in story(seed=9, steps=70, slow=slice(0, 0)):
            site.push(replace(one, durations_s=one.durations_s * factor))
        site.crash()
        site.start()
        site.stop()
        told = [event for event in site.events() if event[0] == "slow-start"]
        assert told == ([("slow-start", 0, (0, 1, 2, 3))] if factor > 1.04 else [])

    @pytest.mark.parametrize(
        ("ranks", "words"),
        [
            (
                (0, 1, 3),
                "step 60 has not ended after 35 s: a hang, or a long checkpoint or evaluation; "
                "rank 2 did not arrive",
            ),
            (
                (),
                "step 60 has not ended after 36 s: a hang, or a long checkpoint or evaluation; "
                "no rank has reported its time",
            ),
        ],
    )
    def test_a_step_that_does_not_end_is_told_with_who_did_not_arrive(self, site, ranks, words):
        for one in story(steps=60, slow=slice(80, 80)):
            site.push(one)
        if ranks:
            site.push(of_step(60, [1.0] * len(ranks), ranks=ranks))
        while site.detectors.n_waiting:
            time.sleep(0.01)
        site.now = 1059.0 + bool(ranks) + 33.0  # not yet: the usual second, 3 steps and 30 s
        time.sleep(0.05)
        assert site.events() == []
        site.now = 1095.0
        eventually(lambda: site.events())
        assert events.list_events(site.engine, "*", site.job.id, None, 1)[0]["text"] == words
        site.now = 1200.0
        site.stop()
        assert [kind for kind, *_ in site.events() if kind == "hang"] == ["hang"]

    def test_a_clock_that_jumps_ahead_makes_no_job_hang(self, site):
        for one in story(steps=60, slow=slice(80, 80)):
            site.push(one)
        eventually(lambda: not site.detectors.n_waiting)
        site.jump(86_400.0)
        time.sleep(0.05)
        assert site.events() == []
        site.now += 36.0
        eventually(lambda: [kind for kind, *_ in site.events()] == ["hang"])
        site.stop()

    def test_a_service_that_was_paused_calls_no_job_hanging(self, site, monkeypatch):
        for one in story(steps=60, slow=slice(80, 80)):
            site.push(one)
        eventually(lambda: not site.detectors.n_waiting)
        monkeypatch.setattr(module, "_AWAY_S", -1.0)  # each turn of its thread is after a pause
        site.now += 300.0
        time.sleep(0.05)
        site.stop()
        assert site.events() == []

    @pytest.mark.parametrize("ahead_s", [60.0, 86_400.0])
    def test_steps_that_began_while_the_clock_was_ahead_do_not_wait_for_it(self, site, ahead_s):
        """Of a job that does not say how many ranks it has, and that goes back to a checkpoint."""
        times = [1.0, 1.0]
        for step in range(20):
            site.push(of_step(step, times, world=0))
        eventually(lambda: not site.detectors.n_waiting)
        site.jump(ahead_s)
        other = replace(site.job, id=jobs.register(site.engine, "default", "new", 1.0).id)

        def push_other(step, ranks=(0, 1)):
            one = of_step(step, times[: len(ranks)], at=site.now, ranks=ranks, world=0)
            end = site.files.append(other.id, one)
            site.detectors.feed(other, replace(one, end=end))

        push_other(0)
        push_other(1, ranks=(0,))
        eventually(lambda: not site.detectors.n_waiting)
        site.jump(-ahead_s)
        assert jobs.by_id(site.engine, other.id)["seen_at"] <= site.now
        site.now += 31.0
        push_other(2)
        eventually(lambda: not site.detectors.n_waiting)
        site.stop()
        assert jobs.by_id(site.engine, other.id)["last_step"] == 2

    def test_a_job_that_went_back_while_the_clock_was_ahead_is_judged_on(self, site):
        for step in range(20):
            site.push(of_step(step, [1.0, 1.0], source=""))
        eventually(lambda: not site.detectors.n_waiting)
        begun = site.now
        site.jump(86_400.0)
        for step in range(10, 16):  # again
            one = of_step(step, [1.0, 1.0], source="", at=site.now)
            site.push(replace(one, number=f"again {step}"))
        eventually(lambda: not site.detectors.n_waiting)
        site.jump(-86_400.0)
        assert site.now == begun
        for step in range(16, 20):
            one = of_step(step, [1.0, 1.0], source="", at=site.now + step)
            site.push(replace(one, number=f"again {step}"))
        eventually(lambda: not site.detectors.n_waiting)
        site.stop()
        rows = site.files.rows(site.job.id)
        assert rows["step"].tolist() == [*range(20), *range(10, 20)]

    @pytest.mark.parametrize("restarts", [1, 2, 3])
    def test_steps_of_a_clock_that_was_ahead_are_no_return_to_a_checkpoint(self, site, restarts):
        """At each start the newest file is read again, with their times of tomorrow."""

        def push(steps):
            for step in steps:
                site.push(of_step(step, [1.0, 1.0], at=site.now + 1.0))
            eventually(lambda: not site.detectors.n_waiting)

        push(range(20))
        site.jump(86_400.0)
        push(range(20, 30))
        site.jump(-86_400.0)
        for number in range(restarts + 1):
            push(range(30 + 10 * number, 40 + 10 * number))
            site.stop()
            site.start()
        site.stop()
        rows = site.files.rows(site.job.id)
        assert rows["step"].tolist() == list(range(40 + 10 * restarts))
        assert set(rows["start"].tolist()) == {0}

    @pytest.mark.parametrize("jump_s", [60.0, -60.0, -86_400.0])
    def test_steps_of_a_clock_that_was_wrong_are_no_return_once_it_is_later(self, site, jump_s):
        """A minute later their times are not ahead any more, but after the saved ones."""

        def push(steps):
            for step in steps:
                site.push(of_step(step, [1.0, 1.0], at=site.now + 0.1))
            eventually(lambda: not site.detectors.n_waiting)

        push(range(20))
        site.jump(jump_s)
        push(range(20, 30))
        site.jump(-jump_s)
        site.stop()  # saved
        site.now += 100.0
        site.start()
        push(range(30, 40))
        site.crash()
        site.now += 100.0
        site.start()
        push(range(40, 50))
        site.stop()
        rows = site.files.rows(site.job.id)
        assert rows["step"].tolist() == list(range(50))
        assert set(rows["start"].tolist()) == {0}

    def test_a_batch_that_comes_as_the_clock_jumps_back_is_not_from_before_a_return(self, site):
        for step in range(20):
            site.push(of_step(step, [1.0, 1.0], source=""))
        for step in range(10, 17):  # again
            one = of_step(step, [1.0, 1.0], source="", at=site.now + 1.0)
            site.push(replace(one, number=f"again {step}"))
        eventually(lambda: not site.detectors.n_waiting)
        site.jump(-60.0)
        for step in range(17, 20):  # it arrived before the detectors knew of the jump
            one = of_step(step, [1.0, 1.0], source="", at=site.now - 1.0)
            site.push(replace(one, number=f"again {step}"))
        eventually(lambda: not site.detectors.n_waiting)
        site.stop()
        rows = site.files.rows(site.job.id)
        assert rows["step"].tolist() == [*range(20), *range(10, 20)]

    def test_a_job_that_ended_does_not_hang(self, site):
        for one in story(steps=60, slow=slice(80, 80)):
            site.push(one)
        while site.detectors.n_waiting:
            time.sleep(0.01)
        jobs.end(site.engine, site.job.id, site.now)
        site.now = 1200.0
        time.sleep(0.05)
        site.stop()
        assert site.events() == []

    def test_workload_explains_a_change_also_after_a_crash(self, site):
        for one in story(steps=150, slow=slice(80, 150)):
            step = int(one.number)
            site.push(replace(one, workload={step: {"tokens": 140.0 if step >= 80 else 100.0}}))
            if step == 90:
                site.crash()
                site.start()
        site.stop()
        assert site.events() == []

    @pytest.mark.parametrize("saved", [False, True])
    def test_restarts_at_any_moment_change_nothing(self, site, saved, monkeypatch):
        if saved:
            monkeypatch.setattr(module, "_SAVE_SAMPLES", 1)
        for one in story():
            site.push(one)
            if int(one.number) % 17 == 5 or 84 <= int(one.number) <= 96:
                site.stop() if int(one.number) % 2 else site.crash()
                site.start()
        site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset", "relief"]
        assert len(site.told) == 2
        series = site.files.series(site.job.id, points=0)
        assert series.step.tolist() == list(range(200))
        assert (series.samples == 4).all()

    def test_events_wait_for_a_store_that_is_away(self, site, monkeypatch):
        real, away = events.add, [True]

        def add(engine, row, held):
            if away[0]:
                raise OSError("gone")
            return real(engine, row)

        monkeypatch.setattr(module.event_rows, "add", add)
        for one in story(steps=110):
            site.push(one)
        site.stop()
        assert site.events() == []
        away[0] = False
        site.start()
        site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset"]

    def test_a_new_start_has_events_of_its_own(self, site):
        for one in story(steps=110):
            site.push(one)
        for one in story(seed=2, steps=110, slow=slice(70, 100)):
            site.push(of_step(int(one.number), one.durations_s, source="two/0", at=one.at + 500))
        site.stop()
        onsets = [since for kind, since, _ in site.events() if kind == "onset"]
        assert len(onsets) == 2
        assert abs(onsets[1] - 70) <= 3

    def test_a_new_start_relieves_who_was_slow(self, site):
        for one in story(steps=110):
            site.push(one)
        site.push(of_step(90, [1.0] * 4, source="two/0", at=2000.0))
        site.stop()
        (onset, *_), (relief, step, ranks) = site.events()
        assert (onset, relief, step, ranks) == ("onset", "relief", 110, (0, 1, 2, 3))
        assert site.row()["slow_since_step"] is None

    @pytest.mark.parametrize("saved", [False, True])
    def test_a_return_to_a_checkpoint_outlives_restarts(self, site, saved, monkeypatch):
        if saved:
            monkeypatch.setattr(module, "_SAVE_SAMPLES", 1)
        first = [of_step(n, [1.0] * 2, source="") for n in range(30)]
        again = [of_step(n, [1.0] * 2, source="", at=1040.0 + n) for n in range(10, 50)]
        for one in first + [replace(each, number=f"again-{each.number}") for each in again]:
            site.push(one)
            if one.steps[0] % 7 == 3:
                site.stop() if one.steps[0] % 2 else site.crash()
                site.start()
        site.stop()
        row = site.row()
        assert (row["last_step"], row["seen_at"]) == (49, 1089.0)
        series = site.files.series(site.job.id, points=0)
        assert series.step[series.start == 1].tolist() == list(range(10, 50))
        assert series.step[~series.lost].tolist() == list(range(50))

    def test_a_stop_does_not_wait_for_ever_and_the_next_start_reads_on(self, site, monkeypatch):
        monkeypatch.setattr("paceline.monitor.detectors.STOP_S", 0.0)
        for one in story(steps=60):
            site.push(one)
        site.stop()
        monkeypatch.undo()
        site.start()
        site.stop()
        assert site.row()["last_step"] == 59

    def test_a_full_disk_holds_the_last_steps_up_and_loses_none(self, site, monkeypatch):
        batches, append, failures = story(steps=60), module.append_rows, []

        def fail_thrice(folder, rows):
            if len(failures) < 3:
                failures.append(len(rows))
                raise OSError(errno.ENOSPC, "No space left on device")
            append(folder, rows)

        for one in batches[:-1]:
            site.push(one)
        eventually(lambda: site.detectors.n_waiting == 0)
        monkeypatch.setattr(module, "append_rows", fail_thrice)
        site.push(batches[-1])  # no other batch follows

        def is_told():
            site.now += 1.0
            return site.row()["last_step"] == 59

        eventually(is_told)
        assert len(failures) == 3
        site.stop()
        series = site.files.series(site.job.id, points=0)
        assert series.step.tolist() == list(range(60))

    def test_a_job_that_has_ended_stays_so_until_new_steps_come(self, site):
        for one in story(steps=10):
            site.push(one)
        jobs.end(site.engine, site.job.id, 1050.0)
        site.stop()  # shows the steps that came before the end
        assert (site.row()["status"], site.row()["last_step"]) == ("ended", 9)
        site.start()
        site.push(of_step(10, [1.0] * 4, at=1100.0))
        site.stop()
        assert (site.row()["status"], site.row()["last_step"]) == ("running", 10)

    def test_too_much_that_waits_is_refused(self, site, monkeypatch):
        from paceline.monitor.refusal import Refusal

        monkeypatch.setattr(module, "MAX_WAITING", 3)
        site.stop()  # nobody works on it
        site.detectors.feed(site.job, of_step(0, [1.0] * 4))
        with pytest.raises(Refusal) as refused:
            site.detectors.check_room("default")
        assert (refused.value.status, refused.value.retry_s) == (429, 5)

    def test_a_flood_of_one_project_does_not_have_the_others_refused(self, site, monkeypatch):
        from paceline.monitor.refusal import Refusal

        monkeypatch.setattr(module, "MAX_WAITING", 8)
        site.stop()  # nobody works on it
        for step in range(3):
            site.detectors.check_room("default")
            site.detectors.feed(site.job, of_step(step, [1.0] * 4))
        with pytest.raises(Refusal):
            site.detectors.check_room("default")
        other = replace(site.job, id=site.job.id + 1, project="vision")
        site.detectors.check_room("vision")
        site.detectors.feed(other, of_step(0, [1.0] * 4))
        site.detectors.check_room("vision")  # half of the room is its
        site.detectors.feed(other, of_step(1, [1.0] * 4))
        with pytest.raises(Refusal):
            site.detectors.check_room("vision")
        site.detectors.check_room("a third one")
        assert site.detectors.n_waiting == 20


def test_a_pulse_is_overdue_after_three_steps_and_thirty_seconds_more_than_usual():
    pulse = Pulse()
    for at in (100.0, 102.0, 104.0, 106.0):
        pulse.beat(at)
    assert pulse.overdue_s(106 + 2 + 3 * 1.5 + 30, 1.5) is None
    assert pulse.overdue_s(106 + 2 + 3 * 1.5 + 30.1, 1.5) == pytest.approx(36.6)
    assert pulse.overdue_s(1000.0, float("nan")) is None  # what a step takes is not known
    pulse.listen(999.0)  # the service was away
    assert pulse.overdue_s(1000.0, 1.5) is None
    pulse.tell()
    assert pulse.overdue_s(9999.0, 1.5) is None
