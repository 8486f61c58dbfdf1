"""What Megatron-Core's hooks record of launches and waits, on modules with its names (0.16.1)."""

import pytest

import paceline.record as record
from megatron_tree import Work, installed
from paceline.blockfile import LATE, PEER_END
from paceline.record.recorder import Recorder
from paceline.trace import OpKind

K = OpKind
FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"


@pytest.fixture
def megatron(monkeypatch):
    return installed(monkeypatch)


@pytest.fixture
def recorder(tmp_path):
    with record.start(tmp_path / "run", every=1, rank=1, world=2) as rec:
        yield rec


def forward(megatron, model=None, microbatch=0, received=None, chunk=None):
    output, _ = megatron["schedules"].forward_step(
        None, None, model, 3, received, [], None, 1, current_microbatch=microbatch, vp_stage=chunk
    )
    return output[0]


def communicate(link, **which):
    arguments = dict.fromkeys(("tensor_send_next", "tensor_send_prev", "tensor_shape"))
    arguments |= {"recv_prev": False, "recv_next": False, "wait_on_reqs": False, **which}
    return link._communicate(**arguments)


def model_of(megatron, buckets=2, overlap=True):
    return megatron["distributed_data_parallel"].DistributedDataParallel(None, buckets, overlap)


def program(step):
    return [(K(op.kind).label, op.part, op.issued, op.awaited) for op in step.ops]


def test_gathers_run_ahead_of_the_layers_that_wait_for_them(megatron, recorder):
    record.instrument_megatron()
    model = model_of(megatron)
    with recorder.step(0) as step:
        forward(megatron, model)
    assert program(step) == [
        (FORWARD, -1, 0, -1),
        (GATHER, 1, 1, 2),  # the first layers' bucket was filled last
        (FORWARD, -1, 2, -1),
        (FORWARD, -1, 3, -1),
        (GATHER, 0, 4, 5),
        (FORWARD, -1, 5, -1),
        (FORWARD, -1, 6, -1),
    ]
    assert not any(op.group != -1 for op in step.ops)


def test_gradients_are_reduced_beside_the_backward(megatron, recorder, monkeypatch):
    model = model_of(megatron)

    def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
        for group in model.bucket_groups:
            group.start_grad_sync()

    monkeypatch.setattr(megatron["schedules"], "backward_step", backward_step)
    record.instrument_megatron()
    with recorder.step(0) as step:
        output = forward(megatron, model)
        begun = len(step.ops)
        megatron["schedules"].backward_step(None, output, None, None, None)
        handles = [group.grad_reduce_handle for group in model.bucket_groups]
        assert [type(handle) for handle in handles] == [Work, Work]  # and nothing around it
        model.finish_grad_sync()
    assert [handle.waits for handle in handles] == [1, 1]
    assert [(kind, part, awaited) for kind, part, _, awaited in program(step)[begun:]] == [
        (BACKWARD, -1, -1),
        (SCATTER, 0, begun + 4),
        (BACKWARD, -1, -1),
        (SCATTER, 1, begun + 4),
        (BACKWARD, -1, -1),
    ]


def test_without_overlap_each_collective_is_awaited_at_once(megatron, recorder):
    record.instrument_megatron()
    model = model_of(megatron, overlap=False)
    with recorder.step(0) as step:
        megatron["schedules"].forward_backward_no_pipelining(
            forward_step_func=lambda _: None, model=model
        )
        model.finish_grad_sync()
        with recorder.op("optimizer"):
            model.start_param_sync()
    assert program(step) == [
        (SCATTER, 0, 0, 0),
        (SCATTER, 1, 1, 1),
        ("optimizer", -1, 2, -1),
        (GATHER, 0, 3, 3),
        ("optimizer", -1, 4, -1),
        (GATHER, 1, 5, 5),
        ("optimizer", -1, 6, -1),
    ]


def test_a_handle_that_is_not_the_manager_is_awaited(megatron, recorder):
    record.instrument_megatron()
    model, handle = model_of(megatron, buckets=1), type("Accumulated", (Work,), {})()
    (buckets,) = model.bucket_groups
    buckets.own_handle = handle  # as with fp32 accumulation
    with recorder.step(0) as step:
        buckets.start_grad_sync()
        assert buckets.grad_reduce_handle is handle
        model.finish_grad_sync()
    assert program(step) == [(SCATTER, -1, 0, 0)]
    assert handle.waits == 1


