"""``paceline detect``: files, streams, and what is wrong with them."""

import csv
import gzip
import io
import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from call_logs import of_trace
from paceline.cli.main import run
from paceline.sources import parquet
from paceline.sources.step_logs.files import load_step_log
from paceline.synth import SlowWorker, SynthSpec, synthesize


def said(capsys, *args):
    code = run(["detect", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def rows(steps=400, ranks=2, onset=250):
    x = np.random.default_rng(0).normal(1.0, 0.01, (steps, ranks))
    x[onset:, 1] *= 1.5
    return [(step, rank, x[step, rank]) for step in range(steps) for rank in range(ranks)]


def written(path, head, lines):
    path.write_text("\n".join([head, *(",".join(map(str, line)) for line in lines)]) + "\n")
    return path


def test_a_file_in_any_order(capsys, tmp_path):
    samples = rows()
    np.random.default_rng(1).shuffle(samples)
    table = [(int(s), int(r) + 100, d) for s, r, d in samples]
    path = written(tmp_path / "it.csv", "step,rank,duration_s", [*table, table[0]])
    code, out, err = said(capsys, path)
    assert code == 0
    assert "rank 101: 1.5" in out
    assert "since step 250" in out
    assert "400 steps of 2 ranks: 1 fail-slow, 1 rank slow at the end, " in out
    assert "sorted" in err
    assert "1 samples repeat a step" in err


@pytest.mark.parametrize("value", ["0", "-1.5", "inf", "nan"])
def test_a_file_without_usable_durations(capsys, tmp_path, value):
    path = written(tmp_path / "it.csv", "step,rank,duration_s", [(s, 0, value) for s in range(90)])
    code, _, err = said(capsys, path)
    assert code == 2
    assert "no rank has more than 50 durations that can be used, of 90 steps" in err


def test_ranks_that_fall_silent_are_not_called_healthy(capsys, tmp_path):
    times = [(step, 0, 1.0 if step < 60 else 0.0) for step in range(90)]
    _, out, _ = said(capsys, written(tmp_path / "one.csv", "step,rank,duration_s", times))
    assert out.splitlines() == [
        "step 60: impossible duration: clock jumped",
        "step 69: no sample since step 60",
        "29 more impossible durations followed such a duration directly",
        "90 steps of 1 rank: 0 fail-slows, no sample in the last 10 steps",
    ]
    late = [(step, 1, 1.0 + step % 7 / 100) for step in range(50, 90)]
    path = written(tmp_path / "two.csv", "step,rank,duration_s", times + late)
    summary = said(capsys, path)[1].splitlines()[-1]
    assert summary.endswith(
        "0 ranks slow at the end, 1 rank silent, 1 rank not judged (up to 50 samples)"
    )


def test_starts_instead_of_durations_and_json(capsys, tmp_path):
    start, lines = 0.0, []
    for step, rank, seconds in rows():
        if rank == 1:
            lines.append((step, start))
            start += seconds
    path = written(tmp_path / "it.csv", "step,start_s", lines)
    code, out, _ = said(capsys, path, "--json")
    (event,) = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert (event["kind"], event["since_step"], event["ranks"]) == ("onset", 250, [0])
    earlier = [written(tmp_path / f"{n}.csv", "step,start_s", lines) for n in range(3)]
    assert said(capsys, path, "--like", *earlier, "--json")[:2] == (0, "")


def test_parquet(capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    step, rank, seconds = zip(*rows(), strict=True)
    table = pa.table({"step": step, "rank": rank, "duration_s": seconds, "host": ["x"] * len(step)})
    pq.write_table(table, tmp_path / "it.parquet")
    code, out, _ = said(capsys, tmp_path / "it.parquet")
    assert code == 0
    assert "since step 250" in out


def test_a_stream_of_json_lines(capsys, monkeypatch):
    lines = [json.dumps({"step": s, "rank": r, "duration_s": d}) for s, r, d in rows()]
    lines.insert(300, json.dumps({"step": 3, "rank": 0, "duration_s": 1.0}))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, err = said(capsys, "-", "--ranks", 2)
    assert code == 0
    assert out.startswith("step 252: rank 1: 1.")
    assert "why: unknown, run paceline validate --world-size 2 --run" in out
    assert "1 samples repeat a step" in err
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, err = said(capsys, "-", "--ranks", 2, "--by-rank")
    assert out.startswith("step 252: rank 1 is 1.")


def test_a_slow_job_is_one_line_of_a_stream(capsys, monkeypatch):
    lines = [
        json.dumps({"step": s, "rank": r, "duration_s": 1.0 + 0.5 * (s >= 200)})
        for s in range(210)
        for r in range(8)
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, _ = said(capsys, "-", "--ranks", 8, "--json")
    assert code == 0
    (event,) = map(json.loads, out.splitlines())
    assert (event["kind"], event["ranks"], event["of"]) == ("onset", list(range(8)), 8)


def test_a_stream_that_goes_back_to_a_checkpoint(capsys, monkeypatch):
    times = [(s, 1.0) for s in range(300)] + [(s, 1.5) for s in range(100, 150)]
    lines = [json.dumps({"step": s, "duration_s": d}) for s, d in times]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    code, out, err = said(capsys, "-")
    assert code == 0
    assert "since step 100" in out
    assert "the job goes on from step 100 after step 299: a restart" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"step": 1e999, "duration_s": 1}', "standard input:1: step and rank must be whole"),
        ('{"step": 1, "duration_s": 1' + "0" * 400 + "}", "standard input:1 needs numbers"),
        ('{"step": 1' + "0" * 23 + ', "duration_s": 1}', "must be whole numbers"),
        ('{"step": 1.7, "duration_s": 1}', "must be whole numbers"),
        ('{"step": 1, "rank": 0.9, "duration_s": 1}', "must be whole numbers"),
        ('{"step": 1}', "needs numbers for step and duration_s"),
    ],
)
def test_lines_of_a_stream_that_cannot_be(capsys, monkeypatch, line, words):
    monkeypatch.setattr("sys.stdin", io.StringIO(line))
    code, out, err = said(capsys, "-")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("step,duration\n1,2\n", "lacks the columns duration_s (or start_s)"),
        ("stepp,duration_s\n1,2\n", "did you mean stepp?"),
        ("step,duration_s\n1,fast\n", "row 1: duration_s must be a number, not 'fast'"),
        ("step,duration_s\n1.5,2\n", "row 1: step must be a whole number"),
        ("step,duration_s\n1e30,2\n", "row 1: step must be a whole number"),
        ("step,duration_s\n1,2,3\n", "has 3 cells, the header 2"),
        ("step,duration_s\n1,2\n", "has 1 step; the first 50 are the warm-up"),
        ("step,duration_s\n", "holds no sample"),
        ("step;duration_s\n1;0,35\n", "must be a number, not '0,35'; write decimals with a point"),
        ("{not json\n", "is no JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, tmp_path, text, words):
    path = tmp_path / "it.csv"
    path.write_text(text)
    code, out, err = said(capsys, path)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("dialect", ["excel", "excel-tab", "unix"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(("column", "scale"), [("duration_s", 1), ("duration_ms", 1e3)])
def test_delimiters_and_milliseconds(tmp_path, dialect, delimiter, column, scale):
    """As Python's csv writes them, quoted or not."""
    path = tmp_path / "it.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, dialect, delimiter=delimiter)
        writer.writerow(["step", "rank", column])
        writer.writerows((s, r, d * scale) for s, r, d in rows(60))
    table = load_step_log(path)
    assert table.ranks.tolist() == [0, 1]
    np.testing.assert_allclose(table.duration_s.ravel(), [d for *_, d in rows(60)])


def test_milliseconds_of_json_lines_and_parquet(capsys, monkeypatch, tmp_path):
    lines = [{"step": s, "rank": r, "duration_ms": d * 1e3} for s, r, d in rows()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "it.jsonl").write_text(text)
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "it.parquet")
    expected = [d for *_, d in rows()]
    for name in ("it.jsonl", "it.parquet"):
        np.testing.assert_allclose(load_step_log(tmp_path / name).duration_s.ravel(), expected)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code, out, _ = said(capsys, "-", "--ranks", 2)
    assert (code, "rank 1: 1.5" in out) == (0, True)


def test_seconds_count_where_milliseconds_stand_beside_them(tmp_path):
    path = tmp_path / "it.csv"
    path.write_text("step,duration_ms,duration_s\n1,999,2.5\n2,999,2.5\n")
    assert load_step_log(path).duration_s.ravel().tolist() == [2.5, 2.5]


def test_files_and_streams_that_cannot_be(capsys, monkeypatch, tmp_path):
    assert "No such file" in said(capsys, tmp_path / "none.csv")[2]
    assert "No such file" in said(capsys, tmp_path / "none.parquet")[2]
    (tmp_path / "x.parquet").write_bytes(b"nope")
    assert "is no parquet file" in said(capsys, tmp_path / "x.parquet")[2]
    monkeypatch.setattr("sys.stdin", io.StringIO('{"step": 1, "rank": 5, "duration_s": 1}\n'))
    code, _, err = said(capsys, "-")
    assert code == 2
    assert "give --ranks N" in err


def test_the_papers_method(capsys, tmp_path):
    path = written(tmp_path / "it.csv", "step,rank,duration_s", rows())
    code, out, _ = said(capsys, path, "--method", "bocd")
    assert code == 0
    assert "rank 1: 1.5" in out
    code, _, err = said(capsys, path, "--method", "bocd", "--threshold", 0.2)
    assert code == 2
    assert "--threshold is for --method medians" in err


SPEC = SynthSpec(dp=4, pp=2, microbatches=4, steps=60)


@pytest.fixture(scope="module")
def slow_log(tmp_path_factory):
    """60 healthy steps, then 60 with a slow worker dp 3, stage 1: rank 7."""
    healthy, slow = synthesize(SPEC), synthesize(replace(SPEC, slow_workers=(SlowWorker(3, 1, 2),)))
    end_s = float(healthy.traced_step_s().sum())
    columns = []
    for trace, begin_s in ((healthy, 0.0), (slow, end_s)):
        log = of_trace(trace)
        columns.append(
            pa.table(
                {
                    "rank": log.rank,
                    "time_s": log.time_s + begin_s,
                    "op": [log.ops[op] for op in log.op],
                    "size": log.size,
                    "communicator": [log.communicators[at] for at in log.communicator],
                    "duration_s": log.duration_s,
                }
            )
        )
    path = tmp_path_factory.mktemp("calls") / "nccl.parquet"
    pq.write_table(pa.concat_tables(columns), path)
    return path


def test_a_call_log_gives_period_steps_and_who(capsys, slow_log):
    code, out, err = said(capsys, "--collectives", slow_log)
    assert (code, err) == (0, "")
    first, event, end, who, stake, last = out.splitlines()
    assert end.startswith("  so far: 1.")
    assert "1,000 more steps at this level lose" in stake
    assert "GPU-hours" in stake
    assert first.startswith("every 10 calls a step (100.0% of the calls in place, 8 ranks); iterat")
    assert "slower since step 60; rank 7; compute; " in event
    assert "as long between calls as the median of the 4 ranks that make the same calls" in who
    assert last.startswith("119 steps of 8 ranks: 1 fail-slow, 8 ranks slow at the end, ")
    assert last.endswith(" GPU-hours) lost in all")


def test_a_call_log_as_json(capsys, slow_log):
    code, out, _ = said(capsys, "--collectives", slow_log, "--json")
    period, event = map(json.loads, out.splitlines())
    assert code == 0
    assert (period["kind"], period["calls"]["0"], period["steps"]) == ("period", 10, 119)
    assert (event["kind"], event["since_step"]) == ("onset", 60)
    assert [(who["kind"], who["ranks"]) for who in event["who"]] == [("compute", [7])]


def test_without_durations_the_order_of_arrivals_says_who(capsys, slow_log, tmp_path):
    table = pq.read_table(slow_log).drop_columns(["duration_s"])
    pq.write_table(table, tmp_path / "calls.parquet")
    code, out, _ = said(capsys, "--collectives", tmp_path / "calls.parquet")
    assert code == 0
    assert "order of arrivals; the log has no durations" in out
    assert re.search(r"since step 60; (rank 7|one of ranks [0-9, ]*7); compute", out)


def test_a_short_call_log_still_tells_period_and_who(capsys, slow_log, tmp_path):
    table = pq.read_table(slow_log)
    late = table.filter(
        pa.compute.greater(table["time_s"], pa.compute.max(table["time_s"]).as_py() - 15)
    )
    pq.write_table(late, tmp_path / "calls.parquet")
    code, out, err = said(capsys, "--collectives", tmp_path / "calls.parquet")
    assert code == 0
    assert "every 10 calls a step" in out
    assert "rank 7; compute" in out
    assert "are the warm-up, so 4" in err
    code, out, _ = said(capsys, "--collectives", tmp_path / "calls.parquet", "--json")
    assert json.loads(out.splitlines()[1])["who"][0]["ranks"] == [7]


def test_a_log_of_one_rank_cannot_say_who(capsys, slow_log, tmp_path):
    table = pq.read_table(slow_log)
    alone = table.filter(pa.compute.equal(table["rank"], 0))
    pq.write_table(alone, tmp_path / "rank0.parquet")
    code, out, _ = said(capsys, "--collectives", tmp_path / "rank0.parquet")
    assert code == 0
    assert "since step 60" in out
    assert "who: unknown" in out
    late = alone.filter(
        pa.compute.greater(alone["time_s"], pa.compute.max(alone["time_s"]).as_py() - 15)
    )
    pq.write_table(late, tmp_path / "short.parquet")
    code, out, _ = said(capsys, "--collectives", tmp_path / "short.parquet")
    assert code == 0
    assert "who: unknown: the log has one rank only" in out
    code, out, _ = said(capsys, "--collectives", tmp_path / "short.parquet", "--json")
    assert json.loads(out.splitlines()[1])["who"] is None


def test_a_trace_or_a_log_beside_step_times_says_who(capsys, slow_log, tmp_path):
    path = written(tmp_path / "it.csv", "step,rank,duration_s", rows())
    slow = synthesize(replace(SPEC, steps=3, slow_workers=(SlowWorker(3, 1, 2),)))
    parquet.write(replace(slow, steps=slow.steps + 300), tmp_path / "trace.parquet")
    code, out, _ = said(capsys, path, "--trace", tmp_path / "trace.parquet")
    assert code == 0
    assert "rank 1: 1.5" in out
    assert "; rank 7 (stage 1 of replica 3); compute; " in out
    parquet.write(replace(slow, steps=slow.steps + 30), tmp_path / "early.parquet")
    code, out, err = said(capsys, path, "--trace", tmp_path / "early.parquet")
    assert code == 0
    assert "why: unknown" in out
    assert "has steps 30 to 32, none in a fail-slow" in err
    code, out, _ = said(capsys, path, "--collectives", slow_log)
    assert code == 0
    assert "1.5" in out
    assert "; rank 7; compute; " in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give a FILE of step times"),
        (["-", "--collectives", "x.parquet"], "not for a stream"),
        (["it.csv", "--job", "job.yaml"], "give that too"),
        (["--collectives", "none.parquet"], "none.parquet does not exist"),
    ],
)
def test_what_cannot_be_asked_for(capsys, args, words):
    code, out, err = said(capsys, *args)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        ([], ["0 steps came"]),
        ([(step, 1.0) for step in range(30)], ["30 steps came; the first 50 are the warm-up"]),
        ([(step, None) for step in range(60)], ["60 samples are empty"]),
        ([*((step, 1.0) for step in range(60)), (59, 2.0)], ["1 samples repeat a step"]),
    ],
)
def test_a_stream_that_says_nothing_says_why(capsys, monkeypatch, lines, notes):
    text = "".join(json.dumps({"step": s, "duration_s": d}) + "\n" for s, d in lines)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code, out, err = said(capsys, "-")
    assert (code, out) == (0, "" if lines[:1] != [(0, None)] else out)
    for note in notes:
        assert f"note: {note}" in err
    assert err.count("\n") == len(notes)


