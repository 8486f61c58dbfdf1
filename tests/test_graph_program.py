"""The graph of recorded programs against an event simulator that knows programs only."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline.simulate as simulate
from paceline.errors import GraphError
from paceline.graph import Durations, from_trace
from paceline.simulate import Rules, all_lanes, ends, step_times
from paceline.trace import OpKind
from paceline.whatif import analyze
from paceline.whatif.ideal import reference
from program_jobs import (
    Compute,
    DeadlockError,
    Launch,
    Run,
    Spec,
    Wait,
    programs_of,
    random_run,
    trace_of_runs,
)

MANY = settings(max_examples=120, deadline=None, derandomize=True)
FEW = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def specs(draw, wild=False):
    n_dp, pp = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    units, peers = draw(st.integers(0, 3)), draw(st.sampled_from((1, 1, 2, 3, 4)))
    n = draw(st.integers(1, 4))
    # Gathers and scatters come with each microbatch: then all replicas have as many.
    own = st.lists(st.integers(1, 4), min_size=n_dp, max_size=n_dp).map(tuple)
    microbatches = (n,) * n_dp * peers if units or peers > 1 else draw(own)
    return Spec(
        pp=pp,
        microbatches=microbatches,
        units=units,
        ahead=draw(st.integers(0, 3)),
        buckets=0 if units else draw(st.integers(0, 3)),
        one_by_one=draw(st.booleans()),
        clip=draw(st.booleans()),
        embedding=draw(st.booleans()),
        pauses=draw(st.booleans()),
        wild=wild,
        peers=peers,
        layers=draw(st.integers(1, 2)) if peers > 1 else 0,
        ring=peers in (2, 4) and draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )


def measured_of(runs, seed=0, base_s=0.0):
    trace = trace_of_runs(runs, shuffle=random.Random(seed), base_s=base_s)
    return from_trace(trace, keep_clocks=True)


def by_op(measured, table):
    """(step, dp, pp, kind, seq) -> value."""
    graph, values = measured.graph, {}
    for op in range(graph.n_ops):
        place = (int(graph.pp[op]), OpKind(int(graph.kind[op])).label, int(graph.seq[op]))
        row, dps = table.row(op), graph.variant_dps[int(graph.variant[op])]
        for s, step in enumerate(measured.steps.tolist()):
            for k, dp in enumerate(dps.tolist()):
                values[step, dp, *place] = float(row[s, k])
    return values


def of_runs(runs, name):
    return {
        (step, row["dp"], row["pp"], row["kind"], row["seq"]): row[name]
        for step, run in enumerate(runs)
        for row in run.rows
    }


def assert_alike(values, expected):
    assert values.keys() == expected.keys()
    apart = {key: (values[key], expected[key]) for key in values}
    table = np.array(list(apart.values()))
    worst = int(np.argmax(np.abs(table[:, 0] - table[:, 1])))
    np.testing.assert_allclose(
        table[:, 0], table[:, 1], rtol=0, atol=1e-9, err_msg=str(list(apart)[worst])
    )


def simulated(measured, durations=None, delays=None):
    durations = measured.durations if durations is None else durations
    graph = measured.graph
    rules = Rules.own(graph, delays is not None)
    return step_times(durations, rules, all_lanes(graph, durations.n_steps), delays)


def legal(spec):
    """Programs of a job, and two steps of it; None where its transfers block each other."""
    programs = programs_of(spec)
    try:
        return programs, [random_run(spec, programs, step) for step in range(2)]
    except DeadlockError:
        return None


def test_the_event_simulator_by_hand():
    """Gather 1 s before a compute of 2 s; the second gather waits for the first, 1 to 4 s."""
    program = [
        Launch("params-all-gather", "a"),
        Launch("params-all-gather", "b"),
        Wait("a"),
        Compute("forward-compute", 0, 0),
        Wait("b"),
        Compute("backward-compute", 0, 0),
    ]
    took = (1.0, 3.0, 2.0, 1.0)
    run = Run({(0, 0): program, (1, 0): program}, lambda key: took[key[2]] + (key == (1, 0, 2)))
    spans = {(r["dp"], r["kind"], r["seq"]): (r["start"], r["end"]) for r in run.rows}
    assert spans == {
        (dp, kind, seq): span
        for dp in (0, 1)
        for kind, seq, span in (
            ("params-all-gather", 0, (0.0, 1.0)),
            ("params-all-gather", 1, (0.0, 4.0)),
            ("forward-compute", 0, (1.0, 3.0 + dp)),
            ("backward-compute", 0, (4.0, 5.0)),
        )
    }
    assert [(r["issued"], r["awaited"]) for r in run.rows[:4]] == [(0, 1), (1, 2), (2, -1), (3, -1)]
    measured = measured_of([run])
    assert simulated(measured).tolist() == [5.0]
    assert_alike(by_op(measured, measured.durations), of_runs([run], "took"))


@MANY
@given(specs())
def test_random_programs_take_as_long_as_event_by_event(spec):
    job = legal(spec)
    if job is None:
        return
    programs, runs = job
    measured = measured_of(runs, spec.seed, base_s=1000.0)
    assert_alike(by_op(measured, measured.durations), of_runs(runs, "took"))
    assert not any(measured.clamped.values())
    replayed = simulated(measured, delays=measured.delays)
    assert replayed == pytest.approx([run.step_s for run in runs], abs=1e-9)

    undelayed = Spec(**(vars(spec) | {"pauses": False}))
    again = [random_run(undelayed, programs, step) for step in range(2)]
    assert simulated(measured) == pytest.approx([run.step_s for run in again], abs=1e-9)
    end = Durations.empty(measured.graph, 2)
    for first, some in ends(measured.durations):
        for v in range(measured.graph.n_variants):
            end.block(v)[:, first : first + some.n_steps] = some.block(v)
    assert_alike(by_op(measured, end), of_runs(again, "end"))


@FEW
@given(specs())
def test_other_durations_on_the_same_graph(spec):
    """Faster and slower workers: the graph holds for times that were not measured, too."""
    job = legal(spec)
    if job is None:
        return
    programs, runs = job
    measured = measured_of(runs, spec.seed)
    rng = random.Random(spec.seed)
    factors = {place: rng.choice((0.1, 1.0, 1.7, 9.0)) for place in programs}
    undelayed = Spec(**(vars(spec) | {"pauses": False}))
    again = [random_run(undelayed, programs, step, factors) for step in range(2)]
    scaled = Durations(measured.graph, 2, measured.durations.values.copy())
    for op in range(measured.graph.n_ops):
        dps = measured.graph.variant_dps[int(measured.graph.variant[op])]
        scaled.row(op)[:] *= [factors[dp, int(measured.graph.pp[op])] for dp in dps.tolist()]
    assert simulated(measured, scaled) == pytest.approx([run.step_s for run in again], abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_compiled_and_interpreted_programs_agree(seed, monkeypatch):
    spec = Spec(pp=2, microbatches=(3, 3, 3), units=3, one_by_one=True, clip=True, seed=seed)
    programs = programs_of(spec)
    runs = [random_run(spec, programs, step) for step in range(3)]
    measured = measured_of(runs)
    monkeypatch.setattr(simulate, "_worth_compiling", lambda *_: False)
    interpreted = simulated(measured)
    monkeypatch.setattr(simulate, "_worth_compiling", lambda *_: True)
    assert simulated(measured).tolist() == interpreted.tolist()
    assert interpreted == pytest.approx([run.step_s for run in runs], abs=1e-9)


def in_order_of_launch(programs):
    """Rows as if every op took 1 ms and nothing waited: programs that no run can end."""
    rows = []
    for (dp, pp), program in programs.items():
        issued, of_name, n_of_kind = 0, {}, {}
        for step in program:
            if isinstance(step, Wait):
                of_name[step.name]["awaited"] = issued - 1
                continue
            seq = n_of_kind[step.kind] = n_of_kind.get(step.kind, -1) + 1
            row = {"dp": dp, "pp": pp, "kind": step.kind, "issued": issued, "awaited": -1}
            row |= {"seq": seq, "chunk": -1, "microbatch": -1, "part": step.part}
            row |= {"start": issued / 1000, "end": (issued + 1) / 1000}
            if isinstance(step, Compute):
                row |= {"microbatch": step.microbatch, "chunk": step.chunk}
            else:
                of_name[step.name] = row
            rows.append(row)
            issued += 1
    return rows


@MANY
@given(specs(wild=True))
def test_a_circle_is_there_where_the_job_blocks_itself_and_nowhere_else(spec):
    programs = programs_of(spec)
    try:
        random_run(spec, programs, 0)
        blocks = False
    except DeadlockError:
        blocks = True
    trace = trace_of_runs([in_order_of_launch(programs)])
    if not blocks:
        from_trace(trace, keep_clocks=True)
        return
    with pytest.raises(GraphError, match=r"in a circle: .* waits for "):
        from_trace(trace, keep_clocks=True)


def test_a_circle_is_named_by_its_ops():
    """Both stages wait for what the other sends only afterwards."""
    first = [
        Compute("forward-compute", 0, 0),
        Launch("backward-recv", "r"),
        Wait("r"),
        Launch("forward-send", "s"),
        Compute("backward-compute", 0, 0),
    ]
    second = [
        Launch("forward-recv", "r"),
        Wait("r"),
        Compute("forward-compute", 0, 0),
        Compute("backward-compute", 0, 0),
        Launch("backward-send", "s"),
    ]
    programs = {(0, 0): first, (0, 1): second}
    with pytest.raises(DeadlockError):
        Run(programs, lambda key: 1.0)
    with pytest.raises(GraphError) as error:
        from_trace(trace_of_runs([in_order_of_launch(programs)]))
    for text in (
        "forward-send 0 of stage 0 waits for backward-recv 0 of stage 0",
        "forward-compute 0 of stage 1 waits for forward-recv 0 of stage 1",
        "backward-send 0 of stage 1 waits for backward-compute 0 of stage 1",
    ):
        assert text in str(error.value)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(specs())
def test_slowdowns_of_workers_are_those_of_event_by_event(spec):
    """S_w: everything ideal but one worker, run event by event."""
    spec = Spec(**(vars(spec) | {"pauses": False}))
    job = legal(spec)
    if job is None:
        return
    programs, runs = job
    measured = measured_of(runs, spec.seed)
    result = analyze(measured)
    ideal = reference(measured.durations).seconds
    table = Durations.empty(measured.graph, 2)
    for op in range(measured.graph.n_ops):
        table.row(op)[:] = ideal[op]
    usual = by_op(measured, table)
    name = {(r["dp"], r["pp"], r["issued"]): (r["kind"], r["seq"]) for r in runs[0].rows}
    took = of_runs(runs, "took")

    def mean_step_s(worker):
        def seconds(step):
            return lambda key: (took if key[:2] == worker else usual)[step, *key[:2], *name[key]]

        steps = [Run(programs, seconds(step), peers=spec.peers) for step in range(2)]
        return np.mean([run.step_s for run in steps])

    ideal_s = mean_step_s(None)
    for (pp, dp), slowdown in np.ndenumerate(result.by_worker):
        assert slowdown == pytest.approx(mean_step_s((dp, pp)) / ideal_s, abs=1e-9)


def test_communication_behind_the_last_compute():
    """A program that ends with a reduction behind the end of another kind: 1 + 2 + 3 s."""
    program = [
        Compute("forward-compute", 0, 0),
        Compute("backward-compute", 0, 0),
        Launch("grads-reduce-scatter", "s"),
        Wait("s"),
        Launch("params-all-gather", "g"),
    ]
    took = (0.5, 0.5, 2.0, 3.0)
    run = Run({(0, 0): program, (1, 0): program}, lambda key: took[key[2]])
    assert run.step_s == 6.0
    assert simulated(measured_of([run])).tolist() == [6.0]


def test_a_gather_starts_behind_the_last_of_its_queue_whatever_it_was_waited_behind():
    """Three gathers that start at once, numbered backwards; a fourth behind the first's wait."""
    gathers = [Launch("params-all-gather", n) for n in range(4)]
    program = [
        *gathers[:3],
        Wait(0),
        gathers[3],
        Compute("forward-compute", 0, 0),
        Wait(1),
        Wait(2),
    ]
    program += [Compute("forward-compute", 0, 0), Wait(3), Compute("backward-compute", 0, 0)]
    took = [1.0, 2.0, 3.0, 1.0, 4.0, 1.0, 1.0]
    run = Run({(dp, 0): program for dp in range(2)}, lambda op: took[op[2]])
    for row in run.rows:
        if row["kind"] == "params-all-gather" and row["seq"] < 3:
            row["seq"] = 2 - row["seq"]
    assert simulated(measured_of([run])) == pytest.approx([run.step_s], abs=1e-9)
