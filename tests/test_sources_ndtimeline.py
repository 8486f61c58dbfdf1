"""NDTimeline: a synthesised trace, written in its format, comes back; damage is refused."""

import gzip
import json
import random
from pathlib import Path

import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from import_files import dump, load, make_trace, ops_of, same, timelines
from paceline.errors import PacelineError, TraceError
from paceline.graph.from_trace import from_trace
from paceline.sources import ndtimeline
from paceline.trace import Job, OpKind, Trace

fuzz = settings(max_examples=100, deadline=None, suppress_health_check=SHARED_FIXTURES)


@pytest.fixture(scope="module")
def truth() -> Trace:
    return make_trace()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"pp": 4, "microbatches": 6, "noise": 0.02},
        {"schedule": "gpipe", "dp": 3},
        {"pp": 1},
        {"microbatches": (3, 5)},
        {"overlap": True},
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_round_trip(tmp_path: Path, spec: dict, suffix: str) -> None:
    truth = make_trace(**spec)
    imported = ndtimeline.read(timelines(truth, tmp_path, suffix))
    same(imported.trace, truth)
    assert imported.matched == len(truth)
    assert imported.unplaced == {}
    assert imported.confidence == ndtimeline.CERTAINTY
    assert imported.trace.warnings == ()
    assert imported.trace.step_start_s[0] == pytest.approx(1.75e9, abs=1)


def test_round_trip_gives_the_same_slowdown(tmp_path: Path, truth: Trace) -> None:
    got = from_trace(ndtimeline.read(timelines(truth, tmp_path)).trace)
    expected = from_trace(truth)
    assert got.durations.values == pytest.approx(expected.durations.values, abs=5e-6)


def test_chunks_follow_the_interleaved_order(tmp_path: Path) -> None:
    truth = make_trace(pp=2, vpp=2, microbatches=4)
    paths = timelines(truth, tmp_path)
    imported = ndtimeline.read(paths, truth.job)
    same(imported.trace, truth)
    assert imported.confidence == ndtimeline.CERTAINTY_CHUNKS
    with pytest.raises(
        TraceError, match="rank 0 ran 8 forward-compute in step 0, no multiple of 6"
    ):
        ndtimeline.read(paths, Job(dp_size=2, pp_size=2, vpp_size=3))


def test_tensor_parallel_peers_become_one_worker(tmp_path: Path, truth: Trace) -> None:
    imported = ndtimeline.read(timelines(truth, tmp_path, tp=2))
    same(imported.trace, truth)
    assert imported.matched == 2 * len(truth)
    assert imported.trace.job == Job(dp_size=2, pp_size=2, tp_size=2)


@pytest.mark.parametrize("style", ["text", "colons", "json lines"])
def test_the_raw_log(tmp_path: Path, truth: Trace, style: str) -> None:
    paths = []
    for path in timelines(truth, tmp_path):
        log = ["[2025-06-15 15:06:40] ndtimeline starts, rank 0"]
        for event in load(path):
            args, name = event["args"], event["name"]
            fields = {"dp": event["pid"], **args, "ts": event["ts"], "dur": event["dur"]}
            if style == "json lines":
                log.append(json.dumps(event))
            elif style == "colons":
                told = ", ".join(f"'{key}': {value}" for key, value in fields.items())
                log.append(f"INFO metric {name} {{{told}}}")
            else:
                told = " ".join(f"{key}={value!r}" for key, value in fields.items())
                log.append(f"[ndtimeline] {name} {told}")
        start = 1 if style == "json lines" else 0
        paths.append(tmp_path / f"{path.stem}.log")
        paths[-1].write_text("\n".join(log[start:]))
        assert ndtimeline.matches(paths[-1])
    same(ndtimeline.read(paths).trace, truth)


def test_names_of_metrics(tmp_path: Path) -> None:
    assert ndtimeline.METRICS["unshard-all-gather"] == OpKind.PARAMS_ALL_GATHER
    assert ndtimeline.METRICS["grad-reduce-scatter"] == OpKind.GRADS_REDUCE_SCATTER
    assert ndtimeline.METRICS["grad-all-reduce"] == OpKind.GRADS_REDUCE_SCATTER
    assert ndtimeline.METRICS["forward-compute"] == OpKind.FORWARD_COMPUTE


def test_what_is_not_known_is_counted_and_lowers_the_confidence(
    tmp_path: Path, truth: Trace
) -> None:
    paths = timelines(truth, tmp_path)
    events = load(paths[0])
    args = {"rank": 0, "step": 0, "pp": 0, "tp": 0}
    own = {"name": "checkpoint\x1b[2J", "ph": "X", "pid": 0, "ts": 1.0, "dur": 1.0, "args": args}
    other = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "dp 0"}}
    dump([*events, own, own, other], paths[0])
    imported = ndtimeline.read(paths)
    (why, n), *rest = imported.unplaced.items()
    assert (n, rest) == (2, [])
    assert "\x1b" not in why
    assert "checkpoint" in why
    share = len(truth) / (len(truth) + 2)
    assert imported.confidence == pytest.approx(ndtimeline.CERTAINTY * share)


