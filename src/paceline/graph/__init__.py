"""Dependencies in one step of one model replica."""

from paceline.graph.build import build_graph
from paceline.graph.clocks import ClockOffsets
from paceline.graph.from_files import measure
from paceline.graph.from_trace import Measured, from_trace
from paceline.graph.graph import Durations, StepGraph, make_graph
from paceline.graph.replica import ReplicaOps

__all__ = [
    "ClockOffsets",
    "Durations",
    "Measured",
    "ReplicaOps",
    "StepGraph",
    "build_graph",
    "from_trace",
    "make_graph",
    "measure",
]
