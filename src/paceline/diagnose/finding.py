"""Finding: one cause with its place, evidence, cost and confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

#: Causes inside S, then causes outside it.
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
    "data-loading",
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
        share: share of the loss that the cause explains; None outside S. May be negative. The loss
            is T - T_healthy, or T - T_ideal where no finding blames hardware.
        share_of_step: share of the time from step to step: the actual step less its overlap with
            the step before.
        interval: 90% bootstrap interval of ``share`` (of ``share_of_step`` outside S).
        confidence: probability that the finding is true (:mod:`paceline.diagnose.confidence`).
        where: ``workers`` [[dp, pp], ...], ``stage``, ``link`` [[dp, pp], [dp, pp]] or ``group``.
        evidence: the numbers behind the finding, with thresholds and their sources.
        ambiguous: another explanation that fits equally well; empty if there is none.
        alternative: the cause of that explanation, if it has a name.
        part_of: id of the finding of the same time, whose cost includes this one's; mostly empty.
        cost_s: [step] seconds that the cause costs; None if it is not known. Not in JSON.
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
    part_of: str = ""
    cost_s: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    def to_mapping(self) -> dict[str, Any]:
        """The finding in the form of the JSON output."""
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
        if self.part_of:
            mapping["part_of"] = self.part_of
        return mapping


#: The place of findings that concern the whole job.
NOWHERE: Mapping[str, Any] = {}
