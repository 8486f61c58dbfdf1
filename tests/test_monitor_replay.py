"""A snapshot that does not fit is no end of detection: the step files are read anew."""

import io
import json
import logging
import zipfile

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from paceline.detect.detector import STATE_VERSION, Detector
from paceline.errors import StateError
from paceline.monitor import detectors as module
from paceline.monitor import replay, step_files
from paceline.monitor import step_stream as streams
from paceline.monitor.snapshot import SNAPSHOT, load_stream, save_stream
from paceline.monitor.step_series import ROW, append_rows
from paceline.monitor.step_stream import Stream
from paceline.monitor.store import events
from step_batches import of_step
from test_monitor_detectors import Site, story

SAID = "detector rebuilt from step files"


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.engine.dispose()


def with_about(path, change):
    """Change the numbers and texts of a snapshot."""
    with np.load(path) as saved:
        arrays = dict(saved)
    about = json.loads(str(arrays.pop("about")))
    change(about, arrays)
    np.savez(path, about=np.array(json.dumps(about)), **arrays)


def renamed(path):
    """As a version would leave it that has another attribute."""
    with_about(path, lambda _, arrays: arrays.update(off=arrays.pop("detector.floats")))


def other_shape(path):
    def change(_, arrays):
        arrays["detector.number"] = arrays["detector.number"][:-1]

    with_about(path, change)


def newer(path):
    with_about(path, lambda about, _: about.update(version=streams.STATE_VERSION + 1))


def newer_detector(path):
    with_about(path, lambda about, _: about["detector"].update(version=STATE_VERSION + 1))


def truncated(path):
    path.write_bytes(path.read_bytes()[:5000])


def random_bytes(path):
    path.write_bytes(np.random.default_rng(0).bytes(16_000))


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGES = (renamed, other_shape, newer, newer_detector, truncated, random_bytes, flipped)


def events_of(detector, times):
    found = [event for step, row in enumerate(times) for event in detector.update(step, row)]
    return [(event.kind, event.step, event.rank) for event in found]


class TestDetectors:
    @pytest.mark.parametrize("damage", DAMAGES)
    @pytest.mark.parametrize("at", [60, 115, 165])
    def test_detection_goes_on(self, site, damage, at, caplog):
        for one in story():
            if int(one.number) == at:
                site.stop()
                damage(site.files.path(site.job.id) / SNAPSHOT)
                site.start()
            site.push(one)
        with caplog.at_level(logging.WARNING):
            site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset", "relief"]
        assert len(site.told) == 2
        (_, since, ranks), (_, until, _) = site.events()
        assert ranks == (0, 1, 2, 3)
        assert abs(since - 80) <= 3
        assert abs(until - 130) <= 3
        assert site.files.series(site.job.id, points=0).step.tolist() == list(range(200))
        assert [r.message for r in caplog.records].count(SAID) == 1
        assert load_stream(site.files.path(site.job.id)).last_step == 199

    def test_what_it_found_before_is_what_an_undisturbed_one_finds(self, site, tmp_path):
        for one in story(steps=110):
            site.push(one)
        site.stop()
        folder = site.files.path(site.job.id)
        undisturbed = load_stream(folder).state_dict()
        newer(folder / SNAPSHOT)
        site.start()
        site.stop()
        rebuilt = load_stream(folder).state_dict()
        for name, value in undisturbed["detector"].items():
            assert np.array_equal(
                rebuilt["detector"][name], value, equal_nan=isinstance(value, np.ndarray)
            )

    def test_starts_are_numbered_on_where_the_files_begin_later(self, site, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 1000)
        for one in story(steps=110):
            site.push(one)
        for one in story(seed=2, slow=slice(100, 150)):
            site.push(of_step(int(one.number), one.durations_s, source="two/0", at=one.at + 500))
            if int(one.number) == 185:
                site.stop()
                assert site.files.path(site.job.id).joinpath("00000000.steps").exists() is False
                renamed(site.files.path(site.job.id) / SNAPSHOT)
                site.start()
        site.stop()
        found = [(kind, round(since, -1)) for kind, since, _ in site.events()]
        assert found == [("onset", 80), ("relief", 110), ("onset", 100), ("relief", 150)]
        assert load_stream(site.files.path(site.job.id)).start == 1
        series = site.files.series(site.job.id, points=0)
        assert series.step[series.start == 1].tolist() == list(range(200))

    def test_an_onset_that_is_found_some_steps_off_is_the_same(self, site, monkeypatch):
        """The detector of the next release is surer of itself before it says anything."""
        times = 1 + 0.02 * np.random.default_rng(0).normal(size=(400, 2))
        times[250:330] *= 1.3

        class NextDetector(Detector):
            def __init__(self, ranks, threshold=0.28, warm_up=50, like=()):
                super().__init__(ranks, threshold=threshold, warm_up=warm_up, like=like)

        assert events_of(Detector(2), times) != events_of(NextDetector(2), times)
        for step, row in enumerate(times):
            if step == 390:
                site.stop()
                before = site.events()
                newer(site.files.path(site.job.id) / SNAPSHOT)
                monkeypatch.setattr(streams, "Detector", NextDetector)
                site.start()
            site.push(of_step(step, row))
        site.stop()
        assert load_stream(site.files.path(site.job.id)).detector.threshold == 0.28
        assert site.events() == before
        assert len(site.told) == len(before) == 2

    def test_only_the_last_steps_are_read(self, site, monkeypatch):
        monkeypatch.setattr(replay, "STEPS", 100)
        for one in story(steps=400):
            if int(one.number) == 390:
                site.stop()
                newer(site.files.path(site.job.id) / SNAPSHOT)
                site.start()
            site.push(one)
        site.stop()
        assert load_stream(site.files.path(site.job.id)).detector.steps == 110
        assert [kind for kind, *_ in site.events()] == ["onset", "relief"]
        assert site.files.series(site.job.id, points=0).step.tolist() == list(range(400))

    @pytest.mark.parametrize("again", [False, True])
    def test_a_fail_slow_that_began_before_the_files_goes_on(self, site, monkeypatch, again):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 1000)
        for one in story(steps=500, slow=slice(80, 400)):
            if int(one.number) == 250 or (again and int(one.number) == 350):
                site.stop()
                path = site.files.path(site.job.id) / SNAPSHOT
                if int(one.number) == 250:
                    assert not path.with_name("00000000.steps").exists()
                    newer(path)
                site.start()
            site.push(one)
            if int(one.number) == 390:
                site.stop()
                row = site.row()
                assert row["slow_since_step"] == pytest.approx(80, abs=3)
                assert row["healthy_s"] == pytest.approx(1.0, abs=0.01)
                site.start()
        site.stop()
        (onset, *_), (relief, until, ranks) = site.events()
        assert (onset, relief, ranks) == ("onset", "relief", (0, 1, 2, 3))
        assert 400 <= until <= 410
        assert site.row()["slow_since_step"] is None
        healthy_s = site.files.series(site.job.id, points=0).healthy_s[100:390]
        assert healthy_s == pytest.approx(np.ones(290), abs=0.01)
        text = events.list_events(site.engine, "*", site.job.id, None, 1)[0]["text"]
        assert text == f"step {until}: healthy again since step {until}"

    def test_what_was_not_stored_is(self, site, monkeypatch):
        """Crashed behind the series, before the store: nothing but the files knows of the onset."""
        monkeypatch.setattr(module.event_rows, "add", lambda *_: 1 / 0)
        for one in story(steps=110):
            site.push(one)
        site.crash()
        monkeypatch.undo()
        save_stream(Stream(), site.files.path(site.job.id))
        newer(site.files.path(site.job.id) / SNAPSHOT)
        site.start()
        site.stop()
        assert [kind for kind, *_ in site.events()] == ["onset"]


