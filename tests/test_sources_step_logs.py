"""Logs of trainers -> step times, told by content; lines as the tools' sources format them."""

import json
import os
import re
import struct
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import requires
from paceline.cli.main import run
from paceline.detect.detector import Detector
from paceline.errors import TraceError
from paceline.ledger import goodput
from paceline.sources.step_logs.files import load_step_log

#: Seconds of 60 steps: 0.5 s, then 0.75 s from step 55 on.
SECONDS = [0.5 if step < 55 else 0.75 for step in range(60)]


def at(seconds):
    return f"2026-08-22 10:{int(seconds) // 60:02d}:{seconds % 60:06.3f}"


def megatron(step, seconds, end_s):
    return (
        f" [{at(end_s)}000] iteration {step:8d}/{100:8d} | consumed samples: {step * 64:12d} |"
        f" elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU"
        f" (TFLOP/s/GPU): 400.1 | learning rate: 1.000000E-04 | global batch size: {64:5d} |"
        " lm loss: 2.500000E+00 | loss scale: 1.0 |"
    )


def bridge(step, seconds, end_s):
    return f"Step Time : {seconds:.2f}s GPU utilization: 9.5MODEL_TFLOP/s/GPU\n" + megatron(
        step, seconds, end_s
    )


def nemo(step, seconds, end_s):
    return (
        f"Training epoch 0, iteration {step}/99 | lr: 1.961e-06 | global_batch_size: 8 | "
        f"global_step: {step} | reduced_train_loss: 1.315 | train_step_timing in s: {seconds} | "
        f"consumed_samples: {8 * step}"
    )


def nemo_bar(step, seconds, end_s):
    return (
        f"Epoch 0: : {step}%|█| {step}/100 [10:48<00:00, reduced_train_loss=0.0172, "
        f"global_step={step:.2f}, consumed_samples=25600.0, train_step_timing in s={seconds}]\r"
    )


def torchtitan(step, seconds, end_s):
    return (
        f"[rank0]:[titan] {at(end_s).replace('.', ',')} - root - INFO - \x1b[31mstep: {step:2}  "
        f"\x1b[32mloss: {2.5:7.4f}  \x1b[33mmemory:  2.47GiB(3.12%)  "
        f"\x1b[34mtps: {round(8192 / seconds):,}  \x1b[36mtflops: 1.90  \x1b[35mmfu: 0.19%\x1b[39m"
    )


def nanogpt(step, seconds, end_s):
    return f"iter {step}: loss 2.5000, time {seconds * 1000:.2f}ms, mfu 17.21%"


def modded_nanogpt(step, seconds, end_s):
    return (
        f"step:{step + 1}/1750 train_time:{end_s * 1000:.0f}ms step_avg:500.00ms\n"
        f"step:{step + 1}/1750 val_loss:3.9 train_time:{end_s * 1000:.0f}ms step_avg:500.00ms"
    )


def llm_c(step, seconds, end_s):
    return (
        f"step {step:4d}/19560 | loss 10.9 (+nanz)| norm 15.1 (+nanz)| lr 8.57e-07 | "
        f"{seconds * 1000:.2f} ms | 34.5% bf16 MFU | {round(524288 / seconds)} tok/s"
    )


def llm_c_python(step, seconds, end_s):
    return (
        f"step {step:4d}/19560 | train loss 10.9 | norm 15.1 | lr 8.57e-07 | "
        f"({seconds * 1000:.2f} ms | {round(524288 / seconds)} tok/s)"
    )


def nanochat(step, seconds, end_s):
    return (
        f"step {step:05d}/21400 ({step / 214:.2f}%) | loss: 9.1 | lrm: 1.00 | "
        f"dt: {seconds * 1000:.2f}ms | tok/sec: 447,000 | mfu: 12.30 | total time: 0.10m"
    )


def build_nanogpt(step, seconds, end_s):
    return f"step {step:5d} | loss: 6.5 | norm: 0.2 | dt: {seconds * 1000:.2f}ms | tok/sec: 1342.10"


def deepspeed(step, seconds, end_s):
    return (
        f"[{at(end_s).replace('.', ',')}] [INFO] [timer.py:264:stop] epoch=0/micro_step={step * 2}/"
        f"global_step={step}, RunningAvgSamplesPerSec=60.2, CurrSamplesPerSec={32 / seconds}, "
        "MemAllocated=1.1GB, MaxMemAllocated=2.2GB"
    )


