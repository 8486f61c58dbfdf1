"""Where a job's wall time went; logs as the tools' sources format them, and by the tools."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from paceline.cli.main import run
from paceline.errors import DetectError, TraceError
from paceline.ledger import goodput
from paceline.ledger.categories import CATEGORIES, GOOGLE
from paceline.ledger.ledger import Ledger, ledger_of
from paceline.sources.run_logs.files import load_timeline
from paceline.sources.run_logs.timeline import PAUSE_KINDS, Pause, Start, Timeline, steps_of
from recordings import BASE_NS, SetClock, play, recorder

MIDNIGHT = datetime(2026, 8, 22).timestamp()


def stamp(seconds):
    return datetime.fromtimestamp(MIDNIGHT + seconds).strftime("%Y-%m-%d %H:%M:%S.%f")


class Megatron:
    """Writes as training.py, checkpointing.py and timers.py of core 0.20.0 do."""

    def __init__(self, at_s):
        self.at_s, self.lines = at_s, []

    def datetime(self, what):
        self.lines.append(f"[{what}] datetime: {stamp(self.at_s)} ")

    def setup(self, seconds, loaded=None):
        self.datetime("after megatron is initialized")
        self.at_s += seconds
        if loaded is not None:
            self.lines.append(
                f"  successfully loaded checkpoint from /c [ t 1/1, gtp_remat 1/1, p 1/1 ] "
                f"at iteration {loaded}"
            )
        self.datetime("before the start of training step")

    def steps(self, first, last, seconds, every=1, extra_s=0.0):
        for step in range(first, last + 1, every):
            mean = seconds + (extra_s if step == first else 0)
            self.at_s += every * mean
            self.lines.append(
                f" [{stamp(self.at_s)}] iteration {step + every - 1:8d}/{1000:8d} |"
                f" consumed samples: {step:12d} | elapsed time per iteration (ms):"
                f" {mean * 1000:.1f} | global batch size:    64 | lm loss: 2.5E+00 |"
            )

    def timer(self, name, seconds):
        self.at_s += seconds
        self.lines += [
            "(min, max) time across ranks (ms):",
            f"    {(name + ' ').ljust(48, '.')}: ({seconds * 900:.2f}, {seconds * 1000:.2f})",
        ]

    def write(self, path):
        path.write_text("\n".join(self.lines) + "\n")
        return path


def rows(ledger):
    return {name: None if s is None else round(s, 2) for name, s in ledger.seconds.items()}


def adds_up(ledger):
    return sum(s or 0 for s in ledger.seconds.values()) == pytest.approx(ledger.total_s, rel=1e-9)


def two_starts(tmp_path):
    """100 steps, of which the last 20 are lost; then 80 that end of their own accord."""
    one = Megatron(0)
    one.setup(60)
    one.steps(1, 1, 2.0, extra_s=10.0)
    one.steps(2, 50, 2.0)
    one.timer("evaluate", 30)
    one.timer("save-checkpoint", 20)
    one.steps(51, 80, 2.0)
    one.timer("save-checkpoint", 20)
    one.steps(81, 100, 2.0)
    two = Megatron(one.at_s + 300)
    two.setup(40, loaded=80)
    two.steps(81, 160, 2.0)
    two.at_s += 5
    two.datetime("after training is done")
    return one.write(tmp_path / "1.log"), two.write(tmp_path / "2.log")


def test_rows_that_are_almost_nothing_have_no_digits():
    rows = {"productive": 90.0, "compile": 0.00115, "idle": 0.0, "data": 2e-2}
    assert [line.split(maxsplit=1) for line in Ledger("a tool", 100.0, rows).lines()[1:]] == [
        ["productive", "90.00%           90 s"],
        ["first", "steps   <0.01%    under 0.1 s"],
        ["idle", "0.00%            0 s"],
        ["data", "0.02%        20.0 ms"],
    ]
    long = Ledger("a tool", 100_000.0, {"productive": 90_000.0, "compile": 3.25})
    assert long.lines()[2].split(maxsplit=2) == ["first", "steps", "<0.01%         3.25 s"]


def test_megatron_with_a_restart(tmp_path):
    ledger = goodput(list(two_starts(tmp_path)))
    assert rows(ledger) == {
        "productive": 320,
        "stragglers": None,
        "fail_slow": 0,
        "lost_steps": 40,
        "restarts": 340,
        "checkpoints": 40,
        "evaluation": 30,
        "data_waits": None,
        "startup": 60,
        "compile": 10,
        "idle": None,
        "other": None,
        "unknown": 5,
    }
    assert (ledger.total_s, ledger.steps, ledger.lost_steps) == (pytest.approx(845), 160, 20)
    assert ledger.reasons["stragglers"] == "give S of paceline analyze (--slowdown)"
    needed = "records of waits for data, as of ml-goodput-measurement, would tell"
    assert ledger.reasons["data_waits"] == f"not recorded; {needed}"
    last = ledger.lines()[13]
    assert last.endswith("5 s  no line explains it; it may be data waits, other")
    assert "5 s  no line" not in "".join(replace(ledger, reasons={}).lines())
    assert adds_up(ledger)


def test_a_damaged_timer_is_left_out(tmp_path):
    log = two_starts(tmp_path)[0]
    assert rows(goodput(log))["evaluation"] == 30
    text = log.read_text()
    assert text.count("30000.00)") == 1
    log.write_text(text.replace("30000.00)", "30.000.00)"))
    assert rows(goodput(log))["evaluation"] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "trainer_state.json",
            '{"log_history": [{"loss": 1, "step": 1, "train_runtime": HUGE}, '
            '{"loss": 1, "step": 2, "train_runtime": 2}]}',
        ),
        ("a.json", '[{"job_name": "a", "step_count": 1, "step_start_time": HUGE}]'),
        ("a.log", ':::MLLOG {"time_ms": HUGE, "key": "block_start"}\n'),
        (
            "b.json",
            '[{"type": "start", "count": 1, "pid": 1, "id": "a", "start_event": '
            '{"attributes": {"timestamp_msec": HUGE}}}]',
        ),
    ],
)
def test_numbers_that_no_float_holds_are_damage(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text.replace("HUGE", "9" * 400))
    with pytest.raises(TraceError, match="is damaged"):
        load_timeline([path])


def test_a_table_of_starts_has_no_last_duration(tmp_path):
    """The last step has none on any rank, which numpy warns of."""
    (tmp_path / "steps.csv").write_text("step,start_s\n1,10\n2,12\n3,14\n")
    timeline = load_timeline([tmp_path / "steps.csv"])
    assert timeline.starts[0].steps.last.tolist() == [1, 2]


def test_one_log_of_several_starts_is_the_same(tmp_path):
    logs = two_starts(tmp_path)
    both = tmp_path / "both.log"
    both.write_text("".join(log.read_text() for log in logs))
    assert rows(goodput(both)) == rows(goodput(list(logs[::-1])))


def test_what_lies_between_an_end_and_a_start_is_idle(tmp_path):
    one, two = Megatron(0), Megatron(1000)
    for log, first in ((one, 1), (two, 101)):
        log.setup(10, loaded=first - 1)
        log.steps(first, first + 99, 1.0)
        log.datetime("after training is done")
    ledger = goodput([one.write(tmp_path / "1"), two.write(tmp_path / "2")])
    assert rows(ledger)["idle"] == 890
    assert rows(ledger)["restarts"] == 10


def test_lines_of_ten_steps_and_a_fail_slow(tmp_path):
    log = Megatron(0)
    log.setup(10)
    log.steps(1, 1000, 1.0, every=10)
    log.steps(1001, 1600, 1.5, every=10)
    log.steps(1601, 2000, 1.0, every=10)
    ledger = goodput(log.write(tmp_path / "log"), slowdown=1.25, gpus=8)
    assert ledger.seconds["fail_slow"] == pytest.approx(300, rel=0.01)
    assert ledger.seconds["productive"] == pytest.approx(1600, rel=0.01)
    assert ledger.seconds["stragglers"] == pytest.approx(400, rel=0.01)
    assert ledger.steps == 2000
    assert ledger.to_mapping()["rows"]["fail_slow"]["gpu_hours"] == pytest.approx(0.667, rel=0.01)
    assert adds_up(ledger)
    onset = {"kind": "onset", "since_step": 1001, "factor": 1.5}
    relief = {"kind": "relief", "since_step": 1601, "factor": 1.5}
    told = goodput(tmp_path / "log", events=[onset, relief])
    assert told.seconds["fail_slow"] == pytest.approx(300)


def test_dates_of_whole_seconds_hide_no_time(tmp_path, capsys):
    """Steps of 2.02 s, later 2.83 s, seem to overlap or to leave gaps by their dates."""
    seconds = np.repeat([2.02, 2.83, 2.02], [200, 100, 100])
    lines = (
        f" [{stamp(at_s)[:19]}] iteration {n}/ 400 | consumed samples: {n} | "
        f"elapsed time per iteration (ms): {1000 * spent_s:.1f} |"
        for n, (at_s, spent_s) in enumerate(zip(np.cumsum(seconds), seconds, strict=True), 1)
    )
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    ledger = goodput(path)
    assert adds_up(ledger)
    assert rows(ledger)["fail_slow"] == pytest.approx(81.0, rel=0.02)
    assert rows(ledger)["unknown"] < 1.1
    assert run(["detect", str(path), "--json"]) == 0
    relief = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert relief["lost_s"] == pytest.approx(rows(ledger)["fail_slow"], rel=0.02)


def test_a_long_step_is_nobodys(tmp_path):
    log = Megatron(0)
    log.setup(10)
    log.steps(1, 30, 1.0)
    log.steps(31, 31, 101.0)
    log.steps(32, 60, 1.0)
    ledger = goodput(log.write(tmp_path / "log"))
    assert rows(ledger)["unknown"] == 100
    assert rows(ledger)["productive"] == 60


def test_a_log_that_begins_late_says_what_it_cannot(tmp_path):
    log = Megatron(0)
    log.steps(501, 600, 1.0)
    ledger = goodput(log.write(tmp_path / "log"))
    for name in ("restarts", "lost_steps", "idle", "compile", "startup"):
        assert ledger.seconds[name] is None
    assert "begins at step 501" in ledger.reasons["lost_steps"]
    assert ledger.seconds["productive"] == pytest.approx(100)


def test_any_log_of_steps(tmp_path):
    lines = [f"iter {n}: loss 2.5, time {500 if n else 2500}.00ms, mfu 30%" for n in range(60)]
    path = tmp_path / "nano.log"
    path.write_text("\n".join([*lines, *lines[40:], ""]))
    ledger = goodput(path)
    assert rows(ledger)["lost_steps"] == 10
    assert rows(ledger)["compile"] == 2
    assert ledger.reasons["restarts"] == (
        "the lines have no dates; lines with dates, or --pattern with the group time, would tell"
    )
    assert (ledger.steps, ledger.lost_steps) == (60, 20)
    assert adds_up(ledger)


MLLOG = ':::MLLOG {{"time_ms": {}, "event_type": "E", "key": "{}", "value": {}, "metadata": {}}}'


def test_mlperf(tmp_path):
    def line(at_s, key, value="null", metadata="{}"):
        return MLLOG.format(int((1e9 + at_s) * 1000), key, value, metadata)

    lines = [line(0, "init_start"), line(90, "init_stop"), line(90, "run_start")]
    lines.append(line(90, "global_batch_size", 16))
    lines.append(line(91, "block_start"))
    stats = '{"train_step_time": 1.0}'
    counts = [json.dumps({"samples_count": 160 * n}) for n in range(1, 11)]
    lines += [line(91 + 10 * n, "tracked_stats", stats, c) for n, c in enumerate(counts, 1)]
    lines += [line(191, "block_stop"), line(191, "eval_start"), line(211, "eval_stop")]
    lines.append(line(212, "run_stop"))
    path = tmp_path / "mlperf.txt"
    path.write_text("\n".join([*lines, ""]))
    ledger = goodput(path)
    assert rows(ledger)["productive"] == 100
    assert rows(ledger)["evaluation"] == 20
    assert rows(ledger)["startup"] == 91
    assert rows(ledger)["unknown"] == 1
    assert ledger.seconds["checkpoints"] is None
    assert ledger.steps == 100
    without = [text for text in lines if "tracked" not in text]
    path.write_text("\n".join([*without, ""]))
    assert rows(goodput(path))["productive"] == 100
    path.write_text("\n".join(without)[:-3])
    assert any("ends within a line" in note for note in goodput(path).notes)


def test_trainer_state(tmp_path):
    seconds = [2.0 * n + (5 if n > 5 else 0) for n in range(1, 11)]
    history = [{"step": n, "loss": 1.0, "train_runtime": s} for n, s in enumerate(seconds, 1)]
    history.insert(5, {"step": 5, "eval_loss": 1.0, "eval_runtime": 5.0})
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history}))
    ledger = goodput(path)
    assert rows(ledger)["evaluation"] == 5
    assert rows(ledger)["productive"] == 20
    assert ledger.seconds["checkpoints"] is None


def test_a_recorded_run_of_two_starts(tmp_path):
    for session, first, began_s in (("one", 0, 0), ("two", 5, 100)):
        clock = SetClock()
        clock.t = BASE_NS + began_s * 10**9
        given = {"rank": 0, "world": 1, "dp": 1, "session": session}
        rec = recorder(tmp_path, clock, **given)
        for number in range(first, first + 8):
            zero = BASE_NS + int((began_s + 4 + 2 * (number - first)) * 1e9)
            op = ("forward-compute", 0, 0, zero, zero + 10**9)
            play(rec, clock, number, [op], (zero, zero + 2 * 10**9))
        rec.close()
    ledger = goodput(tmp_path)
    assert rows(ledger)["startup"] == 4
    assert rows(ledger)["lost_steps"] == 6
    assert rows(ledger)["restarts"] == 84
    assert rows(ledger)["productive"] == 26
    assert ledger.seconds["checkpoints"] is None
    assert (ledger.total_s, ledger.steps) == (pytest.approx(120), 13)


class Cloud:
    """Takes Google's entries in place of Cloud Logging."""

    job_start_time = None

    def __init__(self):
        self.entries = []

    def write_cloud_logging_entry(self, entry):
        self.entries.append(entry)

    def read_cloud_logging_entries(self, *_):
        return list(self.entries), (None, None)


