"""Results of validations per host: kept, judged, and turned into cordon lists."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.suite import SuiteResult, gemm_shapes, run_suite
from paceline.detect.validation_files import ask_validation, read_validation
from paceline.detect.verdict import Measurements, Place, judge
from paceline.errors import DetectError, OutputError, StateError
from paceline.hosts import HostStore, PeriodicValidation
from paceline.hosts.cordon import cordon_lines
from paceline.hosts.result import Result, results_of, results_of_suite
from paceline.hosts.verdict import RECENT, judge_units, peer_bound


def measurements(gemm_s, link_s=(), per_host=4):
    places = {rank: Place(f"node{rank // per_host}", "H100") for rank in range(len(gemm_s))}
    rounds = {rank: [seconds] * 3 for rank, seconds in enumerate(gemm_s)}
    return Measurements(rounds, dict(link_s), places, 4096, 1 << 20, "nccl")


def test_results_of_a_validation():
    links = {(0, 1): [2e-3], (1, 2): [6e-3], (2, 3): [2e-3], (3, 0): [2e-3], (0, 2): [6e-3]}
    results = results_of(measurements([1.0, 1.0, 1.2, 1.0], links), run="j", at_s=5.0)
    gemm = {r.gpu: r.ratio for r in results if r.test == "gemm"}
    assert gemm == {0: 1, 1: 1, 2: pytest.approx(1.2), 3: 1}
    link = {r.gpu: (r.seconds, r.ratio) for r in results if r.test == "link"}
    assert link[2] == (2e-3, 1)  # one of its links is well
    assert {r.host for r in results} == {"node0"}


def test_two_ranks_are_kept_without_a_verdict():
    two = measurements([1.0, 2.0], {(0, 1): [2e-3], (1, 0): [3e-3]})
    rows = [row for t in range(9) for row in results_of(two, run="j", at_s=t)]
    assert [(r.test, r.gpu, r.seconds, r.ratio, r.peers) for r in rows[:4]] == [
        ("gemm", 0, 1.0, 1.0, 2),
        ("gemm", 1, 2.0, 2.0, 2),
        ("link", 0, 2e-3, 1.0, 2),
        ("link", 1, 2e-3, 1.0, 2),
    ]
    assert judge_units(rows) == []
    four = results_of(measurements([1.0, 1.0, 1.2, 1.0]), run="j", at_s=9.0)
    assert [v.results for v in judge_units(rows + four)] == [1] * 4


def test_a_link_without_peers_does_not_hide_a_slow_one():
    """Rank 3 has one link within its host, and slow ones to the other hosts."""
    links = {(2, 3): [1e-3], (0, 3): [9e-3], (1, 3): [9e-3], (0, 4): [2e-3], (1, 4): [2e-3]}
    links |= {(0, 5): [2e-3], (1, 5): [2e-3]}
    rows = results_of(measurements([1.0] * 6, links, per_host=2), run="j", at_s=5.0)
    link = {(r.host, r.gpu): (r.ratio, r.peers) for r in rows if r.test == "link"}
    assert link["node1", 1] == (4.5, 6)
    assert link["node1", 0] == (1.0, 1)


def fleet(draw, slow, spread, noise, gpus=16, validations=RECENT, spikes=0.03):
    """[validation, gpu] ratios: chips differ, each result scatters, some are disturbed."""
    chips = 1 + spread * draw.standard_normal(gpus)
    times = chips * (1 + noise * draw.standard_normal((validations, gpus)))
    times *= np.where(draw.random(times.shape) < spikes, 1.3, 1.0)
    times[:, 0] *= slow
    return times / np.median(times, axis=1, keepdims=True)


def results(ratios, start=0):
    return [
        Result(start + t, "j", f"node{gpu // 8}", gpu % 8, "H100", "gemm", ratio, ratio, len(row))
        for t, row in enumerate(ratios)
        for gpu, ratio in enumerate(row.tolist())
    ]


def accused(ratios):
    return {(v.host, v.gpu) for v in judge_units(results(ratios)) if v.slow}


@pytest.mark.parametrize(("spread", "noise"), [(0.005, 0.01), (0.01, 0.015)])
def test_a_gpu_that_is_slow_by_ten_percent_is_found_by_its_peers(spread, noise):
    """Five validations of half a second each: far below 30 s."""
    draw = np.random.default_rng(7)
    trials = [accused(fleet(draw, 1.1, spread, noise)) for _ in range(200)]
    assert sum(("node0", 0) in names for names in trials) >= 190
    healthy = [accused(fleet(draw, 1.0, spread, noise)) for _ in range(200)]
    assert sum(len(names) for names in healthy) <= 200 * 16 * 0.001


def test_as_many_are_found_as_any_rule_could():
    """16 GPUs that differ by 2%: Student's t of a known candidate finds 79% (docs/validate.md)."""
    draw = np.random.default_rng(10)
    found = wrong = 0
    for _ in range(600):
        values = np.median(fleet(draw, 1.1, 0.02, 0.01), axis=0)
        found += values[0] > peer_bound(values.tolist(), "gemm")
        values = np.median(fleet(draw, 1.0, 0.02, 0.01), axis=0)
        wrong += (values > peer_bound(values.tolist(), "gemm")).sum()
    assert 0.70 < found / 600 < 0.85
    assert wrong / 600 / 16 < 0.002


