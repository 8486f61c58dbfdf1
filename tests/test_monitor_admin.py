"""The commands of those who run a monitor: serve, admin, alerts; its settings, metrics and docs."""

import dataclasses
import http.client
import io
import json
import logging
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

pytest.importorskip("starlette")

from monitor_lab import Server
from monitor_stores import STORES, postgresql
from monitor_web import Listener, eventually, monitor
from paceline.cli import monitor_config
from paceline.cli.main import run
from paceline.client import Client
from paceline.errors import MonitorError
from paceline.monitor.alerts.rules import DEFAULTS, Rule
from paceline.monitor.alerts.settings import load_settings
from paceline.monitor.backup import restore_backup, write_backup
from paceline.monitor.config import Config, load_config
from paceline.monitor.service import Service
from paceline.monitor.store import jobs, tables
from paceline.monitor.store.database import open_database
from paceline.monitor.store.dump import LEFT_OUT, read_rows
from paceline.monitor.store.lock import StoreLock

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(autouse=True)
def _log_as_before():
    """`serve` sets the process's log up."""
    loggers = [logging.getLogger(n) for n in ("paceline.monitor", "uvicorn", "uvicorn.error")]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("serve") / "data") as found:
        yield found


def get(server, path, token=""):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_serve_says_where_it_is_and_gives_one_token(server):
    said = server.log.read_text()
    assert f"listening on {server.url}, data in {server.data}" in said
    assert len(re.findall(r"pcl_[A-Za-z0-9_-]{40,}", said)) == 1
    assert get(server, "/healthz") == (200, b'{"status":"ok"}')
    assert get(server, "/api/v1/jobs", server.token)[0] == 200
    assert (server.data / "cookie.key").stat().st_mode & 0o077 == 0
    assert (server.data / "paceline.db").stat().st_mode & 0o077 == 0


def test_a_second_one_does_not_get_the_folder_or_the_port(server, tmp_path, capsys):
    assert run(["serve", "--data", str(server.data), "--bind", "127.0.0.1:0"]) == 2
    assert "is in use by another `paceline serve`" in capsys.readouterr().err
    assert run(["serve", "--data", str(tmp_path / "x"), "--bind", server.url[7:]]) == 2
    assert "cannot listen on" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert run(["admin", "gc", "--data", str(server.data)]) == 2


@pytest.mark.parametrize("kind", STORES)
def test_a_second_one_does_not_get_the_store(tmp_path, capsys, kind):
    with STORES[kind](tmp_path) as url:
        service = Service(Config(data=tmp_path / "one", store=url))
        other = ["--data", str(tmp_path / "two"), "--store", url]
        try:
            assert run(["serve", *other, "--bind", "127.0.0.1:0"]) == 2
            said = capsys.readouterr().err
            assert "is in use by another `paceline serve`" in said
            assert said.count("\n") == 1
            assert run(["admin", "gc", *other]) == 2
            with (tmp_path / "backup.tar").open("wb") as file:
                write_backup(service.config, service.engine, file)
        finally:
            service.stop()
        assert run(["admin", "gc", *other]) == 0


def test_the_lock_is_taken_again_when_the_database_is_back(tmp_path):
    with postgresql(tmp_path) as url:
        engine = open_database(url)
        lock = StoreLock(engine)
        end = text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks "
            "WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with engine.begin() as connection:
            assert connection.execute(end).all() == [(True,)]
        lock.keep()
        with pytest.raises(MonitorError, match="in use"):
            StoreLock(engine)
        lock.close()
        StoreLock(engine).close()
        engine.dispose()


