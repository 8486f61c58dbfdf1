"""PyTorch profiles of data-parallel ranks on the host: launches, waits, and what S they give."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import host_profiles
import paceline
from host_profiles import (
    UNITS,
    Host,
    backward,
    copy_out,
    ddp,
    forward,
    fsdp,
    gather,
    hsdp,
    run,
    stepped,
    write,
)
from import_files import load
from paceline.diagnose import diagnose
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.sources import kineto
from paceline.trace import OpKind, Trace

K = OpKind
LETTERS = {K.FORWARD_COMPUTE: "F", K.BACKWARD_COMPUTE: "B", K.PARAMS_ALL_GATHER: "g"}
LETTERS |= {K.GRADS_REDUCE_SCATTER: "s", K.OPTIMIZER: "o"}
LETTERS |= {K.SEPARATE_GRADS_ALL_REDUCE: "a", K.EXPERT_COMM: "e"}
SLOW, LEVEL, HEALTHY = (1.0, 2.0, 1.0, 1.0), (1.25,) * 4, (1.0,) * 4


def program_of(trace: Trace, step: int = 0, dp: int = 0) -> tuple[str, dict[int, int]]:
    """The ops of a worker's step in the order of its program; communication -> its wait."""
    assert trace.program is not None
    rows = np.flatnonzero((trace.step == trace.steps[step]) & (trace.dp == dp))
    rows = rows[np.argsort(trace.program.issued[rows])]
    assert trace.program.issued[rows].tolist() == list(range(len(rows)))
    letters = "".join(LETTERS[K(kind)] for kind in trace.kind[rows])
    awaited = trace.program.awaited[rows].tolist()
    return letters, {at: wait for at, wait in enumerate(awaited) if letters[at] in "gs"}


def seconds_of(hosts: Sequence[Host]) -> float:
    return max(host.now for host in hosts) * 1e-3


@pytest.mark.parametrize(
    "step",
    [
        *(ddp, partial(ddp, between=["barrier"]), partial(ddp, between=["alltoall_base_"] * 2)),
        *(fsdp, partial(fsdp, microbatches=2), hsdp),
    ],
)
@pytest.mark.parametrize("transfer_ms", [1.0, 15.0])
def test_s_is_that_of_the_program(tmp_path: Path, step: Callable, transfer_ms: float) -> None:
    """Truth: the same program on ranks that share the same work evenly."""
    slow, level, healthy = (run(stepped(step), f, transfer_ms) for f in (SLOW, LEVEL, HEALTHY))
    measured = from_trace(kineto.read(write(slow, tmp_path)).trace)
    result = paceline.analyze(measured)
    truth = seconds_of(slow) / seconds_of(level)
    assert result.slowdown == pytest.approx(truth, rel=0.02)
    assert result.discrepancy < 0.01
    assert result.replay_error < 0.01
    findings = diagnose(measured, result).findings
    assert [(f.cause, f.where) for f in findings[:1]] == [("worker", {"workers": [[1, 0]]})]
    measured = from_trace(kineto.read(write(healthy, tmp_path)).trace)
    result = paceline.analyze(measured)
    assert result.lasting.slowdown == pytest.approx(1.0, abs=0.005)
    assert diagnose(measured, result).findings == ()


def tensor_parallel(host: Host) -> Iterator[int]:
    """Sums within the forward, each awaited at once."""
    for _ in range(UNITS):
        forward(host)
        yield host.launch("allreduce_")
        host.now += 0.02
    backward(host)


@pytest.mark.parametrize("late_ms", [0.3, 5.0])
def test_an_end_that_gloo_recorded_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_ms: float
) -> None:
    """A thread of gloo is held up on one rank, between the end of a sum and its record."""
    hosts = run(stepped(tensor_parallel), SLOW, 5.0)

    def waits() -> dict[int, int]:
        return program_of(kineto.read(write(hosts, tmp_path)).trace)[1]

    exact = waits()
    assert exact == {1: 1, 3: 3, 5: 5}
    runs = [event for event in hosts[2].events if event["name"] == "gloo:all_reduce"]
    runs[1]["dur"] += late_ms * 1e3
    assert (waits() == exact) == (late_ms < 1)
    monkeypatch.setattr(kineto.waits, "EARLY_SHARE", 0.0)
    assert waits() != exact


def test_buckets_of_ddp(tmp_path: Path) -> None:
    """All are awaited behind the last gradient, also those that are over long before."""
    paths = write(run(stepped(ddp), SLOW, 1.0), tmp_path)
    imported = kineto.read(paths)
    letters, waits = program_of(imported.trace)
    assert letters == "FBsBsBsBo"
    assert waits == {2: 7, 4: 7, 6: 7}
    assert imported.unplaced == {}
    backward = imported.trace.kind == K.BACKWARD_COMPUTE
    lengths = (imported.trace.end - imported.trace.start)[backward & (imported.trace.dp == 1)]
    assert lengths[:3] == pytest.approx([0.08] * 3, rel=0.02)


