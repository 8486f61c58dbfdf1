"""Clocks: the exchange between ranks, and CUDA events tied to the host (on a GPU made of paper)."""

import queue
import threading
import types

import numpy as np
import pytest

import requires
from paceline.blockfile import PROGRAM, TIMES, read_file
from paceline.record import data_loading
from paceline.record.clocks import Exchange, HostClock, asked_by
from paceline.record.cuda import CudaClock
from paceline.record.passes import Passes, TailExchange
from paceline.record.recorder import Recorder
from paceline.sources.recording.files import _ahead_ns, read_files

requires.installed("torch")

import torch


class Wires:
    """``torch.distributed`` of one rank, over queues."""

    def __init__(self, rank, world, wires):
        self.rank, self.world, self.wires = rank, world, wires

    def get_rank(self):
        return self.rank

    def get_world_size(self):
        return self.world

    def new_group(self, **_):
        return None

    def send(self, tensor, to, group):
        self.wires[self.rank, to].put(tensor.clone())

    def recv(self, tensor, source, group):
        tensor.copy_(self.wires[source, self.rank].get(timeout=120))


def exchanged(world, hosts, ahead_ns):
    wires = {(a, b): queue.SimpleQueue() for a in range(world) for b in range(world)}
    found = [None] * world

    def rank_of(rank):
        clock = HostClock()
        clock.ahead_ns += ahead_ns[rank]
        exchange = Exchange(Wires(rank, world, wires), clock, hosts[rank])
        found[rank] = (exchange.run(), clock.ahead_ns)

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_every_rank_asks_one_other(world):
    asks = {other: rank for rank in range(world) for other in asked_by(rank, world)}
    assert sorted(asks) == list(range(1, world))
    assert all(asks[rank] == rank & (rank - 1) for rank in asks)


@pytest.mark.parametrize("hosts", [[0] * 6, [7] * 6, [7, 7, 7, 8, 8, 8], [0, 7, 7, 7, 0, 7]])
def test_offsets_are_right_within_what_they_say(hosts):
    ahead = [0, 5_000_000_000, -40_000_000, 123, 10**12, -7]
    found = exchanged(6, hosts, ahead)
    base = found[0][1]
    for rank, (offset, mine) in enumerate(found):
        assert abs(offset.offset_ns - (mine - base)) <= offset.residual_ns
        if hosts == [7] * 6 or rank == 0:
            assert offset.residual_ns == 0
        elif set(hosts) == {0}:
            assert offset.residual_ns > 0


def test_offsets_between_and_around_exchanges():
    clock = np.array([[1000, 10, 1], [2000, 30, 1]])
    at = np.array([0, 1000, 1500, 2000, 9000])
    assert _ahead_ns(at, clock).tolist() == [10, 10, 20, 30, 30]
    assert _ahead_ns(at, clock[:0]).tolist() == [0] * 5


def test_a_doubtful_exchange_does_not_move_a_sure_one():
    second = 1_000_000_000
    clock = np.array([[0, 0, 1000], [second, 900_000, 1_000_000], [2 * second, 200, 1000]])
    assert _ahead_ns(np.array([0, second, 2 * second]), clock).tolist() == [0, 100, 200]


class Gpu:
    """Enough of ``torch.cuda``: events pass when the test says that the GPU came to them."""

    def __init__(self, host):
        self.host, self.drift_ns, self.busy = host, 10**15, False
        self.cuda = types.SimpleNamespace(
            current_device=lambda: 0,
            synchronize=lambda: None,
            Stream=lambda: "stream",
            Event=lambda enable_timing: Event(self),
            stream=lambda stream: Within(),
            device=lambda device: Within(),
        )


class Within:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Event:
    made = 0

    def __init__(self, gpu):
        self.gpu, self.ns, self.passed = gpu, 0, True
        Event.made += 1

    def record(self, stream=None):
        self.ns = self.gpu.host() + self.gpu.drift_ns
        self.passed = not self.gpu.busy

    def query(self):
        return self.passed

    def elapsed_time(self, other):
        return float(np.float32((other.ns - self.ns) / 1e6))


def cuda_clock():
    holder = []
    gpu = Gpu(lambda: holder[0] if holder else 0)
    clock = CudaClock.__new__(CudaClock)
    moment = [0]

    def now():
        moment[0] += 100  # every look at the clock takes a little
        return moment[0]

    gpu.host = lambda: moment[0]
    clock.now = now
    CudaClock.__init__(clock, gpu)
    return clock, gpu, moment


def test_events_become_host_times_without_waiting():
    clock, gpu, moment = cuda_clock()
    moment[0] = 5_000_000
    mark = clock.mark()
    assert clock.resolve(mark) == pytest.approx(5_000_000, abs=200)
    gpu.busy = True
    waiting = clock.mark()
    assert clock.resolve(waiting) is None
    waiting.passed = True
    assert clock.resolve(waiting) == pytest.approx(5_000_000, abs=200)


def test_ties_are_renewed_so_that_float32_and_drift_do_not_matter():
    clock, gpu, moment = cuda_clock()
    hour = 3_600_000_000_000
    moment[0] = hour
    gpu.drift_ns += 50_000_000  # the two clocks have drifted apart by 50 ms
    assert abs(clock.resolve(clock.mark()) - hour) > 40_000_000
    clock.tie()
    assert clock.resolve(clock.mark()) == pytest.approx(moment[0], abs=200)


