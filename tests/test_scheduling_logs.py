"""Logs of queues as people have them: CSV, ElasticFlow's, Slurm's sacct."""

from pathlib import Path

import numpy as np
import pytest

import requires
from paceline.errors import QueueError
from paceline.scheduling.jobs import Throughputs
from paceline.scheduling.read_jobs import read_jobs, read_slowdowns, read_throughputs, tres_gpus

# Rows as sacct 22.05 to 24.05 print them: field forms from Slurm's manual (sacct(1)), AllocTRES
# strings from published listings of real clusters.
SACCT = """\
JobID|User|Submit|Start|End|State|AllocTRES
1662491|kingda|2023-04-06T10:00:00|2023-04-06T10:15:08|2023-04-06T10:27:48|COMPLETED|\
billing=8000,cpu=2,gres/gpu:mi100=8,gres/gpu=8,mem=3G,node=1
1662491.batch||2023-04-06T10:15:08|2023-04-06T10:15:08|2023-04-06T10:27:48|COMPLETED|\
cpu=2,gres/gpu:mi100=8,gres/gpu=8,mem=3G,node=1
1662492|arnoldg|2023-04-06T09:58:00|2023-04-06T09:58:30|2023-04-06T10:28:30|\
CANCELLED by 1003|billing=32,cpu=32,gres/gpu:mi210=4,mem=64G,node=1
1662493|arnoldg|2023-04-06T10:28:00|Unknown|Unknown|PENDING|
1662494_[5-9]|arnoldg|2023-04-06T10:28:00|Unknown|Unknown|PENDING|
1662495|kingda|2023-04-06T10:28:00|2023-04-06T10:28:00|Unknown|RUNNING|cpu=2,gres/gpu=8,mem=3G
1662496|kingda|2023-04-06T10:28:00|2023-04-06T10:28:00|2023-04-06T11:28:00|COMPLETED|cpu=2,mem=3G
1662497|kingda|2023-04-06T10:28:00|None|2023-04-06T10:30:00|CANCELLED by 1003|
1662492|arnoldg|2023-04-06T10:40:00|2023-04-06T10:41:00|2023-04-06T10:51:00|NODE_FAIL|\
billing=32,cpu=32,gres/gpu=4,mem=64G,node=1
"""


def written(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_sacct(tmp_path: Path) -> None:
    log = read_jobs(written(tmp_path, SACCT))
    assert log.jobs.job_id == ("1662492", "1662491", "1662492#2")
    assert log.jobs.submitted_s.tolist() == [0, 120, 2520]
    assert log.jobs.work.tolist() == [1800, 760, 600]
    assert log.jobs.gpus.tolist() == [4, 8, 4]
    assert log.jobs.labels["user"] == ("arnoldg", "kingda", "arnoldg")
    assert sorted(log.warnings) == [
        "left out: 1 rows, arrays that wait",
        "left out: 1 rows, never started",
        "left out: 1 rows, no GPUs",
        "left out: 1 rows, steps of jobs",
        "left out: 2 rows, not ended",
    ]


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=16,cpu=16,gres/gpu=8,mem=256G,node=1", 8),
        ("billing=8000,cpu=2,gres/gpu:mi100=8,gres/gpu=8,mem=3G,node=1", 8),
        ("cpu=32,gres/gpu:a100=4,gres/gpu:h100=2,mem=64G", 6),
        ("cpu=2,mem=3G,node=1", 0),
        ("", 0),
    ],
)
def test_gpus_of_tres(tres: str, gpus: int) -> None:
    assert tres_gpus(tres) == gpus


def test_rigid_and_elastic_rows(tmp_path: Path) -> None:
    text = (
        "job_id,submission_time,num_gpu,duration,model,global_batch,iterations,deadline,user\n"
        "b,2026-01-01T00:10:00,8,60,,,,,ada\n"
        "a,2026-01-01T00:00:00,,,gpt3-18.4b,1024,500,2026-01-02T00:00:00,bob\n"
    )
    log = read_jobs(written(tmp_path, text))
    assert log.jobs.job_id == ("a", "b")
    assert log.jobs.curve == ("gpt3-18.4b/1024", "")
    assert log.jobs.work.tolist() == [500, 60]
    assert np.diff(log.jobs.submitted_s).tolist() == [600]
    assert log.jobs.deadline_s[0] - log.jobs.submitted_s[0] == 86400
    assert np.isinf(log.jobs.deadline_s[1])
    assert log.models == {"gpt3-18.4b/1024": ("gpt3-18.4b", 1024)}
    assert log.jobs.labels["user"] == ("bob", "ada")
    assert log.warnings == ("1 rows were submitted before the row above; sorted by time",)


