"""An OTLP/HTTP receiver of spans: POST /v1/traces, in protobuf and JSON, plain or gzip.

Answers follow the OTLP specification (section OTLP/HTTP). 200 has an ExportTraceServiceResponse in
the encoding of the request. 400 is for an undecodable body, which the sender then drops. 503 with
Retry-After asks the sender to repeat the request. Errors have a google.rpc.Status. Acknowledged
requests are on disk.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from paceline.errors import OutputError
from paceline.monitor.otlp_body import JSON, PROTOBUF, Refused, line_of, media_type
from paceline.monitor.request_file import RequestFile
from paceline.sources.otlp import FILE_NAME

#: Most requests in work, to limit memory, and longest wait of others in seconds.
AT_A_TIME, WAIT_S = 8, 5.0

#: Connections at a time: one per rank of a large job.
MAX_CONNECTIONS = 4096

#: Longest silence of a connection before it is closed, seconds.
SILENCE_S = 60.0

#: Seconds to read the rest of a refused request.
LINGER_S = 2.0

#: Codes of google.rpc.Code, by HTTP status; all others are INVALID_ARGUMENT.
_CODES = {404: 5, 405: 12, 408: 4, 413: 8, 503: 14}


@dataclass
class Counts:
    """Counts of a receiver so far.

    Attributes:
        requests: number of accepted requests.
        spans: number of their spans.
        bytes: bytes written to the file.
        refused: HTTP status -> number of requests.
    """

    requests: int
    spans: int
    bytes: int
    refused: Counter[int]


class Receiver(ThreadingHTTPServer):
    """The server; it listens after construction.

    Attributes:
        counts: its work so far.
        file: its output.
    """

    daemon_threads = True  # a silent connection does not delay the stop
    request_queue_size = 1024

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 4318) -> None:
        """Listen, and open ``folder``'s file.

        Args:
            folder: folder of ``otlp.jsonl``.
            host: address to listen on. It has no protection, so use the loopback or a private
                network.
            port: 0 takes a free one.

        Raises:
            OutputError: the file cannot be continued, or the address is in use or invalid.
        """
        self.counts = Counts(0, 0, 0, Counter())
        self._counting = threading.Lock()
        self._slots = threading.BoundedSemaphore(AT_A_TIME)
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._stopping = False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"cannot listen on {host}, port {port}: {reason}") from None
        try:  # requests wait until it serves
            self.file = RequestFile(folder / FILE_NAME)
        except BaseException:
            self.server_close()
            raise

    def server_bind(self) -> None:
        """Bind without a look-up of the own host name, which the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        # Typed as text or bytes for other address families.
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def url(self) -> str:
        """Value for an exporter's OTEL_EXPORTER_OTLP_TRACES_ENDPOINT."""
        host = str(self.server_name)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/v1/traces"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a separate thread, up to the limit."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections, for the sender repeats requests; count other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            self.count_refused(500)

    def stop(self) -> None:
        """Accept no more, finish present requests, close the file. Call it from another thread."""
        self._stopping = True
        self.shutdown()
        self.server_close()
        until = time.monotonic() + WAIT_S
        for _ in range(AT_A_TIME):
            self._slots.acquire(timeout=max(0.0, until - time.monotonic()))
        self.file.close()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """A context for one request; :meth:`stop` waits for its end.

        Raises:
            Refused: too many requests are in work, or the receiver is stopping.
        """
        if not self._slots.acquire(timeout=WAIT_S):
            raise Refused(503, "too many concurrent requests; send it again")
        try:
            if self._stopping:
                raise Refused(503, "the receiver is stopping")
            yield
        finally:
            self._slots.release()

    def take(self, handler: _Handler) -> None:
        """Read, check and store the request of a handler.

        Raises:
            Refused: it is not taken.
        """
        line, spans = line_of(handler)
        try:
            if spans:
                self.file.append(line)
        except OutputError as error:
            raise Refused(503, str(error)) from None
        with self._counting:
            self.counts.requests += 1
            self.counts.spans += spans
            self.counts.bytes += len(line) + 1 if spans else 0

    def count_refused(self, status: int) -> None:
        """Count a request with an error."""
        with self._counting:
            self.counts.refused[status] += 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "paceline", ""
    timeout = SILENCE_S
    server: Receiver

    def do_POST(self) -> None:
        """Take a request and answer it."""
        try:
            if self.path.partition("?")[0] != "/v1/traces":
                raise Refused(404, "spans are taken at /v1/traces, nothing else is")
            with self.server.working():
                self.server.take(self)
                self.connection.settimeout(SILENCE_S)
                self._answer(200, b"{}" if self.kind == JSON else b"")
        except Refused as refused:
            self._refuse(refused.status, str(refused))

    def do_GET(self) -> None:
        """Answer that there is no page."""
        if self.path == "/v1/traces":
            self._refuse(405, "POST spans here")
        else:
            self._refuse(404, "spans are taken at /v1/traces, nothing else is")

    @property
    def kind(self) -> str:
        """The media type of the request."""
        return media_type(self.headers)

    def _refuse(self, status: int, message: str) -> None:
        self.server.count_refused(status)
        self.close_connection = True  # the body may be unread
        code = _CODES.get(status, 3)
        if self.kind == PROTOBUF:
            body = _status_protobuf(code, message)
        else:
            body = json.dumps({"code": code, "message": message}).encode()
        self._answer(status, body)
        self._linger()

    def _linger(self) -> None:
        """Let the sender read the answer; closing before would reset the connection."""
        until = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            self.connection.settimeout(LINGER_S)
            self.connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < until and self.rfile.read1(1 << 20):
                pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", PROTOBUF if self.kind == PROTOBUF else JSON)
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "5")
        if status == 405:
            self.send_header("Allow", "POST")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log each request, which the counts cover."""


def _status_protobuf(code: int, message: str) -> bytes:
    """A google.rpc.Status: field 1 the code (below 128), field 2 the message."""
    text = message.encode()[:2000]
    length = (
        bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    )
    return bytes([0x08, code, 0x12]) + length + text
