"""A range JSON that a real Prometheus answers is read as step times."""

import json
import os
import shutil
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from monitor_lab import free_port
from paceline.cli.main import run

#: Scrapes of the exporter, of which the last ones are of a slow job.
SCRAPES, HEALTHY = 110, 70
DEADLINE_S = 120.0


def prometheus():
    """The program, or a skip with the words that bring it."""
    program = os.environ.get("PACELINE_PROMETHEUS") or shutil.which("prometheus")
    if program is None or not Path(program).is_file():
        pytest.skip(
            "no prometheus on the PATH: apt-get download prometheus, dpkg -x prometheus_*.deb DIR"
            ", PACELINE_PROMETHEUS=DIR/usr/bin/prometheus (held against Debian's 2.42.0)"
        )
    return program


class Exporter(BaseHTTPRequestHandler):
    """Two ranks' step times; 1.4 times as long from the scrape HEALTHY on."""

    scrapes = 0

    def do_GET(self):
        at = Exporter.scrapes = Exporter.scrapes + 1
        slow = 1.4 if at > HEALTHY else 1.0
        lines = ["# TYPE train_step_time_seconds gauge"]
        for rank in range(2):
            seconds = slow * (0.5 + 0.002 * ((7 * at + rank) % 5))
            lines.append(f'train_step_time_seconds{{rank="{rank}"}} {seconds}')
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write("\n".join([*lines, ""]).encode())

    def log_message(self, *args):
        pass


def answer(port, path, **query):
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(query)}", timeout=10) as reply:
        return reply.read()


def test_a_range_of_a_gauge_has_the_onset(tmp_path, capsys):
    program = prometheus()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = free_port()
    target = f"127.0.0.1:{server.server_address[1]}"
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: train, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    begin = time.time()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(program, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"),
                f"--storage.tsdb.path={tmp_path / 'data'}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while Exporter.scrapes < SCRAPES and time.time() < begin + DEADLINE_S:
            assert process.poll() is None, (tmp_path / "log").read_text()[-500:]
            time.sleep(0.2)
        query = {"query": "train_step_time_seconds", "start": begin, "end": time.time()}
        range_json = answer(port, "query_range", step=0.2, **query)
        instant = answer(port, "query", query="train_step_time_seconds")
    except URLError as error:
        pytest.fail(f"{error}: {(tmp_path / 'log').read_text()[-500:]}")
    finally:
        process.terminate()
        process.wait(timeout=30)
        server.shutdown()
        server.server_close()
    path = tmp_path / "range.json"
    path.write_bytes(range_json)
    assert json.loads(range_json)["data"]["resultType"] == "matrix"
    capsys.readouterr()
    assert run(["detect", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    (onset,) = [each for each in map(json.loads, out.splitlines()) if each["kind"] == "onset"]
    assert onset["ranks"] == [0, 1]
    assert onset["factor"] == pytest.approx(1.4, rel=0.02)
    assert "each sample is a scrape, not a step" in err
    path.write_bytes(instant)
    assert run(["detect", str(path)]) == 2
    assert "ask Prometheus' query_range" in capsys.readouterr().err