def test_units_of_fsdp(tmp_path: Path) -> None:
    trace = kineto.read(write(run(stepped(fsdp), SLOW, 2.0), tmp_path)).trace
    letters, waits = program_of(trace)
    # Gathers, each awaited at once; the last scatter is launched behind the last gradient.
    assert letters == "FgF" + "gF" * (UNITS - 1) + "BgBgBsBgBsBsBo"
    assert waits == {at: at for at in waits}
    gathers = trace.kind == K.PARAMS_ALL_GATHER
    assert trace.program is not None
    assert trace.program.part[gathers][:5].tolist() == [0, 1, 2, 2, 1]


def prefetching(host: Host):
    """Each gather is launched before the layer in front of it, and awaited behind it."""
    work = yield from gather(host, 0, blocks=False)
    for unit in range(UNITS):
        following = None
        if unit + 1 < UNITS:
            following = yield from gather(host, unit + 1, blocks=False)
        yield work
        copy_out(host, unit)
        forward(host)
        work = following
    for _ in range(UNITS):
        host_profiles.backward(host)


def test_groups_of_hybrid_sharding(tmp_path: Path) -> None:
    trace = kineto.read(write(run(stepped(hsdp), SLOW, 2.0), tmp_path)).trace
    letters, _ = program_of(trace)
    assert letters == "FgF" + "gF" * (UNITS - 1) + "BgBgBsBaBgBsBaBsBaBo"
    assert trace.program is not None
    assert trace.program.group is not None
    groups = {
        (int(dp), LETTERS[K(kind)]): int(group)
        for dp, kind, group in zip(trace.dp, trace.kind, trace.program.group, strict=True)
        if group >= 0
    }
    shards = {(dp, kind): dp // 2 * 2 for dp in range(4) for kind in "gs"}
    assert groups == shards | {(dp, "a"): dp % 2 for dp in range(4)}


def test_hybrid_sharding_of_other_names_is_refused(tmp_path: Path) -> None:
    hosts = run(stepped(hsdp), HEALTHY, 2.0)
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]
    for path in write(hosts, tmp_path, groups):
        path.write_text(path.read_text().replace("mesh_shard", "mesh_inner"))
    named = (
        r"some of the groups mesh_replicate \(2\), mesh_inner \(2\), and gloo does not say in which"
    )
    with pytest.raises(TraceError, match=named):
        kineto.read(sorted(tmp_path.glob("rank*.json")))


