"""Episodes of a file, and ranks that are slow together because they wait."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.detect.episodes import (
    ReliefDates,
    are_shared,
    are_together,
    episodes_of,
    without_short_levels,
)
from paceline.detect.event import Estimate, Event
from paceline.detect.job import JobEvent, job_events
from paceline.detect.slow_ranks import slow_ranks
from paceline.detect.who_works import with_suspects
from paceline.synth import SlowWorker, SynthSpec, synthesize
from recordings import record_trace

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


@pytest.mark.parametrize(("others", "shared"), [(0.85, True), (0.97, False), (1.0, False)])
@pytest.mark.parametrize("kind", ["onset", "faster"])
def test_a_change_of_one_rank_is_shared_if_all_others_have_it(kind, others, shared):
    """One rank changes by a fifth, the others by the rest of ``others``."""
    change = 1.2 if kind == "onset" else 0.8
    duration_s = noise(300, 3)
    duration_s[200:, 1] *= change
    duration_s[200:, ::2] *= 1 + (1 - others) / 0.2 * (change - 1) * 1.05
    after_s = change if kind == "faster" else 1.0
    one = Event(kind, 1, 210, 200, change, 1.0, after_s, before_factor=change)
    events = job_events([one], 3)
    assert are_shared(duration_s, range(300), [0, 1, 2], events) is shared
    everyone = job_events([replace(one, rank=rank) for rank in range(3)], 3)
    assert not are_shared(duration_s, range(300), [0, 1, 2], everyone)


def test_what_noise_brings_above_the_bar_for_one_of_two_ranks_that_wait_is_the_jobs(
    capsys, tmp_path
):
    """A job of 0.9x from step 90 on: one rank passes the bar, the other one does not."""
    rng = np.random.default_rng(9)
    job = np.repeat([1.0, 0.893], [90, 60]) * rng.normal(1, 0.02, 150)
    duration_s = job[:, None] + np.diff(rng.normal(0, 0.02, (151, 2)), axis=0)
    path = table(tmp_path / "it.csv", duration_s)
    by_rank = said(capsys, path, "--by-rank")[1]
    assert "rank 0 is faster since step 90" in by_rank
    assert "rank 1" not in by_rank
    out = said(capsys, path)[1]
    assert "rank 0" not in out
    assert "150 steps of 2 ranks: 0 fail-slows, healthy at the end" in out


def test_a_file_does_not_tell_faster_levels_that_did_not_last(capsys, tmp_path):
    factors = np.repeat([1.0, 0.7, 1.0, 1.3, 0.7, 1.0], [300, 20, 100, 40, 20, 120])
    path = table(tmp_path / "it.csv", factors[:, None] * noise(600, 1))
    onset, _, end, last = said(capsys, path)[1].splitlines()
    assert "x slower since step 420" in onset
    assert end.endswith(": healthy again since step 460")
    assert last.startswith("600 steps of 1 rank: 1 fail-slow, healthy at the end, 12")


def test_a_faster_level_that_lasted_stays_beside_one_that_did_not():
    def of(kind, step, healthy_s, factor, before):
        return Event(kind, 0, step, step, factor, 0.0, healthy_s, before_factor=before)

    lasting, short = of("faster", 100, 0.7, 0.7, 0.7), of("faster", 300, 0.56, 0.8, 0.8)
    shorter = of("faster", 320, 0.42, 0.6, 0.75)
    back = of("relief", 340, 0.7, np.nan, 1.67)
    assert without_short_levels([lasting, short, shorter, back]) == [lasting]


@pytest.mark.parametrize(("median", "lasted"), [(0.9, True), (0.97, False)])
def test_a_faster_level_of_a_healthy_median_did_not_last(median, lasted):
    def of(kind, step, healthy_s, factor, before, median=None):
        refined = None if median is None else Estimate(median, 0.9 * median, 1.1 * median, 99)
        at = (0, step, step, factor, 0.0, healthy_s)
        return Event(kind, *at, before_factor=before, refined=refined)

    onset = of("onset", 100, 1.0, 1.4, 1.4, 1.4)
    faster = of("faster", 200, 0.7, 0.7, 0.5, median)
    assert without_short_levels([faster]) == [faster] * lasted
    first, second = without_short_levels([onset, faster])
    assert (first, second.kind) == (onset, "faster" if lasted else "relief")
    assert (second.refined is None) is not lasted


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
    assert "who: unknown, as ranks that wait are slow together; run paceline validate --w" in out
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
    assert f"  rank {8 + slow}; compute: 1.6" in out  # the level of 1.8x costs most
    assert "of own work a step instead of 0." in out
    onset = json.loads(said(capsys, path, "--json")[1].splitlines()[0])
    (who,) = onset["who"]
    assert (who["ranks"], who["kind"]) == ([8 + slow], "compute")
    assert who["factor"] == pytest.approx(1.8, abs=0.02)


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


def test_a_rank_that_is_slow_from_the_first_step_is_named_by_its_waits(capsys, tmp_path):
    """No step time changes. Rank 9 works twice as long as the others, which wait for it."""
    duration_s, work_s = noise(120, 3), 0.45 * noise(120, 3)
    work_s[:, 1] *= 2
    path, lines = tmp_path / "it.csv", ["step,rank,duration_s,wait_s"]
    for step, rank in np.ndindex(duration_s.shape):
        seconds = duration_s[step, rank]
        lines.append(f"{step},{rank + 8},{seconds:.6f},{seconds - work_s[step, rank]:.6f}")
    path.write_text("\n".join(lines) + "\n")
    out = said(capsys, path)[1]
    assert "0 fail-slows" in out
    assert "slow from the first step: rank 9: 1.99x the own work of the median rank in all" in out
    (found,) = slow_ranks(duration_s, duration_s - work_s, [8, 9, 10])
    assert found.factor == pytest.approx(2.0, abs=0.02)
    work_s[:60, 1] /= 2  # slow in the second half alone: no slowness in all steps
    assert slow_ranks(duration_s, duration_s - work_s, [8, 9, 10]) == ()


def test_a_recording_without_a_change_says_where_slowness_from_the_first_step_shows(
    capsys, tmp_path
):
    slow = (SlowWorker(1, 0, 3.0),)
    record_trace(synthesize(SynthSpec(dp=2, pp=1, steps=60, slow_workers=slow)), tmp_path / "run")
    out = said(capsys, tmp_path / "run")[1]
    assert "60 steps of 2 ranks: 0 fail-slows" in out
    assert f"paceline analyze {tmp_path / 'run'} shows it" in out


def test_the_last_line_has_the_loss_of_all_fail_slows(capsys, tmp_path):
    """100 steps at 1.3 s and 100 at 1.5 s instead of 1 s lose 30 s and 50 s."""
    seconds = np.repeat([1.0, 1.3, 1.0, 1.5], [200, 100, 200, 100]) * noise(600, spread=0.005)
    path = table(tmp_path / "it.csv", seconds[:, None])
    last = said(capsys, path, "--gpus", 36)[1].splitlines()[-1]
    head, lost, hours = re.fullmatch(
        r"(.*), (\S+) s \((\S+) GPU-hours\) lost in all", last
    ).groups()
    assert head == "600 steps of 1 rank: 2 fail-slows, slow at the end"
    assert float(lost) == pytest.approx(80, abs=1)
    assert float(hours) == pytest.approx(0.8, abs=0.01)
    table(path, seconds[:450, None])
    assert re.search(
        r"1 fail-slow, healthy at the end, (29|30)\S* s lost in all", said(capsys, path)[1]
    )
    assert "lost so far" in said(capsys, path, "--running", "--no-stacks")[1].splitlines()[0]


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


def stream(capsys, monkeypatch, duration_s, *args, wait_s=None):
    """Output for a stream of [step, rank] seconds."""
    lines = []
    for step, rank in np.ndindex(duration_s.shape):
        line = {"step": step, "rank": rank, "duration_s": round(duration_s[step, rank], 6)}
        if wait_s is not None:
            line["wait_s"] = wait_s[step, rank]
        lines.append(json.dumps(line))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, _ = said(capsys, "-", "--ranks", duration_s.shape[1], *args)
    assert code == 0
    return out.splitlines()


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_stream_says_of_ranks_that_wait_what_the_file_says(capsys, monkeypatch, tmp_path, ranks):
    duration_s = waiting(ranks)
    onset, *worse, end, last = stream(capsys, monkeypatch, duration_s)
    in_file = said(capsys, table(tmp_path / "it.csv", duration_s))[1].splitlines()
    assert onset == in_file[0]
    assert "who: unknown, as ranks that wait are slow together" in onset
    (worse,) = worse  # 1.8x; the level of 1.6x is no news
    assert "slower still since step 280: 1." in worse
    (relief,) = [line for line in in_file if "healthy again" in line]
    assert end.startswith(f"{relief}; 3 changes until step 440: levels from 1.2")
    assert last == f"700 steps of {ranks} ranks: 1 fail-slow, healthy at the end"
    of_stream = [json.loads(line) for line in stream(capsys, monkeypatch, duration_s, "--json")]
    of_file = map(json.loads, said(capsys, tmp_path / "it.csv", "--json")[1].splitlines())
    for event, expected in zip(of_stream, of_file, strict=True):
        assert event["text"] == expected["text"]
        assert event["together"]
    every = stream(capsys, monkeypatch, duration_s, "--verbose")
    assert [line for line in every if line.startswith("step ")] == [e["text"] for e in of_stream]


def test_a_stream_names_a_rank_that_no_other_rank_waits_for(capsys, monkeypatch):
    duration_s = noise(len(LEVELS), 3)
    duration_s[:, 1] *= LEVELS
    lines = stream(capsys, monkeypatch, duration_s)
    assert lines[0].startswith("step 202: rank 1: 1.3")
    assert all(": rank 1: " in line for line in lines[:-1])
    assert lines[-2].startswith("step 506: rank 1: healthy again since step 500")
    assert lines[-1] == "700 steps of 3 ranks: 1 fail-slow, healthy at the end"


def test_a_stream_with_waits_names_the_slow_rank(capsys, monkeypatch):
    duration_s = waiting(3)
    work_s = 0.9 * noise(len(LEVELS), 3)
    work_s[:, 2] *= LEVELS
    lines = stream(capsys, monkeypatch, duration_s[:300], wait_s=(duration_s - work_s)[:300])
    assert "slower since step 200; rank 2; compute; " in lines[0]
    assert lines[-1].startswith("300 steps of 3 ranks: 1 fail-slow, slow at the end, ")


def test_a_stream_that_ends_tells_what_it_held_back(capsys, monkeypatch):
    """Three steps of a slow rank are too few to tell whether others wait."""
    duration_s = noise(203, 3)
    duration_s[200:, 1] *= 1.5
    duration_s[200:, 0] *= 1.3
    duration_s[200:, 2] *= 1.2
    (onset, last) = stream(capsys, monkeypatch, duration_s)
    assert onset.startswith("step 202: 1.30x slower since step 200; who: unknown, ")
    assert last.startswith("203 steps of 3 ranks: 1 fail-slow, ")


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


def test_a_relief_begins_behind_the_last_change_of_its_rank():
    """A level that melts away has no begin; the kernel gives the onset's."""
    events = [event("onset", 72), event("onset", 90, 1), event("worsening", 100)]
    events += [event("partial-relief", 201), Event("relief", 0, 233, 72, 1.8, 6.0, 1.0)]
    events += [Event("relief", 1, 240, 90, 1.2, 1.0, 1.0)]
    dated = ReliefDates().apply(events)
    assert [e.since_step for e in dated] == [72, 90, 100, 201, 201, 90]


