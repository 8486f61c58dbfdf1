"""PyTorch profiles that are damaged or do not belong together."""

import copy
import gzip
from pathlib import Path

import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

import kineto_profiles
from fuzzing import SHARED_FIXTURES
from host_profiles import ddp, run, stepped, write
from import_files import ProfileWriter, dump, load
from paceline.errors import PacelineError, TraceError
from paceline.sources import kineto
from paceline.trace import Trace

truth = kineto_profiles.truth

fuzz = settings(max_examples=60, deadline=None, suppress_health_check=SHARED_FIXTURES)


def test_a_rank_given_twice(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    with pytest.raises(TraceError, match="are both of rank 0"):
        kineto.read([*paths, paths[0]])


def test_one_profile_of_a_data_parallel_job(tmp_path: Path) -> None:
    paths = write(run(stepped(ddp), (1.0,) * 4, 2.0), tmp_path)
    with pytest.raises(TraceError) as error:
        kineto.read(paths[:1])
    assert str(error.value) == (
        "1 profile is here, but the job has 4 ranks (rank 1's is missing): give the profiles of "
        "all 4 ranks; paceline ranks reports on the ranks that are here. Of a job with tensor "
        "parallelism, one rank of each group is enough with --job"
    )


def test_profiles_of_two_jobs(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[1])
    value["distributedInfo"]["world_size"] = 8
    dump(value, paths[1])
    with pytest.raises(TraceError, match="of jobs of 4 and 8 ranks; give files of one run"):
        kineto.read(paths)


def test_a_send_that_is_missing(tmp_path: Path, truth: Trace) -> None:
    """Of dp 0's stage 0 in step 1, the kernel is there but not the call."""
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[0])
    sends = [
        event
        for event in value["traceEvents"]
        if event["name"] == "record_param_comms" and event["args"]["Collective name"] == "send"
    ]
    value["traceEvents"].remove(sends[5])
    dump(value, paths[0])
    with pytest.raises(
        TraceError, match="dp 0, stage 0 sent 3 forwards in step 1, stage 1 received"
    ):
        kineto.read(paths)


def test_a_truncated_gzip(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    paths[3].write_bytes(paths[3].read_bytes()[:-30])
    with pytest.raises(TraceError, match=r"rank3\.json\.gz is cut off"):
        kineto.read(paths)


def test_a_profile_without_a_rank(tmp_path: Path, truth: Trace) -> None:
    paths = ProfileWriter(truth).write(tmp_path)
    value = load(paths[0])
    del value["distributedInfo"]
    dump(value, paths[0])
    with pytest.raises(TraceError, match="no distributedInfo with a rank; profile after"):
        kineto.read(paths)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PP:0I3", r"splits backwards in two \(I, W\)"),
        ("PP:(0F1;0B0)OVERLAP_F_B", "which this reader does not take apart"),
    ],
)
def test_schedules_that_a_trace_cannot_hold(
    tmp_path: Path, truth: Trace, name: str, message: str
) -> None:
    paths = ProfileWriter(truth, ranges=True).write(tmp_path)
    value = load(paths[0])
    event = next(e for e in value["traceEvents"] if e["name"] == "PP:0B3")
    event["name"] = name
    dump(value, paths[0])
    with pytest.raises(TraceError, match=message):
        kineto.read(paths)


@fuzz
@given(data=st.data())
def test_fuzzed_files(tmp_path: Path, truth: Trace, data: st.DataObject) -> None:
    paths = ProfileWriter(truth.select_steps([0])).write(tmp_path)
    content = bytearray(gzip.decompress(paths[0].read_bytes()))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=3) | st.sampled_from([b"9" * 30, b"-"]))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    paths[0].write_bytes(bytes(content))
    try:
        kineto.matches(paths[0])
        assert len(kineto.read(paths).trace)
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)


@fuzz
@given(data=st.data())
def test_fuzzed_values(tmp_path: Path, truth: Trace, data: st.DataObject) -> None:
    """Values of a good file are replaced by others of any type: a trace or a PacelineError."""
    paths = ProfileWriter(truth.select_steps([0]), ranges=data.draw(st.booleans())).write(tmp_path)
    value = load(paths[1])
    odd = st.sampled_from(
        [None, True, -1, 0, 1, 10**400, 2**31, 1e308, float("nan"), "", "x", "3", [], {}, [[1]]]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = value
        while place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys))
            if (
                not isinstance(place[key], dict | list)
                or not place[key]
                or data.draw(st.booleans())
            ):
                place[key] = copy.deepcopy(data.draw(odd))
                break
            place = place[key]
    dump(value, paths[1])
    try:
        kineto.matches(paths[1])
        assert len(kineto.read(paths).trace)
    except PacelineError as error:
        assert str(error)  # noqa: PT017 (a file may survive)
