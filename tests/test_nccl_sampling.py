"""One step in n recorded by the NCCL plugin, whole; what the readers make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import nccl
from paceline.cli.main import run as main
from paceline.detect.steps_of_calls import step_times
from paceline.detect.who_calls import who_from_calls
from paceline.errors import DetectError
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX, Process, read_processes
from paceline.sources.call_logs.nccl_steps import step_marks
from paceline.sources.call_logs.timed_calls import read_folder, timed_calls
from paceline.sources.recording.status import switch
from paceline.trace.calls import CallLog
from paceline.watch import CallsWatch

ROOT = Path(__file__).parents[1]
CC = shutil.which(os.environ.get("CC", "cc"))
VERSIONS = (4, 5, 6, 7)

#: As in tests/native/harness.c: calls of a step, in the world and in all; what lies on the device.
RANKS, SLOW, WORLD, HARNESS_CHANNELS = 8, 5, 4, 2
EVERY, MORE = 5, 120
PAIR_CALLS, SENDS = 4, 4


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if CC is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("native")
    plugin, program = folder / nccl.PLUGIN, folder / "harness"
    sources = sorted(nccl.NATIVE.glob("*.c"))
    own = ROOT / "tests" / "native" / "harness.c"
    subprocess.run([CC, *nccl.FLAGS.split(), "-o", plugin, *sources], check=True)
    flags = ["-std=c11", f"-I{nccl.NATIVE}", "-pthread"]
    subprocess.run([CC, *flags, "-o", program, own, "-ldl"], check=True)
    return plugin, program


def run(built: tuple[Path, Path], folder: Path, version: int, *more: str, **env: str) -> int:
    """Steps that each rank made."""
    done = subprocess.run(
        [built[1], built[0], str(version), "sampled", str(MORE), *more],
        env={**os.environ, "PACELINE_RECORD": str(folder), "PACELINE_NCCL_POLL_MS": "20", **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (steps,) = {int(line.split()[1]) for line in done.stdout.splitlines() if "steps" in line}
    return steps


@pytest.fixture(scope="module", params=VERSIONS)
def job(built, request, tmp_path_factory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("job")
    return folder, run(built, folder, request.param, PACELINE_NCCL_EVERY=str(EVERY))


def processes(folder: Path) -> list[Process]:
    return read_processes(sorted(folder.glob(f"*{SUFFIX}")))


def starts_between(process: Process, low_ns: int, high_ns: int) -> dict[int, int]:
    """Records of each type that began on the host from one time to before another."""
    records = process.records
    inside = (
        (records["what"] == 0) & (records["time_ns"] >= low_ns) & (records["time_ns"] < high_ns)
    )
    kinds, counts = np.unique(records["type"][inside], return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))


def test_steps_are_recorded_whole_or_but_for_their_first_call(job: tuple[Path, int]) -> None:
    folder, steps = job
    for process in processes(folder):
        marks = step_marks(process.records)
        assert marks is not None
        assert process.skipped > 0
        assert process.dropped == process.left_out == 0
        assert (marks.calls, marks.every) == (WORLD, EVERY)
        assert marks.number.tolist() == list(range(marks.number[0], marks.number[-1] + 1))
        assert len(marks.number) >= steps - 1, "those before the period was known count, too"
        sampled = marks.number[~marks.is_whole][0]
        for at in np.flatnonzero(marks.number[:-1] > sampled).tolist():
            seen = starts_between(process, *marks.host_ns[at : at + 2].tolist())
            whole = int(marks.number[at]) % EVERY == 0
            assert marks.is_whole[at] == whole
            if whole:
                assert seen[1] == WORLD + PAIR_CALLS
                assert seen[2] == SENDS
                assert seen[6] == HARNESS_CHANNELS * (WORLD + PAIR_CALLS) + SENDS
            elif (marks.number[at] + 1) % EVERY:
                assert seen[1] == 1
                assert seen[6] == HARNESS_CHANNELS
                assert 2 not in seen


def test_the_ranks_record_the_same_steps(job: tuple[Path, int]) -> None:
    begins = []
    for process in processes(job[0]):
        marks = step_marks(process.records)
        assert marks is not None
        rows = process.records[np.isin(process.records["handle"], marks.handle)]
        begun = rows[rows["what"] == 0]
        begins.append({(row["func"], int(row["b"])) for row in begun})
    assert all(one == begins[0] and len(one) == 1 for one in begins)


def test_step_times_and_who_are_those_of_all_steps(job: tuple[Path, int]) -> None:
    folder, steps = job
    log, notes = load_call_log([folder])
    assert [note for note in notes if "step" in note] == [
        f"of one step in {EVERY} all calls were recorded, of the others the first"
    ]
    times = step_times(log)
    assert len(times.table().steps) >= steps - 2
    assert not np.isnan(times.table().duration_s).any()
    usual_s = times.duration_s[times.step < steps // 3]
    # Four calls of 9 ms in the world, and two of a pair behind each.
    assert np.median(usual_s) == pytest.approx(36.8e-3, rel=0.01)
    assert times.duration_s[times.step > steps - MORE // 4].min() == pytest.approx(
        44.8e-3, rel=0.01
    )
    assert {period.calls for period in times.periods.values()} == {WORLD}
    (suspect, *_) = who_from_calls(log, times, steps - MORE // 2)
    assert suspect.ranks == (SLOW,)
    assert who_from_calls(log, times, 0, steps // 3) == ()


def test_watch_tells_the_onset_and_who(job: tuple[Path, int]) -> None:
    folder, steps = job
    watch = CallsWatch(folder, stacks=False)
    news = watch.look()
    changes = [one.fields for one in news if one.kind == "change"]
    assert [one["kind"] for one in changes] == ["onset"]
    assert abs(changes[0]["since_step"] - (steps - MORE // 2)) <= 1
    assert changes[0]["factor"] == pytest.approx(44.8 / 36.8, rel=0.02)
    assert [one.fields["who"][0]["ranks"] for one in news if one.kind == "named"] == [[SLOW]]


def test_who_is_told_with_the_next_whole_step(job: tuple[Path, int], monkeypatch) -> None:
    """The onset shows in any step, and who only in a whole one."""
    folder, steps = job
    log, _ = load_call_log([folder])
    assert log.step is not None
    assert log.is_whole is not None
    early = CallLog(
        **{**vars(log), "is_whole": log.is_whole & (log.step < steps - MORE // 2 - EVERY)}
    )
    with pytest.raises(DetectError, match="no wholly recorded steps from"):
        who_from_calls(early, step_times(early), steps - MORE // 2)
    shown = [early, log, log]
    monkeypatch.setattr("paceline.watch.calls.load_call_log", lambda paths: (shown.pop(0), ()))
    now = [0.0]
    watch = CallsWatch(folder, stacks=False, clock=lambda: now[0])
    kinds = []
    for _ in range(3):
        watch._read_bytes = -1
        now[0] += 1000.0
        kinds.append([one.kind for one in watch.look()])
    assert kinds == [["watching", "change", "plan"], ["named"], []]


def test_waits_are_those_of_whole_steps(job: tuple[Path, int], capsys) -> None:
    folder, _ = job
    timed = timed_calls(*read_folder(folder))
    assert any("of one step in n" in note for note in timed.notes)
    sends = timed.flow != 0
    assert sends.any()
    # A send and its recv have the same number: they are of one step.
    for group in np.unique(timed.group[sends]).tolist():
        sent, got = (
            set(timed.number[(timed.group == group) & (timed.flow == flow)].tolist())
            for flow in (1, -1)
        )
        assert len(sent & got) >= MORE // EVERY // 2 * SENDS
    assert main(["nccl", "waits", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found["late_s"])) == str(SLOW)


def test_calls_that_are_no_step_are_recorded_until_steps_are_known_again(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    steps = run(built, tmp_path, 7, "evaluates", PACELINE_NCCL_EVERY=str(EVERY))
    for process in processes(tmp_path):
        records = process.records
        broadcasts = records[(records["what"] == 0) & (records["func"] == b"Broadcast")]
        assert len(broadcasts) == 6
        marks = step_marks(records)
        assert marks is not None
        assert (np.diff(marks.number) > 0).all()
        assert len(marks.number) <= steps
    times = step_times(load_call_log([tmp_path])[0])
    usual_s = np.median(times.duration_s)
    assert times.duration_s.max() < usual_s * 1.2, "an evaluation is no step"


def test_the_control_file_says_which_steps(built: tuple[Path, Path], tmp_path: Path) -> None:
    switch(tmp_path, on=True, every=7)
    run(built, tmp_path, 6)
    for process in processes(tmp_path):
        marks = step_marks(process.records)
        assert marks is not None
        assert marks.every == 7


def test_a_job_without_steps_or_a_wish_is_recorded_whole(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    for wish in ("1", "0", "-3", "none"):
        done = subprocess.run(
            [built[1], built[0], "6", "job"],
            env={
                **os.environ,
                "PACELINE_RECORD": str(tmp_path / wish),
                "PACELINE_NCCL_EVERY": wish,
            },
            capture_output=True,
            check=True,
            timeout=120,
        )
        assert done.stderr == b""
        found = processes(tmp_path / wish)
        assert all(process.skipped == 0 for process in found)
        assert all(step_marks(process.records) is None for process in found)
