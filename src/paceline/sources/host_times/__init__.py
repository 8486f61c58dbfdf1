"""Host times of ranks, from files that are not enough for a trace: spans, timers in logs."""

from paceline.sources.host_times.files import load_host_times
from paceline.sources.host_times.table import HostTimes

__all__ = ["HostTimes", "load_host_times"]
