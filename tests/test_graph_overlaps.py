"""Two computes of a worker at once: one node, with the truth of an event simulation of blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from jobs import trace_of
from paceline.diagnose import diagnose
from paceline.errors import GraphError
from paceline.graph import from_trace
from paceline.remedies import REMEDIES
from paceline.remedies.advise import propose_all
from paceline.remedies.remedy import Case
from paceline.remedies.replace import replace_worker
from paceline.trace import OpKind

K = OpKind
PP, DP, MICROBATCHES, STEPS = 4, 3, 10, 4
FORWARD_S, BACKWARD_S, TOGETHER = 0.05, 0.1, 0.85
TRANSFER_S, SCATTER_S, OPTIMIZER_S = 2e-3, 0.01, 0.01


def program(stage):
    """Forwards, then blocks of a forward and a backward, then backwards."""
    ahead = PP - stage
    rest = range(MICROBATCHES - ahead)
    return [
        *(("F", (k,)) for k in range(ahead)),
        *(("FB", (ahead + k, k)) for k in rest),
        *(("B", (k,)) for k in range(MICROBATCHES - ahead, MICROBATCHES)),
    ]


class Job:
    """Rows of the job by an event simulation that knows blocks and nothing of the step graph."""

    def __init__(self, slow=None, jitter=0.005, seed=0):
        self.slow, self.jitter = slow or {}, jitter
        self.rng = np.random.default_rng(seed)
        self.rows = []
        at = 0.0
        for step in range(STEPS):
            at = self._step(step, at)
        self.step_s = at / STEPS

    def row(self, step, dp, pp, kind, microbatch, start, end):
        seq = max(microbatch, 0)
        self.rows.append(
            {"step": step, "dp": dp, "pp": pp, "kind": kind, "seq": seq, "chunk": 0}
            | {"microbatch": microbatch, "start": start, "duration": end - start}
        )

    def _step(self, step, at):
        ends = np.array([self._replica(step, dp, at) for dp in range(DP)])
        last = ends.max(axis=0) + SCATTER_S
        for dp, pp in np.ndindex(DP, PP):
            self.row(step, dp, pp, "grads-reduce-scatter", -1, ends[dp, pp], last[pp])
            self.row(step, dp, pp, "optimizer", -1, last[pp], last[pp] + OPTIMIZER_S)
        return float(last.max()) + OPTIMIZER_S

    def _replica(self, step, dp, at):
        ends = {"F": {}, "B": {}}
        todo = [program(stage) for stage in range(PP)]
        free = [at] * PP
        while any(todo):
            for pp, blocks in enumerate(todo):
                if blocks and self._run(step, dp, pp, blocks[0], ends, free, at):
                    blocks.pop(0)
        return free

    def _run(self, step, dp, pp, block, ends, free, at):
        """A block starts when what each of its computes needs is there; False where it is not."""
        name, numbers = block
        of = dict(zip(name, numbers, strict=True))
        arrivals = {}
        for key, number in of.items():
            source = pp - 1 if key == "F" else pp + 1
            if 0 <= source < PP:
                if (source, number) not in ends[key]:
                    return False
                # The receive is issued behind the compute before it of its direction.
                issued = max(ends[key][source, number], ends[key].get((pp, number - 1), at))
                arrivals[key] = source, issued
        begin = max(free[pp], *(issued + TRANSFER_S for _, issued in arrivals.values()), at)
        alone = {"F": FORWARD_S, "B": BACKWARD_S, "FB": TOGETHER * (FORWARD_S + BACKWARD_S)}[name]
        noise = 1 + self.jitter * self.rng.standard_normal()
        free[pp] = end = begin + alone * self.slow.get((dp, pp), 1.0) * noise
        for key, number in of.items():
            label = "forward" if key == "F" else "backward"
            ends[key][pp, number] = end
            self.row(step, dp, pp, f"{label}-compute", number, begin, end)
            if key in arrivals:
                source, issued = arrivals[key]
                sent = ends[key][source, number]
                self.row(step, dp, source, f"{label}-send", number, sent, issued + TRANSFER_S)
                self.row(step, dp, pp, f"{label}-recv", number, issued, issued + TRANSFER_S)
        return True

    def trace(self):
        return trace_of(self.rows, paceline.Job(dp_size=DP, pp_size=PP, tp_size=1, vpp_size=1))


@pytest.fixture(scope="module")
def slow():
    return Job({(1, 2): 1.5})


def test_a_block_lasts_once_and_the_step_is_reproduced():
    job = Job()
    measured = from_trace(job.trace())
    result = paceline.analyze(measured)
    assert result.discrepancy < 0.005
    assert result.slowdown == pytest.approx(1, abs=0.02)
    assert np.max(result.by_worker) < 1.02
    doubt = next(doubt for doubt in measured.doubts if doubt.code == "computes-overlap")
    assert doubt.numbers["pairs"] == sum(MICROBATCHES - (PP - stage) for stage in range(PP))
    paired = measured.graph.paired
    seconds = measured.durations.array
    blocks = seconds[paired & (measured.graph.kind == K.FORWARD_COMPUTE)].mean()
    assert blocks == pytest.approx(TOGETHER * FORWARD_S, rel=0.02)
    assert diagnose(measured, result).findings == ()


@settings(max_examples=15)
@given(
    slow=st.dictionaries(
        st.tuples(st.integers(0, DP - 1), st.integers(0, PP - 1)), st.floats(0.5, 3.0), max_size=4
    ),
    jitter=st.floats(0.0, 0.2),
    seed=st.integers(0, 99),
)
def test_the_replay_is_exact(slow, jitter, seed):
    """Held to the event simulation; noise on blocks, none on transfers."""
    result = paceline.analyze(from_trace(Job(slow, jitter, seed).trace()))
    assert max(result.replay_error, result.discrepancy) < 1e-9


def test_the_slow_worker_and_what_its_repair_gains(slow):
    """Truth: the same job without it, by the event simulation."""
    measured = from_trace(slow.trace())
    result = paceline.analyze(measured)
    assert np.unravel_index(np.argmax(result.by_worker), (PP, DP)) == (2, 1)
    assert result.discrepancy < 0.005
    finding = diagnose(measured, result).findings[0]
    assert (finding.cause, finding.where) == ("worker", {"workers": [[1, 2]]})
    case = Case(measured, result, diagnose(measured, result))
    truth = 1 - Job().step_s / slow.step_s
    assert replace_worker(case).gain == pytest.approx(truth, abs=0.005)


def test_what_follows_one_follows_both(slow):
    """Sends of a block wait for its second compute, recvs hold up its first."""
    graph = from_trace(slow.trace()).graph
    after = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))

    def op(kind, number):
        chosen = (graph.kind == kind) & (graph.pp == 1) & (graph.microbatch == number)
        return int(np.flatnonzero(chosen)[0])

    def needs(number):
        return set(graph.dep[graph.dep_ptr[number] : graph.dep_ptr[number + 1]].tolist())

    forward, backward = op(K.FORWARD_COMPUTE, PP), op(K.BACKWARD_COMPUTE, 1)  # stage 1: 3 ahead
    first, second = (forward, backward) if forward in needs(backward) else (backward, forward)
    assert set(after[graph.dep == first]) - {second} <= set(after[graph.dep == second])
    assert needs(second) - {first} <= needs(first)
    assert K.FORWARD_RECV in graph.kind[list(needs(first))]
    assert K.BACKWARD_RECV in graph.kind[list(needs(first))]


def test_another_pipeline_is_not_promised(slow):
    measured = from_trace(slow.trace())
    assert not measured.graph.of_whole_passes
    result = paceline.analyze(measured)
    proposed, refused = propose_all(Case(measured, result, diagnose(measured, result)), REMEDIES)
    rebuilt = {kind.name for kind in REMEDIES if kind.rebuilds}
    assert not {remedy.remedy for remedy in proposed} & rebuilt
    assert any("run at once" in reason for reason in refused.values())


def one_worker(*computes):
    """A trace of three steps of one worker: (kind, microbatch, start, end) of each compute.

    Where gradients of weights are among them, the computes are a program.
    """
    base = {"dp": 0, "pp": 0, "chunk": 0}
    split = any(kind == "weight" for kind, *_ in computes)
    rows = [
        base
        | ({"issued": place, "awaited": -1} if split else {})
        | {"step": step, "kind": f"{kind}-compute", "microbatch": number, "seq": number}
        | {"start": step + start, "duration": end - start}
        for step in range(3)
        for place, (kind, number, start, end) in enumerate(computes)
    ]
    return trace_of(rows, paceline.Job(dp_size=1, pp_size=1, tp_size=1, vpp_size=1))


def test_three_at_once_are_refused():
    trace = one_worker(
        ("forward", 0, 0.0, 0.1),
        ("forward", 1, 0.1, 0.4),
        ("backward", 0, 0.12, 0.4),
        ("forward", 2, 0.3, 0.5),
        ("backward", 1, 0.5, 0.6),
        ("backward", 2, 0.6, 0.7),
    )
    with pytest.raises(GraphError, match="at most two computes of a worker may run at once"):
        from_trace(trace)


def test_a_long_compute_beside_two_short_ones_is_refused():
    """The last one starts behind the second, and no edge ties it to the first."""
    trace = one_worker(
        ("forward", 0, 0.0, 0.1),
        ("forward", 1, 0.1, 0.6),
        ("backward", 0, 0.15, 0.3),
        ("forward", 2, 0.35, 0.6),
        ("backward", 1, 0.6, 0.7),
        ("backward", 2, 0.7, 0.8),
    )
    with pytest.raises(GraphError, match=r"forward-compute 1 .* overlaps with .*forward-compute 2"):
        from_trace(trace)


def test_the_gradient_of_weights_may_run_beside_a_forward():
    trace = one_worker(
        ("forward", 0, 0.0, 0.1),
        ("backward", 0, 0.1, 0.2),
        ("weight", 0, 0.2, 0.5),
        ("forward", 1, 0.2, 0.5),
        ("backward", 1, 0.5, 0.6),
        ("weight", 1, 0.6, 0.7),
    )
    measured = from_trace(trace)
    seconds = measured.durations.array[measured.graph.paired]
    np.testing.assert_allclose(seconds[:, 0, 0], 0.15)  # both take 0.1 s where they run alone
    assert paceline.analyze(measured).discrepancy < 1e-9


def test_a_backward_never_runs_beside_its_own_forward():
    """Such rows come from clocks; they stay as they are."""
    trace = one_worker(("forward", 0, 0.0, 0.3), ("backward", 0, 0.2, 0.6))
    assert from_trace(trace).graph.paired is None


def test_a_short_overlap_is_one_after_the_other():
    trace = one_worker(
        ("forward", 0, 0.0, 0.2),
        ("forward", 1, 0.19, 0.4),
        ("backward", 0, 0.4, 0.6),
        ("backward", 1, 0.6, 0.8),
    )
    assert from_trace(trace).graph.paired is None


def test_computes_that_begin_apart_share_the_span_by_their_own_times():
    """No forward runs alone, so spans are the shares; what came before stays before the second."""
    trace = one_worker(
        ("forward", 0, 0.0, 0.1),
        ("forward", 1, 0.1, 0.4),
        ("backward", 0, 0.3, 0.6),
        ("backward", 1, 0.6, 0.7),
    )
    measured = from_trace(trace)
    seconds = measured.durations.array[measured.graph.paired]
    np.testing.assert_allclose(seconds.sum(axis=0), 0.5)
    assert paceline.analyze(measured).discrepancy < 1e-9