def without(event: dict, name: str) -> dict:
    args = {key: value for key, value in event["args"].items() if key != name}
    return event | {"args": args}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda event: without(event, "step"), "of known metrics without a rank or step"),
        (lambda event: without(event, "rank"), "of known metrics without a rank or step"),
        (lambda event: event | {"ph": "B"}, "of known metrics whose ph is not X"),
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_known_metrics_that_cannot_be_placed_are_counted(
    tmp_path: Path, truth: Trace, change, why: str, log: bool
) -> None:
    paths = timelines(truth, tmp_path)
    changed(paths[0], lambda event: change(event) if event["name"] == "optimizer" else event)
    n = sum(event["name"] == "optimizer" for event in load(paths[0]))
    if log:
        for path in paths:
            path.write_text("\n".join(json.dumps(event) for event in load(path)))
    imported = ndtimeline.read(paths)
    assert imported.unplaced == {why: n}
    assert imported.matched == len(truth) - n


def test_a_line_of_text_without_a_rank_is_counted_but_prose_is_not(
    tmp_path: Path, truth: Trace
) -> None:
    path = tmp_path / "a.log"
    events = [event for path in timelines(truth, tmp_path) for event in load(path)]
    told = [
        f"{event['name']} dp={event['pid']} ts={event['ts']!r} dur={event['dur']!r} "
        + " ".join(f"{key}={value}" for key, value in event["args"].items())
        for event in events
    ]
    told += ["optimizer step=1 ts=5 dur=1", "the optimizer of step=1 is slow"]
    path.write_text("\n".join(told))
    imported = ndtimeline.read([path])
    same(imported.trace, truth)
    assert imported.unplaced == {"of known metrics without a rank or step": 1}


def test_transfers_without_a_direction_are_not_placed(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)

    def renamed(event: dict) -> dict:
        kind, _, way = event["name"].partition("-")
        across = kind in ("forward", "backward") and way in ("send", "recv")
        return event | {"name": f"cross-mesh-{way}"} if across else event

    for path in paths:
        changed(path, renamed)
    imported = ndtimeline.read(paths)
    assert imported.unplaced == {
        f"with the metric 'cross-mesh-{way}', which is not known": 48 for way in ("send", "recv")
    }


def test_events_in_any_order(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    for path in paths:
        events = load(path)
        random.Random(1).shuffle(events)
        dump(events, path)
    same(ndtimeline.read(paths).trace, truth)


def changed(path: Path, change) -> None:
    """Rewrite the events of a file; ``change`` returns the event, or None to drop it."""
    dump([event for event in map(change, load(path)) if event is not None], path)


def drop(**what):
    """Drop the first event that has these values."""
    left = [1]

    def change(event: dict) -> dict | None:
        values = event["args"] | {"name": event["name"], "dp": event["pid"]}
        if left[0] and all(values[key] == value for key, value in what.items()):
            left[0] -= 1
            return None
        return event

    return change


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            {"name": "forward-send", "step": 1, "dp": 0},
            "dp 0, stage 0 sent 3 forwards in step 1, stage 1 received 4",
        ),
        (
            {"name": "forward-compute", "step": 2, "dp": 1},
            "dp 1, stage 0 ran 3 forwards in step 2, stage 1 ran 4 forwards",
        ),
        (
            {"name": "backward-compute", "step": 2, "dp": 1},
            "dp 1, stage 0 ran 4 forwards in step 2, stage 0 ran 3 backwards",
        ),
        (
            {"name": "backward-recv", "step": 0, "dp": 1},
            "dp 1, stage 1 sent 4 backwards in step 0, stage 0 received 3",
        ),
        (
            {"name": "grad-reduce-scatter", "step": 0, "dp": 1},
            "stage 0 ran 1 grads-reduce-scatter in step 0 on dp 0, but 0 on dp 1",
        ),
    ],
)
def test_counts_that_differ_between_peers_are_refused_with_the_ops_named(
    tmp_path: Path, truth: Trace, what: dict, message: str
) -> None:
    paths = timelines(truth, tmp_path)
    changed(paths[0], drop(**what))
    with pytest.raises(TraceError, match=message):
        ndtimeline.read(paths)
    # What the message advises.
    others = frozenset({0, 1, 2} - {what["step"]})
    assert ndtimeline.read(paths, steps=others).trace.steps.tolist() == sorted(others)


