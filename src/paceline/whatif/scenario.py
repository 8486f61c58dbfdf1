"""Scenarios: which ops keep their measured duration and which become ideal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import ScenarioError
from paceline.graph import StepGraph
from paceline.trace import KIND_GROUPS, OpKind


@dataclass(frozen=True)
class Part:
    """Part of a job: the ops that meet all given conditions (None = no condition).

    Attributes:
        kinds: the op has one of these kinds.
        stages: the op is on one of these stages.
        replicas: the op is on one of these data-parallel ranks.
        workers: the op is on one of these workers (dp, pp).
    """

    kinds: frozenset[OpKind] | None = None
    stages: frozenset[int] | None = None
    replicas: frozenset[int] | None = None
    workers: frozenset[tuple[int, int]] | None = None

    @classmethod
    def of_kind(cls, label: str) -> Part:
        """Ops of a kind as S_x counts them (``forward-compute``, ``forward-pp-comm``, ...)."""
        if label not in KIND_GROUPS:
            raise ScenarioError(f"there is no kind {label!r}; known are {', '.join(KIND_GROUPS)}")
        return cls(kinds=frozenset(KIND_GROUPS[label]))

    @classmethod
    def of_stage(cls, stage: int) -> Part:
        """Ops of one stage."""
        return cls(stages=frozenset({stage}))

    @classmethod
    def of_replica(cls, dp: int) -> Part:
        """Ops of one data-parallel rank."""
        return cls(replicas=frozenset({dp}))

    @classmethod
    def of_workers(cls, workers: Iterable[tuple[int, int]]) -> Part:
        """Ops of some workers (dp, pp)."""
        return cls(workers=frozenset(workers))

    def stages_of(self, graph: StepGraph) -> dict[int, frozenset[int] | None]:
        """Replica -> its stages with ops of the part (None = all); other replicas have no ops."""
        if self.workers is None:
            replicas = range(graph.n_dp) if self.replicas is None else sorted(self.replicas)
            return dict.fromkeys(replicas, self.stages)
        by_dp: dict[int, set[int]] = {}
        for dp, pp in self.workers:
            chosen = self.replicas is None or dp in self.replicas
            if chosen and (self.stages is None or pp in self.stages):
                by_dp.setdefault(dp, set()).add(pp)
        return {dp: frozenset(stages) for dp, stages in by_dp.items()}

    def check(self, graph: StepGraph) -> None:
        """Raise ScenarioError if the part names stages or ranks that the job does not have."""
        stages = set(self.stages or ()) | {pp for _, pp in self.workers or ()}
        replicas = set(self.replicas or ()) | {dp for dp, _ in self.workers or ()}
        for what, named, size in (("stage", stages, graph.n_pp), ("dp rank", replicas, graph.n_dp)):
            bad = sorted(number for number in named if not 0 <= number < size)
            if bad:
                raise ScenarioError(f"the job has no {what} {bad[0]}; it has 0 to {size - 1}")


NOTHING = Part(workers=frozenset())


@dataclass(frozen=True)
class Scenario:
    """Measured durations inside a part and ideal ones outside, or the reverse."""

    part: Part
    measured_inside: bool

    @classmethod
    def ideal(cls) -> Scenario:
        """Every op ideal: no stragglers."""
        return cls.only(NOTHING)

    @classmethod
    def measured(cls) -> Scenario:
        """Every op as measured."""
        return cls.without(NOTHING)

    @classmethod
    def only(cls, part: Part) -> Scenario:
        """Only the part as measured, all others ideal; S_x compares it with the ideal job."""
        return cls(part, True)

    @classmethod
    def without(cls, part: Part) -> Scenario:
        """The part ideal, all others as measured; M_X compares it with the measured job."""
        return cls(part, False)

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """The scenario of a name that a user gave.

        Names are ``ideal``, ``measured``, and ``only:X`` or ``without:X``. X is one of
        ``kind=LABEL``, ``stage=N``, ``replica=N`` and ``worker=DP,PP``.

        Raises:
            ScenarioError: the text names no scenario.
        """
        if text in ("ideal", "measured"):
            return cls.ideal() if text == "ideal" else cls.measured()
        mode, _, what = text.partition(":")
        key, _, value = what.partition("=")
        try:
            part = {
                "kind": lambda: Part.of_kind(value),
                "stage": lambda: Part.of_stage(int(value)),
                "replica": lambda: Part.of_replica(int(value)),
                "worker": lambda: Part.of_workers([_worker(value)]),
            }[key]()
            return {"only": cls.only, "without": cls.without}[mode](part)
        except (KeyError, ValueError):
            raise ScenarioError(
                f"{text!r} is no scenario; use ideal, measured, only:X or without:X with X one of "
                "kind=LABEL, stage=N, replica=N, worker=DP,PP"
            ) from None


def _worker(text: str) -> tuple[int, int]:
    dp, pp = text.split(",")
    return int(dp), int(pp)
