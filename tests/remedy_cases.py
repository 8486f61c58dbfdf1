"""Diagnosed cases of synthesised jobs, for the tests of remedies."""

from paceline.diagnose import diagnose
from paceline.graph import from_trace
from paceline.remedies import Case, Remedy
from paceline.synth import SynthSpec, synthesize
from paceline.whatif import WhatIf, analyze


def case_of(spec: SynthSpec, layers: tuple[int, ...] | None = None, **options: object) -> Case:
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    return Case(measured, result, diagnose(measured, result), layers, None, options)


def analysed(spec: SynthSpec) -> WhatIf:
    return analyze(synthesize(spec))


def error_of(remedy: Remedy, spec: SynthSpec) -> float:
    """How far the predicted step time is from that of the job synthesised with the change."""
    return abs(remedy.step_time_s / float(analysed(spec).simulated_s.mean()) - 1)
