"""Jobs as programs, run event by event: an oracle for the graph that recorded programs make.

Written from the design's text, it shares no code with the package. A worker runs its program: a
compute takes time, a launch posts communication, a wait blocks. Transfers start when all their
members have launched; collectives of one kind and stage run one at a time.
"""

import heapq
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from paceline.trace import Columns, OpKind, arrange

CLIP = "optimizer-clip-main-grad"
EMBEDDING = "embedding-grads-all-reduce"
TRANSFERS = (("forward-send", "forward-recv", 1), ("backward-send", "backward-recv", -1))


@dataclass(frozen=True)
class Compute:
    """Occupies the worker."""

    kind: str
    microbatch: int = -1
    chunk: int = -1
    part: int = -1


@dataclass(frozen=True)
class Launch:
    """Posts communication; ``name`` is what a :class:`Wait` of the same program refers to.

    Of a pair, both members may name the ``meeting``; else it is the n-th between neighbours. Two
    replicas that share a ``link`` meet in the n-th of its kind, in a ring for instance.
    """

    kind: str
    name: object
    part: int = -1
    chunk: int = -1
    meeting: object = None
    link: int = -1


@dataclass(frozen=True)
class Wait:
    """Blocks until the communication is over."""

    name: object


class DeadlockError(Exception):
    """Nobody can go on."""


@dataclass
class _Worker:
    place: tuple[int, int]
    program: list
    pc: int = 0
    n_issued: int = 0
    paused: int = -1  # the last op that the host has dawdled before
    waits_for: object = None
    ops: dict = field(default_factory=dict)  # nth op of the program -> its row
    of_name: dict = field(default_factory=dict)
    n_of_kind: dict = field(default_factory=lambda: defaultdict(int))


