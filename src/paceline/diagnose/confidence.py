"""Confidence of findings: agreement of the steps, and trust in the model of the trace.

Resamples of the steps can agree although the model is wrong in all of them. So the share that
agrees is multiplied by further factors. They are the chance that noise shows the pattern, the error
of the simulation, the number of steps, and whether another explanation fits equally well. The
factors were calibrated on synthetic and real jobs (benchmarks/truth.py): of findings with at least
90% confidence, at least 90% are true.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.diagnose.candidate import Candidate
from paceline.graph import Measured
from paceline.trace.kinds import DP_KINDS, P2P_KINDS
from paceline.whatif import WhatIf

#: Number of steps -> factor. Findings of few steps are less certain.
FEW_STEPS = {1: 0.8, 2: 0.9, 3: 0.95}

#: Causes whose findings tell how long a step waits. One step does not show that its wait returns.
WAIT_CAUSES = ("launch-delay", "data-loading")

#: Below this number of slow steps, Laplace's rule of succession lowers the confidence of slow
#: groups: a pattern of all n steps returns in the next with a chance of (n + 1) / (n + 2). Other
#: jobs slow a network or a host for some seconds, and a short trace may lie within such a time.
#: Links need no such factor: each step has many of their transfers. Neither do traces without
#: programs: they were calibrated without it.
SUCCESSION_BELOW = 10

#: Factor where another explanation fits equally well.
AMBIGUOUS_FACTOR = 0.6

#: An error of the replay, as a share of the step, costs MISFIT_COST times that share of confidence.
#: The factor is at least WORST. The replay differs from the trace where times contradict each
#: other.
MISFIT_COST, WORST = 5.0, 0.3

#: Factor for traces with long gaps between operations, which the what-if paper would discard.
DOUBTFUL_FACTOR = 0.8

#: Causes whose evidence compares clocks of several workers.
CLOCK_CAUSES = ("link", "dp-network")

#: Causes whose evidence is the time of groups in a step.
GROUP_CAUSES = ("dp-network", "peer-network")


def of_few_waits(cause: str, confidence: float, n_steps: int) -> float:
    """Confidence in a wait of few steps: at most the chance that the next step waits, too.

    It is (n + 1) / (n + 2) by Laplace's rule of succession, as all n steps do. More steps than
    those of :data:`FEW_STEPS` show it themselves, by their resamples.
    """
    if cause not in WAIT_CAUSES or n_steps not in FEW_STEPS:
        return confidence
    return min(confidence, (n_steps + 1) / (n_steps + 2))


@dataclass(frozen=True)
class Trust:
    """Properties of a trace that decide how far its model can be trusted.

    Attributes:
        misfit: share of the step by which simulation and trace contradict each other.
        doubtful: whether gaps between operations are long.
        clock_doubt_s: seconds by which clocks of different workers may disagree.
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
        """The trust in the model of a job."""
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
        """Probability that a finding is true.

        Args:
            candidate: the finding's pattern.
            agreeing: share of the resamples of the steps that show the finding.
        """
        factor = (1 - candidate.chance) * FEW_STEPS.get(self.n_steps, 1.0)
        if self.programmed and candidate.cause in GROUP_CAUSES:
            steps = candidate.evidence.get("steps")
            n_slow = len(steps) if isinstance(steps, list) else self.n_steps
            factor *= (n_slow + 1) / (n_slow + 2) if n_slow < SUCCESSION_BELOW else 1.0
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
