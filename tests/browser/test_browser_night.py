"""A night on call: the alert comes, its link is opened on a phone, and all that helps is there.

The service, its detector, alerts and channel are the real ones; the test makes the job.
"""

import json
import os
import re

import pytest

import requires

requires.installed("sqlalchemy", "starlette", "uvicorn")

from monitor_web import Listener, monitor
from openid_site import free_port
from paceline.client import Client
from paceline.sources import parquet
from paceline.synth import SynthSpec, synthesize

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
HOSTS = {str(rank): [f"gpu-{17 + rank // 2}", str(rank % 2)] for rank in range(4)}
#: A thumb's button, CSS pixels (WCAG 2.2, 2.5.5).
THUMB_PX = 44
ALERTS = """\
rules:
  fail-slow: {{gpu_hours: 0.0001, lost_s: 0.5}}
runbooks: {{fail-slow: https://wiki.example.org/fail-slow, default: https://wiki.example.org/}}
channels:
  hook: {{type: webhook, url: '{url}'}}
group_wait_s: 0
"""


@pytest.fixture
def pager():
    listener = Listener()
    yield listener
    listener.close()


def send(client, first, last, slow=()):
    steps = [step for step in range(first, last) for _ in range(4)]
    ranks = list(range(4)) * (last - first)
    times = [
        1.8 if rank in slow else 1.0 + 0.001 * (step % 3)
        for step, rank in zip(steps, ranks, strict=True)
    ]
    client.push_steps("job-7", steps, ranks, times, source="run", world=4)


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_night_on_call(browser, tmp_path, pager):
    settings = tmp_path / "alerts.yaml"
    settings.write_text(ALERTS.format(url=pager.url))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = {"alerts": str(settings), "bind": f"127.0.0.1:{port}", "base_url": url}
    with monitor(tmp_path / "data", **options) as site:
        client = Client(url, site.token("push", "llm"))
        labels = {"slurm_job": "1042", "queue": "gpu-long", "user": "alice"}
        client.register("job-7", gpus=4, labels=labels)
        path = tmp_path / "trace.parquet"
        parquet.write(synthesize(SynthSpec(dp=4, pp=1, microbatches=4, steps=5)), path)
        client.push_trace("job-7", path, {"hosts": HOSTS})
        send(client, 0, 150)
        send(client, 150, 300, slow=(2,))

        # The alert arrives, with a link.
        (message,) = pager.wait(1)
        alert = message["alerts"][0]
        assert (alert["status"], alert["rule"], alert["job"]) == ("firing", "fail-slow", "job-7")
        assert "gpu-18" in json.dumps(alert)

        # It is opened on a phone.
        context = browser.new_context(**PHONE)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(alert["url"])
        page.get_by_label("Access token").fill(site.token("operate", "llm"))
        page.get_by_role("button", name="Log in").tap()
        page.wait_for_selector("#head .notice.bad")
        assert "/jobs/job-7" in page.url
        assert fits(page)

        # The cause is read, and the host.
        if folder := os.environ.get("PACELINE_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/night.png")
        head = page.locator("#head").inner_text()
        assert "Critical alert" in head
        assert "rank 2" in head
        assert "gpu-18" in head
        assert page.get_by_role("link", name="runbook").get_attribute("href").endswith("/fail-slow")
        command = page.locator("#cordon code").inner_text()
        assert re.fullmatch(
            r"scontrol update nodename=gpu-18 state=drain reason='paceline: job-7 slow .*'", command
        )

        # One tap says who looks at it, and others see that on the list of jobs.
        button = page.get_by_role("button", name="Acknowledge for 4 hours")
        assert button.bounding_box()["height"] >= THUMB_PX
        button.tap()
        page.wait_for_selector("text=Acknowledged by operate of llm until")
        assert "/jobs/job-7" in page.url
        assert page.get_by_role("button", name="Acknowledge for 4 hours").count() == 0
        page.goto(f"{url}/")
        assert "acknowledged by operate of llm" in page.locator("#list").inner_text()
        assert "user alice" in page.locator("#list").inner_text().replace("\u00a0", " ")
        assert fits(page)
        page.goto(alert["url"])

        # One tap silences it, in reach of a thumb.
        button = page.get_by_role("button", name="Silence for 4 hours")
        assert button.bounding_box()["height"] >= THUMB_PX
        button.tap()
        page.wait_for_selector("text=Silent until")
        assert "/jobs/job-7" in page.url
        assert "operate of llm" in page.locator("#head").inner_text()
        assert page.get_by_role("button", name="Silence for 4 hours").count() == 0

        # The host is out, the job goes on, and the relief is seen without a reload.
        send(client, 300, 450)
        page.wait_for_selector("#head .notice.bad", state="detached")
        reader = site.token("read", "llm")
        (row,) = site.ask("GET", "/api/v1/alerts", token=reader).json["alerts"]
        assert row["status"] == "resolved"
        assert len(pager.received) == 1  # it is silent, the end of the alert, too

        # In the morning: what it cost, and who did what.
        page.reload()
        assert "fail-slow" in page.locator("#goodput").inner_text().lower()
        assert fits(page)
        page.goto(f"{url}/alerts?status=resolved")
        assert "fail-slow" in page.locator("#alert-list").inner_text()
        assert fits(page)
        told = site.ask("GET", "/api/v1/audit", token=site.token("admin", "llm")).json["entries"]
        acts = [entry["action"] for entry in told if entry["kind"] == "token"]
        assert acts == ["silence-begun", "alert-acknowledged", "login"]
        page.get_by_role("button", name="Log out").tap()
        page.get_by_label("Access token").fill(site.token("admin", "llm"))
        page.get_by_role("button", name="Log in").tap()
        page.get_by_role("link", name="Access", exact=True).tap()
        page.wait_for_selector("#audit")
        assert "silenced" in page.locator("#audit").inner_text()
        assert fits(page)
        if folder := os.environ.get("PACELINE_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/access.png", full_page=True)
        context.close()
