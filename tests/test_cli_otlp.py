"""``paceline otlp``: a real exporter sends a job's spans to the real process."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

import requires
from jobs import Spec, make_rows, trace_of
from otlp_spans import WITH_SPANS, sizes_of, spans_of_ranks
from paceline.cli.main import run
from paceline.errors import TraceError
from paceline.sources import otlp
from paceline.whatif import analyze


class Process:
    """A receiver in a process of its own."""

    def __init__(self, folder, *args):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "otlp", "-o", folder, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://"), line + self.process.stderr.read()
        self.url = line.split()[2].rstrip(",")
        self.environment = []  # read whole: communicate() would lose what is buffered
        while not self.environment or "ENDPOINT" not in self.environment[-1]:
            self.environment.append(self.process.stdout.readline())
        return self

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


def send(url, rows, *, packed):
    """Send a job's spans rank by rank, as its processes would: with OpenTelemetry's own SDK."""
    requires.installed("opentelemetry.sdk")
    requires.installed("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as exporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    sizes = sizes_of(rows)
    for rank, spans in spans_of_ranks(rows).items():
        resource = Resource({"service.name": "megatron", "service.instance.id": str(rank), **sizes})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        compression = Compression.Gzip if packed else Compression.NoCompression
        sender = exporter.OTLPSpanExporter(endpoint=url, compression=compression)
        provider.add_span_processor(BatchSpanProcessor(sender, max_export_batch_size=20))
        tracer = provider.get_tracer("megatron")
        above = {}
        for span in spans:  # a step ends, and so is sent, after its ops
            if not span["parent"]:
                above[span["id"]] = tracer.start_span(
                    span["name"], start_time=span["start_ns"], attributes=span["attributes"]
                )
                continue
            context = trace.set_span_in_context(above[span["parent"]])
            inner = tracer.start_span(
                span["name"], context, start_time=span["start_ns"], attributes=span["attributes"]
            )
            inner.end(span["end_ns"])
        for span in spans:
            if not span["parent"]:
                above[span["id"]].end(span["end_ns"])
        assert provider.force_flush(20_000)
        provider.shutdown()


def test_spans_of_the_real_exporter_are_received_and_analysed(tmp_path):
    rows = make_rows(
        Spec(
            pp=2,
            microbatches=(4, 4),
            steps=3,
            **WITH_SPANS,
            slow=((1, 0, 2),),
        )
    )
    folder = tmp_path / "runs" / "job-18"
    with Process(folder, "--listen", "127.0.0.1:0") as receiver:
        send(receiver.url, rows, packed=True)
        code, out, err = receiver.stop()
    assert (code, err) == (0, "")
    assert "  export MEGATRON_OTEL_EXPORT_STRATEGY=all_ranks\n" in receiver.environment
    assert "  export MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch\n" in receiver.environment
    assert receiver.environment[-1] == (
        f"  export OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={receiver.url}\n"
    )
    spans = len(rows) + 4 * 3
    assert f"with {spans:,} spans" in out
    assert f"in {folder / 'otlp.jsonl'}" in out
    assert "refused" not in out

    got, truth = otlp.read([folder]), trace_of(rows)
    assert (got.matched, got.confidence) == (len(rows), 1.0)
    assert (got.trace.counts == truth.counts).all()
    assert np.abs(got.trace.end - truth.end).max() < 1e-6
    result = analyze(got.trace)
    assert result.slowdown == pytest.approx(analyze(truth).slowdown, rel=1e-4)
    assert np.unravel_index(np.argmax(result.by_worker), (2, 2)) == (0, 1)  # [stage, replica]


def test_a_folder_is_continued_and_sigint_ends_it_too(tmp_path):
    rows = make_rows(
        Spec(
            pp=1,
            microbatches=(2, 2),
            steps=1,
            **WITH_SPANS,
        )
    )
    for n in (1, 2):
        with Process(tmp_path, "--listen", "127.0.0.1:0") as receiver:
            send(receiver.url, rows, packed=False)
            code, _, _ = receiver.stop(signal.SIGINT)
        assert code == 0
        assert len((tmp_path / "otlp.jsonl").read_text().splitlines()) == 2 * n
    with pytest.raises(TraceError, match="ops twice, the first is a forward-compute of rank 0"):
        otlp.read([tmp_path])


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    body = b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}]}]}]}'
    with Process(tmp_path, "--listen", "127.0.0.1:0") as receiver:
        for _ in range(3):
            ask = urllib.request.Request(receiver.url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(ask, timeout=300) as answer:
                assert answer.status == 200
        receiver.process.kill()
        receiver.process.wait(120)
    assert len((tmp_path / "otlp.jsonl").read_text().splitlines()) == 3
    with (tmp_path / "otlp.jsonl").open("a") as file:
        file.write('{"resourceSpans": [')  # as a machine that went down could leave it
    with Process(tmp_path, "--listen", "[::1]:0") as receiver:
        assert receiver.url.startswith("http://[::1]:")
        ask = urllib.request.Request(receiver.url, b"{", {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(ask, timeout=300)
        code, out, err = receiver.stop()
    assert (code, "refused: 1 with 400" in out) == (0, True)
    assert "note: removed 19 bytes of a request that was cut off\n" in err
    assert len((tmp_path / "otlp.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("address", ["4318", "localhost:", ":4318", "localhost:70000", "a:b"])
def test_addresses_that_are_none(address, capsys, tmp_path):
    assert run(["otlp", "--listen", address, "-o", str(tmp_path)]) == 2
    assert "is no HOST:PORT" in capsys.readouterr().err


def test_a_file_in_the_way(capsys, tmp_path):
    (tmp_path / "otlp.jsonl").write_text("mine")
    assert run(["otlp", "--listen", "127.0.0.1:0", "-o", str(tmp_path)]) == 2
    assert "is no file of OTLP spans" in capsys.readouterr().err
    assert (tmp_path / "otlp.jsonl").read_text() == "mine"
