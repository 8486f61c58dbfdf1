"""Advice for a job: causes of its slowness, the waterfall, and the gain of each remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.diagnose import Communication, Diagnosis, Waterfall, communication, waterfall
from paceline.errors import RemedyError
from paceline.remedies.outcome import finding_of
from paceline.remedies.remedy import Case, Remedy, RemedyKind

#: A repair that saves less than this share of its cause's cost leaves a step waiting for others.
MASKED = 0.5


@dataclass(frozen=True)
class Advice:
    """The diagnosis of a job and its remedies.

    Attributes:
        diagnosis: causes, by share.
        fall: the waterfall.
        remedies: remedies that answer findings, by gain, largest first; conditional ones last.
        not_applicable: remedy -> the reason why it does not apply.
        architecture: changes of the job's architecture, by gain.
        hints: options that would give Paceline more information.
        masked: ids of findings whose repair alone leaves a step that waits for other causes.
        communication: the collectives for which the step waits; None without recorded programs.
    """

    diagnosis: Diagnosis
    fall: Waterfall
    remedies: tuple[Remedy, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    architecture: tuple[Remedy, ...] = ()
    hints: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    communication: Communication | None = None


def advise(case: Case, kinds: tuple[RemedyKind, ...]) -> Advice:
    """The waterfall and the remedies of a diagnosed case."""
    diagnosis = case.diagnosis
    fall = waterfall(case.measured, case.result, diagnosis.findings, diagnosis.healthy)
    proposed, refused = propose_all(case, kinds)
    return Advice(
        case.diagnosis,
        fall,
        tuple(remedy for remedy in proposed if not remedy.architecture),
        refused,
        tuple(remedy for remedy in proposed if remedy.architecture),
        _hints(case),
        _masked(case, proposed, {kind.name for kind in kinds if kind.repairs}),
        communication(case.measured, case.result),
    )


def _hints(case: Case) -> tuple[str, ...]:
    if case.layers is not None or finding_of(case, "stage-imbalance") is None:
        return ()
    n_pp = case.measured.graph.n_pp
    return (
        f"give --layers ({','.join(['N'] * n_pp)}: the layers of each stage) to get the best split "
        "of the layers over the stages and its gain",
    )


def _masked(case: Case, proposed: Sequence[Remedy], repairs: Collection[str]) -> tuple[str, ...]:
    """Ids of findings inside S whose repair saves much less than they cost."""
    inside = [f for f in case.diagnosis.findings if f.share is not None]
    cost = {f.id: f.share_of_step for f in inside if f.cause != "unexplained"}
    if len(cost) < 2:
        return ()
    alone = {
        r.findings[0]: r.gain for r in proposed if r.remedy in repairs and len(r.findings) == 1
    }
    return tuple(i for i, of_step in cost.items() if alone.get(i, of_step) < MASKED * of_step)


def propose_all(case: Case, kinds: tuple[RemedyKind, ...]) -> tuple[list[Remedy], dict[str, str]]:
    """Remedies by gain, conditional ones last, and the reasons why the others do not apply.

    A job without findings gets only changes of its architecture, which need recorded programs.
    """
    proposed: list[Remedy] = []
    refused: dict[str, str] = {}
    causes = {finding.cause for finding in case.diagnosis.findings}
    others = {finding.alternative for finding in case.diagnosis.findings}

    def ask(kind: RemedyKind) -> Remedy | str:
        if not causes and not kind.architecture:
            return "the job has no findings"
        answered = causes | (others if kind.repairs else set())
        if kind.causes and not kind.causes & answered:
            return f"no finding of {' or '.join(sorted(kind.causes))}"
        try:
            return kind.proposed(case)
        except RemedyError as error:
            return str(error)

    for kind in kinds:
        if kind.of_programs and not case.measured.programs:
            continue
        answer = ask(kind)
        if isinstance(answer, str):
            refused[kind.name] = answer
        else:
            proposed.append(answer)
    return sorted(proposed, key=lambda remedy: remedy.rank), refused
