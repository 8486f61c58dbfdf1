"""Findings and remedies as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.diagnose import Finding
from paceline.remedies import Remedy
from paceline.report.page.figures import host_name
from paceline.report.page.markup import bar, escape, foreign, pairs
from paceline.results.document import JobReport
from paceline.results.headline import is_negative_rest, is_small
from paceline.results.words.changes import change_phrases
from paceline.results.words.evidence import evidence_phrases
from paceline.results.words.names import cause_name, confidence_text, remedy_name
from paceline.results.words.readings import other_reading
from paceline.results.words.shares import (
    interval_text,
    masked_note,
    part_of,
    share_of_loss,
    share_text,
)
from paceline.trace.job import place_name
from paceline.units import percent, seconds

_MAX_WORKERS = 12


def findings_html(report: JobReport) -> str:
    """A card for each finding, in the order of the diagnosis."""
    findings = [finding for finding in report.findings or () if not is_negative_rest(finding)]
    if not findings:
        return "<p>No cause was found.</p>"
    ranks_of: dict[str, list[int]] = {}
    for rank, remedy in enumerate(rank_remedies(report.every_remedy), 1):
        for finding in remedy.findings:
            ranks_of.setdefault(finding, []).append(rank)
    cards = (_card(f, ranks_of.get(f.id, []), report) for f in findings)
    return f'<ol class="cards">{"".join(cards)}</ol>'


def details_html(sentences: Sequence[str]) -> str:
    """The text below the headline, a paragraph for each sentence."""
    return "".join(f'<p class="lead">{foreign(sentence)}</p>' for sentence in sentences)


def rank_remedies(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Remedies by gain, conditional ones behind; changes of the architecture come last."""
    return sorted(remedies, key=lambda remedy: (remedy.architecture, remedy.rank))


def _card(finding: Finding, ranks: Sequence[int], report: JobReport) -> str:
    unexplained = finding.cause == "unexplained"
    reading = other_reading(finding, report.every_remedy)
    small = is_small(finding)
    text = f"small: {finding.text}" if small else finding.text
    quiet = unexplained or small
    html = [
        f'<li class="card{" quiet" if quiet else ""}" id="{escape(f"finding-{finding.id}")}">',
        f"<h3>{escape(cause_name(finding.cause))}</h3>",
        _size(finding, report),
        f"<p>{_capital(text)}</p>",
        f'<p class="note">{_capital(reading)}.</p>' if reading else "",
        _location(finding.where, report),
        _phrases(evidence_phrases(finding, report.all_reduces)),
        _links(ranks),
        _raw(finding.evidence),
        "</li>",
    ]
    return "".join(html)


def _size(finding: Finding, report: JobReport) -> str:
    """Its cost with interval, confidence and a bar; no cost for a part of another finding."""
    if finding.part_of:
        text = part_of(finding, report)
        name = escape(text[:1].upper() + text[1:])
        link = f'<a href="#finding-{escape(finding.part_of)}">{name}</a>'
        sure = escape(confidence_text(finding.confidence))
        return f'<p class="size">{link}; <strong>{sure}</strong></p>'
    of_step = finding.share_of_step
    about = f"of the step ({interval_text(finding.interval, len(report.steps))}); outside S"
    if finding.share is not None:
        about = f"of the step; {share_text(finding, len(report.steps))}"
    sure = ""
    if finding.cause != "unexplained":
        sure = f"; <strong>{escape(confidence_text(finding.confidence))}</strong>"
    return (
        f'<p class="size"><strong class="number">{percent(of_step)}</strong> {about}{sure}</p>'
        f"{bar(0, abs(of_step), name='negative' if of_step < 0 else 'share')}"
    )


def _phrases(phrases: Sequence[str]) -> str:
    items = "".join(f"<li>{_capital(phrase)}</li>" for phrase in phrases)
    return f'<ul class="phrases">{items}</ul>' if items else ""


def _raw(entries: Mapping[str, Any]) -> str:
    """All numbers under their names in ``result.json``, folded away."""
    if not entries:
        return ""
    return (
        '<details class="raw"><summary>Numbers as in result.json</summary>'
        f"{pairs(entries, name='evidence')}</details>"
    )


def _capital(text: str) -> str:
    return foreign(text[:1].upper() + text[1:])


