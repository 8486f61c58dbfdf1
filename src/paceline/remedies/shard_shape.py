"""Another size of the groups that share one copy of the parameters (FSDP, HSDP).

Groups within a node gather over fast links. But their gradients must be reduced once more, between
the copies, and each GPU holds more. The ring model (``remedies.ring``) derives times of the new
collectives from those of the recorded ones. Properties of the network that the trace leaves open
are simulated both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import NotApplicableError, RemedyError
from paceline.remedies.outcome import MAX_OPEN_GAP, need_gain, outcome
from paceline.remedies.programs import Added, Replica, changed_job
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.remedies.ring import replicated_share, sharded_share
from paceline.remedies.shard_groups import SHARDED, ShardGroups, recorded_groups
from paceline.trace import OpKind
from paceline.units import seconds

K = OpKind

#: Rounds of a scatter's bytes through the ring: gloo's scatter is an all-reduce (measured, torch
#: 2.13).
_PASSES = {"nccl": 1, "gloo": 2}

#: Operations that need all gradients.
_UPDATES = (K.OPTIMIZER_CLIP_MAIN_GRAD, K.OPTIMIZER)

#: Largest speed ratio that is simulated if the trace leaves it open. An H100 has 450 GB/s per
#: direction by NVLink and 50 GB/s by NDR, a ratio of 9.
MOST_NODE_SPEEDUP = 20.0


def propose(case: Case) -> Remedy:
    """Let another number of ranks share one copy of the parameters.

    Options: ``shard``, the number of ranks (default: all sizes are compared); ``ranks_per_node``;
    ``node_speedup``, the speed of a link within a node over that of a network adapter;
    ``latency_us``, the time of an all-reduce with almost no bytes in a present group; ``backend``,
    "nccl" or "gloo".

    Raises:
        RemedyError: an option has an impossible value.
        NotApplicableError: nothing is sharded, the ranks of a node are not known, no size gains in
            all readings, or the readings differ too much.
    """
    groups = recorded_groups(case.measured, _ranks_per_node(case))
    sizes = _sizes(case, groups)
    tried = {size: _predictions(case, groups, size) for size in sizes}
    best = min(tried, key=lambda size: tried[size][-1].mean_s)
    name = f"groups of {best} ranks that share one copy of the parameters"
    fast, slow = tried[best][0], tried[best][-1]
    gap = slow.mean_s / fast.mean_s - 1
    if gap > MAX_OPEN_GAP and fast.mean_s < case.before.mean_s:
        raise NotApplicableError(
            f"with {name} a step takes {seconds(fast.mean_s)} or {seconds(slow.mean_s)}, now "
            f"{seconds(case.before.mean_s)}, depending on the network: the trace has no bytes to "
            f"narrow it down; {_missing(case, groups, best)}"
        )
    need_gain(case, slow, name)
    now_s = case.before.mean_s
    table = [
        {"shard": size, "step_time_s": r[-1].mean_s, "gain": 1 - r[-1].mean_s / now_s}
        for size, r in tried.items()
    ]
    memory = groups.shard.ranks / best
    return outcome(
        case,
        KIND,
        f"let {best} ranks, not {groups.shard.ranks}, share one copy of the parameters",
        slow,
        {"shard": best, "now": groups.shard.ranks, "memory_factor": memory, "compared": table},
        notes=(
            f"FSDP2: a mesh of {groups.ranks // best} x {best} (replicate, shard)",
            f"memory: sharded parameters, gradients and optimizer states take {memory:g} times as "
            "much of each GPU; the trace does not say whether they fit",
            "times of the other groups follow from a ring model; computes are assumed to be as "
            "fast beside collectives as now",
        ),
        otherwise=tried[best][:-1],
    )


def _missing(case: Case, groups: ShardGroups, size: int) -> str:
    """Options that would give more information about the network."""
    options = []
    if len(_hops(case, groups)) > 1:
        options.append("--latency-us, the time of a very small all-reduce in a present group")
    if len(_node_speedups(case, groups, size, 0.0, 1)) > 1:
        options.append(
            "--node-speedup, the speed of a link within a node over that of a network adapter"
        )
    if len(_passes(case, groups)) > 1:
        options.append("--backend, nccl or gloo, whose scatter is an all-reduce")
    return "give " + " and ".join(options)


def _ranks_per_node(case: Case) -> int:
    given = case.options.get("ranks_per_node")
    if given is None:
        raise NotApplicableError(
            "the trace does not say which ranks share a node; give --ranks-per-node"
        )
    if int(given) < 1:
        raise RemedyError(f"a node of {given} ranks is not possible")
    return int(given)


def _sizes(case: Case, groups: ShardGroups) -> list[int]:
    """Sizes of groups to compare."""
    now, ranks = groups.shard.ranks, groups.ranks
    given = case.options.get("shard")
    if given is None:
        sizes = [n for n in range(2, ranks + 1) if ranks % n == 0 and n != now]
        even = [n for n in sizes if groups.fits(n)]
        if not even:
            raise NotApplicableError(f"{ranks} ranks can only be grouped by {now}")
        return even
    size = int(given)
    if size < 2 or ranks % size:
        raise RemedyError(f"--shard {size} does not divide the {ranks} ranks that hold parameters")
    if size == now:
        raise NotApplicableError(f"{now} ranks share one copy of the parameters already")
    if not groups.fits(size):
        raise NotApplicableError(f"groups of {size} ranks lie unevenly over the nodes")
    return [size]


@dataclass(frozen=True)
class _Reading:
    """Properties of the network that a trace may leave open.

    Attributes:
        hop_s: seconds of a ring's hop besides the bytes.
        node_speedup: speed of a link within a node over that of a network adapter.
        passes: rounds of a scatter's bytes through its ring.
    """

    hop_s: float
    node_speedup: float
    passes: int


def _predictions(case: Case, groups: ShardGroups, size: int) -> list[Prediction]:
    """The steps with groups of another size for each reading of the network, fastest first."""
    readings = [
        _Reading(hop_s, speedup, passes)
        for hop_s in _hops(case, groups)
        for passes in _passes(case, groups)
        for speedup in _node_speedups(case, groups, size, hop_s, passes)
    ]
    predicted = [_predicted(case, groups, size, reading) for reading in readings]
    return sorted(predicted, key=lambda prediction: prediction.mean_s)


def _hops(case: Case, groups: ShardGroups) -> tuple[float, ...]:
    """The smallest and largest possible seconds of a ring's hop, or the user's option."""
    given = case.options.get("latency_us")
    if given is None:
        return 0.0, groups.most_hop_s
    if float(given) < 0:
        raise RemedyError(f"a latency of {given} us is none")
    hop_s = float(given) * 1e-6 / (2 * (groups.shard.ranks - 1))
    return (min(hop_s, groups.most_hop_s),)


def _passes(case: Case, groups: ShardGroups) -> tuple[int, ...]:
    """The possible rounds of a scatter's bytes through its ring."""
    backend = case.options.get("backend")
    if backend is None:
        return groups.scatter_passes
    if backend not in _PASSES:
        raise RemedyError(f"--backend {backend} is unknown; choose one of {', '.join(_PASSES)}")
    return (_PASSES[backend],)


