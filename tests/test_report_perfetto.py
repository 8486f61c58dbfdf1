import gzip
import io
import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.errors import OutputError, ScenarioError, TraceError
from paceline.graph import from_trace
from paceline.report import perfetto
from paceline.report.events import Events, from_rows, label
from paceline.report.perfetto import trace_writer
from paceline.report.scene import Scene
from paceline.report.timeline import Drawing, draw, draw_ideal, scenarios_of
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace import Job, OpKind, Trace
from paceline.whatif import analyze

OTHERS = ("step", "critical", "transfer")  # slices that are no operations
SCENARIOS = ["traced", "replayed", "measured", "ideal", "only:stage=1", "without:worker=2,1"]


def job_trace(**changes: Any) -> Trace:
    spec = SynthSpec(dp=3, pp=2, microbatches=4, steps=2, slow_workers=(SlowWorker(2, 1, 1.5),))
    return synthesize(replace(spec, **changes))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return job_trace()


def written(
    drawn: Drawing | Events, job: Job, *, compress: bool = False, **about: Any
) -> dict[str, Any]:
    file = io.BytesIO()
    scenes = drawn.scenes if isinstance(drawn, Drawing) else [Scene(drawn)]
    trace_writer(scenes, job, about, compress=compress)(file)
    content = file.getvalue()
    return dict(json.loads(gzip.decompress(content) if compress else content))


def slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] not in OTHERS]


def names(document: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in document["traceEvents"]
        if e["name"] == what
    }


def events_of(*rows: tuple[OpKind, float, float]) -> Events:
    """Events of one worker; (kind, start, end), numbered by their place."""
    n = len(rows)
    zeros = np.zeros(n, dtype=np.int64)
    kinds = np.array([int(kind) for kind, _, _ in rows])
    start, end = (np.array([row[i] for row in rows]) for i in (1, 2))
    return Events(zeros, zeros, zeros, kinds, np.arange(n), zeros - 1, np.arange(n), start, end)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_draws_every_op_without_overlaps(trace: Trace, scenario: str) -> None:
    drawing = draw(trace, scenario, steps=trace.steps.tolist())
    document = written(drawing, trace.job, **drawing.about)
    drawn = slices(document)
    assert len(drawn) == len(trace)
    assert document["otherData"]["scenario"] == scenario
    by_row = defaultdict(list)
    for event in drawn:
        assert event["dur"] >= 0
        by_row[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in by_row.values():
        row.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(row))


def test_processes_are_workers_and_threads_are_streams(trace: Trace) -> None:
    document = written(draw(trace, "traced").events, trace.job)
    processes = names(document, "process_name")
    assert set(processes.values()) == {
        "steps",
        *(f"dp {dp} · stage {pp}" for dp in range(3) for pp in range(2)),
    }
    by_pid = {pid: name for (pid, _), name in processes.items()}
    places = {
        e["pid"]: e["args"]["sort_index"]
        for e in document["traceEvents"]
        if e["name"] == "process_sort_index"
    }
    assert [by_pid[pid] for pid in sorted(places, key=places.__getitem__)][:3] == [
        "steps",
        "dp 0 · stage 0",
        "dp 0 · stage 1",
    ]
    threads = names(document, "thread_name")
    for event in slices(document):
        kind, stream = event["args"]["kind"], threads[event["pid"], event["tid"]]
        if kind.endswith(("send", "recv")):
            assert stream == kind
        elif kind in ("params-all-gather", "grads-reduce-scatter"):
            assert stream == "DP comm"
        else:
            assert stream == "compute"


def test_times_are_those_of_the_trace_with_steps_one_after_another(trace: Trace) -> None:
    document = written(from_rows(trace), trace.job)
    steps = [e for e in document["traceEvents"] if e.get("cat") == "step"]
    lengths = trace.traced_step_s() * 1e6
    assert [e["name"] for e in steps] == [f"step {step}" for step in trace.steps]
    assert [e["dur"] for e in steps] == pytest.approx(lengths, abs=1e-2)
    assert steps[1]["ts"] == pytest.approx(lengths[0], abs=1e-2)
    wanted = {int(step): start for step, start in zip(trace.steps, (0, lengths[0]), strict=True)}
    rows = sorted(
        zip(trace.step.tolist(), trace.kind.tolist(), trace.start, trace.end, strict=True)
    )
    drawn = [
        (
            e["args"]["step"],
            int(OpKind.from_label(e["args"]["kind"])),
            (e["ts"] - wanted[e["args"]["step"]]) / 1e6,
            (e["ts"] + e["dur"] - wanted[e["args"]["step"]]) / 1e6,
        )
        for e in slices(document)
    ]
    assert np.array(sorted(drawn)) == pytest.approx(np.array(rows, dtype=float), abs=1e-8)


