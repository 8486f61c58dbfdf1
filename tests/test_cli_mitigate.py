import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from paceline.cli.main import run as command
from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.mitigate.findings import faults_of, slow_steps
from paceline.remedies import Case
from paceline.sources import load
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job

SCENARIO = """\
job: {dp: 4, pp: 2, microbatches: 8}
step: 2 s
steps: 200
fail_slows:
  - {at: 20 s, for: 200 s, kind: compute, worker: [2, 1], factor: 1.6}
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("mitigate") / "trace.parquet"
    assert command(["synth", "--dp", "4", "--pp", "2", "--steps", "4", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def slow_trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("mitigate") / "slow.parquet"
    args = ["--slow-worker", "2,1,1.5", "--slow-link", "0,0,60"]
    assert command(["synth", "--dp", "4", "--pp", "2", "--steps", "4", *args, "-o", str(path)]) == 0
    return path


def run(capsys, *args):
    code = command(["mitigate", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_issues_example(trace, capsys):
    overheads = "s2=5,s3=60,s4=1800"
    code, out, _ = run(capsys, trace, "--slow-worker", "3,1,1.4", "--overheads", overheads)
    assert code == 0
    assert "computes of dp 3, stage 1: 1.40x" in out
    for strategy in ("S1 ignore", "S2 microbatches", "S3 placement", "S4 restart"):
        assert strategy in out
    assert "off replica 3 (16 to" in out
    assert "planner, if nothing changes" in out


def test_json_holds_what_to_change(trace, capsys):
    code, out, _ = run(capsys, trace, "--slow-worker", "3,1,1.4", "--json")
    values = json.loads(out)
    assert code == 0
    s2 = next(option for option in values["options"] if option["strategy"] == "s2")
    counts = s2["change"]["microbatches"]
    assert sum(counts) == 64
    assert counts[3] < 16
    assert sum(s2["change"]["weights"]) == pytest.approx(1)
    assert values["slowdown"] > 1.1
    assert next(due["option"]["strategy"] for due in values["planner"]) == "s2"


def test_fail_slows_come_from_the_diagnosis(slow_trace, capsys):
    code, out, _ = run(capsys, slow_trace, "--json")
    assert code == 0
    found = {fault["kind"]: fault for fault in json.loads(out)["fail_slows"]}
    assert found["compute"]["worker"] == [2, 1]
    assert found["compute"]["factor"] == pytest.approx(1.5, rel=0.02)
    assert (found["link"]["worker"], found["link"]["other"]) == ([0, 0], [0, 1])
    assert found["link"]["factor"] == pytest.approx(60, rel=0.05)


def busy_job(folder, slow_steps):
    """Two recorded ranks of a noisy machine; the forwards of rank 1 are slow in some steps."""
    rng = np.random.default_rng(4)
    noise = rng.lognormal(0, 0.4, 40)

    def step_of(number, rank):
        slower = 6 if rank == 1 and number in slow_steps else 1
        return RankStep(forward=20 * slower * noise[number], backward=20 * noise[number], late=120)

    data_parallel_job(folder, step_of, steps=40, ranks=2)
    return folder


def test_a_rank_that_became_slow_in_its_forwards_is_mitigated(tmp_path, capsys):
    """As ``diagnose`` names it, with the factor of its slow steps; the backwards are not slow."""
    folder = busy_job(tmp_path / "slow", range(16, 40))
    found = json.loads(run(capsys, folder, "--json")[1])
    (fault,) = found["fail_slows"]
    assert found["slowdown"] == pytest.approx(150 / 50, rel=0.1)
    assert fault["worker"] == [1, 0]
    assert fault["factor"] == pytest.approx(3.5, rel=0.05)
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert "note: traced steps take" in out


def test_a_rank_that_is_healthy_again_is_not_mitigated(tmp_path, capsys):
    code, out, _ = run(capsys, busy_job(tmp_path / "over", range(20)))
    assert code == 0
    assert "the end of the trace shows no slow worker" in out


def test_a_link_goes_on_where_a_worker_is_healthy_again(slow_trace):
    """The worker's steps do not choose those of the link."""
    measured = from_trace(load(slow_trace))
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    findings = [
        replace(f, evidence={**f.evidence, "steps": result.steps[:2].tolist()})
        if f.cause == "worker"
        else f
        for f in diagnosis.findings
    ]
    case = Case(measured, result, replace(diagnosis, findings=tuple(findings)))
    assert [fault.kind for fault in faults_of(case)] == ["link"]
    assert slow_steps(case) is None