def deepspeed_pipeline(step, seconds, end_s):
    return (
        f"steps: {step} loss: 1.2000 iter time (s): {seconds:.3f} samples/sec: {32 / seconds:.3f}"
    )


def mlperf(step, seconds, end_s):
    stats = {
        "namespace": "",
        "time_ms": 1759987835297,
        "event_type": "POINT_IN_TIME",
        "key": "tracked_stats",
        "value": {"train_step_time": seconds, "reduced_train_loss": 3.1},
        "metadata": {"file": "/workspace/llm/custom_callbacks.py", "lineno": 1, "step": 64 * step},
    }
    return f" 0: :::MLLOG {json.dumps(stats)}"


FORMATS = [
    *(megatron, bridge, nemo, nemo_bar, torchtitan, nanogpt, modded_nanogpt),
    *(llm_c, llm_c_python, nanochat, build_nanogpt, deepspeed, deepspeed_pipeline, mlperf),
]


def log_of(path, line, seconds=SECONDS, spacing=1):
    """A log with words of other tools around its lines."""
    head = ["NCCL version 2.27.5, cuda 12.9", "using world size: 8, data-parallel size: 8"]
    if line is mlperf:
        sizes = {"key": "global_batch_size", "value": 64, "metadata": {}}
        head.append(f" 0: :::MLLOG {json.dumps(sizes)}")
    ends = np.cumsum(np.array(seconds) * spacing)
    lines = [line(i * spacing, s, e) for i, (s, e) in enumerate(zip(seconds, ends, strict=True))]
    path.write_text("\n".join([*head, *lines, "saving checkpoint"]) + "\n")
    return path


@pytest.mark.parametrize("line", FORMATS)
def test_logs_are_told_by_their_content(tmp_path, line):
    times = load_step_log(log_of(tmp_path / "train.log", line))
    expected = dict(enumerate(SECONDS))
    if line is modded_nanogpt:  # a cumulative time: the first step has none; steps count from 1
        expected = {step + 1: s for step, s in expected.items() if step}
    assert times.steps.tolist() == list(expected)
    assert times.duration_s[:, 0] == pytest.approx(list(expected.values()), rel=1e-3)
    assert times.warnings == ()
    assert times.workload == {}  # the batch never changes, so it explains nothing


def test_a_batch_that_grows_is_workload(tmp_path):
    def growing(step, seconds, end_s):
        line = megatron(step, seconds, end_s)
        return line.replace("size:    64", "size:   128") if step >= 55 else line

    times = load_step_log(log_of(tmp_path / "train.log", growing))
    assert times.workload["batch"].tolist() == [64.0] * 55 + [128.0] * 5


def test_lost_seconds_of_a_log_with_every_tenth_step(capsys, tmp_path):
    seconds = [1.0] * 100 + [1.5] * 20
    path = log_of(tmp_path / "train.log", megatron, seconds, spacing=10)
    assert run(["detect", str(path), "--json"]) == 0
    out = capsys.readouterr()
    (event,) = map(json.loads, out.out.splitlines())
    assert event["since_step"] == 1000
    samples = (event["step"] - event["since_step"]) / 10 + 1
    assert event["lost_s"] == pytest.approx(10 * 0.5 * samples)
    assert "a sample every 10 steps" in out.err


@pytest.mark.parametrize("launcher", ["", "0: ", " 17: "])
def test_mlperf_by_its_own_logger(tmp_path, launcher):
    """mlperf-logging 4.1.68; counts are of samples, and a launcher puts a rank before each line."""
    requires.installed("mlperf_logging")
    from mlperf_logging import mllog

    path = tmp_path / "result_0.txt"
    mllog.config(filename=str(path), root_dir=str(tmp_path))
    logger = mllog.get_mllogger()
    logger.event(key="global_batch_size", value=16)
    logger.start(key="run_start")
    for step in range(1, 61):
        stats = {"train_step_time": 1.5 if step >= 55 else 1.0, "reduced_train_loss": 2.0}
        logger.event(key="tracked_stats", value=stats, metadata={"step": step * 16})
    logger.end(key="run_stop", metadata={"status": "success"})
    path.write_text("".join(launcher + line for line in path.read_text().splitlines(True)))
    times = load_step_log(path)
    assert times.steps.tolist() == list(range(1, 61))
    assert times.duration_s[:, 0].tolist() == [1.0] * 54 + [1.5] * 6
    assert times.steps_per_sample == 1


