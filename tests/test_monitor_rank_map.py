"""How each rank compared with the others, over a job's life: bounded, and exact over restarts."""

import logging
import os

import numpy as np
import pytest

import requires

requires.installed("sqlalchemy")

from paceline.errors import StateError
from paceline.monitor import detectors as module
from paceline.monitor import rank_file, step_files
from paceline.monitor.backup import restore_backup, write_backup
from paceline.monitor.check import problems
from paceline.monitor.config import Config
from paceline.monitor.rank_file import NAME, load_rank_map, remove_older_bins, save_rank_map
from paceline.monitor.rank_map import MAX_BINS, RankMap
from paceline.monitor.snapshot import SNAPSHOT
from paceline.monitor.step_files import StepFiles
from paceline.monitor.step_series import ROW
from step_batches import of_step
from test_monitor_detectors import Site, story
from test_monitor_replay import flipped, random_bytes, truncated, with_about

SAID = "rank map rebuilt from step files"


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.engine.dispose()


def add(rank_map, step, durations_s, *, start=0, ranks=None):
    durations_s = np.array(durations_s, dtype=np.float64)
    row = np.zeros((), ROW)
    row["step"], row["start"], row["at"] = step, start, 1000.0 + step
    row["median_s"] = np.nanmedian(durations_s)
    ranks = np.arange(len(durations_s)) if ranks is None else ranks
    rank_map.add(row, np.array(ranks, np.int32), durations_s)


def expected(times, size):
    """The same by hand: [bin, rank] means of the ratios, a bin of ``size`` steps each."""
    ratios = times / np.median(times, axis=1, keepdims=True)
    return np.array([ratios[i : i + size].mean(axis=0) for i in range(0, len(times), size)])


def same(one, two):
    return (
        np.array_equal(one.ranks, two.ranks)
        and np.array_equal(one.bins, two.bins)
        and np.array_equal(one.values, two.values, equal_nan=True)
    )