@pytest.mark.parametrize("changes", [{}, {"vpp": 2}, {"vpp": 2, "noops": True, "overlap": True}])
def test_simulated_and_traced_events_have_equal_names(changes: dict[str, Any]) -> None:
    trace = job_trace(**changes)

    def named(scenario: str) -> dict[tuple[int, ...], str]:
        return {
            (e["pid"], OpKind.from_label(e["args"]["kind"]), e["args"]["seq"]): e["name"]
            for e in slices(written(draw(trace, scenario).events, trace.job))
        }

    traced, simulated = named("traced"), named("replayed")
    assert traced == simulated
    assert "F0" in traced.values() or "F0 c0" in traced.values()


def test_replaying_reproduces_the_trace(trace: Trace) -> None:
    traced, replayed = draw(trace, "traced").events, draw(trace, "replayed").events
    for events in (traced, replayed):
        assert len(events) == len(trace) // 2
    order, other = (
        np.lexsort((events.seq, events.kind, events.pp, events.dp)) for events in (traced, replayed)
    )
    assert traced.start_s[order] == pytest.approx(replayed.start_s[other], abs=1e-9)
    assert traced.end_s[order] == pytest.approx(replayed.end_s[other], abs=1e-9)


def test_the_first_step_is_drawn_and_said_where_none_is_chosen(trace: Trace) -> None:
    drawing = draw(trace, "measured")
    assert set(drawing.events.step.tolist()) == {int(trace.steps[0])}
    assert drawing.notes == (f"step {trace.steps[0]} only, the first of 2; --steps for others",)


def test_replicas_are_chosen_after_the_simulation_of_all(trace: Trace) -> None:
    every, one = draw(trace, "measured").events, draw(trace, "measured", replicas=[1]).events
    assert set(one.dp.tolist()) == {1}
    assert one.end_s.tolist() == every.end_s[every.dp == 1].tolist()


def test_the_ideal_is_drawn_once_and_takes_as_long_as_the_analysis_says(trace: Trace) -> None:
    drawing = draw_ideal(from_trace(trace))
    assert len(drawing.events) == len(trace) // (2 * 3)
    assert drawing.events.end_s.max() == pytest.approx(analyze(trace).ideal_s[0], rel=1e-12)
    assert "are equal" in drawing.about["note"]
    assert drawing.replica_names == {0: "dp 0 and 2 alike"}
    file = io.BytesIO()
    trace_writer(
        drawing.scenes, trace.job, {}, replica_names=drawing.replica_names, compress=False
    )(file)
    document = json.loads(file.getvalue())
    assert "dp 0 and 2 alike · stage 1" in names(document, "process_name").values()


def test_the_ideal_of_unequal_replicas_has_one_of_each_structure() -> None:
    trace = job_trace(microbatches=(4, 6, 4))
    drawing = draw_ideal(from_trace(trace))
    assert set(drawing.events.dp.tolist()) == {0, 1}
    assert drawing.about["replicas_alike"] == {"0": [0, 2], "1": [1]}
    assert drawing.events.end_s.max() == pytest.approx(analyze(trace).ideal_s[0], rel=1e-12)
    everything = draw(trace, "ideal", replicas=[0, 2]).events
    assert set(everything.dp.tolist()) == {0, 2}


def test_compressed_files_hold_the_same_and_are_reproducible(trace: Trace) -> None:
    events = draw(trace, "traced").events
    assert written(events, trace.job, compress=True) == written(events, trace.job)
    one, other = io.BytesIO(), io.BytesIO()
    trace_writer([Scene(events)], trace.job, {}, compress=True)(one)
    trace_writer([Scene(events)], trace.job, {}, compress=True)(other)
    assert one.getvalue() == other.getvalue()


