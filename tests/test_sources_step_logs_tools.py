"""Logs of further tools, told by content; a reader takes no lines of another tool or phase."""

import numpy as np
import pytest

import step_log_lines
from paceline.errors import TraceError
from paceline.sources.step_logs.files import load_step_log
from paceline.sources.step_logs.formats import COLOURS, LINE_FORMATS
from test_sources_step_logs import FORMATS, mlperf

#: Seconds of 60 steps: 0.5 s, then 0.75 s from step 55 on.
SECONDS = [0.5 if step < 55 else 0.75 for step in range(60)]
LINES = [line for lines in step_log_lines.TOOLS.values() for line in lines]


def log_of(path, line, seconds=SECONDS, **options):
    ends = np.cumsum(seconds)
    lines = [line(i, s, e, **options) for i, (s, e) in enumerate(zip(seconds, ends, strict=True))]
    path.write_text("\n".join(["NCCL version 2.27.5, cuda 12.9", *lines, "saving"]) + "\n")
    return path


@pytest.mark.parametrize("line", [x for x in LINES if x is not step_log_lines.composer])
def test_a_tool_is_told_by_its_lines(tmp_path, line):
    times = load_step_log(log_of(tmp_path / "train.log", line))
    first = 1 if line is step_log_lines.paddlenlp else 0  # an interval needs the line before
    assert times.steps.tolist() == list(range(first, 60))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[first:], rel=0.005)
    assert times.warnings == ()


def test_composer_writes_hours_of_four_digits(tmp_path):
    """A tick is 0.36 s, so steps of 0.9 s are read eight at a time, steps of 9 s one by one."""
    line = step_log_lines.composer
    times = load_step_log(log_of(tmp_path / "slow.log", line, [9.0] * 50 + [12.0] * 10))
    assert times.steps.tolist() == list(range(1, 60))
    assert times.duration_s[:49, 0] == pytest.approx(9.0, rel=0.05)
    assert times.duration_s[49:, 0] == pytest.approx(12.0, rel=0.05)
    times = load_step_log(log_of(tmp_path / "fast.log", line, [0.9] * 400))
    assert times.steps_per_sample in (8, 9)
    assert times.duration_s[:, 0] == pytest.approx(0.9, rel=0.06)


@pytest.mark.parametrize("line", [*FORMATS, *LINES])
def test_one_format_takes_a_line(line):
    if line is mlperf:
        return
    text = COLOURS.sub("", line(7, 0.5, 3.5))
    headed = [known.head for known in LINE_FORMATS if known.head]
    heads = {head: part for head in headed for part in text.split("\n") if head in part}
    takers = {
        known.name
        for known in LINE_FORMATS
        for part in text.split("\n")
        if known.cue in part
        and known.pattern.search(f"{heads.get(known.head, '')} {part}" if known.head else part)
    }
    assert len(takers) == 1


@pytest.mark.parametrize(
    "line",
    [
        "iter 8: val loss 3.1415, val time: 900.00 ms",  # LitGPT's validation
        "Completed eval step: 4, seconds: 0.500, running loss=2.0",  # MaxText's
        "    throughput/device/BPS (actual avg)=1.900",  # OLMo-core's mean since the start
        "[Eval batch=5/10] Eval on eval data:\t Eval time/train: 0.1",  # Composer's
        "2026-08-22 10:00:00 | INFO | train | epoch 001 | loss 3.6 | ups 2.1 | num_updates 487",
        "07/03 13:04:21 - mmengine - INFO - Epoch(val) [1][10/40]    eta: 0:00:01  time: 0.1000  "
        "data_time: 0.0100  memory: 970",
        "[08/22 10:00:00 d2.evaluation.evaluator]: Inference done 11/100. 0.10 s / iter.",
        "Test: [   0/98]  Time: 1.234 (1.234)  Loss:   1.0 ( 1.0)",  # timm's
        "Test: [ 0/98]\tTime  1.234 ( 1.234)\tLoss 1.0 (1.0)",  # the ImageNet example's
        "[2026-08-22 10:00:00,948] [ INFO] - eval_loss: 1.2, eval_runtime: 3.1, epoch: 1.0",
        "Step Time : 0.50s GPU utilization: 9.5MODEL_TFLOP/s/GPU",  # Megatron-Bridge's other line
    ],
)
def test_lines_of_validations_are_no_steps(line):
    assert not [x.name for x in LINE_FORMATS if x.cue in line and x.pattern.search(line)]


