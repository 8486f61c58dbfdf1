"""A pause of eight processes that run the plugin: the harness plays NCCL, the asker is real.

No real NCCL process was paused. What real NCCL calls when is read in its source: docs/pause.md.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli.main import run as main
from paceline.errors import PauseError
from paceline.pause.asker import Times, _why_cancelled, common_communicator, pause
from paceline.pause.events import EVENTS
from paceline.pause.records import (
    CONTROL,
    FOLDER,
    Control,
    Member,
    Slot,
    read_control,
    write_in_place,
)
from paceline.pause.rules import Place, State
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX, Process, read_processes
from paceline.sources.recording.status import switch
from pause_fuzz import fuzz
from pause_stress import RANKS, Built, Job, ask, build, interleaving

CC = shutil.which(os.environ.get("CC", "cc"))

#: A mark of the files: a step begins.
STEP = 3
#: A busy machine takes its time.
PATIENT = Times(hold_s=0.3, arrive_s=40.0, answer_s=60.0, wait_s=60.0, silent_s=30.0)
#: The work ends it.
WORKING = replace(PATIENT, hold_s=60.0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if CC is None:
        pytest.skip("no C compiler on this machine")
    return build(tmp_path_factory.mktemp("native"), CC)


@pytest.fixture
def job(built: Built, tmp_path: Path, request: pytest.FixtureRequest):
    with ExitStack() as stack:
        job = Job(built, tmp_path / "run", **getattr(request, "param", {}))
        stack.callback(job.end)
        while len(list(job.folder.glob("pause/*.slot"))) < RANKS:
            time.sleep(0.02)
        yield job


def test_all_stand_after_the_same_collective_while_the_work_is_done(job: Job) -> None:
    standing = []
    result = pause(job.folder, WORKING, lambda slots, still: standing.append(still()))
    assert standing == [True]
    assert (result.held, result.undisturbed, result.why) == (True, True, "")
    assert [one.rank for one in result.ranks] == list(range(RANKS))
    assert {one.pid for one in result.ranks} == set(job.pids)
    assert {slot.place.number for slot in job.slots()} == {result.number}
    assert all(one.stopped_s >= result.held_s for one in result.ranks)
    assert result.communicator == 0xABC, "the largest communicator, not that of two ranks"


def test_a_second_pause_follows_and_two_at_once_are_refused(job: Job) -> None:
    def again(slots: object, still: object) -> None:
        with pytest.raises(PauseError, match=r"another pause of .* is under way"):
            pause(job.folder, PATIENT)

    first = pause(job.folder, WORKING, again)
    second = pause(job.folder, PATIENT)
    assert first.undisturbed
    assert second.undisturbed
    assert second.number > first.number


def test_an_asker_that_is_killed_stops_nobody_for_long(job: Job) -> None:
    times = {"hold_s": 100.0, "arrive_s": 40.0, "answer_s": 60.0, "silent_s": 0.5}
    asker = ask(job.folder, times)
    while not any(slot.place.state == "arrived" for slot in job.slots()):
        time.sleep(0.02)
    asker.kill()
    asker.communicate()
    while any(slot.place.state == "arrived" for slot in job.slots()):
        time.sleep(0.02)
    stood = [slot for slot in job.slots() if slot.place.number]
    assert stood
    assert all(slot.place.reason in ("asker silent", "cancel") for slot in stood)
    assert all(slot.stopped_s < 60.0 for slot in stood)


def test_ranks_that_die_before_are_missed_and_nobody_stops(job: Job) -> None:
    os.kill(job.pids[3], signal.SIGKILL)
    with pytest.raises(PauseError, match=r"[1-7] of 8 ranks answer"):
        pause(job.folder, Times(hold_s=0.3, answer_s=4.0))
    assert all(slot.place.number == 0 for slot in job.slots())


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"PACELINE_NCCL_TIMEOUT_S": "30"}, "at most 10 s.*PACELINE_NCCL_TIMEOUT_S"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "15"}, "at most 5 s.*HEARTBEAT"),
        ({"DEEPSPEED_TIMEOUT": "1"}, "at most 20 s.*DEEPSPEED_TIMEOUT"),
        ({"PACELINE_NCCL_EVENTS": "0x2"}, r"cannot stop: .*events 1 and 6"),
    ],
    indirect=["job"],
)
def test_what_the_job_does_not_allow_is_refused(job: Job, words: str) -> None:
    with pytest.raises(PauseError, match=words):
        pause(job.folder, PATIENT)
    assert all(slot.place.number == 0 for slot in job.slots())


def test_a_rank_that_hangs_after_it_answered_is_named(job: Job) -> None:
    stopped = []

    def stop_one(slots: Sequence[Slot]) -> None:
        stopped.append(slots[0].pid)
        os.kill(slots[0].pid, signal.SIGSTOP)

    try:
        times = replace(PATIENT, silent_s=1.0, answer_s=10.0)
        result = pause(job.folder, times, accept=stop_one)
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    assert not result.held
    assert "no longer answers" in result.why or "did not stop" in result.why
    assert result.held_s == 0.0


def test_an_evaluation_or_a_checkpoint_is_waited_for_and_then_left_alone(job: Job) -> None:
    times = replace(PATIENT, wait_s=0.5, arrive_s=0.5)
    result = pause(job.folder, times, margin=10**9)
    assert not result.held
    assert "within 0.5 s (evaluation, checkpoint?)" in result.why
    assert all(one.stopped_s == 0 for one in result.ranks)


def test_a_job_whose_recording_is_off_is_paused_and_says_what_it_left_out(job: Job) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in job.folder.glob(f"*{SUFFIX}"))

    switch(job.folder, on=False)
    before = -1
    while before != size():
        before = size()
        time.sleep(1.0)
    assert pause(job.folder, PATIENT).undisturbed
    assert size() == before
    switch(job.folder, on=True)
    while size() < 2 * before:
        time.sleep(0.1)
    job.end()
    found = read_processes(sorted(job.folder.glob(f"*{SUFFIX}")))
    assert len(found) == RANKS
    assert all(process.left_out > 0 and process.dropped == 0 for process in found)
    _, notes = load_call_log([job.folder])
    assert any("switched off" in note for note in notes)


@pytest.mark.parametrize("job", [{"PACELINE_NCCL_EVERY": "3"}], indirect=True)
def test_a_job_that_leaves_steps_out_is_paused(job: Job) -> None:
    def found() -> list[Process]:
        return read_processes(sorted(job.folder.glob(f"*{SUFFIX}")))

    while not all((process.records["what"] == STEP).any() for process in found()):
        time.sleep(0.1)
    result = pause(job.folder, PATIENT)
    assert result.undisturbed, result.why
    assert {slot.place.number for slot in job.slots()} == {result.number}
    job.end()
    assert all(process.skipped > 0 for process in found())


def test_why_nobody_was_held_is_said() -> None:
    def slot(state: State, reason: str) -> Slot:
        place = Place(state, 7, "", reason)
        return Slot(Path("a"), 1, place, "node-1", 42, 0, 160.0, "", 0.0, {}, 1)

    times = Times(arrive_s=10.0)
    late = _why_cancelled([slot("arrived", ""), slot("left", "deadline")], times)
    assert "stood 10 s and not all came" in late
    assert "--arrive" in late
    missed = _why_cancelled([slot("missed", "passed the number")], times)
    assert missed == "process 42 on node-1 did not stop: passed the number"
    assert "different collectives" in _why_cancelled([slot("arrived", "")] * 2, times)


def test_a_control_file_of_another_job_stops_nobody(job: Job) -> None:
    path = job.folder / FOLDER / CONTROL
    other = Control(77, "ask", 1, 300, 1000, 30000)
    write_in_place(path, other.to_bytes())
    while any(slot.place.state != "published" for slot in job.slots()):
        time.sleep(0.02)
    stop = Control(77, "stop", 2, 300, 1000, 30000, communicator=0x123, number=10)
    write_in_place(path, stop.to_bytes())
    while any(slot.place.state != "refused" for slot in job.slots()):
        time.sleep(0.02)
    assert all("another job" in slot.place.reason for slot in job.slots())


@pytest.mark.parametrize("job", [{"PACELINE_NCCL_TIMEOUT_S": "3"}], indirect=True)
def test_an_asker_gone_mad_holds_nobody_longer_than_allowed(job: Job) -> None:
    rng = random.Random(5)
    path, phases = job.folder / FOLDER / CONTROL, ("none", "ask", "stop", "stop", "held", "cancel")
    for beat in range(400):
        told = Control(
            pause=rng.randrange(1, 4) + beat // 40 * 10,
            phase=rng.choice(phases),
            beat=beat,
            hold_ms=rng.choice([0, 500, 2**32 - 1]),
            arrive_ms=rng.choice([0, 100, 2**32 - 1]),
            silent_ms=rng.choice([0, 300, 2**32 - 1]),
            communicator=rng.choice([0xABC, 0xDEF, 2**64 - 1]),
            number=rng.choice([0, 50, 500, 5000, 2**64 - 1]),
        )
        data = told.to_bytes()
        write_in_place(path, rng.choice([data, data, data, bytes(192), rng.randbytes(192)]))
        time.sleep(0.005)
    time.sleep(1.0)
    longest = [int(ms) for ms in re.findall(r"longest (\d+) ms", job.end())]
    assert len(longest) == RANKS
    assert max(longest) < 20_000, "a second is allowed; a busy machine adds to it"


def test_an_asker_whose_file_another_takes_gives_up_and_all_go_on(job: Job) -> None:
    path = job.folder / FOLDER / CONTROL

    def take_over(slots: object, still: object) -> None:
        write_in_place(path, Control(78, "ask", 1, 300, 1000, 500).to_bytes())

    with pytest.raises(PauseError, match="another pause was asked at the same time"):
        pause(job.folder, replace(PATIENT, hold_s=60.0, arrive_s=10.0), take_over)
    while any(slot.place.state != "left" for slot in job.slots()):
        time.sleep(0.02)
    assert {slot.pause for slot in job.slots()} == {78}
    assert {slot.place.reason for slot in job.slots()} == {"asker silent"}


def test_half_a_control_file_is_none() -> None:
    data = Control(77, "ask", 1, 300, 1000, 3000).to_bytes()
    assert read_control(data) == Control(77, "ask", 1, 300, 1000, 3000)
    assert read_control(data[:-1]) is None
    assert read_control(data.replace(b"300", b"301")) is None
    assert read_control(b"") is None


def test_interleavings_with_deaths_and_slow_files(built: Built) -> None:
    """``benchmarks/nccl_pause.py`` has a thousand; each is checked in ``pause_stress.check``."""
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda seed: interleaving(built, seed), range(12)))
    assert {outcome.killed for outcome in outcomes} == {"", "rank", "asker"}
    assert {outcome.slow_ms for outcome in outcomes} == {0, 30, 150}


def test_whatever_befalls_the_files_the_job_goes_on(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NCCL_TIMEOUT_S", "6")
    ended = fuzz(built, tmp_path, seed=1, mishaps=40)
    assert ended["undisturbed"] > 0
    assert ended["refused"] > 0


@pytest.mark.parametrize("name", ["control", "control.json"])
def test_a_pipe_in_the_place_of_a_file_holds_no_communicator(
    built: Built, tmp_path: Path, name: str
) -> None:
    (tmp_path / "pause").mkdir()
    os.mkfifo(tmp_path / ("pause" if name == "control" else "") / name)
    Job(built, tmp_path).end()
    with pytest.raises(PauseError, match="is no file" if name == "control" else "no process"):
        pause(tmp_path, Times(answer_s=0.5))


def test_the_command_says_what_happened_to_each_rank(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["nccl", "pause", str(job.folder), "--arrive", "40s", "--during", "exit 3"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "paused 8 ranks for" in out
    assert out.count("left (go)") == RANKS
    assert "exit code: 3" in out
    (line,) = (job.folder / EVENTS).read_text().splitlines()
    event = json.loads(line)
    assert event["kind"] == "paused"
    assert [one["rank"] for one in event["ranks"]] == list(range(RANKS))
    assert event["exit_code"] == 3


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("s3://bucket/job-17", "no folder of a file system"),
        ("nothing-here", "no job with Paceline's NCCL plugin"),
    ],
)
def test_the_command_refuses(folder: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl", "pause", folder]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("text", ["abc", "0s", "-5s", "999h", "nan"])
def test_a_time_that_is_none_is_refused_by_its_option(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nccl", "pause", str(tmp_path), f"--for={text}"]) == 2
    assert f"--for {text}: give a time" in capsys.readouterr().err


def test_a_job_that_has_ended_is_named(built: Built, tmp_path: Path) -> None:
    Job(built, tmp_path).end()
    with pytest.raises(PauseError, match="no process of a job answers"):
        pause(tmp_path, Times(answer_s=0.5))


def test_no_process_is_no_communicator() -> None:
    assert common_communicator([]) is None


def test_a_group_whose_ranks_answer_first_is_not_the_job() -> None:
    """Ranks 0 and 1 answer; they are all of their own group, and half of the job."""

    def slot(rank: int) -> Slot:
        pair, place = rank // 2, Place("published")
        groups = {1: Member(rank, 4, 5), 2 + pair: Member(rank % 2, 2, 9)}
        return Slot(Path(str(rank)), 1, place, "node-1", rank, rank, 160.0, "", 0.0, groups, 1)

    slots = [slot(rank) for rank in range(4)]
    assert common_communicator(slots[:2]) is None
    assert common_communicator(slots) == 1