class TestMap:
    def test_few_steps_are_a_bin_each(self):
        rank_map = RankMap()
        add(rank_map, 7, [1.0, 2.0, 4.0])
        add(rank_map, 8, [3.0, 3.0, 6.0])
        found = rank_map.read()
        assert found.ranks.tolist() == [0, 1, 2]
        assert found.bins["first"].tolist() == found.bins["last"].tolist() == [7, 8]
        assert found.values.tolist() == [[0.5, 1.0, 2.0], [1.0, 1.0, 2.0]]

    @pytest.mark.parametrize("steps", [MAX_BINS, MAX_BINS + 1, 3000, 10_000])
    def test_many_steps_share_bins_and_their_mean_stays(self, steps):
        rng = np.random.default_rng(steps)
        times = rng.lognormal(0, 0.05, size=(steps, 6))
        times[steps // 2 :, 3] *= 1.4
        rank_map = RankMap()
        for step, row in enumerate(times):
            add(rank_map, step, row)
        found = rank_map.read()
        assert MAX_BINS / 2 <= len(found.bins) <= MAX_BINS
        assert rank_map.size == 2 ** max(0, int(np.ceil(np.log2(steps / MAX_BINS))))
        assert found.bins["steps"].sum() == steps
        wanted = expected(times, rank_map.size)
        # Half-precision digits of what is above or below the median, rounded at each merge.
        assert np.abs(found.values - wanted).max() < 6e-4
        assert rank_map.n_bytes <= (2 * MAX_BINS + 12) * 6

    def test_ranks_that_come_later_or_tell_nothing_have_no_value(self):
        rank_map = RankMap()
        add(rank_map, 0, [1.0, 1.0], ranks=[0, 2])
        add(rank_map, 1, [1.0, np.nan, 1.0, 3.0, 1.0], ranks=[0, 1, 2, 3, 4])
        found = rank_map.read()
        nan = np.nan
        wanted = [[1, nan, 1, nan, nan], [1, nan, 1, 3, 1]]
        assert np.array_equal(found.values, np.array(wanted, np.float32), equal_nan=True)

    def test_a_bin_of_two_weighs_a_rank_by_the_steps_it_told(self):
        rank_map = RankMap()
        add(rank_map, 0, [2.0, 1.0, 1.0])
        rank_map.size = 3  # as after merges
        add(rank_map, 1, [np.nan, 1.0, 1.0])
        add(rank_map, 2, [1.0, 1.0, 1.0])
        (values,) = rank_map.read().values
        assert values.tolist() == [1.5, 1.0, 1.0]

    def test_a_step_counts_once(self):
        rank_map = RankMap()
        for step in (0, 1, 1, 0, 2):
            add(rank_map, step, [1.0, 1.0, 1.0 + step])
        assert rank_map.read().bins["first"].tolist() == [0, 1, 2]

    def test_a_restart_begins_a_bin_and_runs_steps_again(self):
        rank_map = RankMap()
        rank_map.size = 4
        for start, steps in ((0, range(6)), (1, range(2, 5))):
            for step in steps:
                add(rank_map, step, [1.0, 1.0, 1.0 + start], start=start)
        bins = rank_map.read().bins
        told = bins[["start", "first", "last", "steps"]].tolist()
        assert told == [(0, 0, 3, 4), (0, 4, 5, 2), (1, 2, 4, 3)]
        assert rank_map.read(first=5).bins["start"].tolist() == [0]
        assert rank_map.read(last=2).bins["first"].tolist() == [0, 2]

    def test_more_starts_than_bins_share_them(self):
        rank_map = RankMap()
        for start in range(3 * MAX_BINS):
            add(rank_map, 0, [1.0, 1.0, 2.0], start=start)
        found = rank_map.read()
        assert len(found.bins) <= MAX_BINS
        assert found.bins["steps"].sum() == 3 * MAX_BINS
        assert (found.values[:, 2] == 2).all()

    def test_ten_thousand_ranks_fit(self):
        rank_map, rng = RankMap(), np.random.default_rng(0)
        for step in range(600):
            add(rank_map, step, rng.normal(1, 0.01, size=10_000))
        assert rank_map.n_bytes < 11 << 20


class TestFile:
    def filled(self, steps=1300):
        rank_map, rng = RankMap(), np.random.default_rng(1)
        for step in range(steps):
            add(rank_map, step, rng.normal(1, 0.01, size=5))
        return rank_map

    def test_it_comes_back_as_it_was_and_goes_on(self, tmp_path):
        one = self.filled()
        save_rank_map(one, tmp_path)
        two = load_rank_map(tmp_path)
        assert same(one.read(), two.read())
        for step in range(1300, 3000):
            for each in (one, two):
                add(each, step, [1.0, 1.0, 1.0, 1.0, 1.5])
        assert same(one.read(), two.read())

    def test_nothing_is_there(self, tmp_path):
        assert load_rank_map(tmp_path) is None

    @pytest.mark.parametrize("damage", [truncated, random_bytes, flipped])
    def test_a_damaged_file_is_named(self, tmp_path, damage):
        save_rank_map(self.filled(), tmp_path)
        damage(tmp_path / NAME)
        with pytest.raises(StateError, match=NAME):
            load_rank_map(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda about, _: about.update(version=2),
            lambda about, _: about.update(counted=[0]),
            lambda about, _: about.update(counted=[0, 1.5]),
            lambda about, _: about.update(size=0),
            lambda _, arrays: arrays.update(ranks=arrays["ranks"][::-1]),
            lambda _, arrays: arrays.update(ranks=arrays["ranks"][1:]),
            lambda _, arrays: arrays.update(bins=arrays["bins"][2:]),
            lambda _, arrays: arrays.update(bins=arrays["bins"][::-1]),
            lambda _, arrays: arrays.update(bins=arrays["bins"]["first"]),
            lambda _, arrays: arrays.update(excess=arrays["excess"].astype("f4")),
            lambda _, arrays: arrays.update(more=np.zeros(1)),
        ],
    )
    def test_what_does_not_fit_is_named(self, tmp_path, change):
        save_rank_map(self.filled(), tmp_path)
        with_about(tmp_path / NAME, change)
        with pytest.raises(StateError, match="paceline-rank-map"):
            load_rank_map(tmp_path)

    def test_old_bins_go(self, tmp_path):
        save_rank_map(self.filled(100), tmp_path)
        remove_older_bins(tmp_path, 1040.0)
        assert load_rank_map(tmp_path).read().bins["first"].tolist() == list(range(40, 100))


def undisturbed(steps):
    rank_map = RankMap()
    for one in steps:
        add(rank_map, int(one.steps[0]), one.durations_s.astype(np.float64))
    return rank_map.read()