def _node_speedups(
    case: Case, groups: ShardGroups, size: int, hop_s: float, passes: int
) -> tuple[float, ...]:
    """The possible speeds of links within a node over that of an adapter."""
    given = case.options.get("node_speedup")
    if given is not None:
        if not 1 <= float(given) < 1e4:
            raise RemedyError(f"--node-speedup {given} must be at least 1")
        return (float(given),)
    if not groups.across(size):
        return (1.0,)
    measured = groups.node_speedup(hop_s, passes)
    return (1.0, MOST_NODE_SPEEDUP) if measured is None else (measured,)


@dataclass(frozen=True)
class _Times:
    """Seconds of a new collective: ``factor`` times those of a recorded one, plus ``plus_s``."""

    factor: float
    plus_s: float

    @classmethod
    def of(cls, bytes_factor: float, hops: int, hops_now: int, hop_s: float) -> _Times:
        """The time of bytes grows by ``bytes_factor``; the time of hops follows their number."""
        return cls(bytes_factor, hop_s * (hops - bytes_factor * hops_now))


@dataclass(frozen=True)
class _Changes:
    """Times of collectives in groups of another size.

    Attributes:
        sharded: times of gathers and scatters, from the present ones.
        replicated: times of the all-reduce between copies; None: there is none.
        of_scatter: whether ``replicated`` follows from the unit's scatter; otherwise from the
            present all-reduce.
    """

    sharded: _Times
    replicated: _Times | None
    of_scatter: bool


