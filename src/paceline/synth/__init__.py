"""Synthesised traces with known causes: a schedule, durations, the simulator, and the truth kept.

Draws of one cause do not depend on the others' settings, so two jobs with one seed differ only in
what was asked for.
"""

from paceline.synth.make import synthesize
from paceline.synth.sequences import draw_seqlens
from paceline.synth.spec import BASE_S, SlowLink, SlowNic, SlowWorker, SynthSpec

__all__ = [
    "BASE_S",
    "SlowLink",
    "SlowNic",
    "SlowWorker",
    "SynthSpec",
    "draw_seqlens",
    "synthesize",
]
