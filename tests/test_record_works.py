"""Works that a framework keeps to itself, and how the recorder sees their waits."""

import time

import pytest

import paceline.record as record
from paceline.blockfile import LATE, PEER_END
from paceline.record import works as module
from paceline.record.works import Works
from paceline.trace import OpKind

K = OpKind


class Work:
    def __init__(self, complete=False):
        self.complete, self.waits = complete, 0

    def wait(self):
        self.waits += 1
        return "answer"

    def is_completed(self):
        return self.complete


class Coalesced:
    def __init__(self, *works):
        self.works = list(works)

    def wait(self):
        for work in self.works:
            work.wait()


@pytest.fixture
def recorder(tmp_path):
    with record.start(tmp_path / "run", every=1, device="cpu") as rec:
        yield rec


def test_a_wait_is_seen_and_the_work_stays_itself(recorder, monkeypatch):
    monkeypatch.setattr(module, "BLOCKED_NS", 0)
    works, work = Works(recorder), Work()
    with recorder.step(0) as step, recorder.op("forward-compute", 0):
        op = recorder.launch("params-all-gather")
        works.watch(work, op)
        assert works.is_watched(work)
        assert work.wait() == "answer"
    assert type(work) is Work
    assert (work.waits, works.is_watched(work)) == (1, False)
    assert [(K(o.kind).label, o.issued, o.awaited) for o in step.ops] == [
        ("forward-compute", 0, -1),
        ("params-all-gather", 1, 2),
        ("forward-compute", 2, -1),
        ("forward-compute", 3, -1),
    ]
    assert not op.flags & LATE


def test_a_work_that_was_over_has_a_late_end(recorder, monkeypatch):
    monkeypatch.setattr(module, "BLOCKED_NS", 0)
    works, both = Works(recorder), Coalesced(Work(complete=True), Work(complete=True))
    with recorder.step(0):
        op = recorder.launch("grads-reduce-scatter")
        works.watch(both, op)
        both.wait()
    assert op.flags == LATE
    assert [work.waits for work in both.works] == [1, 1]


class Copying:
    """Of gloo's reduce-scatter: copies its result when it is waited for, and tells nothing."""

    def wait(self):
        time.sleep(0.002)

    def is_completed(self):
        return False


def test_a_wait_that_takes_as_long_as_copying_has_not_blocked(recorder):
    works, ends = Works(recorder), []
    with recorder.step(0):
        for copied in (0, 1024, 4_000_000):  # the latter takes up to 20 ms
            op, work = recorder.launch("grads-reduce-scatter"), Copying()
            works.watch(work, op, copied=copied)
            work.wait()
            ends.append(op.flags)
    assert ends == [0, 0, LATE]


def test_what_nobody_waits_for_does_not_cost_the_step(recorder, tmp_path):
    works, send, gather = Works(recorder), Work(), Work()
    with recorder.step(0) as step:
        sent, gathered = recorder.launch("forward-send", 0), recorder.launch("params-all-gather")
        works.watch(send, sent)
        works.watch(gather, gathered)
    assert sent.end == gathered.end == step.end
    assert (sent.flags, gathered.flags) == (PEER_END | LATE, LATE)
    assert sent.awaited == gathered.awaited == -1
    with recorder.step(1) as following:
        gather.wait()  # of the step before
    assert following.ops == []
    assert gathered.end == step.end
    recorder.close()
    from paceline.sources.recording.files import read_files

    (file,) = read_files(tmp_path / "run")
    assert (file.steps.tolist(), file.dropped) == ([0, 1], (0, 0))


def test_a_tracked_send_that_nobody_waits_for_does_not_cost_the_step(recorder):
    with recorder.step(0) as step:
        sent, received = recorder.launch("forward-send", 0), recorder.launch("forward-recv", 0)
        sent.track(Work())
        received.track(Work())
    assert (sent.end, sent.flags, sent.awaited) == (step.end, PEER_END | LATE, -1)
    assert received.end is None  # nothing tells its end, here or at the peer's


def test_a_recorder_that_failed_leaves_works_alone(recorder, monkeypatch):
    works, work = Works(recorder), Work()
    with recorder.step(0):
        recorder.fail(ValueError("disk"))
        works.watch(work, recorder.launch("forward-send", 0))
        assert work.wait() == "answer"
    monkeypatch.setattr(recorder, "after", lambda *_: 1 / 0)
    with recorder.step(1):
        works.watch(work, recorder.launch("forward-send", 0))
    assert work.waits == 1
