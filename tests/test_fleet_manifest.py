import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet_jobs import HERE, make_fleet
from paceline.errors import FleetError
from paceline.fleet.manifest import read_manifest
from paceline.fleet.rules import RuleOptions
from paceline.fleet.run import fleet


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return make_fleet(tmp_path_factory.mktemp("fleet"), (0, 1))


def write(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text)
    return path


def test_what_is_known_of_jobs_stands_in_their_rows(traces, tmp_path):
    folder = Path(shutil.copytree(traces, tmp_path / "traces"))
    (folder / "hosts.csv").write_text("rank,host\n0,a\n1,b\n2,c\n3,d\n")
    manifest = write(
        folder,
        "path,job,hosts,gpus,restarts,gpu_hours,max_seq_len,team,started,region,note\n"
        "trace-1.parquet,llm-7,hosts.csv,256,3,12.5,8192,vision,2026-10-01T08:00+02:00,eu,\n"
        "trace-0.parquet,,,,99,,,,2026-10-02,us,two words\n",
    )
    study = fleet(manifest=manifest, out=tmp_path / "study", run=HERE)
    second, first = study.jobs.to_pylist()[::-1]
    assert second["path"] == str(folder / "trace-1.parquet")
    names = ("name", "gpus", "restarts", "gpu_hours", "gpu_hours_source", "max_seq_len", "team")
    assert [second[name] for name in names] == ["llm-7", 256, 3, 12.5, "given", 8192, "vision"]
    assert second["started"] == datetime(2026, 10, 1, 6, tzinfo=UTC)
    assert second["labels"] == [("region", "eu")]
    assert second["slow_hosts"] == ["b"]
    assert dict(first["labels"]) == {"region": "us", "note": "two words"}
    assert (first["status"], first["rule"]) == ("discarded", "restarts")
    assert first["error"] == "99 restarts, more than 15"
    assert first["slowdown"] is None


def test_rules_of_the_manifest_alone_need_no_analysis(traces, tmp_path):
    manifest = write(traces, "path,gpus\ntrace-0.parquet,8\ntrace-1.parquet,128\n")
    study = fleet(manifest=manifest, out=tmp_path, rules=RuleOptions(min_gpus=64), run=HERE)
    assert study.jobs["rule"].to_pylist() == ["gpus", None]
    assert study.jobs["error"].to_pylist() == ["8 GPUs, fewer than 64", None]
    assert len(list((tmp_path / "results").rglob("*.json"))) == 1


def test_a_manifest_may_be_parquet(traces):
    path = traces / "jobs.parquet"
    started = [datetime(2026, 10, 1, tzinfo=UTC), None]
    columns = {"path": ["trace-1.parquet", "trace-0.parquet"], "gpus": [4, None]}
    pq.write_table(pa.table({**columns, "started": started, "wave": [1, 2]}), path)
    first, second = read_manifest(path)
    path.unlink()
    assert (first.gpus, first.started, first.labels) == (None, None, {"wave": "2"})
    assert (second.gpus, second.started, second.labels) == (4, started[0], {"wave": "1"})
    assert second.size == (traces / "trace-1.parquet").stat().st_size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column path; it is empty"),
        ("file,gpus\na,1\n", "has no column path; it has file, gpus"),
        ("path,team,team\na,1,2\n", "has the column team twice"),
        ("path\n", "has no rows"),
        ("path,gpus\n ,8\n", "line 2: the path is missing"),
        ("path\ntrace-0.parquet\ntrace-1.parquet\ntrace-0.parquet\n", "line 4: the path .* line 2"),
        ("path\ntrace-0.parquet\nno.parquet\n", "no.parquet, which .* names, does not exist$"),
        ("path\nx.parquet\ny.parquet\n", r"x.parquet, .* does not exist \(nor do 1 others\)"),
        ("path,meta\ntrace-0.parquet,no.yaml\n", "no.yaml, which .* names, does not exist"),
        ("path,gpus\ntrace-0.parquet,many\n", "line 2: gpus must be a whole number from 1"),
        ("path,gpus\ntrace-0.parquet,0\n", "line 2: gpus must be a whole number from 1, not '0'"),
        ("path,restarts\ntrace-0.parquet,1.5\n", "restarts must be a whole number from 0"),
        ("path,gpu_hours\ntrace-0.parquet,-1\n", "gpu_hours must be a number from 0 on"),
        ("path,gpu_hours\ntrace-0.parquet,nan\n", "gpu_hours must be a number from 0 on"),
        ("path,started\ntrace-0.parquet,soon\n", "started must be a date such as 2026-10-01"),
        ("path,gpus\ntrace-0.parquet,1,2\n", "line 2: it has more or fewer fields"),
        ("path\ntrace-0.parquet\x00\n", "line 2: a path holds a character"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(traces, tmp_path, text, message):
    with pytest.raises(FleetError, match=message):
        fleet(manifest=write(traces, text), out=tmp_path / "study", run=HERE)
    assert not (tmp_path / "study").exists()


def test_other_files_are_no_manifest(tmp_path):
    for content, message in (
        (b"\xff\xfe\x00", "neither parquet nor"),
        (b"PAR1xxPAR1", "cannot be"),
    ):
        (tmp_path / "jobs").write_bytes(content)
        with pytest.raises(FleetError, match=message):
            read_manifest(tmp_path / "jobs")
    with pytest.raises(FleetError, match="No such file"):
        read_manifest(tmp_path / "absent.csv")