def test_mlperf_without_step_times(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text(
        ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 3}, "metadata": {}}\n'
    )
    with pytest.raises(TraceError, match="without a train_step_time"):
        load_step_log(path)


def test_a_pattern_for_any_other_log(tmp_path):
    path = tmp_path / "own.log"
    path.write_text(
        "".join(f"r1 step {i} took {s * 1e3} ms, 42 tok\n" for i, s in enumerate(SECONDS))
    )
    pattern = r"r(?P<rank>\d) step (?P<step>\d+) took (?P<duration_ms>[\d.]+) ms"
    times = load_step_log(path, pattern)
    assert times.ranks.tolist() == [1]
    assert times.duration_s[:, 0] == pytest.approx(SECONDS)
    counted = load_step_log(path, r"took (?P<duration_ms>[\d.]+) ms")
    assert counted.steps.tolist() == list(range(60))


def test_durations_precede_differences(tmp_path):
    """A line may have both; the order must not depend on the seed of Python's hashes."""
    path = tmp_path / "own.log"
    path.write_text("".join(f"step {n} {n * 3}.5 s, took 250 ms\n" for n in range(4)))
    code = (
        "import sys; from pathlib import Path\n"
        "from paceline.sources.step_logs.files import load_step_log\n"
        "pattern = r'step (?P<step>\\d+) (?P<elapsed_s>[\\d.]+) s, took (?P<duration_ms>\\d+) ms'\n"
        "print(load_step_log(Path(sys.argv[1]), pattern).duration_s.ravel().tolist())\n"
    )
    for seed in "679":
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "[0.25, 0.25, 0.25, 0.25]"


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("step,duration_s,duration_s\n0,1,5\n1,2,6\n")
    columns = [pa.array([0, 1]), pa.array([1.0, 2.0]), pa.array([5.0, 6.0])]
    names = ["step", "duration_s", "duration_s"]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(TraceError, match="has more than one column called duration_s"):
            load_step_log(tmp_path / name)


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_a_log_that_ends_within_a_number_is_told(tmp_path, kept):
    path = tmp_path / "train.log"
    text = "".join(f"iter {n}: loss 2.5, time 901.25ms, mfu 30%\n" for n in range(60))
    path.write_text(text[: text.rindex("901.25") + kept])
    times = load_step_log(path)
    assert times.duration_s[:, 0].tolist() == [0.90125] * 59
    (warning,) = times.warnings
    assert "ends within a line" in warning


def test_a_progress_bar_has_no_end_of_line(tmp_path):
    path = tmp_path / "bar.log"
    path.write_text("\r".join(f"step {n} took 901.25 ms" for n in range(60)))
    times = load_step_log(path, r"step (?P<step>\d+) took (?P<duration_ms>[\d.]+) ms")
    assert times.steps.tolist() == list(range(59))  # the last state may be cut off
    assert "ends within a line" in times.warnings[0]


def test_a_clock_of_whole_seconds(tmp_path):
    """Steps of 0.7 s, later 1.05 s, by stamps of whole seconds: none of them takes 0 s or 1 s."""
    path = tmp_path / "own.log"
    ends = np.floor(np.cumsum([0.7] * 2000 + [1.05] * 1000))
    path.write_text("".join(f"{end:.0f} s: step {i}\n" for i, end in enumerate(ends)))
    times = load_step_log(path, r"^(?P<elapsed_s>\d+) s: step (?P<step>\d+)")
    assert times.steps_per_sample == 25  # 20 s of 0.8 s each
    before = times.duration_s[times.steps < 2000, 0]
    after = times.duration_s[times.steps >= 2025, 0]
    assert before == pytest.approx(0.7, abs=1 / 25)
    assert after == pytest.approx(1.05, abs=1 / 25)
    detector = Detector()
    samples = zip(times.steps.tolist(), times.duration_s, strict=True)
    (event,) = [event for step, row in samples for event in detector.update(step, row)]
    assert event.kind == "onset"
    assert event.factor == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("step (?P<step>", "is no regular expression"),
        (r"(?P<step>\d+)", "needs a group that gives a time (duration_s, duration_ms, "),
        (r"(?P<seconds>\d+)", "has a group seconds; the groups are batch, checkpoint_s, duration"),
        (r"(?P<duration_s>took)", "duration_s is no number"),
        (r"never (?P<duration_s>\d+)", "its first lines are 'step 1 took 3 s'"),
    ],
)
def test_patterns_that_cannot_be(tmp_path, pattern, words):
    path = tmp_path / "own.log"
    path.write_text("step 1 took 3 s\nstep 2 took 3 s\n")
    with pytest.raises(TraceError, match=re.escape(words)):
        load_step_log(path, pattern)


