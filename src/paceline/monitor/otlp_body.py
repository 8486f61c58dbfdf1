"""The body of an OTLP/HTTP request: read, unpacked, decoded and checked within limits."""

from __future__ import annotations

import json
import time
import zlib
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any

from paceline.errors import TraceError
from paceline.sources.json_stream import MAX_LINE_BYTES
from paceline.sources.otlp import check_request, protobuf_encoding

#: Largest body, packed and unpacked. The Collector accepts 20 MiB; exporters send about 100 kB.
MAX_BODY_BYTES = 16 << 20

#: Time limit for the arrival of a body.
BODY_S = 20.0

PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Refused(Exception):  # noqa: N818 (an answer, not an error)
    """A request is answered with an error: the HTTP status and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def media_type(headers: Message) -> str:
    """The media type of a request, without its parameters."""
    return str(headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def line_of(handler: BaseHTTPRequestHandler) -> tuple[bytes, int]:
    """A request's body as a line of the file, and its number of spans.

    Raises:
        Refused: the body cannot be read, decoded or stored.
    """
    kind = media_type(handler.headers)
    if kind not in (PROTOBUF, JSON):
        raise Refused(415, f"Content-Type should be {PROTOBUF} or {JSON}")
    if kind == PROTOBUF and not protobuf_encoding.available():
        raise Refused(415, "protobuf needs pip install 'paceline[otlp]' at the receiver")
    body = _body(handler)
    try:
        request = protobuf_encoding.decode(body, "body") if kind == PROTOBUF else _json(body)
        spans = check_request(request, "body")
        # NaN is not valid JSON, and Megatron's times and numbers have none.
        line = json.dumps(request, separators=(",", ":"), allow_nan=False).encode()
    except (TraceError, ValueError, RecursionError) as error:
        raise Refused(400, str(error)) from None
    if len(line) >= MAX_LINE_BYTES:
        raise Refused(413, f"as JSON the request has {len(line):,} bytes; send smaller batches")
    return line, spans


def _json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"))  # json.loads would guess encodings


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """The body of a request, unpacked."""
    length = handler.headers.get("Content-Length", "")
    if handler.headers.get("Transfer-Encoding") or not (length.isascii() and length.isdigit()):
        raise Refused(411, "a body needs a Content-Length")
    if len(length) > 12 or int(length) > MAX_BODY_BYTES:
        raise Refused(
            413, f"a body may have at most {MAX_BODY_BYTES:,} bytes; send smaller batches"
        )
    packing = handler.headers.get("Content-Encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        raise Refused(415, "Content-Encoding should be gzip or none")
    body = _receive(handler, int(length))
    return _unpack(body) if packing == "gzip" else body


def _receive(handler: BaseHTTPRequestHandler, n_bytes: int) -> bytes:
    """The body, read to its length within a time limit for slow senders."""
    until = time.monotonic() + BODY_S
    body = bytearray()
    handler.connection.settimeout(BODY_S)
    while len(body) < n_bytes:
        try:
            chunk = handler.rfile.read1(min(n_bytes - len(body), 1 << 20))
        except TimeoutError:
            until = 0.0
        if time.monotonic() > until:
            raise Refused(408, "the body did not arrive in time")
        if not chunk:
            raise Refused(400, "the body is cut off")
        body += chunk
    return bytes(body)


def _unpack(body: bytes) -> bytes:
    """Unpacked content of a gzip body; at most the limit is unpacked."""
    packed = zlib.decompressobj(wbits=31)
    try:
        content = packed.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise Refused(400, f"the body is no gzip: {error}") from None
    if len(content) > MAX_BODY_BYTES:
        raise Refused(413, f"the unpacked body has more than {MAX_BODY_BYTES:,} bytes")
    if not packed.eof or packed.unused_data:
        raise Refused(400, "the gzip body is cut off, or something follows it")
    return content
