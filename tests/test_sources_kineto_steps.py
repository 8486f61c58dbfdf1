"""Where the steps of a PyTorch profile begin, and which thread and runs count."""

import random
from pathlib import Path

import numpy as np
import pytest

import kineto_profiles
from import_files import PROFILED, ProfileWriter, dump, load, make_trace, only, same
from kineto_profiles import WRITTEN, strip
from paceline.errors import TraceError
from paceline.sources import kineto
from paceline.trace import OpKind, Trace

K = OpKind
truth = kineto_profiles.truth


def test_steps_by_the_optimizer(tmp_path: Path, truth: Trace) -> None:
    """Without ProfilerStep the first step cannot be known to be whole."""
    paths = ProfileWriter(truth).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith("ProfilerStep"))
    imported = kineto.read(paths)
    rest = only(truth.select_steps([1, 2]), PROFILED)
    np.testing.assert_array_equal(imported.trace.counts, rest.counts)
    assert np.abs(imported.trace.end - imported.trace.start - rest.end + rest.start).max() < 2e-6
    assert imported.notes[0] == "steps are the Optimizer.step ranges"
    assert imported.confidence < kineto.notes.CERTAINTY_RUNS


@pytest.mark.parametrize("gone", ["ProfilerStep", ("ProfilerStep", "Optimizer")])
@pytest.mark.parametrize("order", ["autograd first", "reversed", "shuffled"])
def test_the_main_thread_does_not_depend_on_the_order_of_the_file(
    tmp_path: Path, gone: str | tuple[str, ...], order: str
) -> None:
    """Without ProfilerStep it is the thread of the updates, else that of the earliest launch."""
    paths = ProfileWriter(make_trace(WRITTEN, steps=5)).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(gone))
    expected = kineto.read(paths).trace
    for path in paths:
        value = load(path)
        events = value["traceEvents"]
        if order == "autograd first":
            events.sort(key=lambda event: event["tid"] != ProfileWriter.AUTOGRAD)
        elif order == "reversed":
            events.reverse()
        else:
            random.Random(path.name).shuffle(events)
        dump(value, path)
    same(kineto.read(paths).trace, expected, within_s=1e-9)


@pytest.mark.parametrize("pp", [1, 2])
def test_a_thread_that_launches_forwards_and_backwards_is_refused(tmp_path: Path, pp: int) -> None:
    paths = ProfileWriter(make_trace(WRITTEN, pp=pp)).write(tmp_path)
    for path in paths:
        value = load(path)
        for event in value["traceEvents"]:
            if event["tid"] == ProfileWriter.AUTOGRAD:
                event["tid"] = ProfileWriter.MAIN
        dump(value, path)
    with pytest.raises(TraceError, match=r"rank0\.json\.gz has no kernels of another thread"):
        kineto.read(paths)


def test_runs_of_no_microbatch_are_told(tmp_path: Path, truth: Trace) -> None:
    """A kernel right after the last backward of step 1: the gradients' norm."""
    paths = ProfileWriter(truth).write(tmp_path)
    assert "0 short runs and 0 after a step's last backward" in kineto.read(paths).notes[-1]
    value = load(paths[0])
    events = value["traceEvents"]
    step = next(event for event in events if event["name"] == "ProfilerStep#1")
    updates = next(
        event["ts"]
        for event in events
        if event["name"].startswith("Optimizer.step") and event["ts"] > step["ts"]
    )
    common = {"ph": "X", "pid": 0, "tid": ProfileWriter.MAIN, "ts": updates - 1, "dur": 0.5}
    common["args"] = {"correlation": 10**6}
    events.append(common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"})
    events.append(common | {"cat": "kernel", "name": "norm"})
    dump(value, paths[0])
    imported = kineto.read(paths)
    same(imported.trace, only(truth, PROFILED))
    assert "0 short runs and 1 after a step's last backward" in imported.notes[-1]


def test_steps_by_the_period_of_the_communication(tmp_path: Path) -> None:
    truth = make_trace(WRITTEN, steps=5)
    paths = ProfileWriter(truth).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(("ProfilerStep", "Optimizer")))
    imported = kineto.read(paths)
    # One begins after the collective in front of the first transfer; the last has no end.
    assert imported.trace.n_steps == 4
    inner = truth.select_steps([0, 1, 2, 3])
    transfers = [K.FORWARD_COMPUTE, K.BACKWARD_COMPUTE, K.FORWARD_SEND, K.BACKWARD_RECV]
    for kind in transfers:
        np.testing.assert_array_equal(imported.trace.counts[..., kind], inner.counts[..., kind])
    got, expected = (
        (t.end - t.start)[t.kind == K.BACKWARD_COMPUTE] for t in (imported.trace, inner)
    )
    assert np.abs(got - expected).max() < 2e-6
    assert imported.notes[0] == "steps are the period"


def test_no_way_to_tell_the_steps_is_refused(tmp_path: Path) -> None:
    paths = ProfileWriter(make_trace(WRITTEN, steps=1)).write(tmp_path)
    for path in paths:
        strip(path, lambda event: event["name"].startswith(("ProfilerStep", "Optimizer")))
    with pytest.raises(TraceError, match=r"no ProfilerStep#N .* call prof\.step\(\)"):
        kineto.read(paths)


def test_a_rank_with_fewer_steps(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    strip(paths[2], lambda event: event["name"] == "ProfilerStep#2")
    with pytest.raises(TraceError, match="dp 1, stage 0 has no ops in step 2, others have"):
        kineto.read(paths)
    assert kineto.read(paths, steps=frozenset({0, 1})).trace.n_steps == 2
