"""Folders with the plugin's files of several jobs, of ranks that have one number, of other clocks.

Jobs of NVIDIA's own library share a folder in ``real/test_nccl_library.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.steps_of_calls import step_times
from paceline.detect.waits import wait_graph
from paceline.detect.who_calls import who_from_calls
from paceline.errors import DetectError, TraceError
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX
from paceline.sources.call_logs.nccl_ranks import read_ranks
from paceline.sources.call_logs.timed_calls import read_folder, timed_calls
from paceline.watch import CallsWatch
from plugin_files import BEGUN_NS, rank_file

HOUR_NS = 3600 * 10**9
LATE_NS = 15_000_000


def ranks_in(folder):
    return read_ranks(sorted(folder.glob(f"*{SUFFIX}")))


@pytest.mark.parametrize("given", [False, True])
def test_a_job_that_began_again_with_fewer_ranks_is_the_one(tmp_path, given):
    for rank in range(8):
        rank_file(tmp_path, rank, ranks=8, given=rank if given else -1)
    for rank in range(4):
        later = {"communicator": 0xDEF, "pid": 2000 + rank, "begun_ns": BEGUN_NS + HOUR_NS}
        rank_file(tmp_path, rank, given=rank if given else -1, **later)
    processes, notes = ranks_in(tmp_path)
    assert [one.meta["pid"] for one in processes.values()] == [2000, 2001, 2002, 2003]
    assert notes == ["8 processes of an earlier job are left out"]
    assert [news.kind for news in CallsWatch(tmp_path, stacks=False).look()] == ["watching"]


@pytest.mark.parametrize("apart_ns", [10**6, -(10**6)])
def test_two_jobs_at_once_are_refused(tmp_path, apart_ns, capsys):
    for rank in range(4):
        rank_file(tmp_path, rank)
        other = {"communicator": 0xDEF, "pid": 2000 + rank}
        rank_file(tmp_path, rank, begun_ns=BEGUN_NS + apart_ns, **other)
    for command in (["detect", "--collectives", tmp_path], ["nccl", "waits", tmp_path]):
        assert run([*map(str, command)]) == 2
        assert "both ran as rank 0 at the same time" in capsys.readouterr().err


def test_ranks_of_two_jobs_that_overlap_a_little_do_not_mix(tmp_path):
    """The jobs' processes begin in turns, as on a machine that is overloaded."""
    late_ns = 1_500_000_000  # of 2.24 seconds that a job lasts
    for rank in range(4):
        rank_file(tmp_path, rank, begun_ns=BEGUN_NS + late_ns * (rank == 3))
        later_ns = BEGUN_NS + (late_ns + 10**8) * (rank != 3)
        rank_file(tmp_path, rank, communicator=0xDEF, pid=2000 + rank, begun_ns=later_ns)
    processes, notes = ranks_in(tmp_path)
    assert [one.meta["pid"] for one in processes.values()] == [2000, 2001, 2002, 2003]
    assert notes == ["several processes here had ranks 0, 1, 2, 3; the one that began last counts"]


def test_ranks_that_have_one_number_are_refused(tmp_path):
    for rank in range(4):
        rank_file(tmp_path, rank, given=min(rank, 2))
    with pytest.raises(TraceError, match=r"process 1002 .* and process 1003 .* as rank 2"):
        ranks_in(tmp_path)