def test_a_stop_finishes_what_is_being_sent_and_ends_the_streams(tmp_path):
    with Server(tmp_path / "data") as server:
        token = f"Authorization: Bearer {server.token}\r\nHost: x\r\n"
        body = {"sha256": "0" * 64, "size": 2000}
        upload = server.client()._json("POST", "/api/v1/jobs/x/uploads", body)["upload"]
        stream = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        stream.sendall(f"GET /events HTTP/1.1\r\n{token}\r\n".encode())
        assert b"retry:" in until(stream, b"retry:")
        half = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        head = f"PUT /api/v1/uploads/{upload}?offset=0 HTTP/1.1\r\n{token}"
        half.sendall(f"{head}Content-Length: 2000\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100 Continue" in until(half, b"\r\n\r\n")  # the handler reads
        half.sendall(b"x" * 1000)
        server.process.terminate()
        assert until(stream, b"0\r\n\r\n")  # the stream ends in order
        half.sendall(b"x" * 1000)
        assert b'{"offset":2000}' in until(half, b"}")
        assert server.process.wait(60) == 0
        stream.close()
        half.close()
        assert (server.data / "uploads" / upload).stat().st_size == 2000
        lines = [line for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert all(json.loads(line)["at"] for line in lines)
        assert any(upload in line and '"status": 200' in line for line in lines)


def until(connection, end):
    received = b""
    while end not in received:
        part = connection.recv(65536)
        if not part:
            return received
        received += part
    return received


def test_tokens_by_command_work_at_once(server, capsys):
    place = ["--data", str(server.data)]
    create = ["admin", "token", "create", "job-17", "--scope", "read", "--project", "llm"]
    assert run([*create, "--days", "1", *place]) == 0
    secret = capsys.readouterr().out.strip()
    assert get(server, "/api/v1/jobs", secret)[0] == 200
    assert run(["admin", "token", "list", *place]) == 0
    listed = capsys.readouterr().out
    assert secret not in listed
    line = next(line for line in listed.splitlines() if "job-17" in line)
    number = line.split()[0]
    assert "good until" in line
    assert run(["admin", "token", "revoke", number, *place]) == 0
    assert get(server, "/api/v1/jobs", secret)[0] == 401
    run(["admin", "token", "list", *place])
    assert "was revoked" in capsys.readouterr().out
    for wrong in (["--days", "-1"], ["--days", "nan"], ["--days", "inf"], ["--project", "a b"]):
        assert run([*create[:4], "--scope", "push", *wrong, *place]) == 2
    assert run(["admin", "token", "revoke", "99", *place]) == 2
    assert "there is no token 99" in capsys.readouterr().err


def test_commands_want_a_monitor_that_exists(tmp_path, capsys):
    for command in (["admin", "token", "list"], ["admin", "gc"], ["alerts", "list"]):
        assert run([*command, "--data", str(tmp_path / "none")]) == 2
        assert "holds no monitor" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def fill(service):
    """One of everything, and bytes in the blobs and step times."""
    now = service.clock()
    job = jobs.register(service.engine, "llm", "job-1", now, gpus=8, labels={"team": "ä"})
    with service.engine.begin() as connection:
        for n, status in ((1, "done"), (2, "failed")):
            connection.execute(
                tables.sessions.insert().values(
                    job_id=job.id, sha256=f"{n:064d}", size_bytes=3, file_name="t", status=status,
                    created_at=now, slowdown=1.5, step_s=float("inf"), meta={"n": [n, None]},
                )
            )  # fmt: skip
        connection.execute(
            tables.silences.insert().values(
                project="*", until=now + 99, comment="why", created_at=now
            )
        )
        connection.execute(tables.session_facts.insert().values(session_id=1, facts={"a": [1.5]}))
    spans = service.config.data / "otlp" / "001" / "1"
    spans.mkdir(parents=True)
    for name in ("plan.json", "requests.jsonl"):
        (spans / name).write_text("")
    folder = service.config.data / "blobs" / "results" / "001" / "1"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    (folder / ".half").write_text("not this")
    return job


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    data = tmp_path_factory.mktemp("filled") / "data"
    with monitor(data) as site:
        job = fill(site.service)
        body = {"source": "a", "batch": 1, "samples": [[n, 0, 1.0] for n in range(9)]}
        answer = site.ask(
            "POST", "/api/v1/jobs/job-1/steps?project=llm", token=site.token(), body=body
        )
        assert answer.status == 200
        shown = "/api/v1/jobs/job-1/steps?project=llm"
        eventually(lambda: len(site.ask("GET", shown, token=site.token()).json["step"]) >= 8, 30)
        backup = data.parent / "backup.tar"
        assert run(["admin", "backup", str(backup), "--data", str(data)]) == 0  # while it runs
        rows = kept(site.service.engine)
        yield site, job, backup, rows


def kept(engine):
    # The time of last use and what the detectors know of a job go on changing.
    loose = {"used_at", "seen_at", "status", "last_step", "step_s", "healthy_s"}
    rows = [(t, {k: v for k, v in row.items() if k not in loose}) for t, row in read_rows(engine)]
    return [row for row in rows if row[0] != "alerts"]


def test_a_backup_beside_the_service_is_a_whole_monitor(filled, tmp_path, capsys):
    site, job, backup, rows = filled
    assert backup.stat().st_mode & 0o777 == 0o600
    data = tmp_path / "new"
    before = os.umask(0o022)
    try:
        assert run(["admin", "restore", str(backup), "--data", str(data)]) == 0
    finally:
        os.umask(before)
    assert not any(path.stat().st_mode & 0o077 for path in data.rglob("*"))
    assert re.search(r"restored \d+ rows and \d+ files", capsys.readouterr().out)
    engine = open_database(Config(data=data).store_url)
    assert kept(engine) == rows
    engine.dispose()
    with monitor(data) as again:
        token = site.token()
        assert again.ask("GET", "/api/v1/sessions/1/result", token=token).json == {}
        steps = again.ask("GET", "/api/v1/jobs/job-1/steps?project=llm", token=token).json
        assert steps["step"][:8] == list(range(8))
        new = jobs.register(again.service.engine, "llm", "job-2", 1.0)
        assert new.id == job.id + 1  # numbering goes on
    with tarfile.open(backup) as tar:
        names = tar.getnames()
    assert not any(".half" in name for name in names)
    assert names.index("otlp/001/1/plan.json") > names.index("otlp/001/1/requests.jsonl")
    kinds = {Path(name).stem for name in names if name.startswith("tables/")}
    assert kinds <= set(tables.metadata.tables) - {*LEFT_OUT}
    assert "session_facts" in kinds
    assert run(["admin", "restore", str(backup), "--data", str(data)]) == 2
    assert "holds paceline.db already" in capsys.readouterr().err
    assert run(["admin", "backup", str(backup), "--data", str(data)]) == 2  # not without --force


def test_uploads_are_all_that_a_backup_leaves_out():
    assert {*LEFT_OUT} == {"uploads"}
    assert len(tables.metadata.sorted_tables) >= 8


def changed(backup, to, change):
    """The backup with one member changed, or more members."""
    with tarfile.open(backup) as old, tarfile.open(to, "w") as new:
        for member in old:
            content = old.extractfile(member).read()
            name, content = change(member.name, content)
            if name:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))
    return to


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut", "no whole backup"),
        ("nearly", "no whole backup"),
        ("empty", "no whole backup"),
        ("text", "no whole backup"),
        ("bits", "is damaged"),
        ("missing", "is damaged"),
        ("format", "later version"),
        ("column", "later version"),
        ("outside", "which is not ours"),
        ("dots", "which is not ours"),
        ("absolute", "which is not ours"),
        ("link", "which is not ours"),
        ("behind", "which is not ours"),
    ],
)
def test_what_is_no_backup_is_not_restored(filled, tmp_path, name, words):
    backup, bad = filled[2], tmp_path / "bad.tar"
    whole = backup.read_bytes()

    def manifest(**more):
        return lambda n, c: (n, json.dumps({**json.loads(c), **more}).encode())

    renames = {"outside": "../evil", "dots": "blobs/../../evil", "absolute": "/tmp/evil"}
    if name == "cut":
        bad.write_bytes(whole[:8000])
    elif name == "nearly":
        bad.write_bytes(whole[: whole.index(b'"format"') + 99])
    elif name == "empty":
        bad.write_bytes(b"")
    elif name == "text":
        bad.write_bytes(b"hello" * 1000)
    elif name == "bits":
        at = whole.index(b'"job-1"')
        bad.write_bytes(whole[:at] + b'"job-2"' + whole[at + 7 :])
    elif name == "missing":
        changed(backup, bad, lambda n, c: ("" if n == "cookie.key" else n, c))
    elif name == "format":
        changed(backup, bad, lambda n, c: manifest(format=9)(n, c) if n[0] == "m" else (n, c))
    elif name == "column":
        later(backup, bad)
    elif name in renames:
        changed(backup, bad, lambda n, c: (renames[name] if n == "cookie.key" else n, c))
    else:
        shutil.copy(backup, bad)
        with tarfile.open(bad, "a") as tar:
            info = tarfile.TarInfo("blobs/x")
            if name == "link":
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info, io.BytesIO())
    data = tmp_path / "data"
    with pytest.raises(MonitorError, match=words):
        restore_backup(Config(data=data), bad)
    assert [path.name for path in data.iterdir()] == []
    assert not (tmp_path / "evil").exists()


