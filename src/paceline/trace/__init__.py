"""The measured job: kinds of operation, degrees of parallelism, the validated trace."""

from paceline.trace.columns import Columns
from paceline.trace.door import arrange
from paceline.trace.job import Job
from paceline.trace.kinds import KIND_GROUPS, OpKind
from paceline.trace.trace import Periods, Trace

__all__ = ["KIND_GROUPS", "Columns", "Job", "OpKind", "Periods", "Trace", "arrange"]
