"""The step without stragglers: ideal durations, scenarios, slowdowns."""

from paceline.whatif.analysis import analyze
from paceline.whatif.ideal import ideal_durations
from paceline.whatif.layout import rules_of, simulate_scenarios
from paceline.whatif.result import LaunchDelay, WhatIf
from paceline.whatif.scenario import Part, Scenario

__all__ = [
    "LaunchDelay",
    "Part",
    "Scenario",
    "WhatIf",
    "analyze",
    "ideal_durations",
    "rules_of",
    "simulate_scenarios",
]
