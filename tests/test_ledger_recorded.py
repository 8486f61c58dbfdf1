"""The stragglers of a recorded run, by its own profiled steps."""

import json

import pytest

import paceline
from loading_jobs import job
from paceline.blockfile import file_header, read_header
from paceline.cli.main import run
from paceline.ledger import goodput, straggling
from paceline.sources.recording import reader
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace


def test_s_is_that_of_the_profiled_steps(tmp_path):
    """Computes of 80 and 120 ms, ideally 100 each: 20 of 124 ms."""
    folder = job(tmp_path, lambda _, rank: (80, 120)[rank], profiled=range(0, 20, 2))
    ledger = goodput(folder)
    assert ledger.slowdown == pytest.approx(124 / 104)
    assert ledger.seconds["stragglers"] == pytest.approx(20 * 0.020, rel=1e-4)
    assert ledger.seconds["productive"] == pytest.approx(20 * 0.104)
    assert (
        "stragglers: S 1.192 is that of 9 of 10 profiled steps (2 to 18), outside fail-slows"
        in (ledger.notes)
    )
    result = paceline.analyze(paceline.load(folder))
    assert ledger.slowdown == pytest.approx(result.slowdown)


def test_s_of_a_large_job_is_that_of_analyze(tmp_path):
    slow = SlowWorker(dp=1, pp=2, factor=1.5)
    spec = SynthSpec(dp=4, pp=4, microbatches=8, steps=12, slow_workers=(slow,), seed=3)
    record_trace(synthesize(spec), tmp_path)
    ledger = goodput(tmp_path)
    trace = paceline.load(tmp_path)
    result = paceline.analyze(trace.select_steps(trace.steps[1:]))
    lost_s = float((result.simulated_s - result.ideal_s).mean())
    assert ledger.seconds["stragglers"] == pytest.approx(11 * lost_s, rel=0.1)
    step_s = (ledger.seconds["productive"] + ledger.seconds["stragglers"]) / ledger.steps
    assert ledger.slowdown == pytest.approx(step_s / (step_s - lost_s), rel=1e-6)


def test_time_between_operations_is_no_loss_of_stragglers(tmp_path):
    """80 of 204 ms are in no operation: 20 of 204 are lost, though S of analyze is 1.192."""
    ledger = goodput(job(tmp_path, lambda _, rank: (80, 120)[rank], rest_ms=80))
    assert ledger.slowdown == pytest.approx(204 / 184)
    assert ledger.seconds["stragglers"] == pytest.approx(20 * 0.020, rel=1e-4)


def test_the_given_s_wins(tmp_path):
    ledger = goodput(job(tmp_path, lambda _, rank: (80, 120)[rank]), slowdown=2.0)
    assert ledger.slowdown == 2
    assert ledger.seconds["stragglers"] == pytest.approx(20 * 0.062)
    assert not any("stragglers" in note for note in ledger.notes)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_waits_for_data_are_counted_once(tmp_path, rank, inside):
    """One rank waits for 60 ms, within the step or before it; its computes are even.

    A wait of the lowest rank before its step lies between the steps of the ledger.
    """
    folder = job(tmp_path, lambda *_: 100, wait_ms=lambda _, r: 60.0 * (r == rank), inside=inside)
    ledger = goodput(folder)
    assert ledger.seconds["data_waits"] == pytest.approx(20 * 0.060, abs=1e-4)
    assert ledger.seconds["productive"] == pytest.approx(20 * 0.104, abs=1e-4)
    assert ledger.seconds["stragglers"] == pytest.approx(0, abs=1e-4)
    assert ledger.seconds["unknown"] == pytest.approx(0, abs=1e-4)
    assert ledger.slowdown == pytest.approx(1)


def test_a_slow_rank_that_waits_for_its_data_costs_both(tmp_path):
    folder = job(
        tmp_path, lambda _, rank: (80, 120)[rank], wait_ms=lambda _, rank: 60.0 * (rank == 1)
    )
    ledger = goodput(folder)
    assert ledger.seconds["data_waits"] == pytest.approx(20 * 0.060)
    assert ledger.seconds["stragglers"] == pytest.approx(20 * 0.020, rel=1e-4)


def test_waits_behind_a_slow_rank_leave_s_unknown(tmp_path):
    """Rank 1 waits while rank 0 computes longer: the time belongs to either."""
    folder = job(
        tmp_path, lambda _, rank: (120, 80)[rank], wait_ms=lambda _, rank: 35.0 * (rank == 1)
    )
    ledger = goodput(folder)
    assert ledger.seconds["stragglers"] is None
    assert ledger.reasons["stragglers"] == (
        "waits for data overlap with operations, which hides S; give it (--slowdown)"
    )


def fails(step, rank):
    return 200 if rank == 1 and 80 <= step < 140 else 100


def test_steps_of_a_fail_slow_tell_no_s(tmp_path):
    """S of all profiled steps is above 1: a third of them lies in the fail-slow."""
    folder = job(tmp_path, fails, steps=200, profiled=range(0, 200, 10))
    ledger = goodput(folder)
    assert ledger.seconds["fail_slow"] == pytest.approx(60 * 0.1, rel=0.02)
    assert ledger.slowdown == pytest.approx(1, abs=1e-4)
    assert any("is that of 13 of 20 profiled steps (10 to 190)" in note for note in ledger.notes)
    assert paceline.analyze(paceline.load(folder)).slowdown > 1.1