def test_without_ranks_groups_that_share_nobody_are_refused(tmp_path):
    for rank in range(4):
        group = {"communicator": 0xA0 + rank // 2, "place": rank % 2, "ranks": 2}
        rank_file(tmp_path, rank, **group)
    with pytest.raises(TraceError, match=r"each process its rank \(RANK\)"):
        ranks_in(tmp_path)


def test_groups_that_share_nobody_are_one_job_where_their_ranks_are_told(tmp_path):
    for rank in range(4):
        group = {"communicator": 0xA0 + rank // 2, "place": rank % 2, "ranks": 2}
        rank_file(tmp_path, rank, given=rank, **group)
    processes, notes = ranks_in(tmp_path)
    assert (list(processes), notes) == ([0, 1, 2, 3], [])


def test_a_rank_that_began_again_elsewhere_counts_once_though_clocks_differ(tmp_path):
    for rank in range(4):
        rank_file(tmp_path, rank)
    again_ns = 40 * 56_000_000 - 500_000_000  # half a second before the first one's end
    rank_file(tmp_path, 3, pid=2000, begun_ns=BEGUN_NS + again_ns)
    processes, notes = ranks_in(tmp_path)
    assert processes[3].meta["pid"] == 2000
    assert notes == ["several processes here had rank 3; the one that began last counts"]


@pytest.mark.parametrize("apart_ns", [5 * 10**9, HOUR_NS])
def test_clocks_that_are_apart_are_set_by_common_calls(tmp_path, apart_ns):
    for rank in range(4):
        late_ns = LATE_NS * (rank == 2)
        rank_file(tmp_path, rank, ahead_ns=rank * apart_ns, late_ns=late_ns)
    log, notes = load_call_log([tmp_path])
    assert [note for note in notes if note.startswith("clocks of the ranks are")]
    steps = step_times(log)
    assert set(steps.step.tolist()) == set(range(39))
    assert steps.iteration_s == pytest.approx(0.056)
    assert [suspect.ranks for suspect in who_from_calls(log, steps)] == [(2,)]
    graph = wait_graph(timed_calls(*read_folder(tmp_path)))
    assert graph.seconds == pytest.approx(40 * 0.056, rel=0.05)
    assert max(graph.late_s, key=graph.late_s.__getitem__) == 2


def test_clocks_as_synchronised_ones_are_stay(tmp_path):
    for rank in range(4):
        rank_file(tmp_path, rank, ahead_ns=rank * 10**7)
    log, notes = load_call_log([tmp_path])
    assert notes == ()
    begins = [log.time_s[rows[0]] for _, rows in log.of_ranks()]
    assert begins[3] - begins[0] == pytest.approx(0.03, abs=1e-3)


def test_hosts_alone_with_clocks_apart_say_no_waits(tmp_path):
    for rank in range(4):
        rank_file(tmp_path, rank, ahead_ns=rank * 5 * 10**9, on_device=False)
    with pytest.raises(DetectError, match=r"rank 0 would have waited .* clocks of hosts are apart"):
        wait_graph(timed_calls(*read_folder(tmp_path)))
    log, notes = load_call_log([tmp_path])
    assert "this hides a rank that is equally late" in notes[-1]
    assert set(step_times(log).step.tolist()) == set(range(39))


@pytest.mark.parametrize("apart_ns", [9_000, 900_000])
def test_sends_and_recvs_of_one_group_that_begin_together_keep_the_order_of_the_host(
    tmp_path, apart_ns
):
    """Channels begin in another order at each step; 0.9 ms apart they run one after another."""
    rng = np.random.default_rng(7)
    for rank in range(4):
        rank_file(
            tmp_path, rank, exchange=lambda step: (rng.permutation(4) * apart_ns // 3).tolist()
        )
    log, notes = load_call_log(sorted(tmp_path.glob(f"*{SUFFIX}")))
    assert notes == ()
    _, rows = log.of_ranks()[0]
    steps = log.op[rows].reshape(40, 8), log.communicator[rows].reshape(40, 8)
    same = all((column == column[0]).all() for column in steps)
    assert same == (apart_ns < 50_000)
    if same:
        assert [log.ops[op] for op in steps[0][0, 4:]] == ["Send", "Recv", "Send", "Recv"]
        assert {period.calls for period in step_times(log).periods.values()} == {8}
        # Their ends stay.
        end_s = (log.time_s[rows] + log.duration_s[rows]).reshape(40, 8)[:, 4:]
        assert np.ptp(end_s, axis=1).max() < 1e-6