def test_several_slow_gpus_do_not_hide_each_other():
    draw = np.random.default_rng(11)
    found = 0
    for _ in range(100):
        values = np.median(fleet(draw, 1.0, 0.01, 0.01), axis=0)
        values[:4] *= 1.1
        found += (values[:4] > peer_bound(values.tolist(), "gemm")).sum()
    assert found >= 390


def test_the_bound_is_students():
    """Of the eight slowest of 17 none exceeds it; by hand for four equal ones and a fifth."""
    assert peer_bound([1.0, 1.0, 1.0, 1.0, 1.2], "gemm") == pytest.approx(1.05)
    values = [0.99, 1.0, 1.01, 1.0, 1.0]
    mean, deviation = 1.0, np.std(values, ddof=1)
    t = 7.3768  # of 4 degrees of freedom, exceeded with a chance of 0.0009
    expected = mean + t * deviation * np.sqrt(1 + 1 / 5)
    assert peer_bound(values, "gemm") == pytest.approx(max(1.05, expected), rel=1e-3)
    values = [value**3 for value in values]
    deviation = np.std(values, ddof=1)
    expected = np.mean(values) + t * deviation * np.sqrt(1 + 1 / 5)
    assert expected > 1.05
    assert peer_bound(values, "gemm") == pytest.approx(expected, rel=1e-3)


def test_where_chips_differ_its_own_past_finds_it():
    draw = np.random.default_rng(8)
    found = wrong = 0
    for _ in range(300):
        ratios = fleet(draw, 1.0, 0.03, 0.01, validations=40 + RECENT)
        wrong += len(accused(ratios) - {("node0", 0)})
        ratios[40:, 0] *= 1.1
        found += ("node0", 0) in accused(ratios)
    assert found >= 285
    assert wrong <= 300 * 16 * 0.002


def test_one_disturbed_validation_accuses_nobody():
    ratios = fleet(np.random.default_rng(9), 1.0, 0.005, 0.005, spikes=0)
    ratios[-2:, 3] = 2.0
    assert accused(ratios) == set()
    ratios[-3:, 3] = 2.0
    assert accused(ratios) == {("node0", 3)}
    assert accused(ratios[:3]) == set()  # too few to say


@pytest.fixture
def store(tmp_path):
    store = HostStore(tmp_path / "hosts.sqlite")
    store.add(results(fleet(np.random.default_rng(1), 1.15, 0.005, 0.005), start=1.7e9))
    return store


def test_the_file_is_kept_and_checked(store, tmp_path):
    again = HostStore(store.path)
    assert len(again.results()) == RECENT * 16
    assert len(again.results("node1")) == RECENT * 8
    assert again.forget("node1") == RECENT * 8
    assert {r.host for r in again.results()} == {"node0"}
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(StateError, match="version 9"):
        HostStore(store.path)
    other = tmp_path / "other"
    other.write_text("no database at all, but some text that is long enough" * 9)
    with pytest.raises(StateError, match="no file of host results"):
        HostStore(other)
    with pytest.raises(OutputError, match="does not exist"):
        HostStore(tmp_path / "absent", must_exist=True)


def test_cordon_lists(store, capsys):
    verdicts = judge_units(store.results())
    (line,) = cordon_lines(verdicts, "slurm")
    assert line.startswith(
        "scontrol update nodename=node0 state=drain reason='paceline: GPU 0 gemm"
    )
    (line,) = cordon_lines(verdicts, "kubernetes")
    assert line.startswith("kubectl cordon node0  # GPU 0 gemm 1.1")
    assert run(["hosts", "cordon", "--store", str(store.path)]) == 0
    assert capsys.readouterr().out == "node0\n"
    evil = [Result(t, "j", "a; rm -rf $HOME\nb", 0, "H", "gemm", 9, 9, 4) for t in range(9)]
    good = [Result(t, "j", f"n{i}", 0, "H", "gemm", 1, 1, 4) for t in range(9) for i in range(9)]
    for form in ("slurm", "kubernetes"):
        (line,) = cordon_lines(judge_units(evil + good), form)
        assert "'a; rm -rf $HOME\nb'" in line


