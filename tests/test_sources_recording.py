"""A folder of recorded ranks -> the trace that was recorded."""

import contextlib
import shutil
from collections import Counter

import numpy as np
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import SynthSpec, analyze, blockfile, load, synthesize
from paceline.blockfile import KINDS, PEER_END, block
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.record.recorder import Recorder
from paceline.sources import recording
from paceline.sources.recording import load_recorded_step_times
from paceline.sources.recording.files import read_files
from paceline.trace import OpKind
from paceline.trace.warning import UNLIKE_STEPS
from recordings import SetClock, play, record_trace, recorder

STEP = [("forward-compute", 0, 0, 10, 20), ("backward-compute", 0, 0, 20, 45)]


def spec(**more):
    return SynthSpec(**{"dp": 2, "pp": 2, "microbatches": 4, "steps": 3, "seed": 1, **more})


def one_rank(folder, numbers=(0, 1), rank=0, world=1, ops=STEP, **given):
    clock = SetClock()
    given = {"dp": world, **given}
    rec = recorder(folder, clock, rank=rank, world=world, **given)
    for number in numbers:
        zero = 1_000_000 * (number + 1)
        moved = [(*what, zero + start, zero + end) for *what, start, end in ops]
        play(rec, clock, number, moved, (zero, zero + 50))
    rec.close()


def test_the_kinds_of_the_files_are_those_of_traces():
    assert tuple(kind.label for kind in OpKind) == KINDS


@pytest.mark.parametrize("more", [{}, {"vpp": 2, "schedule": "interleaved"}, {"pp": 1}])
def test_a_recorded_trace_is_the_trace(tmp_path, more):
    truth = synthesize(spec(**more))
    record_trace(truth, tmp_path)
    read = load(tmp_path)
    assert (read.job.dp_size, read.job.pp_size) == (truth.job.dp_size, truth.job.pp_size)
    assert read.job.vpp_size == truth.job.vpp_size
    for name in ("steps", "counts", "chunk", "microbatch"):
        np.testing.assert_array_equal(getattr(read, name), getattr(truth, name), err_msg=name)
    np.testing.assert_allclose(read.start, truth.start, atol=1.1e-9, rtol=0)
    np.testing.assert_allclose(read.end, truth.end, atol=1.1e-9, rtol=0)
    assert read.warnings == truth.warnings
    assert analyze(read).slowdown == pytest.approx(analyze(truth).slowdown, abs=1e-6)


def test_clocks_are_aligned(tmp_path):
    truth = synthesize(spec())
    record_trace(truth, tmp_path, ahead_ns=np.array([[0, 7_000_000_000], [-3_000_000, 123]]))
    read = load(tmp_path)
    np.testing.assert_allclose(read.start, truth.start, atol=1.1e-9, rtol=0)
    assert float(read.step_start_s[0]) == pytest.approx(1_750_000_000, abs=1e-3)


def test_some_steps_and_ignored_kinds(tmp_path):
    record_trace(synthesize(spec()), tmp_path)
    read = load(tmp_path, steps=[1], ignore_kinds=["optimizer"])
    assert read.steps.tolist() == [1]
    assert not read.counts[..., OpKind.OPTIMIZER].any()
    assert any("kinds optimizer dropped" in warning for warning in read.warnings)


def test_only_steps_that_all_ranks_have(tmp_path):
    one_rank(tmp_path, (0, 1, 2), rank=0, world=2)
    one_rank(tmp_path, (1, 2, 3), rank=1, world=2)
    read = load(tmp_path)
    assert read.steps.tolist() == [1, 2]
    assert read.left_out == {0: "rank 1 has not recorded it", 3: "rank 0 has not recorded it"}


def test_no_common_step_is_an_error(tmp_path):
    one_rank(tmp_path, (0, 1), rank=0, world=2)
    one_rank(tmp_path, (2,), rank=1, world=2)
    with pytest.raises(TraceError, match=r"no step that all ranks recorded \(step 0: rank 1 has"):
        load(tmp_path)


