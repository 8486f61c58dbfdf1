"""Two traces beside each other: the changes, their size, and how sure they are."""

from paceline.comparison.agreement import Disagreement, check_alike
from paceline.comparison.analysis import compare
from paceline.comparison.result import (
    CauseChange,
    Change,
    Comparison,
    HostChange,
    PartChange,
    Side,
    TimeChange,
    WorkerChange,
)

__all__ = [
    "CauseChange",
    "Change",
    "Comparison",
    "Disagreement",
    "HostChange",
    "PartChange",
    "Side",
    "TimeChange",
    "WorkerChange",
    "check_alike",
    "compare",
]