def later(backup, to):
    """A backup with a column that this version does not know, and its right manifest."""
    import hashlib

    sums = {}

    def change(name, content):
        if name == "tables/jobs.jsonl":
            rows = [{**json.loads(line), "new": 1} for line in content.splitlines()]
            content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        if name == "manifest.json":
            return name, json.dumps({**json.loads(content), "members": sums}).encode()
        sums[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return name, content

    changed(backup, to, change)


def test_a_backup_moves_a_monitor_to_postgresql(filled, tmp_path):
    _, job, backup, rows = filled
    with postgresql(tmp_path) as url:
        config = Config(data=tmp_path / "data", store=url)
        assert restore_backup(config, backup)["rows"]
        engine = open_database(url)
        assert kept(engine) == rows
        assert jobs.register(engine, "llm", "job-2", 1.0).id == job.id + 1  # numbering goes on
        again = tmp_path / "again.tar"
        with again.open("wb") as file:
            write_backup(config, engine, file)
        engine.dispose()
        with pytest.raises(MonitorError, match="the store is not empty"):
            restore_backup(Config(data=tmp_path / "other", store=url), again)
        assert restore_backup(Config(data=tmp_path / "back"), again)["rows"]


def test_gc_removes_what_is_nobodys(tmp_path, capsys):
    config = Config(data=tmp_path / "data")
    service = Service(config)
    fill(service)
    stray = config.data / "blobs" / "results" / "999" / "999" / "result.json"
    stray.parent.mkdir(parents=True)
    stray.write_text("x" * 1000)
    os.utime(stray, (1.0, 1.0))
    service.stop()
    assert run(["admin", "gc", "--data", str(config.data)]) == 0
    assert "1 stray files" in capsys.readouterr().out
    assert not stray.exists()
    assert (config.data / "blobs" / "results" / "001" / "1" / "result.json").exists()


def metric_names(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def test_the_dashboard_shows_metrics_that_there_are(filled, tmp_path, capsys):
    site, job, _, _ = filled
    with site.service.engine.begin() as connection:
        values = {"slowdown": 1.5, "waste": 0.3, "step_s": 1.0, "healthy_s": 0.9, "last_step": 8}
        connection.execute(tables.jobs.update().where(tables.jobs.c.id == job.id).values(**values))
        connection.execute(
            tables.alerts.insert().values(
                fingerprint="x", rule="r", project="llm", job_id=job.id, importance="info",
                headline="x", status="firing", started_at=1.0, updated_at=1.0,
            )
        )  # fmt: skip
        connection.execute(
            tables.deliveries.insert().values(
                alert_id=1, channel="c", status="firing", next_at=1e12
            )
        )
    text = site.ask("GET", "/metrics", token=site.token("read")).text
    known = metric_names(text)
    assert run(["admin", "grafana"]) == 0
    printed = capsys.readouterr().out
    dashboard = json.loads(printed)
    queries = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", ())]
    used = set(re.findall(r"(?:paceline|process)_[a-z_]+", " ".join(queries)))
    assert {re.sub(r"_bucket$", "", name) for name in used} <= known
    assert len(queries) >= 15
    out = tmp_path / "dashboard.json"
    assert run(["admin", "grafana", "-o", str(out)]) == 0
    assert out.read_text() == printed
    assert run(["admin", "grafana", "-o", str(out)]) == 2
    text = told("monitor.md")
    assert {name for name in known if f"`{name}`" not in text} == set()


def test_metrics_are_as_prometheus_wants_them(filled):
    site = filled[0]
    text = site.ask("GET", "/metrics", token=site.token("read")).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    assert helped == set(kinds)
    series = set()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-z_]+)(\{[^{}]*\})? (\S+)", line)
        assert match, line
        assert (match[1], match[2]) not in series
        series.add((match[1], match[2]))
        float(match[3])
        base = re.sub(r"_(bucket|sum|count)$", "", match[1])
        kind = kinds.get(match[1]) or kinds[base]
        assert match[1].endswith("_total") == (kind == "counter"), line
        for label in ("step", "microbatch", "rank"):
            assert f"{label}=" not in (match[2] or ""), line
    assert 'paceline_job_info{project="llm",job="job-1",status=' in text
    mine = site.ask("GET", "/metrics", token=site.token("read", "other")).text
    assert "job-1" not in mine
    assert "process_" not in mine


