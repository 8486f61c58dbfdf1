"""Progress bars of tqdm -> step times: rates without their smoothing, else the clock."""

import io
import json

import numpy as np
import pytest

import requires
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.sources.step_logs.files import load_step_log

#: Seconds of 300 steps with 3% noise: 0.4 s, then 0.6 s from step 200 on.
SECONDS = np.random.default_rng(0).normal(1, 0.03, 300) * np.repeat([0.4, 0.6], [200, 100])


def clock(seconds):
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


def state(n, total, at_s, rate, head="", postfix=""):
    """A state as ``tqdm.format_meter`` writes it."""
    speed = "?it/s" if not rate else f"{1 / rate:5.2f}s/it" if rate < 1 else f"{rate:5.2f}it/s"
    left = clock((total - n) / rate) if rate else "?"
    drawn = f"{100 * n / total:3.0f}%|{'█' * (10 * n // total):10}|"
    return f"{head}{drawn} {n}/{total} [{clock(at_s)}<{left}, {speed}{postfix}]"


def bar(seconds, *, smoothing=0.3, head="", first=0):
    """The states of a bar that is drawn at each step."""
    total = first + len(seconds)
    states, at_s, mean_s = [state(first, total, 0, 0, head)], 0.0, 0.0
    for n, spent_s in enumerate(seconds, 1):
        at_s += spent_s
        mean_s = smoothing * spent_s + (1 - smoothing) * mean_s
        ema_s = mean_s / (1 - (1 - smoothing) ** n) if smoothing else at_s / n
        postfix = f", loss={2 - n / total:.3f}"
        states.append(state(first + n, total, at_s, 1 / ema_s, head, postfix))
    return states


def bar_by_time(seconds, interval_s=0.1):
    """The states of a bar that is drawn at the first step after each interval."""
    total = len(seconds)
    states, at_s, drawn_n, drawn_s = [state(0, total, 0, 0)], 0.0, 0, 0.0
    steps_mean = seconds_mean = 0.0
    for n, spent_s in enumerate(seconds, 1):
        at_s += spent_s
        if at_s - drawn_s >= interval_s:
            steps_mean = 0.3 * (n - drawn_n) + 0.7 * steps_mean
            seconds_mean = 0.3 * (at_s - drawn_s) + 0.7 * seconds_mean
            states.append(state(n, total, at_s, steps_mean / seconds_mean))
            drawn_n, drawn_s = n, at_s
    return states


def written(path, states):
    path.write_text("\r".join(states) + "\n")
    return path


def test_the_smoothing_of_rates_is_undone(tmp_path):
    times = load_step_log(written(tmp_path / "train.log", bar(SECONDS)))
    assert times.steps.tolist() == list(range(1, 301))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS, rel=0.03)
    assert np.std(times.duration_s[:, 0] / SECONDS) < 0.006
    assert "agree with its clock" in times.warnings[0]


