"""The result in a sentence or two: what is lost, why, and what the best remedy gains."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.diagnose import Diagnosis, Finding
from paceline.remedies import Remedy
from paceline.whatif import WhatIf

HEALTHY = "Healthy, within what these traces can show"

#: Launch delays below this line cost next to nothing (the line of S, too).
DELAYED = 1.03


#: Of remedies whose gains differ by less than this, the surest is named.
EQUAL = 0.01


def is_healthy(result: WhatIf, diagnosis: Diagnosis) -> bool:
    """Whether there is nothing to report: S and launch delays are low and nothing drifts."""
    drifts = any(finding.cause == "drift" for finding in diagnosis.findings)
    return result.healthy and result.launch_slowdown < DELAYED and not drifts


def headline(result: WhatIf, diagnosis: Diagnosis, remedies: Sequence[Remedy]) -> str:
    """What an on-call engineer needs to know first, in words."""
    if is_healthy(result, diagnosis):
        return f"{HEALTHY}: stragglers cost {max(result.waste, 0.0):.1%} of the GPU time."
    first = _main(result, diagnosis)
    if not result.healthy:
        reason = first.text if first else "no known pattern explains it"
        verdict = f"This job wastes {result.waste:.0%} of its GPUs: {reason}"
    else:
        reason = first.text if first else "time passes between operations"
        verdict = f"Stragglers cost little ({max(result.waste, 0.0):.1%}), but {reason}"
    return " ".join([_sentence(verdict), *_advice(first, remedies)])


def _main(result: WhatIf, diagnosis: Diagnosis) -> Finding | None:
    """The finding to name: the largest known cause, inside S unless S is healthy."""
    inside = [f for f in diagnosis.findings if f.share is not None and f.cause != "unexplained"]
    outside = [f for f in diagnosis.findings if f.share is None]
    if not result.healthy:
        return next((f for f in inside if (f.share or 0) > 0), None)
    return outside[0] if outside else None


def _advice(finding: Finding | None, remedies: Sequence[Remedy]) -> list[str]:
    """The best remedy for what was named; nothing where none answers it or gains a percent.

    Changes of the architecture answer no finding.
    """
    if finding is None:
        return []
    answers = [r for r in remedies if finding.id in r.findings and not r.architecture]
    most = max((remedy.gain for remedy in answers), default=0.0)
    if round(most, 2) <= 0:
        return []
    best = max(
        (remedy for remedy in answers if remedy.gain >= most - EQUAL),
        key=lambda remedy: remedy.interval[0],
    )
    gain = f"{best.gain:.0%}"
    if best.remedy == "replace-worker":
        alone = len(finding.where.get("workers", ())) == 1
        return [f"Replacing {'it' if alone else 'them'} gains {gain}."]
    at_most = "up to " if best.change.get("bound") else ""
    return [f"To gain {at_most}{gain}: {_sentence(best.action)}"]


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