class Run:
    """One step of a job: ``rows`` are its operations, ``step_s`` its time.

    Args:
        programs: (dp, pp) -> the list of its instructions; with peers, dp counts dp * peers + peer.
        seconds: (dp, pp, n-th op of the program) -> its compute or transfer time.
        pause: (dp, pp, n-th op) -> host time before it is launched.
        peers: tensor-parallel ranks, which meet in tensor-comm; others meet across data parallel.
        groups: kind -> [dp] number of the group in which a rank meets others, if not all do.
    """

    def __init__(self, programs, seconds, pause=lambda key: 0.0, peers=1, groups=None):
        self.peers, self.groups = peers, groups or {}
        self.n_dp = 1 + max(dp for dp, _ in programs)
        self.n_pp = 1 + max(pp for _, pp in programs)
        self.seconds, self.pause = seconds, pause
        self.workers = {place: _Worker(place, program) for place, program in programs.items()}
        self.posted = defaultdict(list)  # transfer -> rows of the members that are there
        self.queues = defaultdict(deque)  # queue -> transfers in the order of their launch
        self.running = {}  # queue -> transfer under way
        self.left = {}  # transfer -> members that have not ended
        self.events, self.n_events = [], 0
        for place in self.workers:
            self._at(0.0, self._resume, place)
        while self.events:
            now, _, action, subject = heapq.heappop(self.events)
            action(now, subject)
        self.rows = [row for w in self.workers.values() for row in w.ops.values()]
        stuck = [w for w in self.workers.values() if w.pc < len(w.program)]
        if stuck or any("end" not in row for row in self.rows):
            raise DeadlockError
        first = min(row["start"] for row in self.rows)
        self.step_s = max(row["end"] for row in self.rows) - first

    def _at(self, when, action, subject):
        self.n_events += 1
        heapq.heappush(self.events, (when, self.n_events, action, subject))

    def _resume(self, now, place):
        """The program goes on until it computes, pauses or must wait."""
        worker = self.workers[place]
        while worker.pc < len(worker.program):
            step = worker.program[worker.pc]
            if isinstance(step, Wait):
                row = worker.ops[worker.of_name[step.name]]
                row["awaited"] = worker.n_issued - 1
                if row.get("end", np.inf) > now:
                    worker.waits_for = row
                    return
                row.setdefault("asked", now)
                worker.pc += 1
                continue
            nth = worker.n_issued
            pause = self.pause((*place, nth))
            if pause and worker.paused < nth:
                worker.paused = nth
                self._at(now + pause, self._resume, place)
                return
            worker.n_issued += 1
            worker.pc += 1
            dp, pp = place
            row = {"dp": dp, "pp": pp, "kind": step.kind, "issued": nth, "awaited": -1}
            row["group"] = self.groups[step.kind][dp] if step.kind in self.groups else -1
            row |= {"start": now, "took": self.seconds((*place, nth)), "part": step.part}
            row |= {"microbatch": -1, "chunk": -1, "seq": worker.n_of_kind[step.kind]}
            worker.n_of_kind[step.kind] += 1
            worker.ops[nth] = row
            if isinstance(step, Compute):
                row |= {"microbatch": step.microbatch, "chunk": step.chunk}
                row["end"] = now + row["took"]
                self._at(row["end"], self._resume, place)
                return
            row |= {"chunk": step.chunk, "meeting": step.meeting, "link": step.link}
            if step.link >= 0:
                row["group"] = step.link
            worker.of_name[step.name] = nth
            self._post(now, row)

    def _post(self, now, row):
        """A member is there."""
        transfer, queue, _ = self._meeting(row)
        if not self.posted[transfer] and queue is not None:
            self.queues[queue].append(transfer)
        self.posted[transfer].append(row)
        row["transfer"] = transfer
        self._start(now, transfer, queue)

    def _meeting(self, row):
        """The transfer of an op, the queue it stands in, and how many are members."""
        dp, pp, kind, nth = row["dp"], row["pp"], row["kind"], row["seq"]
        if row["meeting"] is not None:
            return (dp, row["meeting"]), None, 2
        if row["link"] >= 0:
            return (kind, pp, row["link"], nth), (kind, pp, row["link"]), 2
        for send, recv, onwards in TRANSFERS:
            if kind == send:
                return (send, dp, pp, nth), None, 2
            if kind == recv:
                return (send, dp, (pp - onwards) % self.n_pp, nth), None, 2
        if kind == CLIP:
            return (kind, nth), kind, len(self.workers)
        if kind == EMBEDDING:
            return (kind, dp, nth), (kind, dp), 2 if self.n_pp > 1 else 1
        if kind in ("tensor-comm", "context-comm"):
            return (kind, pp, dp // self.peers, nth), (kind, pp, dp // self.peers), self.peers
        if row["group"] >= 0:
            group, n_members = row["group"], self.groups[kind].count(row["group"])
            return (kind, pp, group, nth), (kind, pp, group), n_members
        peer = dp % self.peers
        return (kind, pp, peer, nth), (kind, pp, peer), self.n_dp // self.peers

    def _start(self, now, transfer, queue):
        """Start a transfer that all have reached and that nothing is in front of."""
        rows = self.posted[transfer]
        n_members = self._meeting(rows[0])[2]
        if len(rows) < n_members or transfer in self.left:
            return
        if queue is not None:
            if queue in self.running or self.queues[queue][0] != transfer:
                return
            self.queues[queue].popleft()
            self.running[queue] = transfer
        self.left[transfer] = n_members
        for row in rows:
            row["began"] = now
            row["due"] = now + row["took"]
            self._at(row["due"], self._end, (row, queue))

    def _end(self, now, subject):
        row, queue = subject
        row["end"] = now
        transfer = row["transfer"]
        self.left[transfer] -= 1
        if queue is not None and not self.left[transfer]:
            del self.running[queue]
            if self.queues[queue]:
                self._start(now, self.queues[queue][0], queue)
        worker = self.workers[row["dp"], row["pp"]]
        if worker.waits_for is row:
            worker.waits_for = None
            worker.pc += 1
            self._resume(now, worker.place)


def columns_of(steps, *, drop=(), shuffle=None, base_s=0.0, **given):
    """Columns of some steps, each a run or a list of rows; ``drop`` names columns to leave out."""
    lists = [getattr(step, "rows", step) for step in steps]
    rows = [(number, row) for number, some in enumerate(lists) for row in some]
    if shuffle is not None:
        shuffle.shuffle(rows)
    table = {
        name: np.array([row[name] for _, row in rows])
        for name in ("dp", "pp", "seq", "chunk", "microbatch", "part", "issued", "awaited")
        if name not in drop
    }
    groups = np.array([row.get("group", -1) for _, row in rows])
    if (groups >= 0).any():
        table["group"] = groups
    if (table.get("part", np.zeros(1)) < 0).all():
        table.pop("part", None)
    number = np.array([number for number, _ in rows])
    start, end = (np.array([row[name] for _, row in rows]) for name in ("start", "end"))
    n_pp = 1 + int(table["pp"].max())
    replica, peers = table["dp"], getattr(steps[0], "peers", 1)
    if peers > 1:
        table |= {"dp": replica // peers, "peer": replica % peers}
    table |= {
        "step": number,
        "rank": replica * n_pp + table["pp"],
        "kind": np.array([OpKind.from_label(r["kind"]) for _, r in rows], dtype=np.int8),
        "start": start + base_s * number,
        "duration": end - start,
    }
    if any("late" in row for _, row in rows):
        table["late"] = np.array([bool(row.get("late")) for _, row in rows])
    return Columns(**(table | given))


def trace_of_runs(runs, **options):
    """The trace of some steps, each a :class:`Run` or a list of rows."""
    return arrange(columns_of(runs, **options), None)


@dataclass(frozen=True)
class Spec:
    """A random job: what its programs do; waits and durations follow from ``seed``.

    Attributes:
        pp: stages.
        microbatches: of each dp rank.
        units: FSDP units of a pass, 0 = parameters are not sharded.
        ahead: how many units ahead parameters are gathered.
        buckets: gradient buckets of the last microbatch, where nothing is sharded.
        one_by_one: one forward and one backward in turn (1F1B), else all forwards first.
        clip: gradient clipping over all ranks.
        embedding: tied embeddings on the first and last stage.
        pauses: whether the host dawdles before some launches.
        wild: whether transfers between stages are awaited anywhere, even where that blocks all.
        peers: tensor-parallel ranks of each dp rank; ``microbatches`` has an entry for every one.
        layers: of a chunk, each with a compute and a collective among the peers.
        ring: whether the peers send around a ring in each layer instead.
    """

    pp: int = 1
    microbatches: tuple[int, ...] = (2, 2)
    units: int = 0
    ahead: int = 1
    buckets: int = 0
    one_by_one: bool = False
    clip: bool = False
    embedding: bool = False
    pauses: bool = False
    wild: bool = False
    peers: int = 1
    layers: int = 0
    ring: bool = False
    seed: int = 0


def passes(spec, pp, n):
    """(direction, microbatch) in the order of a stage."""
    forwards = [("forward", m) for m in range(n)]
    backwards = [("backward", m) for m in range(n)]
    if not spec.one_by_one:
        return forwards + backwards
    ahead = min(n, spec.pp - pp - 1)
    order = forwards[:ahead]
    for pair in zip(forwards[ahead:], backwards, strict=False):
        order += pair
    return order + backwards[n - ahead :]


def programs_of(spec):
    """(dp, pp) -> instructions."""
    programs = {}
    for dp, n in enumerate(spec.microbatches):
        for pp in range(spec.pp):
            rng = random.Random(f"{spec.seed}/{pp}")
            program = _with_waits(_Body(spec, pp, n, dp).steps, rng, wild=spec.wild)
            programs[dp, pp] = program
    return programs


class _Body:
    """The instructions of one worker without the waits that nothing forces."""

    def __init__(self, spec, pp, n, replica):
        self.spec, self.pp, self.n, self.replica = spec, pp, n, replica
        self.steps, self.n_names = [], 0
        order = passes(spec, pp, n)
        units = [unit for way, _ in order for unit in self._units(way)]
        self.coming, self.gathers = deque(units), deque()
        for _ in range(spec.ahead if spec.units else 0):
            self._gather()
        for way, microbatch in order:
            self._pass(way, microbatch)
        if spec.embedding and spec.pp > 1 and pp in (0, spec.pp - 1):
            self._wait(self._launch(EMBEDDING))
        if spec.clip:
            self._wait(self._launch(CLIP))
        self.steps.append(Compute("optimizer"))

    def _units(self, way):
        units = list(range(self.spec.units))
        return units if way == "forward" else units[::-1]

    def _launch(self, kind, part=-1, link=-1):
        self.n_names += 1
        self.steps.append(Launch(kind, self.n_names, part, link=link))
        return self.n_names

    def _turn(self):
        """Send to the next peer, receive from the one before: first over the even links."""
        place = self.replica % self.spec.peers
        own, other = self.replica, self.replica - place + (place - 1) % self.spec.peers
        for link in (own, other) if place % 2 == 0 else (other, own):
            self._launch("context-comm", link=link)

    def _wait(self, name):
        self.steps.append(Wait(name))

    def _gather(self):
        if self.coming:
            self.gathers.append(self._launch("params-all-gather", self.coming.popleft()))

    def _pass(self, way, microbatch):
        spec, pp = self.spec, self.pp
        entry = pp > 0 if way == "forward" else pp < spec.pp - 1
        leave = pp < spec.pp - 1 if way == "forward" else pp > 0
        if entry:
            self._wait(self._launch(f"{way}-recv"))
        for unit in self._units(way) or [None]:
            if unit is not None:
                self._gather()
                if not self.gathers:
                    self._gather()
                self._wait(self.gathers.popleft())
            last = way == "backward" and microbatch == self.n - 1
            for _ in range(spec.buckets if last and unit is None else 0):
                self.steps.append(Compute("backward-compute", microbatch, 0))
                self._launch("grads-reduce-scatter")
            self.steps.append(Compute(f"{way}-compute", microbatch, 0))
            for _ in range(spec.layers):
                if spec.ring:
                    self._turn()
                else:
                    self._wait(self._launch("tensor-comm"))
                self.steps.append(Compute(f"{way}-compute", microbatch, 0))
            if unit is not None and way == "backward":
                self._launch("grads-reduce-scatter", unit)
        if leave:
            self._launch(f"{way}-send")


def _with_waits(steps, rng, wild):
    """Add waits at random behind launches that have none; or move those of transfers, if wild."""
    steps = list(steps)
    if wild:
        recvs = {s.name for s in steps if isinstance(s, Launch) and s.kind.endswith("-recv")}
        steps = [s for s in steps if not (isinstance(s, Wait) and s.name in recvs)]
    awaited = {step.name for step in steps if isinstance(step, Wait)}
    for step in [s for s in steps if isinstance(s, Launch) and s.name not in awaited]:
        choice = rng.choice(("never", "once", "later", "end"))
        if choice == "never":
            continue
        at = steps.index(step) + 1
        if choice != "once":
            at = rng.randint(at, len(steps)) if choice == "later" else len(steps)
        steps.insert(at, Wait(step.name))
    return steps


def random_run(spec, programs, step, factors=None):
    """One step with random durations, the same for equal arguments."""

    def seconds(key):
        dp, pp, _ = key
        value = random.Random(f"{spec.seed}/{step}/{key}").uniform(0.01, 1.0)
        return value * (factors or {}).get((dp, pp), 1.0)

    def pause(key):
        rng = random.Random(f"pause/{spec.seed}/{step}/{key}")
        return rng.uniform(0.0, 0.3) if spec.pauses and rng.random() < 0.3 else 0.0

    return Run(programs, seconds, pause, spec.peers)
