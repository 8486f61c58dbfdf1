"""The client: the standard library only, patient with a service that is away, and careful."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from installed import PACKAGES
from paceline.client import Client, Refused
from paceline.errors import MonitorError


class Fake:
    """A service that answers as it is told: (status, body, headers), then 200 and {}."""

    def __init__(self):
        self.answers, self.asked = [], []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fake.asked.append((self.command, self.path, dict(self.headers), body))
                status, said, headers = fake.answers.pop(0) if fake.answers else (200, {}, {})
                said = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = do_PUT = answer  # noqa: N815 (http.server's names)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fake():
    fake = Fake()
    yield fake
    fake.close()


@pytest.fixture
def client(fake, monkeypatch):
    monkeypatch.setattr("paceline.client._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("paceline.client._MAX_PAUSE_S", 0.02)
    return Client(fake.url, "pcl_secret", patience_s=5.0)


def test_importing_it_costs_nothing():
    code = "import paceline.client, sys; print({'numpy', 'torch', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PACKAGES}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_a_busy_service_is_asked_again(fake, client):
    fake.answers = [
        (s, {"error": "later"}, {"Retry-After": "9"}) for s in (429, 502, 503, 504, 507)
    ]
    assert client.job("a") == {}
    assert len(fake.asked) == 6
    assert {path for _, path, _, _ in fake.asked} == {"/api/v1/jobs/a"}


def test_an_answer_that_is_none_is_asked_for_again(fake, client):
    fake.answers = [(200, b"<html>", {}), (200, b"{", {}), (200, {"x": 1}, {})]
    assert client.job("a") == {"x": 1}


def test_patience_ends(fake):
    fake.close()
    said = []
    with pytest.raises(MonitorError, match="cannot be reached"):
        Client(fake.url, "x", patience_s=2, on_wait=said.append).job("a")
    (why,) = said
    assert why.startswith(f"the monitor at {fake.url} is away (")
    fake.__init__()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 500])
def test_a_refusal_is_said_at_once(fake, client, status):
    fake.answers = [(status, {"error": "this is why", "n": 3}, {})]
    with pytest.raises(Refused, match="refuses: this is why") as refused:
        client.job("a")
    assert (refused.value.status, refused.value.body["n"], len(fake.asked)) == (status, 3, 1)
    assert "pcl_secret" not in str(refused.value)


def test_the_token_goes_nowhere_else(fake, client):
    other = Fake()
    fake.answers = [(302, {}, {"Location": other.url})]
    with pytest.raises(Refused):
        client.job("a")
    assert other.asked == []
    assert fake.asked[0][2]["Authorization"] == "Bearer pcl_secret"
    other.close()


def test_names_and_projects_are_quoted(fake):
    client = Client(fake.url + "/sub/", "t", project="a&b")
    client.job("x/../y?z")
    assert fake.asked[0][1] == "/sub/api/v1/jobs/x%2F..%2Fy%3Fz?project=a%26b"


@pytest.mark.parametrize("url", ["", "host:8765", "ftp://x", "file:///etc/passwd", "http://"])
def test_a_url_that_is_none(url):
    with pytest.raises(MonitorError, match="no address of a monitor"):
        Client(url)


def test_a_token_that_is_none(monkeypatch):
    for token in ("a b", "ä", "a\r\nX: y"):
        with pytest.raises(MonitorError, match="copy it again"):
            Client("http://x", token)
    monkeypatch.setenv("PACELINE_TOKEN", " pcl_env\n")
    assert Client("http://x").token == "pcl_env"
    assert Client("http://user:word@x:1/").url == "http://x:1"


def test_an_upload_follows_what_the_service_has(fake, client, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.client.CHUNK_BYTES", 4)
    path = tmp_path / "trace"
    path.write_bytes(b"0123456789")
    fake.answers = [
        (200, {"upload": "u", "offset": 2}, {}),
        (200, {"offset": 6}, {}),
        (409, {"error": "the upload has 8 bytes", "offset": 8}, {}),
        (200, {"upload": "u", "offset": 8}, {}),
        (200, {"offset": 10}, {}),
        (404, {"error": "no such upload"}, {}),
        (200, {"session": 7}, {}),
    ]
    assert client.push_trace("job", path) == 7
    sent = [body for method, _, _, body in fake.asked if method == "PUT"]
    assert sent == [b"2345", b"6789", b"89"]


def test_a_file_that_is_none_is_said(client, tmp_path):
    with pytest.raises(MonitorError, match="cannot be read"):
        client.push_trace("job", tmp_path / "nothing")
    (tmp_path / "empty").touch()
    with pytest.raises(MonitorError, match="is empty"):
        client.push_trace("job", tmp_path / "empty")


def test_the_same_samples_are_the_same_batch(fake, client):
    client.push_steps("job", [1, 2], [0, 0], [1.0, 2.0])
    client.push_steps("job", [1, 2], [0, 0], [1.0, 2.0])
    client.push_steps("job", [1, 2], [0, 0], [1.0, 2.5])
    client.push_steps("job", [1], [0], [1.0], source="s/0", batch=4, world=8)
    bodies = [json.loads(body) for _, _, _, body in fake.asked]
    assert bodies[0] == bodies[1]
    assert bodies[0]["batch"] != bodies[2]["batch"]
    assert (bodies[3]["source"], bodies[3]["batch"], bodies[3]["world"]) == ("s/0", 4, 8)
    assert "workload" not in bodies[3]


def test_workload_is_pairs_of_step_and_value(fake, client):
    client.push_steps("job", [1, 2], [0, 0], [1.0, 2.0], workload={"tokens": {1: 5.0, 2: 6.0}})
    ((_, _, _, body),) = fake.asked
    assert json.loads(body)["workload"] == {"tokens": [[1, 5.0], [2, 6.0]]}


def test_all_pages_are_read(fake, client):
    fake.answers = [
        (200, {"events": [1, 2], "next": 2}, {}),
        (200, {"events": [3], "next": None}, {}),
    ]
    assert list(client.events("job")) == [1, 2, 3]
    assert [path for _, path, _, _ in fake.asked] == [
        "/api/v1/events?job=job",
        "/api/v1/events?job=job&after=2",
    ]


def test_waiting_for_a_session_ends(fake, client, monkeypatch):
    monkeypatch.setattr("paceline.client._LOOK_S", 0.01)
    fake.answers = [(200, {"status": s}, {}) for s in ("queued", "running", "failed")]
    assert client.wait(3)["status"] == "failed"
    fake.answers = [(200, {"status": "queued"}, {}) for _ in range(1000)]
    with pytest.raises(MonitorError, match=r"queued after 0\.05 s"):
        client.wait(3, 0.05)
