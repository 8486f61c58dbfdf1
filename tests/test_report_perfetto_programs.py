"""Timelines of programs: parts, units and peers by name, rows without overlaps, arrows of waits."""

import io
import json
from collections import defaultdict

import pytest

from paceline.report.perfetto import trace_writer
from paceline.report.timeline import draw
from paceline.synth import Layers, SynthSpec, synthesize

SPECS = {
    "fsdp": SynthSpec(dp=2, pp=1, microbatches=2, layers=Layers(4, fsdp=True, prefetch=2)),
    "hsdp": SynthSpec(dp=4, pp=1, microbatches=2, layers=Layers(4, fsdp=True, shard=2)),
    "ddp": SynthSpec(dp=2, pp=1, microbatches=1, layers=Layers(6, buckets=3)),
    "tp": SynthSpec(dp=2, pp=2, tp=2, microbatches=4, layers=Layers(2)),
    "interleaved": SynthSpec(dp=2, pp=2, vpp=2, microbatches=4, layers=Layers(2, fsdp=True)),
    "zbv": SynthSpec(dp=1, pp=4, vpp=2, microbatches=8, schedule="zbv"),
    "dualpipe": SynthSpec(dp=2, pp=4, vpp=2, microbatches=8, schedule="dualpipe"),
}


def document(spec, scenario):
    trace = synthesize(spec)
    drawn = draw(trace, scenario)
    file = io.BytesIO()
    trace_writer(drawn.scenes, trace.job, {}, compress=False)(file)
    return json.loads(file.getvalue())["traceEvents"]


def rows_of(events):
    rows = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            begin = round(e["ts"] * 1000)
            rows[e["pid"], e["tid"]].append((begin, begin + round(e["dur"] * 1000), e["name"]))
    return rows


@pytest.mark.parametrize("scenario", ["traced", "actual,ideal"])
@pytest.mark.parametrize("name", SPECS)
def test_slices_of_a_row_lie_within_each_other_or_apart(name, scenario):
    for row in rows_of(document(SPECS[name], scenario)).values():
        above = []
        for begin, end, _ in sorted(row, key=lambda slice_: (slice_[0], -slice_[1])):
            assert end >= begin
            while above and above[-1] <= begin:
                above.pop()
            assert not above or end <= above[-1]
            above.append(end)


@pytest.mark.parametrize("name", SPECS)
def test_arrows_have_two_ends_in_slices_of_theirs(name):
    events = document(SPECS[name], "actual")
    rows, ends = rows_of(events), defaultdict(list)
    for e in events:
        if e["ph"] in ("s", "f"):
            ends[e["id"]].append(e)
    assert ends
    for pair in ends.values():
        source, target = sorted(pair, key=lambda e: e["ph"], reverse=True)
        assert (source["ph"], target["ph"]) == ("s", "f")
        assert source["ts"] < target["ts"]
        for e in (source, target):
            at = round(e["ts"] * 1000)
            assert any(begin <= at <= end for begin, end, _ in rows[e["pid"], e["tid"]])


def named(events, prefix):
    return {e["name"] for e in events if e["ph"] == "X" and e["name"].startswith(prefix)}


def test_parts_units_and_peers_have_names():
    fsdp = document(SPECS["fsdp"], "traced")
    assert named(fsdp, "F0") == {"F0.0", "F0.1", "F0.2", "F0.3"}
    assert named(fsdp, "params-all-gather") == {f"params-all-gather {n}" for n in range(4)}
    tp = document(SPECS["tp"], "traced")
    processes = {e["args"]["name"] for e in tp if e["name"] == "process_name"}
    assert "dp 1, peer 1 · stage 1" in processes
    assert "optimizer" in named(tp, "optimizer")


def test_a_wait_has_an_arrow_from_what_it_waits_for():
    """The first forward of FSDP waits for the first gather."""
    events = document(SPECS["fsdp"], "actual")
    (forward, *_) = [e for e in events if e["name"] == "F0.0"]
    ends = [e for e in events if e["ph"] == "f" and e["tid"] == forward["tid"]]
    assert any(forward["ts"] <= e["ts"] <= forward["ts"] + forward["dur"] for e in ends)


@pytest.mark.parametrize("name", ["tp", "interleaved", "zbv", "dualpipe"])
def test_transfers_are_named_after_the_passes_that_they_serve(name):
    """A send is launched behind its pass, and all names of transfers occur on both sides."""
    for scenario in ("traced", "actual"):
        events = document(SPECS[name], scenario)
        slices = [e for e in events if e["ph"] == "X"]
        for way in "FB":
            sends = sorted(e["name"][5:] for e in slices if e["name"].startswith(f"send {way}"))
            assert sends
            assert not any("#" in text for text in sends)
        ends = defaultdict(list)
        for e in slices:
            key = (e["pid"], e.get("args", {}).get("microbatch"), e.get("args", {}).get("chunk"))
            if e["cat"] in ("forward-compute", "forward-send"):
                ends[(*key, e["cat"])].append(e["ts"] + e["dur"] * (e["cat"] == "forward-compute"))
        for (*key, cat), launches in ends.items():
            if cat == "forward-send":
                assert max(ends[(*key, "forward-compute")]) <= min(launches) + 1e-3
