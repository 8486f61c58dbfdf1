"""Drawings that need the trace, for the document does not hold every operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.graph import Measured
from paceline.report.page.drawn import timeline_data
from paceline.report.page.scatter import scatter_data
from paceline.whatif import WhatIf


@dataclass(frozen=True)
class Drawings:
    """Data of the timeline and of the scatter for the page's scripts."""

    timeline: Mapping[str, Any]
    scatter: Mapping[str, Any]

    @classmethod
    def of(cls, measured: Measured, result: WhatIf) -> Drawings:
        """The drawings of an analysis."""
        return cls(timeline_data(measured, result), scatter_data(measured))