def test_small_overlaps_are_cut_and_long_ones_get_a_row() -> None:
    job = Job(dp_size=1, pp_size=1)
    f = OpKind.FORWARD_COMPUTE
    document = written(events_of((f, 0, 1.0005), (f, 1, 2), (f, 1.5, 3), (f, 3, 4)), job)
    threads = names(document, "thread_name")
    rows = defaultdict(list)
    for e in slices(document):
        rows[threads[e["pid"], e["tid"]]].append((e["name"], e["ts"], e["dur"]))
    assert rows == {
        "compute": [("F0", 0, 1e6), ("F1", 1e6, 1e6), ("F3", 3e6, 1e6)],
        "compute (overlapping)": [("F2", 1.5e6, 1.5e6)],
    }


def test_a_transfer_that_ends_before_its_launch_has_no_length() -> None:
    document = written(events_of((OpKind.FORWARD_SEND, 1.0, 0.995)), Job(dp_size=1, pp_size=1))
    assert [e["dur"] for e in slices(document)] == [0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((OpKind.FORWARD_COMPUTE, 3, -1, 3), "F3"),
        ((OpKind.BACKWARD_COMPUTE, 3, 1, 9), "B3 c1"),
        ((OpKind.FORWARD_SEND, 3, -1, 3), "send F3"),
        ((OpKind.BACKWARD_RECV, -1, -1, 7), "recv B #7"),
        ((OpKind.GRADS_REDUCE_SCATTER, -1, 1, 1), "grads-reduce-scatter c1"),
        ((OpKind.GC, 0, -1, 0), "gc"),
    ],
)
def test_labels(arguments: tuple[OpKind, int, int, int], text: str) -> None:
    assert label(*arguments) == text


@pytest.mark.parametrize("scenario", ["traced", "ideal"])
def test_too_many_events_are_refused_before_they_are_made(
    trace: Trace, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MAX_EVENTS", 100)
    with pytest.raises(OutputError, match=r"--steps and --replicas \(about 2 replicas fit\)"):
        draw(trace, scenario)
    assert len(draw(trace, scenario, replicas=[0, 1]).events) <= 100
    with pytest.raises(OutputError, match=r"of 2 steps, 3 replicas.*\(take fewer\)"):
        draw(trace, scenario, steps=trace.steps.tolist())


@pytest.mark.parametrize("scenario", ["", "idea", "only", "only:stage=x", "without:", "traced:x"])
def test_unknown_scenarios(scenario: str) -> None:
    with pytest.raises(ScenarioError, match="is no scenario"):
        scenarios_of(scenario)


def test_steps_and_replicas_that_are_not_there(trace: Trace) -> None:
    with pytest.raises(TraceError, match="no replica 7; it has 0 to 2"):
        draw(trace, "ideal", replicas=[0, 7])
    with pytest.raises(TraceError, match="step 77 is not in the trace"):
        draw(trace, "ideal", steps=[77])
    with pytest.raises(TraceError, match="none of the 1 steps"):
        draw(trace, "traced", steps=[77])
    first = int(trace.steps[0])
    for scenario in ("ideal", "traced"):
        notes = draw(trace, scenario, steps=[first, 77, 78]).notes
        assert notes == ("2 of the requested steps are not drawn; step 77 is not in the trace",)


def test_a_step_that_is_left_out_can_still_be_drawn_as_traced() -> None:
    whole = job_trace(steps=3)
    counts = whole.counts.copy()
    counts[1, 0, 0, OpKind.OPTIMIZER] = 0
    rows = (whole.step == whole.steps[1]) & (whole.dp == 0) & (whole.pp == 0)
    rows &= whole.kind == OpKind.OPTIMIZER
    columns = {n: getattr(whole, n)[~rows] for n in ("chunk", "microbatch", "start", "end")}
    trace = replace(whole, counts=counts, **columns)
    second = int(whole.steps[1])
    with pytest.raises(
        TraceError, match=f"step {second} is left out: dp 0, stage 0 has 0 optimizer"
    ):
        draw(trace, "measured", steps=[second])
    assert len(draw(trace, "traced", steps=[second]).events) == len(whole) // 3 - 1
