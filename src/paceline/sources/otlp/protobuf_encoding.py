"""OTLP's binary encoding, turned into its JSON encoding.

Definitions: opentelemetry-proto, opentelemetry/proto/collector/trace/v1/trace_service.proto, from
the package of that name (extra ``otlp``). The JSON encoding differs from protobuf's own JSON
mapping in two points. Ids are hex, not base64, and enums are numbers (OTLP specification, "JSON
Protobuf Encoding").
"""

from __future__ import annotations

import base64
from typing import Any

from paceline.errors import TraceError
from paceline.extras import pip_install

#: Most messages and texts of a request; a span has some 25. An empty message takes two bytes in the
#: request, but 250 bytes when decoded.
MAX_PARTS = 500_000

_IDS = ("traceId", "spanId", "parentSpanId")


def available() -> bool:
    """Whether the package that decodes is installed."""
    from importlib.util import find_spec

    try:
        return find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def decode(body: bytes, where: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest in the JSON encoding.

    Raises:
        TraceError: it is no such request, or the package that decodes is not installed.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError:
        raise TraceError(
            f"{where}: protobuf needs the package opentelemetry-proto: {pip_install('otlp')}"
        ) from None
    message = ExportTraceServiceRequest()
    try:
        _check_size(body, message.DESCRIPTOR)
        message.ParseFromString(body)
        request = MessageToDict(message, use_integers_for_enums=True)
    # ValueError: nested too deep for JSON, or text that is no UTF-8.
    except (DecodeError, ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no ExportTraceServiceRequest in protobuf: {error}") from None
    for resource in request.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                _ids_in_hex(span)
                for link in span.get("links", ()):
                    _ids_in_hex(link)
    result: dict[str, Any] = request
    return result


def _check_size(body: bytes, kind: Any) -> None:
    """Count the messages and texts in the bytes before they are decoded.

    Raises:
        ValueError: there are too many, or the bytes are cut off or hold a group (obsolete).
    """
    fields_of, n_parts = {kind: _parts_of(kind)}, 0
    waiting = [(0, len(body), kind)]
    while waiting:
        at, end, kind = waiting.pop()
        while at < end:
            tag, at = _varint(body, at)
            if tag & 7 == 2:
                size, at = _varint(body, at)
                n_parts += 1
                field_kind = fields_of[kind].get(tag >> 3)
                if field_kind is not None:
                    if field_kind not in fields_of:
                        fields_of[field_kind] = _parts_of(field_kind)
                    waiting.append((at, min(at + size, end), field_kind))
                at += size
            elif tag & 7 == 0:
                _, at = _varint(body, at)
            elif tag & 7 in (1, 5):
                at += 8 if tag & 7 == 1 else 4
            else:
                raise ValueError("it holds a group")
            if n_parts > MAX_PARTS:
                raise ValueError(f"more than {MAX_PARTS:,} parts; send smaller batches")


def _parts_of(kind: Any) -> dict[int, Any]:
    """Field number -> kind of message, for the fields that are messages."""
    return {f.number: f.message_type for f in kind.fields if f.message_type is not None}


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number at an index, 7 bits a byte, and the index behind it."""
    value, shift = 0, 0
    while shift < 70 and at < len(body):
        value |= (body[at] & 127) << shift
        at += 1
        if body[at - 1] < 128:
            return value, at
        shift += 7
    raise ValueError("it is cut off")


def _ids_in_hex(values: dict[str, Any]) -> None:
    for name in _IDS:
        if name in values:
            values[name] = base64.b64decode(values[name]).hex()