def _changes(groups: ShardGroups, size: int, reading: _Reading) -> _Changes:
    shard, replicate = groups.rings(size)
    old, speedup, hop_s = groups.shard, reading.node_speedup, reading.hop_s
    now = sharded_share(old, speedup)
    bytes_factor = sharded_share(shard, speedup) / now
    sharded = _Times.of(bytes_factor, shard.ranks - 1, old.ranks - 1, hop_s)
    if replicate.ranks == 1:
        return _Changes(sharded, None, of_scatter=False)
    between, hops = replicated_share(replicate, size, speedup), 2 * (replicate.ranks - 1)
    copies = groups.replicate
    if copies.ranks == 1:
        passes = reading.passes
        replicated = _Times.of(between / now / passes, hops, passes * (old.ranks - 1), hop_s)
        return _Changes(sharded, replicated, of_scatter=True)
    factor = between / replicated_share(copies, old.ranks, speedup)
    replicated = _Times.of(factor, hops, 2 * (copies.ranks - 1), hop_s)
    return _Changes(sharded, replicated, of_scatter=False)


def _predicted(case: Case, groups: ShardGroups, size: int, reading: _Reading) -> Prediction:
    changes = _changes(groups, size, reading)
    old = case.measured.graph.families
    families = np.concatenate([old, groups.partitions(size)])

    def edit(replica: Replica) -> None:
        for stage in range(len(replica.steps)):
            _Regrouped(replica, changes, len(old)).edit(stage)

    new = changed_job(case.measured, edit, case.delays, families=families)
    return case.predicted(new.durations, new.delays)


class _Regrouped:
    """Gives the collectives of units other groups and times.

    Args:
        replica: the programs.
        changes: times of the new collectives.
        family: the family of the new shard groups; the next one belongs to the groups of copies.
    """

    def __init__(self, replica: Replica, changes: _Changes, family: int) -> None:
        self._replica, self._changes, self._family = replica, changes, family
        self._new: dict[int, int] = {}
        self._open: list[int] = []  # all-reduces to wait for before the update

    def edit(self, stage: int) -> None:
        """Change a stage's program, in place."""
        steps = self._replica.steps[stage]
        place = {step: at for at, step in enumerate(steps)}
        edited: list[int] = []
        for step in steps:
            op = step if step >= 0 else ~step
            kind = self._replica.kind(op)
            if kind in _UPDATES:
                edited += self._open
                self._open.clear()
            if kind not in (*SHARDED, K.SEPARATE_GRADS_ALL_REDUCE):
                edited.append(step)
                continue
            if kind in SHARDED or self._changes.replicated is not None:
                edited.append(self._renewed(op) if step >= 0 else ~self._renewed(op))
            if kind == K.GRADS_REDUCE_SCATTER and self._changes.of_scatter:
                edited += self._replicated(op, place) if step < 0 else []
                if ~op not in place:
                    raise NotApplicableError(
                        "reductions are not waited for within the step, so the earliest start of "
                        "a reduction between the copies is not known"
                    )
        steps[:] = [*edited, *self._open]

    def _renewed(self, op: int) -> int:
        """A present collective in its new group."""
        if op not in self._new:
            within = self._replica.kind(op) in SHARDED
            self._new[op] = self._replica.add(self._added(op, within=within))
        return self._new[op]

    def _added(self, op: int, *, within: bool) -> Added:
        """A collective within the new shard groups, or between them, from a present one."""
        times = self._changes.sharded if within else self._changes.replicated
        assert times is not None
        return Added(
            op,
            self._replica.unit(op)[1],
            ((op, times.factor),),
            times.plus_s,
            family=self._family + (not within),
        )

    def _replicated(self, op: int, place: Mapping[int, int]) -> list[int]:
        """The all-reduce behind the wait for a unit's reduction."""
        added = self._added(op, within=False)
        between = self._replica.add(replace(added, kind=K.SEPARATE_GRADS_ALL_REDUCE))
        if place[~op] == place[op] + 1:  # it blocks, so this one blocks, too
            return [between, ~between]
        self._open.append(~between)
        return [between]


KIND = RemedyKind(
    "shard-groups",
    "let another number of ranks share one copy of the parameters (HSDP)",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
    of_programs=True,
)
