"""Arrows, transfers, critical path and counters in the file for Perfetto, and several scenarios."""

import io
import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.errors import ScenarioError, TraceError
from paceline.graph import from_trace
from paceline.report import perfetto, scene
from paceline.report.perfetto import trace_writer
from paceline.report.timeline import Drawing, draw, draw_ideal, scenarios_of
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import Trace
from paceline.whatif import analyze

SPEC = SynthSpec(
    dp=3,
    pp=2,
    microbatches=4,
    steps=3,
    slow_workers=(SlowWorker(2, 1, 1.5),),
    launch_delay=(0.05, 1.0),
)
ALL = "actual,simulated,ideal"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthesize(SPEC)


def events_of(drawing: Drawing, trace: Trace) -> list[dict[str, Any]]:
    file = io.BytesIO()
    writer = trace_writer(
        drawing.scenes,
        trace.job,
        drawing.about,
        replica_names=drawing.replica_names,
        compress=False,
    )
    writer(file)
    return list(json.loads(file.getvalue())["traceEvents"])


def named(events: list[dict[str, Any]], what: str) -> dict[Any, str]:
    key = "tid" if what == "thread_name" else "pid"
    return {e[key]: e["args"]["name"] for e in events if e["name"] == what}


def bound(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Arrow -> the slices its two ends stand in, as Perfetto finds them.

    It reads events by time, those of equal times in the order of the file; an end belongs to the
    innermost slice that is open on its thread.
    """
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    stacks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] in "Xsf"), key=lambda e: e["ts"]):
        stack = stacks[event["tid"]]
        while stack and round(stack[-1]["ts"] + stack[-1]["dur"], 3) <= event["ts"]:
            if stack[-1]["ts"] == event["ts"] and event["ph"] != "X":
                break  # a slice without length lasts until the next one
            stack.pop()
        if event["ph"] == "X":
            stack.append(event)
        else:
            assert stack, event
            assert event["ph"] == "s" or event["bp"] == "e"
            ends[event["id"]].append(stack[-1] | {"phase": event["ph"], "open": stack[0]})
    return ends


@pytest.mark.parametrize("scenario", ["actual", "ideal", "only:worker=2,1", ALL])
@pytest.mark.parametrize("changes", [{}, {"vpp": 2, "noops": True}, {"microbatches": (4, 6, 4)}])
def test_every_arrow_has_two_ends_in_slices_of_peers(
    scenario: str, changes: dict[str, Any]
) -> None:
    trace = synthesize(replace(SPEC, **changes))
    events = events_of(draw(trace, scenario, steps=trace.steps.tolist()), trace)
    ids = [e["id"] for e in events if e["ph"] == "s"]
    assert len(ids) == len(set(ids))
    arrows = bound(events)
    assert set(arrows) == set(ids)
    processes = named(events, "process_name")
    for one, other in arrows.values():
        assert [one["phase"], other["phase"]] == ["s", "f"]
        assert one["ts"] <= other["ts"]  # Perfetto lets arrows point to what starts later
        source, target = one["open"], other["open"]
        kinds = (source["args"]["kind"], target["args"]["kind"])
        if kinds[0].endswith(("send", "recv")):
            assert kinds in (("forward-send", "forward-recv"), ("backward-send", "backward-recv"))
            assert source["args"].get("microbatch") == target["args"].get("microbatch")
        else:
            assert kinds[0] == kinds[1]
        assert processes[source["pid"]] != processes[target["pid"]]
        assert source["args"]["step"] == target["args"]["step"]


def test_sends_and_recvs_all_have_their_arrow(trace: Trace) -> None:
    drawing = draw(trace, "actual")
    arrows = bound(events_of(drawing, trace)).values()
    targets = [other["open"]["args"]["kind"] for _, other in arrows]
    assert targets.count("forward-recv") == targets.count("backward-recv") == 3 * 4
    assert targets.count("grads-reduce-scatter") == 2 * (3 - 1)  # to the others of each stage
    assert targets.count("embedding-grads-all-reduce") == 3


def test_what_waits_has_its_transfer_inside_it(trace: Trace) -> None:
    """It starts when the last peer is launched, and ends with the operation."""
    drawing = draw(trace, "actual")
    events = events_of(drawing, trace)
    inside = [e for e in events if e.get("cat") == "transfer" and e["ph"] == "X"]
    scatters = [e for e in events if e.get("cat") == "grads-reduce-scatter"]
    for stage in range(2):
        members = [e for e in scatters if e["pid"] % 2 == (1 + stage) % 2]
        last = max(e["ts"] for e in members)
        assert len(members) == 3
        for member in members:
            mine = [e for e in inside if e["tid"] == member["tid"] and e["ts"] == last]
            assert len(mine) == (member["ts"] < last)
            for transfer in mine:
                end = member["ts"] + member["dur"]
                assert transfer["ts"] + transfer["dur"] == pytest.approx(end, abs=1e-3)


def test_arrows_of_wide_collectives_go_to_those_that_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = synthesize(replace(SPEC, dp=12, slow_workers=(SlowWorker(5, 1, 1.5),)))
    monkeypatch.setattr(scene, "MAX_ARROWS", 3)
    events = events_of(draw(trace, "actual"), trace)
    arrows = [
        (one["open"], other["open"])
        for one, other in bound(events).values()
        if one["open"]["args"]["kind"] == "grads-reduce-scatter"
    ]
    assert len(arrows) == 2 * 3
    members = [e for e in events if e.get("cat") == "grads-reduce-scatter"]
    for pid in {one["pid"] for one, _ in arrows}:
        stage = [e for e in members if e["pid"] % 2 == pid % 2]
        stage.sort(key=lambda e: e["ts"])
        assert pid == stage[-1]["pid"]
        assert {other["pid"] for one, other in arrows if one["pid"] == pid} == {
            e["pid"] for e in stage[:3]
        }


def test_no_arrows_from_replicas_that_are_not_drawn(trace: Trace) -> None:
    """All wait for dp 2 in the collectives; its replica is left out."""
    events = events_of(draw(trace, "actual", replicas=[0, 1]), trace)
    kinds = {one["open"]["args"]["kind"] for one, _ in bound(events).values()}
    assert "grads-reduce-scatter" not in kinds
    assert "forward-send" in kinds
    transfers = [e for e in events if e.get("cat") == "transfer" and e["ph"] == "X"]
    assert transfers  # the wait is told all the same


def tiles(slices: list[dict[str, Any]]) -> list[tuple[float, float]]:
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices)
    for before, after in itertools.pairwise(spans):
        assert before[1] <= after[0] + 1e-3
    return spans


def test_several_scenarios_lie_above_one_another_and_steps_begin_together(trace: Trace) -> None:
    steps = trace.steps.tolist()
    drawing = draw(trace, ALL, steps=steps)
    events = events_of(drawing, trace)
    processes = named(events, "process_name")
    assert len(set(processes.values())) == len(processes) == 3 * (1 + 6)
    assert {name.partition(":")[0] for name in processes.values()} == {
        "actual",
        "simulated",
        "ideal",
    }
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    ranked = [processes[pid] for pid in sorted(order, key=order.__getitem__)]
    assert len(set(order.values())) == len(order)
    assert ranked[:2] == ["actual: steps", "actual: dp 0 · stage 0"]
    assert ranked[7] == "simulated: steps"
    result = analyze(trace)
    begins = defaultdict(set)
    for name, times in (
        ("actual", result.critical_path.step_s),
        ("simulated", result.simulated_s),
        ("ideal", result.ideal_s),
    ):
        rulers = [
            e for e in events if e.get("cat") == "step" and processes[e["pid"]] == f"{name}: steps"
        ]
        assert [e["dur"] for e in rulers] == pytest.approx(times * 1e6, abs=1e-2)
        for ruler in rulers:
            begins[ruler["name"]].add(ruler["ts"])
    assert all(len(at) == 1 for at in begins.values())
    assert tiles([e for e in events if e.get("cat") == "step" and e["pid"] == 7])


def test_the_critical_path_has_a_track_that_tiles_the_steps(trace: Trace) -> None:
    steps = trace.steps.tolist()
    drawing = draw(trace, "actual", steps=steps)
    events = events_of(drawing, trace)
    track = [e for e in events if e.get("cat") == "critical"]
    spans = tiles(track)
    rulers = [e for e in events if e.get("cat") == "step"]
    assert sum(end - begin for begin, end in spans) == pytest.approx(
        sum(e["dur"] for e in rulers), abs=1e-2 * len(spans)
    )
    threads = named(events, "thread_name")
    assert {threads[e["tid"]] for e in track} == {"critical path"}
    expected = analyze(trace).critical_path
    assert len(track) == (expected.end_s > expected.start_s).sum()
    critical = [e for e in events if e.get("args", {}).get("critical")]
    runs = {
        (int(expected.steps[s]), int(expected.dp[i]), int(expected.pp[i]), int(expected.op[i]))
        for i, s in enumerate(expected.step_index)
    }
    assert len(critical) == len(runs)
    where = {(e["args"]["dp"], e["args"]["stage"]) for e in track}
    assert (2, 1) in where
    assert any(e["name"].startswith("before ") for e in track)  # a launch delay


def test_the_path_is_drawn_whichever_replicas_are(trace: Trace) -> None:
    every = draw(trace, "ideal,actual")
    one = draw(trace, "ideal,actual", replicas=[0])
    for whole, part in zip(every.scenes, one.scenes, strict=True):
        assert whole.path is not None
        assert part.path is not None
        np.testing.assert_array_equal(whole.path.op, part.path.op)
    events = events_of(one, trace)
    tiles([e for e in events if e.get("cat") == "step" and e["pid"] == 7])


def test_counters_tell_slowdown_and_launch_delay(trace: Trace) -> None:
    steps = trace.steps.tolist()
    result = analyze(trace)
    events = events_of(draw(trace, ALL, steps=steps), trace)
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    slowdown = [e["args"]["S"] for e in counters["slowdown"]]
    assert slowdown == pytest.approx(list(result.by_step.values()), abs=1e-6)
    late = [e["args"]["ms"] for e in counters["launch delay"]]
    expected = (result.critical_path.step_s - result.simulated_s) * 1e3
    assert late == pytest.approx(expected, abs=1e-5)
    waiting = counters["workers in launch delay"]
    assert len(waiting) == 256 * 3
    measured = from_trace(trace)
    local = np.isin(measured.graph.kind, (0, 1, 8, 9, 13))
    delayed = measured.delays.array[local].sum(axis=(0, 2))
    width = result.critical_path.step_s / 256
    totals = np.array([e["args"]["workers"] for e in waiting]).reshape(3, -1).sum(axis=1)
    assert totals * width == pytest.approx(delayed, abs=1e-4)
    rulers = {e["ts"] for e in events if e.get("cat") == "step"}
    assert {e["ts"] for e in counters["slowdown"]} == rulers


def test_arrows_give_way_before_events_do(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = draw(trace, "actual")
    monkeypatch.setattr(perfetto, "MAX_EVENTS", len(drawing.events))
    events = events_of(drawing, trace)
    assert not [e for e in events if e["ph"] in "sf" or e.get("cat") == "transfer"]
    assert [e for e in events if e.get("cat") == "critical"]
    assert len([e for e in events if e.get("args", {}).get("microbatch", -1) >= 0])


def test_traced_rows_have_no_arrows_and_no_path(trace: Trace) -> None:
    drawing = draw(trace, "traced,actual")
    assert drawing.scenes[0].links is None
    assert drawing.scenes[0].path is None
    assert [c.name for c in drawing.scenes[1].counters] == [
        "slowdown",
        "launch delay",
        "workers in launch delay",
    ]
    events = events_of(drawing, trace)
    processes = named(events, "process_name")
    assert not [e for e in events if e["ph"] in "sf" and processes[e["pid"]].startswith("traced")]


def test_the_ideal_of_a_folder_has_arrows_and_a_path(trace: Trace) -> None:
    drawing = draw_ideal(from_trace(trace))
    events = events_of(drawing, trace)
    assert [e for e in events if e["ph"] == "s"]
    ruler = next(e for e in events if e.get("cat") == "step")
    spans = tiles([e for e in events if e.get("cat") == "critical"])
    assert spans[-1][1] == pytest.approx(ruler["dur"], abs=1e-2)


def test_lists_of_scenarios() -> None:
    assert scenarios_of("actual, only:worker=3,1,ideal,without:kind=gc") == (
        "actual",
        "only:worker=3,1",
        "ideal",
        "without:kind=gc",
    )
    with pytest.raises(ScenarioError, match="measured comes twice"):
        scenarios_of("measured,simulated")
    with pytest.raises(ScenarioError, match="is no scenario"):
        scenarios_of("actual,,ideal")


def test_steps_missing_in_one_scenario_are_noted_once(trace: Trace) -> None:
    first = int(trace.steps[0])
    drawing = draw(trace, ALL, steps=[first, 99])
    assert drawing.notes == ("step 99 is not in the trace",)
    with pytest.raises(TraceError):
        draw(trace, ALL, steps=[99])
