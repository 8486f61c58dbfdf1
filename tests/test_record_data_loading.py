"""What the recorder counts as a wait for data."""

from __future__ import annotations

import copy
import sys
import threading
import types
from contextlib import contextmanager

import pytest

import paceline
import paceline.record as record
from paceline.record import data_loading
from paceline.record.recorder import Recorder
from recordings import SetClock

MS = 1_000_000


class Loader:
    """Stands for a library's iterator of a data loader."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __next__(self):
        batch = next(self.batches)
        return next(batch) if isinstance(batch, Loader) else batch


class Sized:
    """A loader that iterates anew each time."""

    def __init__(self, n):
        self.n, self.epoch = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(range(self.n))


class Stumbling:
    """An iterator that raises once and goes on."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at == 2:
            raise OSError("a shard is gone")
        return self.at


@pytest.fixture
def ticks(monkeypatch):
    """Each wait takes 1 ms: its begin and its end are two ticks."""
    clock = iter(range(0, 10**12, MS))
    monkeypatch.setattr(data_loading, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(data_loading, "_recorder", None)


def module(monkeypatch, name, cls, methods=None):
    """An imported library with one class."""
    methods = {"__next__": Loader.__next__} if methods is None else methods
    library = types.ModuleType(name)
    setattr(library, cls, type(cls, (Loader,), methods))
    monkeypatch.setitem(sys.modules, name, library)
    return getattr(library, cls)


@pytest.fixture
def torch_loader(monkeypatch, ticks):
    return module(monkeypatch, "torch.utils.data.dataloader", "_BaseDataLoaderIter")


def start(folder, clock=None, **options):
    rec = Recorder(folder, every=1, given={"rank": 0, "world": 1, "dp": 1}, clock=clock, **options)
    data_loading.instrument(rec)
    return rec


def step(rec, number, body):
    with rec.step(number):
        body()
        with rec.op("forward-compute", 0):
            pass


def waits_ms(rec, folder):
    rec.close()
    return [round(wait * 1e3, 9) for wait in paceline.load(folder).data_wait_s.ravel().tolist()]


def test_the_recorder_measures_the_waits_of_the_training_thread(tmp_path, torch_loader):
    """A loader within a loader counts once; those of other threads do not count."""
    rec = start(tmp_path)

    def body():
        assert next(torch_loader([torch_loader([7])])) == 7
        assert next(torch_loader([8])) == 8
        other = threading.Thread(target=lambda: next(torch_loader([9])))
        other.start()
        other.join()

    for number in range(2):
        step(rec, number, body)
    with pytest.raises(StopIteration):
        next(torch_loader([]))
    assert waits_ms(rec, tmp_path) == [2, 2]


def test_a_job_whose_loader_is_not_known_has_no_waits(tmp_path, torch_loader):
    """Torch is there, but the loop takes its batches elsewhere."""
    rec = start(tmp_path)
    step(rec, 0, lambda: next(iter(range(3))))
    rec.close()
    assert not rec.measures_data
    assert paceline.load(tmp_path).data_wait_s is None


@pytest.mark.parametrize(
    "place",
    [
        ("torchdata.nodes.loader", "LoaderIterator"),
        ("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),
        ("nvidia.dali.plugin.pytorch", "DALIRaggedIterator"),
        ("grain._src.python.data_loader", "DataLoaderIterator"),
    ],
)
def test_a_library_that_is_imported_later_is_measured_then(tmp_path, monkeypatch, ticks, place):
    """From the end of the next profiled step on, its iterators of before, too."""
    rec = start(tmp_path)
    step(rec, 0, lambda: None)
    iterator = module(monkeypatch, *place)(range(9))
    for number in range(1, 4):
        step(rec, number, lambda: next(iterator))
    rec.close()
    waits = paceline.load(tmp_path).data_wait_s.ravel().tolist()
    assert waits[2:] == [0.001, 0.001]


def test_a_context_around_the_wait_is_measured(tmp_path, monkeypatch, ticks):
    """Ray Data has one."""
    entered = []

    @contextmanager
    def context(self):
        entered.append(self)
        yield

    name = "ray.data._internal.block_batching.iter_batches"
    batches = module(monkeypatch, name, "BatchIterator", {"get_next_batch_context": context})([])
    rec = start(tmp_path)

    def body():
        with batches.get_next_batch_context():
            pass

    step(rec, 0, body)
    assert entered == [batches]
    assert waits_ms(rec, tmp_path) == [1]


def test_the_line_measures_a_generator(tmp_path, ticks):
    rec = start(tmp_path)
    data = record.batches(batch for batch in "abcd")
    step(rec, 0, lambda: next(data))
    step(rec, 1, lambda: [next(data), next(data)])
    step(rec, 2, lambda: None)
    assert waits_ms(rec, tmp_path) == [1, 2, 0]
    assert list(data) == ["d"]


def test_the_line_around_a_measured_loader_counts_once(tmp_path, torch_loader):
    rec = start(tmp_path)
    data = record.batches(record.batches(torch_loader([1, 2])))
    step(rec, 0, lambda: next(data))
    assert waits_ms(rec, tmp_path) == [1]


def test_the_line_in_another_thread_counts_nothing(tmp_path, ticks):
    rec = start(tmp_path)
    data, got = record.batches(iter("ab")), []

    def body():
        other = threading.Thread(target=lambda: got.append(next(data)))
        other.start()
        other.join()

    step(rec, 0, body)
    rec.close()
    assert got == ["a"]
    assert not rec.measures_data


def test_the_line_before_the_recorder_starts_measures_from_its_start_on(tmp_path, ticks):
    data = record.batches(iter("abc"))
    assert next(data) == "a"
    rec = start(tmp_path)
    step(rec, 0, lambda: next(data))
    assert waits_ms(rec, tmp_path) == [1]
    assert next(data) == "c"
    assert rec.data_ns == 0  # it is closed


def test_an_exception_goes_on_and_so_does_the_iterator(tmp_path, ticks):
    rec = start(tmp_path)
    data = record.batches(Stumbling())

    def body():
        assert next(data) == 1
        with pytest.raises(OSError, match="a shard is gone"):
            next(data)
        assert next(data) == 3

    step(rec, 0, body)
    assert not rec.waits_for_data
    assert waits_ms(rec, tmp_path) == [3]


def test_a_loop_that_breaks_closes_the_generator():
    closed = []

    def batches():
        try:
            yield from range(9)
        finally:
            closed.append(True)

    for batch in record.batches(batches()):
        if batch == 2:
            break
    assert closed == [True]


def test_length_attributes_and_truth_are_the_loaders():
    loader = Sized(3)
    data = record.batches(loader)
    assert (len(data), list(data), list(data), bool(data)) == (3, [0, 1, 2], [0, 1, 2], True)
    assert not record.batches([])
    data.epoch = 5
    assert (loader.epoch, data.epoch, data.n) == (5, 5, 3)
    assert copy.deepcopy(data).epoch == 5
    with pytest.raises(AttributeError, match="'Sized' object has no attribute 'sampler'"):
        _ = data.sampler
    unsized = record.batches(iter("ab"))
    assert iter(unsized) is unsized
    assert bool(unsized)
    with pytest.raises(TypeError, match="has no len"):
        len(unsized)


def test_a_wait_in_a_compute_block_is_no_compute(tmp_path, ticks):
    """``forward_step`` loads for 30 ms within 50: it computes for 20, and begins 30 ms later."""
    clock = SetClock()
    rec = start(tmp_path, clock, flush_s=60)

    def batches():
        while True:
            clock.t += 30 * MS
            yield 1

    data = record.batches(batches())
    for number in range(2):
        with rec.step(number):
            with rec.op("forward-compute", 0):
                clock.t += 5 * MS
                next(data)
                clock.t += 15 * MS
            with rec.op("backward-compute", 0):
                clock.t += 40 * MS
    rec.close()
    trace = paceline.load(tmp_path)
    forward = trace.kind == paceline.OpKind.FORWARD_COMPUTE
    assert (trace.end - trace.start)[forward] == pytest.approx([0.020, 0.020])
    assert (trace.end - trace.start)[~forward] == pytest.approx([0.040, 0.040])
    assert len(trace.kind) == 4  # nothing is cut, so a rank that loads nothing has the same program


def test_a_wait_in_other_blocks_changes_nothing(tmp_path, ticks):
    clock = SetClock()
    rec = start(tmp_path, clock, flush_s=60)
    data = record.batches(iter([1]))
    with rec.step(0):
        with rec.op("grads-reduce-scatter"):
            clock.t += 10 * MS
            next(data)
        with rec.op("optimizer"):
            clock.t += 5 * MS
    rec.close()
    trace = paceline.load(tmp_path)
    assert (trace.end - trace.start).tolist() == pytest.approx([0.010, 0.005])
