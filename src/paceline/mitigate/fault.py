"""A fail-slow with a known place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import MitigateError
from paceline.trace.job import place_name

#: A machine, named by its place: (dp, pp), or (dp, pp, peer) if peers are apart.
Worker = tuple[int, ...]

COMPUTE, LINK, NIC = "compute", "link", "nic"
KINDS = (COMPUTE, LINK, NIC)

#: Largest factor: beyond it, times lose precision.
LARGEST_FACTOR = 1e6

#: Largest number of a rank or stage that is accepted.
_LARGEST = 2**63 - 1


def whole_number(value: Any) -> int:
    """A whole number in the form of JSON, 7 or 7.0.

    Raises:
        ValueError, TypeError: it is not a whole number.
    """
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("no whole number")  # nor are NaN and infinity
    if abs(number := int(value)) > _LARGEST:
        raise ValueError("too large")
    return number


def place_from(values: Any) -> Worker:
    """A place in the form of JSON.

    Raises:
        ValueError, TypeError: it is not a place.
    """
    if len(values) not in (2, 3):
        raise ValueError("no place")
    return tuple(whole_number(value) for value in values)


@dataclass(frozen=True, order=True)
class Fault:
    """A slow machine or link.

    A machine is named by the place (dp, pp), or (dp, pp, peer), in which the job started it. The
    fault stays with that machine, wherever it moves later.

    Attributes:
        kind: the slow part: "compute" (its computes), "nic" (all its sends and receives) or "link"
            (the traffic between it and ``other``).
        worker: the machine, (dp, pp) or (dp, pp, peer).
        factor: slow time over healthy time, above 1.
        other: the other end of a link.
    """

    kind: str
    worker: Worker
    factor: float
    other: Worker | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MitigateError(f"a fail-slow is of kind {', '.join(KINDS)}, not {self.kind!r}")
        if not (math.isfinite(self.factor) and 1 < self.factor <= LARGEST_FACTOR):
            raise MitigateError(
                f"a fail-slow's factor must be above 1 and at most {LARGEST_FACTOR:g}, "
                f"not {self.factor:g}"
            )
        if (self.other is None) == (self.kind == LINK):
            raise MitigateError(
                "only a slow link, and every slow link, has two ends, worker and other"
            )
        if self.other == self.worker:
            raise MitigateError(f"a link has two different ends, not {self.worker} twice")

    @property
    def machines(self) -> tuple[Worker, ...]:
        """The affected machines."""
        return (self.worker,) if self.other is None else (self.worker, self.other)

    @property
    def name(self) -> str:
        """Name of the machine or link, without the factor: "compute 3,1", "link 3,1-4,1".

        A link has the same name from either end.
        """
        return f"{self.kind} " + "-".join(
            ",".join(map(str, place)) for place in sorted(self.machines)
        )

    def describe(self) -> str:
        """The fault as text."""
        ends = " to ".join(place_name(place) for place in self.machines)
        part_name = {COMPUTE: "computes of", NIC: "NIC of", LINK: "link from"}[self.kind]
        return f"{part_name} {ends}: {self.factor:.2f}x"

    def to_mapping(self) -> dict[str, Any]:
        """The fault in the form of JSON."""
        other_end = {} if self.other is None else {"other": list(self.other)}
        return {"kind": self.kind, "worker": list(self.worker), "factor": self.factor, **other_end}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Fault:
        """The inverse of :meth:`to_mapping`.

        Raises:
            MitigateError: values are missing or wrong.
        """
        try:
            worker, other_end = (
                None if (at := values.get(end)) is None else place_from(at)
                for end in ("worker", "other")
            )
            kind, factor = str(values["kind"]), float(values["factor"])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            worker = None
        if worker is None:
            raise MitigateError(
                "a fail-slow has kind, worker [dp, pp] or [dp, pp, peer], factor (and other)"
            )
        return cls(kind, worker, factor, other_end)
