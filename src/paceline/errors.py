"""The exceptions Paceline raises, one tree.

    PacelineError           anything the user can act on; the CLI prints one line and exits 2
    ├── TraceError          a trace or job file is malformed, contradicts itself, is not enough
    │   └── NoStepError      no step of a trace is whole and like the others
    ├── GraphError          no valid graph of dependencies follows from the operations
    ├── SimulationError     the kernel was given arrays that do not belong together
    ├── ScenarioError       a what-if scenario names something that the job does not have
    ├── SynthError          a job that cannot be synthesised was asked for
    ├── RemedyError         a remedy was asked for in a way that this job does not allow
    │   └── NotApplicableError   a remedy has nothing to do here: an answer, not a mistake
    ├── ComparisonError     two jobs are unlike, so that their steps cannot be compared
    ├── QuantityError       a number with its unit cannot be read
    ├── ModelError          a model, cluster or profile is not known, malformed or not modelled
    │   └── PlanError       a plan is illegal for the model or the number of GPUs
    ├── DetectError         samples that a detector cannot take
    ├── StateError          a saved state is of another schema or version, or malformed
    ├── MitigateError       fail-slows that the job cannot have, a broken planner's state
    ├── PauseError          a running job cannot be paused, or must not be
    ├── DemoError           the demo's training job on this machine failed
    │   └── DemoLateError   it was too slow, as on a busy machine
    ├── QueueError          a queue of jobs, its cluster or its policy is impossible
    ├── FleetError          a fleet's folder, manifest, engine or study cannot be used
    ├── MonitorError        the service's store, configuration or a request to it is wrong
    ├── ResultError         a result document lacks a field, or has one of another form
    └── OutputError         a result cannot be written (exists, no space, no permission)

Every message names the error, its place, and a way to correct it.
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that a user of Paceline can act on.

    ``fields`` are those of the record that the message speaks of, where its maker says so.
    """

    def __init__(self, message: str = "", *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TraceError(PacelineError):
    """A trace or job description is malformed, contradicts itself, or is not enough."""


class NoStepError(TraceError):
    """No step of a trace is whole and like the others."""


class GraphError(PacelineError):
    """No valid graph of dependencies follows from the operations."""


class SimulationError(PacelineError):
    """The kernel was given arrays that do not belong together."""


class ScenarioError(PacelineError):
    """A what-if scenario names something that the job does not have."""


class SynthError(PacelineError):
    """A job that cannot be synthesised was asked for."""


class RemedyError(PacelineError):
    """A remedy was asked for in a way that this job does not allow."""


class NotApplicableError(RemedyError):
    """A remedy has nothing to do here, or cannot be predicted: an answer, not a mistake."""


class ComparisonError(PacelineError):
    """Two jobs are unlike; ``disagreements`` lists (what, before, after)."""

    def __init__(self, message: str, disagreements: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(message)
        self.disagreements = disagreements


class QueueError(PacelineError):
    """A queue of jobs, its cluster, its throughputs or its policy is impossible."""


class ResultError(PacelineError):
    """A result document cannot be read: ``field`` is the path of the bad field, if it is one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.problem, self.field = problem, field


class QuantityError(PacelineError):
    """A number with its unit cannot be read."""


class ModelError(PacelineError):
    """A model, cluster or profile is not known, malformed or not modelled."""


class PlanError(ModelError):
    """A plan is illegal for the model or the number of GPUs."""


class DetectError(PacelineError):
    """Samples that a detector cannot take."""


class StateError(PacelineError):
    """A saved state is of another schema or version, lacks fields, or holds values that cannot be.

    A caller that loads a state can make it anew from its source.
    """


class MitigateError(PacelineError):
    """Fail-slows or a scenario do not fit the job, or a planner's state is unreadable."""


class PauseError(PacelineError):
    """A running job cannot be paused, or must not be."""


class DemoError(PacelineError):
    """The demo's training job on this machine failed."""


class DemoLateError(DemoError):
    """Something of the demo was not seen in time, as on a busy machine."""


class FleetError(PacelineError):
    """A fleet's folder of traces, its manifest, its engine or its study cannot be used."""


class MonitorError(PacelineError):
    """The service's store or configuration, or a request to it, is wrong."""


class OutputError(PacelineError):
    """A result cannot be written."""