@pytest.mark.parametrize("step_s", [0.012, 0.03, 0.06, 0.08, 0.092, 0.5])
def test_slower_steps_are_fewer_in_a_state(tmp_path, capsys, step_s):
    """Detection and goodput count each step once, also if the steps of a state change."""
    levels = np.repeat([1.0, 1.3, 1.0], [800, 600, 600])
    noise = np.random.default_rng(1).normal(1, 0.02, 2000)
    path = written(tmp_path / "train.log", bar_by_time(step_s * levels * noise))
    times = load_step_log(path)
    gaps = np.diff(times.steps)
    assert (gaps[:-1] == times.steps_per_sample).all()
    last = int(times.steps[-1])
    assert last >= 2000 - times.steps_per_sample
    assert run(["detect", str(path), "--json"]) == 0
    relief = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert relief["kind"] == "relief"
    assert relief["lost_s"] == pytest.approx(0.3 * 600 * step_s, rel=0.05)
    assert run(["detect", str(path)]) == 0
    assert f"{last:,} steps" in capsys.readouterr().out.splitlines()[-1]
    assert run(["goodput", str(path), "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert ledger["steps"] == last
    assert ledger["rows"]["fail_slow"]["seconds"] == pytest.approx(0.3 * 600 * step_s, rel=0.05)


def test_slow_steps_are_written_as_seconds_a_step(tmp_path):
    times = load_step_log(written(tmp_path / "train.log", bar(SECONDS * 10)))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS * 10, rel=0.01)


@pytest.mark.parametrize("smoothing", [0.05, 1])
def test_rates_of_another_smoothing_are_not_believed(tmp_path, smoothing):
    """Only the clock counts then."""
    times = load_step_log(written(tmp_path / "train.log", bar(SECONDS, smoothing=smoothing)))
    spacing = times.steps_per_sample
    assert spacing == 20
    healthy, slow = times.steps <= 200, times.steps >= 200 + spacing
    assert times.duration_s[healthy, 0] == pytest.approx(0.4, rel=0.1)
    assert times.duration_s[slow, 0] == pytest.approx(0.6, rel=0.1)
    assert "a progress bar's clock, which is coarse" in times.warnings[0]
    assert "the mean of 20 steps" in times.warnings[-1]


def test_rates_of_lightning_are_means_since_the_start(tmp_path):
    """They give the clock with more digits: 0.33 s after 140 s, so 15 steps are a sample."""
    times = load_step_log(written(tmp_path / "train.log", bar(SECONDS, smoothing=0)))
    spacing = times.steps_per_sample
    assert 12 <= spacing <= 16
    healthy, slow = times.steps <= 200, times.steps >= 200 + spacing
    assert times.duration_s[healthy, 0] == pytest.approx(0.4, rel=0.08)
    assert times.duration_s[slow, 0] == pytest.approx(0.6, rel=0.08)


def test_a_jump_to_the_checkpoint_is_no_step(tmp_path):
    """Hugging Face's Trainer sets the count of a new bar to its first step."""
    states = [*bar(SECONDS)[:251], state(0, 300, 0, 0), *bar(SECONDS[:100], first=200)[1:]]
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps.tolist() == list(range(1, 301))
    assert times.duration_s[260:, 0] == pytest.approx(SECONDS[60:100], rel=0.03)


def test_odd_and_even_steps_may_differ(tmp_path):
    seconds = SECONDS * np.tile([1.0, 1.15], 150)
    times = load_step_log(written(tmp_path / "train.log", bar(seconds)))
    assert times.duration_s[:, 0] == pytest.approx(seconds, rel=0.03)


def test_bars_of_data_and_of_validations_do_not_count(tmp_path):
    def other(head, n):
        return bar([30.0] * n, head=head)

    train = bar(SECONDS)
    states = [
        *other("Map (num_proc=8): ", 5),
        *other("Loading checkpoint shards: ", 2),
        *train[:150],
        *other("Validation DataLoader 0: ", 9),
        *train[150:],
    ]
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps.tolist() == list(range(1, 301))
    path = written(tmp_path / "data.log", other("Generating train split: ", 60))
    with pytest.raises(TraceError, match="of validation or of data"):
        load_step_log(path)


def test_examples_and_bytes_are_no_steps(tmp_path):
    path = tmp_path / "data.log"
    path.write_text("100%|███| 5000/5000 [00:01<00:00, 4123.45 examples/s]\n12.0M/12.0M [00:01]\n")
    with pytest.raises(TraceError, match="no step times of a known tool"):
        load_step_log(path)


def test_a_bar_of_each_epoch_counts_on(tmp_path):
    states = [s for epoch in range(3) for s in bar(SECONDS[:100], head=f"Epoch {epoch}: ")]
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps.tolist() == list(range(1, 301))
    assert times.duration_s[:, 0] == pytest.approx(np.tile(SECONDS[:100], 3), rel=0.03)


def test_a_bar_that_goes_on_from_a_checkpoint(tmp_path):
    states = [*bar(SECONDS)[:101], *bar(SECONDS[:200], first=100)]
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps.tolist() == list(range(1, 301))


def test_a_count_that_is_drawn_again_counts_once(tmp_path):
    """``set_postfix`` draws the bar between two steps, with the count and the rate of before."""
    states = bar(SECONDS)
    twice = [s for one in states for s in (one, one.replace("loss", "lr=1e-4, loss"))]
    times = load_step_log(written(tmp_path / "train.log", twice))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS, rel=0.03)


def test_lines_of_hugging_faces_trainer_between_the_states(tmp_path):
    states = bar(SECONDS)
    states[60] += "\n{'loss': 5.53, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.2}\n"
    path = written(tmp_path / "train.log", states)
    path.write_text("{'loss': 9.9, 'epoch': 0.0}\n" + path.read_text())
    assert load_step_log(path).steps.tolist() == list(range(1, 301))


def test_mixed_bars_of_several_processes_are_refused(tmp_path):
    one, other = bar(SECONDS), bar(SECONDS * 1.02)
    states = [s for pair in zip(one[20:], other[:-20], strict=True) for s in pair]
    with pytest.raises(TraceError, match="mixes the progress bars of several processes"):
        load_step_log(written(tmp_path / "train.log", states))


def test_a_log_that_begins_within_the_bar(tmp_path):
    times = load_step_log(written(tmp_path / "train.log", bar(SECONDS)[100:]))
    assert times.steps.tolist() == list(range(101, 301))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[100:], rel=0.03)


