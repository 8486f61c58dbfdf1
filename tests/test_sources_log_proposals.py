"""A pattern made from a log's own lines: read at once if its words are clear, else proposed."""

import random
import re
import shlex

import pytest

from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.sources.step_logs.files import load_step_log

#: Milliseconds of 80 steps.
MS = [250 + random.Random(step).random() for step in range(80)]


def written(path, line, head=("starting up", "world size 8")):
    path.write_text("\n".join([*head, *(line(i, ms) for i, ms in enumerate(MS))]) + "\n")
    return path


CLEAR = {
    "a word and a unit": lambda i, ms: f"step {i} loss {6 - i / 50:.2f} time {ms:.3f} ms",
    "equal signs": lambda i, ms: (
        f"[I] iter={i} loss=5.5 lr=3.0e-4 step_time={ms / 1e3:.6f}s m=1.3GB"
    ),
    "a unit in the name": lambda i, ms: f'[x] {{"step": {i}, "step_time_s": {ms / 1e3:.6f}}}',
    "a unit in brackets": lambda i, ms: f"iteration {i}/5000 eta 0:12:01 iter_time(ms): {ms:.3f}",
    "other times": lambda i, ms: (
        f"step {i} time {ms:.3f}ms total time {i}.5s data time 3.1ms eta 12s fwd time 99 ms"
    ),
    "a loss that is nan": lambda i, ms: f"step {i} loss {'nan' if i % 9 else 2.3} took {ms:.3f} ms",
    "thousands": lambda i, ms: f"step {1000 + i:,} took {ms:.3f} ms",
    "time of the run": lambda i, ms: f"step {i} elapsed {sum(MS[: i + 1]):.3f} ms",
}


@pytest.mark.parametrize("name", CLEAR)
def test_clear_words_are_read_at_once(tmp_path, name):
    times = load_step_log(written(tmp_path / "own.log", CLEAR[name]))
    first = 1 if name == "time of the run" else 0
    assert times.steps.tolist() == [i + 1000 * (name == "thousands") for i in range(first, 80)]
    assert times.duration_s[:, 0] == pytest.approx([ms / 1e3 for ms in MS[first:]], rel=1e-4)
    assert times.warnings[0].startswith("read as --pattern 'it" if "iter" in name else "read as")


def test_ranks_are_read(tmp_path):
    path = tmp_path / "own.log"
    lines = [
        f"[rank{r}] step {i} took {ms + r - 3:.3f} ms" for i, ms in enumerate(MS) for r in (3, 4)
    ]
    path.write_text("\n".join(lines) + "\n")
    times = load_step_log(path)
    assert times.ranks.tolist() == [3, 4]
    assert times.duration_s[:, 1] == pytest.approx([ms / 1e3 + 1e-3 for ms in MS], rel=1e-4)


UNCLEAR = {
    "no step": (lambda i, ms: f"loss 5.53 dt {ms:.2f}ms tok/sec 12345", "duration_ms"),
    "no unit": (lambda i, ms: f"step: {i}, loss: 2.3, time: {ms / 1e3:.4f}", "duration_s"),
    "steps a second": (
        lambda i, ms: f"batch {i} loss 0.5 speed {1e3 / ms:.4f} it/s",
        "steps_per_s",
    ),
    "tokens a second": (lambda i, ms: f"step {i} | loss 5.5 | {5e5 / ms:.0f} tok/s", "rate"),
    "times of lines": (lambda i, ms: f"2026-11-27 10:{i // 60:02d}:{i % 60:02d} step {i}", "time"),
    "two times": (
        lambda i, ms: f"step {i} time {ms:.2f} ms, batch time {ms:.2f} ms",
        "duration_ms",
    ),
    "a quote": (lambda i, ms: f"it's the loss, took '{ms / 1e3:.3f}' sec", "duration_s"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_proposal_works_when_pasted(capsys, tmp_path, name):
    line, group = UNCLEAR[name]
    path = written(tmp_path / "own.log", line)
    assert run(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    pasted = re.search(r"its lines suggest (--pattern '[^']*')", err)[1]
    assert f"(?P<{group}>" in pasted
    assert ("the unit is a guess" in err) == (name == "no unit")
    assert run(["detect", str(path), *shlex.split(pasted)]) == 0
    assert "0 fail-slows, healthy at the end" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        lambda i, ms: f"step {i} loss {i / 10:.3f} acc 0.3",
        lambda i, ms: f"GET /index.html 200 {i}",
        lambda i, ms: f"step {i} val time {ms:.1f} ms",
        lambda i, ms: f"step {i} eta {ms:.0f}s",
    ],
)
def test_lines_without_a_time_of_a_step_are_not_read(tmp_path, line):
    with pytest.raises(TraceError, match="run the command again with the pattern"):
        load_step_log(written(tmp_path / "own.log", line))


def test_lines_of_validations_do_not_match(tmp_path):
    path = written(tmp_path / "own.log", CLEAR["a word and a unit"])
    text = path.read_text()
    path.write_text(text + "step 80 val loss 3.2 time 4000.0 ms\nstep 80 eval time 9000.0 ms\n")
    assert load_step_log(path).duration_s.max() < 0.3
