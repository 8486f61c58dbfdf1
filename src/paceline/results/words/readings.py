"""The other explanation of a finding, with the gains under both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.diagnose import Finding
from paceline.remedies import REMEDIES, Remedy
from paceline.results.words.names import cause_name, remedy_name
from paceline.units import percent

#: Why all workers may wait alike between operations, and how to find out.
UNRECORDED = (
    "perhaps the loop has a collective or a synchronisation there that is not recorded, in which "
    "all wait for one rank. Record it (`with recorder.op(...)`), and the late rank shows"
)


def other_reading(finding: Finding, remedies: Sequence[Remedy]) -> str | None:
    """``or: ...`` with both gains, if another explanation fits equally well; otherwise None.

    Where all workers wait alike, it says what the recording may lack.

    Args:
        finding: a finding with ``ambiguous``, the other explanation, and ``alternative``, its
            cause.
        remedies: all remedies of the job.
    """
    if not finding.ambiguous:
        return UNRECORDED if "alike_s" in finding.evidence else None
    text = f"or: {finding.ambiguous}"
    if not finding.alternative:
        return text
    repairs = [remedy for remedy in remedies if not remedy.architecture]
    names = {kind.name for kind in REMEDIES if finding.alternative in kind.causes}
    own_remedy = _best(remedy for remedy in repairs if finding.id in remedy.findings)
    other_remedy = _best(remedy for remedy in repairs if remedy.remedy in names)
    return (
        f"{text}. Read as {cause_name(finding.cause).lower()}: {_gain(own_remedy)}; read as "
        f"{cause_name(finding.alternative).lower()}: {_gain(other_remedy)}"
    )


def _best(remedies: Iterable[Remedy]) -> Remedy | None:
    return max(remedies, key=lambda remedy: remedy.gain, default=None)


def _lower(name: str) -> str:
    """The text with a small first letter, except for abbreviations."""
    return name if name[1:2].isupper() or name[:1].isdigit() else name[:1].lower() + name[1:]


def _gain(remedy: Remedy | None) -> str:
    if remedy is None:
        return "no gain is predicted"
    at_most = "at most " if remedy.is_bound else ""
    text = f"{_lower(remedy_name(remedy.remedy))} saves {at_most}{percent(remedy.gain)} of the step"
    return f"{text}, if its stage has as much work as the others" if remedy.is_conditional else text
