"""What each kind of channel sends, and what it says when it cannot."""

import contextlib
import json
import smtplib
import socket
import threading
from dataclasses import replace

import pytest

import requires

requires.installed("starlette")

import monitor_alerts
from paceline.errors import MonitorError
from paceline.monitor.alerts.channels import Alertmanager, Email, Slack, Webhook
from paceline.monitor.alerts.notice import Notice, title_of
from paceline.monitor.alerts.pagers import Discord, Opsgenie, PagerDuty, Teams

hook = monitor_alerts.hook


NOTICE = Notice(
    7, "firing", "slow-job", "warning", "llm", "job-1", "S = 1.3 <b>&\nX", "worker", "dp 3",
    "replace it", "http://here/jobs/job-1", 1000.0,
)  # fmt: skip


def smtp_server(lines):
    """Takes one mail."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError), listening:
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb", buffering=0) as file:
                file.write(b"220 here\r\n")
                take(file)

    def take(file):
        data = False
        while line := file.readline():
            lines.append(line.decode("latin-1").rstrip())
            if data:
                data = line != b".\r\n"
                if not data:
                    file.write(b"250 ok\r\n")
            elif line.upper().startswith(b"DATA"):
                data = True
                file.write(b"354 go\r\n")
            elif line.upper().startswith(b"QUIT"):
                file.write(b"221 bye\r\n")
                return
            else:
                file.write(b"250 ok\r\n")

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()[1]


def test_every_channel_says_all_of_it(hook):
    """Headline, cause, where, gain and link."""
    wanted = ("S = 1.3", "worker", "dp 3", "replace it", "http://here/jobs/job-1")
    channels = (
        *(Webhook("w", hook.url), Slack("s", hook.url), Alertmanager("a", hook.url)),
        *(PagerDuty("p", "key", hook.url), Opsgenie("o", "key", hook.url)),
        *(Teams("t", hook.url), Discord("d", hook.url)),
    )
    for channel in channels:
        channel.send([NOTICE], 1000.0)
    hook.wait(len(channels))
    sent = [body.decode() for _, _, body, _ in hook.received]
    lines = []
    port = smtp_server(lines)
    Email("m", "127.0.0.1", "a@b", ("c@d",), port, security="none").send([NOTICE], 1000.0)
    sent.append("\n".join(lines))
    assert [word for text in sent for word in wanted if word not in text] == []


def test_the_title_counts_jobs_not_alerts():
    assert title_of([NOTICE] * 2) == "[WARNING] job-1: slow-job (2 alerts)"
    other = replace(NOTICE, project="other")
    assert title_of([NOTICE, NOTICE, other]) == "[WARNING] 2 jobs: slow-job"


def test_slack(hook):
    notices = [replace(NOTICE, job=f"job-{number}") for number in range(1, 13)]
    Slack("chat", hook.url).send(notices, 1000.0)
    (message,) = hook.wait(1)
    assert message["text"].startswith(
        "*[WARNING] 12 jobs: slow-job*\n<http://here/jobs/job-1|job-1>"
    )
    assert "S = 1.3 &lt;b&gt;&amp;" in message["text"]
    assert "Best fix: replace it" in message["text"]
    assert message["text"].endswith("and 2 more")


ENDED = replace(NOTICE, status="resolved", ended_at=2000.0)


def test_pagerduty_opens_and_resolves_one_incident(hook):
    """Fields and limits as Alertmanager's own notifier has them (68fb2d5, ``pagerduty.go``)."""
    channel = PagerDuty("pager", "routing", hook.url)
    channel.send([replace(NOTICE, headline="x" * 2000), replace(NOTICE, id=8)], 1000.0)
    channel.send([ENDED], 2000.0)
    first, second, end = hook.wait(3)
    assert {event["routing_key"] for event in (first, second, end)} == {"routing"}
    assert [event["event_action"] for event in (first, second, end)] == [
        *("trigger", "trigger", "resolve"),
    ]
    assert first["dedup_key"] == end["dedup_key"] != second["dedup_key"]
    payload = first["payload"]
    assert len(payload["summary"]) == 1024
    assert (payload["severity"], payload["source"]) == ("warning", "llm/job-1")
    assert payload["custom_details"]["best fix"] == "replace it"
    assert payload["timestamp"] == "1970-01-01T00:16:40Z"
    assert "payload" not in end


def test_other_monitors_alerts_of_the_same_number_are_other_incidents(hook):
    channel = PagerDuty("pager", "routing", hook.url)
    channel.send([NOTICE, replace(NOTICE, url="http://there/jobs/job-1")], 1000.0)
    first, second = hook.wait(2)
    assert first["dedup_key"] != second["dedup_key"]


def test_opsgenie_opens_and_closes_one_alert(hook):
    channel = Opsgenie("genie", "key", hook.url)
    channel.send([replace(NOTICE, importance="critical", headline="x" * 500)], 1000.0)
    channel.send([ENDED], 2000.0)
    alert, end = hook.wait(2)
    assert (alert["priority"], len(alert["message"])) == ("P1", 130)
    assert end == {"source": "Paceline"}
    paths = [path for path, *_ in hook.received]
    assert paths[0].endswith("/v2/alerts")
    assert paths[1].endswith(f"/v2/alerts/{alert['alias']}/close?identifierType=alias")
    assert all(headers["Authorization"] == "GenieKey key" for _, headers, *_ in hook.received)