def google_entries(recorder_of):
    """Two starts, 70 steps and 90; ten are lost."""
    cloud = Cloud()
    recorder = recorder_of(cloud)

    def at(seconds):
        return datetime.fromtimestamp(1.7e9 + seconds, UTC)

    def start(first, last, t):
        recorder.record_job_start_time(at(t))
        recorder.record_tpu_init_start_time(at(t))
        recorder.record_tpu_init_end_time(at(t + 20))
        recorder.record_training_preparation_start_time(at(t + 20))
        recorder.record_training_preparation_end_time(at(t + 50))
        recorder.record_data_loading_start_time(at(t + 50))
        recorder.record_data_loading_end_time(at(t + 55))
        t += 55
        for step in range(first, last + 1):
            recorder.record_step_start_time(step, at(t))
            t += 12 if step == first else 3
            if step == 20:
                recorder.record_custom_badput_event_start_time(at(t - 2), "eval_step")
                recorder.record_custom_badput_event_end_time(at(t), "eval_step")
        return t

    recorder.record_job_end_time(at(start(60, 150, start(0, 70, 0) + 100)))
    return cloud


def test_google_by_its_own_library(tmp_path):
    theirs = pytest.importorskip(
        "ml_goodput_measurement.src.goodput", reason="pip install ml-goodput-measurement"
    )
    cloud = google_entries(lambda c: theirs.GoodputRecorder("job", "log", True, c))
    calculator = theirs.GoodputCalculator("job", "log", cloud, cache_dir=str(tmp_path))
    share, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
    path = tmp_path / "records.json"
    path.write_text(json.dumps([{"jsonPayload": entry} for entry in cloud.entries]))
    ledger = goodput(path)
    assert adds_up(ledger)
    assert ledger.goodput * 100 == pytest.approx(share, abs=0.1)
    percent = {kind.name: value for kind, value in badput.items()}
    assert ledger.seconds["data_waits"] / ledger.total_s * 100 == pytest.approx(
        percent["DATA_LOADING_SYNC"]
    )
    ours = ledger.seconds["startup"] + ledger.seconds["restarts"]
    names = ("TPU_INITIALIZATION", "TRAINING_PREP", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION")
    assert ours / ledger.total_s * 100 == pytest.approx(sum(percent[name] for name in names))
    assert ledger.seconds["evaluation"] == pytest.approx(2)
    assert {kind.name for kind in badput} <= set(GOOGLE) | {"CUSTOM_BADPUT_EVENTS"}


def test_one_logger_by_its_own_library(tmp_path, monkeypatch):
    reason = "pip install nv-one-logger-core nv-one-logger-training-telemetry"
    pytest.importorskip("nv_one_logger.training_telemetry.api.callbacks", reason=reason)
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.core import time as their_time
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.training_telemetry.api import callbacks
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
        TrainingTelemetryProvider,
    )

    class Clock:
        now = 1.8e9

        def time(self):
            return self.now

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(their_time, "time", clock)
    monkeypatch.chdir(tmp_path)
    telemetry = TrainingTelemetryConfig(
        perf_tag_or_fn="x", global_batch_size_or_fn=8, log_every_n_train_iterations=10,
        train_iterations_target_or_fn=20,
    )  # fmt: skip
    config = OneLoggerConfig(
        application_name="a", world_size_or_fn=1, session_tag_or_fn="s", telemetry_config=telemetry
    )
    path = tmp_path / "spans.json"
    provider = TrainingTelemetryProvider.instance().with_base_config(config)
    provider.with_exporter(FileExporter(path)).configure_provider()
    callbacks.on_app_start()
    clock.now += 8
    callbacks.on_train_start(0, 0)
    for n in range(20):
        callbacks.on_training_single_iteration_start()
        clock.now += 2
        callbacks.on_training_single_iteration_end()
        if n == 9:
            callbacks.on_validation_start()
            clock.now += 3
            callbacks.on_validation_end()
            callbacks.on_save_checkpoint_start(10)
            clock.now += 1.5
            callbacks.on_save_checkpoint_success(10)
            callbacks.on_save_checkpoint_end()
    callbacks.on_train_end()
    clock.now += 0.5
    callbacks.on_app_end()
    ledger = goodput(path)
    seconds = rows(ledger)
    assert (seconds["productive"], seconds["startup"], seconds["unknown"]) == (40, 8, 0.5)
    assert (seconds["evaluation"], seconds["checkpoints"]) == (3, 1.5)
    assert ledger.steps == 20