def test_groups_of_some_ranks_beside_ddp_are_refused(tmp_path: Path) -> None:
    """As of tensor parallelism: its sums cannot be told from those of gradients."""
    hosts = run(stepped(ddp), HEALTHY, 2.0)
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]
    groups.append({"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [0, 1]})
    paths = write(hosts, tmp_path, groups)
    with pytest.raises(
        TraceError, match=r"its collectives run in some of the groups mesh_tp \(2\)"
    ):
        kineto.read(paths)


def test_a_sum_beside_hybrid_sharding_is_refused(tmp_path: Path) -> None:
    """Of the loss, say: gloo does not tell whether all ranks took part."""

    def with_loss(host: Host):
        yield from hsdp(host)
        yield host.launch("allreduce_")

    with pytest.raises(TraceError, match="allreduce was called outside of FSDP's ranges"):
        kineto.read(write(run(stepped(with_loss), HEALTHY, 2.0), tmp_path))


def test_a_gather_that_nobody_waits_for_is_needed_where_fsdp_copies_it(tmp_path: Path) -> None:
    trace = kineto.read(write(run(stepped(prefetching), HEALTHY, 5.0), tmp_path)).trace
    letters, waits = program_of(trace)
    # Of the first everybody waits for the end; the others are over before their layers begin.
    assert (letters, waits) == ("FgFgFFgFFFBo", {1: 4, 3: 7, 6: 8})


def test_an_end_within_an_operator_is_no_wait(tmp_path: Path) -> None:
    """Every bucket but the last ends while the next layer computes, on all ranks."""
    trace = kineto.read(write(run(stepped(ddp), HEALTHY, 25.0), tmp_path)).trace
    assert program_of(trace) == ("FBsBsBsBo", {2: 7, 4: 7, 6: 7})


def test_a_barrier_in_front_is_no_compute(tmp_path: Path) -> None:
    """The slow rank comes late to the next step's; the others' forwards begin behind it."""
    trace = kineto.read(write(run(stepped(ddp), SLOW, 1.0), tmp_path)).trace
    forwards = (trace.kind == K.FORWARD_COMPUTE) & (trace.dp == 0)
    lengths = (trace.end - trace.start)[forwards]
    assert lengths == pytest.approx([0.0604] * 3, rel=0.02)


def test_operators_of_gloos_threads_are_none_of_a_pass(tmp_path: Path) -> None:
    hosts = run(stepped(fsdp), SLOW, 2.0)
    plain = kineto.read(write(hosts, tmp_path)).trace
    for host in hosts:
        for event in [e for e in host.events if e["name"] == "gloo:all_reduce"]:
            inner = {"name": "aten::copy_", "cat": "cpu_op", "dur": event["dur"] / 2}
            host.events.append(event | inner)
    trace = kineto.read(write(hosts, tmp_path)).trace
    np.testing.assert_array_equal(trace.start, plain.start)
    np.testing.assert_array_equal(trace.end, plain.end)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_an_update_between_two_backwards_is_part_of_neither(tmp_path: Path, factor: float) -> None:
    """As of two models that train in turns, however slow a rank is."""

    def in_turns(host: Host) -> Iterator[int]:
        yield from ddp(host)
        began = host.now
        host.op("aten::add_", 0.5)
        host.annotation("Optimizer.step#SGD.step", began)
        yield from ddp(host)

    paths = write(run(stepped(in_turns), (1.0, factor, 1.0, 1.0), 1.0), tmp_path)
    letters, _ = program_of(kineto.read(paths).trace, dp=1)
    assert letters == "FBsBsBsB" * 2 + "o"


def test_what_one_rank_waits_for_alone_is_refused(tmp_path: Path) -> None:
    paths = write(run(stepped(partial(ddp, between=["gather_"])), HEALTHY, 1.0), tmp_path)
    with pytest.raises(TraceError, match="a gather between a step's passes, in which not"):
        kineto.read(paths)


def test_a_step_that_is_refused_may_be_left_out(tmp_path: Path) -> None:
    steps = iter([["gather_"]] * 4 + [[]] * 8)  # the first of three steps of each rank

    def step(host: Host) -> Iterator[int]:
        yield from ddp(host, between=next(steps))

    paths = write(run(stepped(step), HEALTHY, 1.0), tmp_path)
    with pytest.raises(TraceError, match="leave such steps out with --steps"):
        kineto.read(paths)
    assert kineto.read(paths, steps=frozenset((1, 2))).trace.n_steps == 2


def test_exchanges_of_experts(tmp_path: Path) -> None:
    paths = write(run(stepped(partial(ddp, between=["alltoall_base_"])), SLOW, 1.0), tmp_path)
    letters, _ = program_of(kineto.read(paths).trace)
    assert letters == "FeFeFe" + "BsBsBsBo"


def test_a_rank_with_another_program_is_refused(tmp_path: Path) -> None:
    paths = write(run(stepped(ddp), HEALTHY, 1.0), tmp_path)
    value = load(paths[2])
    renamed = [e for e in value["traceEvents"] if e["name"] == "c10d::allreduce_"][1::3]
    for event in renamed:
        event["name"] = "c10d::_allgather_base_"
    ranged = [e for e in value["traceEvents"] if e["name"] == "gloo:all_reduce"][1::3]
    for event in ranged:
        event["name"] = "gloo:all_gather"
    host_profiles.dump(value, paths[2])
    expected = (
        r"rank 2 ran another program than most ranks: its mark 4 of a step is the launch of "
        r"params-all-gather, theirs the launch of grads-reduce-scatter"
    )
    with pytest.raises(TraceError, match=expected):
        kineto.read(paths)


def test_a_profile_without_launches_says_what_to_switch_on(tmp_path: Path) -> None:
    paths = write(run(stepped(ddp), HEALTHY, 1.0), tmp_path)
    for path in paths:
        value = load(path)
        events = [e for e in value["traceEvents"] if not e["name"].startswith(("c10d", "gloo"))]
        host_profiles.dump(value | {"traceEvents": events}, path)
    with pytest.raises(TraceError, match=r"no c10d:: operator .* profile with ProfilerActivity"):
        kineto.read(paths)


def test_a_step_with_a_forward_only_is_refused(tmp_path: Path) -> None:
    paths = write(run(stepped(ddp), HEALTHY, 1.0), tmp_path)
    value = load(paths[0])
    last = [e for e in value["traceEvents"] if e["name"].startswith("autograd::")][-UNITS * 2 :]
    events = [e for e in value["traceEvents"] if e not in last]
    host_profiles.dump(value | {"traceEvents": events}, paths[0])
    with pytest.raises(TraceError, match=r"step 2: 0 forwards, 0 backwards"):
        kineto.read(paths)