def test_chats_show_names_as_they_are(hook):
    """A job's name neither formats the message nor calls anyone."""
    named = replace(NOTICE, job="@everyone *a* [x](http://evil)", headline="y" * 400)
    Discord("d", hook.url).send([named] * 12, 1000.0)
    Teams("t", hook.url).send([named] * 12, 1000.0)
    discord, teams = hook.wait(2)
    (embed,) = discord["embeds"]
    assert discord["allowed_mentions"] == {"parse": []}
    assert len(embed["description"]) == 4096
    escaped = r"@everyone \*a\* \[x\]\(http://evil\)"
    assert embed["description"].startswith(f"[{escaped}](http://here/jobs/job-1)")
    card = teams["attachments"][0]["content"]
    assert card["body"][1]["text"].startswith(f"[{escaped}](http://here/jobs/job-1)")
    assert card["body"][-1]["text"] == "and 2 more"
    assert card["body"][0]["color"] == "Warning"
    Teams("t", hook.url).send([ENDED], 1000.0)
    assert hook.wait(3)[2]["attachments"][0]["content"]["body"][0]["color"] == "Good"


def test_mail():
    lines = []
    port = smtp_server(lines)
    mail = Email(
        "mail", "127.0.0.1", "Paceline <me@x.org>", ("a@x.org", "b@x.org"), port, security="none"
    )
    mail.send([replace(NOTICE, job="job\r\nBcc: all@x.org")], 1000.0)
    text = "\n".join(lines)
    for address in ("a@x.org", "b@x.org"):  # Python 3.13 writes "rcpt to"
        assert f"rcpt to:<{address}>" in text.replace("rcpt TO", "rcpt to")
    head = lines[: lines.index("", lines.index("data"))]
    assert not any(line.startswith("Bcc") for line in head)
    assert "Message-ID: <paceline-7-firing-1@x.org>" in text
    assert "Where: dp 3" in text
    with pytest.raises(MonitorError, match=r"127\.0\.0\.1:9"):
        Email("mail", "127.0.0.1", "a@b", ("c@d",), 9, security="none").send([NOTICE], 1.0)
    assert issubclass(smtplib.SMTPException, OSError)


def test_mail_is_not_sent_in_the_clear_where_it_should_not_be():
    for security in ("starttls", "tls"):
        lines = []
        port = smtp_server(lines)
        mail = Email("m", "127.0.0.1", "a@b", ("c@d",), port, "me", "very-secret", security)
        with pytest.raises(MonitorError) as error:
            mail.send([NOTICE], 1000.0)
        assert "very-secret" not in str(error.value)
        assert not any("mail" in line.lower() or "auth" in line.lower() for line in lines[1:])


def test_channels_say_why_without_their_secrets(monkeypatch):
    monkeypatch.setattr("paceline.monitor.alerts.channels.TIMEOUT_S", 0.2)
    hanging = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{hanging.getsockname()[1]}/services/T0/B0/secret"
    for channel in (Slack("s", url), Webhook("w", url), Alertmanager("a", url)):
        with pytest.raises(MonitorError, match=r"^127.0.0.1:\d+: no answer within 0.2 s$"):
            channel.send([NOTICE], 1.0)
    hanging.close()


UPDATE = replace(NOTICE, is_update=True)


def test_an_update_belongs_to_its_alert_in_every_channel(hook):
    """Pagers keep one incident, Alertmanager one alert; messages to people say what is new."""

    def sent(channel):
        first = len(hook.received)
        for notice in (NOTICE, UPDATE):
            channel.send([notice], 2000.0)
        return [(headers, json.loads(body)) for _, headers, body, _ in hook.received[first:]]

    (begin, one), (update, two) = sent(Webhook("a", hook.url))
    assert (one["status"], two["status"]) == ("firing", "firing")
    (first,), (second,) = one["alerts"], two["alerts"]
    assert (first["id"], first["is_update"]) == (7, False)
    assert (second["id"], second["is_update"]) == (7, True)
    assert begin["Idempotency-Key"] != update["Idempotency-Key"]
    (_, (one,)), (_, (two,)) = sent(Alertmanager("b", hook.url))
    assert one["labels"] == two["labels"]
    assert one["startsAt"] == two["startsAt"]
    (_, one), (_, two) = sent(PagerDuty("c", "key", hook.url))
    assert one["dedup_key"] == two["dedup_key"]
    assert one["event_action"] == two["event_action"] == "trigger"
    (_, one), (_, two) = sent(Opsgenie("d", "key", hook.url))
    assert one["alias"] in hook.received[-1][0]
    assert list(two) == ["description"]
    for kind in (Slack, Teams, Discord):
        (_, one), (_, two) = sent(kind("e", hook.url))
        assert "CAUSE" in json.dumps(two)
        assert "CAUSE" not in json.dumps(one)
    mail = Email("f", "host", "us@here", ("them@there",))
    one, two = (mail._message([notice], 2000.0) for notice in (NOTICE, UPDATE))
    assert two["Subject"].startswith("[CAUSE] job-1")
    assert one["References"] == two["References"] == "<paceline-alert-7@here>"
    assert one["Message-ID"] != two["Message-ID"]
