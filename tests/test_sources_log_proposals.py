"""A pattern made from a log's own lines: read at once if its words are clear, else proposed."""

import random
import re
import shlex
from datetime import datetime, timedelta

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.sources.step_logs.files import load_columns, load_step_log
from paceline.sources.step_logs.lines import is_mean_since_start

#: Milliseconds of 80 steps.
MS = [250 + random.Random(step).random() for step in range(80)]


def written(path, line, head=("starting up", "world size 8")):
    path.write_text("\n".join([*head, *(line(i, ms) for i, ms in enumerate(MS))]) + "\n")
    return path


@pytest.mark.parametrize(
    ("line", "group", "doubt"),
    [
        ('{"ts": 17, "it": %d, "loss": 2.5, "iter_s": %.6f, "mem_gb": 61}', "duration_s", True),
        ('{"global_step": %d, "perf/iter_s": %.6f}', "duration_s", True),
        ('{"it": %d, "loss": 2.5, "took_s": %.6f}', "duration_s", False),
    ],
)
def test_json_lines_of_other_names_suggest_a_pattern(tmp_path, line, group, doubt):
    """``iter_s`` is seconds a step to one writer, and steps a second to another."""
    path = written(tmp_path / "own.jsonl", lambda i, ms: line % (i, ms / 1e3), head=())
    with pytest.raises(TraceError, match="no step times under a known name") as error:
        load_step_log(path)
    (pattern,) = re.findall("--pattern '([^']*)'", str(error.value))
    assert f"(?P<{group}>" in pattern
    assert ("if these are steps a second, steps_per_s" in str(error.value)) is doubt
    times = load_step_log(path, pattern)
    assert times.duration_s[:, 0] == pytest.approx([ms / 1e3 for ms in MS], abs=1e-6)


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
    "milliseconds a batch": lambda i, ms: (
        f"| epoch 1 | batch {i:5d} | lr 20.00 | ms/batch {ms:6.3f} | ppl 2064.78"
    ),
    "milliseconds a step": lambda i, ms: f"step {i} loss 2.0, {ms:.3f} ms/step",
    "seconds an update": lambda i, ms: f"update {i} | nll=5.7 | {ms / 1e3:.6f} s/update | io 2 s",
    "seconds a step, in words": lambda i, ms: f"iter {i}, {ms / 1e3:.6f} sec per it",
    "steps a second, too": lambda i, ms: f"step {i} {ms:.3f} ms/step {1e3 / ms:.2f} steps/s",
    "updates a second": lambda i, ms: f"update {i} nll=5.7 ({1e3 / ms:.6f} updates/sec)",
}


@pytest.mark.parametrize("name", CLEAR)
def test_clear_words_are_read_at_once(tmp_path, name):
    times = load_step_log(written(tmp_path / "own.log", CLEAR[name]))
    first = 1 if name == "time of the run" else 0
    assert times.steps.tolist() == [i + 1000 * (name == "thousands") for i in range(first, 80)]
    assert times.duration_s[:, 0] == pytest.approx([ms / 1e3 for ms in MS[first:]], rel=1e-4)
    assert times.warnings[0].startswith("read as --pattern 'it" if "iter" in name else "read as")


