"""``paceline record``, and the other commands on a recorded folder."""

import json
import re

import numpy as np
import pytest

from paceline import synthesize
from paceline.cli.main import run
from paceline.synth import SlowWorker
from recordings import SetClock, play, record_trace, recorder
from test_sources_recording import one_rank, spec


def said(capsys, *args):
    code = run([str(arg) for arg in args])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_status(capsys, tmp_path):
    record_trace(synthesize(spec()), tmp_path)
    code, out, err = said(capsys, "record", "status", tmp_path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{tmp_path.name}: 4 of 4 ranks, 3 steps on all of them"
    assert lines[1].split() == [
        "rank",
        "host",
        "steps",
        "times",
        "dropped",
        "bytes",
        "written",
        "clock",
    ]
    assert len(lines) == 6
    assert re.search(r" \d+ s ago  ±1 us$", lines[2])
    end = lines[1].index("written") + len("written")
    assert all(line[:end].endswith(" ago") for line in lines[2:])


def test_status_of_a_damaged_start(capsys, tmp_path):
    one_rank(tmp_path, (0, 1, 2), rank=0, world=2, run="job\x1b[31m17")
    path = tmp_path / "rank-00000-0.blocks"
    path.write_bytes(path.read_bytes()[:-5])
    code, out, _ = said(capsys, "record", "status", tmp_path)
    assert code == 0
    assert "job[31m17: 1 of 2 ranks" in out
    assert "no file of rank 1" in out
    assert "unfinished block at the end" in out
    assert "\x1b" not in out


def test_status_as_json(capsys, tmp_path):
    one_rank(tmp_path, (0, 1, 2))
    said(capsys, "record", "off", tmp_path)
    code, out, _ = said(capsys, "record", "status", tmp_path, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["ranks"], told["ranks_seen"], told["common_steps"]) == (1, 1, 3)
    assert told["switch"] == "off"
    (file,) = told["files"]
    assert (file["steps"], file["step_times"], file["clock_residual_s"]) == (3, 3, None)
    assert file["bytes"] == (tmp_path / file["file"]).stat().st_size
    assert file["last_write_age_s"] >= 0


@pytest.mark.parametrize("switch", ["{", "[1]", "[" * 100_000, '{"on":' * 100_000])
def test_status_beside_a_broken_switch(capsys, tmp_path, switch):
    one_rank(tmp_path)
    (tmp_path / "control.json").write_text(switch)
    code, out, err = said(capsys, "record", "status", tmp_path)
    assert (code, err) == (0, "")
    assert "switched" not in out


def test_the_screen_shows_no_escape_of_a_file(capsys, tmp_path):
    one_rank(tmp_path, run="job\x1b[31m\u202e17")
    code, out, _ = said(capsys, "analyze", tmp_path)
    assert code == 0
    assert out.startswith("job\ufffd[31m\ufffd17: dp 1")


def test_the_switch(capsys, tmp_path):
    assert said(capsys, "record", "on", tmp_path, "--every", 50)[0] == 0
    assert json.loads((tmp_path / "control.json").read_text()) == {"on": True, "every": 50}
    assert said(capsys, "record", "off", tmp_path)[0] == 0
    assert json.loads((tmp_path / "control.json").read_text()) == {"on": False}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["status", "FOLDER"], "holds no recording"),
        (
            ["status", "FOLDER/none"],
            "does not exist: no process records into it. If PACELINE_RECORD",
        ),
        (["on", "FOLDER/none"], "is no folder"),
        (["on", "FOLDER", "--every", "0"], "counts from 1"),
        (["off", "FOLDER", "--every", "5"], "--every is for on"),
        (["status", "FOLDER", "--every", "5"], "--every is for on"),
        (["on", "FOLDER", "--json"], "--json is for status"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, tmp_path, args, words):
    code, out, err = said(capsys, "record", *(arg.replace("FOLDER", str(tmp_path)) for arg in args))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_analyze_takes_the_folder(capsys, tmp_path):
    record_trace(synthesize(spec(dp=4, slow_workers=(SlowWorker(2, 1, 1.5),))), tmp_path)
    code, out, _ = said(capsys, "analyze", tmp_path, "--json")
    assert code == 0
    told = json.loads(out)
    by_worker = np.array(told["by_worker"])
    assert np.unravel_index(by_worker.argmax(), by_worker.shape) == (1, 2)  # [pp][dp]


def test_analyze_compacts_the_folder_into_one_file(capsys, tmp_path):
    record_trace(synthesize(spec(dp=4, slow_workers=(SlowWorker(2, 1, 1.5),))), tmp_path)
    out = tmp_path / "out"
    assert said(capsys, "analyze", tmp_path, "--out", out)[0] == 0
    compacted = out / "trace.parquet"
    of_folder, of_file = (
        json.loads(said(capsys, "analyze", path, "--json")[1]) for path in (tmp_path, compacted)
    )
    assert of_file == of_folder
    # The recordings stay, and one file is never written over another unasked.
    assert said(capsys, "analyze", tmp_path)[0] == 0
    before = compacted.read_bytes()
    for name in ("result.json", "by_worker.csv", "ideal.json.gz", "report.html"):
        (out / name).unlink()
    code, _, err = said(capsys, "analyze", tmp_path, "--out", out)
    assert code == 2
    assert "trace.parquet" in err
    assert compacted.read_bytes() == before
    # The folder of recordings itself is a place for it, too.
    assert said(capsys, "analyze", tmp_path, "--out", tmp_path)[0] == 0
    assert said(capsys, "analyze", tmp_path)[0] == 0


def test_analyze_takes_a_folder_of_one_rank(capsys, tmp_path):
    clock = SetClock()
    rec = recorder(tmp_path, clock)
    ops = [("forward-compute", 0, 0, 0, 10**6), ("backward-compute", 0, 0, 10**6, 3 * 10**6)]
    for number in range(2):
        zero = number * 10**7
        moved = [(*what, zero + start, zero + end) for *what, start, end in ops]
        play(rec, clock, number, moved, (zero, zero + 4 * 10**6))
    rec.close()
    code, out, _ = said(capsys, "analyze", tmp_path)
    assert code == 0
    assert "dp 1 × pp 1 on 1 GPU ·" in out