def test_a_log_of_no_known_format_shows_its_lines(capsys, tmp_path):
    path = tmp_path / "own.log"
    path.write_text("hello\nstep 1 took 3 s\n")
    assert run(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert "need --pattern 'step (?P<step>" in err
    assert "'hello', 'step 1 took 3 s'" in err


def test_weights_and_biases(tmp_path):
    chart = tmp_path / "chart.csv"
    name = "job-17 - iteration-time"
    rows = [f'"{i}","{s}","{s}","{s}"' for i, s in enumerate(SECONDS)]
    chart.write_text("\n".join([f'"Step","{name}","{name}__MIN","{name}__MAX"', *rows]))
    assert load_step_log(chart).duration_s[:, 0].tolist() == SECONDS
    history = tmp_path / "history.csv"
    ends = np.cumsum(SECONDS)
    rows = [f"{i},{i},{end},2.5" for i, end in enumerate(ends)]
    history.write_text("\n".join([",_step,_runtime,loss", *rows, ""]))
    times = load_step_log(history)
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[1:])
    assert "mean between two points" in times.warnings[0]
    chart.write_text('"Step","a - step_time","b - step_time"\n1,2,3\n')
    with pytest.raises(TraceError, match="of several runs"):
        load_step_log(chart)


def test_the_header_of_a_weights_and_biases_export_with_sections(tmp_path):
    """The form of real headers (wandb/wandb issue 5349); of several runs, each has its columns."""
    chart = tmp_path / "chart.csv"

    def columns(*runs, metric="Train Loss Dict/loss"):
        own = [f"{run} - {metric}" for run in runs]
        return ",".join(f'"{c}","{c}__MIN","{c}__MAX"' for c in own)

    chart.write_text(f'"Step",{columns("PROPS-NeRF-ablate-19", "PROPS-NeRF-ablate-18")}\n')
    with pytest.raises(TraceError, match="has no step times"):
        load_step_log(chart)
    rows = [f'"{i}","{s}","{s}","{s}"' for i, s in enumerate(SECONDS)]
    head = f'"Step",{columns("job-17", metric="time_metrics/end_to_end(s)")}'
    chart.write_text("\n".join([head, *rows]))
    assert load_step_log(chart).duration_s[:, 0].tolist() == SECONDS


def test_prometheus(tmp_path):
    result = [
        {
            "metric": {"__name__": "train_step_milliseconds", "rank": str(rank)},
            "values": [[1759987835 + 15 * i, str(s * 1000)] for i, s in enumerate(SECONDS)],
        }
        for rank in (4, 2)
    ]
    path = tmp_path / "range.json"
    content = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(content))
    times = load_step_log(path)
    assert times.ranks.tolist() == [2, 4]
    assert times.duration_s[:, 1] == pytest.approx(SECONDS)
    assert "a scrape, not a step" in times.warnings[0]


def test_nccl_inspector_in_prometheus(tmp_path):
    """Labels are those of ``inspector_prom.cc`` of NCCL 2.30.7."""
    result = [
        {
            "metric": {
                "__name__": "nccl_collective_exec_time_microseconds",
                "node": f"nvl{node}",
                "gpu": "GPU0",
                "collective": "ReduceScatter",
                "message_size": "134-135MB",
            },
            "values": [[1759987835 + 30 * i, str(s * 1e6)] for i, s in enumerate(SECONDS)],
        }
        for node in (33, 34)
    ]
    path = tmp_path / "range.json"
    content = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(content))
    times = load_step_log(path)
    assert times.ranks.tolist() == [0, 1]
    assert times.duration_s[:, 1] == pytest.approx(SECONDS)
    assert times.warnings[1].endswith("numbered as ranks: 0 is node nvl33; 1 is node nvl34")


