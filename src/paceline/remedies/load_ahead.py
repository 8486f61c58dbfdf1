"""Load batches ahead, so that no worker waits for its data loader."""

from __future__ import annotations

import numpy as np

from paceline.diagnose import usual_step_s
from paceline.errors import NotApplicableError
from paceline.remedies.outcome import needed_finding, outcome
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind

#: Most workers in the advice.
MAX_NAMED = 4


def propose(case: Case) -> Remedy:
    """Take off the waits for data, as far as no operation fills them.

    Raises:
        NotApplicableError: no wait for data costs a percent of the time.
    """
    finding = needed_finding(case, "data-loading", "time in which workers wait for data")
    if finding.cost_s is None:
        raise NotApplicableError("the waits of single steps are not known")
    before_s = usual_step_s(case.measured, case.result)
    after_s = np.maximum(before_s - finding.cost_s, 0.0)
    places = finding.where.get("workers") or []
    names = "; ".join(case.measured.graph.worker_name(*place) for place in places[:MAX_NAMED])
    of = f" of worker{'s' if len(places) > 1 else ''} {names}" if names else ""
    return outcome(
        case,
        KIND,
        f"load the batches{of} ahead (more processes and prefetching of the loader, or faster "
        "storage and preprocessing)",
        Prediction(after_s, after_s),
        {"bound": True, "workers": [list(place) for place in places]},
        notes=(
            "at most this is gained: loading in other processes takes cores of the host, ranks "
            "that share cores compute faster while one of them waits, and a loader that is too "
            "slow on average still makes the step wait",
            "the times include the pause before the step",
        ),
        before=Prediction(before_s, before_s),
    )


KIND = RemedyKind(
    "load-ahead",
    "load batches ahead, where workers wait for their data loader",
    frozenset({"data-loading"}),
    propose,
    whole_passes=False,
)