def test_where_only_a_fail_slow_was_profiled_s_is_unknown(tmp_path):
    folder = job(tmp_path, fails, steps=200, profiled=(0, 100))
    reason = goodput(folder).reasons["stragglers"]
    assert reason == (
        "0 of 2 profiled steps are typical (none of a fail-slow, none that begins a start), and 4 "
        "are needed; give S of other steps (--slowdown)"
    )
    onset = {"kind": "onset", "since_step": 30, "factor": 1.5}
    more = job(tmp_path / "more", lambda *_: 100, steps=80, profiled=range(0, 80, 10))
    reason = goodput(more, events=[onset]).reasons["stragglers"]
    assert reason.startswith("2 of 8 profiled steps are typical")


def test_a_recording_without_profiled_steps(tmp_path):
    reason = goodput(job(tmp_path, lambda *_: 100, profiled=())).reasons["stragglers"]
    assert "has no step that all ranks recorded (step 0: none was profiled)" in reason


def test_a_missing_rank_leaves_the_other_rows(tmp_path):
    folder = job(tmp_path, lambda *_: 100)
    (folder / "rank-00001-0.blocks").unlink()
    ledger = goodput(folder)
    assert "lacks the files of 1 of 2 ranks: 1" in ledger.reasons["stragglers"]
    assert ledger.seconds["productive"] == pytest.approx(20 * 0.104)


def test_profiled_steps_of_an_unknown_kind(tmp_path):
    folder = job(tmp_path, lambda *_: 100)
    for path in folder.glob("*.blocks"):
        meta = read_header(path)
        blocks = path.read_bytes()[len(file_header(meta)) :]
        later = {**meta, "kinds": [f"later-{kind}" for kind in meta["kinds"]]}
        path.write_bytes(file_header(later) + blocks)
    ledger = goodput(folder)
    assert "unknown kind 'later-forward-compute'" in ledger.reasons["stragglers"]
    assert ledger.seconds["productive"] == pytest.approx(20 * 0.104)


def test_a_damaged_step_is_left_out(tmp_path):
    folder = job(tmp_path, lambda _, rank: (80, 120)[rank])
    path = folder / "rank-00001-0.blocks"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    ledger = goodput(folder)
    assert ledger.slowdown == pytest.approx(124 / 104)
    assert "of 18 of 19 profiled steps" in ledger.notes[-1]


def test_a_large_recording_is_analysed_in_part(tmp_path, monkeypatch):
    folder = job(tmp_path, lambda _, rank: (80, 120)[rank], steps=40)
    monkeypatch.setattr(straggling, "MAX_OPS", 60)  # 6 operations a step
    ledger = goodput(folder)
    assert "is that of 10 of 40 profiled steps (1 to 39)" in ledger.notes[-1]
    assert ledger.slowdown == pytest.approx(124 / 104)


def test_the_files_are_read_once(tmp_path, monkeypatch):
    from paceline.sources.run_logs import recorded

    folder = job(tmp_path, lambda *_: 100)
    calls = []
    real = recorded.read_files
    monkeypatch.setattr(recorded, "read_files", lambda path: calls.append(path) or real(path))
    monkeypatch.setattr(reader, "read_files", lambda path: calls.append(path) or real(path))
    goodput(folder)
    assert calls == [folder]


def test_the_command_tells_the_steps(tmp_path, capsys):
    folder = job(tmp_path, lambda _, rank: (80, 120)[rank])
    assert run(["goodput", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "stragglers: S 1.192 is that of 19 of 20 profiled steps" in out
    assert "--slowdown" not in out
    assert run(["goodput", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["slowdown"] == pytest.approx(124 / 104)
    assert run(["goodput", str(folder), "--slowdown", "1.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slowdown"] == 1.5


def test_a_fail_slow_by_waits_for_data_is_told_beside_its_row(tmp_path):
    """A newcomer's ledger had no fail-slow, where `paceline detect` found 5.12 s of one.

    From step 60 on, rank 1 waits 60 ms for its data, 55 ms more than before: 60 of 120 steps.
    """
    wait = {"wait_ms": lambda step, rank: 60.0 if rank and step >= 60 else 5.0, "steps": 120}
    ledger = goodput(job(tmp_path / "slow", lambda *_: 100, **wait))
    assert ledger.seconds["fail_slow"] == 0
    told = [note for note in ledger.notes if "data waits" in note]
    assert told == [
        "3.3 s of the data waits are longer than usual and make a fail-slow since step 60; the row "
        "fail-slow leaves waits out, paceline detect counts whole steps"
    ]
    even = {"wait_ms": lambda *_: 60.0, "steps": 120}
    notes = goodput(job(tmp_path / "even", lambda *_: 100, **even)).notes
    assert not any("data waits" in note for note in notes)


def test_a_fail_slow_by_computes_beside_waits_for_data_has_its_own_row_only(tmp_path):
    slow = {"wait_ms": lambda *_: 5.0, "steps": 120}
    folder = job(tmp_path, lambda step, _: 160 if step >= 60 else 100, **slow)
    ledger = goodput(folder)
    assert ledger.seconds["fail_slow"] > 3
    assert not any("data waits" in note for note in ledger.notes)
