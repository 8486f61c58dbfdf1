"""Synthesised traces with known causes: a schedule, durations, the simulator, and the truth.

Draws of one cause do not depend on the others' settings. So two jobs with one seed differ only in
the requested causes.
"""

from paceline.synth.layers import Layers
from paceline.synth.make import each_step, synthesize
from paceline.synth.sequences import draw_seqlens
from paceline.synth.spec import BASE_S, SlowLink, SlowNic, SlowPeers, SlowWorker, SynthSpec

__all__ = [
    "BASE_S",
    "Layers",
    "SlowLink",
    "SlowNic",
    "SlowPeers",
    "SlowWorker",
    "SynthSpec",
    "draw_seqlens",
    "each_step",
    "synthesize",
]
