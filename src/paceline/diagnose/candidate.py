"""Candidate: a cause that a detector sees. The simulation decides later whether it matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.diagnose.remove import Effect


@dataclass(frozen=True)
class Candidate:
    """One pattern that a detector sees, with its evidence and its effect.

    Attributes:
        cause, text, where, evidence, ambiguous: as in :class:`paceline.diagnose.finding.Finding`.
        effect: what the cause does to durations.
        chance: upper bound on the chance that noise alone shows the pattern somewhere in the job.
        alternative: the other possible cause, where ``ambiguous`` names one.
        part: what of a worker is slow, if its other operations may be healthy; mostly empty.
    """

    cause: str
    text: str
    where: Mapping[str, Any]
    evidence: Mapping[str, Any]
    effect: Effect
    ambiguous: str = ""
    chance: float = 0.0
    alternative: str = ""
    part: str = ""

    @property
    def id(self) -> str:
        """Short name, unique among the causes of hardware."""
        return self.part or self.cause
