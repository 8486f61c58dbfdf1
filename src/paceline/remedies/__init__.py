"""Changes to the job, each with its gain predicted by the one simulator."""

from paceline.remedies.remedy import Case, Remedy, RemedyKind

__all__ = ["Case", "Remedy", "RemedyKind"]
