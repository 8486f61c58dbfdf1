"""Jobs whose layers have a collective each, run event by event: tensor, expert, context groups."""

import random

import numpy as np

from program_jobs import Compute, Launch, Run, Wait

LAYERS, STEPS = 4, 8


def program(kind):
    """A forward and a backward of some layers, each with a collective within it; then an update."""
    steps = []
    for way in ("forward", "backward"):
        for layer in range(LAYERS):
            name = (way, layer)
            steps += [Compute(f"{way}-compute", 0, 0), Launch(kind, name), Wait(name)]
        steps.append(Compute(f"{way}-compute", 0, 0))
    steps += [Launch("grads-reduce-scatter", "g"), Wait("g"), Compute("optimizer")]
    return steps


OPS = {
    kind: [step.kind for step in program(kind) if not isinstance(step, Wait)]
    for kind in ("tensor-comm", "expert-comm", "context-comm")
}
BASE_S = {
    "forward-compute": 0.02,
    "backward-compute": 0.04,
    "tensor-comm": 0.004,
    "expert-comm": 0.004,
    "context-comm": 0.004,
    "grads-reduce-scatter": 0.02,
    "optimizer": 0.005,
}


def runs(kind, factor, *, dp=2, peers=4, jitter=0.01, seed=0):
    """Steps of a job; ``factor(step, replica, nth, label)`` of the op's usual time."""
    programs = dict.fromkeys([(replica, 0) for replica in range(dp * peers)], program(kind))

    def seconds(step):
        def of(key):
            replica, _, nth = key
            label = OPS[kind][nth]
            noise = random.Random(f"{seed} {step} {key}").gauss(1, jitter)
            return BASE_S[label] * noise * factor(step, replica, nth, label)

        return of

    return [Run(programs, seconds(step), peers=peers) for step in range(STEPS)]


def tokens(spread):
    """Shares of the tokens, of mean 1 in each group, other ones in each layer and step.

    Attention, dispatch, experts, combine: every other compute is one of experts.
    """
    of_pass = 2 * LAYERS + 1

    def factor(step, replica, nth, label):
        if not label.endswith("compute") or nth % of_pass // 2 % 2 == 0:
            return 1.0
        rng = np.random.default_rng([step, nth])
        return float((1 - spread + spread * 4 * rng.dirichlet(np.full(4, 2.0)))[replica])

    return factor


def slow_gpu(step, replica, nth, label):
    """Replica 5 computes 1.5x slow."""
    return 1.5 if replica == 5 and label.endswith("compute") else 1.0


def slow_connection(step, replica, nth, label):
    """All collectives of dp 1's group of four take four times as long: NVLink, say."""
    return 4.0 if replica >= 4 and label == "tensor-comm" else 1.0


def even(*_):
    """Nothing is slow."""
    return 1.0