def _location(where: Mapping[str, Any], report: JobReport) -> str:
    """The workers that a finding blames, with their machines."""
    workers = where.get("workers") or where.get("link") or []
    items = []
    for place in workers[:_MAX_WORKERS]:
        host = host_name(report.hosts, *report.job.worker_at(place))
        name = ", ".join(word.replace(" ", "&nbsp;") for word in place_name(place).split(", "))
        items.append(name + (f" ({foreign(host)})" if host else ""))
    if not items:
        return ""
    overflow = f" and {len(workers) - _MAX_WORKERS:,} more" if len(workers) > _MAX_WORKERS else ""
    return f'<p class="where"><b>Where:</b> {"; ".join(items)}{overflow}</p>'


def _links(remedies: Sequence[int]) -> str:
    if not remedies:
        return ""
    links = ", ".join(f'<a href="#remedy-{rank}">remedy {rank}</a>' for rank in remedies)
    return f'<p class="links">Answered by {links}</p>'


def remedies_html(report: JobReport) -> str:
    """Remedies by gain, changes of the architecture, and reasons why others do not apply."""
    remedies, not_applicable = report.every_remedy, report.not_applicable
    top = max((abs(x) for r in remedies for x in (r.gain, *r.interval)), default=1.0) or 1.0
    cards: dict[bool, list[str]] = {False: [], True: []}
    for rank, remedy in enumerate(rank_remedies(remedies), 1):
        cards[remedy.architecture].append(_remedy(rank, remedy, report, top))
    text = _cards(cards[False]) or "<p>No remedy is proposed.</p>"
    if masked := masked_note(report):
        text += f'<p class="note">{escape(masked)}</p>'
    if cards[True]:
        text += "<h3 class=list>Changes of the job's architecture</h3>"
        text += (
            f"<p>They repair no cause above, but make the step shorter.</p>{_cards(cards[True])}"
        )
    if not_applicable:
        items = (
            f"<div><dt>{foreign(remedy_name(name))}</dt><dd>{foreign(reason)}</dd></div>"
            for name, reason in not_applicable.items()
        )
        text += f"<details><summary>Not applicable here ({len(not_applicable)})</summary>"
        text += f'<dl class="reasons">{"".join(items)}</dl></details>'
    return text


def _cards(cards: Sequence[str]) -> str:
    return f'<ol class="cards remedies">{"".join(cards)}</ol>' if cards else ""


def _remedy(rank: int, remedy: Remedy, report: JobReport, top: float) -> str:
    interval = interval_text(remedy.interval, len(report.steps), " of the step")
    causes = {f.id: cause_name(f.cause) for f in report.diagnosis.findings}
    of_loss = share_of_loss(report, remedy)
    loss = "" if of_loss is None else f", {percent(of_loss)} of the loss"
    answered = ", ".join(
        f'<a href="#finding-{escape(i)}">{escape(causes[i])}</a>' if i in causes else foreign(i)
        for i in remedy.findings
    )
    at_most = "at most " if remedy.is_bound else ""
    html = [
        f'<li class="card" id="remedy-{rank}">',
        f'<h3><span class="rank">{rank}</span> {foreign(remedy_name(remedy.remedy))}</h3>',
        f'<p class="size">saves {at_most}<strong class="number">{percent(remedy.gain)}</strong> of '
        f"the step{loss} ({interval}); "
        f"new mean step {seconds(remedy.step_time_s)}</p>",
        _gain_bar(remedy, top),
        f"<p>{_capital(remedy.action or remedy.text)}</p>",
        _phrases(change_phrases(remedy, report.all_reduces)),
        _notes(remedy.notes),
        f'<p class="links">Answers {answered}</p>' if answered else "",
        _raw(remedy.change),
        "</li>",
    ]
    return "".join(html)


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="note">{"".join(f"<li>{foreign(note)}</li>" for note in notes)}</ul>'


def _gain_bar(remedy: Remedy, top: float) -> str:
    """The gain, with its interval as a line."""
    low, high = (min(max(x / top, 0.0), 1.0) for x in remedy.interval)
    name = "negative" if remedy.gain < 0 else "gain"
    return bar(0, abs(remedy.gain) / top, name=name, interval=(low, high))
