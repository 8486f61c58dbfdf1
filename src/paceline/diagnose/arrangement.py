"""Findings about the arrangement of a job's communication. Another program would avoid their cost.

An arrangement is a property of the program, the same in every step and on every worker. Its cost is
the time that a simulation without it saves. No straggler causes it, so it is not part of S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.communication import (
    Communication,
    Simulated,
    Waits,
    exposures,
    kinds_of,
    parts_of,
)
from paceline.diagnose.confidence import Trust
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.remove import Effect
from paceline.graph import Durations, Measured, ReplicaOps
from paceline.graph.program_steps import (
    needed_by,
    program_steps,
    reduced_again,
    reduced_for,
)
from paceline.trace import OpKind
from paceline.units import count, seconds
from paceline.whatif import WhatIf

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
K = OpKind

#: An arrangement is reported if it costs at least this share of the step.
MIN_SHARE = 0.01

RESAMPLES, INTERVAL = 500, (5, 95)


@dataclass(frozen=True)
class _Pattern:
    """An arrangement, and the seconds that each step saves without it."""

    id: str
    text: str
    saved_s: Array  # [step]
    evidence: dict[str, Any]


def communication(measured: Measured, result: WhatIf) -> Communication | None:
    """Exposed and hidden communication, and how it is arranged; None without programs."""
    if not measured.programs or not kinds_of(measured.graph):
        return None
    simulated = Simulated(measured, 2 * len(parts_of(measured.graph)) + 1)
    waits = Waits.of(measured.programs, simulated.durations)
    table = exposures(measured, simulated, waits)
    job = _Arranged(measured, simulated, waits)
    trust = Trust.of(measured, result)
    patterns = [pattern for pattern in job.patterns() if _costs(pattern, simulated)]
    findings = [_finding(pattern, simulated, trust) for pattern in patterns]
    findings.sort(key=lambda finding: -finding.share_of_step)
    return replace(table, findings=tuple(findings))


def _costs(pattern: _Pattern, simulated: Simulated) -> bool:
    return float(pattern.saved_s.mean()) >= MIN_SHARE * float(simulated.step_s.mean())


def _finding(pattern: _Pattern, simulated: Simulated, trust: Trust) -> Finding:
    rng = np.random.default_rng(0)
    n = len(simulated.step_s)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n
    shares = (weights @ pattern.saved_s) / (weights @ simulated.step_s)
    low, high = (float(x) for x in np.percentile(shares, INTERVAL))
    candidate = Candidate(pattern.id, pattern.text, NOWHERE, pattern.evidence, Effect())
    return Finding(
        id=pattern.id,
        cause=pattern.id,
        text=pattern.text,
        share=None,
        share_of_step=float(pattern.saved_s.mean() / simulated.step_s.mean()),
        interval=(low, high),
        confidence=trust.confidence(candidate, float((shares >= MIN_SHARE).mean())),
        where=NOWHERE,
        evidence={**pattern.evidence, "threshold": MIN_SHARE},
    )


class _Arranged:
    """The programs of a job. Finds their arrangements and simulates what each costs."""

    def __init__(self, measured: Measured, simulated: Simulated, waits: Waits) -> None:
        self.graph, self.simulated, self.waits = measured.graph, simulated, waits
        self.programs = [
            (int(self.graph.variant_ops(v).start), ops, program_steps(ops, stage))
            for v, ops in enumerate(measured.programs)
            for stage in range(self.graph.n_pp)
        ]

    def patterns(self) -> Iterator[_Pattern]:
        """All arrangements that the programs show, whatever they cost."""
        for pattern in (self._first_gather(), self._late(), self._last_bucket(), self._repeated()):
            if pattern is not None:
                yield pattern

    def _saved_s(self, ops: Ints) -> Array:
        saved: Array = self.simulated.step_s - self.simulated.of([ops])[0]
        return saved

    def _typical_s(self, ops: Ints) -> float:
        """The median transfer."""
        rows = [self.simulated.durations.row(op).ravel() for op in ops.tolist()]
        return float(np.median(np.concatenate(rows)))

    def _first_gather(self) -> _Pattern | None:
        """The first gather of a step: no compute runs yet that could hide it."""
        first = []
        for offset, ops, steps in self.programs:
            kind, gather = ops.kind.tolist(), int(K.PARAMS_ALL_GATHER)
            gathers = [s for s in steps if s >= 0 and kind[s] == gather]
            first += [offset + op for op in gathers[:1]]
        if not first:
            return None
        chosen = np.array(first)
        saved_s = self._saved_s(chosen)
        return _Pattern(
            "first-gather-exposed",
            f"the first gather of a step hides behind nothing: the step waits "
            f"{seconds(float(saved_s.mean()))} for it; a smaller first unit would shorten it",
            saved_s,
            {"exposed_s": float(saved_s.mean()), "transfer_s": self._typical_s(chosen)},
        )

    def _late(self) -> _Pattern | None:
        """Gathers that are launched only after the unit before has run, though the link was idle.

        Launched directly behind the previous gather, each would end earlier by the idle time
        between the two.
        """
        durations = self.simulated.durations
        earlier = Durations(self.graph, durations.n_steps, durations.values.copy())
        late = []
        for offset, ops, steps in self.programs:
            for gather, before in _followers(ops, steps):
                idle_s = self._idle_s(offset + gather, offset + before)
                if (idle_s > 0).mean() > 0.5:
                    row = earlier.row(offset + gather)
                    row -= np.clip(row, 0.0, idle_s)
                    late.append(offset + gather)
        if not late:
            return None
        saved_s = self.simulated.step_s - self.simulated.with_durations(earlier)
        n = len(late) // self.graph.n_variants
        return _Pattern(
            "prefetch-late",
            f"{count(n, 'gather')} of a step {'is' if n == 1 else 'are'} launched only when the "
            "unit before has run, though the link was idle, which costs about "
            f"{seconds(float(saved_s.mean()))}; the remedy prefetch replays earlier launches",
            saved_s,
            {"gathers": n, "transfer_s": self._typical_s(np.array(late))},
        )

    def _idle_s(self, gather: int, before: int) -> Array:
        """[step, 1] seconds between a gather's end and the next launch, minimum over the ranks."""
        between = self.waits.start.row(gather) - self.waits.end.row(before)
        idle: Array = np.maximum(between.min(axis=1, keepdims=True), 0.0)
        return idle

    def _last_bucket(self) -> _Pattern | None:
        """The last bucket of gradients: it is ready only when the backward has ended."""
        last, buckets = [], 0
        for offset, ops, steps in self.programs:
            if any(s >= 0 and ops.kind[s] == K.PARAMS_ALL_GATHER for s in steps):
                return None
            reductions = reduced_for(ops, steps)
            if reductions:
                op = list(reductions)[-1]
                last.append(offset + op)
                buckets = sum(of_pass == reductions[op] for of_pass in reductions.values())
        if not last:
            return None
        chosen = np.array(last)
        saved_s = self._saved_s(chosen)
        return _Pattern(
            "bucket-too-large",
            f"the last of {count(buckets, 'bucket')} of gradients is reduced behind the backward: "
            f"the step waits {seconds(float(saved_s.mean()))} for it; a smaller last bucket would "
            "shorten this, except for its latency",
            saved_s,
            {"buckets": buckets, "transfer_s": self._typical_s(chosen)},
        )

    def _repeated(self) -> _Pattern | None:
        """Reductions of each microbatch's gradients, where one reduction of their sum is enough."""
        repeated = [
            offset + op for offset, ops, steps in self.programs for op in reduced_again(ops, steps)
        ]
        if not repeated:
            return None
        chosen = np.array(repeated)
        saved_s = self._saved_s(chosen)
        n = len(repeated) // self.graph.n_variants
        return _Pattern(
            "reduced-each-microbatch",
            "gradients are reduced for each microbatch: a step without the "
            f"{count(n, 'reduction')} before the last microbatch's would take "
            f"{seconds(float(saved_s.mean()))} less",
            saved_s,
            {"reductions": n, "transfer_s": self._typical_s(chosen)},
        )


def _followers(ops: ReplicaOps, steps: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of a gather and the gather before it, where both are for the same pass."""
    passes = needed_by(ops, steps)
    before: int | None = None
    for step in steps:
        if step in passes:
            if before is not None and passes[before] == passes[step]:
                yield step, before
            before = step
