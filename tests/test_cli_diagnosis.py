"""The commands diagnose, remedy and compare, and what analyze adds to its output."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.cli.main import run
from paceline.diagnose import Diagnosis, Finding
from paceline.remedies import Remedy, beyond_s
from paceline.sources import parquet
from paceline.sources.recording.places import place_in_header, recorded_places
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace.job import device_name
from recordings import record_trace

SLOW = SynthSpec(dp=4, pp=4, microbatches=8, steps=4, slow_workers=(SlowWorker(3, 1, 1.5),))
HEALTHY = SynthSpec(dp=4, pp=4, microbatches=8, steps=4)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name, spec in (("slow", SLOW), ("healthy", HEALTHY)):
        parquet.write(synthesize(spec), folder / f"{name}.parquet")
    return folder


def test_diagnose_says_why_where_and_what_to_do(traces, capsys):
    assert run(["diagnose", str(traces / "slow.parquet"), "--gpu-hour-cost", "2"]) == 0
    out, err = capsys.readouterr()
    assert "worker dp 3, stage 1 is 1.4" in out or "worker dp 3, stage 1 is 1.5" in out
    assert "where the time goes" in out
    assert "cost" in out
    assert "replace-worker" in out
    assert err == ""


def test_diagnose_as_json(traces, capsys):
    assert run(["diagnose", str(traces / "slow.parquet"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["slowdown_healthy"] > 1.2
    first = document["findings"][0]
    assert first["cause"] == "worker"
    assert first["where"] == {"workers": [[3, 1]]}
    assert sum(f["share"] for f in document["findings"]) == pytest.approx(1.0)
    remedy = next(r for r in document["remedies"] if r["remedy"] == "replace-worker")
    assert remedy["findings"] == ["worker"]
    assert 0.15 < remedy["gain"] < 0.35
    fall = document["waterfall"]
    left = fall["actual_s"] - sum(drop["seconds"] for drop in fall["drops"])
    assert left == pytest.approx(fall["compute_s"])


def test_a_healthy_job_is_said_to_be_so(traces, capsys):
    assert run(["diagnose", str(traces / "healthy.parquet")]) == 0
    assert "Healthy, within what these traces can show" in capsys.readouterr().out
    assert run(["diagnose", str(traces / "healthy.parquet"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == []
    assert document["remedies"] == []


def test_diagnose_and_remedy_say_what_to_know_before_trusting_them(traces, tmp_path, capsys):
    """All but what is true of nearly every job."""
    trace = paceline.load(traces / "slow.parquet")
    path = tmp_path / "left-out.parquet"
    noted = replace(trace, warnings=("rank 3 was recorded late",), left_out={9: "cut off"})
    paceline.write(noted, path)
    remedy = ["remedy", str(path)]
    for command in (["diagnose", str(path)], [*remedy, "replace-worker"], [*remedy, "--list"]):
        assert run(command) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "! rank 3 was recorded late" in out
        assert "1 of 5 steps left out" in out or "left out steps: 9 (9: cut off)" in out
        assert "[one-peer]" not in out
        assert run([*command, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        place = document["warnings"].index("rank 3 was recorded late")
        assert len(document["warning_details"]) == len(document["warnings"]) > place


def test_hosts_are_named(traces, tmp_path, capsys):
    hosts = tmp_path / "hosts.csv"
    rank = int(synthesize(SLOW).rank[3, 1])
    hosts.write_text(f"rank,host,gpu\n0,node0,0\n{rank},node7,5\n")
    assert run(["diagnose", str(traces / "slow.parquet"), "--hosts", str(hosts)]) == 0
    assert "node7, GPU 5" in " ".join(capsys.readouterr().out.split())


def test_a_recording_names_its_hosts(traces, tmp_path, capsys):
    """A rank that stood elsewhere in another start has no host."""
    slow = synthesize(SLOW)
    record_trace(slow, tmp_path / "once", host="node{rank}")
    assert run(["diagnose", str(tmp_path / "once")]) == 0
    assert "worker dp 3, stage 1 is 1." in (out := capsys.readouterr().out)
    assert "(node13)" in " ".join(out.split())
    assert run(["analyze", str(tmp_path / "once")]) == 0
    assert "(node13)" in " ".join(capsys.readouterr().out.split())
    assert recorded_places(tmp_path / "once")[13] == ("node13", "")
    record_trace(slow, tmp_path / "once", session="two", host="rack{rank}")
    assert recorded_places(tmp_path / "once") == {}
    (tmp_path / "once" / "rank-00013-0.blocks").write_bytes(b"half")
    assert recorded_places(tmp_path / "once") == {13: ("rack13", "")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,gpu\n0,1\n", "lacks the column host"),
        ("rank,host\nx,node0\n", "line 2: rank 'x' is no number"),
        ("rank,host\n0,a\n0,b\n", "line 3: rank 0 is there twice"),
        ("", "lacks the column rank and host"),
    ],
)
def test_broken_hosts_files_are_said(traces, tmp_path, capsys, text, message):
    hosts = tmp_path / "hosts.csv"
    hosts.write_text(text)
    assert run(["diagnose", str(traces / "slow.parquet"), "--hosts", str(hosts)]) == 2
    assert message in capsys.readouterr().err


def test_remedies_are_listed_with_their_gain_or_the_reason(traces, capsys):
    assert run(["remedy", str(traces / "slow.parquet"), "--list"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "replace-worker" in line)
    assert line.strip()[0].isdigit()
    assert "no finding of gc" in out
    architecture = out.index("changes of the job's architecture")
    assert out.index("replace-worker") < architecture < out.index("interleave")


def test_changes_of_the_architecture_stand_apart(traces, tmp_path, capsys):
    trace, out = str(traces / "slow.parquet"), tmp_path / "out"
    assert run(["analyze", trace, "--out", str(out)]) == 0
    screen = capsys.readouterr().out
    assert screen.index("what to do") < screen.index("changes of the job's architecture")
    document = json.loads((out / "result.json").read_text())
    assert "interleave" in [r["remedy"] for r in document["architecture"]]
    assert all(r["architecture"] and not r["findings"] for r in document["architecture"])
    assert document["remedies"]
    assert all(r["findings"] and not r["architecture"] for r in document["remedies"])
    page = (out / "report.html").read_text()
    assert page.index("Replace worker") < page.index("Changes of the job's architecture")
    assert run(["remedy", trace, "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [r["remedy"] for r in listed["architecture"]] == ["interleave"]


@pytest.mark.parametrize("command", ["analyze", "diagnose"])
def test_layers_that_would_help_are_asked_for(tmp_path, capsys, command):
    trace = str(tmp_path / "last.parquet")
    spec = SynthSpec(dp=2, pp=4, microbatches=8, steps=3, slow_last_stage=(2.07, 1.41))
    parquet.write(synthesize(spec), Path(trace))
    assert run([command, trace]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "hint: give --layers (N,N,N,N: the layers of each stage)" in out
    assert "at most" in out
    assert run([command, trace, "--layers", "9,9,9,9"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "hint" not in out
    assert "split the layers 11,10,10,5" in out


def test_no_gain_is_above_the_s_that_is_told(traces, capsys):
    trace = str(traces / "slow.parquet")
    for argv in (["analyze", trace], ["diagnose", trace], ["remedy", trace, "replace-worker"]):
        assert run(argv) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "no contradiction" not in out
        assert ("if the slow workers were as fast as the others" in out) == (argv[0] != "remedy")


def test_a_gain_above_s_is_explained():
    share = {"share": 0.5, "share_of_step": 0.1, "interval": (0.0, 1.0), "confidence": 1.0}
    finding = Finding("gc", "gc", "pauses", **share, where={}, evidence={})
    diagnosis = Diagnosis((finding,), (1.0, 1.2))
    remedy = Remedy("planned-gc", "collect", ("gc",), 0.8, 0.2, (0.1, 0.3), {})
    assert beyond_s(1.1, diagnosis, [remedy]).startswith("a speed-up of 1.25 above S = 1.10 is no")
    assert beyond_s(1.24, diagnosis, [remedy]) is None
    assert beyond_s(0.9, diagnosis, []) is None


def test_one_remedy(traces, capsys):
    assert run(["remedy", str(traces / "slow.parquet"), "replace-worker"]) == 0
    assert "replace-worker" in capsys.readouterr().out
    assert run(["remedy", str(traces / "slow.parquet"), "replace-worker", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remedy"] == "replace-worker"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("planned-gc", "the trace shows no garbage collection"),
        ("1f1b", "the job does not run GPipe"),
        ("stage-layout", "gains under 0.1%"),
    ],
)
def test_nothing_to_do_is_an_answer(traces, capsys, name, message):
    trace = str(traces / "slow.parquet")
    assert run(["remedy", trace, name]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{name} does not apply: ")
    assert message in out
    assert err == ""
    assert run(["remedy", trace, name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() == {"remedy", "applies", "reason"}
    assert (answer["remedy"], answer["applies"]) == (name, False)
    assert message in answer["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such"], "there is no remedy 'no-such'"),
        (["stage-layout", "--layers", "9,9"], "4"),
        (["interleave", "--chunks", "0"], "give 2 or more"),
        (["interleave", "--chunks", "4", "--layers", "9,9,9,9"], "cannot be cut into 4"),
        (["overlap-dp", "--buckets", "0"], "give 1 or more"),
        (["planned-gc", "--every-steps", "0"], "give 1 or more"),
        (["hide-delays", "--hide", "coffee"], "there are no delays 'coffee'"),
        (["sequence-balance", "--max-tokens", "8"], "--seqlens"),
    ],
)
def test_what_cannot_be_asked_is_an_error(traces, capsys, arguments, message):
    assert run(["remedy", str(traces / "slow.parquet"), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paceline: error: ")
    assert message in err


def test_compare_shows_whether_the_fix_worked(traces, capsys):
    before, after = str(traces / "slow.parquet"), str(traces / "healthy.parquet")
    assert run(["compare", before, after]) == 0
    out = capsys.readouterr().out
    assert "shorter" in out
    assert "worker" in out
    assert run(["compare", before, after, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["before"]["slowdown"] > 1.2 > 1.03 > document["after"]["slowdown"]


def test_analyze_adds_findings_and_report(traces, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["analyze", str(traces / "slow.parquet"), "--out", str(out)]) == 0
    screen = capsys.readouterr().out
    assert "why" in screen
    to_do = screen[screen.index("what to do") :]
    assert "replace worker dp 3, stage 1: a step then takes" in " ".join(to_do.split())
    assert "(saves" not in screen  # the columns in front say how much
    document = json.loads((out / "result.json").read_text())
    assert document["findings"][0]["cause"] == "worker"
    page = (out / "report.html").read_text()
    assert "worker dp 3, stage 1" in page


def test_no_diagnose_leaves_all_of_it_out(traces, tmp_path, capsys):
    out = tmp_path / "out"
    argv = ["analyze", str(traces / "slow.parquet"), "--out", str(out), "--no-diagnose"]
    assert run(argv) == 0
    assert "why" not in capsys.readouterr().out
    assert "findings" not in json.loads((out / "result.json").read_text())
    assert not Path(out / "report.html").exists()


def test_format_json_is_json(traces, capsys):
    assert run(["diagnose", str(traces / "slow.parquet"), "--format", "json"]) == 0
    assert "findings" in json.loads(capsys.readouterr().out)
    assert run(["diagnose", str(traces / "slow.parquet"), "--format", "text"]) == 0
    assert capsys.readouterr().out.startswith("S ")
    assert run(["diagnose", str(traces / "slow.parquet"), "--format", "xml"]) == 2


def test_layers_that_do_not_match_the_stages_are_said(traces, capsys):
    assert run(["analyze", str(traces / "slow.parquet"), "--layers", "9,9"]) == 2
    assert "--layers gives 2 numbers; the job has 4 stages" in capsys.readouterr().err


def test_sequence_lengths_are_fitted_and_balanced(tmp_path, capsys):
    trace, lengths, plan = (str(tmp_path / f"{n}.parquet") for n in ("trace", "lengths", "plan"))
    synth = ["synth", "--dp", "4", "--pp", "2", "--microbatches", "8", "--steps", "4", "-o", trace]
    assert run([*synth, "--seqlens-out", lengths, "--max-tokens", "32768"]) == 0
    capsys.readouterr()
    assert run(["diagnose", trace, "--seqlens", lengths, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    finding = next(f for f in document["findings"] if f["cause"] == "sequence-length")
    assert min(finding["evidence"]["lengths"]["r2"].values()) > 0.9
    argv = ["remedy", trace, "sequence-balance", "--seqlens", lengths, "--max-tokens", "32768"]
    assert run([*argv, "--assignment-out", plan]) == 0
    assert "sequence-balance" in capsys.readouterr().out
    assert Path(plan).read_bytes()[:4] == b"PAR1"
    assert run([*argv, "--assignment-out", plan]) == 2
    assert run(["synth", "--dp", "2", "--pp", "2", "-o", trace, "--force"]) == 0
    capsys.readouterr()
    assert run(["diagnose", trace, "--seqlens", lengths]) == 2
    assert "paceline: error: " in capsys.readouterr().err


def test_the_name_of_a_remedy_may_stand_after_options(traces, capsys):
    slow = str(traces / "slow.parquet")
    assert run(["remedy", slow, "--layers", "9,9,9,9", "replace-worker"]) == 0
    assert "replace worker dp 3, stage 1" in capsys.readouterr().out
    assert run(["remedy", slow]) == 0  # none: all of them
    assert "replace-worker" in capsys.readouterr().out


@pytest.mark.parametrize("price", ["-3", "nan", "inf", "much"])
def test_a_price_that_is_none_is_refused(traces, capsys, price):
    assert run(["diagnose", str(traces / "slow.parquet"), f"--gpu-hour-cost={price}"]) == 2
    assert "should be a number from 0 on" in capsys.readouterr().err


def test_work_on_the_host_is_named_by_its_local_rank():
    header = {"host": "node7", "gpu": "5", "clock": "CudaClock"}
    assert place_in_header(header) == ("node7", "5")
    place = place_in_header({**header, "clock": "HostClock"})
    assert place == ("node7", "local rank 5")
    assert place_in_header({"host": "node7", "clock": "HostClock"}) == ("node7", "")
    assert [device_name(*one) for one in (("node7", "5"), place, ("node7", ""), ("", ""))] == [
        *("node7, GPU 5", "node7, local rank 5", "node7", ""),
    ]