def test_too_many_ranks_are_refused(capsys):
    code, out, err = said(capsys, "-", "--ranks", 10**10)
    assert (code, out) == (2, "")
    assert "--ranks must be from 1 to 1,000,000" in err


def test_gpu_hours_are_told_where_the_number_of_gpus_is_known(capsys, tmp_path):
    lines = [(step, 1.0 if step < 100 else 1.5) for step in range(120)]
    path = written(tmp_path / "it.csv", "step,duration_s", lines)
    (event,) = map(json.loads, said(capsys, path, "--json")[1].splitlines())
    assert event["lost_gpu_hours"] is None  # one rank's log: how many wait, it does not say
    (event,) = map(json.loads, said(capsys, path, "--json", "--gpus", 64)[1].splitlines())
    assert event["lost_gpu_hours"] == pytest.approx(event["lost_s"] * 64 / 3600)
    assert event["at_stake_gpu_hours_per_1000_steps"] == pytest.approx(500 * 64 / 3600)
    out = said(capsys, path, "--gpus", 64)[1]
    assert "1,000 more steps at this level lose 8.3 minutes (8.89 GPU-hours)" in out
    assert said(capsys, path, "--gpus", 0)[0] == 2


def planned_rows():
    """Steps that take 1.5 times as long from step 150 on, with 1.5 times the tokens."""
    noise = np.random.default_rng(5).normal(0, 0.01, 250)
    return [(s, 1.0 + noise[s] + 0.5 * (s >= 150), 100 + 50 * (s >= 150)) for s in range(250)]