def test_the_command(store, capsys, monkeypatch):
    monkeypatch.setenv("PACELINE_HOSTS", str(store.path))
    assert run(["hosts", "list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "GPU 0 gemm 1.1" in first
    assert second.endswith("nothing slow")
    assert run(["hosts", "cordon", "--json"]) == 0
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert (host["host"], host["slow"], len(host["units"])) == ("node0", True, 8)
    assert run(["hosts", "history", "node1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == RECENT * 8
    for wrong in (["history"], ["list", "node0"], ["list", "--format", "slurm"], ["history", "x"]):
        assert run(["hosts", *wrong]) == 2


def test_a_file_without_results_says_what_fills_it(capsys, tmp_path):
    path = str(HostStore(tmp_path / "new.sqlite").path)
    for action in ("list", "cordon"):
        assert run(["hosts", action, "--store", path]) == 0
        assert f"has no results yet; paceline validate --store {path}" in capsys.readouterr().err
    assert run(["hosts", "history", "vm", "--store", path]) == 2
    assert "has no results yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("validations", "peers", "words"),
    [
        (9, 2, "not judged: fewer than 3 of a kind were measured at once"),
        (1, 4, "nothing slow so far; 1 of the 5 validations for a verdict"),
        (5, 4, "nothing slow"),
    ],
)
def test_the_list_says_what_no_verdict_rests_on(capsys, tmp_path, validations, peers, words):
    store = HostStore(tmp_path / "hosts.sqlite")
    store.add(results(np.ones((validations, peers))))
    assert run(["hosts", "list", "--store", str(store.path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"  {words}")


def test_the_tests_of_a_framework_in_a_group_of_one(tmp_path):
    torch = pytest.importorskip("torch", reason="pip install 'paceline[profile]'")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        shapes = gemm_shapes(32, 64, tp=2, tokens=8)
        suite = run_suite(shapes)
        none = run_suite(shapes, budget_s=-1.0)
        with pytest.raises(DetectError, match="no test x"):
            run_suite(tests=("x",))
    finally:
        torch.distributed.destroy_process_group()
    assert shapes == ((8, 32, 16), (8, 32, 32), (8, 32, 32))
    names = {"gemm 8x32x16", "gemm 8x32x32", "hbm", "all-reduce", "reduce-scatter", "all-to-all"}
    assert set(suite.seconds) == names
    assert all(len(rows) == 1 and rows[0] >= 0 for rows in suite.seconds.values())
    assert set(suite.skipped) == {"host-to-device", "device-to-host"}
    assert (none.seconds, len(none.skipped)) == ({}, 8)
    with pytest.raises(DetectError, match="must divide"):
        gemm_shapes(32, 63, tp=2)


def test_results_of_the_suite_are_of_like_devices():
    places = [Place("a", "H100"), Place("a", "H100"), Place("b", "H100"), Place("b", "A100")]
    suite = SuiteResult({"hbm": [1.0, 1.0, 1.2, 9.0]}, {}, places, 1.0)
    rows = results_of_suite(suite, run="j", at_s=5.0)
    assert [(r.host, r.gpu, r.ratio) for r in rows if r.is_compared] == [
        ("a", 0, 1), ("a", 1, 1), ("b", 0, pytest.approx(1.2)),
    ]  # fmt: skip
    assert [(r.host, r.gpu, r.device) for r in rows if not r.is_compared] == [("b", 1, "A100")]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_validations_stay_within_their_budget(tmp_path):
    clock, made = Clock(), []

    def measure():
        clock.now += 0.5
        made.append(clock.now)
        return measurements([1.0, 1.0, 1.2, 1.0])

    store = tmp_path / "hosts.sqlite"
    validation = PeriodicValidation(tmp_path, every=10, store=store, measure=measure, clock=clock)
    for step in range(1, 5001):
        clock.now += 1.0
        validation.after_step(step)
    assert len(made) > 5
    assert validation.share <= 0.001
    assert made[0] > 1000  # as long as the first one's cost is a guess
    assert len(HostStore(store).results()) == 4 * len(made)
    assert read_validation(tmp_path, 0)["slow_ranks"][0]["rank"] == 2


def test_a_request_is_answered_at_the_next_turn(tmp_path):
    validation = PeriodicValidation(
        tmp_path, every=10, budget=0, measure=lambda: measurements([1.0, 1.0, 1.2, 1.0])
    )
    assert validation.after_step(10) is None
    number = ask_validation(tmp_path, [2])
    assert read_validation(tmp_path, number) is None
    assert validation.after_step(11) is None
    verdict = validation.after_step(20)
    assert verdict == judge(measurements([1.0, 1.0, 1.2, 1.0]))
    assert read_validation(tmp_path, number)["slow_ranks"][0]["rank"] == 2
    assert validation.after_step(30) is None
    again = PeriodicValidation(tmp_path, every=10, budget=0, measure=lambda: None)
    assert again.after_step(10) is None  # an old request is not answered by a new start
    assert ask_validation(tmp_path / "absent", [1]) is None
    with pytest.raises(DetectError, match="share from 0 to 1"):
        PeriodicValidation(tmp_path, budget=2)
