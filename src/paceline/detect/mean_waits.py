"""GPUs that others wait for, from mean times of collectives (NCCL Inspector's for Prometheus).

A rank's kernel of a collective runs from the rank's arrival to the common end, so late ranks have
short kernels. The other GPUs of a communicator wait for the one whose mean is well below theirs.
Its mean is also nearest to the pure transfer. Among communicators with the same calls, one that is
slower even by this mean has a slow link.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from paceline.errors import TraceError
from paceline.sources.nccl_metrics import Bucket, Gpu, Mean
from paceline.units import count

#: A mean stands out at this ratio to the next one, like a rank's computes in ``paceline times``.
STANDS_OUT = 1.1

#: Least number of communicators with the same calls for a comparison.
LEAST_ALIKE = 3

#: Operations in which every rank waits for all others. In other operations a root may end early.
_OF_ALL = frozenset(("AllGather", "AllGatherV", "AllReduce", "All2All", "ReduceScatter"))

#: Most GPUs and communicators listed by name.
_LISTED = 10

NOT_TOLD = (
    "means show neither the begin nor the number of waits: set NCCL_INSPECTOR_PROM_DUMP=0 and "
    "NCCL_INSPECTOR_DUMP_VERBOSE=1 to write single calls"
)
NO_PEERS = "sends and receives name no peer and are left out"


@dataclass(frozen=True)
class Wait:
    """GPUs of a communicator that wait for one of them.

    Attributes:
        bucket: kind of calls.
        late: the GPU that arrives last.
        late_us: mean time of a call on that GPU, which is the transfer and remaining waits.
        others_us: the median of the others' mean times.
        others: the waiting GPUs.
    """

    bucket: Bucket
    late: Gpu
    late_us: float
    others_us: float
    others: tuple[Gpu, ...]

    def explain(self) -> str:
        """A line with the waiting GPUs and the late one."""
        return (
            f"{_named(self.bucket)}: {count(len(self.others), 'GPU')} wait "
            f"{self.others_us - self.late_us:,.0f} µs a call for {self.late.explain()} "
            f"({self.others_us:,.0f} against {self.late_us:,.0f} µs)"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            **asdict(self.bucket),
            "late": asdict(self.late),
            "late_us": self.late_us,
            "others_us": self.others_us,
        }


@dataclass(frozen=True)
class SlowTransfer:
    """A communicator that is slower than others with the same calls.

    Attributes:
        bucket: kind of calls.
        bandwidth_gbs: the best mean bus bandwidth of its GPUs, 10^9 bytes a second.
        alike_gbs: the median of the other communicators' best bandwidths.
        n_alike: number of other communicators.
        gpus: GPUs of the communicator.
    """

    bucket: Bucket
    bandwidth_gbs: float
    alike_gbs: float
    n_alike: int
    gpus: tuple[Gpu, ...]

    def explain(self) -> str:
        """A line with its bandwidth and the others'."""
        return (
            f"{_named(self.bucket)}: {self.bandwidth_gbs:.3g} GB/s at best, {self.alike_gbs:.3g} "
            f"in the {self.n_alike:,} others with such calls: {_listed(self.gpus)}"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            **asdict(self.bucket),
            "bandwidth_gbs": self.bandwidth_gbs,
            "alike_gbs": self.alike_gbs,
            "n_alike": self.n_alike,
            "gpus": [asdict(gpu) for gpu in self.gpus],
        }


@dataclass(frozen=True)
class MeanWaits:
    """Findings of the files of one moment.

    Attributes:
        n_gpus: number of GPUs with files.
        n_judged: number of comparable communicators and kinds of calls.
        waits: waits for a single late GPU, the longest first.
        slow: communicators with slow transfers, the slowest first.
        who: GPUs that others wait for and that wait for none.
        notes: parts without a verdict, and limits of mean times.
    """

    n_gpus: int
    n_judged: int
    waits: tuple[Wait, ...]
    slow: tuple[SlowTransfer, ...]
    who: tuple[Gpu, ...]
    notes: tuple[str, ...]

    def explain(self) -> str:
        """All findings, a line each."""
        lines = [
            f"means of {count(self.n_gpus, 'GPU')}: "
            f"{count(self.n_judged, 'kind')} of calls of whole communicators"
        ]
        lines += [wait.explain() for wait in self.waits[:_LISTED]]
        if len(self.waits) > _LISTED:
            lines.append(f"and {len(self.waits) - _LISTED:,} more in which one GPU is late")
        lines += [f"slow transfers: {slow.explain()}" for slow in self.slow[:_LISTED]]
        if self.who:
            lines.append(f"waited for: {_listed(self.who)}")
        elif self.waits:
            lines.append("all that are late wait for others themselves")
        elif self.n_judged:
            lines.append("no single GPU is waited for")
        return "\n".join(lines)

    def to_mapping(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "kind": "mean-waits",
            "gpus": self.n_gpus,
            "judged": self.n_judged,
            "waits": [wait.to_mapping() for wait in self.waits],
            "slow_transfers": [slow.to_mapping() for slow in self.slow],
            "who": [asdict(gpu) for gpu in self.who],
            "notes": list(self.notes),
            "text": self.explain(),
        }