ALERTS = """
channels:
  hook: {{type: webhook, url: '{url}'}}
  chat: {{type: slack, url: '{url}', rules: fail-slow}}
"""


def test_alerts_by_command(server, tmp_path, capsys):
    hook = Listener([200, 200, 500])
    (tmp_path / "alerts.yaml").write_text(ALERTS.format(url=hook.url))
    config = tmp_path / "monitor.yaml"
    config.write_text(f"alerts: {tmp_path / 'alerts.yaml'}\ndata: {server.data}\n")
    place = ["--config", str(config)]
    assert run(["alerts", "rules", *place]) == 0
    said = capsys.readouterr().out
    assert "slow-job         warning  S of 1.1 or more in 2 sessions in a row" in said
    assert "channel chat: Slack; takes fail-slow of *, info and up" in said
    assert run(["alerts", "test", "--rule", "slow-job", "--dry-run", *place]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert hook.received == []
    assert run(["alerts", "test", "--rule", "slow-job", *place]) == 0
    assert capsys.readouterr().out == "hook: delivered\n"
    message = hook.wait(1)[0]["alerts"][0]
    keys = ("headline", "cause", "place", "gain", "url")
    assert all(message[key] for key in keys)
    assert run(["alerts", "test", "--rule", "slow-job", "--channel", "chat", *place]) == 0
    assert run(["alerts", "test", *place]) == 1
    said = capsys.readouterr().out
    assert "hook: failed: 127.0.0.1" in said
    assert "very-secret" not in said
    for wrong in (["--rule", "nope"], ["--channel", "nope"]):
        assert run(["alerts", "test", *wrong, *place]) == 2
    assert run(["alerts", "silence", "--job", "x", "--hours", "2", "--comment", "why", *place]) == 0
    number = capsys.readouterr().out.split()[1]
    assert run(["alerts", "list", *place]) == 0
    said = capsys.readouterr().out
    assert f"silence {number} until" in said
    assert "rule any, job x, project *: why" in said
    assert run(["alerts", "silence", "--end", number, *place]) == 0
    assert run(["alerts", "silence", "--end", number, *place]) == 2
    for hours in ("0", "nan", "inf"):
        assert run(["alerts", "silence", "--hours", hours, *place]) == 2
    hook.close()


def test_every_setting_is_read_from_the_file_and_documented(tmp_path):
    text = told("monitor.md")
    values = {}
    for setting in dataclasses.fields(Config):
        assert f"| `{setting.name}` |" in text, setting.name
        values[setting.name] = str(setting.default) if setting.name == "data" else setting.default
    path = tmp_path / "monitor.yaml"
    path.write_text(yaml.safe_dump(values))
    assert load_config(path) == Config()
    assert load_config(path, bind="0.0.0.0:1").bind == "0.0.0.0:1"


def test_the_defaults_in_the_document_are_those_of_the_code():
    text = told("monitor.md")
    for setting in dataclasses.fields(Config):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{setting.name}` |"))
        shown = yaml.safe_load(row.split("|")[2].strip().strip("`"))
        assert shown == (str(setting.default) if setting.name == "data" else setting.default)


def told(name):
    return (DOCS / name).read_text()


def blocks(name):
    """The YAML files of a document, by the name in their first line."""
    return dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", told(name), re.DOTALL))


def test_the_files_in_the_documents_are_right(tmp_path, monkeypatch):
    path = tmp_path / "file.yaml"
    path.write_text(blocks("monitor.md")["monitor.yaml"])
    assert load_config(path).base_url.startswith("https://")
    compose = yaml.safe_load(blocks("monitor.md")["compose.yaml"])
    assert set(compose["services"]) == {"paceline", "db"}
    for name in ("HOOK_SECRET", "SLACK_URL", "SMTP_PASSWORD"):
        monkeypatch.setenv(name, "https://x")
    path.write_text(blocks("alerts.md")["alerts.yaml"])
    settings = load_settings(str(path), 900.0)
    assert [type(route.channel).__name__ for route in settings.routes] == [
        "Webhook", "Alertmanager", "Slack", "Email"
    ]  # fmt: skip


def test_every_field_of_a_rule_is_documented():
    text = told("alerts.md")
    names = [f.name for f in dataclasses.fields(Rule) if f.name != "name"]
    assert [name for name in names if f"`{name}`" not in text and f"{name}:" not in text] == []
    for rule in DEFAULTS:
        assert f"| `{rule.name}` | `{rule.kind}` | {rule.importance} |" in text


def test_commands_in_the_documents_are_commands():
    """Every `paceline ...` line that the documents show is understood by the parser."""
    from paceline.cli.main import build_parser

    lines = [line for name in ("monitor.md", "alerts.md") for line in told(name).splitlines()]
    found = [line.strip() for line in lines if line.startswith("    paceline ")]
    for command in found:
        build_parser().parse_args(shlex.split(command, comments=True)[1:])
    assert len(found) >= 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bind: 8765", "bind: must be like"),
        ("bind: nowhere", "bind must be host:port"),
        ("bindd: x:1", "did you mean bind?"),
        ("keep_days: -1", "keep_days must be 0 or more"),
        ("public_read: 1", "must be like False"),
        ("tls_cert: a.pem", "line 2: tls_cert: give both"),
        ("log_level: loud", "line 2: log_level: log_level must be one of"),
        ("analysis_processes: 0", "line 2: analysis_processes"),
        ("analysis_memory_mib: 1", "line 2: analysis_memory_mib"),
        ("keep_days: .nan", "line 2: keep_days"),
        ("keep_gib: .inf", "line 2: keep_gib"),
        ("base_url: ftp//x y", "line 2: base_url"),
        ("base_url: http://[::1", "line 2: base_url"),
        ("[]", ""),
    ],
)
def test_a_wrong_setting_is_said(tmp_path, capsys, text, words):
    path = tmp_path / "monitor.yaml"
    path.write_text(f"# ours\n{text}\n")
    assert run(["serve", "--config", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_wrong_option_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "monitor.yaml"
    path.write_text("log_level: debug\n")
    with pytest.raises(MonitorError, match=r"^log_level must be"):
        load_config(path, log_level="loud")


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_file_without_settings_is_one(tmp_path, text):
    path = tmp_path / "monitor.yaml"
    path.write_text(text)
    assert load_config(path) == Config()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql//u:secretpw@h/db",
        "postgresql://u:secretpw/x@h/db",
        "postgresql://u@127.0.0.1:1/db?password=secretpw",
    ],
)
def test_a_password_is_not_printed(tmp_path, capsys, url):
    options = ["--bind", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    assert run(["serve", "--store", url, *options]) == 2
    said = capsys.readouterr().err
    assert "secretpw" not in said
    assert "store" in said


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    with pytest.raises(MonitorError, match=r"uvicorn is not installed.*paceline\[monitor\]"):
        monitor_config.check_installed()
    assert run(["serve"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_https_with_a_certificate(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(cert))
    with monitor(tmp_path / "data", tls_cert=str(cert), tls_key=str(key)) as site:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", site.port, timeout=30, context=context
        )
        body = f"token={site.token('read')}"
        connection.request("POST", "/login", body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert answer.headers["Strict-Transport-Security"]
        assert "; secure" in answer.headers["Set-Cookie"].lower()
        connection.close()
        plain = site.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.startswith(b"HTTP/1.1 2")
    key.write_text("no key")
    assert run(["serve", "--data", str(tmp_path / "d"), "--bind", "127.0.0.1:0",
                "--tls-cert", str(cert), "--tls-key", str(key)]) == 2  # fmt: skip


def test_a_client_that_is_told_elsewhere_keeps_its_token(tmp_path):
    """A redirect to another host must not take the token along."""
    thief = Listener()
    sender = socket.create_server(("127.0.0.1", 0))
    import threading

    def answer():
        connection, _ = sender.accept()
        with connection:
            until(connection, b"\r\n\r\n")
            head = f"HTTP/1.1 302 X\r\nLocation: {thief.url}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    client = Client(f"http://127.0.0.1:{sender.getsockname()[1]}", "pcl_secret", patience_s=0)
    with pytest.raises(MonitorError):
        client.job("x")
    thread.join(5)
    sender.close()
    assert thief.received == []
    thief.close()
