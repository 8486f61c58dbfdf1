"""Step times: on disk before they are acknowledged, once each, and judged as they come."""

import errno
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="the monitor is an extra")

from paceline.errors import OutputError
from paceline.monitor import detectors as module
from paceline.monitor import step_files
from paceline.monitor.bus import Bus
from paceline.monitor.detectors import Detectors
from paceline.monitor.step_files import Batch, StepFile, StepFiles, decode, encode
from paceline.monitor.step_series import ROW, append_rows, read_series
from paceline.monitor.store import events, jobs
from paceline.monitor.store.database import open_database
from paceline.monitor.stream import PATIENCE_S, Closed, Stream, load_stream


def batch(number, steps, ranks, seconds=1.0, *, source="start/0", at=1000.0, world=0):
    steps, ranks = np.array(steps, np.int64), np.array(ranks, np.int32)
    return Batch(
        source,
        str(number),
        at,
        steps,
        ranks,
        np.broadcast_to(np.float32(seconds), steps.shape),
        world,
    )


def of_step(step, seconds, *, source="start/0", at=None, ranks=None, world=None):
    """One step of all ranks."""
    n = len(seconds)
    return Batch(
        source,
        f"{step}",
        1000.0 + step if at is None else at,
        np.full(n, step, np.int64),
        np.arange(n, dtype=np.int32) if ranks is None else np.array(ranks, np.int32),
        np.array(seconds, np.float32),
        n if world is None else world,
    )


def same(one, two):
    arrays = ("steps", "ranks", "durations_s")
    return all(np.array_equal(getattr(one, a), getattr(two, a)) for a in arrays) and (
        (one.source, one.number, one.at, one.world) == (two.source, two.number, two.at, two.world)
    )


class TestFile:
    def test_a_batch_comes_back_as_it_was(self, tmp_path):
        rng = np.random.default_rng(0)
        sent = [
            Batch(
                "a/ä",
                str(n),
                n / 7,
                rng.integers(0, 2**52, 50),
                rng.integers(0, 10**7, 50).astype("i4"),
                rng.normal(size=50).astype("f4"),
                n,
            )
            for n in range(3)
        ]
        assert all(same(decode(encode(one)), one) for one in sent)
        file = StepFile(tmp_path)
        assert [file.append(one) for one in sent] == [True] * 3
        file.close()
        assert all(same(*pair) for pair in zip(StepFile(tmp_path).read(), sent, strict=True))

    def test_a_repeated_batch_counts_once_also_after_a_restart(self, tmp_path):
        file = StepFile(tmp_path)
        assert file.append(batch(1, [1], [0]))
        assert not file.append(batch(1, [1], [0]))
        assert file.append(batch(1, [1], [0], source="start/1"))
        file.close()
        file = StepFile(tmp_path)
        assert not file.append(batch(1, [1], [0]))
        assert len(list(file.read())) == 2

    def test_whatever_a_crash_leaves_of_the_last_batch_goes(self, tmp_path):
        whole, last = encode(batch(1, [1, 1], [0, 1])), encode(batch(2, [2, 2], [0, 1]))
        for cut in range(len(last)):
            folder = tmp_path / str(cut)
            folder.mkdir()
            path = folder / "00000000.steps"
            path.write_bytes(whole + last[:cut])
            file = StepFile(folder)
            assert [one.number for one in file.read()] == ["1"]
            assert file.append(batch(2, [2, 2], [0, 1]))
            assert path.read_bytes() == whole + last
            file.close()
            shutil.rmtree(folder)

    def test_a_flipped_bit_ends_the_file_there(self, tmp_path):
        blocks = [encode(batch(n, [n], [0])) for n in range(3)]
        for at in range(len(blocks[1])):
            damaged = bytearray(blocks[1])
            damaged[at] ^= 4
            (tmp_path / "00000000.steps").write_bytes(blocks[0] + bytes(damaged) + blocks[2])
            file = StepFile(tmp_path)
            assert [one.number for one in file.read()] == ["0"]
            file.close()

    def test_old_segments_go_and_the_newest_stay(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 200)
        monkeypatch.setattr(step_files, "SEGMENTS", 3)
        file = StepFile(tmp_path)
        for n in range(50):
            file.append(batch(n, [n], [0]))
        kept = [int(one.number) for one in file.read()]
        assert len(file.segments()) == 3
        assert kept == list(range(kept[0], 50))
        assert kept[0] > 30

    def test_a_full_disk_takes_nothing_and_then_goes_on(self, tmp_path, monkeypatch):
        file = StepFile(tmp_path)
        file.append(batch(1, [1], [0]))
        real, parts = os.write, []

        def full(number, data):
            parts.append(1)
            if len(parts) % 2:
                return real(number, bytes(data[:10]))
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        for _ in range(3):
            with pytest.raises(OutputError, match="No space left"):
                file.append(batch(2, [2], [0]))
        monkeypatch.undo()
        assert file.append(batch(2, [2], [0]))
        file.close()
        assert [one.number for one in StepFile(tmp_path).read()] == ["1", "2"]

    def test_what_a_failed_fsync_may_have_lost_is_not_acknowledged(self, tmp_path, monkeypatch):
        file = StepFile(tmp_path)
        file.append(batch(1, [1], [0]))

        def fail(number):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError):
            file.append(batch(2, [2], [0]))
        monkeypatch.undo()
        assert [one.number for one in file.read()] == ["1"]
        assert file.append(batch(2, [2], [0]))
        assert [one.number for one in file.read()] == ["1", "2"]

    def test_threads_share_a_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 2000)
        monkeypatch.setattr(step_files, "SEGMENTS", 1000)
        file = StepFile(tmp_path)
        new = []

        def push(first):
            new.extend(file.append(batch(n, [n], [0])) for n in range(first, first + 40))

        threads = [threading.Thread(target=push, args=(20 * t,)) for t in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [int(one.number) for one in file.read()]
        assert sorted(numbers) == list(range(140))
        assert sum(new) == 140

    def test_files_of_many_jobs_are_not_all_open(self, tmp_path):
        files = StepFiles(tmp_path, most_open=3)
        for job in range(10):
            assert files.append(job, batch(0, [job], [0]))
        assert len(files._open) == 3
        assert not files.append(2, batch(0, [2], [0]))
        assert sorted(files.job_ids()) == list(range(10))
        files.close()

    def test_only_old_segments_are_removed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 10)
        files = StepFiles(tmp_path)
        for n in range(4):
            files.append(1, batch(n, [n], [0]))
        for path in files.path(1).glob("*.steps"):
            os.utime(path, (50, 50))
        assert files.remove_older(1, 40) == 0
        assert files.remove_older(1, 60) > 0
        assert self.read(files) == []
        assert files.written_at(1) == 0.0
        numbers = [path.name for path in files.path(1).glob("*.steps")]
        assert files.remove_older(1, 1e12) == 0
        assert [path.name for path in files.path(1).glob("*.steps")] == numbers
        assert files.append(1, batch(9, [9], [0]))
        assert [one.number for one in self.read(files)] == ["9"]
        files.close()
        again = StepFiles(tmp_path)
        assert not again.append(1, batch(9, [9], [0]))
        again.close()

    def read(self, files):
        with files.of(1) as file:
            return list(file.read())