class TestLoadStream:
    def test_every_damage_is_a_state_error_or_none_at_all(self, tmp_path):
        stream = Stream()
        for step in range(60):
            list(stream.take(of_step(step, [1.0, 1.1])))
        save_stream(stream, tmp_path)
        path = tmp_path / SNAPSHOT
        content, rng = path.read_bytes(), np.random.default_rng(1)
        for _ in range(300):
            broken = bytearray(content)
            for place in rng.integers(0, len(content), rng.integers(1, 20)):
                broken[place] = rng.integers(256)
            end = rng.integers(1, len(content)) if rng.random() < 0.3 else len(content)
            path.write_bytes(broken[:end])
            try:
                loaded = load_stream(tmp_path)
            except StateError:
                continue
            list(loaded.take(of_step(60, [1.0, 1.1])))

    @pytest.mark.parametrize("name", ["paused", "anchor", "x", "last_step", "threshold"])
    def test_fields_are_checked_one_by_one(self, tmp_path, name):
        stream = Stream()
        for step in range(60):
            list(stream.take(of_step(step, [1.0, 1.1])))
        good = stream.state_dict()
        assert Stream.from_state_dict(good).last_step == 59
        for wrong in (None, "1", np.full(3, np.inf), np.inf, [1, 2], True):
            if name == "last_step" and wrong is None:
                continue  # the first step is still to come
            state = {**good, "detector": {**good["detector"], name: wrong}}
            with pytest.raises(StateError, match=name):
                Stream.from_state_dict(state)

    def test_values_that_cannot_be_are_refused(self):
        stream = Stream()
        for step in range(60):
            list(stream.take(of_step(step, [1.0, 1.1])))
        state = stream.state_dict()
        state["detector"]["wholes"][1] = -1
        with pytest.raises(StateError, match="detector: wholes has a negative count"):
            Stream.from_state_dict(state)

    def test_the_file_says_what_it_is(self, tmp_path):
        save_stream(Stream(), tmp_path)
        with zipfile.ZipFile(tmp_path / SNAPSHOT) as archive:
            about = json.loads(str(np.load(io.BytesIO(archive.read("about.npy")))))
        assert (about["schema"], about["version"]) == ("paceline-stream", 2)


class TestReplaySince:
    def rows(self, folder, slow):
        rows = np.zeros(60_000, ROW)
        rows["step"] = np.arange(60_000)
        rows["at"] = 1000.0 + np.arange(60_000)
        rows["healthy_s"], rows["median_s"] = 1.0, 1.0
        rows["median_s"][slow] = 1.5
        append_rows(folder, rows)

    def test_the_last_steps_of_many(self, tmp_path):
        assert replay.replay_since(tmp_path) == 0.0
        self.rows(tmp_path, slice(0, 0))
        assert replay.replay_since(tmp_path) == 1000.0 + 60_000 - replay.STEPS

    def test_it_begins_before_a_fail_slow(self, tmp_path):
        self.rows(tmp_path, slice(35_000, 60_000))
        first = replay.replay_since(tmp_path) - 1000.0
        assert 35_000 - 1024 < first <= 35_000 - 50

    def test_or_with_all_there_is(self, tmp_path):
        self.rows(tmp_path, slice(0, 60_000))
        assert replay.replay_since(tmp_path) == 0.0