def test_workload_in_a_stream_explains_a_change(capsys, monkeypatch):
    rows = [{"step": s, "duration_s": d, "tokens": t} for s, d, t in planned_rows()]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, rows))))
    assert said(capsys, "-")[:2] == (0, "")
    rows[-1]["tokens"] = "many"
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, rows))))
    code, _, err = said(capsys, "-")
    assert (code, "needs numbers for tokens" in err) == (2, True)


def test_a_change_that_a_person_accepts_is_no_event(capsys, monkeypatch, tmp_path):
    lines = [(s, d + 0.8 * (s >= 200)) for s, d, _ in planned_rows()]
    path = written(tmp_path / "it.csv", "step,duration_s", lines)
    kinds = [json.loads(line)["kind"] for line in said(capsys, path, "--json")[1].splitlines()]
    assert kinds == ["onset", "worsening"]
    (event,) = map(json.loads, said(capsys, path, "--json", "--accept", 150)[1].splitlines())
    assert (event["kind"], event["since_step"]) == ("onset", 200)
    assert event["factor"] == pytest.approx(2.3 / 1.5, rel=0.02)  # to the accepted level
    stream = "\n".join(json.dumps({"step": s, "duration_s": d}) for s, d in lines)
    monkeypatch.setattr("sys.stdin", io.StringIO(stream))
    (event,) = map(json.loads, said(capsys, "-", "--json", "--accept", 150)[1].splitlines())
    assert (event["kind"], event["since_step"]) == ("onset", 200)
    assert said(capsys, path, "--accept", 150, "--method", "bocd")[0] == 2


