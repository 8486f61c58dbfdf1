"""Peers of a data-parallel rank: what their workers are called, from the job to the tables."""

import csv
import io
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.diagnose import diagnose
from paceline.diagnose.finding import Finding
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.report.critical_path import path_lines
from paceline.report.heatmap import heatmap
from paceline.report.result_json import worker_csv_writer
from paceline.report.terminal import screen
from paceline.results.answers import plain_finding
from paceline.results.document import JobReport
from paceline.results.words.names import link, place, worker, workers
from paceline.trace import Job
from paceline.trace.job import place_name, place_of
from paceline.whatif import analyze
from program_jobs import Compute, Run, Spec, Wait, programs_of, trace_of_runs

APART = Job(dp_size=3, pp_size=2, tp_size=2, peers=2)
TOGETHER = Job(dp_size=3, pp_size=2, tp_size=2)


# Places and their names.


@pytest.mark.parametrize(
    ("replica", "pp", "peers", "place", "name"),
    [
        (3, 1, 1, (3, 1), "dp 3, stage 1"),
        (0, 0, 1, (0, 0), "dp 0, stage 0"),
        (0, 0, 2, (0, 0, 0), "dp 0, stage 0, peer 0"),
        (3, 1, 2, (1, 1, 1), "dp 1, stage 1, peer 1"),
        (7, 0, 4, (1, 0, 3), "dp 1, stage 0, peer 3"),
        (np.int64(8), np.int64(5), 4, (2, 5, 0), "dp 2, stage 5, peer 0"),
    ],
)
def test_a_replica_is_a_data_parallel_rank_and_a_peer(replica, pp, peers, place, name):
    assert place_of(replica, pp, peers) == place
    assert place_name(place) == name
    job = Job(dp_size=9, pp_size=6, tp_size=peers, peers=peers)
    assert job.place(replica, pp) == place
    assert job.worker_name(replica, pp) == name
    assert job.worker_at(place) == (replica, pp)


def test_places_that_name_no_peer_are_of_the_first_one():
    assert APART.worker_at((1, 0)) == (2, 0)
    assert APART.worker_at((1, 0, 1)) == (3, 0)
    assert TOGETHER.worker_at((1, 0)) == (1, 0)


def test_names_of_replicas():
    assert [APART.replica_name(r) for r in (0, 1, 4)] == [
        "dp 0, peer 0", "dp 0, peer 1", "dp 2, peer 0"
    ]  # fmt: skip
    assert TOGETHER.replica_name(2) == "dp 2"


def test_sizes_of_a_job_with_peers():
    assert (APART.replicas, APART.workers, APART.ranks, APART.world_size) == (6, 12, 12, 12)
    assert (TOGETHER.replicas, TOGETHER.workers, TOGETHER.ranks) == (3, 6, 12)
    assert APART.to_mapping()["peers"] == 2
    assert "peers" not in TOGETHER.to_mapping()
    assert Job.from_mapping(APART.to_mapping()) == APART
    both = Job(dp_size=1, pp_size=1, tp_size=2, dsp_size=3, peers=6)
    assert both.replicas == 6
    for peers in (2, 3):
        with pytest.raises(TraceError, match=f"shows {peers} ranks of each .* tp 2 x dsp 3"):
            Job(dp_size=1, pp_size=1, tp_size=2, dsp_size=3, peers=peers)


def test_places_in_words():
    assert worker([1, 0]) == "dp 1, stage 0"
    assert worker([1, 0, 3]) == "dp 1, stage 0, peer 3"
    assert workers([[1, 0, 0], [1, 0, 1]], 4) == "dp 1, stage 0, peer 0; dp 1, stage 0, peer 1"
    assert link([[1, 0], [1, 1]]) == "dp 1, stages 0 and 1"
    assert link([[1, 0, 3], [1, 1, 3]]) == "dp 1, peer 3, stages 0 and 1"
    assert place({"workers": [[1, 0, 3]]}) == "worker dp 1, stage 0, peer 3"
    between = {"link": [[1, 0, 3], [1, 1, 3]]}
    assert place(between) == "link dp 1, stage 0, peer 3 to dp 1, stage 1, peer 3"


@pytest.mark.parametrize(
    ("job", "first", "second"), [(APART, [1, 1, 1], [0, 0, 1]), (TOGETHER, [3, 1], [1, 0])]
)
def test_findings_in_json_hold_places(job, first, second):
    """Workers (replica, pp) become (dp, pp, peer) where peers are apart."""
    finding = Finding(
        "link", "link", "slow", 0.1, 0.1, (0.0, 0.2), 1.0,
        {"workers": [[3, 1], [1, 0]], "link": [[3, 1], [1, 0]], "stage": 2},
        {"links": [[[3, 1], [1, 0]]], "workers": 2, "factors": (1.5,)},
    )  # fmt: skip
    plain = plain_finding(finding, job)
    assert plain.where == {"workers": [first, second], "link": [first, second], "stage": 2}
    assert plain.evidence == {"links": [[first, second]], "workers": 2, "factors": [1.5]}


# A job of three data-parallel ranks, two peers and two stages, one of them slow.