def test_missing_ranks_are_named(tmp_path):
    record_trace(synthesize(spec(dp=4, pp=1)), tmp_path)
    (tmp_path / "rank-00001-0.blocks").unlink()
    (tmp_path / "rank-00003-0.blocks").unlink()
    with pytest.raises(TraceError, match="lacks the files of 2 of 4 ranks: 1, 3"):
        load(tmp_path)


def test_a_tensor_parallel_peer_may_be_missing(tmp_path):
    for rank in range(4):
        one_rank(tmp_path, rank=rank, world=4, dp=2, tp=2)
    assert load(tmp_path).job.tp_size == 2
    (tmp_path / "rank-00002-0.blocks").unlink()
    assert any("1 of 4 ranks: 2" in warning for warning in load(tmp_path).warnings)


def test_a_restarted_job_counts_as_its_last_start(tmp_path):
    one_rank(tmp_path, (0, 1, 2), session="first")
    clock = SetClock()
    clock.t = 10**9
    rec = recorder(tmp_path, clock, session="second")
    for number in (2, 3):
        zero = 10**9 + 1_000_000 * number
        ops = [(*what, zero + 2 * start, zero + 2 * end) for *what, start, end in STEP]
        play(rec, clock, number, ops, (zero, zero + 100))
    rec.close()
    read = load(tmp_path)
    assert read.steps.tolist() == [0, 1, 2, 3]
    assert np.round(1e9 * read.traced_step_s()).tolist() == [35, 35, 70, 70]
    times = load_recorded_step_times(tmp_path)
    assert times.steps.tolist() == [0, 1, 2, 3]
    assert np.round(1e9 * times.duration_s[:, 0]).tolist() == [50, 50, 100, 100]
    assert times.warnings == ("1 samples repeat a step of their rank; the last counts",)


def test_a_start_that_lacks_a_rank_adds_nothing(tmp_path):
    for rank in range(2):
        one_rank(tmp_path, (0, 1), rank=rank, world=2, session="a")
    clock = SetClock()
    clock.t = 10**9
    rec = recorder(tmp_path, clock, rank=0, world=2, dp=2, session="b")
    play(rec, clock, 2, [(*w, 10**9 + s, 10**9 + e) for *w, s, e in STEP], (10**9, 10**9 + 50))
    rec.close()
    read = load(tmp_path)
    assert read.steps.tolist() == [0, 1]
    assert any("1 of 2 ranks: 1 since the job's last start" in warning for warning in read.warnings)


def test_a_send_ends_when_its_peer_received(tmp_path):
    class Work:
        def wait(self):
            return True

    for rank, kind in enumerate(("forward-send", "forward-recv")):
        clock = SetClock()
        rec = recorder(tmp_path, clock, rank=rank, world=2, pp=2)
        with rec.step(0):
            clock.t += 5_000
            with rec.op("forward-compute", 0):
                clock.t += 10_000
            work = rec.launch(kind, 0).track(Work())
            clock.t += 100_000 if rank else 1_000
            if rank:
                rec.running_step.ops[-1].done()
            else:
                work.wait()
            with rec.op("backward-compute", 0):
                clock.t += 10_000
        rec.close()
    read = load(tmp_path)
    ends = {int(k): round(e * 1e9) for k, e in zip(read.kind, read.end, strict=True)}
    assert ends[OpKind.FORWARD_SEND] == ends[OpKind.FORWARD_RECV] == 110_000