def test_totals_of_other_tools(tmp_path, capsys):
    path = tmp_path / "totals.json"
    badput = {"PROGRAM_STARTUP": 10.0, "CUSTOM_BADPUT_EVENTS": {"EVAL_STEP": 5.0, "SDC": 1.0}}
    google = {
        "goodput_time": {"TOTAL": 80.0},
        "badput_time": badput,
        "max_productive_step": 40,
        "total_elapsed_time": 100.0,
        "disruption_count": 0,
    }
    path.write_text(json.dumps(google))
    assert run(["goodput", "--totals", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seconds = {name: row["seconds"] for name, row in document["rows"].items()}
    assert seconds["evaluation"] == 5
    assert (seconds["compile"], seconds["other"], seconds["unknown"]) == (10, 1, 4)
    assert seconds["stragglers"] is None
    metrics = {
        "app_start_time": 1_000_000,
        "app_train_loop_start_time": 1_020_000,
        "app_finish_time": 1_200_000,
        "train_iterations_time_total": 150.0,
        "validation_iterations_time_total": 10.0,
        "save_checkpoint_sync_time_total": 8.0,
    }
    path.write_text(json.dumps(metrics))
    assert run(["goodput", "--totals", str(path)]) == 0
    out = capsys.readouterr().out
    assert "goodput at most 75.0%" in out
    path.write_text(json.dumps(metrics | {"train_iterations_time_total": 500.0}))
    assert run(["goodput", "--totals", str(path)]) == 2
    assert "exceed" in capsys.readouterr().err


def test_every_timeline_adds_up():
    draw = random.Random(5)
    for _ in range(50):
        starts, at = [], 0.0
        for _ in range(draw.randint(1, 4)):
            begin = at
            at += draw.random() * 50
            steps, first = [], draw.randint(0, 30)
            for n in range(draw.randint(1, 30)):
                steps.append((first + n, 1, at, at + draw.random() * 9))
                at = steps[-1][3] + draw.choice((0.0, 3.0))
            pauses = tuple(
                Pause(draw.choice(PAUSE_KINDS), p, p + draw.random() * 20)
                for p in np.linspace(begin - 5, at, 7)
            )
            starts.append(Start(begin, at, steps_of(steps), pauses, has_begin=True))
            at += draw.random() * 100
        recorded = frozenset(draw.sample(PAUSE_KINDS, 3))
        ledger = ledger_of(Timeline("t", tuple(starts), recorded), slowdown=1.2)
        wall_s = starts[-1].end_s - starts[0].begin_s
        assert ledger.total_s == pytest.approx(wall_s, rel=1e-9)
        assert adds_up(ledger)
        told = [s for s in ledger.seconds.values() if s is not None]
        assert min(told) >= 0
        assert not [s for s in told if 0 < s < 1e-7]  # rounding


def test_the_command(tmp_path, capsys):
    logs = [str(log) for log in two_starts(tmp_path)]
    events = tmp_path / "events.jsonl"
    events.write_text('{"kind": "onset", "since_step": 141, "factor": 2.0}\n')
    assert run(["goodput", *logs, "--events", str(events), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "paceline-goodput"
    assert list(document["rows"]) == list(CATEGORIES)
    assert document["rows"]["fail_slow"]["seconds"] == pytest.approx(20)
    assert run(["goodput", "--fleet", *logs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(log) for log, line in zip(logs, lines, strict=False)] == [True, True]
    assert "goodput" in lines[2]
    assert any("lost steps: 1 of 2 logs do not tell" in line for line in lines)
    assert run(["goodput", logs[0], "--slowdown", "0.5"]) == 2
    assert "must be 1 or more" in capsys.readouterr().err


def test_what_cannot_be_read_is_said(tmp_path):
    first, _ = two_starts(tmp_path)
    with pytest.raises(TraceError, match="overlap"):
        goodput([first, first])
    table = tmp_path / "steps.csv"
    table.write_text("step,duration_s\n1,0.5\n2,0.5\n")
    with pytest.raises(TraceError, match="some of these logs have dates"):
        goodput([first, table])
    two = [{"job_name": "a", "step_count": 1, "step_start_time": 1.0}, {"job_name": "b"}]
    path = tmp_path / "records.json"
    path.write_text(json.dumps(two))
    with pytest.raises(TraceError, match="several jobs"):
        load_timeline([path])
    history = [{"step": n, "loss": 1.0, "train_runtime": float("nan")} for n in (1, 2)]
    path.write_text(json.dumps({"log_history": history}))
    with pytest.raises(TraceError, match="no number"):
        goodput(path)
    path.write_text(
        json.dumps({"log_history": [entry | {"train_runtime": 0} for entry in history]})
    )
    with pytest.raises(TraceError, match="no time passes"):
        goodput(path)
    damaged = tmp_path / "damaged.log"
    damaged.write_text(first.read_text().replace("2026-08-22", "2026-13-22"))
    with pytest.raises(TraceError, match="is no time"):
        goodput(damaged)
    with pytest.raises(DetectError, match="numbers"):
        goodput(first, events=[{"kind": "onset"}])


def test_small_gpu_hours_have_digits():
    lines = Ledger("a tool", 9000.0, {"productive": 9000.0, "idle": 36.0}, gpus=1).lines()
    assert lines[1].endswith("2.5 GPU-hours")
    assert lines[2].endswith("0.01 GPU-hours")