def test_a_run_that_is_slow_from_its_first_step_is_told(capsys, tmp_path):
    """Steps of the run vary with time as those of its repeats do; it takes 8% longer throughout."""
    rng = np.random.default_rng(0)

    def series(name, factor, first=0):
        times = factor * (1 + 0.2 * np.exp(-np.arange(80) / 10)) * rng.normal(1, 0.005, 80)
        lines = [(first + step, seconds) for step, seconds in enumerate(times.tolist())]
        return written(tmp_path / f"{name}.csv", "step,duration_s", lines)

    like = [series(f"earlier{n}", 1.0) for n in range(3)]
    slow = series("slow", 1.08)
    code, out, _ = said(capsys, slow, "--like", *like)
    assert code == 0
    assert out.startswith("slow from the start: 1.08x as long as the median of 3 earlier runs")
    code, out, _ = said(capsys, slow, "--like", *like, "--json")
    found = json.loads(out.splitlines()[0])
    assert (found["kind"], found["runs"]) == ("slow-start", 3)
    assert found["factor"] == pytest.approx(1.08, abs=0.005)
    like = [series(f"in samples{n}", 1.0, first=1152) for n in range(2)]
    code, out, _ = said(capsys, series("slow in samples", 1.08, first=1152), "--like", *like)
    assert out.startswith("slow from the start: 1.08x as long as the median of 2 earlier runs")
    for other in (series("usual", 1.01), series("resumed", 1.08, first=500)):
        assert "slow from the start" not in said(capsys, other, "--like", *like)[1]


