"""Steps from the spans of Megatron-LM: their times, and the complete ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.sources.fields import mapping, optional_whole
from paceline.sources.megatron_place import SIZES, WORLD
from paceline.sources.otlp import ITERATION, STEPS, is_used, rank_of
from paceline.sources.otlp.json_encoding import attributes_of, resources_of, spans_of, times_of


@dataclass(frozen=True)
class Steps:
    """Steps in lines of requests.

    Attributes:
        whole: steps that all ranks have finished, ascending.
        until: rank -> end of the last of these, in ns; later spans belong to later steps.
        hosts: rank -> (host, ""), if the spans have it.
    """

    whole: tuple[int, ...]
    until: Mapping[int, int]
    hosts: Mapping[int, tuple[str, str]]


def step_times(request: Any, where: str = "the request") -> list[tuple[int, int, float]]:
    """(step, rank, seconds) of the steps in a request.

    Raises:
        TraceError: a span of Megatron-LM lacks its rank or number, or has no times.
    """
    return [
        (step, rank, (end_ns - start_ns) / 1e9)
        for rank, _, spans in _ranks(request, where)
        for step, start_ns, end_ns in spans
        if step is not None
    ]


def steps_of(lines: Sequence[bytes], late_ns: int = 0) -> Steps:
    """The steps of checked requests, one request per line.

    Args:
        lines: lines of JSON.
        late_ns: steps that ended less than this before the last one count as incomplete, for their
            operations may still arrive.
    """
    ends: dict[int, dict[int, int]] = {}  # step -> rank -> end
    hosts: dict[int, tuple[str, str]] = {}
    sizes: dict[str, int] = {}
    world_size = 0
    for line in lines:
        for rank, about, spans in _ranks(json.loads(line), "a line"):
            sizes_of_rank = {name: optional_whole(about.get(name)) for name in SIZES}
            sizes.update({name: size for name, size in sizes_of_rank.items() if size})
            world_size = max(world_size, optional_whole(about.get(WORLD)) or 0)
            if about.get("host.name"):
                hosts[rank] = (str(about["host.name"])[:100], "")
            for step, _, end_ns in spans:
                if step is not None:
                    ends.setdefault(step, {})[rank] = end_ns
    ranks = {rank for of_step in ends.values() for rank in of_step}
    product = math.prod(size for name, size in sizes.items() if "virtual" not in name)
    world = max(product, world_size)
    newest = max((max(of_step.values()) for of_step in ends.values()), default=0) - late_ns
    complete = {
        step: of_step
        for step, of_step in ends.items()
        if len(of_step) == max(world, len(ranks)) and max(of_step.values()) <= newest
    }
    until = {
        rank: max(of_step[rank] for of_step in complete.values()) for rank in ranks if complete
    }
    return Steps(tuple(sorted(complete)), until, hosts)


def behind(lines: Sequence[bytes], until: Mapping[int, int]) -> list[bytes]:
    """The requests without spans that begin before ``until`` of their rank, in ns."""
    remaining = []
    for line in lines:
        request = json.loads(line)
        resources = []
        for place, resource in resources_of(request, "a line"):
            about = attributes_of(mapping(resource, "resource"), place)
            spans = [
                span for span in spans_of(resource, place) if _is_behind(span, about, until, place)
            ]
            if spans:
                resources.append(
                    {"resource": resource.get("resource"), "scopeSpans": [{"spans": spans}]}
                )
        if resources:
            remaining.append(
                json.dumps({"resourceSpans": resources}, separators=(",", ":")).encode()
            )
    return remaining


def _is_behind(
    span: Mapping[str, Any], about: Mapping[str, Any], until: Mapping[int, int], place: str
) -> bool:
    name = str(span.get("name"))
    if not is_used(name):
        return False
    rank = rank_of(about, place)
    return times_of(span, name, rank, place)[0] >= until.get(rank, 0)


_Span = tuple[int | None, int, int]


def _ranks(request: Any, where: str) -> Iterator[tuple[int, dict[str, Any], list[_Span]]]:
    """(rank, its attributes, [(step or None, start, end)]) of Megatron's ranks in a request."""
    for place, resource in resources_of(request, where):
        about = attributes_of(mapping(resource, "resource"), place)
        rank, rank_spans = -1, list[_Span]()
        for span in spans_of(resource, place):
            name = str(span.get("name"))
            if not is_used(name):
                continue
            rank = rank_of(about, place) if rank < 0 else rank
            start_ns, end_ns = times_of(span, name[:80], rank, place)
            step = None
            if name in STEPS and end_ns:
                attributes = attributes_of(span, place)
                about |= {key: attributes[key] for key in SIZES if key in attributes}
                step = optional_whole(attributes.get(ITERATION))
            rank_spans.append((step, start_ns, end_ns))
        if rank >= 0:
            yield rank, about, rank_spans