def test_a_healthy_trace_has_nothing_to_mitigate(trace, capsys):
    code, out, _ = run(capsys, trace)
    assert code == 0
    assert "no slow worker and no slow link" in out
    assert json.loads(run(capsys, trace, "--json")[1])["planner"] == []


@pytest.mark.parametrize(
    ("flag", "kind", "other"),
    [
        ("--slow-nic", "nic", None),
        ("--slow-link", "link", [1, 1]),
        ("--slow-dp-link", "link", [2, 0]),
    ],
)
def test_every_sort_of_fail_slow(trace, capsys, flag, kind, other):
    code, out, _ = run(capsys, trace, flag, "1,0,50", "--json")
    assert code == 0
    (fault,) = json.loads(out)["fail_slows"]
    assert (fault["kind"], fault["worker"], fault.get("other")) == (kind, [1, 0], other)


def test_the_last_replicas_next_one_is_the_first(trace, capsys):
    code, out, _ = run(capsys, trace, "--slow-dp-link", "3,0,50", "--json")
    assert code == 0
    (fault,) = json.loads(out)["fail_slows"]
    assert (fault["worker"], fault["other"]) == ([3, 0], [0, 0])
    assert json.loads(out)["slowdown"] > 1.1


def test_a_life_is_simulated(tmp_path, capsys):
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    code, out, _ = run(capsys, "--simulate", path)
    assert code == 0
    for policy in ("healthy", "none", "planner", "s2 microbatches only", "oracle"):
        assert policy in out
    assert "times as much as the oracle" in out
    values = json.loads(run(capsys, "--simulate", path, "--json")[1])
    policies = values["policies"]
    assert policies["planner"]["completion_s"] < policies["none"]["completion_s"]
    only = run(capsys, "--simulate", path, "--json", "--overheads", "s2=never,s3=never,s4=5")[1]
    assert "s2 microbatches only" not in json.loads(only)["policies"]


def test_a_life_of_a_real_trace(tmp_path, trace, capsys):
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.replace("{dp: 4, pp: 2, microbatches: 8}", f"{{trace: {trace}}}"))
    assert run(capsys, "--simulate", path)[0] == 0


