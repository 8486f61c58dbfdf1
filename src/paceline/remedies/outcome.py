"""From predicted step times to a Remedy: gain, interval and the sentence, the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.diagnose import Finding
from paceline.errors import RemedyError
from paceline.graph import Durations
from paceline.remedies.remedy import Case, Remedy, answered, gain_of

Array = npt.NDArray[np.float64]


def outcome(
    case: Case,
    name: str,
    action: str,
    after_s: Array,
    change: Mapping[str, Any],
    *,
    causes: Iterable[str],
    notes: Sequence[str] = (),
    before_s: Array | None = None,
) -> Remedy:
    """The remedy that leads to [step] step times ``after_s``.

    Args:
        case: the job.
        name: the remedy's name.
        action: what to do, the start of its sentence.
        after_s: [step] predicted step times, seconds.
        change: what to change, as JSON can hold it.
        causes: it answers the findings of these causes.
        notes: limits and assumptions.
        before_s: [step] step times to compare with; None: simulated ones, without launch delays.
    """
    before_s = case.result.simulated_s if before_s is None else before_s
    gain, interval = gain_of(before_s, after_s)
    before, after = float(before_s.mean()), float(after_s.mean())
    return Remedy(
        remedy=name,
        text=f"{action}: a step takes {after:.4g} s instead of {before:.4g} s (gain {gain:.1%})",
        findings=answered(case, frozenset(causes)),
        step_time_s=after,
        gain=gain,
        interval=interval,
        change=change,
        notes=tuple(notes),
    )


def finding_of(case: Case, cause: str) -> Finding | None:
    """The case's finding of a cause; None where there is none."""
    return next((f for f in case.diagnosis.findings if f.cause == cause), None)


def needed_finding(case: Case, cause: str, what: str) -> Finding:
    """The case's finding of a cause; RemedyError where there is none."""
    finding = finding_of(case, cause)
    if finding is None:
        raise RemedyError(f"nothing to do: the trace shows no {what} (no {cause!r} finding)")
    return finding


def copy_of(durations: Durations) -> Durations:
    """Durations that may be written to."""
    return Durations(durations.graph, durations.n_steps, durations.values.copy())
