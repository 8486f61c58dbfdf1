"""Slow ranks and links, found by comparing measured times of similar parts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from paceline.detect.passes import Link
from paceline.detect.peer_bound import student_bound
from paceline.robust import SIGMA_OF_MAD

_Key = TypeVar("_Key")

#: Least excess over the peers. The Falcon paper calls a group suspicious above 1.1 x the median,
#: and verifies change points by 10%.
GEMM_FLOOR = 0.10

#: With this many GPUs and rounds, Student's t decides, from this excess on. A GPU that is 10% slow
#: exceeds the other bound only in every second validation.
EXACT_FLOOR, EXACT_PEERS, EXACT_ROUNDS = 0.05, 8, 5

#: Healthy links of a kind differ more than GPUs: hops, NUMA, other traffic, a host's cores.
LINK_FLOOR = 0.25

#: Robust standard deviations above the median. They raise the bound if peers or rounds scatter more
#: than the floors, as on a loaded host. It is 5 because thousands are compared.
SIGMAS = 5.0

#: Least number of measurements of a kind, which define the usual time.
_MIN_PEERS = 3


@dataclass(frozen=True)
class Place:
    """Place of a rank: names of host and device."""

    host: str
    device: str


@dataclass(frozen=True)
class Measurements:
    """Times that a validation measured.

    Attributes:
        gemm_s: rank -> seconds of one matrix product, round by round.
        link_s: (source, destination) -> seconds of one message and its acknowledgement, round by
            round.
        places: rank -> its place. Ranks with the same device are compared, and links within hosts
            or between hosts.
        gemm: rows and columns of the matrices.
        message_bytes: size of the message.
        backend: "gloo" or "nccl".
    """

    gemm_s: Mapping[int, Sequence[float]]
    link_s: Mapping[Link, Sequence[float]]
    places: Mapping[int, Place]
    gemm: int
    message_bytes: int
    backend: str

    def seconds(self, rounds: Sequence[float]) -> float:
        """A number for all rounds: the median on GPUs, whose clocks vary both ways.

        On CPUs the minimum, as other work on the host can only lengthen a round.
        """
        return min(rounds) if self.backend == "gloo" else statistics.median_low(rounds)

    def to_mapping(self) -> dict[str, Any]:
        """The values as JSON."""
        return {
            "backend": self.backend,
            "gemm": self.gemm,
            "message_bytes": self.message_bytes,
            "ranks": [
                {"rank": rank, **asdict(self.places[rank]), "gemm_s": self.seconds(rounds)}
                for rank, rounds in sorted(self.gemm_s.items())
            ],
            "links": [
                {"source": link[0], "destination": link[1], "seconds": self.seconds(rounds)}
                for link, rounds in sorted(self.link_s.items())
            ],
        }


@dataclass(frozen=True)
class Slow:
    """A slow rank or link.

    Attributes:
        ranks: the rank, or the link's source and destination.
        seconds, median_s, bound_s: its time, its peers' median, and the exceeded bound.
    """

    ranks: tuple[int, ...]
    seconds: float
    median_s: float
    bound_s: float

    @property
    def factor(self) -> float:
        """Ratio to the median."""
        return self.seconds / self.median_s

    def explain(self) -> str:
        """One line."""
        test = "GEMM" if len(self.ranks) == 1 else "message"
        return (
            f"{_name(self.ranks)}: {test} {self.factor:.2f}x its peers' median "
            f"({_ms(self.seconds)} against {_ms(self.median_s)}, bound {_ms(self.bound_s)})"
        )


@dataclass(frozen=True)
class Verdict:
    """The slow ranks and links, the slowest first.

    Attributes:
        slow_ranks: ranks whose matrix products are slow.
        slow_links: links whose messages are slow.
        suspects: ranks with two or more measured links between hosts (or within one), all slow.
            Their network card (or NVLink, PCIe) is more likely slow than the links.
        notes: questions that the measurements cannot answer, with reasons.
    """

    slow_ranks: tuple[Slow, ...]
    slow_links: tuple[Slow, ...]
    suspects: tuple[int, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The verdict in words."""
        sentences = [slow.explain() for slow in (*self.slow_ranks, *self.slow_links)]
        sentences += [f"rank {rank}: all its links are slow: its port?" for rank in self.suspects]
        return [*(sentences or ["no slow rank or link"]), *(f"note: {note}" for note in self.notes)]

    def to_mapping(self) -> dict[str, Any]:
        """The values as JSON."""

        def plain(slow: Slow) -> dict[str, Any]:
            return {
                "seconds": slow.seconds,
                "median_s": slow.median_s,
                "bound_s": slow.bound_s,
                "factor": slow.factor,
            }

        return {
            "slow_ranks": [{"rank": slow.ranks[0], **plain(slow)} for slow in self.slow_ranks],
            "slow_links": [
                {"source": slow.ranks[0], "destination": slow.ranks[1], **plain(slow)}
                for slow in self.slow_links
            ],
            "suspects": list(self.suspects),
            "notes": list(self.notes),
        }