CLOCKS = {
    "minutes at all times": lambda s: f"{s // 60:.0f}m{s % 60:04.1f}s",
    "minutes where there are some": lambda s: (
        f"{s // 60:.0f}m {s % 60:.1f}s" if s >= 60 else f"{s:.1f}s"
    ),
    "hours": lambda s: f"{s // 3600:.0f}h{s % 3600 // 60:02.0f}m{s % 60:04.1f}s",
    "words": lambda s: f"{s // 60:.0f} min {s % 60:.1f} sec",
    "colons": lambda s: f"{s // 3600:.0f}:{s % 3600 // 60:02.0f}:{s % 60:04.1f}",
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_with_units_is_read(capsys, tmp_path, name):
    """A line of each 10th step; the clock begins with 8.9 s and ends behind an hour."""

    def line(i, ms):
        return f"Batch {10 * i + 10}/800  Loss: 1.4{i % 10}  Elapsed: {CLOCKS[name](8.9 + 60 * i)}"

    path = written(tmp_path / "own.log", line)
    if name != "colons":
        times = load_step_log(path)
    else:  # a time of day looks alike, so the pattern is proposed
        assert run(["detect", str(path)]) == 2
        pasted = shlex.split(re.search(r"(--pattern '[^']*')", capsys.readouterr().err)[1])
        times = load_step_log(path, pasted[1])
    assert times.steps.tolist() == list(range(20, 801, 10))
    assert times.duration_s[:, 0] == pytest.approx([6.0] * 79)


def test_a_step_of_minutes_is_read(tmp_path):
    path = written(tmp_path / "own.log", lambda i, ms: f"step {i} took {i % 2 + 1}m {ms / 5:.2f}s")
    times = load_step_log(path)
    expected = [60 * (i % 2 + 1) + ms / 5 for i, ms in enumerate(MS)]
    assert times.duration_s[:, 0] == pytest.approx(expected, abs=6e-3)


def test_epochs_with_their_number_of_steps_are_read(tmp_path):
    def line(i, ms):
        return f"Epoch {i // 20 + 1}/4 Batch {i % 20 + 1}/20 Loss: 1.4 took {ms:.3f} ms"

    times = load_step_log(written(tmp_path / "own.log", line))
    assert times.steps.tolist() == list(range(1, 81))


def test_digits_in_the_words_of_one_writer_are_no_numbers(tmp_path):
    path = written(tmp_path / "own.log", lambda i, ms: f"v{i % 7}b step {i} took {ms:.3f} ms")
    assert len(load_step_log(path).steps) == 80


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
    "milliseconds of another unit": (
        lambda i, ms: f"update {i} loss 2.0, {ms:.3f} ms/step",
        "duration_ms",
    ),
    "a quote": (lambda i, ms: f"it's the loss, took '{ms / 1e3:.3f}' sec", "duration_s"),
}


def clock(ms_per_step, i, date="%H:%M:%S"):
    """The time of a line in a run of equal steps."""
    return (datetime(2026, 11, 20, 8) + timedelta(milliseconds=ms_per_step * (i + 1))).strftime(
        date
    )


