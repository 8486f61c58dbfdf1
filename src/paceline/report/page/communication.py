"""Exposed and hidden communication as HTML; empty without recorded programs."""

from __future__ import annotations

from paceline.diagnose import Communication, Finding
from paceline.report.page.markup import bar, escape, foreign, table
from paceline.results.words.communication import HEAD, noun, part_rows, rows, summary
from paceline.results.words.names import cause_name, confidence_text
from paceline.units import percent, seconds

#: Most units and buckets in the table.
MAX_PARTS = 16


def communication_html(communication: Communication | None) -> str:
    """The section of the page."""
    if communication is None:
        return ""
    return (
        '<section id="communication" aria-labelledby="h-communication">'
        '<h2 id="h-communication">Communication</h2>'
        "<p>Exposed is what the simulated step would shrink by if the transfers took no time; the "
        "rest hides behind computes. Exposed times do not add up: where two transfers run side by "
        "side, neither shortens the step alone. Waited for is how long a worker's program stands, "
        "for the transfer or for peers that come late to it.</p>"
        f"<p>{escape(summary(communication)[:1].upper() + summary(communication)[1:])}.</p>"
        f"{_findings(communication)}"
        '<figure aria-label="Exposed communication by kind">'
        f"{_table(rows(communication), 'Kinds of collectives')}"
        '</figure><figure aria-label="The most exposed communication">'
        f"{_table(part_rows(communication, MAX_PARTS), 'The most exposed units or buckets')}"
        "</figure>"
        "</section>"
    )


def exposed_texts(communication: Communication | None) -> dict[str, dict[str, str]]:
    """Texts of collectives in the timeline, by kind, stage and part; empty without programs."""
    if communication is None:
        return {}
    name = noun(communication.by_part)
    texts: dict[str, str] = {}
    for exposure in communication.by_part:
        key = f"{exposure.kind} {exposure.stage} {exposure.part}"
        told = f"{name} {exposure.part}: {seconds(exposure.exposed_s)} exposed in a mean step"
        texts[key] = f"{name} {exposure.part}" if key in texts else told  # several chunks
    return {"exposed": texts}


def _table(body: list[tuple[str, ...]], caption: str) -> str:
    if not body:
        return ""
    cells = [[foreign(row[0]), *map(escape, row[1:])] for row in body]
    return table(HEAD, cells, caption=caption, name="workers")


def _findings(communication: Communication) -> str:
    cards = "".join(map(_card, communication.findings))
    return f'<ol class="cards">{cards}</ol>' if cards else ""


def _card(finding: Finding) -> str:
    low, high = map(percent, finding.interval)
    return (
        f'<li class="card"><h3>{escape(cause_name(finding.cause))}</h3>'
        f'<p class="size"><strong class="number">{percent(finding.share_of_step)}</strong> of the '
        f"step (90%: {low} to {high}); outside S; "
        f"<strong>{escape(confidence_text(finding.confidence))}</strong></p>"
        f"{bar(0, finding.share_of_step, name='share')}"
        f"<p>{foreign(finding.text[:1].upper() + finding.text[1:])}.</p></li>"
    )