class TestSeries:
    def rows(self, steps, start=0):
        rows = np.zeros(len(steps), ROW)
        rows["step"], rows["start"], rows["max_s"], rows["at"] = steps, start, steps, steps
        return rows

    def test_a_torn_row_is_cut_off(self, tmp_path):
        append_rows(tmp_path, self.rows([1, 2]))
        with (tmp_path / "series.rows").open("ab") as file:
            file.write(b"half")
        append_rows(tmp_path, self.rows([3]))
        assert read_series(tmp_path).step.tolist() == [1, 2, 3]

    def test_few_points_show_the_slowest_and_the_newest(self, tmp_path):
        rows = self.rows(np.arange(10_000))
        rows["max_s"] = 1.0
        rows["max_s"][1234] = 9.0
        append_rows(tmp_path, rows)
        series = read_series(tmp_path, points=50)
        assert len(series.step) == 50
        assert 1234 in series.step
        assert series.step[-1] == 9999
        assert read_series(tmp_path, first=5, last=7).step.tolist() == [5, 6, 7]

    def test_only_the_last_start_is_shown(self, tmp_path):
        append_rows(tmp_path, self.rows([1, 2, 3]))
        append_rows(tmp_path, self.rows([2, 3], start=1))
        assert read_series(tmp_path).step.tolist() == [2, 3]


