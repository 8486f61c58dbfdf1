"""OTLP's binary encoding, turned into its JSON encoding.

Definitions: opentelemetry-proto, opentelemetry/proto/collector/trace/v1/trace_service.proto, from
the package of that name (extra ``otlp``). The two encodings differ from what protobuf's own JSON
mapping would give in that ids are hex, not base64, and enums are numbers (OTLP specification, "JSON
Protobuf Encoding").
"""

from __future__ import annotations

import base64
from typing import Any

from paceline.errors import TraceError

_IDS = ("traceId", "spanId", "parentSpanId")


def available() -> bool:
    """Whether the package that decodes is installed."""
    from importlib.util import find_spec

    try:
        return find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def decode(body: bytes, where: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest as a file holds it.

    Raises:
        TraceError: it is none, or the package that decodes is not installed.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError:
        raise TraceError(
            f"{where}: protobuf needs the package opentelemetry-proto: pip install 'paceline[otlp]'"
        ) from None
    message = ExportTraceServiceRequest()
    try:
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
    found: dict[str, Any] = request
    return found


def _ids_in_hex(values: dict[str, Any]) -> None:
    for name in _IDS:
        if name in values:
            values[name] = base64.b64decode(values[name]).hex()
