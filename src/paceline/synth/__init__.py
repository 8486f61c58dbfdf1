"""Synthesised traces with known causes of slowness.

Each cause has its own random draws. Two jobs with the same seed therefore differ only in the
requested causes.
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
