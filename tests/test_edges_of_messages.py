"""Edges that a mutation run found untested: rules, parts of a job, words of circles and ops."""

import numpy as np

from paceline.diagnose.groups import _Others
from paceline.graph import from_trace
from paceline.graph.order import _cycle_message
from paceline.simulate import Rules
from paceline.synth import SynthSpec, synthesize
from paceline.trace import OpKind
from paceline.whatif import Part

GRAPH = from_trace(synthesize(SynthSpec(dp=3, pp=2, microbatches=2, steps=1))).graph


def test_common_durations_are_one_rule():
    rules = Rules.common(GRAPH, np.ones(GRAPH.n_ops))
    assert rules.keep.shape == (1, GRAPH.n_ops)
    assert not rules.keep.any()


def test_workers_outside_the_chosen_replicas_and_stages_are_not_of_the_part():
    part = Part(workers=frozenset({(0, 0), (0, 1), (2, 1)}), replicas=frozenset({0}))
    assert part.stages_of(GRAPH) == {0: frozenset({0, 1})}
    part = Part(workers=frozenset({(0, 0), (0, 1), (2, 1)}), stages=frozenset({1}))
    assert part.stages_of(GRAPH) == {0: frozenset({1}), 2: frozenset({1})}


def test_an_op_in_words_has_its_microbatch_where_it_has_one():
    forward = int(np.flatnonzero((GRAPH.kind == OpKind.FORWARD_COMPUTE) & (GRAPH.seq == 1))[0])
    update = int(np.flatnonzero(GRAPH.kind == OpKind.OPTIMIZER)[0])
    assert GRAPH.describe(forward) == "forward-compute 1 of stage 0 (microbatch 1)"
    assert GRAPH.describe(update) == "optimizer 0 of stage 0"


def circle(n):
    edges = np.array([(op, (op + 1) % n) for op in range(n)])
    return _cycle_message(edges, np.arange(n), set(), str)


def test_circles_of_eight_are_told_whole_and_of_nine_in_part():
    assert circle(8).count("waits for") == 8
    assert "more" not in circle(8)
    assert "; and 1 more" in circle(9)


def test_steps_at_the_limit_are_not_late():
    others = _Others(np.array([[9.0, 9.0], [2.0, 1.0], [2.5, 1.0]]), np.array([9.0, 1.5, 1.75]), 0)
    assert others.late_share(2.0) == 0.5
    assert others.late_share(2.5) == 0.0