class TestStream:
    def closed(self, stream, *batches):
        found = (c for one in batches for c in stream.take(one))
        return [int(c.row["step"]) for c in found if isinstance(c, Closed)]

    def test_steps_are_closed_in_order_once_all_ranks_have_told(self):
        stream = Stream()
        assert self.closed(stream, batch(0, [1, 0], [0, 0], world=2)) == []
        assert self.closed(stream, batch(1, [1], [1], world=2)) == []
        assert self.closed(stream, batch(2, [0], [1], world=2)) == [0, 1]
        assert self.closed(stream, batch(3, [0, 1], [0, 1], world=2)) == []  # told already

    def test_a_rank_that_is_silent_is_waited_for_but_not_for_ever(self):
        stream = Stream()
        self.closed(stream, batch(0, [0, 0], [0, 1], world=2))
        assert self.closed(stream, batch(1, [1], [0], at=1001.0, world=2)) == []
        assert [int(c.row["samples"]) for c in stream.close_due(1001.0 + PATIENCE_S)] == [1]

    def test_a_new_start_begins_again_and_the_old_one_is_not_heard(self):
        stream = Stream()
        assert self.closed(stream, *(of_step(n, [1.0], source="one/0") for n in range(5))) == list(
            range(5)
        )
        assert self.closed(stream, of_step(2, [1.0], source="two/0", at=1010)) == [2]
        assert stream.start == 1
        assert self.closed(stream, of_step(9, [1.0], source="one/0", at=1011)) == []
        assert self.closed(stream, of_step(3, [1.0], source="two/0", at=1012)) == [3]

    @pytest.mark.parametrize("source", ["", "one/0"])
    def test_a_return_to_a_checkpoint_is_a_new_start(self, source):
        stream = Stream()
        times = [of_step(n, [1.0], source=source) for n in range(50)]
        assert self.closed(stream, *times) == list(range(50))
        again = [of_step(n, [1.0], source=source, at=2000.0 + n) for n in range(30, 45)]
        assert self.closed(stream, again[0], again[0], again[1]) == []  # repeated, it may be
        assert (stream.start, stream.seen_at) == (0, 2031.0)
        assert self.closed(stream, *again[2:]) == list(range(30, 45))
        assert (stream.start, stream.last_step) == (1, 44)

    def test_a_rank_that_is_late_is_no_new_start(self):
        stream = Stream()
        self.closed(stream, of_step(0, [1.0, 1.0]))
        for n in range(1, 40):
            list(stream.take(of_step(n, [1.0], ranks=[0], world=2)))
        list(stream.close_due(9000.0))
        late = [of_step(n, [1.0], ranks=[1], world=2, at=9000.0) for n in range(1, 40)]
        assert self.closed(stream, *late) == []
        assert (stream.start, stream.last_step) == (0, 39)

    def test_the_first_source_with_a_session_that_goes_back_is_a_new_start(self):
        stream = Stream()
        self.closed(stream, *(of_step(n, [1.0], source="s") for n in range(50)))
        assert self.closed(stream, of_step(1, [1.0], source="start-2/0", at=2000.0)) == [1]
        assert stream.start == 1

    def test_it_is_saved_and_goes_on_as_if_nothing_had_happened(self, tmp_path):
        rng = np.random.default_rng(3)
        times = 1 + 0.01 * rng.normal(size=(150, 4))
        times[80:120] *= 1.5
        whole, cut = Stream(), Stream()
        found = {whole: [], cut: []}
        for step, row in enumerate(times):
            if step % 7 == 3:
                cut.save(tmp_path)
                found[loaded] = found.pop(cut) if (loaded := load_stream(tmp_path)) else []
                cut = loaded
            for stream in (whole, cut):
                for closed in stream.take(of_step(step, row)):
                    found[stream] += closed.events
        assert [(e.kind, e.step, e.rank) for e in found[whole]] == [
            (e.kind, e.step, e.rank) for e in found[cut]
        ]
        assert {e.kind for e in found[cut]} == {"onset", "relief"}

    @pytest.mark.parametrize("content", [b"", b"PK\3\4", b"x" * 100])
    def test_a_damaged_snapshot_is_as_none(self, tmp_path, content):
        (tmp_path / "detector.npz").write_bytes(content)
        assert load_stream(tmp_path).last_step == -1

    def test_ranks_that_join_late_are_judged_with_the_others(self):
        stream = Stream()
        for step in range(60):
            list(stream.take(of_step(step, [1.0, 1.0], world=0, at=1000.0 + 10 * step)))
        for step in range(60, 120):
            list(stream.take(of_step(step, [1.0, 1.0, 1.0], world=0, at=1000.0 + 10 * step)))
        assert stream.ranks.tolist() == [0, 1, 2]
        assert stream.last_step == 119
        assert stream.detector.ranks == 3


class Site:
    """Detectors on a store and files of their own, restarted at will."""

    def __init__(self, folder):
        self.folder, self.now = folder, 0.0
        self.engine = open_database(f"sqlite:///{folder / 'db'}")
        self.job = jobs.register(self.engine, "default", "job", 1.0)
        self.told = []
        self.start()

    def start(self):
        self.files = StepFiles(self.folder / "steps")
        self.detectors = Detectors(
            self.engine, self.files, Bus(), lambda: self.now, lambda *it: self.told.append(it)
        )
        self.detectors.start()
        self.detectors.resume([self.job])

    def push(self, one):
        self.now = max(self.now, one.at)
        if self.files.append(self.job.id, one):
            self.detectors.feed(self.job, one)

    def crash(self):
        """Without saving anything."""
        self.detectors._tick = lambda *_, **__: None
        self.detectors.stop()
        self.files.close()

    def stop(self):
        self.detectors.stop()
        self.files.close()

    def events(self):
        found = events.listed(self.engine, "*", self.job.id, None, 100)
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

        def add(engine, row):
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
        assert site.files.series(site.job.id, points=0).step.tolist() == list(range(10, 50))

    def test_a_stop_does_not_wait_for_ever_and_the_next_start_reads_on(self, site, monkeypatch):
        monkeypatch.setattr("paceline.monitor.detectors.STOP_S", 0.0)
        for one in story(steps=60):
            site.push(one)
        site.stop()
        monkeypatch.undo()
        site.start()
        site.stop()
        assert site.row()["last_step"] == 59

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

        monkeypatch.setattr(module, "MOST_WAITING", 3)
        site.stop()  # nobody works on it
        site.detectors.feed(site.job, of_step(0, [1.0] * 4))
        with pytest.raises(Refusal) as refused:
            site.detectors.check_room()
        assert (refused.value.status, refused.value.retry_s) == (429, 5)
