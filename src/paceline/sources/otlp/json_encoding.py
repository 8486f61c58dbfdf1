"""Spans in OTLP's JSON encoding, from the Collector's files.

The file exporter of the OpenTelemetry Collector writes one ExportTraceServiceRequest per line; a
file may also hold a single such object. The OTLP specification (opentelemetry.io/docs/specs/otlp)
describes the encoding, "JSON Protobuf Encoding": lowerCamelCase keys, 64-bit numbers as text, ids
in hex.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import mapping
from paceline.sources.json_stream import JsonStream, lines


def check_request(request: Any, where: str) -> int:
    """Check the shape of a request; returns its number of spans.

    Raises:
        TraceError: it is no ExportTraceServiceRequest.
    """
    return sum(
        1 for place, resource in resources_of(request, where) for _ in spans_of(resource, place)
    )


def resources(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The ResourceSpans of a file, each with its place for messages."""
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    try:
        first = next((line for line in lines(path) if line.strip()), "")
        by_line = isinstance(json.loads(first), dict)
    except (TraceError, ValueError, RecursionError):
        by_line = False
    if not by_line:
        for n, resource in enumerate(JsonStream(path, "resourceSpans")):
            yield f"{path}, resource {n}", resource
        return
    for n, line in enumerate(lines(path), 1):
        if line.strip():
            yield from resources_of(_request(line, f"{path}, line {n}"), f"{path}, line {n}")


def _request(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{place} is damaged or cut off ({error}); copy the file again, or, if it was being "
            "written, delete this line"
        ) from None


def resources_of(request: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A request's ResourceSpans. The same file may hold requests of metrics or logs without any."""
    if not isinstance(request, dict):
        raise TraceError(f"{place}: no ExportTraceServiceRequest but {repr(request)[:40]}")
    for resource in _objects(request, "resourceSpans", place):
        yield place, resource


def _objects(values: Mapping[str, Any], name: str, place: str) -> Iterator[dict[str, Any]]:
    """The objects of a list; a missing list is empty, as in all protobuf JSON.

    Raises:
        TraceError: it is no list of objects.
    """
    objects = values.get(name)
    if objects is None:
        return
    if not isinstance(objects, list) or not all(isinstance(value, dict) for value in objects):
        raise TraceError(f"{place}: {name} is no list of objects; is it an OTLP file?")
    yield from objects


def spans_of(resource: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """The spans of a ResourceSpans, of all scopes."""
    for scope in _objects(resource, "scopeSpans", place):
        yield from _objects(scope, "spans", place)


def attributes_of(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Attributes as plain values; arrays and maps become None (Megatron's spans have none)."""
    attributes = {}
    for pair in _objects(values, "attributes", place):
        value = mapping(pair, "value")
        plain = (value.get(f"{name}Value") for name in ("string", "int", "double", "bool"))
        attributes[str(pair.get("key"))] = next((v for v in plain if v is not None), None)
    return attributes


def times_of(span: Mapping[str, Any], name: str, rank: int, place: str) -> tuple[int, int]:
    """Start and end in ns since 1970; an end of 0 means none.

    Raises:
        TraceError: they are invalid times, or the end is before the start.
    """
    times_ns = []
    for key in ("startTimeUnixNano", "endTimeUnixNano"):
        value = span.get(key, 0)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise TraceError(
                f"{place}: {key} of a {name} of rank {rank} is {str(value)[:40]!r}; it should be "
                "nanoseconds"
            )
        times_ns.append(value)
    if times_ns[1] and times_ns[1] < times_ns[0]:
        raise TraceError(f"{place}: a {name} of rank {rank} ends before it starts")
    return times_ns[0], times_ns[1]
