"""S3: a placement of slow machines in which they and slow links cost least (falcon paper, 5.3).

The paper gathers stragglers in the fewest possible stages, interior ones first. It moves congested
links to places with little traffic. Here the simulator judges each placement. If placements are
few, all are tried. Otherwise gathered ones and single moves are tried, and a bound on the best
placement is computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from paceline.mitigate.fault import COMPUTE, LINK, Fault, Worker
from paceline.mitigate.job_model import JobModel, Setting
from paceline.remedies.arrange import END, STAGE, SWAP

#: Up to this number, all placements are tried.
MAX_EXACT = 3000

#: Most values (ops x distinct replicas x placements) that a search simulates; about a second.
BUDGET = 20_000_000

#: Number of replicas tried for one end of a slow link, besides replicas with slow machines.
_OFFERED = 16


@dataclass(frozen=True)
class Placement:
    """A placement of machines.

    Attributes:
        moved: (machine, place) of each moved machine.
        step_s: seconds of a step with it.
        bound_s: lower bound of the step for all placements.
        exact: whether all placements were tried.
        tried: number of tried placements.
    """

    moved: tuple[tuple[Worker, Worker], ...]
    step_s: float
    bound_s: float
    exact: bool
    tried: int

    @property
    def gap(self) -> float:
        """The largest share by which another placement could shorten the step."""
        return 0.0 if self.exact else max(0.0, 1 - self.bound_s / self.step_s)


def best_placement(model: JobModel, faults: frozenset[Fault]) -> Placement:
    """The placement of slow machines with the shortest step, at the job's microbatches.

    Args:
        model: the job.
        faults: all present fail-slows, on machines of the job.
    """
    return _Search(model, faults).best()


class _Search:
    def __init__(self, model: JobModel, faults: frozenset[Fault]) -> None:
        self.model, self.faults, self.home = model, faults, model.plain
        self.active = sorted(faults, key=lambda fault: (-fault.factor, fault))
        #: Peers move together, so that they stay beside each other: a unit is (dp, pp).
        self.machines = list(dict.fromkeys(m[:2] for f in self.active for m in f.machines))
        self.linked = any(f.kind == LINK for f in self.active)
        self.step_s_of: dict[Setting, float] = {}
        replicas = min(model.dp, len(self.machines) + 1) if model.peers == 1 else model.replicas
        self.values_of_one = model.n_ops(max(model.plain.counts))
        self.values = self.values_of_one * replicas

    def best(self) -> Placement:
        self._try([self.home])
        if self._few():
            self._try(self._all())
            return self._placement(exact=True, bound_s=0.0)
        self._try([*self._consolidations(), *self._sides()])
        while True:
            centre = min(self.step_s_of, key=self._score)
            before = self._score(centre)
            if not self._try(self._moves(centre)) or self._score(self._least()) >= before:
                break
        return self._placement(exact=False, bound_s=self._bound())

    def _placement(self, *, exact: bool, bound_s: float) -> Placement:
        setting = self._least()
        step_s = self.step_s_of[setting]
        return Placement(
            setting.moved, step_s, step_s if exact else bound_s, exact, len(self.step_s_of)
        )

    def _least(self) -> Setting:
        return min(self.step_s_of, key=self._score)

    def _score(self, setting: Setting) -> float:
        """Sort key: the step time; at nearly equal times slow stages, interior stages, moves."""
        at = _units_at(setting)
        stages = {at.get(machine, machine)[1] for machine in self.machines}
        ends = sum(stage in (0, self.model.pp - 1) for stage in stages)
        extra = STAGE * len(stages) + END * ends + SWAP * len(setting.moved)
        return self.step_s_of[setting] * (1 + extra)

    def _try(self, settings: Iterable[Setting]) -> bool:
        """Simulate unknown settings within the budget; returns False once it is spent."""
        new = [s for s in dict.fromkeys(settings) if s not in self.step_s_of]
        budget_left = max(0, BUDGET // self.values - len(self.step_s_of))
        affordable = new[:budget_left] if self.step_s_of else new
        if affordable:
            seconds = self.model.steps_s(affordable, self.faults)
            self.step_s_of.update(zip(affordable, seconds.tolist(), strict=True))
        return bool(new) and len(affordable) == len(new)

    # --- all placements -------------------------------------------------------------------------

    def _few(self) -> bool:
        model, k = self.model, len(self.machines)
        symmetric = not self.linked and len(set(model.plain.counts)) == 1
        replicas = min(model.dp, k) if symmetric else model.dp
        count = math.perm(replicas * model.pp, k) if k <= replicas * model.pp else 0
        return 0 < count <= min(MAX_EXACT, BUDGET // self.values)

    def _all(self) -> Iterator[Setting]:
        """Every placement; of equal replicas only as many as there are machines."""
        model = self.model
        symmetric = not self.linked and len(set(model.plain.counts)) == 1
        own_dps = list(dict.fromkeys(dp for dp, _ in self.machines))
        other_dps = [dp for dp in range(model.dp) if dp not in own_dps]
        dps = (own_dps + other_dps)[: len(self.machines)] if symmetric else own_dps + other_dps
        places = [(dp, pp) for dp in dps for pp in range(model.pp)]
        for placement in itertools.permutations(places, len(self.machines)):
            yield self._placed(placement)

    def _placed(self, places: Sequence[Worker]) -> Setting:
        setting = self.home
        for machine, place in zip(self.machines, places, strict=True):
            setting = self._moved(setting, machine, place)
        return setting

    def _moved(self, setting: Setting, unit: Worker, place: Worker) -> Setting:
        """The setting with a unit at a place; each peer takes the place of the same peer."""
        if _units_at(setting).get(unit, unit) == place:
            return setting
        if self.model.peers == 1:
            return setting.swap(unit, place)
        for peer in range(self.model.peers):
            setting = setting.swap((*unit, peer), (*place, peer))
        return setting

    # --- some of them ---------------------------------------------------------------------------

    def _consolidations(self) -> list[Setting]:
        """Slow machines in the fewest possible stages, starting at each stage in turn."""
        machines = [m[:2] for f in self.active if f.kind != LINK for m in f.machines]
        machines = list(dict.fromkeys(machines))
        if not machines:
            return []
        layers = -(-len(machines) // self.model.dp)
        return [
            self._in_stages(machines, [(first + i) % self.model.pp for i in range(layers)])
            for first in range(self.model.pp)
        ]

    def _in_stages(self, machines: Sequence[Worker], stages: Sequence[int]) -> Setting:
        """The slowest machines in the first stage; each in its own replica if that is free.

        If a replica has several slow machines, one stage ascends by speed and the next descends. So
        the slowest shares its replica with the fastest of them.
        """
        setting, dp = self.home, self.model.dp
        for layer, stage in enumerate(stages):
            mine = machines[layer * dp : (layer + 1) * dp]
            free = set(range(dp))
            own = {}
            if len(machines) <= dp:
                for machine in mine:
                    if machine[0] in free:
                        own[machine] = machine[0]
                        free.discard(machine[0])
            others = iter(sorted(free, reverse=layer % 2 == 1))
            for machine in mine:
                place = (own[machine] if machine in own else next(others), stage)
                setting = self._moved(setting, machine, place)
        return setting

    def _sides(self) -> list[Setting]:
        """The two sides of slow links, each in its own stages, so that only pipelines cross.

        Two nodes of many workers with a congested link between them form such sides.
        """
        side: dict[Worker, int] = {}
        links = [(f.machines[0][:2], f.machines[1][:2]) for f in self.active if f.kind == LINK]
        for _ in links:  # a side grows along one link after another
            for a, b in links:
                if a not in side and b not in side and not side:
                    side[a] = 0
                for here, there in ((a, b), (b, a)):
                    if here in side:
                        side.setdefault(there, 1 - side[here])
        places = sorted(side, key=lambda place: (place[1], place[0]))
        settings = []
        for first in (0, 1):
            machines = sorted(
                side, key=lambda machine: (side[machine] != first, machine[1], machine)
            )
            setting = self.home
            for machine, place in zip(machines, places, strict=True):
                setting = self._moved(setting, machine, place)
            settings.append(setting)
        return settings if side else []

    def _moves(self, setting: Setting) -> Iterator[Setting]:
        """One machine moved to another stage or replica, where it swaps with the machine there."""
        at = _units_at(setting)
        occupied = [at.get(machine, machine) for machine in self.machines]
        dps = list(dict.fromkeys(dp for dp, _ in occupied))
        clean = [dp for dp in range(self.model.dp) if dp not in dps]
        dps += clean[: _OFFERED if self.linked else 1]
        for machine, (dp, pp) in zip(self.machines, occupied, strict=True):
            for place in [(dp, stage) for stage in range(self.model.pp)] + [(d, pp) for d in dps]:
                if place != (dp, pp):
                    yield self._moved(setting, machine, place)

    # --- what no placement can beat -------------------------------------------------------------

    def _bound(self) -> float:
        """A lower bound of the step: fewer or faster stragglers never make it longer.

        One case has only the slowest machine, at its cheapest place. The other has the number of
        machines that some replica must hold, all as slow as the least slow one, in the cheapest
        stages of one replica.
        """
        single = [f for f in self.active if f.kind != LINK]
        bounds = [self.model.step_s(self.home, frozenset())]
        for kind in {f.kind for f in single}:
            slowest = max((f for f in single if f.kind == kind), key=lambda f: f.factor)
            bounds.append(self._least_of([slowest]))
        computes = sorted(
            {f.worker: f for f in self.active[::-1] if f.kind == COMPUTE}.values(),
            key=lambda f: f.factor,
        )
        per_replica = -(-len(computes) // self.model.dp)
        if 1 < per_replica <= self.model.pp and math.comb(self.model.pp, per_replica) <= MAX_EXACT:
            # All are as slow as the least slow one, so no combination is faster.
            bounds.append(self._least_of([computes[0]] * per_replica))
        return max(bounds)

    def _least_of(self, faults: Sequence[Fault]) -> float:
        """The shortest step with these machines in one replica, each in a different stage."""
        peer = () if self.model.peers == 1 else (0,)
        slow = frozenset(
            Fault(fault.kind, (0, i, *peer), fault.factor) for i, fault in enumerate(faults)
        )
        settings = []
        for stages in itertools.combinations(range(self.model.pp), len(faults)):
            setting = self.home
            for i, stage in enumerate(stages):
                setting = self._moved(setting, (0, i), (0, stage))
            settings.append(setting)
        # Replicas without slow machines are equal, so two lanes represent all.
        if len(settings) * 2 * self.values_of_one > BUDGET:
            return 0.0
        return float(self.model.steps_s(settings, slow).min())


def _units_at(setting: Setting) -> dict[Worker, Worker]:
    """(dp, pp) -> its present place, for the units that moved."""
    return {machine[:2]: place[:2] for machine, place in setting.moved}