def test_trainer_state(tmp_path):
    ends = np.cumsum(SECONDS)
    history = [
        {"loss": 2.5, "step": i, "train_runtime": round(end, 4), "num_input_tokens_seen": 512 * i}
        for i, end in enumerate(ends)
    ]
    history += [{"eval_loss": 1.0, "step": 59}, {"train_runtime": 99.0, "step": 59}]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 59, "log_history": history}, indent=2))
    assert load_step_log(path).duration_s[:, 0] == pytest.approx(SECONDS[1:])
    for entry in history[:-1]:
        entry.pop("train_runtime", None)
    path.write_text(json.dumps({"log_history": history}))
    with pytest.raises(TraceError, match="include_num_input_tokens_seen"):
        load_step_log(path)


def event_file(path, tag, values):
    """An event file as tensorboard writes one, but for its checksums."""

    def field(number, kind, content):
        size = bytes([len(content)]) if kind == 2 else b""
        return bytes([number << 3 | kind]) + size + content

    def record(event):
        return struct.pack("<QI", len(event), 0) + event + bytes(4)

    data = record(field(1, 1, struct.pack("<d", 1.0)) + field(3, 2, b"brain.Event:2"))
    for step, value in enumerate(values):
        scalar = field(1, 2, tag) + field(2, 5, struct.pack("<f", value))
        summary = field(5, 2, field(1, 2, scalar))
        data += record(
            field(1, 1, struct.pack("<d", step * 2.0)) + field(2, 0, bytes([step])) + summary
        )
    path.write_bytes(data + b"torn")
    return path


def test_event_files(tmp_path):
    path = event_file(tmp_path / "events.out.tfevents.1", b"iteration-time", SECONDS)
    assert load_step_log(path).duration_s[:, 0].tolist() == SECONDS
    assert load_step_log(tmp_path).steps.tolist() == list(range(60))  # the folder
    times = load_step_log(event_file(path, b"loss", SECONDS))
    assert times.duration_s[:, 0].tolist() == [2.0] * 59
    assert "no metric is a step time" in times.warnings[0]


def test_an_event_with_a_damaged_time_is_left_out(tmp_path):
    path = event_file(tmp_path / "events.out.tfevents.1", b"iteration-time", SECONDS)
    event = bytes([1 << 3 | 2, 3]) + b"abc"  # a wall time of three bytes
    damaged = struct.pack("<QI", len(event), 0) + event + bytes(4)
    path.write_bytes(path.read_bytes().removesuffix(b"torn") + damaged)
    assert load_step_log(path).duration_s[:, 0].tolist() == SECONDS


def test_event_files_of_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    from tensorboardX import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for step, seconds in enumerate(SECONDS):
            writer.add_scalar("loss", 2.5, step, walltime=1000.0 + step)
            writer.add_scalar("iteration-time", seconds, step)
            writer.add_scalar("batch-size", 64 if step < 55 else 128, step)
        writer.add_image("image", np.zeros((3, 8, 8), dtype=np.uint8))
    times = load_step_log(tmp_path)
    assert times.duration_s[:, 0].tolist() == SECONDS
    assert times.workload["batch"].tolist() == [64.0] * 55 + [128.0] * 5


