"""Even microbatches: the same work as before, in equal shares.

Without the lengths of the sequences no assignment can be named, but the step with even microbatches
can be simulated. With them, ``sequence-balance`` names the assignment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.diagnose.candidate import Candidate
from paceline.diagnose.fit import fit_computes
from paceline.diagnose.microbatches import sequence_cause
from paceline.diagnose.remove import without
from paceline.diagnose.same_microbatches import same_microbatches
from paceline.errors import NotApplicableError
from paceline.remedies.outcome import finding_of, outcome
from paceline.remedies.remedy import Case, Remedy, RemedyKind
from paceline.units import seconds

#: A smaller gain does not justify another packing of the data.
MIN_GAIN = 0.01


def propose(case: Case) -> Remedy:
    """Share the work of all microbatches out evenly.

    Raises:
        NotApplicableError: the lengths are given, the trace leaves open whether microbatches or
            replicas differ, or there is nothing to gain.
    """
    if case.seqlens is not None:
        raise NotApplicableError("the lengths are given: sequence-balance shares them out")
    durations = case.measured.durations
    fit = fit_computes(durations)
    cause = sequence_cause(durations, fit)
    if cause is None:
        raise NotApplicableError("all steps together show no microbatches that differ in cost")
    if fit.level_in_doubt.any():
        raise NotApplicableError(
            "the trace leaves open whether a replica is slow or its microbatches are longer; "
            "--seqlens tells that apart"
        )
    after = case.predicted(without(durations, fit, [cause.effect]))
    gain = 1 - after.mean_s / case.before.mean_s
    if gain < MIN_GAIN:
        raise NotApplicableError(
            f"even microbatches gain {max(gain, 0.0):.1%} (under {MIN_GAIN:.0%})"
        )
    varied = cause.evidence["coefficient_of_variation"]
    less_s = _without_extra_work(case, cause)
    change = {"coefficient_of_variation": varied}
    if less_s is not None:
        change["without_extra_work_s"] = less_s
    return outcome(
        case,
        KIND,
        "share the sequences out so that all microbatches take equally long, with the same work "
        "in all",
        after,
        change,
        notes=(
            "no work is taken away: the gain is that of even shares alone",
            *(
                ()
                if less_s is None
                else (
                    f"without the extra work of the long one, a step would take {seconds(less_s)}; "
                    "no other share of the same work promises that",
                )
            ),
            "even shares are assumed to exist; --seqlens gives the best assignment of whole "
            "sequences, and its gain",
            *other_reading(case),
        ),
    )


def _without_extra_work(case: Case, cause: Candidate) -> float | None:
    """Mean step if the only long microbatch took as long as the usual one; None without one."""
    durations = case.measured.durations
    fit = fit_computes(durations)
    same = same_microbatches(case.measured.graph, fit)
    if len(fit.variants) > 1 or not len(same.profile) or len(same.long) > 1:
        return None
    extra = np.where(np.arange(len(same.profile)) == same.long[0], same.profile, 0.0)
    factor = fit.slope[:, :, None, None, None] * extra[:, None, None]
    effect = replace(cause.effect, factor=(factor,), rebalanced=False)
    return case.predicted(without(durations, fit, [effect])).mean_s


def other_reading(case: Case) -> tuple[str, ...]:
    """A note on the finding's other explanation, under which data cannot help; empty without."""
    finding = finding_of(case, "sequence-length")
    if finding is None or not finding.ambiguous:
        return ()
    return (f"if the other reading is true, the data gain nothing: {finding.ambiguous}",)


KIND = RemedyKind(
    "even-microbatches",
    "share the sequences out so that all microbatches take equally long",
    frozenset({"sequence-length"}),
    propose,
    whole_passes=False,
)
