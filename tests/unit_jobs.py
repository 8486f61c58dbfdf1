"""Jobs whose passes consist of units, as under FSDP."""

from paceline.graph import from_trace
from program_jobs import Compute, Launch, Run, Wait, trace_of_runs


def units(n):
    """A forward and a backward of n units, each gathered (and scattered) while the worker waits."""
    program = []
    for unit in range(n):
        program += [Launch("params-all-gather", ("g", unit), unit), Wait(("g", unit))]
        program.append(Compute("forward-compute", 0, 0))
    for unit in range(n):
        program.append(Compute("backward-compute", 0, 0))
        program += [Launch("grads-reduce-scatter", ("s", unit), unit), Wait(("s", unit))]
    return program


def measured_of(n_units, seconds, n_dp=2, steps=1):
    """``seconds(step, dp, label, nth of its kind)``."""
    program = units(n_units)
    ops = [step for step in program if not isinstance(step, Wait)]
    nth = [[s.kind for s in ops[:i]].count(step.kind) for i, step in enumerate(ops)]
    runs = [
        Run(
            dict.fromkeys([(dp, 0) for dp in range(n_dp)], program),
            lambda key, s=s: seconds(s, key[0], ops[key[2]].kind, nth[key[2]]),
        )
        for s in range(steps)
    ]
    return from_trace(trace_of_runs(runs), keep_clocks=True)
