"""A data folder with another store's database is refused; a restored one is brought in line."""

import json
import shutil

import pytest

import requires

requires.installed("sqlalchemy")

from paceline.errors import MonitorError
from paceline.monitor.identity import BEAT_S, NAME, ORPHANED, StoreIdentity
from paceline.monitor.snapshot import SNAPSHOT
from paceline.monitor.step_files import StepFiles
from paceline.monitor.store import jobs
from paceline.monitor.store.database import open_database
from step_batches import of_step


class Place:
    """A database and a data folder, to be put together at will."""

    def __init__(self, folder):
        self.data, self.database = folder / "data", folder / "db"
        self.data.mkdir(parents=True)

    def claim(self, now=1000.0, database=None):
        engine = open_database(f"sqlite:///{database or self.database}", pooled=False)
        identity = StoreIdentity(engine, self.data, StepFiles(self.data / "steps"))
        try:
            identity.claim(now)
        except BaseException:
            engine.dispose()
            raise
        return identity

    def push(self, identity, name):
        job = jobs.register(identity._engine, "default", name, 1.0)
        with identity._files.of(job.id) as file:
            file.append(of_step(1, [1.0]))
        (identity._files.path(job.id) / SNAPSHOT).write_bytes(b"x")
        return job.id

    def about(self):
        return json.loads((self.data / NAME).read_text())


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_store_comes_back_to_its_folder(place):
    identity = place.claim()
    place.push(identity, "one")
    name = identity.name
    assert place.about() == {"schema": "paceline-store", "version": 1, "store": name, "beat": 1}
    identity.beat(1000.0 + BEAT_S / 2)
    assert place.about()["beat"] == 1
    identity.beat(1000.0 + BEAT_S)
    assert place.about()["beat"] == 2
    assert place.claim(2000.0).name == name
    assert place.about()["beat"] == 3


@pytest.mark.parametrize("content", [None, b""])
def test_a_new_or_empty_database_does_not_get_the_jobs_of_another(place, tmp_path, content):
    """Job 1 of the new database would read the old job's steps, and drop its first batch."""
    place.push(place.claim(), "one")
    other = tmp_path / "other.db"
    if content is not None:
        other.write_bytes(content)
    with pytest.raises(MonitorError, match="is of another store: it has step times of 1 jobs"):
        place.claim(database=other)
    assert list(StepFiles(place.data / "steps").job_ids()) == [1]
    assert place.claim().name == place.about()["store"]


def test_the_folder_of_another_store_is_refused_by_name(place, tmp_path):
    place.claim()
    other = Place(tmp_path / "other")
    identity = other.claim()
    with pytest.raises(MonitorError, match=f"is of the store {place.about()['store'][:8]}"):
        place.claim(database=other.database)
    assert other.claim().name == identity.name


def test_a_folder_of_an_older_version_is_taken_with_its_own_database_only(place, tmp_path):
    place.push(place.claim(), "one")
    (place.data / NAME).unlink()
    with pytest.raises(MonitorError, match="of another store"):
        place.claim(database=tmp_path / "new.db")
    place.claim()
    assert (place.data / NAME).exists()


def test_a_database_that_was_restored_is_brought_in_line(place, tmp_path, caplog):
    identity = place.claim()
    first = place.push(identity, "one")
    identity._engine.dispose()
    shutil.copy(place.database, tmp_path / "earlier")
    identity = place.claim(3000.0)
    second = place.push(identity, "two")
    identity._engine.dispose()
    for path in tmp_path.glob("db*"):
        path.unlink()
    shutil.copy(tmp_path / "earlier", place.database)
    with caplog.at_level("WARNING", "paceline.monitor"):
        identity = place.claim(4000.0)
    files = identity._files
    assert files.job_ids() == [first]
    assert not (files.path(first) / SNAPSHOT).exists()  # its detector is made anew from the steps
    assert (place.data / ORPHANED / f"{second}-4000").is_dir()
    assert place.about()["beat"] == 3
    third = place.push(identity, "three")
    assert third == second  # the number is used again, without the steps of the lost job
    with files.of(third) as file:
        assert sum(len(batch.steps) for batch in file.read()) == 1


@pytest.mark.parametrize("text", ["", "{", '{"schema": "paceline-store"}', "[1]"])
def test_a_damaged_mark_is_named_with_the_way_out(place, text):
    place.claim()
    (place.data / NAME).write_text(text)
    with pytest.raises(MonitorError, match=r"store\.json cannot be read .*remove that file"):
        place.claim()


def test_a_mark_of_a_later_version_is_refused(place):
    place.claim()
    (place.data / NAME).write_text(json.dumps({**place.about(), "version": 2}))
    with pytest.raises(MonitorError, match="later version"):
        place.claim()
