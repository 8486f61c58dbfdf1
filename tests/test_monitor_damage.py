"""What the disk damaged is told, and costs no more than itself."""

import pytest

import requires

requires.installed("sqlalchemy")

from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.files import make_folder
from paceline.monitor.blobs import FileBlobs, trace_key
from paceline.monitor.check import problems
from paceline.monitor.config import Config
from paceline.monitor.step_files import StepFile, damaged_bytes, encode
from paceline.monitor.store import jobs, sessions
from paceline.monitor.store.database import open_database
from step_batches import of_step

SEGMENT = "00000000.steps"


def filled(folder, steps=20):
    file = StepFile(folder)
    for step in range(steps):
        file.append(of_step(step, [1.0, 2.0]))
    file.close()
    return folder / SEGMENT


def steps_of(folder):
    file = StepFile(folder)
    try:
        return [int(batch.steps[0]) for batch in file.read()]
    finally:
        file.close()


def test_a_damaged_block_costs_that_block_alone(tmp_path, caplog):
    path = filled(tmp_path)
    size = len(encode(of_step(0, [1.0, 2.0])))
    data = bytearray(path.read_bytes())
    data[3 * size + 20] ^= 0xFF
    path.write_bytes(data)
    file = StepFile(tmp_path)
    assert abs(file.damaged_bytes - size) < 4
    assert "step times damaged" in caplog.text
    file.append(of_step(20, [1.0, 2.0]))  # and the file goes on
    file.close()
    assert steps_of(tmp_path) == [step for step in range(21) if step != 3]


@pytest.mark.parametrize("cut", [1, 11, 30])
def test_a_torn_end_is_no_damage(tmp_path, cut):
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + encode(of_step(20, [1.0, 2.0]))[:cut])
    assert damaged_bytes(path.read_bytes()) == 0
    assert steps_of(tmp_path) == list(range(20))
    assert path.read_bytes() == whole


def test_zeros_in_place_of_the_last_blocks_are_damage_and_stay(tmp_path):
    path = filled(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes(100))
    assert damaged_bytes(path.read_bytes()) >= 100
    assert steps_of(tmp_path)[-1] < 19
    assert len(path.read_bytes()) == len(data)


@pytest.fixture
def config(tmp_path):
    config = Config(data=tmp_path / "data")
    make_folder(config.data)
    engine = open_database(config.store_url)
    job = jobs.register(engine, "llm", "job", 1.0)
    filled(config.data / "steps" / "001" / str(job.id))
    trace = {"size_bytes": 5, "file_name": "t", "meta": {}}
    content = tmp_path / "t"
    content.write_bytes(b"trace")
    sha256 = "6cbcb4a1e4c3a8eee0d0fd5e4b5d7c4c" * 2
    sessions.enqueue(engine, job.id, {**trace, "sha256": sha256}, 1.0)
    engine.dispose()
    return config


def test_all_that_is_damaged_is_named(config, tmp_path, capsys):
    engine = open_database(config.store_url)
    assert list(problems(config, engine)) == []
    path = config.data / "steps" / "001" / "1" / SEGMENT
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    content = tmp_path / "other"
    content.write_bytes(b"something else")
    FileBlobs(config.data / "blobs").take(
        content, trace_key("6cbcb4a1e4c3a8eee0d0fd5e4b5d7c4c" * 2)
    )
    filled(config.data / "steps" / "007" / "7")
    told = list(problems(config, engine))
    assert any("step times of llm/job" in line and "cannot be read" in line for line in told)
    assert "step times of job 7, which the database does not know" in told
    assert any("its content differs from its SHA-256" in line for line in told)
    engine.dispose()
    assert run(["admin", "check", "--data", str(config.data)]) == 1
    assert capsys.readouterr().out.count("\n") == 3


def test_a_database_that_is_damaged_is_one_line_with_the_way_out(config):
    path = config.data / "paceline.db"
    path.write_bytes(b"scribbled over" * 1000)
    with pytest.raises(MonitorError, match="restore a backup"):
        open_database(config.store_url)