class TestDetectors:
    @pytest.mark.parametrize("saved", [False, True])
    def test_restarts_at_any_moment_change_nothing(self, site, saved, monkeypatch):
        if saved:
            monkeypatch.setattr(module, "_SAVE_SAMPLES", 1)
        monkeypatch.setattr("paceline.monitor.rank_map.MAX_BINS", 32)
        for one in story(steps=200):
            site.push(one)
            if int(one.number) % 29 == 5:
                site.stop() if int(one.number) % 2 else site.crash()
                site.start()
        site.stop()
        found, wanted = site.detectors.ratios(site.job), undisturbed(story(steps=200))
        assert np.array_equal(found.bins, wanted.bins)
        assert np.array_equal(found.values, wanted.values)

    def test_a_crash_between_the_map_and_the_snapshot_counts_no_step_twice(self, site, monkeypatch):
        for one in story(steps=60):
            site.push(one)
        site.stop()
        folder = site.files.path(site.job.id)
        before = (folder / SNAPSHOT).read_bytes()
        site.start()
        for one in story(steps=120)[60:]:
            site.push(one)
        site.stop()
        (folder / SNAPSHOT).write_bytes(before)
        site.start()
        site.stop()
        found = site.detectors.ratios(site.job)
        assert found.bins["first"].tolist() == list(range(120))
        assert (found.bins["steps"] == 1).all()

    @pytest.mark.parametrize("damage", [truncated, random_bytes, flipped, os.unlink])
    def test_a_damaged_map_is_made_anew_from_batches(self, site, damage, caplog):
        for one in story(steps=165):
            site.push(one)
        site.stop()
        before = site.detectors.ratios(site.job)
        damage(site.files.path(site.job.id) / NAME)
        site.start()
        with caplog.at_level(logging.WARNING):
            for one in story(steps=200)[165:]:
                site.push(one)
            site.stop()
        assert [r.message for r in caplog.records].count(SAID) == 1
        found, wanted = site.detectors.ratios(site.job), undisturbed(story(steps=200))
        assert len(before.bins) == 165
        assert np.array_equal(found.bins, wanted.bins)
        assert np.allclose(found.values, wanted.values, atol=1e-6)
        site.start()  # it is saved: nothing is made anew now
        site.stop()
        assert [r.message for r in caplog.records].count(SAID) == 1

    def test_a_damaged_map_of_a_job_at_rest_is_made_anew_when_it_is_asked_for(self, site):
        for one in story(steps=50):
            site.push(one)
        site.stop()
        (site.files.path(site.job.id) / NAME).write_bytes(b"x")
        site.start()
        assert len(site.detectors.ratios(site.job).bins) in (0, 50)
        site.stop()
        assert len(site.detectors.ratios(site.job).bins) == 50

    def test_a_map_that_is_older_than_the_detector_catches_up(self, site):
        for one in story(steps=60):
            site.push(one)
        site.stop()
        folder = site.files.path(site.job.id)
        before = (folder / NAME).read_bytes()
        site.start()
        for one in story(steps=120)[60:]:
            site.push(one)
        site.stop()
        (folder / NAME).write_bytes(before)
        site.start()
        site.stop()
        assert site.detectors.ratios(site.job).bins["first"].tolist() == list(range(120))

    def test_damage_leaves_what_the_batches_that_are_kept_tell(self, site, monkeypatch):
        monkeypatch.setattr(step_files, "SEGMENT_BYTES", 1000)
        for one in story(steps=200):
            site.push(one)
        site.stop()
        assert not site.files.path(site.job.id).joinpath("00000000.steps").exists()
        truncated(site.files.path(site.job.id) / NAME)
        site.start()
        site.stop()
        kept = site.detectors.ratios(site.job)
        first = int(kept.bins["first"][0])
        assert 0 < first < 150
        assert kept.bins["first"].tolist() == list(range(first, 200))

    def test_steps_of_two_starts_are_told_apart_when_it_is_made_anew(self, site):
        slow = np.array([1, 1, 1, 2], np.float32)
        again = [
            of_step(int(one.number), one.durations_s * slow, source="two/0", at=one.at + 500)
            for one in story(seed=2, steps=90, slow=slice(0, 0))
        ]
        for one in story(steps=110) + again:
            site.push(one)
        site.stop()
        before = site.detectors.ratios(site.job)
        truncated(site.files.path(site.job.id) / NAME)
        site.start()
        site.stop()
        found = site.detectors.ratios(site.job)
        assert found.bins["start"].tolist() == [0] * 110 + [1] * 90
        assert np.array_equal(found.bins, before.bins)
        assert np.allclose(found.values, before.values, atol=1e-6)

    def test_many_bins_are_made_anew_as_fewer(self, site, monkeypatch):
        monkeypatch.setattr(rank_file, "MAX_BINS", 64)
        for one in story(steps=200):
            site.push(one)
        site.stop()
        truncated(site.files.path(site.job.id) / NAME)
        site.start()
        site.stop()
        found = site.detectors.ratios(site.job)
        assert found.bins["steps"].tolist() == [8] * 25
        times = np.array([one.durations_s for one in story(steps=200)], np.float64)
        assert np.allclose(found.values, expected(times, 8), atol=1e-4)

    def test_check_names_a_damaged_map_and_a_removed_job_has_none(self, site):
        for one in story(steps=50):
            site.push(one)
        site.stop()
        config = Config(data=site.folder)
        assert [line for line in problems(config, site.engine) if "rank map" in line] == []
        random_bytes(site.files.path(site.job.id) / NAME)
        (line,) = (line for line in problems(config, site.engine) if "rank map" in line)
        assert line.startswith("rank map of default/job: ranks.npz cannot be read")
        site.files.remove(site.job.id)
        assert not (site.files.path(site.job.id) / NAME).exists()

    def test_a_backup_has_it(self, site, tmp_path):
        for one in story(steps=50):
            site.push(one)
        site.stop()
        with (tmp_path / "backup.tar").open("wb") as file:
            write_backup(Config(data=site.folder), site.engine, file)
        restored = Config(data=tmp_path / "restored")
        restore_backup(restored, tmp_path / "backup.tar")
        folder = StepFiles(restored.data / "steps").path(site.job.id)
        assert same(load_rank_map(folder).read(), site.detectors.ratios(site.job))

    def test_what_is_older_than_is_kept_goes_when_it_is_saved(self, site, monkeypatch):
        site.detectors._keep_s = 100.0
        for one in story(steps=200):
            site.push(one)
        site.stop()  # at 1199
        assert site.detectors.ratios(site.job).bins["first"].tolist() == list(range(99, 200))