def suspects_of_work(work_s):
    """Suspects of a job in which all wait for the rank with most work; its rise is at step 100."""
    duration_s = np.repeat(work_s.max(axis=1)[:, None] + 0.1, work_s.shape[1], axis=1)
    onset = JobEvent("onset", 110, 100, (0, 1, 2), 3, 1.1, 1.0)
    worse = JobEvent("worsening", 160, 150, (0, 1, 2), 3, 2.0, 1.0)
    events = with_suspects([onset, worse], range(300), range(3), duration_s, duration_s - work_s)
    return [(suspect.ranks, round(suspect.factor, 2)) for suspect in events[0].suspects]


def test_the_costliest_level_of_a_fail_slow_names_the_rank():
    """The first 50 steps are longer by a tenth, on all ranks; then rank 1 takes twice as long."""
    work_s = np.ones((300, 3))
    work_s[100:150] = 1.1
    work_s[150:, 1] = 2.0
    assert suspects_of_work(work_s) == [((1,), 2.0)]


def test_ranks_that_work_equally_longer_are_one_suspect_and_all_of_them_none():
    work_s = np.ones((300, 3))
    work_s[100:, [0, 2]] = 1.5
    assert suspects_of_work(work_s) == [((0, 2), 1.5)]
    work_s[100:] = 1.5
    assert suspects_of_work(work_s) == []


def test_a_fail_slow_of_all_ranks_waits_beside_one_of_a_single_rank(capsys, tmp_path):
    duration_s = noise(400, 1, spread=0.02) * noise(400, 4, spread=0.002)
    duration_s[100:140, 1] *= 1.5
    duration_s[250:] *= 1.5
    path = table(tmp_path / "it.csv", duration_s)
    alone, _, of_all = [line for line in said(capsys, path)[1].splitlines() if line[:4] == "step"]
    assert "rank 1: 1.5" in alone
    assert "since step 250; who: unknown, as ranks that wait are slow together" in of_all
    events = [json.loads(line) for line in said(capsys, path, "--json")[1].splitlines()]
    assert [event["together"] for event in events] == [False, False, True]
