"""Rules for jobs that count, from the what-if paper (3.1, section 7), each an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import FleetError
from paceline.fleet.columns import ANALYSED, RULES
from paceline.fleet.trace_entry import TraceEntry

STATUS: Mapping[str, str] = {rule.name: rule.status for rule in RULES} | {"": ANALYSED}


@dataclass(frozen=True)
class RuleOptions:
    """Bounds of the rules.

    Attributes:
        max_restarts: a job with more restarts is left out as repeatedly failing.
        max_discrepancy: above it, the simulation does not describe the job.
        min_steps: least number of whole steps.
        min_gpus: least number of GPUs; the paper uses 128.
    """

    max_restarts: int = 15
    max_discrepancy: float = 0.05
    min_steps: int = 2
    min_gpus: int = 0

    def __post_init__(self) -> None:
        for name in ("max_restarts", "max_discrepancy", "min_steps", "min_gpus"):
            if not getattr(self, name) >= 0:
                raise FleetError(f"{name} must not be below 0, but is {getattr(self, name)}")

    def before(self, entry: TraceEntry) -> tuple[str, str]:
        """(rule, reason) from the manifest, without an analysis; ("", "") if the job may count."""
        if entry.gpus is not None and entry.gpus < self.min_gpus:
            return self._too_small(entry.gpus)
        if entry.restarts is not None and entry.restarts > self.max_restarts:
            return "restarts", f"{entry.restarts} restarts, more than {self.max_restarts}"
        return "", ""

    def after(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """(rule, reason) from an analysis; ("", "") if the job counts."""
        gpus, steps, discrepancy = row.get("gpus"), row.get("steps"), row.get("discrepancy")
        if gpus is not None and gpus < self.min_gpus:
            return self._too_small(gpus)
        if steps is not None and steps < self.min_steps:
            return "steps", f"{steps} whole steps, fewer than {self.min_steps}"
        if discrepancy is not None and discrepancy > self.max_discrepancy:
            reason = f"discrepancy {discrepancy:.1%}, more than {self.max_discrepancy:.1%}"
            return "discrepancy", reason
        return "", ""

    def _too_small(self, gpus: int) -> tuple[str, str]:
        return "gpus", f"{gpus} GPUs, fewer than {self.min_gpus}"
