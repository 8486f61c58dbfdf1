"""The job's YAML file, and jobs that contradict their trace."""

import pytest

from jobs import Spec, make_rows, write_rows
from paceline.errors import TraceError
from paceline.sources import load, read_job
from paceline.trace import Job

GOOD = """
trial_name: AR
run_id: 0
dp_size: 2
dsp_size: 1
pp_size: 2
tp_size: 4
vpp_size: 1
world_size: 16
"""


@pytest.fixture
def yaml(tmp_path):
    def write(text):
        path = tmp_path / "meta.yaml"
        path.write_text(text)
        return path

    return write


def test_the_degrees_are_read(yaml):
    assert read_job(yaml(GOOD)) == Job(2, 2, tp_size=4, world_size=16, name="AR")


def test_degrees_default_to_one_and_may_be_empty(yaml):
    assert read_job(yaml("dp_size: 3\npp_size: 1\n")).ranks == 3
    assert read_job(yaml("dp_size: 3\npp_size: 1\ntp_size:\n")) == Job(3, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no mapping"),
        ("- 1\n- 2\n", "no mapping"),
        ("just words", "no mapping"),
        ("dp_size: [", "not YAML"),
        ("dp_size: 2\n\tpp_size: 2", "not YAML"),
        ("a: &a [*a]\ndp_size: 1", "pp_size"),
        ("pp_size: 2\n", "lacks dp_size"),
        ("tp_size: 2\n", "lacks dp_size and pp_size"),
        ("dp_size: 0\npp_size: 2\n", "dp_size must be a whole number >= 1"),
        ("dp_size: -3\npp_size: 2\n", "dp_size"),
        ("dp_size: 2.5\npp_size: 2\n", "dp_size"),
        ("dp_size: two\npp_size: 2\n", "dp_size"),
        ("dp_size: true\npp_size: 2\n", "dp_size"),
        ("dp_size:\npp_size: 2\n", "dp_size"),
        ("dp_size: 2\npp_size: [2]\n", "pp_size"),
        ("dp_size: 2\npp_size: 2\nworld_size: -4\n", "world_size"),
        ("dp_size: 2\npp_size: 2\nworld_size: many\n", "world_size"),
        ("dp_size: 2\npp_size: 2\n---\ndp_size: 1\n", "not YAML"),
        ("!!python/object/apply:os.getcwd []\n", "not YAML"),
    ],
)
def test_broken_job_files_are_said(yaml, text, said):
    with pytest.raises(TraceError, match=said):
        read_job(yaml(text))


def test_unreadable_job_files_are_said(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_job(tmp_path / "absent.yaml")
    with pytest.raises(TraceError, match="cannot be read"):
        read_job(tmp_path)
    (tmp_path / "meta.yaml").write_bytes(b"\xff\xfe\x00dp")
    with pytest.raises(TraceError, match="not a text file"):
        read_job(tmp_path / "meta.yaml")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Job(3, 2), "dp_size is 3, the trace has dp ranks 0 to 1"),
        (Job(1, 2), "dp_size is 1"),
        (Job(2, 4), "pp_size is 4, the trace has stages 0 to 1"),
        (Job(2, 1), "pp_size is 1"),
        (Job(2, 2, vpp_size=2), "vpp_size is 2, the trace has chunks 0 to 0"),
    ],
)
def test_a_job_that_contradicts_its_trace_is_said(rows, tmp_path, job, said):
    path = write_rows(rows, tmp_path / "trace.parquet")
    with pytest.raises(TraceError, match=said):
        load(path, job=job)


def test_a_trace_without_its_chunks_contradicts_the_job(tmp_path):
    spec = Spec(pp=2, vpp=2, microbatches=(2,), steps=1)
    path = write_rows(make_rows(spec), tmp_path / "trace.parquet")
    assert load(path).job == spec.job
    with pytest.raises(TraceError, match="vpp_size is 1, the trace has chunks 0 to 1"):
        load(path, job=Job(1, 2))


def test_a_world_size_that_is_no_product_is_a_warning(rows, tmp_path):
    path = write_rows(rows, tmp_path / "trace.parquet")
    trace = load(path, job=Job(2, 2, tp_size=2, world_size=12))
    assert any("world_size is 12" in warning for warning in trace.warnings)
    assert load(path, job=Job(2, 2, tp_size=2, world_size=8)).warnings == ()
    trace = load(path, job=Job(2, 2, world_size=2))
    assert any("rank 3 was recorded" in warning for warning in trace.warnings)


def test_the_yaml_beats_the_file_and_the_file_beats_the_data(rows, tmp_path, yaml):
    from paceline.sources.parquet import write

    path = write_rows(rows, tmp_path / "in.parquet")
    assert load(path).job == Job(2, 2)
    stored = tmp_path / "out.parquet"
    write(load(path, job=Job(2, 2, tp_size=8)), stored)
    assert load(stored).job.tp_size == 8
    assert load(stored, job=yaml(GOOD)).job.tp_size == 4
