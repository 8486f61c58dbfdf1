"""The pause as a model of which every interleaving is searched: docs/pause.md.

Ranks issue plans of collectives, at most one plan ahead of the slowest. A rank's helper reads any
version of the control file that is newer than its last; the asker decides by any version of each
slot: that is a slow file system. While it asks, it may not see some slots at all, and takes those
that it decides by for the job. Deadlines and deaths come whenever they are allowed at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from paceline.pause import asker
from paceline.pause.records import Member, Slot
from paceline.pause.rules import Phase, Place, State, judge, stop_number, undisturbed

ENDED = ("missed", "left")
#: Identity of the communicator of all ranks; that of a group is its number.
WORLD = 99


class Rank(NamedTuple):
    alive: bool
    plans: int  # issued
    helper: State
    read: int  # versions of the control file
    stopped_at: int  # collectives issued when it stopped; 0 = never
    stops: int
    slot: tuple[Place, ...]  # all its versions
    group: int = 0  # of a smaller communicator that it is in; 0 = none
    asked: bool = True  # the asker's decision counts it in


class World(NamedTuple):
    ranks: tuple[Rank, ...]
    control: tuple[tuple[Phase, int, int], ...]  # phase, number, communicator
    asker: bool
    moved: bool  # a rank left or died between held and go


@cache
def decide(phase: Phase, slots: tuple[tuple[Place, ...], ...]) -> set[Phase]:
    """All that the asker may say after it has asked, by whichever version of each slot it reads."""
    return {judge(phase, places) for places in product(*slots)}


class Stop(NamedTuple):
    """A decision: the places of the ranks that it counts in, the number, the communicator."""

    places: tuple[int, ...]
    number: int
    communicator: int


@cache
def choose(
    slots: tuple[tuple[Place, ...], ...],
    groups: tuple[int, ...],
    told: tuple[bool, int],
    margin: int,
) -> tuple[set[Stop], bool]:
    """Where the asker may stop the job, by whichever slots it sees; and whether it may give up.

    ``told``: whether there is a communicator of all ranks, and the ranks that the launcher names.
    """
    stops, ends = set(), False
    for seen in product(*((None, *versions) for versions in slots)):
        at = [i for i, place in enumerate(seen) if place is not None]
        ends |= any(seen[i].state != "published" for i in at)
        records = [_slot(i, seen[i], groups, told) for i in at]
        chosen = asker.common_communicator(records)
        if chosen is not None:
            counts = [record.communicators[chosen].count for record in records]
            stops.add(Stop(tuple(at), stop_number(counts, margin), chosen))
    return stops, ends


def _slot(i: int, place: Place, groups: tuple[int, ...], told: tuple[bool, int]) -> Slot:
    """The record of a rank; all its communicators have queued as much."""
    mine = [k for k, group in enumerate(groups) if group == groups[i]]
    known = {}
    if told[0]:
        known[WORLD] = Member(i, len(groups), place.number)
    if groups[i]:
        known[groups[i]] = Member(mine.index(i), len(mine), place.number)
    return Slot(Path(str(i)), 1, place, "", i, i, 1.0, "", 0.0, known, 1, told[1])


@dataclass(frozen=True)
class Model:
    """What may happen.

    Attributes:
        plans: collectives of each plan, in order.
        margin: of the asker.
        killed: ranks that may die.
        asker_dies, deadlines: whether they may.
        blind: a thread may pass the number without a look at what its helper has set.
        groups: of each rank, the smaller communicator that it is in; 0 = none; empty = all none.
        world: whether there is a communicator of all ranks already.
        named: the ranks that the launcher names (WORLD_SIZE); 0 = none.
    """

    ranks: int = 3
    plans: tuple[int, ...] = (1, 2, 1)
    margin: int = 1
    killed: int = 1
    asker_dies: bool = True
    deadlines: bool = True
    blind: bool = True
    groups: tuple[int, ...] = ()
    world: bool = True
    named: int = 0

    def first(self) -> World:
        groups = sorted(self.groups or (0,) * self.ranks)
        ranks = tuple(Rank(True, 0, "idle", 0, 0, 0, (), group) for group in groups)
        return World(ranks, (("ask", 0, 0),), True, False)

    def issued(self, rank: Rank) -> int:
        return sum(self.plans[: rank.plans])

    # One step of everything that may happen next.

    def after(self, world: World) -> Iterator[World]:
        for i, rank in enumerate(world.ranks):
            if rank.alive:
                for moved in self._steps(world, rank):
                    yield self._put(world, i, moved)
        if world.asker:
            yield from self._asker(world)

    def _put(self, world: World, i: int, rank: Rank) -> World:
        before = world.ranks[i]
        gone = before.helper == "arrived" and (rank.helper != "arrived" or not rank.alive)
        during = world.control[-1][0] == "held"
        ranks = (*world.ranks[:i], rank, *world.ranks[i + 1 :])
        # Ranks are alike: one order of them stands for all.
        return world._replace(ranks=tuple(sorted(ranks)), moved=world.moved or (gone and during))

    def _steps(self, world: World, rank: Rank) -> Iterator[Rank]:
        slowest = min(one.plans for one in world.ranks)
        if rank.helper != "arrived" and rank.plans < min(len(self.plans), slowest + 1):
            yield from self._issue(world, rank)
        unread = () if rank.helper in ENDED else range(rank.read + 1, len(world.control) + 1)
        for version in unread:
            yield self._read(rank, version, *world.control[version - 1])
        if self.deadlines and rank.helper in ("published", "armed", "arrived"):
            yield self._to(rank, "left", reason="deadline")
        if sum(not one.alive for one in world.ranks) < self.killed:
            yield rank._replace(alive=False)

    def _issue(self, world: World, rank: Rank) -> Iterator[Rank]:
        before = self.issued(rank)
        issued = rank._replace(plans=rank.plans + 1)
        if rank.helper != "armed" or self.blind:
            yield issued
        if rank.helper == "armed":
            number = next(n for phase, n, _ in world.control if phase == "stop")
            after = self.issued(issued)
            if before < number <= after:
                stopped = issued._replace(stopped_at=after, stops=rank.stops + 1)
                yield self._to(stopped, "arrived", number=after, signature=str(after))
            elif before >= number:
                yield self._to(issued, "missed")
            elif not self.blind:
                yield issued

    def _read(self, rank: Rank, version: int, phase: Phase, number: int, communicator: int) -> Rank:
        rank = rank._replace(read=version)
        if phase == "stop" and communicator not in (WORLD, rank.group):
            return self._to(rank, "left", reason="no such communicator")
        if phase == "ask" and rank.helper == "idle":
            return self._to(rank, "published", number=self.issued(rank))
        if phase == "stop" and rank.helper == "published":
            missed = self.issued(rank) >= number
            return self._to(rank, "missed" if missed else "armed")
        if phase in ("go", "cancel") and rank.helper in ("published", "armed", "arrived"):
            return self._to(rank, "left", reason=phase)
        if phase in ("go", "cancel"):
            return rank._replace(helper="left", read=0)
        return rank

    def _to(self, rank: Rank, state: State, **fields: object) -> Rank:
        place = Place(state, **fields)  # type: ignore[arg-type]
        read = 0 if state in ENDED else rank.read
        return rank._replace(helper=state, slot=(*rank.slot, place), read=read)

    def _asker(self, world: World) -> Iterator[World]:
        phase = world.control[-1][0]
        if phase in ("go", "cancel"):
            return
        if self.asker_dies:
            yield world._replace(asker=False)
        if self.deadlines:
            yield self._say(world, "cancel")
        if phase == "held":
            yield self._say(world, "go")
        if phase == "ask":
            yield from self._choose(world)
            return
        for then in decide(phase, tuple(rank.slot for rank in world.ranks if rank.asked)):
            if then != phase:
                yield self._say(world, then)

    def _choose(self, world: World) -> Iterator[World]:
        slots = tuple(rank.slot for rank in world.ranks)
        groups = tuple(rank.group for rank in world.ranks)
        stops, ends = choose(slots, groups, (self.world, self.named), self.margin)
        if ends:
            yield self._say(world, "cancel")
        for stop in stops:
            ranks = tuple(
                rank._replace(asked=i in stop.places) for i, rank in enumerate(world.ranks)
            )
            then = world._replace(ranks=tuple(sorted(ranks)))
            yield self._say(then, "stop", stop.number, stop.communicator)

    def _say(self, world: World, phase: Phase, number: int = 0, communicator: int = 0) -> World:
        return world._replace(control=(*world.control, (phase, number, communicator)))

    def clean(self, world: World) -> bool:
        """What the asker says at the end, if it reads the last version of each slot."""
        asked = [rank for rank in world.ranks if rank.asked]
        last = [rank.slot[-1] for rank in asked if rank.slot]
        return len(last) == len(asked) and undisturbed(last)

    # What must hold.

    def check(self, world: World) -> None:
        """Raises AssertionError where a state is one that must not be."""
        stopped = {rank.stopped_at for rank in world.ranks if rank.stopped_at}
        assert len(stopped) <= 1, "two ranks stopped at different collectives"
        ends = {sum(self.plans[:n]) for n in range(len(self.plans) + 1)}
        assert stopped <= ends, "a rank stopped inside a plan"
        assert all(rank.stops <= 1 for rank in world.ranks), "a rank stopped twice"
        phases = [phase for phase, _, _ in world.control]
        assert phases.count("stop") <= 1, "two decisions"
        if "held" in phases:
            assert all(rank.stopped_at for rank in world.ranks), "held, and a rank never stopped"
        assert not (self.clean(world) and world.moved), "called undisturbed, and a rank had gone"

    def check_last(self, world: World) -> None:
        """Nothing can happen any more but deaths."""
        for rank in world.ranks:
            assert not rank.alive or rank.helper != "arrived", "a living rank stands for ever"
        if all(rank.alive for rank in world.ranks):
            assert all(rank.plans == len(self.plans) for rank in world.ranks), "the job hangs"


@dataclass
class Search:
    """What a search came by."""

    states: int = 0
    last: int = 0
    undisturbed: int = 0
    missed: int = 0
    held: int = 0


def size(world: World) -> int:
    """Grows with every step, so that no run is endless."""
    total = len(world.control) + dead(world)
    for rank in world.ranks:
        total += rank.plans + len(rank.slot) + (9 if rank.helper in ENDED else rank.read)
    return total


def dead(world: World) -> int:
    return sum(not rank.alive for rank in world.ranks) + (not world.asker)


def search(model: Model) -> Search:
    """Walks through all states.

    Raises:
        AssertionError: one must not be.
    """
    found, todo, known = Search(), [model.first()], {model.first()}
    while todo:
        world = todo.pop()
        model.check(world)
        found.states += 1
        found.held += world.control[-1][0] == "held"
        found.missed += any(rank.helper == "missed" for rank in world.ranks)
        going, before, deaths = False, size(world), dead(world)
        for then in model.after(world):
            going |= dead(then) == deaths
            if then not in known:
                assert size(then) > before, "a step that leads nowhere"
                known.add(then)
                todo.append(then)
        if not going:
            found.last += 1
            model.check_last(world)
            found.undisturbed += model.clean(world)
    return found