def test_a_tie_behind_a_full_queue_is_not_taken():
    clock, gpu, _ = cuda_clock()
    before = clock._tied
    gpu.busy = True
    clock.tie()
    assert clock._tied is before


def test_events_are_used_again():
    clock, _, _ = cuda_clock()
    marks = [clock.mark() for _ in range(3)]
    made = Event.made
    clock.recycle(marks)
    assert {id(clock.mark()) for _ in range(3)} == {id(mark) for mark in marks}
    assert Event.made == made


def test_an_event_of_two_operations_is_free_once():
    clock, _, _ = cuda_clock()
    first, shared, last = (clock.mark() for _ in range(3))
    clock.recycle([first, shared, shared, last])
    assert {id(clock.mark()) for _ in range(3)} == {id(first), id(shared), id(last)}
    assert not clock._free


def test_the_end_of_a_backward_begins_the_exchange_on_a_gpu_too(tmp_path):
    """One event is put into both; times must be right after events are used again."""
    clock, _, moment = cuda_clock()
    rec = Recorder(tmp_path, every=1, flush_s=3600, clock=clock)
    exchange = TailExchange(rec, lambda: True)
    passes = Passes(rec, torch.nn.Linear(2, 2), exchange)
    for number in range(3):
        with rec.step(number):
            backward = rec.launch("backward-compute", 0)
            moment[0] += 20_000_000
            exchange.gradient()
            moment[0] += 5_000_000
            passes._end_backward(backward, False)
            with rec.op("optimizer"):
                moment[0] += 7_000_000
        rec._writer._flush()
    rec.close()
    (file,) = read_files(tmp_path)
    took = (file.ops["end_ns"] - file.ops["start_ns"]).reshape(3, 3)
    np.testing.assert_allclose(took, [[20_000_000, 5_000_000, 7_000_000]] * 3, atol=1000)


def test_a_wait_for_data_is_no_compute_on_a_gpu_too(tmp_path, monkeypatch):
    """Its two events are used again as well."""
    clock, _, moment = cuda_clock()
    monkeypatch.setattr(data_loading, "_recorder", None)
    rec = Recorder(tmp_path, every=1, flush_s=3600, clock=clock)
    data_loading.instrument(rec)

    def slow():
        while True:
            moment[0] += 30_000_000
            yield 1

    data, made = data_loading.batches(slow()), []
    for number in range(4):
        with rec.step(number), rec.op("forward-compute", 0):
            next(data)
            moment[0] += 20_000_000
        rec._writer._flush()
        made.append(Event.made)
    rec.close()
    (file,) = read_files(tmp_path)
    took = file.ops["end_ns"] - file.ops["start_ns"]
    np.testing.assert_allclose(took, [20_000_000] * 4, atol=2000)
    assert made[0] == made[-1]


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_said():
    told = {}

    class Group(Wires):
        def new_group(self, **given):
            told.update(given)

    Exchange(Group(0, 2, {}), HostClock(), timeout_s=5.0)
    assert told["timeout"].total_seconds() == 5


def test_a_work_is_timed_by_a_stream_that_waits_for_it():
    clock, _, moment = cuda_clock()
    moment[0] = 1_000_000
    waited = []
    work = types.SimpleNamespace(wait=lambda: waited.append(True))
    mark = clock.after(work, 2)
    assert waited == [True]
    assert clock.resolve(mark) == pytest.approx(1_000_000, abs=200)


def test_a_step_waits_for_the_gpu_in_the_writer_not_in_the_loop(tmp_path):
    clock, gpu, moment = cuda_clock()
    rec = Recorder(tmp_path, every=1, flush_s=3600, clock=clock)
    gpu.busy = True  # the GPU is behind the host: no event has passed
    marks = []
    for number in range(2):
        with rec.step(number) as step, rec.op("forward-compute", 0) as op:
            moment[0] += 3_000_000
            work = types.SimpleNamespace(wait=lambda: None)
            send = rec.launch("forward-send", 0)
            send.track(work).wait()
            assert send.end is not None  # on the stream, before anybody waits
        marks.append([step.start, step.end, *(m for o in step.ops for m in (o.start, o.end))])
        assert op.end is not None
    rec._writer._flush()
    assert rec._writer.path.stat().st_size == 0 or not read_file(rec._writer.path).blocks
    for mark in marks[0]:
        mark.passed = True
    rec._writer._flush()
    kinds = [kind for kind, _ in read_file(rec._writer.path).blocks]
    assert kinds == [PROGRAM, TIMES]
    for mark in marks[1]:
        mark.passed = True
    rec.close()
    (file,) = read_files(tmp_path)
    assert file.steps.tolist() == [0, 1]
    took = (file.ops["end_ns"] - file.ops["start_ns"])[file.ops["kind"] == 0]
    # The launch and the wait cut the forward, the GPU had come to its end by then.
    np.testing.assert_allclose(took, [3_000_000, 0, 0] * 2, atol=1000)