def test_tensor_parallel_peers_find_the_receive_of_their_own(tmp_path):
    forward, backward = ("forward-compute", 0, 0, 0, 10), ("backward-compute", 0, 0, 900, 910)
    for rank in range(4):
        clock = SetClock()
        rec = recorder(tmp_path, clock, rank=rank, world=4, tp=2, pp=2)
        kind, end = ("forward-send", 30) if rank < 2 else ("forward-recv", 100 * rank)
        sent = (kind, 0, 0, 20, end)
        with_flag = [forward, sent, backward]
        play(rec, clock, 0, with_flag, (0, 1000))
        if rank < 2:
            rec._writer._queue[0].ops[1].flags = PEER_END
        rec.close()
    read = load(tmp_path)
    ends = (read.end[read.kind == OpKind.FORWARD_SEND], read.end[read.kind == OpKind.FORWARD_RECV])
    assert [np.round(1e9 * end).tolist() for end in ends] == [[300], [300]]
    chosen = [(file, np.array([0])) for file in read_files(tmp_path)]
    sources = recording.reader._columns(chosen, frozenset(), chosen, Counter())
    sends = sources.kind == OpKind.FORWARD_SEND
    assert sources.duration[sends].tolist() == [180, 280]


@pytest.mark.parametrize("more", [{}, {"vpp": 2}, {"tp": 2}, {"dp": 1, "pp": 1}])
def test_blocks_of_steps_give_the_trace_of_the_whole(tmp_path, monkeypatch, more):
    record_trace(synthesize(spec(steps=7, **more)), tmp_path)
    whole = load(tmp_path)
    monkeypatch.setattr(recording.reader, "BLOCK_ROWS", len(whole) // 3)
    blocks = load(tmp_path)
    assert (blocks.job, blocks.warnings, blocks.left_out) == (
        whole.job,
        whole.warnings,
        whole.left_out,
    )
    for name in ("steps", "counts", "chunk", "microbatch", "start", "end", "rank", "step_start_s"):
        np.testing.assert_array_equal(getattr(blocks, name), getattr(whole, name))
    assert (blocks.program is None) == (whole.program is None)
    if whole.program is not None:
        for name in ("part", "issued", "awaited", "group"):
            np.testing.assert_array_equal(
                getattr(blocks.program, name), getattr(whole.program, name)
            )


def test_a_block_without_a_whole_step_is_arranged_with_the_others(tmp_path, monkeypatch):
    for rank in range(4):
        clock = SetClock()
        rec = recorder(tmp_path, clock, rank=rank, world=4, tp=2, pp=2)
        kind = "forward-send" if rank < 2 else "forward-recv"
        for number in range(3):
            zero = 1_000_000 * (number + 1)
            ops = [("forward-compute", 0, 0, zero, zero + 10)]
            ops += [(kind, 0, 0, zero + 20, zero + 30)]
            ops += [("backward-compute", 0, 0, zero + 900, zero + 910)]
            if (number, rank) == (1, 1):  # its tensor-parallel peer has no such op
                ops += [("backward-compute", 1, 0, zero + 920, zero + 930)]
            play(rec, clock, number, ops, (zero, zero + 1000))
        rec.close()
    whole = load(tmp_path)
    assert (whole.steps.tolist(), list(whole.left_out)) == ([0, 2], [1])
    monkeypatch.setattr(recording.reader, "BLOCK_ROWS", 1)
    blocks = load(tmp_path)
    assert (blocks.steps.tolist(), blocks.left_out) == ([0, 2], whole.left_out)
    np.testing.assert_array_equal(blocks.end, whole.end)


def test_steps_asked_for_are_the_only_ones_whose_columns_are_made(tmp_path, monkeypatch):
    record_trace(synthesize(spec(steps=7)), tmp_path)
    seen = []
    made = recording.reader._columns

    def columns(block, *args):
        seen.extend(number for file, index in block for number in file.steps[index].tolist())
        return made(block, *args)

    monkeypatch.setattr(recording.reader, "_columns", columns)
    read = recording.read(tmp_path, None, steps=frozenset({2, 5, 99}))
    assert set(seen) == set(read.steps.tolist()) == {2, 5}
    assert any("not in the trace: 99" in text for text in read.warnings)
    with pytest.raises(TraceError, match=r"none of the 1 steps asked for .* \(0 to 6\)"):
        recording.read(tmp_path, None, steps=frozenset({99}))


def test_blocks_without_operations_are_no_steps(tmp_path):
    one_rank(tmp_path)
    with pytest.raises(TraceError, match="has no rows"):
        recording.read(tmp_path, None, frozenset({"forward-compute", "backward-compute"}))


def test_torn_and_damaged_files(tmp_path):
    one_rank(tmp_path, (0, 1, 2))
    path = tmp_path / "rank-00000-0.blocks"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-60:-1])
    read = load(tmp_path)
    assert read.steps.tolist() == [0, 1, 2]
    assert any("unfinished block" in warning for warning in read.warnings)
    second = whole.index(b"\xb1BLK", whole.index(b"\xb1BLK") + 1)
    path.write_bytes(whole[: second + 20] + b"\xff" + whole[second + 21 :])
    read = load(tmp_path)
    assert read.steps.tolist() == [0, 2]
    assert any("1 damaged places skipped" in warning for warning in read.warnings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[:8] + b"\x63\x00" + b[10:], "recorded in format 99; this Paceline reads"),
        (lambda b: b"NOT OURS" + b[8:], "is no recording of paceline"),
        (lambda b: b[:30] + b"#" + b[31:], "the header is damaged"),
        (lambda b: b"PACELIGHT", "is no recording of paceline"),
        (lambda b: b[:9], "all files are empty or end within their header"),
    ],
)
def test_files_that_are_refused(tmp_path, change, words):
    one_rank(tmp_path)
    path = tmp_path / "rank-00000-0.blocks"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TraceError, match=words):
        load(tmp_path)


