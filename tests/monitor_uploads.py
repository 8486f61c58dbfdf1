"""Pushing traces to a monitor that analyses nothing.

A file of tests takes a fixture over by its name: ``site = monitor_uploads.site``.
"""

import hashlib

import pytest

from monitor_durability import make_trace
from monitor_web import monitor
from paceline.monitor.analysis_pool import Analyses


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return make_trace(tmp_path_factory.mktemp("trace"), 0).read_bytes()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A monitor that analyses nothing."""
    monkeypatch.setattr(Analyses, "start", lambda _: None)
    with monitor(tmp_path / "data") as site:
        yield site


def begin(site, data, job="job", token=None, **more):
    body = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **more}
    path = f"/api/v1/jobs/{job}/uploads"
    return site.ask("POST", path, token=token or site.token("push"), body=body)


def put(site, upload, offset, part, token=None):
    path = f"/api/v1/uploads/{upload}?offset={offset}"
    return site.ask("PUT", path, token=token or site.token("push"), body=part)


def finish(site, upload, token=None):
    path = f"/api/v1/uploads/{upload}/finish"
    return site.ask("POST", path, token=token or site.token("push"))


def push(site, data, job="job", token=None):
    begun = begin(site, data, job, token).json
    if "session" not in begun:
        assert (
            put(site, begun["upload"], begun["offset"], data[begun["offset"] :], token).status
            == 200
        )
        begun = finish(site, begun["upload"], token).json
    return begun["session"]
