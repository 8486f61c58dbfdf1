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
#: The first step whose time a log tells: differences need the line before.
FIRST = {
    step_log_lines.paddlenlp: 1,
    step_log_lines.llama_factory: 2,
    step_log_lines.ms_swift: 2,
    step_log_lines.ms_swift_printed: 2,
}


def log_of(path, line, seconds=SECONDS, **options):
    ends = np.cumsum(seconds)
    lines = [line(i, s, e, **options) for i, (s, e) in enumerate(zip(seconds, ends, strict=True))]
    path.write_text("\n".join(["NCCL version 2.27.5, cuda 12.9", *lines, "saving"]) + "\n")
    return path


@pytest.mark.parametrize("line", [x for x in LINES if x is not step_log_lines.composer])
def test_a_tool_is_told_by_its_lines(tmp_path, line):
    times = load_step_log(log_of(tmp_path / "train.log", line))
    first, n_left_out = FIRST.get(line, 0), 1 if line in FIRST else 0
    assert times.steps.tolist() == list(range(first, first + 60 - n_left_out))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[n_left_out:], rel=0.005)
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
        "step:0 - val-aux/openai/gsm8k/reward/mean@1:0.565 - val-core/gsm8k/acc/mean@1:0.508",
        "Validation | Step 40 | Loss 0.5012",  # prime-rl's
        "perf 7: {'rollout/num_training_samples': 32, 'perf/rollout_time': 4.8}",  # slime's other
        "Iter 100: Val loss 1.241, Val took 11.401s",  # MLX LM's
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


def hf_rows(seconds_a_step, every=10, number=40, *, mean_digits=None, first=0):
    """Lines of ms-swift with a line every few steps; a resumed run begins behind ``first``."""
    for n in range(1, number + 1):
        step, end_s = every * n, every * n * seconds_a_step
        mean = f', "train_speed(s/it)": {end_s / step:.{mean_digits}f}' if mean_digits else ""
        yield (
            f'{{"loss": 1.0, "global_step/max_steps": "{first + step}/9000", "elapsed_time": '
            f'"{int(end_s) // 60}m {int(end_s) % 60}s", "memory(GiB)": 2.44{mean}}}'
        )


@pytest.mark.parametrize("first", [0, 5000])
def test_a_mean_since_the_start_makes_a_clock_finer(tmp_path, first):
    """0.333 s a step: a clock of whole seconds gives 0.3 or 0.4 for ten steps."""
    path = tmp_path / "logging.jsonl"
    path.write_text("\n".join(hf_rows(1 / 3, mean_digits=6, first=first)) + "\n")
    times = load_step_log(path)
    assert times.steps_per_sample == 10
    assert times.duration_s[:, 0] == pytest.approx(1 / 3, rel=1e-3)


def test_a_coarse_mean_does_not_replace_the_clock(tmp_path):
    """Three digits of the mean after 400 steps are 0.4 s; after 4,000 steps they are 4 s."""
    path = tmp_path / "logging.jsonl"
    path.write_text("\n".join(hf_rows(7.5654, every=100, mean_digits=2)) + "\n")
    assert load_step_log(path).duration_s[:, 0] == pytest.approx(7.5654, rel=2e-3)


def test_validations_between_lines_of_a_clock_do_not_count(tmp_path):
    """LLaMA-Factory writes a line before and one after a validation, both at its step."""
    path, lines = tmp_path / "trainer_log.jsonl", []
    for n in range(1, 41):
        before_s = 20.0 * n + 300.0 * ((n - 1) // 10)
        lines.append(line_at(10 * n, before_s, "loss"))
        if n % 10 == 0:
            lines.append(line_at(10 * n, before_s + 300.0, "eval_loss"))
    path.write_text("\n".join(lines) + "\n")
    assert load_step_log(path).duration_s[:, 0] == pytest.approx(2.0)


def line_at(step, end_s, word):
    text = f"2 days, {step_log_lines.clock(end_s)}"
    return (
        f'{{"current_steps": {step}, "total_steps": 400, "{word}": 1.5, "percentage": 9.0, '
        f'"elapsed_time": "{text}", "remaining_time": "9 days, 21:03:44"}}'
    )


def test_several_writers_that_no_line_tells_apart_are_refused(tmp_path):
    """A published log (SFT-Training-LLM 264b290) has two: its steps looked 5 times as slow."""
    path = tmp_path / "trainer_log.jsonl"
    lines = [line_at(10 * step, 20.0 * step, "loss") for n in range(30) for step in (n + 1, n)]
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(TraceError, match="steps go back and forth") as refused:
        load_step_log(path)
    assert "several processes write it" in str(refused.value)


def test_restarts_are_no_second_writer(tmp_path):
    path = tmp_path / "train.log"
    runs = [range(20 * n, 20 * n + 30) for n in range(8)]  # each run goes 10 steps back
    path.write_text("".join(step_log_lines.timm(i, 0.5, i) + "\n" for run in runs for i in run))
    pattern = r"Time: (?P<duration_s>[\d.]+)s"
    assert load_step_log(path, pattern).duration_s.max() == 0.5
    assert load_step_log(path).duration_s.max() == 0.5


@pytest.mark.parametrize("text", ["9 parrots", "1:2:3:4", "12", "5 weeks", "1m2x"])
def test_a_text_that_is_no_time_is_told(tmp_path, text):
    path = tmp_path / "own.log"
    path.write_text(f"step 1 at {text};\nstep 2 at {text};\n")
    with pytest.raises(TraceError, match=f"'{text}' is no time, such as 1:02:03 or 18m 42s"):
        load_step_log(path, r"step (?P<step>\d+) at (?P<elapsed>[^;]+);")


def test_times_in_words_are_read(tmp_path):
    path = tmp_path / "own.log"
    texts = ["350ms", "1.5s", "1m 20s", "1h 2m", "1:05"]
    path.write_text("".join(f"step {n} took {text};\n" for n, text in enumerate(texts)))
    times = load_step_log(path, r"step (?P<step>\d+) took (?P<duration>[^;]+);")
    assert times.duration_s[:, 0].tolist() == pytest.approx([0.35, 1.5, 80, 3720, 65])
