"""What terminal and report say of findings and remedies: in words, with units, no raw keys."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from advised_jobs import EXTREMES, JOBS, Advised, every_remedy, extreme, job, page_of, report_of
from paceline.diagnose import Finding
from paceline.diagnose.finding import CAUSES
from paceline.remedies import REMEDIES
from paceline.report.page.findings import findings_html
from paceline.report.terminal import screen
from paceline.report.why import diagnosis_lines, remedy_lines, why_lines
from paceline.results.headline import MAX_LENGTH, details, headline, is_healthy
from paceline.results.words.changes import change_phrases
from paceline.results.words.evidence import evidence_phrases
from paceline.results.words.names import confidence_text, hedge, remedy_name
from paceline.results.words.readings import other_reading
from paceline.results.words.shares import share_of_loss, size_of_loss
from paceline.units import count, percent, quantity, seconds, several, times

#: What no reader should see: keys, exponents, the repr of a container or of nothing.
RAW = re.compile(
    r"[a-z0-9]+_[a-z0-9_]+|\d[eE][+-]?\d|[\[\]{}]|\b(?:None|True|False|nan|inf)\b|\('|\(\d+, \d"
)
#: What users have to type for a remedy, in the words of torch.
SETTINGS = re.compile(
    r"set_modules_to_(forward|backward)_prefetch|_set_unshard_async_op\(True\)|no_sync\(\)|"
    r"reshard_after_forward=False|set_requires_gradient_sync\(False\)|bucket_cap_mb"
)
#: Milliseconds that are seconds, and seconds that are milliseconds.
ODD_UNIT = re.compile(r"\d{4,}(?:\.\d+)? [mµn]s\b|,\d{3} [mµn]s\b|\b0\.0\d* s\b")


class Visible(HTMLParser):
    """The text of a page without scripts, styles and raw numbers, which are folded away."""

    VOID = ("meta", "br", "img", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.open: list[tuple[str, bool]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.VOID:
            return
        folded = tag in ("script", "style") or ("class", "raw") in attrs
        self.open.append((tag, folded))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and not any(folded for _, folded in self.open):
            self.lines.append(data)


def texts_of(known: Advised) -> Iterator[str]:
    """All that is said of a job; the warnings of the analysis are not ours."""
    width = 10_000  # no line is broken
    quiet = replace(known, result=replace(known.result, doubts=()))
    yield from (line.plain for line in diagnosis_lines(report_of(quiet), width, 2.0))
    for line in screen(report_of(quiet), 132, colour=False):
        yield line.plain
    yield from Visible(page_of(quiet)).lines
    yield headline(report_of(known))
    yield from details(report_of(known))


def test_the_loss_is_a_share_of_the_simulated_and_of_the_traced_step():
    report = report_of(job("worker"))
    traced = {step: 1.25 * step_s for step, step_s in report.step_time_s.simulated.items()}
    delayed = replace(report, step_time_s=replace(report.step_time_s, traced=traced))
    waste = 1 - 1 / report.slowdown_healthy
    loss = f"{percent(waste)} of the simulated step, {percent(waste / 1.25)} of the traced one"
    lines = [line.plain for line in screen(delayed, 80, colour=False)]
    assert f"   step    loss  the loss of time is {loss}" in lines
    same = dict(report.step_time_s.simulated)
    report = replace(report, step_time_s=replace(report.step_time_s, traced=same))
    assert size_of_loss(report) == f"{percent(waste)} of the traced step"


def test_short_traces_count_gpu_seconds():
    report = report_of(job("worker"))
    gpu_s = report.job.world_size * len(report.steps) * report.waterfall.actual_s
    assert gpu_s < 3600
    for share, unit, total in ((1, "GPU-seconds", gpu_s), (1e3, "GPU-hours", gpu_s / 3.6)):
        longer = replace(report.waterfall, actual_s=report.waterfall.actual_s * share)
        lines = [line.plain for line in diagnosis_lines(replace(report, waterfall=longer), 80, 2.0)]
        (head,) = [
            i for i, line in enumerate(lines) if line.split() == ["time", "share", unit, "cost"]
        ]
        cost = gpu_s * share / 1800
        assert lines[head + 1].split()[5:7] == [f"{total:,.2f}", f"{cost:,.2f}"]


def test_the_jobs_have_every_cause_and_every_remedy():
    known = [job(name) for name in JOBS]
    causes = {f.cause for each in known for f in each.advice.diagnosis.findings}
    ids = {f.id for each in known for f in each.advice.diagnosis.findings}
    assert causes == set(CAUSES)
    assert {"trend", "change-point", "odd-steps", "two-modes"} <= ids
    names = {remedy.remedy for each in known for remedy in every_remedy(each)}
    assert names == {kind.name for kind in REMEDIES}


@pytest.mark.parametrize("name", JOBS)
def test_nothing_raw_is_seen(name):
    for text in texts_of(job(name)):
        found = RAW.search(SETTINGS.sub("", text)) or ODD_UNIT.search(text)
        assert found is None, (found, text)


@pytest.mark.parametrize("name", JOBS)
def test_every_finding_and_remedy_has_phrases_with_its_numbers(name):
    known = job(name)
    for finding in known.advice.diagnosis.findings:
        text = "; ".join(evidence_phrases(finding))
        assert text or finding.cause == "unexplained"
        for key, value in finding.evidence.items():
            if key.endswith("_s") and isinstance(value, float):
                assert seconds(value) in text, key
    for remedy in every_remedy(known):
        text = "; ".join(change_phrases(remedy))
        assert text
        for key, value in remedy.change.items():
            if key.endswith("_s") and isinstance(value, float):
                assert seconds(value) in text, key


@pytest.mark.parametrize("name", JOBS)
def test_the_headline_is_short_and_says_what_the_details_measure(name):
    known = job(name)
    text = headline(report_of(known))
    assert len(text) <= MAX_LENGTH
    below = details(report_of(known))
    findings = [f for f in known.advice.diagnosis.findings if f.cause != "unexplained"]
    assert bool(below) == bool(findings)
    if findings:
        assert confidence_text(findings[0].confidence) in below[0].lower()


@pytest.mark.parametrize("cause", EXTREMES)
@pytest.mark.parametrize("straggling", [True, False])
def test_extreme_numbers_stay_short_and_readable(cause, straggling):
    known, finding, _ = extreme(cause, straggling=straggling)
    text = headline(report_of(known))
    assert len(text) <= MAX_LENGTH
    for phrase in (*evidence_phrases(finding), text):
        assert RAW.search(phrase) is None, phrase
        assert ODD_UNIT.search(phrase) is None, phrase
        assert len(phrase) < 250


def test_seconds_have_the_unit_that_reads_well():
    cases = {
        7301.4: "7,301 s",
        2.6: "2.600 s",
        0.9999: "0.9999 s",
        0.0203: "20.3 ms",
        1.23e-5: "12.3 µs",
        5e-9: "5.00 ns",
        0.0: "0 s",
        -0.0181: "−18.1 ms",
        float("nan"): "–",
    }
    assert {value: seconds(value) for value in cases} == cases


def test_other_numbers_read_well():
    assert (times(1.8), times(59.94), times(1234.5)) == ("1.80 times", "59.9 times", "1,234 times")
    assert (percent(131.031), percent(float("inf"))) == ("13,103.1%", "–")
    assert (quantity(11_008), quantity(0.12345)) == ("11,008", "0.1235")
    assert (count(1, "step"), count(1024, "microbatch", "microbatches")) == (
        "1 step",
        "1,024 microbatches",
    )
    assert several(["a", "b", "c"], 2) == "a, b and 1 more"


def test_confidence_in_words_never_rounds_up_to_a_better_word():
    said = {
        1.0: "nearly certain (over 99%)",
        0.9961: "nearly certain (over 99%)",
        0.9899: "very likely (98%)",
        0.9: "very likely (90%)",
        0.8999: "likely (89%)",
        0.7: "likely (70%)",
        0.6: "possible (60%)",
        0.29: "a guess (29%)",
    }
    assert {value: confidence_text(value) for value in said} == said
    assert [hedge(value) for value in (0.95, 0.8, 0.6, 0.1)] == [
        "", "likely ", "possibly ", "perhaps "
    ]  # fmt: skip


def test_a_doubtful_cause_is_no_certainty_in_the_headline():
    known = job("most of a stage")
    text = headline(report_of(known))
    assert ": possibly 6 workers are slow" in text


def test_the_other_reading_stands_beside_the_finding_with_both_gains():
    known = job("most of a stage")
    finding = known.advice.diagnosis.findings[0]
    assert finding.alternative == "stage-imbalance"
    remedies = list(every_remedy(known))
    gain = percent(max(r.gain for r in remedies if finding.id in r.findings))
    reading = other_reading(finding, remedies)
    assert reading.startswith(
        f"or: {finding.ambiguous}. Read as worker fault: replace worker saves"
    )
    assert gain in reading
    assert reading.endswith("read as stage imbalance: no gain is predicted")
    split = replace(
        remedies[0], remedy="stage-layout", findings=(), gain=0.123, change={"bound": 1}
    )
    both = other_reading(finding, [*remedies, split])
    assert both.endswith("read as stage imbalance: stage layout saves at most 12.3% of the step")
    flowing = " ".join(" ".join(texts_of(known)).split())
    assert flowing.count(reading) >= 2  # terminal; in the page its first letter is large
    assert reading.replace("or:", "Or:") in flowing
    assert other_reading(replace(finding, ambiguous=""), remedies) is None


def test_shares_of_the_step_and_of_the_loss_are_told_alike():
    known = job("worker")
    report = report_of(known)
    remedy, finding = report.remedies[0], report.findings[0]
    gap_s = float(report.simulated_s.mean()) - report.healthy_step_s
    of_loss = share_of_loss(report, remedy)
    saved_s = float(report.simulated_s.mean()) - remedy.step_time_s
    assert of_loss == pytest.approx(saved_s / gap_s, rel=1e-6)
    flowing = " ".join(texts_of(known))
    for of_step, part in ((finding.share_of_step, finding.share), (remedy.gain, of_loss)):
        assert f"{percent(of_step)} of the step, {percent(part)} of the loss (90%: " in flowing
        assert f"{percent(of_step):>7} {percent(part):>7}  " in flowing
    assert share_of_loss(report, replace(remedy, findings=())) is None
    assert share_of_loss(replace(report, slowdown=1.01, slowdown_healthy=1.02), remedy) is None
    assert share_of_loss(replace(report, findings=()), remedy) is None


def test_a_share_of_the_loss_is_unknown_if_its_interval_is_wider_than_the_loss():
    known = job("worker")
    report = report_of(known)
    wide = [
        replace(f, share=-0.682, interval=(-4.279, 0.004)) if f.share is not None else f
        for f in report.findings
    ]
    report = replace(report, findings=tuple(wide))
    page = findings_html(report)
    brief, whole = (
        " ".join(line.plain for line in lines(report, 10_000))
        for lines in (why_lines, diagnosis_lines)
    )
    assert "of the step; its share of the loss differs too much" in page
    assert "of the step, its share of the loss differs too much" in whole
    assert " unknown  " in brief
    for text in (page, brief, whole):
        assert "68.2%" not in text
        assert "427.9%" not in text


def test_remedies_that_do_not_apply_are_named_in_a_line_unless_all_is_asked():
    report = report_of(job("worker"))
    names = list(report.not_applicable)
    brief = "\n".join(line.plain for line in diagnosis_lines(report, 10_000, every=False))
    assert (
        f"not applicable: {len(names)} remedies ({', '.join(names)}); --all gives the reasons"
        in brief
    )
    assert all(reason not in brief for reason in report.not_applicable.values())
    whole = "\n".join(line.plain for line in diagnosis_lines(report, 10_000))
    assert all(reason in whole for reason in report.not_applicable.values())


def test_a_small_finding_of_a_healthy_job_is_shown_as_small():
    known = job("small")
    assert is_healthy(report_of(known))
    finding = known.advice.diagnosis.findings[0]
    assert headline(report_of(known)).startswith("Healthy, within")
    page = page_of(known)
    assert f"Small: {finding.text}" in page
    assert 'id="remedy-1"' in page
    plain = [line.plain for line in diagnosis_lines(report_of(known), 120)]
    assert any(line.startswith("Healthy, within") for line in plain)
    assert f"  small: {finding.text}" in plain
    lines = [line.plain for line in screen(report_of(known), 120, colour=False)]
    start = f"{finding.share_of_step:7.1%} {finding.share:7.1%}  small: {finding.text}"
    assert any(line.startswith(start) for line in lines)


def test_both_slowdowns_are_shown_where_the_references_differ():
    known = job("two references")
    assert known.result.slow_mode_shares
    paper = f"{known.result.slowdown_paper:.3f} by the paper's reference"
    shown = " ".join(texts_of(known))
    assert shown.count(paper) == 3  # diagnose, analyze, page
    alike = job("worker")
    assert "by the paper's reference" not in " ".join(texts_of(alike))


@pytest.mark.parametrize(
    ("interval", "told"), [((0.05, 0.14), False), ((-0.01, 0.2), True), ((0.02, 0.15), True)]
)
def test_a_wide_interval_of_a_gain_stands_beside_it(interval, told):
    known = report_of(job("worker"))
    remedy = replace(known.remedies[0], gain=0.1, interval=interval)
    text = " ".join(line.plain for line in why_lines(replace(known, remedies=(remedy,)), 200))
    low, high = (percent(end) for end in interval)
    assert (f"(90%: saves {low} to {high})" in text) is told


def test_terminal_remedies_keep_the_name_that_the_command_takes():
    remedy = job("late member").advice.remedies[0]
    assert "fix-nic" in remedy_lines(remedy, 100, 8)[0].plain
    assert remedy_name("fix-nic") == "Fix NIC"


def test_a_stage_is_compared_with_the_others():
    finding = Finding(
        "stage-imbalance", "stage-imbalance", "x", 0.9, 0.2, (0.8, 1.0), 1.0,
        {"stage": 1}, {"loads_s": [0.4, 0.6]},
    )  # fmt: skip
    assert evidence_phrases(finding)[0] == "stage 1 takes 1.50 times the other stage"
    four = replace(finding, evidence={"loads_s": [0.4, 0.8, 0.5, 0.3]})
    assert evidence_phrases(four)[0] == "stage 1 takes 2.00 times the median of the other stages"


def test_slow_groups_are_a_sentence_each():
    rows = [("grads-reduce-scatter", 3.2), ("params-all-gather", 2.5)]
    groups = [
        {"stage": 2, "kind": kind, "median_over_usual": factor, "slow_share": 1.0}
        for kind, factor in rows
    ]
    finding = Finding(
        "dp-network", "dp-network", "x", 0.9, 0.2, (0.8, 1.0), 1.0,
        {"group": {"stage": 2}}, {"groups": groups, "threshold": 1.3},
    )  # fmt: skip
    assert evidence_phrases(finding)[0] == (
        "grads-reduce-scatter of stage 2 takes 3.20 times the usual time in 100% of the steps; "
        "params-all-gather of stage 2 takes 2.50 times the usual time in 100% of the steps "
        "(counts from 1.30 times)"
    )


def test_evidence_and_changes_say_what_they_mean():
    known = job("sequences")
    (balance,) = known.advice.remedies
    total = balance.change["moves"]
    moved = round(balance.change["moved_between_ranks"] * total)
    assert f"moves {moved:,} of {total:,} sequences (" in change_phrases(balance)[0]
    (late, *_) = job("late member").advice.diagnosis.findings
    assert f"it ends {seconds(late.evidence['late_s'])} late" in evidence_phrases(late)[0]
    (layout, *_) = job("stage with layers").advice.remedies
    assert change_phrases(layout)[0] == "layers by stage: 11, 10, 10, 5; now 9, 9, 9, 9"