def judge(measured: Measurements) -> Verdict:
    """Find the ranks and links above the bound of their peers.

    The bound is the low median times (1 + floor), or the low median plus ``SIGMAS`` robust standard
    deviations, whichever is larger. Median and MAD tolerate that up to half of the peers are slow;
    mean and standard deviation follow a single slow rank. The low median (the smaller middle value)
    is used because hardware may be slow but not fast: two of four links may be slow. The floor is
    needed because GPUs in lock-step scatter by 1%, so that trifles would be significant. The
    deviation is the larger of those between peers and between rounds, as the MAD of a few values
    may be 0 by chance. Among enough GPUs, a lower bound by Student's t replaces it.
    """
    slow_ranks: list[Slow] = []
    slow_links: list[Slow] = []
    suspects: set[int] = set()
    notes: list[str] = []
    for device, ranks in _by_label(
        measured.gemm_s, lambda rank: measured.places[rank].device
    ).items():
        peers = _Peers({(rank,): measured.gemm_s[rank] for rank in ranks}, measured.seconds)
        slow_ranks += peers.slow(GEMM_FLOOR, measured.backend == "nccl")
        notes += peers.notes_on("GEMM", f"rank on {device}")
    for kind, links in _by_label(measured.link_s, lambda link: _kind_of(link, measured)).items():
        peers = _Peers({link: measured.link_s[link] for link in links}, measured.seconds)
        slow = peers.slow(LINK_FLOOR)
        slow_links += slow
        suspects |= _suspects(links, slow)
        notes += peers.notes_on("message", f"link {kind}")
    if any(suspects.isdisjoint(slow.ranks) for slow in slow_links):
        notes.append(
            "a slow link without a suspect: its path, one direction of a port, or a rank of which "
            "no other link was measured (both ways and another order of ranks tell more)"
        )
    return Verdict(
        tuple(sorted(slow_ranks, key=lambda slow: -slow.factor)),
        tuple(sorted(slow_links, key=lambda slow: -slow.factor)),
        tuple(sorted(suspects)),
        tuple(notes),
    )


def _by_label(keys: Iterable[_Key], label: Callable[[_Key], str]) -> dict[str, list[_Key]]:
    """The keys of each label."""
    keys_of: dict[str, list[_Key]] = {}
    for key in keys:
        keys_of.setdefault(label(key), []).append(key)
    return keys_of


def _kind_of(link: Link, measured: Measurements) -> str:
    hosts = {measured.places[rank].host for rank in link}
    return "within a host" if len(hosts) == 1 else "between hosts"


class _Peers:
    """Groups of times that are compared with each other."""

    def __init__(
        self,
        rounds: Mapping[tuple[int, ...], Sequence[float]],
        typical: Callable[[Sequence[float]], float],
    ) -> None:
        self.times = {key: typical(rounds[key]) for key in sorted(rounds)}
        self.median = statistics.median_low(self.times.values())
        deviation = statistics.median_low(abs(s - self.median) for s in self.times.values())
        repeated = statistics.median_low(
            abs(statistics.median(rounds[key]) - min(rounds[key])) for key in rounds
        )
        self.sigma = SIGMA_OF_MAD * max(deviation, repeated)
        self.rounds = min(map(len, rounds.values()))
        self.error = SIGMA_OF_MAD * repeated / math.sqrt(self.rounds)

    def slow(self, floor: float, by_student: bool = False) -> list[Slow]:
        if len(self.times) < _MIN_PEERS:
            return []
        bound = max(self.median * (1 + floor), self.median + SIGMAS * self.sigma)
        if by_student and len(self.times) >= EXACT_PEERS and self.rounds >= EXACT_ROUNDS:
            exact = student_bound(list(self.times.values()), EXACT_FLOOR)
            bound = min(bound, max(exact, self.median + SIGMAS * self.error))
        return [Slow(key, s, self.median, bound) for key, s in self.times.items() if s > bound]

    def notes_on(self, test: str, noun: str) -> list[str]:
        """Questions that the times cannot answer."""
        fastest, slowest = (f(self.times, key=self.times.__getitem__) for f in (min, max))
        least, most = self.times[fastest], self.times[slowest]
        if len(self.times) == 1:
            return [f"{test}: one {noun} ({_ms(least)}), no peer to compare it with"]
        if len(self.times) < _MIN_PEERS:
            return [
                f"{test}: {_name(slowest)} took {most / least:.2f}x as long as {_name(fastest)} "
                f"({_ms(least)}); of two nothing says which is usual"
            ]
        if self.median > 1.5 * least and self.median > least + SIGMAS * self.sigma:
            return [
                f"{test}: {_name(fastest)} took {_ms(least)}, far below the median "
                f"({_ms(self.median)}): perhaps most are slow"
            ]
        return []


def _suspects(links: Sequence[Link], slow: Sequence[Slow]) -> set[int]:
    """Ranks with two or more links, all slow.

    A rank between two slow ports looks like them and is also suspected.
    """
    n_links = Counter(rank for link in links for rank in link)
    n_slow = Counter(rank for entry in slow for rank in entry.ranks)
    return {rank for rank, count in n_slow.items() if count > 1 and count == n_links[rank]}


def _name(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"link {ranks[0]} -> {ranks[1]}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
