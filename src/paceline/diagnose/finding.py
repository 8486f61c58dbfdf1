"""Finding: one cause, where it is, what shows it, how much it costs, how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

#: Causes inside S, then those outside it.
CAUSES = (
    "worker",
    "stage-imbalance",
    "sequence-length",
    "gc",
    "link",
    "dp-network",
    "peer-network",
    "expert-imbalance",
    "context-imbalance",
    "unexplained",
    "launch-delay",
    "drift",
)


@dataclass(frozen=True)
class Finding:
    """One cause of slowness.

    Attributes:
        id: short name, unique in a diagnosis.
        cause: one of :data:`CAUSES`.
        text: the finding in one sentence.
        share: share of T - T_ideal it explains; None outside S. May be negative.
        share_of_step: share of the actual step time.
        interval: 90% bootstrap interval of ``share`` (of ``share_of_step`` outside S).
        confidence: how likely the finding is true (:mod:`paceline.diagnose.confidence`).
        where: ``workers`` [[dp, pp], ...], ``stage``, ``link`` [[dp, pp], [dp, pp]] or ``group``.
        evidence: the numbers that show it, with thresholds and their sources.
        ambiguous: what else it may be, if that cannot be told apart.
        alternative: the cause that it would be then, where it has a name.
        cost_s: [step] seconds that it costs; None outside S. Not in JSON.
    """

    id: str
    cause: str
    text: str
    share: float | None
    share_of_step: float
    interval: tuple[float, float]
    confidence: float
    where: Mapping[str, Any]
    evidence: Mapping[str, Any]
    ambiguous: str = ""
    alternative: str = ""
    cost_s: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    def to_mapping(self) -> dict[str, Any]:
        """The finding as JSON holds it."""
        mapping: dict[str, Any] = {
            "id": self.id,
            "cause": self.cause,
            "text": self.text,
            "share": self.share,
            "share_of_step": self.share_of_step,
            "interval": list(self.interval),
            "confidence": self.confidence,
            "where": dict(self.where),
            "evidence": dict(self.evidence),
        }
        if self.ambiguous:
            mapping["ambiguous"] = self.ambiguous
        if self.alternative:
            mapping["alternative"] = self.alternative
        return mapping


#: For findings that are nowhere in particular.
NOWHERE: Mapping[str, Any] = {}
