"""Episodes of a file, and ranks that are slow together because they wait."""

import json

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.episodes import are_together, episodes_of
from paceline.detect.event import Event
from paceline.detect.job import JobEvent

#: A fail-slow from step 200 to 500 in four levels, then a healthy job.
LEVELS = np.repeat([1.0, 1.3, 1.8, 1.3, 1.6, 1.0], [200, 80, 80, 80, 60, 200])


def said(capsys, *args):
    code = run(["detect", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def table(path, duration_s):
    steps, ranks = duration_s.shape
    rows = [f"{s},{r},{duration_s[s, r]:.6f}" for s in range(steps) for r in range(ranks)]
    path.write_text("\n".join(["step,rank,duration_s", *rows]) + "\n")
    return path


def noise(*shape, spread=0.01):
    return np.random.default_rng(0).normal(1, spread, shape)


def waiting(ranks=2):
    """Step times of ranks that wait for each other: only single steps differ, not their means."""
    job = LEVELS * noise(len(LEVELS), spread=0.02)
    shift = noise(len(LEVELS) + 1, ranks, spread=0.04)
    return job[:, None] + np.diff(shift, axis=0)


def event(kind, step, rank=0):
    return Event(kind, rank, step, step, 1.5, 1.0, 1.0)


def test_an_episode_ends_when_all_its_ranks_are_healthy():
    def of_job(kind, step, *ranks):
        return JobEvent(kind, step, step, ranks, 3, 1.5, 1.0)

    events = [
        of_job("onset", 1, 0),
        of_job("onset", 2, 1),
        of_job("silent", 3, 2),
        of_job("relief", 4, 0),
        of_job("worsening", 5, 1),
        of_job("relief", 6, 1),
        of_job("faster", 7, 0, 1, 2),
        of_job("onset", 8, 2),
    ]
    episodes = episodes_of(events)
    assert [e.places for e in episodes] == [(0, 1, 3, 4, 5), (2,), (6,), (7,)]
    assert [e.is_over for e in episodes] == [True, False, False, False]
    assert episodes[0].changes == (1, 3, 4)


def test_ranks_by_themselves_have_episodes_of_their_own():
    kinds = [("onset", 0), ("onset", 1), ("relief", 0), ("worsening", 1), ("relief", 1)]
    events = [event(kind, step, rank) for step, (kind, rank) in enumerate(kinds)]
    assert [e.places for e in episodes_of(events)] == [(0, 2), (1, 3, 4)]


@pytest.mark.parametrize(
    ("waits", "together"), [(1.5, True), (1.42, True), (1.2, False), (1, False)]
)
def test_ranks_are_together_if_the_fastest_rises_as_well(waits, together):
    duration_s = np.ones((300, 3))
    duration_s[200:] *= [1.5, waits, 1.45]
    events = [event("onset", 200, 0)]
    assert are_together(duration_s, range(300), events) is together


@pytest.mark.parametrize("waits", [1, 1.5])
def test_pauses_of_all_ranks_do_not_make_a_slow_rank_one_of_all(waits):
    duration_s = np.ones((300, 3))
    duration_s[200:] *= [1.5, waits, waits]
    duration_s[220:300:40] = 60  # checkpoints while it is slow
    duration_s[250, 1] = 500
    assert are_together(duration_s, range(300), [event("onset", 200, 0)]) is (waits == 1.5)


def test_a_fail_slow_of_one_rank_is_not_hidden_by_one_of_all():
    duration_s = np.ones((900, 3))
    duration_s[200:250, 1] = 1.5
    duration_s[400:] = 1.5
    events = [event("onset", 200, 1), event("relief", 250, 1)]
    events += [event("onset", 400, rank) for rank in range(3)]
    assert not are_together(duration_s, range(900), events)
    assert are_together(duration_s[300:], range(300, 900), events[2:])


def test_one_rank_is_not_together():
    assert not are_together(np.ones((9, 1)), range(9), [])
    assert not are_together(np.ones((9, 2)), range(9), [])


def test_an_episode_is_one_block(capsys, tmp_path):
    path = table(tmp_path / "it.csv", LEVELS[:, None] * noise(len(LEVELS), 1))
    lines = said(capsys, path)[1].splitlines()
    assert [line[:5] for line in lines] == ["step ", "  in ", "  3 c", "step ", "700 s"]
    assert lines[2].startswith("  3 changes until step 440: levels from 1.")
    assert "x to 1.80x, " in lines[2]
    assert lines[2].endswith("lost by then; --verbose lists them")
    assert "700 steps of 1 rank: 1 fail-slow, healthy at the end" in lines[-1]
    every = said(capsys, path, "--verbose")[1]
    assert every.count("slower still") == 2
    assert every.count("partly relieved") == 1
    events = [json.loads(line) for line in said(capsys, path, "--json")[1].splitlines()]
    kinds = ["onset", "worsening", "partial-relief", "worsening", "relief"]
    assert [e["kind"] for e in events] == kinds


def test_ranks_that_wait_are_not_named(capsys, tmp_path):
    path = table(tmp_path / "it.csv", waiting())
    out = said(capsys, path)[1]
    assert "rank 0" not in out
    assert "rank 1" not in out
    assert out.count("slower since") == 1
    assert "who: unknown, as ranks that wait are slow together; run paceline validate" in out
    assert "700 steps of 2 ranks: 1 fail-slow, healthy at the end" in out
    events = [json.loads(line) for line in said(capsys, path, "--json")[1].splitlines()]
    assert all(e["together"] for e in events)
    assert "rank 1" in said(capsys, path, "--by-rank")[1]


def test_a_rank_that_alone_is_slow_is_named(capsys, tmp_path):
    """Compute times, apart from the wait, tell the rank."""
    duration_s = noise(len(LEVELS), 3)
    duration_s[:, 1] *= LEVELS
    path = table(tmp_path / "it.csv", duration_s)
    out = said(capsys, path)[1]
    assert "rank 1: 1.3" in out
    assert "why: unknown" in out
    events = [json.loads(line) for line in said(capsys, path, "--json")[1].splitlines()]
    assert not any(e["together"] for e in events)


@pytest.mark.parametrize("slow", [0, 2])
def test_a_column_of_waits_names_the_slow_rank(capsys, tmp_path, slow):
    """All wait for the slow rank; only its own work has risen."""
    duration_s = waiting(3)
    work_s = 0.9 * noise(len(LEVELS), 3)
    work_s[:, slow] *= LEVELS
    lines = ["step,rank,duration_s,wait_s"]
    for step, rank in np.ndindex(duration_s.shape):
        seconds = duration_s[step, rank]
        lines.append(f"{step},{rank + 8},{seconds:.6f},{seconds - work_s[step, rank]:.6f}")
    path = tmp_path / "it.csv"
    path.write_text("\n".join(lines) + "\n")
    out = said(capsys, path)[1]
    assert f"slower since step 200; rank {8 + slow}; compute; " in out
    assert f"  rank {8 + slow}; compute: 1.1" in out
    assert "of own work a step instead of 0." in out
    onset = json.loads(said(capsys, path, "--json")[1].splitlines()[0])
    (who,) = onset["who"]
    assert (who["ranks"], who["kind"]) == ([8 + slow], "compute")
    assert who["factor"] == pytest.approx(1.3, abs=0.02)


def test_waits_without_a_rank_that_works_longer_name_nobody(capsys, tmp_path):
    """Transfers have become slower: all wait longer, and nobody works longer."""
    duration_s = waiting(2)
    lines = ["step,rank,duration_s,wait_s"]
    for step, rank in np.ndindex(duration_s.shape):
        seconds = duration_s[step, rank]
        lines.append(f"{step},{rank},{seconds:.6f},{seconds - 0.8:.6f}")
    path = tmp_path / "it.csv"
    path.write_text("\n".join(lines) + "\n")
    assert "slower since step 200; who: nobody stands out; " in said(capsys, path)[1]


def test_the_largest_factor_names_its_ranks(capsys, tmp_path):
    duration_s = noise(len(LEVELS), 3)
    duration_s[:, 1] *= LEVELS
    duration_s[240:520, 2] *= 1.2
    out = said(capsys, table(tmp_path / "it.csv", duration_s))[1]
    assert "levels from 1.20x to 1.80x (rank 1), " in out


def test_silent_ranks_are_told_beside_a_job_that_is_slow_together(capsys, tmp_path):
    duration_s = waiting(3)
    duration_s[600:, 2] = np.nan
    out = said(capsys, table(tmp_path / "it.csv", duration_s))[1]
    assert "rank 2: no sample since step 600" in out
    assert "1 fail-slow, healthy at the end, 1 rank silent" in out


def test_a_stream_has_no_blocks(capsys, monkeypatch):
    code, _, err = said(capsys, "-", "--verbose")
    assert code == 2
    assert "--verbose is for files; of a stream each change is printed" in err


@pytest.mark.parametrize(("lines", "code"), [(20, 2), (21, 0)])
def test_lines_of_every_tenth_step_need_a_shorter_warm_up(capsys, tmp_path, lines, code):
    path = tmp_path / "train.log"
    text = "".join(f"iter {10 * n}: loss 2.5, time 90.25ms, mfu 30%\n" for n in range(lines))
    path.write_text(text)
    got, out, err = said(capsys, path)
    assert got == code
    if code:
        assert "has 20 samples (200 steps); the first 20 samples are the warm-up" in err
    else:
        assert "21 samples (210 steps) of 1 rank: 0 fail-slows, healthy at the end" in out


def test_a_slow_job_with_fifty_lines_of_every_tenth_step(capsys, tmp_path):
    path = tmp_path / "train.log"
    times = np.repeat([90.0, 126.0], [30, 20]) * noise(50, spread=0.02)
    lines = (f"iter {10 * n}: loss 2.5, time {ms:.2f}ms, mfu 30%\n" for n, ms in enumerate(times))
    path.write_text("".join(lines))
    code, out, err = said(capsys, path)
    assert code == 0
    assert "slower since step 300" in out
    assert "50 samples (500 steps) of 1 rank: 1 fail-slow, slow at the end" in out
    assert "a sample every 10 steps, one step of 10" in err


@pytest.mark.parametrize("ranks", [2, 5])
def test_text_and_json_give_the_same_steps_and_factors(capsys, tmp_path, ranks):
    """Ranks that wait are judged by their median; single ranks differ by a few steps."""
    path = table(tmp_path / "it.csv", waiting(ranks))
    events = [json.loads(line) for line in said(capsys, path, "--json")[1].splitlines()]
    lines = said(capsys, path)[1].splitlines()
    assert events[0]["ranks"] == list(range(ranks))
    assert [events[0]["text"], events[-1]["text"]] == [
        line for line in lines if line.startswith("step ")
    ]
    every = said(capsys, path, "--verbose")[1].splitlines()
    assert [event["text"] for event in events] == [
        line for line in every if line.startswith("step ")
    ]
