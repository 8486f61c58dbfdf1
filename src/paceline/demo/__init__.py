"""Paceline on a real, small training job on this machine."""