def test_validations_between_the_steps_do_not_count(tmp_path):
    path = log_of(tmp_path / "train.log", step_log_lines.mmengine)
    lines = path.read_text().splitlines()
    for place in (50, 30, 10):
        lines.insert(place, lines[place].replace("(train)", "(val)").replace("time: 0", "time: 9"))
    path.write_text("\n".join(lines) + "\n")
    assert load_step_log(path).duration_s[:, 0].max() == 0.75


def test_intervals_are_of_all_steps_since_the_line_before(tmp_path):
    path = tmp_path / "train.log"
    ends = np.cumsum(SECONDS) * 10
    rows = zip(SECONDS, ends, strict=True)
    lines = [step_log_lines.paddlenlp(10 * i, s, e, 10) for i, (s, e) in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    times = load_step_log(path)
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[1:])
    assert "a sample every 10 steps, the mean of 10 steps" in times.warnings[0]


def test_a_line_every_tenth_step_is_one_step_of_ten(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(step_log_lines.timm(10 * i, 0.5, i) + "\n" for i in range(60)))
    (warning,) = load_step_log(path).warnings
    assert "one step of 10; a long step between two samples does not show" in warning


def test_slow_fairseq_steps_are_read_from_the_clock(tmp_path):
    """``ups=0.13`` is 7.7 s, or 7.4 s, or 8 s: the lines' times tell."""
    path = log_of(tmp_path / "train.log", step_log_lines.fairseq, [7.5] * 50 + [9.0] * 10)
    times = load_step_log(path)
    assert times.duration_s[times.steps < 49, 0].mean() == pytest.approx(7.5, rel=0.01)


def test_rates_and_times_that_a_pattern_gives(tmp_path):
    path = tmp_path / "own.log"
    path.write_text("".join(f"{1 / s:.3f} it/s\n" for s in SECONDS))
    times = load_step_log(path, r"(?P<steps_per_s>[\d.]+) it/s")
    assert times.duration_s[:, 0] == pytest.approx(SECONDS, rel=0.001)
    assert "counted in the order of the lines" in times.warnings[0]
    path.write_text("".join(f"{8192 / s:.0f} tokens/s\n" for s in SECONDS))
    times = load_step_log(path, r"(?P<rate>[\d.]+) tokens/s")
    assert times.duration_s[:, 0] == pytest.approx(np.array(SECONDS) / 0.5, rel=0.001)
    assert "factors hold, but seconds do not" in times.warnings[-1]
    stamps = [f"2026-08-22 10:{s // 60:02d}:{s % 60:02d}.250 done\n" for s in range(0, 900, 15)]
    path.write_text("".join(stamps))
    times = load_step_log(path, r"(?P<time>\S+ \S+) done")
    assert times.duration_s[:, 0].tolist() == [15.0] * 59


def test_epochs_need_their_number_of_steps(tmp_path):
    path = tmp_path / "own.log"
    path.write_text("e1 3 s\n")
    with pytest.raises(TraceError, match="needs both groups epoch and epoch_steps"):
        load_step_log(path, r"e(?P<epoch>\d) (?P<duration_s>\d) s")


@pytest.mark.parametrize("every", [10, 40])
def test_torchvisions_meters_are_means_of_the_last_20_steps(tmp_path, every):
    """Lines of ``MetricLogger.log_every`` in its references (pytorch/vision 041fe3b)."""
    step_s = np.random.default_rng(0).normal(0.25, 0.005, 1200)
    step_s[800:] += 0.1
    lines = []
    for step in range(0, 1200, every):
        mean_s = step_s[max(0, step - 19) : step + 1].mean()
        lines.append(
            f"Epoch: [0]  [{step:>5}/12000]  eta: 0:59:02  lr: 0.1  img/s: 121.728  loss: 6.9 (6.9)"
            f"  acc1: 0.0 (0.1)  time: {mean_s:.4f}  data: 0.0012  max mem: 1203"
        )
    lines.insert(60, "Test:  [  0/100]  eta: 0:01:02  loss: 6.9 (6.9)  time: 0.9  data: 0.8")
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    times = load_step_log(path)
    spacing = max(20, every)
    assert np.diff(times.steps).tolist() == [spacing] * (len(times.steps) - 1)
    assert times.duration_s.max() < 0.4
    said = f"a sample every {spacing} steps, the mean of the last of {spacing} steps"
    assert times.warnings[-1].startswith(said)