def test_own_throughputs(tmp_path: Path) -> None:
    path = written(tmp_path, "class,gpus,iterations_per_s\nbig,8,1\nbig,16,1.8\n", "rates.csv")
    rates = read_throughputs(path)
    assert rates.rate("big", 16) == 1.8
    assert rates.rate("big", 12) == 0
    jobs = written(tmp_path, "job_id,submission_time,class,iterations\na,0,big,10\n")
    assert read_jobs(jobs, throughputs=rates).jobs.curve == ("big",)
    with pytest.raises(QueueError, match=r"jobs.csv:2: the throughputs have none of big, a"):
        read_jobs(jobs, throughputs=Throughputs.of({("small", 1): 1.0}))


def test_microsofts_and_elasticflows_files() -> None:
    folder = requires.data("cluster")
    itp = read_jobs(
        folder / "elasticflow_fig10_100jobs.csv",
        throughputs=read_throughputs(folder / "elasticflow_throughputs_a100.csv"),
    )
    assert len(itp.jobs) == 100
    assert itp.jobs.curve[0] == "resnet50/256"
    assert itp.jobs.deadline_s[0] == 5896


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("job_id,submission_time,num_gpu,duration\n", "has no jobs"),
        ("a,b\n1,2\n", "no column job_id; it has a, b"),
        ("job_id,submission_time\n1,2\n", "needs num_gpu and duration, or model"),
        ("job_id,submission_time,num_gpu,duration\na,0,0,5\n", ":2: num_gpu must be a whole"),
        ("job_id,submission_time,num_gpu,duration\na,0,1.5,5\n", ":2: num_gpu must be a whole"),
        ("job_id,submission_time,num_gpu,duration\na,0,1,-5\n", ":2: duration must be above 0"),
        ("job_id,submission_time,num_gpu,duration\na,0,1,nan\n", ":2: duration must be above 0"),
        ("job_id,submission_time,num_gpu,duration\na,-1,1,5\n", ":2: submission_time is -1"),
        ("job_id,submission_time,num_gpu,duration\na,soon,1,5\n", "neither seconds nor a date"),
        ("job_id,submission_time,num_gpu,duration\na,0,1\n", ":2 has more or fewer fields"),
        ("job_id,submission_time,num_gpu,duration\na,0,1,5\na,1,1,5\n", "job a occurs twice"),
        ("job_id,submission_time,num_gpu,duration\na,0,,\n", ":2: the job has neither"),
        ("job_id,job_id,num_gpu,duration\na,0,1,5\n", "a column twice"),
        ("job_id,submission_time,num_gpu,duration,deadline\na,9,1,5,8\n", ":2: the deadline lies"),
        ("job_id,submission_time,iterations\na,9,1\n", ":2: a job with iterations needs model"),
        ("JobID|AllocTRES\n1|gres/gpu=1\n", "lacks submit, start, end, state"),
        ("JobID|Submit|Start|End|State|AllocTRES\n1|2\n", ":2 has 2 fields; its header has 6"),
        ("JobID|Submit|Start|End|State|AllocTRES\n", "no job that ran to an end"),
    ],
)
def test_wrong_logs_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(QueueError) as error:
        read_jobs(written(tmp_path, text))
    assert words in str(error.value)


def test_slowdowns(tmp_path: Path) -> None:
    path = written(tmp_path, "job,slowdown\na,1.2\nb,0.99\n")
    assert read_slowdowns(path).slowdowns.tolist() == [1.2, 1.0]
    with pytest.raises(QueueError, match="no column slowdown"):
        read_slowdowns(written(tmp_path, "job,s\na,1.2\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="No such file"):
        read_jobs(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00job")
    with pytest.raises(QueueError, match="no text file"):
        read_jobs(tmp_path / "binary")
    for text, words in (
        ("class,gpus,iterations_per_s\nx,1,1\nx,1,2\n", "occurs twice"),
        ("class,gpus,iterations_per_s\nx,1,0\n", "must be above 0"),
        ("class,gpus\nx,1\n", "no column iterations_per_s"),
        ("class,gpus,iterations_per_s\n", "no throughputs"),
    ):
        with pytest.raises(QueueError, match=words):
            read_throughputs(written(tmp_path, text))