def follow(trace, state, lines):
    """The command in a process of its own, fed with JSON lines."""
    return subprocess.run(
        [sys.executable, "-m", "paceline", "mitigate", str(trace), "--follow", "--json",
         "--state", str(state)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_planner_follows_a_stream_and_goes_on_after_a_restart(trace, tmp_path):
    state = tmp_path / "planner.json"
    onset = {"step": 10, "event": "onset", "kind": "compute", "worker": [3, 1], "factor": 1.5}
    steps = [{"step": step, "duration_s": 5.0} for step in range(10, 13)]
    first = follow(trace, state, [onset, *steps[:1]])
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    second = follow(trace, state, steps[1:])
    actions = [json.loads(line) for line in second.stdout.splitlines()]
    assert [action["option"]["strategy"] for action in actions] == ["s2"]
    assert json.loads(state.read_text())["applied"] == ["s2"]
    relief = {"step": 20, "event": "relief", "kind": "compute", "worker": [3, 1]}
    back = follow(trace, state, [relief, *({"step": s, "duration_s": 9.0} for s in range(21, 25))])
    assert "evenly again" in back.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give a trace, or --simulate"),
        (["{trace}", "--simulate", "x.yaml"], "not both"),
        (["{trace}", "--slow-worker", "9,0,2"], "no worker dp 9"),
        (["{trace}", "--slow-worker", "1,0,0.5"], "above 1"),
        (["{trace}", "--slow-worker", "1,0"], "--slow-worker DP,PP,FACTOR"),
        (["{trace}", "--slow-worker", "1.5,0,2"], "no whole number"),
        (["{trace}", "--slow-link", "0,1,2"], "no worker dp 0, stage 2"),
        (["{trace}", "--overheads", "s2"], "should be like"),
        (["{trace}", "--slow-worker", "1,0,2", "--overheads", "s9=3"], "no strategy 's9'"),
        (["{trace}", "--slow-worker", "1,0,2", "--overheads", "s2=-3"], "must be from 0 to"),
        (["{trace}", "--slow-worker", "1,0,2", "--overheads", "s2=1,s2=2"], "should be like"),
        (["{trace}", "--steps-left", "-1"], "--steps-left must be"),
        (["{trace}", "--state", "x.json"], "--state goes with --follow"),
        (["--simulate", "none.yaml"], "cannot be read"),
        (["--simulate", "x.yaml", "--follow"], "leave out --follow"),
        (
            ["--simulate", "x.yaml", "--slow-worker", "3,1,9", "--steps-left", "0"],
            "leave out --slow-worker, --steps-left",
        ),
        (["--simulate", "x.yaml", "--job", "j.yaml", "--keep-clocks"], "--job, --keep-clocks"),
        (["none.parquet"], "none.parquet"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(trace, capsys, args, message):
    code, out, err = run(capsys, *(arg.format(trace=trace) for arg in args))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    ['{"step": 1}', '{"step": 1, "event": "x"}', '{"step": 1, "duration_s": -1}', "[1]", "nonsense",
     '{"step": 1, "event": "onset", "kind": "compute", "worker": 3, "factor": 2}',
     '{"step": 1, "event": "onset", "kind": "compute", "worker": [1e999, 1], "factor": 2}',
     '{"step": 1, "event": "onset", "kind": "nic", "worker": [3, 1], "factor": 2, "lost_s": NaN}',
     '{"step": 1e999, "duration_s": 4}', '{"step": 1.7, "duration_s": 4}',
     '{"step": 100000000000000000000000, "duration_s": 4}',
     f'{{"step": 1, "duration_s": 1{"0" * 400}}}',
     '{"step": 1, "kind": "compute", "worker": [3, 1]}',
     '{"step": 1, "kind": "onset", "rank": 8, "factor": 2}',
     '{"step": 1, "kind": "onset", "ranks": 3, "factor": 2}'],
)  # fmt: skip
def test_a_bad_line_is_named(trace, capsys, monkeypatch, line):
    import io

    onset = '{"step": 0, "event": "onset", "kind": "compute", "worker": [3, 1], "factor": 1.5}'
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{onset}\n{line}\n"))
    code, _, err = run(capsys, trace, "--follow")
    assert code == 2
    assert "standard input:2" in err


def test_what_the_rest_of_a_stream_cannot_save_is_not_paid(trace, capsys, monkeypatch):
    import io

    onset = {"step": 1, "event": "onset", "kind": "compute", "worker": [3, 1], "factor": 1.5}
    steps = [{"step": step, "duration_s": 5.0} for step in range(1, 40)]
    lines = "".join(json.dumps(line) + "\n" for line in (onset, *steps))
    for left, acts in ((5, False), (40, True)):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code, out, _ = run(capsys, trace, "--follow", "--steps-left", left)
        assert (code, bool(out)) == (0, acts)


def test_slow_workers_of_the_command_line_stay_replaced(trace, tmp_path, capsys, monkeypatch):
    import io

    args = [trace, "--follow", "--state", tmp_path / "state.json", "--slow-worker", "3,1,1.5"]
    found = []
    for begin in (0, 10):
        lines = (json.dumps({"step": begin + i, "duration_s": 5.0}) + "\n" for i in range(10))
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(lines)))
        found.append(run(capsys, *args, "--overheads", "s4=5")[1])
    assert "without dp 3, stage 1" in found[0]
    assert found[1] == ""


def test_a_folder_that_cannot_be_written_is_said(trace, tmp_path, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO('{"step": 1, "duration_s": 2}\n'))
    code, _, err = run(capsys, trace, "--follow", "--state", tmp_path / "no" / "state.json")
    assert code == 2
    assert "does not exist" in err


def test_overheads_that_are_not_named_stay(trace, capsys):
    args = (trace, "--slow-worker", "3,1,1.4", "--json", "--overheads")
    options = {o["strategy"]: o for o in json.loads(run(capsys, *args, "s4=never")[1])["options"]}
    assert (options["s2"]["overhead_s"], options["s3"]["overhead_s"]) == (5, 60)
    assert options["s4"]["overhead_s"] is None
    assert options["s2"]["applicable"]
    assert "never" in options["s4"]["why_not"]
    options = {o["strategy"]: o for o in json.loads(run(capsys, *args, "s2=7")[1])["options"]}
    assert [options[name]["overhead_s"] for name in ("s2", "s3", "s4")] == [7, 60, 1800]


def test_what_is_beyond_reason_is_refused_with_the_limit(trace, capsys):
    code, _, err = run(capsys, trace, "--slow-worker", "3,1,1e300")
    assert code == 2
    assert "above 1 and at most 1e+06" in err
    code, _, err = run(capsys, trace, "--slow-worker", "3,1,1.4", "--overheads", "s2=1e308")
    assert code == 2
    assert "from 0 to 1e+09 s" in err


@pytest.mark.parametrize("overheads", ["s9=3", "s2=-1", "s3=nan"])
def test_overheads_are_checked_also_where_nothing_is_slow(trace, capsys, overheads):
    assert command(["mitigate", str(trace), "--overheads", overheads]) == 2
    assert capsys.readouterr().err.count("\n") == 1