def test_a_rank_that_is_missing(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    without = tmp_path / "without.json"
    dump([event for event in load(paths[0]) if event["pid"] != 0], without)
    with pytest.raises(TraceError, match="dp 0, stage 0 has no ops in step 0, others have"):
        ndtimeline.read([without, paths[1]])
    with pytest.raises(TraceError, match="dp 0, stage 0 has no ops in step 0"):
        ndtimeline.read([paths[1]])


def test_a_last_rank_that_is_missing_shows_with_the_job(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    with pytest.raises(TraceError, match="contradicts the job: pp_size is 2"):
        ndtimeline.read(paths[:1], truth.job)


def test_a_rank_with_fewer_steps(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    changed(
        paths[1], lambda event: None if (event["args"]["step"], event["pid"]) == (2, 1) else event
    )
    with pytest.raises(TraceError, match="dp 1, stage 1 has no ops in step 2"):
        ndtimeline.read(paths)


def test_another_clock(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    changed(paths[1], lambda event: event | {"ts": event["ts"] - 3600e6})
    # Not two ranks of one host, which agree.
    with pytest.raises(
        TraceError,
        match=r"in step 0 rank [01] works from .* s, rank [23] from .* s; they never meet, so "
        "their clocks or step numbers differ",
    ):
        ndtimeline.read(paths)


def test_a_step_without_computes(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    for path in paths:
        changed(
            path,
            lambda event: (
                None if event["name"].endswith("-compute") and event["args"]["step"] == 1 else event
            ),
        )
    with pytest.raises(TraceError, match="dp 0, stage 0 has no forwards in step 1; record"):
        ndtimeline.read(paths)


def test_a_truncated_gzip(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path, ".json.gz")
    paths[1].write_bytes(paths[1].read_bytes()[:-40])
    with pytest.raises(TraceError, match=r"host1\.json\.gz is cut off"):
        ndtimeline.read(paths)


def test_a_file_given_twice(tmp_path: Path, truth: Trace) -> None:
    paths = timelines(truth, tmp_path)
    with pytest.raises(TraceError, match="ops twice, the first is a forward-compute of rank 0"):
        ndtimeline.read([*paths, paths[0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dur": -1.0}, "event 0: dur -1 is negative"),
        ({"dur": None}, "event 0: dur should be a number, not None"),
        ({"ts": "soon"}, "ts should be a number, not 'soon'"),
        ({"ts": 1e308}, "ts should be a number"),
        ({"ts": -1e18}, r"works on step 0 from -1000000000000\.0* to .* s, more than a day"),
        ({"dur": 1e13}, "works on step 0 from .* s, more than a day"),
        ({"pid": "host"}, "pid should be a whole number from 0, not 'host'"),
        ({"pid": 2**40}, "pid should be a whole number"),
        ({"pid": 2**31 - 1}, "rank 0 is dp 2147483647, stage 0 in one place and dp 0"),
        (
            {"pid": 2**31 - 1, "args": {"rank": 9, "step": 0, "pp": 0}},
            "2147483648 dp ranks x 2 stages in 3 steps cannot be told from",
        ),
        (
            {"args": {"rank": 0, "step": -1, "pp": 0}},
            "step should be a whole number from 0, not -1",
        ),
        ({"args": {"rank": 0, "step": 0}}, "pp should be a whole number from 0, not missing"),
        ({"args": {"rank": 0, "step": 0, "pp": 1}}, "rank 0 is dp 0, stage [01] in one place"),
    ],
)
def test_values_that_are_none(tmp_path: Path, truth: Trace, change: dict, message: str) -> None:
    paths = timelines(truth, tmp_path)
    events = load(paths[0])
    dump([events[0] | change, *events[1:]], paths[0])
    with pytest.raises(TraceError, match=message):
        ndtimeline.read(paths)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = dump([{"name": "x", "ph": "X", "ts": 1, "dur": 2}], tmp_path / "other.json")
    assert not ndtimeline.matches(path)
    with pytest.raises(TraceError, match="has no NDTimeline metric"):
        ndtimeline.read([path])
    assert not ndtimeline.matches(tmp_path)


def test_the_ops_of_the_writer_are_in_order(truth: Trace) -> None:
    """The writer of these tests is right: ops come as they started."""
    starts = [op["start"] for op in ops_of(truth)]
    assert starts == sorted(starts)
    assert len(starts) == len(truth)


@fuzz
@given(data=st.data())
def test_fuzzed_files(tmp_path: Path, truth: Trace, data: st.DataObject) -> None:
    """Bytes of a good file are replaced, or it is cut: a trace or a PacelineError."""
    paths = timelines(truth, tmp_path, ".json.gz")
    content = bytearray(gzip.decompress(paths[0].read_bytes()))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=3) | st.sampled_from([b"9" * 30, b"-"]))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    paths[0].write_bytes(bytes(content))
    try:
        ndtimeline.matches(paths[0])
        assert len(ndtimeline.read(paths).trace)
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)


@fuzz
@given(
    event=st.dictionaries(
        st.sampled_from(["name", "ph", "pid", "ts", "dur", "args"]),
        st.recursive(
            st.none() | st.integers() | st.floats() | st.sampled_from(["X", "forward-compute"]),
            lambda inner: st.dictionaries(st.sampled_from(["rank", "step", "tp", "pp"]), inner),
            max_leaves=6,
        ),
    )
)
def test_fuzzed_events(tmp_path: Path, event: dict) -> None:
    path = dump([event], tmp_path / "a.json")
    try:
        ndtimeline.matches(path)
        ndtimeline.read([path])
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)


@fuzz
@given(line=st.text(max_size=40), value=st.text(max_size=8))
def test_fuzzed_lines(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / "a.log"
    text = f"forward-compute rank={value} step=1 ts={value} dur=1 dp=0 pp=0\n{line}"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        ndtimeline.matches(path)
        ndtimeline.read([path])
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)