def test_trainer_state_of_transformers_itself(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        main_input_name = "input_ids"

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
            self.calls = 0

        def forward(self, input_ids, labels):
            self.calls += 1
            time.sleep(0.02 if self.calls < 5 else 0.1)
            return {"loss": (self.weight.sum() - labels.sum()) ** 2}

    data = [{"input_ids": torch.ones(4), "labels": torch.zeros(1)}] * 8
    args = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=1,
        logging_steps=1,
        include_num_input_tokens_seen="all",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer = Trainer(Model(), args, train_dataset=data, eval_dataset=data)
    started = time.monotonic()
    trainer.train()
    took_s = time.monotonic() - started
    trainer.state.save_to_json(str(tmp_path / "trainer_state.json"))
    times = load_step_log(tmp_path / "trainer_state.json")
    assert times.steps.tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert np.median(times.duration_s[4:]) > 2 * np.median(times.duration_s[:3])
    ledger = goodput(tmp_path / "trainer_state.json")
    runtimes = [e["eval_runtime"] for e in trainer.state.log_history if "eval_runtime" in e]
    assert ledger.seconds["evaluation"] == pytest.approx(sum(runtimes), rel=0.01)
    assert len(runtimes) == 2
    assert sum(s or 0 for s in ledger.seconds.values()) == pytest.approx(ledger.total_s)
    assert ledger.total_s <= took_s


def test_what_is_damaged_is_said_in_a_line(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"loss": 1, "step": 1, "train_runtime": "x"}, 3]}')
    with pytest.raises(TraceError, match="is damaged"):
        load_step_log(path)
    path.write_text(
        '{"log_history": [{"loss": 1, "step": 1, "train_runtime": %s}, '
        '{"loss": 1, "step": 2, "train_runtime": 2}]}' % ("9" * 400)
    )
    with pytest.raises(TraceError, match="is damaged"):
        load_step_log(path)
    sample = '"value": {"train_step_time": %s}, "metadata": {"step": 1}}\n' % ("9" * 400)
    (tmp_path / "ml.log").write_text(f':::MLLOG {{"time_ms": 1, "key": "tracked_stats", {sample}')
    with pytest.raises(TraceError, match="is damaged"):
        load_step_log(tmp_path / "ml.log")
    path.write_text('{"log_history": [')
    with pytest.raises(TraceError, match="is no JSON"):
        load_step_log(path)
    events = event_file(tmp_path / "events.out.tfevents.1", b"loss", [1.0])
    events.write_bytes(events.read_bytes()[:60] + b"\xff" * 200)
    with pytest.raises(TraceError, match="is damaged: a record of"):
        load_step_log(events)
    (tmp_path / "runs.csv").write_text("_step,_runtime")
    with pytest.raises(TraceError, match="has no step times: none of its columns"):
        load_step_log(tmp_path / "runs.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no event files"):
        load_step_log(tmp_path / "empty")


@pytest.mark.parametrize(
    ("line", "pattern", "part"),
    [
        ("step {} took 1,501s", r"step (?P<step>\d+).*?(?P<duration_s>[\d.]+)s", "501"),
        ("step {} took 1,501.25ms", r"step (?P<step>\d+).*?(?P<duration_ms>[\d.]+)ms", "501.25"),
        ("step {} took 1.5e3ms", r"step (?P<step>\d+).*?(?P<duration_ms>[\d.]+)ms", "3"),
        ("step {} took 1.5e3ms", r"step (?P<step>\d+) took (?P<duration_ms>[\d.]+)", "1.5"),
        ("step 1,{:03} took 2 s", r"step (?P<step>\d+).*? (?P<duration_s>\d+) s", "1"),
    ],
)
def test_a_pattern_that_takes_a_part_of_a_number_is_refused(tmp_path, line, pattern, part):
    path = tmp_path / "my.log"
    path.write_text("".join(f"{line.format(step)}\n" for step in range(60)))
    with pytest.raises(TraceError, match=f"takes '{re.escape(part)}', a part of a number in "):
        load_step_log(path, pattern)


def test_a_pattern_with_commas_between_values_takes_them(tmp_path):
    path = tmp_path / "my.log"
    path.write_text("".join(f"row {step},250,{step + 100},x\n" for step in range(60)))
    times = load_step_log(path, r"row (?P<step>\d+),(?P<duration_ms>\d+),")
    assert times.duration_s[:, 0].tolist() == [0.25] * 60


@pytest.mark.parametrize(
    ("value", "group", "seconds"),
    [
        ("1,501", "duration_s", 1.501),
        ("1,501", "duration_ms", 1.501),
        ("1.5e3", "duration_ms", 1.5),
    ],
)
def test_a_step_of_thousands_of_seconds_is_a_decimal_comma(tmp_path, value, group, seconds):
    path = tmp_path / "my.log"
    path.write_text("".join(f"step {step} took {value}\n" for step in range(60)))
    times = load_step_log(path, rf"step (?P<step>\d+) took (?P<{group}>[\d.,eE+-]*\d)")
    assert times.duration_s[5, 0] == pytest.approx(seconds)
    said = "the group duration_s: 1,501 is read as 1.501 seconds"
    assert (said in times.warnings) is (group == "duration_s")