def test_what_the_last_step_gathered_is_recorded_where_it_is_awaited(megatron, recorder):
    record.instrument_megatron()
    model = model_of(megatron, buckets=1)
    with recorder.step(0) as before, recorder.op("optimizer"):
        model.start_param_sync(force_dispatch=True)
    assert program(before)[1] == (GATHER, -1, 1, -1)
    assert before.ops[1].flags == LATE
    with recorder.step(1) as step:
        forward(megatron, model)
    assert program(step) == [(FORWARD, -1, 0, -1), (GATHER, 0, 1, 1), (FORWARD, -1, 2, -1)]


def test_a_send_that_nobody_waits_for_does_not_cost_the_step(megatron, recorder, tmp_path):
    record.instrument_megatron()
    link = megatron["p2p_communication"].P2PCommunicator()
    with recorder.step(0) as step:
        received, _, requests = communicate(link, recv_prev=True)
        assert type(requests["recv_prev"]) is Work
        requests["recv_prev"].wait()
        output = forward(megatron, microbatch=2, received=received, chunk=1)
        _, gradient, requests = communicate(link, tensor_send_next=output, recv_next=True)
        requests["recv_next"].wait()
        megatron["schedules"].backward_step(None, output, gradient, None, None)
    assert requests["send_next"].waits == 0
    places = [(K(op.kind).label, op.microbatch, op.chunk, op.awaited) for op in step.ops]
    assert places == [
        ("forward-recv", 2, 1, 0),
        (FORWARD, 2, 1, -1),
        ("forward-send", 2, 1, -1),
        ("backward-recv", 2, 1, 3),
        (BACKWARD, 2, 1, -1),
    ]
    send = step.ops[2]
    assert (send.flags, send.end) == (PEER_END | LATE, step.end)
    recorder.close()
    from paceline.sources.recording.files import read_files

    (file,) = read_files(tmp_path / "run")
    assert (file.steps.tolist(), file.dropped) == ([0], (0, 0))


def test_batched_transfers_find_their_works_in_the_list(megatron, recorder):
    record.instrument_megatron()
    link = megatron["p2p_communication"].P2PCommunicator(batch_p2p_comm=True)
    with recorder.step(0) as step:
        output = forward(megatron)
        _, _, works = communicate(link, tensor_send_next=output, recv_prev=True)
        works[0].wait()  # the receive comes first
    assert [type(work) for work in works] == [Work, Work]
    assert program(step) == [
        (FORWARD, -1, 0, -1),
        ("forward-recv", -1, 1, 2),
        ("forward-send", -1, 2, -1),
    ]


def test_one_work_of_a_batch_stands_for_all(megatron, recorder, monkeypatch):
    monkeypatch.setattr(megatron["p2p_communication"], "_batched_p2p_ops", lambda **_: [Work()])
    record.instrument_megatron()
    link = megatron["p2p_communication"].P2PCommunicator(batch_p2p_comm=True)
    with recorder.step(0) as step:
        communicate(link, tensor_send_next=object(), recv_prev=True, wait_on_reqs=True)
    assert [awaited for *_, awaited in program(step)] == [1, 1]


@pytest.mark.parametrize("waits", [True, False])
def test_on_a_gpu_transfers_and_the_tail_of_the_exchange(megatron, recorder, monkeypatch, waits):
    monkeypatch.setattr(Recorder, "on_host", property(lambda self: False))
    after = []
    monkeypatch.setattr(recorder, "after", lambda work, _: after.append(work) or recorder.mark())
    record.instrument_megatron()
    link, model = megatron["p2p_communication"].P2PCommunicator(), model_of(megatron)
    with recorder.step(0) as step:
        output = forward(megatron, model)
        _, _, requests = communicate(link, tensor_send_next=output, wait_on_reqs=waits)
        for buckets in model.bucket_groups:
            buckets.start_grad_sync()
        model.finish_grad_sync()
    works = [] if waits else list(requests.values())
    assert [type(work) for work in works] == [Work] * (not waits)
    assert after == works  # a stream of ours waits for it: its end is known
    assert all(op.end is not None and not op.flags for op in step.ops)
    assert program(step) == [
        (FORWARD, -1, 0, -1),
        ("forward-send", -1, 1, 1 if waits else -1),
        (SCATTER, -1, 2, 2),
    ]