def test_a_tool_with_a_format_of_its_own_comes_first(tmp_path):
    path = written(tmp_path / "train.log", bar(SECONDS))
    lines = "".join(f"iter {n}: loss 2.5, time 901.25ms, mfu 30%\n" for n in range(60))
    path.write_text(path.read_text() + lines)
    assert load_step_log(path).duration_s[:, 0].tolist() == [0.90125] * 60


@pytest.mark.parametrize("way", ["update", "iterate"])
def test_tqdm_itself(tmp_path, way):
    """tqdm draws a bar whose clock is set to the steps' times."""
    requires.installed("tqdm")
    from tqdm import tqdm

    now, out = [1000.0], io.StringIO()
    progress = tqdm(range(len(SECONDS)), file=out, ncols=80, mininterval=0)
    progress._time = lambda: now[0]
    progress.start_t = progress.last_print_t = now[0]
    if way == "update":
        for spent_s in SECONDS:
            now[0] += spent_s
            progress.update(1)
        progress.close()
    else:
        for place in progress:
            now[0] += SECONDS[place]
            progress.set_postfix(loss=0.5)
    path = tmp_path / "train.log"
    path.write_text(out.getvalue())
    times = load_step_log(path)
    assert times.steps[:5].tolist() == [1, 2, 3, 4, 5]
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[: len(times.steps)], rel=0.03)


@pytest.mark.parametrize("name", ["Epoch", "Computing perplexity", "Processing", "Rollout"])
def test_bars_of_other_work_are_no_steps(tmp_path, name):
    path = written(tmp_path / "train.log", bar(SECONDS, head=f"{name}: "))
    with pytest.raises(TraceError, match="of validation or of data"):
        load_step_log(path)
    assert len(load_step_log(written(path, bar(SECONDS, head="Epoch 1: "))).steps) == 300


def epochs(train_s, valid_s, n=60):
    """Bars of epochs: training, then validation, without names and of one total."""
    noise = np.random.default_rng(3).normal(1, 0.02, (len(train_s), 2, n))
    states = []
    for epoch, (train, valid) in enumerate(zip(train_s, valid_s, strict=True)):
        states += [*bar(train * noise[epoch, 0]), *bar(valid * noise[epoch, 1])]
    return states


def test_validations_between_bars_of_one_total_do_not_count(tmp_path, capsys):
    """As ``tqdm(train)`` and ``tqdm(valid)`` draw; the job is slow from epoch 3 on."""
    states = epochs([0.4, 0.4, 0.4, 0.6, 0.6], [0.15, 0.15, 0.15, 0.2, 0.2])
    path = written(tmp_path / "train.log", states)
    times = load_step_log(path)
    assert times.steps[-1] == 300
    assert np.median(times.duration_s[times.steps <= 180]) == pytest.approx(0.4, rel=0.02)
    assert times.duration_s.min() > 0.3
    said = "10 runs of one bar are slow and fast in turn: the 5 slow ones count as training"
    assert any(said in note for note in times.warnings)
    assert run(["detect", str(path)]) == 0
    assert "1.5" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("head", ["", "Training: "])
def test_two_runs_of_other_speed_may_be_a_validation(tmp_path, head):
    states = [*bar(np.full(60, 0.4), head=head), *bar(np.full(60, 0.2), head=head)]
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps[-1] == 120
    said = "2 progress bars without a name count as one; if some are validations"
    assert any(said in note for note in times.warnings) is (head == "")


def test_epochs_of_a_job_that_becomes_slow_all_count(tmp_path):
    states = epochs([0.4, 0.4, 0.4], [0.4, 0.6, 0.6])
    times = load_step_log(written(tmp_path / "train.log", states))
    assert times.steps[-1] == 360


def test_bars_with_ranks_in_their_names_are_those_ranks(tmp_path, capsys):
    """Drawn by two processes into one file; the ranks' counts differ by a few steps."""
    noise = np.random.default_rng(4).normal(1, 0.02, (2, 200))
    slow = np.repeat([1.0, 1.5], [120, 80])
    bars = [bar(0.4 * noise[0], head="rank 0: "), bar(0.4 * noise[1] * slow, head="rank 1: ")]
    states = [line for pair in zip(*bars, strict=True) for line in pair]
    path = written(tmp_path / "train.log", states)
    times = load_step_log(path)
    assert times.ranks.tolist() == [0, 1]
    assert np.isfinite(times.duration_s).all()
    assert "the names of the progress bars have 2 ranks" in times.warnings
    assert run(["detect", str(path)]) == 0
    assert ": rank 1: 1." in capsys.readouterr().out.splitlines()[0]
