"""`paceline admin` on a monitor with one of everything: backup, restore, gc, and its metrics."""

import io
import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

import requires

requires.installed("starlette")

from monitor_documents import told
from monitor_stores import postgresql
from monitor_web import eventually, monitor
from paceline.cli.main import run
from paceline.errors import MonitorError
from paceline.monitor.backup import restore_backup, write_backup
from paceline.monitor.config import Config
from paceline.monitor.service import Service
from paceline.monitor.store import jobs, tables
from paceline.monitor.store.database import open_database
from paceline.monitor.store.dump import LEFT_OUT, read_rows


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
        eventually(lambda: len(site.ask("GET", shown, token=site.token()).json["step"]) >= 8)
        backup = data.parent / "backup.tar"
        assert run(["admin", "backup", str(backup), "--data", str(data)]) == 0  # while it runs
        rows = kept(site.service.engine)
        yield site, job, backup, rows


def kept(engine):
    # The time of last use and what the detectors know of a job go on changing.
    loose = {"used_at", "seen_at", "status", "last_step", "step_s", "healthy_s"}
    rows = [(t, {k: v for k, v in row.items() if k not in loose}) for t, row in read_rows(engine)]
    return [row for row in rows if row[0] != "alerts"]


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
    assert {*LEFT_OUT} == {"uploads", "revisions"}  # and what the tables say of themselves
    assert len(tables.metadata.sorted_tables) >= 8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut", "incomplete backup"),
        ("nearly", "no whole backup"),
        ("empty", "no whole backup"),
        ("text", "no whole backup"),
        ("bits", "is damaged"),
        ("missing", "is damaged"),
        ("format", "later version"),
        ("column", "later version"),
        ("outside", "which no backup has"),
        ("dots", "which no backup has"),
        ("absolute", "which no backup has"),
        ("link", "which no backup has"),
        ("behind", "which no backup has"),
    ],
)
def test_what_is_no_backup_is_not_restored(filled, tmp_path, name, words):
    backup, bad = filled[2], tmp_path / "bad.tar"
    whole = backup.read_bytes()

    def manifest(**more):
        return lambda n, c: (n, json.dumps({**json.loads(c), **more}).encode())

    renames = {"outside": "../evil", "dots": "blobs/../../evil", "absolute": "/tmp/evil"}
    if name == "cut":
        bad.write_bytes(whole[: whole.index(b"manifest.json\0")])  # the last member is not there
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
        values["slow_since_step"] = 3
        # Another job: detectors go on writing the row of a job that tells steps.
        like = tables.jobs.select().where(tables.jobs.c.id == job.id)
        row = dict(connection.execute(like).mappings().one()) | values
        del row["id"]
        connection.execute(tables.jobs.insert().values(**(row | {"name": "another"})))
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
    assert re.search(r'paceline_job_info{[^}]*job="job-1",project="llm",status="\w+"', text)
    mine = site.ask("GET", "/metrics", token=site.token("read", "other")).text
    assert "job-1" not in mine
    assert "process_" not in mine
