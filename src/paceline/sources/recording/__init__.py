"""The folder of a recorded run (``paceline.record`` writes it)."""

from paceline.sources.recording.files import is_recording as matches
from paceline.sources.recording.reader import load_recorded_step_times, read

__all__ = ["load_recorded_step_times", "matches", "read"]