def test_folders_without_a_recording(tmp_path):
    with pytest.raises(TraceError, match="is a folder without a trace"):
        load(tmp_path)
    with pytest.raises(TraceError, match="holds no recording"):
        load_recorded_step_times(tmp_path)
    with pytest.raises(TraceError, match="does not exist"):
        load_recorded_step_times(tmp_path / "none")
    (tmp_path / "rank-00000-0.blocks").touch()
    with pytest.raises(TraceError, match="all files are empty"):
        load(tmp_path)


def test_steps_without_operations(tmp_path):
    one_rank(tmp_path, ops=[])
    with pytest.raises(TraceError, match="hold no operation"):
        load(tmp_path)
    assert load_recorded_step_times(tmp_path).duration_s.shape == (2, 1)


def test_every_cut_of_a_file_reads_back(tmp_path):
    one_rank(tmp_path, range(4))
    path = tmp_path / "rank-00000-0.blocks"
    whole = path.read_bytes()
    steps = set()
    for length in range(whole.index(b"\xb1BLK"), len(whole), 3):
        path.write_bytes(whole[:length])
        try:
            steps.add(load(tmp_path).n_steps)
        except TraceError as error:
            assert "no step that all ranks recorded" in str(error)  # noqa: PT017 (a file may survive)
    assert steps == {1, 2, 3, 4}


def test_every_cut_of_a_header_leaves_the_file_out(tmp_path):
    for rank in range(2):
        one_rank(tmp_path, rank=rank, world=2, dp=1, tp=2)
    path = tmp_path / "rank-00001-0.blocks"
    whole = path.read_bytes()
    left_out = "1 files end within their header, left out (rank-00001-0.blocks)"
    for length in range(1, whole.index(b"\xb1BLK"), 3):
        path.write_bytes(whole[:length])
        read = load(tmp_path)
        assert read.steps.tolist() == [0, 1]
        assert left_out in read.warnings
        times = load_recorded_step_times(tmp_path)
        assert (times.ranks.tolist(), times.warnings) == ([0], (left_out,))


def test_a_torn_header_of_a_rank_that_is_needed_is_told(tmp_path):
    for rank in range(2):
        one_rank(tmp_path, rank=rank, world=2)
    path = tmp_path / "rank-00001-0.blocks"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TraceError, match=r"1 of 2 ranks: 1; 1 files end within their header"):
        load(tmp_path)


