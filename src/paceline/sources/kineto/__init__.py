"""Kineto: Chrome traces of the PyTorch profiler, one file per rank."""

from paceline.sources.kineto.reader import matches, read

__all__ = ["matches", "read"]
