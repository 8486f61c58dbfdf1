"""The loop closed on a real job: four processes train, one is slowed, found and relieved."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import requires

requires.installed("torch")

import peace
from paceline.demo.busy import cpu_seconds
from paceline.demo.control import CONTROL, LOSSES, Control
from paceline.demo.live import LEVELS, run_live
from paceline.demo.processes import Shape, Training
from paceline.detect.waits import wait_graph
from paceline.errors import DemoError
from paceline.mitigate.strategies import weights
from paceline.pause.events import EVENTS
from paceline.sources import load
from paceline.sources.call_logs.joining import with_recording
from paceline.sources.call_logs.timed_calls import read_folder, timed_calls
from paceline.sources.recording.files import read_files
from paceline.trace import OpKind
from pause_stress import build

timed = peace.timed

CC = shutil.which(os.environ.get("CC", "cc"))

QUICK = Shape(microbatches=4, forward_s=0.001, backward_s=0.002)
#: The demo's own job with fewer microbatches: what is judged are ratios, and its steps are shorter.
SHORT = Shape(microbatches=8)


def workers_of(folder):
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command and b"demo.worker" in command:
                found.append(int(entry.name))
    return found


def gone(folder, seconds=150.0):
    """Whether all end; a worker that still imports torch learns late that its parent is gone."""
    deadline = time.monotonic() + seconds
    while workers_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not workers_of(folder)


@requires.on_linux
class TestProcesses:
    def test_a_dead_rank_is_named_and_the_others_end(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with Training(Path("job"), QUICK) as job:
            job.wait_for(2)
            job.workers[3].kill()
            with pytest.raises(DemoError, match=r"rank [0-3] of the demo's training job ended"):
                job.wait_for(10_000)
        assert gone(tmp_path)

    @pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_no_process_is_left_when_the_demo_is_ended(self, tmp_path, sign):
        folder = tmp_path / "run"
        demo = subprocess.Popen(
            [sys.executable, "-m", "paceline", "demo", "--live", "-o", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 150
            while len(workers_of(folder)) < 4 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert len(workers_of(folder)) == 4
            demo.send_signal(sign)
            assert demo.wait(120) != 0
            assert gone(folder)
        finally:
            demo.kill()


def test_control_says_all_in_numbers(tmp_path):
    control = Control((5, 11), 1.5, 3, True, 7)
    control.write(tmp_path / CONTROL)
    assert Control.read(tmp_path / CONTROL) == control
    assert Control.from_values(control.to_values()) == control


def test_a_message_tells_the_first_step_that_obeyed_it(tmp_path):
    """Recordings may lie some steps behind; a half written line is no step."""
    job = Training(tmp_path, QUICK)
    lines = [{"step": n, "loss": 1.0, "counts": [4, 4], "message": int(n > 6)} for n in range(9)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / LOSSES).write_text(text + '{"step": 9, "lo')
    assert job.say(factor=2.0) == 7
    assert Control.read(tmp_path / CONTROL) == Control((4, 4), 2.0, number=1)
    assert len(job.losses()) == 9


def test_other_work_is_that_of_no_descendant(tmp_path):
    """/proc as Linux has it, with a process whose name holds a bracket; in ticks."""
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(
        f"cpu {60 * tick} {20 * tick} {10 * tick} 999 999 0 0 {tick} 0\n"
    )
    for pid, parent, name, seconds in (
        (2, 1, "us", 5),
        (3, 2, "a) b", 4),
        (4, 3, "c", 3),
        (5, 1, "o", 9),
    ):
        (tmp_path / str(pid)).mkdir()
        # Behind the parent lie nine other fields, then utime, stime, and those of ended children.
        stat = f"{pid} ({name}) R {parent} {'0 ' * 9}{(seconds - 3) * tick} {tick} {tick} {tick} 0"
        (tmp_path / str(pid) / "stat").write_text(stat)
    assert cpu_seconds(tmp_path, 2) == (5 + 4 + 3, 91)
    assert cpu_seconds(tmp_path / "absent") is None


def test_an_existing_folder_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "demo", "--live", "-o", str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "exists already" in done.stderr


def check_join(folder):
    """What the plugin saw of gloo's calls is what the hooks recorded, call by call."""
    trace = load(folder)
    joined = with_recording(timed_calls(*read_folder(folder)), trace, read_files(folder))
    recorded = int(np.isin(trace.kind, range(OpKind.FORWARD_SEND, OpKind.GC)).sum())
    assert np.isfinite(joined.end_s).sum() > 0.9 * recorded
    graph = wait_graph(joined)
    assert graph.basis == "exact"
    reductions = {row.ranks for row in graph.transfers if row.op == "AllReduce"}
    assert reductions == {(0, 1), (2, 3)}


@pytest.mark.alone
def test_the_loop_is_closed(tmp_path, timed):
    """Whatif paper, 6 (1.16, 1.40, 2.03 measured; 1.21, 1.42, 1.98 estimated), then falcon.

    With a compiler gloo's collectives go through the NCCL plugin, and its pause protocol validates.
    """
    said = []
    plugin = None if CC is None else build(tmp_path, CC).plugin
    with timed():
        result = run_live(tmp_path, said.append, SHORT, plugin=plugin)
    assert result.lost_steps == 0
    if plugin is not None:
        assert result.pause["undisturbed"]
        assert {rank["reason"] for rank in result.pause["ranks"]} == {"go"}
        (event,) = (tmp_path / "job" / EVENTS).read_text().splitlines()
        assert json.loads(event)["number"] == result.pause["number"] > 0
        check_join(tmp_path / "job")
    assert [level.factor for level in result.levels] == list(LEVELS)
    assert result.counts[0] < result.counts[1]
    assert sum(result.counts) == 2 * SHORT.microbatches
    assert result.loss_difference < 1e-5
    assert len(result.actions) == 2
    assert "evenly again" in result.actions[1]
    assert json.loads(json.dumps(result.to_mapping()))["recovered"] == result.recovered
    assert sum(weights(result.counts)) == pytest.approx(1)
    assert any("analysis says" in line for line in said)
    assert (tmp_path / "job" / CONTROL).exists()
    with timed():
        for level in result.levels:
            assert (0, 0) in level.workers
            assert abs(level.error) <= 0.08, level
        assert result.levels[0].measured < result.levels[1].measured < result.levels[2].measured
        assert result.detected_after <= 10
        assert result.named == (0,)
        assert result.watched == (0,)
        assert result.watched_after_s <= 60
        assert result.recovered >= 0.5
        assert result.back_s < 1.15 * result.healthy_s
        assert result.seconds < 180
