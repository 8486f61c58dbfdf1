"""Findings and remedies as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.diagnose import Diagnosis, Finding
from paceline.remedies import Remedy
from paceline.report.page.figures import Hosts, host_name
from paceline.report.page.markup import bar, escaped, foreign, pairs, percent, seconds

CAUSES = {
    "worker": "Worker fault",
    "stage-imbalance": "Stage imbalance",
    "sequence-length": "Sequence-length imbalance",
    "gc": "Garbage collection",
    "link": "Slow link",
    "dp-network": "Data-parallel network",
    "unexplained": "Unexplained",
    "launch-delay": "Launch delay",
    "drift": "Drift over the job",
}

_MAX_WORKERS = 12


def findings_html(diagnosis: Diagnosis, remedies: Sequence[Remedy], hosts: Hosts | None) -> str:
    """A card for each finding, in the order of the diagnosis."""
    if not diagnosis.findings:
        return "<p>No cause was found.</p>"
    answers: dict[str, list[int]] = {}
    for rank, remedy in enumerate(ranked(remedies), 1):
        for finding in remedy.findings:
            answers.setdefault(finding, []).append(rank)
    cards = (_card(f, answers.get(f.id, []), hosts) for f in diagnosis.findings)
    return f'<ol class="cards">{"".join(cards)}</ol>'


def ranked(remedies: Sequence[Remedy]) -> list[Remedy]:
    """By gain, largest first; changes of the architecture behind the others."""
    return sorted(remedies, key=lambda remedy: (remedy.architecture, -remedy.gain))


def _card(finding: Finding, remedies: Sequence[int], hosts: Hosts | None) -> str:
    unexplained = finding.cause == "unexplained"
    low, high = finding.interval
    between = f"{percent(low)} to {percent(high)}"
    of_step = f"{percent(finding.share_of_step)} of the step"
    if finding.share is None:
        size, about = percent(finding.share_of_step), f"of the step (90%: {between}); outside S"
    else:
        size, about = percent(finding.share), f"of the loss (90%: {between}) = {of_step}"
    shown = finding.share_of_step if finding.share is None else finding.share
    sure = "" if unexplained else f"; holds in {percent(finding.confidence, 0)} of the resamples"
    anchor = escaped(f"finding-{finding.id}")
    parts = [
        f'<li class="card{" quiet" if unexplained else ""}" id="{anchor}">',
        f"<h3>{escaped(CAUSES.get(finding.cause, finding.cause))}</h3>",
        f'<p class="size"><strong>{size}</strong> {about}{sure}</p>',
        bar(0, abs(shown), name="negative" if shown < 0 else "share"),
        f"<p>{_capital(finding.text)}</p>",
        f'<p class="note">Ambiguous: {escaped(finding.ambiguous)}.</p>'
        if finding.ambiguous
        else "",
        _where(finding.where, hosts),
        pairs(finding.evidence, name="evidence") if finding.evidence else "",
        _links(remedies),
        "</li>",
    ]
    return "".join(parts)


def _capital(text: str) -> str:
    return foreign(text[:1].upper() + text[1:])


def _where(where: Mapping[str, Any], hosts: Hosts | None) -> str:
    """The workers that a finding blames, with their machines."""
    workers = where.get("workers") or where.get("link") or []
    items = []
    for dp, pp in workers[:_MAX_WORKERS]:
        host = host_name(hosts, dp, pp)
        items.append(
            f"dp&nbsp;{int(dp)}, stage&nbsp;{int(pp)}" + (f" ({foreign(host)})" if host else "")
        )
    if not items:
        return ""
    more = f" and {len(workers) - _MAX_WORKERS:,} more" if len(workers) > _MAX_WORKERS else ""
    return f'<p class="where"><b>Where:</b> {"; ".join(items)}{more}</p>'


def _links(remedies: Sequence[int]) -> str:
    if not remedies:
        return ""
    links = ", ".join(f'<a href="#remedy-{rank}">remedy {rank}</a>' for rank in remedies)
    return f'<p class="links">Answered by {links}</p>'


def remedies_html(
    remedies: Sequence[Remedy], findings: Sequence[Finding], not_applicable: Mapping[str, str]
) -> str:
    """Remedies by gain, then changes of the architecture, and why others do not apply."""
    causes = {f.id: CAUSES.get(f.cause, f.cause) for f in findings}
    top = max((abs(x) for r in remedies for x in (r.gain, *r.interval)), default=1.0) or 1.0
    cards: dict[bool, list[str]] = {False: [], True: []}
    for rank, remedy in enumerate(ranked(remedies), 1):
        cards[remedy.architecture].append(_remedy(rank, remedy, causes, top))
    text = _cards(cards[False]) or "<p>No remedy is proposed.</p>"
    if cards[True]:
        text += "<h3>Changes of the job's architecture</h3>"
        text += f"<p>They answer none of the findings.</p>{_cards(cards[True])}"
    if not_applicable:
        items = (
            f"<div><dt>{escaped(name)}</dt><dd>{foreign(why)}</dd></div>"
            for name, why in not_applicable.items()
        )
        text += f"<details><summary>Not applicable here ({len(not_applicable)})</summary>"
        text += f'<dl class="reasons">{"".join(items)}</dl></details>'
    return text


def _cards(cards: Sequence[str]) -> str:
    return f'<ol class="cards remedies">{"".join(cards)}</ol>' if cards else ""


def _remedy(rank: int, remedy: Remedy, causes: Mapping[str, str], top: float) -> str:
    low, high = remedy.interval
    answers = ", ".join(
        f'<a href="#finding-{escaped(i)}">{escaped(causes[i])}</a>' if i in causes else foreign(i)
        for i in remedy.findings
    )
    name = escaped(remedy.remedy.replace("-", " ").capitalize())
    parts = [
        f'<li class="card" id="remedy-{rank}">',
        f'<h3><span class="rank">{rank}</span> {name}</h3>',
        f'<p class="size"><strong>{percent(remedy.gain)}</strong> shorter steps '
        f"(90%: {percent(low)} to {percent(high)}); "
        f"new mean step {seconds(remedy.step_time_s)}</p>",
        _gain_bar(remedy, top),
        f"<p>{_capital(remedy.text)}</p>",
        pairs(remedy.change, name="evidence") if remedy.change else "",
        _notes(remedy.notes),
        f'<p class="links">Answers {answers}</p>' if answers else "",
        "</li>",
    ]
    return "".join(parts)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="note">{"".join(f"<li>{foreign(note)}</li>" for note in notes)}</ul>'


def _gain_bar(remedy: Remedy, top: float) -> str:
    """The gain, with its interval as a line."""
    low, high = (min(max(x / top, 0.0), 1.0) for x in remedy.interval)
    whisker = f'<i class="whisker" style="left:{low:.2%};width:{high - low:.2%}"></i>'
    name = "negative" if remedy.gain < 0 else "gain"
    return bar(0, abs(remedy.gain) / top, name=name).replace("</span>", f"{whisker}</span>")
