"""The HTML report: what it says, that it is whole, that hostile names do no harm."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from paceline.diagnose import Diagnosis, diagnose, waterfall
from paceline.diagnose.finding import NOWHERE, Finding
from paceline.diagnose.waterfall import Drop, Waterfall
from paceline.graph import from_trace
from paceline.remedies import Advice, Remedy
from paceline.report.html import report_writer
from paceline.report.page.drawings import Drawings
from paceline.results.document import JobReport
from paceline.results.headline import details, headline, is_healthy
from paceline.synth import SlowWorker, SynthSpec, synthesize
from paceline.trace.warning import Warning
from paceline.whatif import analyze

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"
SLOW = SynthSpec(dp=4, pp=2, microbatches=4, steps=3, slow_workers=(SlowWorker(2, 1, 1.5),))


DONE: dict[str, tuple] = {}


def analysed(spec: SynthSpec):
    """What report_writer takes, made once for each spec (which is no key itself)."""
    if repr(spec) not in DONE:
        DONE[repr(spec)] = analyse(spec)
    return DONE[repr(spec)]


def analyse(spec: SynthSpec):
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    diagnosis = diagnose(measured, result)
    return result, diagnosis, waterfall(measured, result, diagnosis.findings), measured


def remedy(gain: float, **change: object) -> Remedy:
    return Remedy(
        remedy="replace-worker",
        text=f"replace the worker to gain {gain:.0%}",
        findings=("worker",),
        step_time_s=1.0,
        gain=gain,
        interval=(gain - 0.01, gain + 0.01),
        change=change or {"workers": [[2, 1]]},
    )


def document(result, diagnosis, remedies=(), fall=None, not_applicable=None, hosts=None):
    fall = fall or Waterfall(1.0, (), 1.0)
    advice = Advice(diagnosis, fall, tuple(remedies), not_applicable or {})
    return JobReport.of(result, advice, hosts=hosts, per_step_workers=True)


def page(
    result, diagnosis, fall, measured, remedies=(), hosts=None, not_applicable=None, **options
) -> str:
    report = document(result, diagnosis, remedies, fall, not_applicable, hosts)
    file = io.BytesIO()
    report_writer(report, Drawings.of(measured, result), **options)(file)
    return file.getvalue().decode()


def headline_of(result, diagnosis, remedies) -> str:
    return headline(document(result, diagnosis, remedies))


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found.group(1))


def test_the_report_has_every_part_in_order():
    chunks = replace(remedy(0.3), remedy="interleave", findings=(), architecture=True)
    refused = {"planned-gc": "no finding of gc"}
    remedies = [chunks, remedy(0.2)]
    text = page(*analysed(SLOW), remedies, perfetto="ideal.json.gz", not_applicable=refused)
    parts = [
        *("<h1", 'class="lead"', 'id="numbers"', 'id="finding-worker"', 'id="remedy-1"'),
        *("Changes of the job's architecture", 'id="remedy-2"', "Not applicable here"),
        *('id="fig-path-kinds"', 'id="fig-waterfall"', 'id="fig-kinds"', 'id="fig-stages"'),
        *('id="fig-workers"', 'id="fig-workers-by-step"', 'id="fig-steps"', 'id="fig-cdf"'),
        *('id="fig-timeline"', "ideal.json.gz", 'id="fig-scatter"'),
        *('id="definitions"', 'id="warnings"', "<footer"),
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_nothing_is_fetched_and_nothing_else_may_run():
    text = page(*analysed(SLOW), [remedy(0.2)], perfetto="ideal.json.gz")
    found = Elements(text)
    assert not found.of("link")
    assert not found.of("img")
    assert not found.of("iframe")
    assert not any("src" in attributes for _, attributes in found.tags)
    targets = [a["href"] for a in found.of("a")]
    assert all(t.startswith("#") or t == "ideal.json.gz" for t in targets)
    assert "url(" not in text
    assert "@import" not in text
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in found.of("meta") if "http-equiv" in a)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_no_element_has_an_event_handler_or_points_nowhere():
    found = Elements(page(*analysed(SLOW), [remedy(0.2)]))
    names = {name for _, attributes in found.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in found.of("a")} <= set(ids)


def test_hostile_names_are_only_text():
    result, diagnosis, fall, measured = analysed(SLOW)
    result = replace(
        result,
        job=replace(result.job, name=HOSTILE),
        doubts=(Warning("", HOSTILE),),
        left_out_steps={7: HOSTILE},
    )
    bad = Finding(
        HOSTILE, HOSTILE, HOSTILE, 0.5, 0.1, (0.4, 0.6), 1.0,
        {"workers": [[0, 0]]}, {HOSTILE: HOSTILE, "list": [{HOSTILE: HOSTILE}]}, HOSTILE,
    )  # fmt: skip
    cure = Remedy(
        HOSTILE, HOSTILE, (HOSTILE,), 1.0, 0.1, (0.0, 0.2), {HOSTILE: [HOSTILE]}, (HOSTILE,)
    )
    text = page(
        result,
        Diagnosis((bad,), diagnosis.slowdown_interval),
        replace(fall, drops=(Drop(HOSTILE, HOSTILE, 0.1),)),
        measured,
        [cure],
        hosts={(dp, pp): HOSTILE for dp in range(4) for pp in range(2)},
        perfetto=HOSTILE,
        not_applicable={HOSTILE: HOSTILE},
    )
    found = Elements(text)
    assert len(found.of("script")) == 2
    assert not found.of("img")
    assert data_of(text)["hosts"][0] == HOSTILE
    assert HOSTILE in found.text
    assert not {n for _, a in found.tags for n in a if n.startswith("on")}


@pytest.mark.parametrize("name", ["javascript:alert(1)", "//evil.example/x", "\\\\evil\\x", "a b"])
def test_the_perfetto_link_is_a_file_beside_the_report(name):
    found = Elements(page(*analysed(SLOW), perfetto=name))
    target = next(a["href"] for a in found.of("a") if "download" in a)
    assert re.fullmatch(r"[A-Za-z0-9_.%~-][A-Za-z0-9_.%/~-]*", target)


def test_half_a_surrogate_pair_is_written_all_the_same():
    result, *rest = analysed(SLOW)
    assert "job ?" in page(replace(result, job=replace(result.job, name="job \ud800")), *rest)


def test_a_healthy_job_is_said_to_be_so_and_shows_where_its_time_goes():
    result, diagnosis, fall, measured = analysed(SynthSpec(dp=2, pp=2, microbatches=4, steps=3))
    assert is_healthy(document(result, diagnosis))
    text = page(result, diagnosis, fall, measured)
    assert "Healthy, within what these traces can show" in text
    assert f"{result.slowdown:.3f}" in text
    assert "No cause was found" in text
    assert data_of(text)["timeline"]


def test_a_job_without_findings_or_remedies_has_a_report():
    result, diagnosis, fall, measured = analysed(SLOW)
    text = page(result, Diagnosis((), diagnosis.slowdown_interval), fall, measured)
    assert "No cause was found" in text
    assert "No remedy is proposed" in text


def test_the_headline_names_loss_cause_and_gain():
    result, diagnosis, *_ = analysed(SLOW)
    text = headline_of(result, diagnosis, [remedy(0.05), remedy(0.21)])
    most = 1 - diagnosis.healthy.step_s.mean() / result.simulated_s.mean()
    waste = f"{result.waste:.0%} to {most:.0%}"
    assert text.startswith(f"This job wastes {waste} of its GPUs: worker dp 2, stage 1")
    assert text.endswith(" slow. Replacing it gains 21%.")


def test_the_headline_prefers_the_remedy_of_the_cause_it_names():
    result, diagnosis, *_ = analysed(SLOW)
    other = replace(remedy(0.3), remedy="fix-link", action="repair it", findings=("link",))
    assert "Replacing it gains 5%." in headline_of(result, diagnosis, [other, remedy(0.05)])
    moved = replace(remedy(0.3), remedy="micro-batches", action="move: 2 of them")
    assert headline_of(result, diagnosis, [moved]).endswith(" Moving microbatches gains 30%.")
    bound = replace(moved, remedy="stage-layout", change={"bound": True})
    assert headline_of(result, diagnosis, [bound]).endswith(
        " Splitting the layers anew gains at most 30%."
    )
    below = details(document(result, diagnosis, [moved]))
    assert "move: 2 of them (saves 30.0% of the step, 90%: 29.0%" in below[-1]


def test_the_headline_prefers_the_surest_of_equal_gains():
    result, diagnosis, *_ = analysed(SLOW)
    unsure = replace(
        remedy(0.3), remedy="placement", action="swap it", gain=0.305, interval=(0.0, 0.31)
    )
    assert "Replacing it gains 30%." in headline_of(result, diagnosis, [unsure, remedy(0.3)])
    assert headline_of(result, diagnosis, [unsure, remedy(0.2)]).endswith(
        "Swapping workers gains 30%."
    )


def test_the_headline_names_no_remedy_of_another_cause():
    result, diagnosis, *_ = analysed(SLOW)
    other = replace(remedy(0.3), remedy="fix-link", action="repair it", findings=("link",))
    assert headline_of(result, diagnosis, [other]).endswith(" slow.")
    chunks = replace(remedy(0.3), remedy="interleave", architecture=True)
    assert headline_of(result, diagnosis, [chunks]).endswith(" slow.")
    unexplained = replace(diagnosis.findings[0], id="unexplained", cause="unexplained")
    noisy = Diagnosis((unexplained,), diagnosis.slowdown_interval)
    assert headline_of(result, noisy, [other, chunks]).endswith("no known pattern explains it.")


def test_the_headline_says_when_no_cause_is_known():
    result, diagnosis, *_ = analysed(SLOW)
    nothing = Diagnosis((), diagnosis.slowdown_interval)
    assert "no known pattern explains it." in headline_of(result, nothing, [])
    assert "gain" not in headline_of(result, nothing, [remedy(-0.1)])


def test_the_headline_of_a_healthy_slowdown_names_what_lies_outside_it():
    spec = SynthSpec(dp=2, pp=2, microbatches=4, steps=3, launch_delay=(0.5, 1.0))
    result, diagnosis, *_ = analysed(spec)
    assert headline_of(result, diagnosis, []) == (
        "Possibly waits between operations cost 33.3% of the step, most of it at the start of "
        "steps. No lasting straggler (0.2%)."
    )


def test_drops_below_zero_are_shown_with_their_sign():
    result, diagnosis, _, measured = analysed(SLOW)
    fall = Waterfall(10.0, (Drop("launch-delay", "", -1.0), Drop("bubble", "", 5.0)), 6.0)
    text = page(result, diagnosis, fall, measured)
    rows = re.findall(r"<tr>(.*?)</tr>", text[text.index('class="waterfall"') :], re.DOTALL)
    assert ">1.000 s<" in rows[2]
    assert 'class="negative"' in rows[2]
    assert "−5.000 s" in next(row for row in rows if "Pipeline bubble" in row)


def test_a_doubtful_simulation_is_said_under_the_headline():
    result, *rest = analysed(SLOW)
    assert 'class="doubt"' not in page(result, *rest)
    assert "is 8.0% off the trace" in page(replace(result, discrepancy=0.08), *rest)


def test_money_appears_with_a_price_only():
    job = analysed(SLOW)
    assert "cost a day" not in page(*job)
    assert "cost a day" in page(*job, gpu_hour_cost=2.5)


def test_hosts_are_named_where_known():
    text = page(*analysed(SLOW), hosts={(2, 1): ("node-7", "3"), (0, 0): "node-1"})
    assert "dp&nbsp;2, stage&nbsp;1 (<bdi>node-7, GPU 3</bdi>)" in text
    assert data_of(text)["hosts"] == ["node-1", *[""] * 5, "node-7, GPU 3", ""]


def test_a_long_change_is_cut_short():
    text = page(*analysed(SLOW), [remedy(0.1, assignment=[list(range(1000))] * 1000)])
    assert "988 more" in text
    assert len(text) < 300_000


def test_findings_outside_the_slowdown_say_so():
    result, diagnosis, fall, measured = analysed(SLOW)
    drift = Finding(
        "drift", "drift", "steps become slower", None, 0.07, (0.06, 0.08), 1.0, NOWHERE, NOWHERE
    )
    text = page(result, replace(diagnosis, findings=(drift,)), fall, measured)
    assert "of the step (90%: 6.0% to 8.0%); outside S" in text


def test_a_job_of_one_worker_has_a_report():
    spec = SynthSpec(dp=1, pp=1, microbatches=2, steps=1, launch_delay=(0.5, 1.0))
    assert 'id="fig-scatter"' in page(*analysed(spec))


def test_a_large_job_stays_small():
    spec = SynthSpec(dp=64, pp=8, microbatches=16, steps=3, slow_workers=(SlowWorker(9, 3, 1.5),))
    assert len(page(*analysed(spec))) < 700_000
