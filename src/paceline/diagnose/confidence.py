"""How likely a finding is true: what the steps say, and how far the model can be trusted.

That resamples of the steps agree says nothing of a model that is wrong in all of them. So the share
that agrees is multiplied by what else is known. That is the chance that noise shows such a pattern
somewhere, and how well the simulation reproduces the trace. Also by how few steps there are, and
whether another reading fits as well. Calibrated on jobs of another generator and on real ones
(benchmarks/truth.py): of findings with 90% or more, at least 90% are true.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.diagnose.candidate import Candidate
from paceline.graph import Measured
from paceline.trace.kinds import DP_KINDS, P2P_KINDS
from paceline.whatif import WhatIf

#: A finding of few steps is trusted less: number of steps -> factor.
FEW_STEPS = {1: 0.8, 2: 0.9, 3: 0.95}

#: A pattern of all n steps is in the next one with a chance of (n + 1) / (n + 2) (Laplace's rule of
#: succession). It lowers groups under this number of steps. Others on a network or a host slow
#: it for seconds at a time, and few steps may all lie in such a time. (Links are told by many
#: transfers a step, and groups of whole passes are calibrated without.)
SUCCESSION_BELOW = 10

#: Factor where another reading fits as well.
AMBIGUOUS_FACTOR = 0.6

#: The replay misses the trace where times contradict each other. Each share of the step that it is
#: off costs this many times as much confidence, down to WORST.
MISFIT_COST, WORST = 5.0, 0.3

#: Factor where much time passes between operations, and the paper would drop the trace.
DOUBTFUL_FACTOR = 0.8

#: Causes that rest on comparing the clocks of several workers.
CLOCK_CAUSES = ("link", "dp-network")

#: Causes that rest on what groups take in a step.
GROUP_CAUSES = ("dp-network", "peer-network")


@dataclass(frozen=True)
class Trust:
    """How far the model of a trace can be trusted.

    Attributes:
        misfit: share of the step by which simulation and trace contradict each other.
        doubtful: whether much time passes between operations.
        clock_doubt_s: seconds by which times of different workers may disagree.
        transfer_s: mean seconds of transfers of a worker in a step.
        n_steps: steps analysed.
        programmed: whether programs are recorded.
    """

    misfit: float
    doubtful: bool
    clock_doubt_s: float
    transfer_s: float
    n_steps: int
    programmed: bool = True

    @classmethod
    def of(cls, measured: Measured, result: WhatIf) -> Trust:
        """The trust that a trace deserves."""
        # Launch delays only add time: a simulation without them that is slower is wrong.
        too_slow = max(0.0, float(result.simulated_s.mean() / result.traced_s.mean()) - 1)
        return cls(
            misfit=max(result.replay_error, too_slow),
            doubtful=result.doubtful,
            clock_doubt_s=measured.clocks.doubt_s,
            transfer_s=_transfer_s(measured),
            n_steps=len(result.steps),
            programmed=measured.graph.programmed,
        )

    def confidence(self, candidate: Candidate, agreeing: float) -> float:
        """How likely a finding is true.

        Args:
            candidate: the finding's pattern.
            agreeing: share of the resamples of the steps in which it persists.
        """
        factor = (1 - candidate.chance) * FEW_STEPS.get(self.n_steps, 1.0)
        few = self.programmed and self.n_steps < SUCCESSION_BELOW
        if few and candidate.cause in GROUP_CAUSES:
            factor *= (self.n_steps + 1) / (self.n_steps + 2)
        factor *= max(WORST, 1 - MISFIT_COST * self.misfit)
        factor *= DOUBTFUL_FACTOR if self.doubtful else 1.0
        factor *= AMBIGUOUS_FACTOR if candidate.ambiguous else 1.0
        if candidate.cause in CLOCK_CAUSES and self.transfer_s > 0:
            factor *= max(WORST, 1 - self.clock_doubt_s / self.transfer_s)
        return agreeing * factor


def _transfer_s(measured: Measured) -> float:
    """Mean seconds of a worker's transfers in a step."""
    graph = measured.graph
    kinds = [int(kind) for kind in (*P2P_KINDS, *DP_KINDS)]
    total = 0.0
    for v, block in enumerate(measured.durations.blocks):
        of_kinds = [kind in kinds for kind in graph.kind[graph.variant_ops(v)].tolist()]
        total += float(block[of_kinds].sum())
    return total / (measured.durations.n_steps * graph.n_dp * graph.n_pp)
