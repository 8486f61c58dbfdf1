"""Traces that are pushed: whole, as declared, once, and never another project's."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

import requires

requires.installed("starlette")

import monitor_uploads
from monitor_uploads import begin, finish, push, put
from monitor_web import monitor
from paceline.monitor.blobs import FileBlobs
from paceline.monitor.store import sessions

site, trace = monitor_uploads.site, monitor_uploads.trace


def rows_of(site, upload):
    from paceline.monitor.store import uploads

    return uploads.find(site.service.engine, upload, "*")


class TestUploads:
    def test_a_trace_in_chunks_becomes_one_session(self, site, trace):
        upload = begin(site, trace, meta={"hosts": {}}).json["upload"]
        assert put(site, upload, 0, trace[:1000]).json == {"offset": 1000}
        assert put(site, upload, 1000, trace[1000:]).json == {"offset": len(trace)}
        session = finish(site, upload).json["session"]
        row = site.ask("GET", f"/api/v1/sessions/{session}", token=site.token()).json
        assert row["sha256"] == hashlib.sha256(trace).hexdigest()
        assert (row["job"], row["project"], row["size_bytes"]) == ("job", "default", len(trace))
        assert begin(site, trace).json == {"session": session}  # the same again is the same
        assert finish(site, upload).status == 404
        assert list(site.service.uploads.folder.iterdir()) == []

    def test_it_goes_on_where_it_stopped_also_after_a_restart(self, tmp_path, trace):
        with monitor(tmp_path) as site:
            upload = begin(site, trace).json["upload"]
            put(site, upload, 0, trace[:3000])
        with monitor(tmp_path) as site:
            again = begin(site, trace).json
            assert again == {"upload": upload, "offset": 3000}
            shown = site.ask("GET", f"/api/v1/uploads/{upload}", token=site.token("push")).json
            assert shown == {"upload": upload, "offset": 3000, "size": len(trace)}
            wrong = put(site, upload, 2000, trace[2000:])
            assert (wrong.status, wrong.json["offset"]) == (409, 3000)
            assert put(site, upload, 3000, trace[3000:]).status == 200
            assert finish(site, upload).status == 200

    def test_what_is_not_whole_or_not_as_declared_is_no_session(self, site, trace):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:100])
        early = finish(site, upload)
        assert (early.status, early.json["offset"]) == (409, 100)
        put(site, upload, 100, bytes(len(trace) - 100))
        other = finish(site, upload)
        assert (other.status, other.json["offset"]) == (409, 0)
        assert "SHA-256" in other.json["error"]
        assert put(site, upload, 0, trace + b"x").status == 413
        start = site.service.uploads.offset(upload)
        assert put(site, upload, start, trace[start:]).status == 200
        assert finish(site, upload).status == 200

    def test_who_knows_a_hash_does_not_get_the_session(self, site, trace):
        push(site, trace, token=site.token("push", "one"))
        other = site.token("push", "two")
        upload = begin(site, trace, token=other).json["upload"]
        assert finish(site, upload, other).status == 409
        assert put(site, upload, 0, trace[:5], site.token("push", "one")).status == 404

    def test_two_jobs_may_have_the_same_trace(self, site, trace):
        one, two = push(site, trace, "one"), push(site, trace, "two")
        assert one != two
        kept = [key for key, _, _ in site.service.blobs.listed() if key.startswith("traces/")]
        assert kept == [
            f"traces/{hashlib.sha256(trace).hexdigest()[:2]}/{hashlib.sha256(trace).hexdigest()}"
        ]

    def test_only_traces_are_kept(self, site):
        for data in (b"PK\3\4 a zip", b"\x80\x04 a pickle", b"<html>"):
            upload = begin(site, data).json["upload"]
            put(site, upload, 0, data)
            assert finish(site, upload).status == 415
        assert list(site.service.blobs.listed()) == []
        assert list(site.service.uploads.folder.iterdir()) == []

    BAD = (
        {},
        {"sha256": "x" * 64, "size": 1},
        {"sha256": "../" * 21 + "x", "size": 1},
        {"sha256": "0" * 64, "size": 0},
        {"sha256": "0" * 64, "size": "1"},
        {"sha256": "0" * 64, "size": True},
        {"sha256": "0" * 64, "size": 1, "meta": [1]},
        {"sha256": "0" * 64, "size": 1, "file_name": 5},
    )

    def test_what_is_said_of_a_trace_is_checked(self, site):
        path = "/api/v1/jobs/job/uploads"
        for body in self.BAD:
            answer = site.ask("POST", path, token=site.token("push"), body=body)
            assert answer.status == 400, body
            assert answer.json["error"]

    def test_limits_of_size_and_of_what_waits(self, tmp_path, trace):
        with monitor(tmp_path, analysis_queue=0, max_upload_mib=1) as site:
            answer = begin(site, trace)
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            body = {"sha256": "0" * 64, "size": (1 << 20) + 1}
            path = "/api/v1/jobs/job/uploads"
            assert site.ask("POST", path, token=site.token("push"), body=body).status == 413

    def test_a_trace_for_which_there_is_no_room_is_refused_before_it_comes(self, site, monkeypatch):
        full = type("usage", (), {"total": 1 << 30, "free": 1 << 20})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: full)
        answer = begin(site, bytes(1000))
        assert answer.status == 507
        assert answer.headers["retry-after"]

    def test_what_has_come_already_takes_no_room_twice(self, site, trace, monkeypatch):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:-10])
        free = {"free": 1 << 30, "total": 1 << 30}
        monkeypatch.setattr(
            "paceline.monitor.uploads.shutil.disk_usage", lambda _: type("usage", (), free)
        )
        free["free"] = (1 << 30) // 20 + 1000  # the spare, and a little
        assert begin(site, trace).json == {"upload": upload, "offset": len(trace) - 10}
        assert begin(site, bytes(100)).status == 200
        assert begin(site, bytes(1100)).status == 507

    def test_one_project_does_not_take_all_the_room(self, site, monkeypatch):
        disk = type("usage", (), {"free": (1 << 30) // 20 + 1000, "total": 1 << 30})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: disk)
        greedy, other = site.token("push", "greedy"), site.token("push", "other")
        answers = [begin(site, bytes(n), token=greedy).status for n in (300, 150, 200)]
        assert answers == [200, 200, 507]
        assert begin(site, bytes(500), token=other).status == 200

    def test_an_upload_that_never_began_gives_its_room_back(self, site, monkeypatch):
        disk = type("usage", (), {"free": (1 << 30) // 20 + 1000, "total": 1 << 30})
        monkeypatch.setattr("paceline.monitor.uploads.shutil.disk_usage", lambda _: disk)
        upload = begin(site, bytes(900)).json["upload"]
        assert begin(site, bytes(200)).status == 507
        later = site.service.clock() + 700
        monkeypatch.setattr(site.service, "clock", lambda: later)
        assert begin(site, bytes(200)).status == 200
        assert put(site, upload, 0, bytes(900)).status == 404

    @pytest.mark.parametrize("number", ["%00", "x", "0" * 31, "%ED%A0%80"])
    def test_an_upload_that_is_none(self, site, number):
        assert put(site, number, 0, b"x").status == 404

    def test_half_a_surrogate_pair_is_no_text(self, site):
        token = site.token()
        for body in (
            {"name": "a", "labels": {"x": "\ud800"}},
            {"name": "a", "labels": {"\udfff": "x"}},
            {"name": "a", "degrees": {"dp_size": "\ud800"}},
        ):
            assert site.ask("POST", "/api/v1/jobs", token=token, body=body).status == 400
        steps = {"source": "\ud800", "batch": 1, "samples": [[0, 0, 1.0]]}
        assert site.ask("POST", "/api/v1/jobs/a/steps", token=token, body=steps).status == 400
        whole = {"name": "a", "labels": {"x": "\U0001f600"}}
        assert site.ask("POST", "/api/v1/jobs", token=token, body=whole).status == 200
        assert site.ask("GET", "/api/v1/jobs", token=token).status == 200

    def test_a_full_disk_is_an_answer_and_the_rest_goes_on_later(self, site, trace, monkeypatch):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:100])
        real = os.write

        def full(number, data):
            if Path(f"/proc/self/fd/{number}").readlink().name == upload:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(number, data)

        monkeypatch.setattr(os, "write", full)
        assert put(site, upload, 100, trace[100:]).status == 507
        monkeypatch.undo()
        assert put(site, upload, 100, trace[100:]).status == 200
        assert finish(site, upload).status == 200

    @pytest.mark.parametrize("where", ["take", "enqueue", "unlink"])
    def test_a_crash_while_finishing_loses_nothing(self, tmp_path, trace, monkeypatch, where):
        class Crash(BaseException):
            pass

        def crash(*_):
            raise Crash

        with monitor(tmp_path) as site:
            upload = begin(site, trace).json["upload"]
            put(site, upload, 0, trace)
            row = site.service.uploads
            found = {**rows_of(site, upload)}
            with monkeypatch.context() as patch:
                if where == "take":
                    patch.setattr(FileBlobs, "take", crash)
                elif where == "enqueue":
                    patch.setattr(sessions, "enqueue", crash)
                else:
                    patch.setattr(os, "unlink", crash)
                    patch.setattr(
                        "pathlib.Path.unlink", lambda _, missing_ok=False: missing_ok or crash()
                    )
                with pytest.raises(Crash):
                    row.finish(found, 1.0)
        with monitor(tmp_path) as site:
            push(site, trace)
            listed = site.ask("GET", "/api/v1/jobs/job/sessions", token=site.token()).json
            assert len(listed["sessions"]) == 1
            assert list(site.service.uploads.folder.iterdir()) == []
