"""Where a job's wall time went, by logs of a user's own format."""

import random
import re
from datetime import datetime, timedelta

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.ledger import goodput
from paceline.ledger.categories import CATEGORIES
from paceline.ledger.ledger import Ledger


def own_log(path, steps=500, slow=range(200, 320)):
    """A log of an own loop with dates; each 50th step is 3 times as long, for example a save."""
    rng = np.random.default_rng(3)
    at_s, lines = 0.0, []
    for step in range(1, steps + 1):
        spent_s = 1.9 * rng.normal(1, 0.02) * (1.25 if step in slow else 1)
        spent_s *= 3 if step % 50 == 0 else 1
        at_s += spent_s
        date = datetime(2026, 11, 20, 8) + timedelta(seconds=at_s)
        lines.append(
            f"{date:%F %T},{date.microsecond // 1000:03d} INFO step={step} dt={spent_s * 1e3:.0f}ms"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_detect_and_goodput_tell_one_loss(capsys, tmp_path):
    path = own_log(tmp_path / "own.log")
    assert run(["detect", str(path)]) == 0
    lost_s = float(re.search(r"([\d.]+) s lost in all", capsys.readouterr().out)[1])
    assert goodput(path).seconds["fail_slow"] == pytest.approx(lost_s, abs=0.06)
    ongoing = own_log(tmp_path / "ongoing.log", steps=300)
    assert run(["detect", str(ongoing)]) == 0
    lost_s = float(re.search(r"([\d.]+) s lost in all", capsys.readouterr().out)[1])
    assert goodput(ongoing).seconds["fail_slow"] == pytest.approx(lost_s, abs=0.06)


def test_dates_of_an_own_log_tell_restarts(capsys, tmp_path):
    path = own_log(tmp_path / "own.log", steps=60)
    again = path.read_text().replace("2026-11-20 08", "2026-11-20 09")
    path.write_text(path.read_text() + again)
    ledger = goodput(path)
    assert ledger.seconds["restarts"] == pytest.approx(3600 - 63 * 1.9, rel=0.01)
    assert "restarts" not in ledger.reasons


def dated_log(path, saving="saving checkpoint ckpt_{n}.pt", saved="checkpoint saved in 9.0s", **o):
    """Steps of 2 s, of which the dates are a little off; each 20th is saved for 9 s."""
    at = datetime(2026, 11, 20, 8)
    lines = [f"{at:%F %T},000 INFO main.py:88 - world size 16"]
    at += timedelta(seconds=30)
    for step in range(1, o.get("steps", 100) + 1):
        at += timedelta(seconds=2)
        shown = at + timedelta(milliseconds=random.Random(step).randrange(0, 200))
        lines.append(
            f"{shown:%F %T},{shown.microsecond // 1000:03d} INFO - step {step} took 2.00 s"
        )
        if step % 20 == 0:
            lines.append(f"{at:%F %T},000 INFO - {saving.format(n=step)}")
            if o.get("is_async"):
                saved_at = at + timedelta(seconds=9.5)
                lines += [f"{saved_at:%F %T},500 INFO - {saved}"]
            else:
                at += timedelta(seconds=9)
                lines.append(f"{at:%F %T},000 INFO - {saved}")
    path.write_text("\n".join(sorted(lines, key=lambda line: line[:23])) + "\n")
    return path


@pytest.mark.parametrize(
    ("saving", "saved"),
    [
        ("saving checkpoint ckpt_{n}.pt", "checkpoint saved in 9.0s"),
        ("saving checkpoint ckpt_{n}.pt", "saved checkpoint to /ckpt"),
        ("step {n} done", "Saved checkpoint (took 9 seconds)"),
        # As published logs of torchtitan have them (AICrossSim/NewComputeBench).
        (
            "Saving a full checkpoint at last step, step {n}.",
            "Finished saving the checkpoint (or staging if async is enabled)in 9.00 seconds.",
        ),
        ("Saving the checkpoint.", "Last step checkpoint completed in 0m 9s"),
    ],
)
def test_dated_lines_of_checkpoints_are_read(tmp_path, saving, saved):
    ledger = goodput(dated_log(tmp_path / "own.log", saving, saved))
    assert ledger.seconds["checkpoints"] == pytest.approx(45.0)
    assert ledger.seconds["startup"] == pytest.approx(30.0, abs=0.25)
    assert ledger.seconds["evaluation"] is None
    assert ledger.total_s == pytest.approx(30 + 200 + 45)
    assert sum(s or 0 for s in ledger.seconds.values()) == pytest.approx(ledger.total_s)


@pytest.mark.parametrize(
    ("saving", "saved"),
    [
        ("running evaluation", "evaluation took 9.0s"),
        ("step {n} done", "Validation finished in 9.0s, loss 2.1"),
        ("starting validation", "validation done: loss 2.1"),
    ],
)
def test_dated_lines_of_evaluations_are_read(tmp_path, saving, saved):
    ledger = goodput(dated_log(tmp_path / "own.log", saving, saved))
    assert ledger.seconds["evaluation"] == pytest.approx(45.0)
    assert ledger.seconds["checkpoints"] is None


def test_other_lines_are_no_pauses(tmp_path):
    for saving, saved in (
        ("saving checkpoint", "next"),  # begins only
        ("loading checkpoint", "checkpoint loaded in 9.0s"),
        ("dropping checkpoint 3", "checkpoint removed in 9.0s"),
        ("valid loss 2.1", "eval loss 3.2"),
    ):
        ledger = goodput(dated_log(tmp_path / "own.log", saving, saved))
        assert ledger.seconds["checkpoints"] is ledger.seconds["evaluation"] is None, saving
        assert 45 <= ledger.seconds["unknown"] < 50  # with what the dates are off


def test_a_checkpoint_beside_training_is_no_pause(tmp_path):
    ledger = goodput(dated_log(tmp_path / "own.log", is_async=True, steps=90))
    assert ledger.seconds["checkpoints"] == 0.0


def test_patterns_of_own_lines_of_pauses(capsys, tmp_path):
    path = dated_log(tmp_path / "own.log", "dump to disk", "dump ok (9.0)")
    for pattern in (
        r"dump ok \((?P<duration_s>[\d.]+)\)",
        "(?P<begin>dump to disk)|(?P<end>dump ok)",
    ):
        ledger = goodput(path, checkpoint=pattern)
        assert ledger.seconds["checkpoints"] == pytest.approx(45.0)
    assert goodput(path, evaluation=pattern).seconds["evaluation"] == pytest.approx(45.0)
    for pattern, words in (
        ("(", "--checkpoint is no regular expression"),
        ("(?P<begin>dump)", "--checkpoint needs one of the groups duration, duration_s, "),
        ("dump ok (?P<duration_s>.*)", "the time of a pause is no number"),
    ):
        assert run(["goodput", str(path), "--checkpoint", pattern]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
    undated = tmp_path / "undated.log"
    undated.write_text("".join(f"step {n} took 2.00 s\n" for n in range(99)))
    assert run(["goodput", str(undated), "--evaluation", "(?P<begin>a)|(?P<end>b)"]) == 2
    assert "has no dates beside its steps" in capsys.readouterr().err


def test_a_log_whose_first_line_is_that_of_step_1_is_whole(tmp_path):
    """Dated lines: the first time is that of step 2, and nothing came before step 1."""
    path = tmp_path / "own.log"
    path.write_text(
        "".join(
            f"2026-11-20 08:{n // 40:02}:{n % 40 * 1.5:06.3f} INFO trainer | step {n + 1}/80\n"
            for n in range(80)
        )
    )
    pattern = r"(?P<time>\S+ \S+) INFO trainer \| step (?P<step>\d+)/"
    ledger = goodput(path, pattern=pattern)
    assert {name: ledger.seconds[name] for name in ("restarts", "lost_steps", "idle")} == {
        "restarts": 0,
        "lost_steps": 0,
        "idle": 0,
    }
    assert ledger.seconds["compile"] is None
    assert ledger.reasons["compile"].startswith("the first time is that of step 2")
    assert ledger.seconds["startup"] is None


def test_dates_with_slashes_behind_the_year(tmp_path):
    """A newcomer's log, as loggers of Go write it: 2026/11/27 06:00:46.251."""
    lines = []
    for n in range(120):
        at = 1.25 * n + 8 * (n >= 60)
        stamp = f"2026/11/27 06:{int(at) // 60:02}:{at % 60:06.3f}"
        lines.append(f"{stamp} | it={n + 1:05} | loss 3.0 | dt=1250ms")
        if n == 59:
            for word, late in (("saving", 0.1), ("saved", 7.9)):
                then = at + late
                lines.append(
                    f"2026/11/27 06:{int(then) // 60:02}:{then % 60:06.3f} | {word} checkpoint"
                )
    path = tmp_path / "own.log"
    path.write_text("\n".join(lines) + "\n")
    ledger = goodput(path)
    assert ledger.seconds["restarts"] == 0
    assert ledger.seconds["checkpoints"] == pytest.approx(7.8, abs=0.3)
    assert "no dates" not in " ".join(ledger.reasons.values())


def test_a_start_before_steps_that_the_log_lacks_is_not_told(tmp_path):
    path = tmp_path / "own.log"
    path.write_text(dated_log(path).read_text().replace(" step ", " step 9"))
    ledger = goodput(path)
    assert ledger.seconds["startup"] is None
    assert ledger.reasons["startup"] == "the log begins at step 91: what came before is not in it"


def test_means_of_ten_steps_and_rates_lose_what_detect_tells(capsys, tmp_path):
    """The warm-up is 20 samples there; the rates' noise moves the begins of samples."""
    rng = np.random.default_rng(5)
    elapsed, rates, at_s = [], [], 0.0
    for n in range(120):
        step_s = (1.35 if 49 <= n < 70 else 0.9) * rng.normal(1, 0.01)
        at_s += 10 * step_s
        date = datetime(2026, 11, 20, 8) + timedelta(seconds=at_s)
        elapsed.append(f"batch {10 * n + 10} elapsed: {at_s // 60:.0f}m{at_s % 60:04.1f}s")
        rate = 900 / step_s * rng.normal(1, 0.02)
        rates.append(
            f"{date:%F %T},{date.microsecond // 1000:03d} step {10 * n + 10} {rate:.1f} img/s"
        )
    pattern = r"(?P<time>^\S+ \S+) step (?P<step>\d+) (?P<rate>[\d.]+)"
    for lines, given in ((elapsed, []), (rates, ["--pattern", pattern])):
        path = tmp_path / "own.log"
        path.write_text("\n".join(lines) + "\n")
        assert run(["detect", str(path), *given]) == 0
        lost_s = float(re.search(r"([\d.]+) s lost in all", capsys.readouterr().out)[1])
        assert lost_s == pytest.approx(94.5, rel=0.05)
        ledger = goodput(path, pattern=given[1] if given else None)
        assert ledger.seconds["fail_slow"] == pytest.approx(lost_s, abs=0.06)


def test_the_headline_is_a_bound_where_stragglers_are_unknown(tmp_path):
    path = own_log(tmp_path / "own.log")
    head, productive = goodput(path).lines()[:2]
    assert "goodput at most 9" in head
    assert productive.endswith(
        "with stragglers, checkpoints, evaluation, data waits, other, as far as there are any"
    )
    every = dict.fromkeys(CATEGORIES, 1.0)
    head, productive = Ledger("a tool", 13.0, every).lines()[:2]
    assert "; goodput 7.7%" in head
    assert productive.endswith("1 s")