def mean_waits(means: Sequence[Mean]) -> MeanWaits:
    """Find GPUs that others wait for, and communicators that transfer slowly.

    A communicator is judged if exactly all its GPUs and nodes report it. With fewer, the late GPU
    may be absent; with more, several communicators share the name.

    Raises:
        TraceError: there are no means.
    """
    if not means:
        raise TraceError("there is no mean of NCCL Inspector")
    groups: dict[Bucket, list[Mean]] = defaultdict(list)
    for mean in means:
        groups[mean.bucket].append(mean)
    of_all = {bucket: of for bucket, of in groups.items() if bucket.operation in _OF_ALL}
    whole = {bucket: of for bucket, of in of_all.items() if _is_whole(bucket, of)}
    waits = [wait for bucket, of in whole.items() if (wait := _wait(bucket, of)) is not None]
    waits.sort(key=lambda wait: wait.late_us - wait.others_us)
    waiting = {gpu for wait in waits for gpu in wait.others}
    late = dict.fromkeys(wait.late for wait in waits)
    return MeanWaits(
        n_gpus=len({mean.gpu for mean in means}),
        n_judged=len(whole),
        waits=tuple(waits),
        slow=tuple(_slow_transfers(whole)),
        who=tuple(gpu for gpu in late if gpu not in waiting),
        notes=tuple(_notes(groups, of_all, whole)),
    )


def _is_whole(bucket: Bucket, means: Sequence[Mean]) -> bool:
    nodes = {mean.gpu.node for mean in means}
    return (len(means), len(nodes)) == (bucket.n_ranks, bucket.n_nodes) and len(means) > 1


def _wait(bucket: Bucket, means: Sequence[Mean]) -> Wait | None:
    """The GPU whose mean is well below the others', by more than their own spread."""
    if any(math.isnan(mean.time_us) for mean in means):
        return None
    ordered = sorted(means, key=lambda mean: mean.time_us)
    first, second, last = ordered[0], ordered[1], ordered[-1]
    gap = second.time_us - first.time_us
    if second.time_us < STANDS_OUT * first.time_us or gap <= last.time_us - second.time_us:
        return None
    others_us = median(mean.time_us for mean in ordered[1:])
    others = tuple(mean.gpu for mean in ordered[1:])
    return Wait(bucket, first.gpu, first.time_us, others_us, others)


def _slow_transfers(whole: Mapping[Bucket, Sequence[Mean]]) -> list[SlowTransfer]:
    """Communicators whose best bandwidth stands out among those of the same shape."""
    alike: dict[tuple[Any, ...], list[tuple[float, Bucket]]] = defaultdict(list)
    for bucket, means in whole.items():
        rates = [mean.bandwidth_gbs for mean in means if mean.bandwidth_gbs > 0]  # no NaN
        if rates:
            shape = bucket.n_ranks, bucket.n_nodes, bucket.operation, bucket.size, bucket.algorithm
            alike[shape].append((max(rates), bucket))
    slow = []
    for candidates in alike.values():
        if len(candidates) < LEAST_ALIKE:
            continue
        candidates.sort(key=lambda candidate: candidate[0])
        (least, bucket), *others = candidates
        # Compare times per byte: with the next slowest and the fastest.
        own, following, fastest = 1 / least, 1 / others[0][0], 1 / others[-1][0]
        if own >= STANDS_OUT * following and own - following > following - fastest:
            gpus = tuple(mean.gpu for mean in whole[bucket])
            rate = median(other for other, _ in others)
            slow.append(SlowTransfer(bucket, least, rate, len(others), gpus))
    return sorted(slow, key=lambda one: one.bandwidth_gbs / one.alike_gbs)


def _notes(
    groups: Mapping[Bucket, Sequence[Mean]],
    of_all: Mapping[Bucket, Sequence[Mean]],
    whole: Mapping[Bucket, Sequence[Mean]],
) -> list[str]:
    notes = []
    shared = [b for b, of in of_all.items() if len(of) > b.n_ranks]
    if shared:
        notes.append(
            f"{_named(shared[0])}: {len(of_all[shared[0]]):,} GPUs report it, so several "
            f"communicators share the name; {len(shared):,} such are not judged"
        )
    partial = [b for b in of_all if b not in whole and b not in shared]
    if partial:
        nodes = len({mean.gpu.node for mean in of_all[partial[0]]})
        notes.append(
            f"{_named(partial[0])}: {len(of_all[partial[0]]):,} GPUs of "
            f"{count(nodes, 'node')} report it, it has {partial[0].n_ranks:,} of "
            f"{count(partial[0].n_nodes, 'node')}; {len(partial):,} such are not judged: give "
            "the files of all GPUs"
        )
    if any(not bucket.algorithm for bucket in groups):
        notes.append(NO_PEERS)
    return [*notes, NOT_TOLD]


def _named(bucket: Bucket) -> str:
    name = "without a name" if bucket.communicator == "unknown" else bucket.communicator
    calls = " ".join(filter(None, (bucket.operation, bucket.size, bucket.algorithm)))
    return f"communicator {name} of {bucket.n_ranks:,} ranks, {calls}"


def _listed(gpus: Sequence[Gpu]) -> str:
    names = "; ".join(gpu.explain() for gpu in gpus[:_LISTED])
    return names + f"; and {len(gpus) - _LISTED:,} more" * (len(gpus) > _LISTED)
