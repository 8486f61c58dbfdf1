"""All that is known of a job's slowness: causes, the waterfall, and what each remedy would gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.diagnose import Diagnosis, Waterfall, waterfall
from paceline.errors import RemedyError
from paceline.remedies.remedy import Case, Remedy, RemedyKind


@dataclass(frozen=True)
class Advice:
    """The diagnosis of a job and its remedies.

    Attributes:
        diagnosis: causes, by share.
        fall: where the time goes.
        remedies: by gain, largest first.
        not_applicable: remedy -> why it does not apply.
    """

    diagnosis: Diagnosis
    fall: Waterfall
    remedies: tuple[Remedy, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)


def advise(case: Case, kinds: tuple[RemedyKind, ...]) -> Advice:
    """All that is known: waterfall and remedies for a diagnosed case."""
    fall = waterfall(case.measured, case.result, case.diagnosis.findings)
    remedies, refused = propose_all(case, kinds)
    return Advice(case.diagnosis, fall, tuple(remedies), refused)


def propose_all(case: Case, kinds: tuple[RemedyKind, ...]) -> tuple[list[Remedy], dict[str, str]]:
    """Remedies for the causes found, by gain, and why the others do not apply."""
    proposed: list[Remedy] = []
    refused: dict[str, str] = {}
    causes = {finding.cause for finding in case.diagnosis.findings}
    if not causes:  # healthy: nothing to answer
        return [], {kind.name: "the job has no findings" for kind in kinds}

    def ask(kind: RemedyKind) -> Remedy | str:
        if kind.causes and not kind.causes & causes:
            return f"no finding of {' or '.join(sorted(kind.causes))}"
        try:
            return kind.propose(case)
        except RemedyError as error:
            return str(error)

    for kind in kinds:
        answer = ask(kind)
        if isinstance(answer, str):
            refused[kind.name] = answer
        else:
            proposed.append(answer)
    return sorted(proposed, key=lambda remedy: -remedy.gain), refused