UNCLEAR |= {
    "a total behind its parts": (
        lambda i, ms: (
            f"[11/20 {clock(1900, i)}] it {i:>5} | "
            f"fwd 0.6{i % 10} bwd 1.1{i % 10} total {ms / 131:.2f}"
        ),
        "duration_s",
    ),
    "times of day": (lambda i, ms: f"{clock(21_000, i)} step {i} loss 4.99", "elapsed"),
    "times of day with digits": (
        lambda i, ms: f"I1120 {clock(1900, i, '%H:%M:%S.%f')} 12 a.py:88] step {i} loss 4.99",
        "elapsed",
    ),
    "dates with slashes": (
        lambda i, ms: f"{clock(21_000, i, '%m/%d/%Y %H:%M:%S')} - INFO - step {i} loss 4.99",
        "time",
    ),
    "seconds since 1970": (
        lambda i, ms: f"{1795161600 + 1.9 * i:.3f} step {i} loss=4.99",
        "elapsed_s",
    ),
    "a clock of the run": (
        lambda i, ms: f"iter {i}: 0:{i * 21 // 60:02d}:{i * 21 % 60:02d} elapsed",
        "elapsed",
    ),
    "an iteration behind its parts": (
        lambda i, ms: (
            f"[{i}/400] fwd={ms * 0.3:.1f}ms opt={ms * 0.1:.1f}ms iter={ms:.1f}ms loss=4.9"
        ),
        "duration_ms",
    ),
    "a short name": (lambda i, ms: f"ep 0 step {i} loss 4.9 t {ms / 1e3:.3f}", "duration_s"),
    "a step's own short name": (
        lambda i, ms: f"step={i} t_fwd={ms / 3e3:.3f} t_step={ms / 1e3:.3f} loss=4.9",
        "duration_s",
    ),
    "costs": (lambda i, ms: f"epoch[0] step[{i}] cost[{ms / 1e3:.4f}]", "duration_s"),
    "a speed": (lambda i, ms: f"iter {i} loss 4.9 speed {1e3 / ms:.4f}", "rate"),
}
GUESSES = (
    "no unit",
    "a total behind its parts",
    "a short name",
    "a step's own short name",
    "costs",
)


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_proposal_works_when_pasted(capsys, tmp_path, name):
    line, group = UNCLEAR[name]
    path = written(tmp_path / "own.log", line)
    assert run(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    pasted = re.search(r"its lines suggest (--pattern '[^']*')", err)[1]
    assert f"(?P<{group}>" in pasted
    assert ("the unit is a guess" in err) == (name in GUESSES)
    assert ("each line counts as a step" in err) == (name in ("no step", "a quote"))
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
    with pytest.raises(TraceError, match="write a --pattern with the groups"):
        load_step_log(written(tmp_path / "own.log", line))


def test_a_total_that_falls_at_times_is_the_step_and_no_part(capsys, tmp_path):
    path = written(tmp_path / "own.log", UNCLEAR["a total behind its parts"][0])
    assert run(["detect", str(path)]) == 2
    pasted = shlex.split(
        re.search(r"its lines suggest (--pattern '[^']*')", capsys.readouterr().err)[1]
    )
    times = load_step_log(path, pasted[1])
    assert times.duration_s[:, 0] == pytest.approx([ms / 131 for ms in MS], abs=6e-3)


def test_a_date_before_a_line_is_its_time_but_no_step_time(tmp_path):
    """The lines' dates are 2 s apart; the steps take 0.25 s, or have no time in a line."""
    for date in ("%Y-%m-%d %H:%M:%S,%f", "[%m/%d/%Y %H:%M:%S]", "[%d/%m/%Y %H:%M:%S]"):
        path = written(
            tmp_path / "own.log",
            lambda i, ms, date=date: f"{clock(2000, i, date)} " + CLEAR["equal signs"](i, ms),
        )
        columns = load_columns(path).columns
        assert np.diff(columns["time_s"]) == pytest.approx(np.full(79, 2.0))
        assert columns["duration_s"] == pytest.approx([ms / 1e3 for ms in MS], rel=1e-4)
    rates = written(tmp_path / "r.log", lambda i, ms: f"{clock(2000, i, date)} step {i} 500 tok/s")
    pattern = r"step (?P<step>\d+) (?P<rate>\d+) tok"
    assert load_step_log(rates, pattern).duration_s[:, 0] == pytest.approx(np.full(80, 2.0))


def test_lines_without_a_step_number_are_no_steps(capsys, tmp_path):
    """Hugging Face's printed dict of each 10th step has no number of the step."""
    path = written(
        tmp_path / "own.log",
        lambda i, ms: f"{clock(15_000, i + i % 2 / 10, '%F %T')} {{'loss': 4.9}}",
    )
    date = r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    assert run(["detect", str(path), "--pattern", date]) == 2
    err = capsys.readouterr().err
    assert "note: a sample every 2 lines, as the clock is coarse" in err
    assert "has 39 samples (78 lines); the first 50 samples are the warm-up, so 12 more" in err
    assert "12 more samples (24 lines) are needed at least" in err


def test_lines_of_validations_do_not_match(tmp_path):
    path = written(tmp_path / "own.log", CLEAR["a word and a unit"])
    text = path.read_text()
    path.write_text(text + "step 80 val loss 3.2 time 4000.0 ms\nstep 80 eval time 9000.0 ms\n")
    assert load_step_log(path).duration_s.max() < 0.3


#: Lines whose number with a time's word is no step's time, or whose unit is another one.
NO_STEP_TIME = {
    "a part": lambda i, ms: f"step {i} loss 2.3 allreduce time: {ms / 1e3:.3f}s",
    "a checkpoint": lambda i, ms: f"step {100 * i} checkpoint took {ms:.3f}s",
    "parts that add up": lambda i, ms: f"iter {i} rollout time: {ms:.1f}s train time: 0.{i:03d}s",
    "all steps since a line": lambda i, ms: f"step {50 * i} loss 2.3 time: {ms / 10:.2f}s",
    "a micro-batch": lambda i, ms: f"micro step {i} step {i // 4} step time: {ms / 1e3:.4f}s",
    "validation": lambda i, ms: f"validation step {i} step time: {ms:.1f} ms",
    "time to the end": lambda i, ms: f"iter {i} estimated time: {400 - 2 * i}.5s",
    "a decimal comma": lambda i, ms: f"step {i} step time: 0,{ms:.0f}s",
    "microseconds": lambda i, ms: f"step {i} step time: {1e3 * ms:.0f} us",
    "minutes and seconds": lambda i, ms: f"step {i} loss 2.3 time {i // 60}:{i % 60:02d}",
    "an epoch's own steps": lambda i, ms: f"epoch {i // 20} step {i % 20} step time: {ms:.2f} ms",
    "writers without a rank": lambda i, ms: (
        f"gpu 0 step {i} step time: {ms:.2f} ms\ngpu 1 step {i} step time: {ms + 9:.2f} ms"
    ),
    "writers in names": lambda i, ms: (
        f"node0: step {i} step time: {ms:.2f} ms\nnode1: step {i} step time: {ms + 9:.2f} ms"
    ),
}
#: Of them, those whose pattern would read another quantity or scale: none is proposed.
NO_PATTERN = ("validation", "time to the end", "a decimal comma", "microseconds",
              "minutes and seconds", "writers without a rank")  # fmt: skip


@pytest.mark.parametrize("name", NO_STEP_TIME)
def test_a_time_of_another_kind_is_not_read_at_once(tmp_path, name):
    with pytest.raises(TraceError, match="no step times of a known tool") as refused:
        load_step_log(written(tmp_path / "own.log", NO_STEP_TIME[name]))
    assert ("its lines suggest" in str(refused.value)) is (name not in NO_PATTERN)


def test_doubts_are_told(tmp_path):
    for name, doubt in (
        ("all steps since a line", "(if the time is that of all steps since a line, interval_s)"),
        ("an epoch's own steps", "(steps begin anew in each epoch; add the groups epoch, "),
        (
            "writers in names",
            "(it matches 80 of 160 such lines: those with 'node0:', not 'node1:')",
        ),
    ):
        with pytest.raises(TraceError, match=re.escape(doubt)):
            load_step_log(written(tmp_path / "own.log", NO_STEP_TIME[name]))


def test_a_resumed_clock_is_no_duration(tmp_path):
    def line(i, ms):
        return f"step {i} loss 2.3 time: {36_000 + sum(MS[: i + 1]) / 1e3:.3f}s"

    times = load_step_log(written(tmp_path / "own.log", line))
    assert times.duration_s[:, 0] == pytest.approx([ms / 1e3 for ms in MS[1:]], abs=2e-3)
    path = tmp_path / "restarted.log"
    clock = [f"step {i} elapsed: {i / 4:.2f}s" for i in range(80)]
    path.write_text(
        "\n".join(clock + [f"step {i} elapsed: {i / 4 - 9:.2f}s" for i in range(60, 140)])
    )
    assert load_step_log(path).duration_s[:, 0] == pytest.approx([0.25] * 138, rel=1e-3)


def test_validation_between_the_steps_is_not_read(tmp_path):
    def line(i, ms):
        val = [f"val step {j} loss 2.3 time 90.{j} ms" for j in range(20) if i % 10 == 9]
        return "\n".join([f"step {i} loss 2.3 time {ms:.3f} ms", *val])

    times = load_step_log(written(tmp_path / "own.log", line))
    assert times.duration_s[:, 0] == pytest.approx([ms / 1e3 for ms in MS], rel=1e-4)


def test_words_behind_a_number_may_name_the_next_one(tmp_path):
    path = written(tmp_path / "own.log", lambda i, ms: f"step {i} loss 2.{i} tok/s {5e5 / ms:.0f}")
    with pytest.raises(TraceError, match=r"tok/s.*\(\?P<rate>"):
        load_step_log(path)


def test_the_step_is_preferred_to_its_part(tmp_path):
    def line(i, ms):
        return f"step {i} | train_time: 0.1{i}s | iter_time: {ms / 1e3:.3f}s"

    with pytest.raises(TraceError, match=r"iter_time:.{0,3}\(\?P<duration_s>"):
        load_step_log(written(tmp_path / "own.log", line))


def test_a_pattern_reads_decimal_commas(tmp_path):
    path = written(tmp_path / "own.log", NO_STEP_TIME["a decimal comma"])
    pattern = r"step (?P<step>\d+) step time: (?P<duration_s>[\d,]+)s"
    times = load_step_log(path, pattern)
    assert times.duration_s[:, 0] == pytest.approx([0.25] * 80, rel=0.01)


def test_a_bar_of_samples_is_no_line_of_a_step(tmp_path):
    states = [
        f"Train: {i}%|#| {8 * i}/800 [00:{i:02d}<00:20, {7 + i % 2}.9img/s]" for i in range(50)
    ]
    (tmp_path / "own.log").write_text("\n".join(states))
    with pytest.raises(TraceError, match="write a --pattern with the groups"):
        load_step_log(tmp_path / "own.log")


MEANS = (
    "step {step} loss 2.5 avg_time {mean:.4f}s",
    "step: {step}, loss: 2.5, time/step: {mean:.4f} s (running mean)",
    "step {step} | loss 2.5 | step_time_ema {mean:.4f} s",
    "step {step} | loss 2.5 | smoothed step time {mean:.4f} s",
    "step {step} | loss 2.5 | time {mean:.4f} s",
)


@pytest.mark.parametrize("line", MEANS)
def test_means_of_many_steps_are_no_times_of_steps(tmp_path, line):
    seconds = np.random.default_rng(0).normal(0.25, 0.01, 120)
    means = np.cumsum(seconds) / np.arange(1, 121)
    path = tmp_path / "my.log"
    path.write_text("".join(line.format(step=n, mean=mean) + "\n" for n, mean in enumerate(means)))
    with pytest.raises(TraceError) as refused:
        load_step_log(path)
    if line == MEANS[-1]:
        assert "its times look like means since the start" in str(refused.value)
        times = load_step_log(path, r"step (?P<step>\d+) .* time (?P<duration_s>[\d.]+) s")
        assert any("look like means since the start" in note for note in times.warnings)


def tenth_lines(words, mean_of):
    """1,000 steps of 0.25 s, 1.5x in 601-700: a line of each 10th with a clock of whole seconds."""
    seconds = np.random.default_rng(7).normal(0.25, 0.01, 1000)
    seconds[600:700] *= 1.5
    ends = np.cumsum(seconds)
    return "".join(
        f"<{clock(1000, ends[n - 1], '%H:%M:%S')}> part {n} of 1000 | "
        f"{words.format(mean_of(seconds, n))} | nll 8.{n}\n"
        for n in range(10, 1001, 10)
    )


def of_line(seconds, n):
    return seconds[n - 10 : n].mean()


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("avg {:.3f} sec each", ""),
        ("average step time: {:.3f}", "; the unit is a guess"),
        ("mean {:.3f} s/step", ""),
        ("avg sec {:.3f}", "; the unit is a guess"),
    ],
)
def test_a_mean_of_a_lines_steps_is_better_than_a_clock_of_whole_seconds(
    capsys, tmp_path, words, guess
):
    path = tmp_path / "own.log"
    path.write_text(tenth_lines(words, of_line))
    assert run(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"(if it is the mean of the steps since the line before, not of more{guess})" in err
    assert run(["detect", str(path), *shlex.split(re.search(r"(--pattern '[^']*')", err)[1])]) == 0
    out = capsys.readouterr().out
    assert "slower since step 610" in out
    assert "1 fail-slow, healthy at the end, 12." in out


@pytest.mark.parametrize(
    ("words", "mean_of"),
    [
        ("avg {:.3f} sec each", lambda seconds, n: seconds[:n].mean()),
        ("avg {:.3f} sec each", lambda seconds, n: seconds[max(0, n - 100) : n].mean()),
        ("ema {:.3f} sec each", of_line),
        ("avg data time {:.3f} sec", of_line),
    ],
)
def test_other_means_are_no_better_than_a_clock_of_whole_seconds(capsys, tmp_path, words, mean_of):
    path = tmp_path / "own.log"
    path.write_text(tenth_lines(words, mean_of))
    assert run(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert "(?P<elapsed>" in err
    assert "(the clock has whole seconds, so several lines may be one sample)" in err
    assert run(["detect", str(path), *shlex.split(re.search(r"(--pattern '[^']*')", err)[1])]) == 2
    assert "12 samples (960 steps)" in capsys.readouterr().err


def test_a_clock_of_milliseconds_is_better_than_a_mean(tmp_path):
    line = "<10:00:{:06.3f}> part {} of 1000 | avg {:.3f} sec each"
    lines = (line.format(i / 2 + i % 2 / 50, 2 * i, 0.24 + i % 2 / 50) for i in range(80))
    (tmp_path / "own.log").write_text("\n".join(lines))
    with pytest.raises(TraceError, match=r"\(\?P<elapsed>"):
        load_step_log(tmp_path / "own.log")


def test_a_mean_beside_the_time_of_a_step_does_not_count(tmp_path):
    seconds = np.random.default_rng(0).normal(0.25, 0.01, 120)
    means = np.cumsum(seconds) / np.arange(1, 121)
    path = tmp_path / "my.log"
    path.write_text(
        "".join(
            f"[iter {n}] loss 2.5, time: {x:.4f}s (avg {mean:.4f}s)\n"
            for n, (x, mean) in enumerate(zip(seconds, means, strict=True))
        )
    )
    assert load_step_log(path).duration_s[:, 0] == pytest.approx(seconds, abs=1e-4)


@pytest.mark.parametrize("lines", [60, 300, 3000])
def test_times_of_steps_are_no_means_since_the_start(lines):
    random = np.random.default_rng(1)
    for spread in (0.003, 0.03, 0.3):
        steps = random.normal(1, spread, lines)
        assert not is_mean_since_start(steps)
        assert not is_mean_since_start(np.where(np.arange(lines) < lines / 2, steps, 1.4 * steps))
        assert not is_mean_since_start(np.round(steps, 2))


def test_two_digits_tell_times_of_steps_from_means(tmp_path):
    """Steps of 0.20 or 0.21 s alternate at all times; ticks of a mean become rare."""
    seconds = np.random.default_rng(0).normal(0.204, 0.004, 600)
    path = tmp_path / "my.log"
    path.write_text("".join(f"step {n} | loss 2 | dt {x:.2f}s\n" for n, x in enumerate(seconds)))
    assert load_step_log(path).duration_s[:, 0] == pytest.approx(seconds, abs=0.006)
    means = np.cumsum(np.random.default_rng(0).normal(0.2, 0.1, 600)) / np.arange(1, 601)
    path.write_text("".join(f"step {n} | loss 2 | dt {x:.2f}s\n" for n, x in enumerate(means)))
    with pytest.raises(TraceError, match="its times look like means since the start"):
        load_step_log(path)


def test_lines_of_a_trainer_without_times_are_told(tmp_path):
    """As transformers 5.23 prints them; the bar is on another stream."""
    path = tmp_path / "train.log"
    row = "{'loss': '6.1', 'grad_norm': '0.39', 'learning_rate': '1e-06', 'epoch': '%d'}\n"
    path.write_text("".join(row % epoch for epoch in range(60)))
    with pytest.raises(TraceError, match="lines of transformers' Trainer have no times; give its"):
        load_step_log(path)
