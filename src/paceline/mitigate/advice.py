"""Advice about the fail-slows that a trace shows, in a clause."""

from __future__ import annotations

from paceline.diagnose import diagnose
from paceline.graph import Measured
from paceline.mitigate.findings import faults_of
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.strategies import RESTART, Strategies
from paceline.remedies import Case
from paceline.whatif import WhatIf

_GERUNDS = (("move ", "moving "), ("swap ", "swapping "), ("checkpoint, and restart", "restarting"))


def advice(measured: Measured, result: WhatIf) -> str | None:
    """The strategy that recovers most. A restart is chosen only if the others do not apply.

    None if no machine is slow, or if the job has recorded programs.

    Args:
        measured: slow steps of the job.
        result: their analysis.
    """
    if not measured.graph.of_whole_passes:  # the effect of another pipeline is not known
        return None
    faults = faults_of(Case(measured, result, diagnose(measured, result)))
    if not faults:
        return None
    model = JobModel(measured)
    options = Strategies(model).options(model.plain, frozenset(faults))[1:]
    helpful = [option for option in options if option.applicable]
    if not helpful:
        return None
    best = max(helpful, key=lambda option: (option.strategy != RESTART, option.recovered))
    text = best.text
    for verb, gerund in _GERUNDS:
        text = text.replace(verb, gerund)
    return f"{text} recovers {best.recovered_text}"