def test_a_file_that_ends_in_its_warm_up_is_not_called_healthy(tmp_path, capsys):
    path = tmp_path / "steps.csv"
    rows = [f"{step},0,{4 - 3 * step / 119}" for step in range(120)]
    path.write_text("\n".join(["step,rank,duration_s", *rows]) + "\n")
    assert run(["detect", str(path)]) == 0
    assert "0 fail-slows, not judged (its steps become shorter still)" in capsys.readouterr().out


def test_a_packed_table_is_read(capsys, tmp_path):
    path = written(tmp_path / "it.csv", "step,rank,duration_s", rows())
    (tmp_path / "it.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert said(capsys, tmp_path / "it.csv.gz") == said(capsys, path)


def test_a_line_that_the_job_is_writing_is_left_out(capsys, tmp_path):
    path = tmp_path / "steps.jsonl"
    lines = [json.dumps({"step": step, "duration_s": 1.0}) for step in range(60)]
    path.write_text("\n".join([*lines, '{"step": 60, "dur']))
    code, out, err = said(capsys, path)
    assert (code, "60 steps of 1 rank: 0 fail-slows" in out) == (0, True)
    assert "ends within a line" in err
    path.write_text("\n".join([*lines[:50], '{"step": 60, "dur', *lines[50:]]))
    assert ":51 is no JSON object" in said(capsys, path)[2]


def test_durations_of_two_units_are_doubtful(capsys, tmp_path):
    noise = np.random.default_rng(0).normal(1, 0.02, (200, 2))
    lines = [(s, r, noise[s, r] * (1000 if r else 1)) for s in range(200) for r in range(2)]
    path = written(tmp_path / "it.csv", "step,rank,duration_s", lines)
    assert "durations of rank 1 are about 1,0" in said(capsys, path)[2]
    lines = [(s, noise[s, 0] * (1000 if s >= 100 else 1)) for s in range(200)]
    path = written(tmp_path / "it.csv", "step,duration_s", lines)
    assert "times the others; are all of them seconds?" in said(capsys, path)[2]
    lines = [(s, noise[s, 0] * (30 if s >= 100 else 1)) for s in range(200)]
    path = written(tmp_path / "it.csv", "step,duration_s", lines)
    assert said(capsys, path)[2] == ""
