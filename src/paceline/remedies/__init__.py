"""Changes to the job, each with its gain predicted by the one simulator."""

from paceline.remedies.advise import Advice, advise, propose_all
from paceline.remedies.remedy import Case, Remedy, RemedyKind

#: All remedies there are, in the order in which they are listed.
REMEDIES: tuple[RemedyKind, ...] = ()

__all__ = ["REMEDIES", "Advice", "Case", "Remedy", "RemedyKind", "advise", "propose_all"]