def test_a_strange_kind_is_shown_without_its_escapes(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.blockfile.KINDS", ("a\x1b[31m", *KINDS[1:]))
    one_rank(tmp_path)
    with pytest.raises(TraceError, match="unknown kind") as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()


def test_a_copied_folder_reads_the_same(tmp_path):
    one_rank(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert load(tmp_path / "b").start.tolist() == load(tmp_path / "a").start.tolist()


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    one_rank(folder, range(4))
    return (folder / "rank-00000-0.blocks").read_bytes()


def read_or_refuse(folder, data):
    folder.mkdir(exist_ok=True)
    (folder / "rank-00000-0.blocks").write_bytes(data)
    for read in (load, load_recorded_step_times):
        with contextlib.suppress(TraceError):  # any other error fails the test
            read(folder)
    shutil.rmtree(folder)


@settings(max_examples=150, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6))
def test_any_damage_is_read_around_or_refused(whole_file, tmp_path_factory, edits):
    data = bytearray(whole_file)
    for at, byte in edits:
        data[at % len(data)] = byte
    read_or_refuse(tmp_path_factory.getbasetemp() / "damaged", bytes(data))


@settings(max_examples=150, deadline=None)
@given(
    kind=st.integers(0, 6),
    head=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6),
    rest=st.binary(max_size=60),
)
def test_any_whole_block_is_read_or_refused(whole_file, tmp_path_factory, kind, head, rest):
    payload = b"".join(number.to_bytes(8, "little", signed=True) for number in head) + rest
    data = whole_file + block(kind, payload)
    read_or_refuse(tmp_path_factory.getbasetemp() / "strange", data)


def test_a_clock_beyond_all_clocks_is_refused(whole_file, tmp_path):
    """Hypothesis found it: an offset near 2**63 ns overflowed when it was taken off."""
    payload = b"".join(n.to_bytes(8, "little", signed=True) for n in (0, -(2**63), 1))
    path = tmp_path / "rank-00000-0.blocks"
    path.write_bytes(whole_file + block(blockfile.CLOCK, payload))
    with pytest.raises(TraceError, match="which is no possible time"):
        read_files(tmp_path)


def alternating(folder, even_ms, odd_ms, steps=40):
    """A rank with even steps of one length, all profiled, and odd ones of another, in ms.

    Lengths are numbers, or [step].
    """
    even_ms, odd_ms = np.broadcast_to(even_ms, steps), np.broadcast_to(odd_ms, steps)
    clock = SetClock()
    even = range(0, steps, 2)
    rec = Recorder(folder, steps=even, flush_s=60, given={"rank": 0, "world": 1}, clock=clock)
    at = 0
    for number in range(steps):
        end = at + round(1_000_000 * float((odd_ms if number % 2 else even_ms)[number]))
        ops = [("forward-compute", 0, 0, at + 10, end - 20)]
        play(rec, clock, number, [*ops, ("backward-compute", 0, 0, end - 20, end)], (at, end))
        at = end
    rec.close()
    return [doubt for doubt in from_trace(load(folder)).doubts if doubt.code == UNLIKE_STEPS]


def test_profiled_steps_that_are_unlike_the_others_are_told(tmp_path):
    """As of a Trainer whose even steps load three batches, and its odd ones two."""
    (doubt,) = alternating(tmp_path / "unlike", 150, 100)
    assert "profiled steps take 150 ms on average, all others 100 ms" in doubt.text
    assert doubt.numbers["all_s"] == pytest.approx(0.125, rel=0.01)
    assert alternating(tmp_path / "alike", 104, 100) == []
    assert alternating(tmp_path / "few", 150, 100, steps=14) == []


def test_steps_of_a_busy_machine_differ_by_chance(tmp_path):
    """Profiled steps that are 11% longer on average are no finding if single ones vary by half."""
    lengths = np.random.default_rng(2).lognormal(0, 0.5, 40)
    lengths[::2] *= 1.11 * lengths[1::2].mean() / lengths[::2].mean()
    assert alternating(tmp_path, 100 * lengths, 100 * lengths) == []