@pytest.fixture(scope="module")
def job():
    """Computes of 50 ms, on dp 1, stage 1, peer 1 half as long again; all else takes 1 ms."""
    spec = Spec(pp=2, microbatches=(4,) * 6, peers=2, layers=1)
    programs = programs_of(spec)
    ops = {key: [op for op in ops if not isinstance(op, Wait)] for key, ops in programs.items()}

    def seconds(key):
        if isinstance(ops[key[:2]][key[2]], Compute):
            return 0.075 if key[:2] == (3, 1) else 0.05
        return 0.001

    measured = from_trace(trace_of_runs([Run(programs, seconds, peers=2) for _ in range(6)]))
    result = analyze(measured)
    return SimpleNamespace(measured=measured, result=result, report=JobReport.of(result))


def test_a_slow_worker_is_named_with_its_peer(job):
    assert job.measured.job == APART
    finding = diagnose(job.measured, job.result).findings[0]
    assert finding.text == "worker dp 1, stage 1, peer 1 is 1.50x slow, its optimizer 1.50x"
    assert finding.where == {"workers": [[3, 1]]}
    assert plain_finding(finding, APART).where == {"workers": [[1, 1, 1]]}
    assert job.measured.graph.worker_name(3, 1) == "dp 1, stage 1, peer 1"


def test_the_table_of_workers_has_a_column_for_peers(job):
    file = io.BytesIO()
    worker_csv_writer(job.report)(file)
    header, *rows = csv.reader(io.StringIO(file.getvalue().decode()))
    assert header == ["dp", "pp", "peer", "slowdown"]
    assert len(rows) == 12
    assert rows[0][:3] == ["1", "1", "1"]
    assert float(rows[0][3]) == job.result.by_worker.max()
    slowdowns = {tuple(map(int, row[:3])): float(row[3]) for row in rows}
    for (pp, replica), slowdown in np.ndenumerate(job.result.by_worker):
        assert slowdowns[replica // 2, pp, replica % 2] == slowdown


def test_the_screen_names_peers(job):
    lines = [line.plain for line in screen(job.report, 120, colour=False)]
    text = "\n".join(lines)
    headings = next(line for line in lines if "dp,stage,peer" in line)
    assert headings.split()[:8:2] == ["kind", "stage", "dp,peer", "dp,stage,peer"]
    first = lines[lines.index(headings) + 1].split()
    worst = f"{job.result.by_worker.max():.3f}"
    assert first[first.index("1,1") :][:2] == ["1,1", f"{job.result.by_replica[3]:.3f}"]
    assert first[first.index("1,1,1") :][:2] == ["1,1,1", worst]
    assert "stages down, dp.peer across" in text
    assert "worker dp 1, stage 1, peer 1 has " in text


def test_the_leader_of_the_path_is_named_with_its_peer(job):
    [line] = [
        line.plain
        for line in path_lines(job.report.critical_path, APART, 400)
        if line.plain.lstrip().startswith("worker ")
    ]
    leader = job.report.critical_path.leading_worker
    assert (leader.dp, leader.pp) == (3, 1)
    assert line.lstrip().startswith(f"worker dp 1, stage 1, peer 1 has {leader.share:.0%} of it")


# The map of workers.


def map_of(slowdown, width, peers):
    return [line.plain for line in heatmap(np.array(slowdown), width, colour=False, peers=peers)]


def test_the_map_numbers_peers():
    title, ruler, row = map_of([[1.0, 1.5, 1.25, 2.0]], 80, 2)
    assert title.endswith("stages down, dp.peer across")
    assert ruler.split() == ["stage", "0.0", "0.1", "1.0", "1.1"]
    assert row.split() == ["0", "1.00", "1.50", "1.25", "2.00"]
    plain_title, plain_ruler, _ = map_of([[1.0, 1.5, 1.25, 2.0]], 80, 1)
    assert plain_title.endswith("stages down, data-parallel (dp) ranks across")
    assert plain_ruler.split() == ["stage", "0", "1", "2", "3"]


def test_a_map_of_the_worst_replicas_leaves_room_for_their_peers():
    """100 replicas of 4 peers on 47 characters: 40 for cells of 5 (of four digits and a blank)."""
    slowdown = np.ones((1, 100))
    slowdown[0, [3, 98]] = 1.5
    title, ruler, row = map_of(slowdown, 47, 4)
    assert title.endswith("only the worst 8 of 100 replicas fit here")
    assert ruler.split()[1:] == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "24.2"]
    assert row.split()[1:] == ["1.00"] * 3 + ["1.50"] + ["1.00"] * 3 + ["1.50"]
    # each number stands above its value
    starts = [row.index(value) for value in ("1.50",)]
    assert ruler.index("0.3") - starts[0] in (0, 1)
    assert "of 100 dp ranks" in map_of(slowdown, 47, 1)[0]


def test_narrow_cells_carry_few_numbers():
    """Cells of two characters: every second of six names of three and a blank."""
    _, ruler, *_ = map_of([[1.0] * 6], 20, 2)
    assert ruler.split() == ["stage", "0.0", "1.0", "2.0"]
    _, plain, *_ = map_of([[1.0] * 6], 20, 1)
    assert plain.split() == ["stage", "0", "1", "2", "3", "4", "5"]
