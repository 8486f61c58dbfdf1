"""An event simulator written from the text of issue 2, as an oracle for the kernel and the graph.

It shares no code with the package: rows are dicts, every lane is simulated, one event at a time.
"""

import heapq
import itertools
from collections import defaultdict
from statistics import fmean, median

SERVES = {
    "forward-send": "forward-compute",
    "forward-recv": "forward-compute",
    "backward-send": "backward-compute",
    "backward-recv": "backward-compute",
}
SENDS = ("forward-send", "backward-send")
COMPUTE = ("forward-compute", "backward-compute")
OVER_DP = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
CLIP = "optimizer-clip-main-grad"
EMBEDDING = "embedding-grads-all-reduce"
MEAN = (*COMPUTE, "gc", "optimizer")
CLOCK_ERROR_S = -0.010


class Oracle:
    """Rows of (step, dp, pp, kind, seq, chunk, microbatch, start, duration), and what follows."""

    def __init__(self, rows, n_pp, n_chunks=1):
        self.rows, self.n_pp, self.n_chunks = rows, n_pp, n_chunks
        self.before = [set() for _ in rows]
        self.group = [None] * len(rows)
        self.noop = [False] * len(rows)
        lanes = defaultdict(lambda: defaultdict(list))
        for i in sorted(range(len(rows)), key=lambda i: (rows[i]["start"], rows[i]["seq"])):
            row = rows[i]
            lanes[row["step"], row["dp"]][row["pp"], row["kind"]].append(i)
        for (step, dp), of in lanes.items():
            for pp in range(n_pp):
                self._stage(of, pp, step)
            self._pairs(of, step, dp)
        members = defaultdict(list)
        for i, key in enumerate(self.group):
            members[key if key is not None else i].append(i)
        self.members = members
        self._measure()

    def _in_order(self, of, pp, *kinds):
        ops = [i for kind in kinds for i in of[pp, kind]]
        return sorted(ops, key=lambda i: self.rows[i]["start"])

    def _chain(self, ops):
        for first, second in itertools.pairwise(ops):
            self.before[second].add(first)

    def _at_model_end(self, compute, kind):
        """Whether the transfer of a compute has no partner: the model's first or last chunk."""
        place = self.rows[compute]["chunk"] * self.n_pp + self.rows[compute]["pp"]
        first = kind in ("forward-recv", "backward-send")
        return place == (0 if first else self.n_pp * self.n_chunks - 1)

    def _stage(self, of, pp, step):
        compute = self._in_order(of, pp, *COMPUTE)
        self._chain(compute)
        self._chain(self._in_order(of, pp, "params-all-gather", "grads-reduce-scatter"))
        for kind, direction in SERVES.items():
            transfers, served = of[pp, kind], list(of[pp, direction])
            self._chain(transfers)
            if len(transfers) != len(served):  # no-ops are not recorded
                served = [c for c in served if not self._at_model_end(c, kind)]
            assert len(transfers) == len(served), (pp, kind, len(transfers), len(served))
            for transfer, c in zip(transfers, served, strict=True):
                self.noop[transfer] = self._at_model_end(c, kind)
                if kind in SENDS:
                    self.before[transfer].add(c)
                    continue
                self.before[c].add(transfer)
                place = of[pp, direction].index(c)
                if place:
                    self.before[transfer].add(of[pp, direction][place - 1])
        first = next(k for k, c in enumerate(compute) if self.rows[c]["kind"] == COMPUTE[1])
        if first >= 2:
            for kind in ("backward-send", "backward-recv"):
                for transfer in of[pp, kind][:1]:
                    self.before[transfer].add(compute[first - 2])
        for gather in of[pp, "params-all-gather"]:
            self.before[self._of_chunk(of, pp, COMPUTE[0], gather)[0]].add(gather)
        self._tail(of, pp, compute)
        for kind in OVER_DP:
            for k, i in enumerate(of[pp, kind]):
                self.group[i] = (step, kind, pp, k)
        for k, i in enumerate(of[pp, CLIP]):
            self.group[i] = (step, CLIP, k)

    def _of_chunk(self, of, pp, direction, collective):
        chunk = self.rows[collective]["chunk"]
        return [c for c in of[pp, direction] if chunk < 0 or self.rows[c]["chunk"] == chunk]

    def _tail(self, of, pp, compute):
        scatters = of[pp, "grads-reduce-scatter"]
        separate = of[pp, "separate-grads-all-reduce"]
        end = [*of[pp, "layernorm-grads-all-reduce"], *of[pp, EMBEDDING]]
        end += [*(separate or scatters), *of[pp, CLIP], *of[pp, "optimizer"]]
        self._chain([compute[-1], *of[pp, "gc"], *end])
        if separate:
            for i in scatters:
                self.before[i].add(self._of_chunk(of, pp, COMPUTE[1], i)[-1])
            if scatters:
                self.before[end[0]].add(scatters[-1])

    def _pairs(self, of, step, dp):
        for send, recv, way in (
            ("forward-send", "forward-recv", 1),
            ("backward-send", "backward-recv", -1),
        ):
            for pp in range(self.n_pp):
                peer = (pp + way) % self.n_pp
                sends = [i for i in of[pp, send] if not self.noop[i]]
                recvs = [i for i in of[peer, recv] if not self.noop[i]]
                assert len(sends) == len(recvs)
                for k, pair in enumerate(zip(sends, recvs, strict=True)):
                    for i in pair:
                        self.group[i] = (step, dp, send, pp, k)
        if self.n_pp > 1:
            for pp in (0, self.n_pp - 1):
                for k, i in enumerate(of[pp, EMBEDDING]):
                    self.group[i] = (step, dp, EMBEDDING, k)

    def _measure(self):
        rows = self.rows
        start = [row["start"] for row in rows]
        end = [row["start"] + row["duration"] for row in rows]
        zero = defaultdict(lambda: float("inf"))
        for row in rows:
            zero[row["step"]] = min(zero[row["step"]], row["start"])
        launch = {i: max(start[j] for j in ops) for ops in self.members.values() for i in ops}
        self.durations = [self._clamp(end[i] - launch[i]) for i in range(len(rows))]
        self.delays = [
            self._clamp(start[i] - max((end[j] for j in self.before[i]), default=zero[row["step"]]))
            for i, row in enumerate(rows)
        ]
        last = defaultdict(lambda: -float("inf"))
        for i, row in enumerate(rows):
            last[row["step"]] = max(last[row["step"]], end[i])
        self.traced = {step: last[step] - zero[step] for step in sorted(zero)}
        values = defaultdict(list)
        for i, row in enumerate(rows):
            if not self.noop[i]:
                values[row["kind"]].append(self.durations[i])
        self.ideal = {k: (fmean if k in MEAN else median)(v) for k, v in values.items()}

    @staticmethod
    def _clamp(seconds):
        return 0.0 if seconds < CLOCK_ERROR_S else seconds

    def run(self, durations, delays=None):
        """Launches and ends of all ops, by an event heap."""
        after = [[] for _ in self.rows]
        for i, before in enumerate(self.before):
            for j in before:
                after[j].append(i)
        waits = [len(before) for before in self.before]
        missing = {key: len(ops) for key, ops in self.members.items()}
        launch, end = [0.0] * len(self.rows), [None] * len(self.rows)
        events = []

        def arrive(i):
            ready = max((end[j] for j in self.before[i]), default=0.0)
            launch[i] = ready + (delays[i] if delays else 0.0)
            key = self.group[i] if self.group[i] is not None else i
            missing[key] -= 1
            if missing[key] == 0:
                begin = max(launch[j] for j in self.members[key])
                for j in self.members[key]:
                    heapq.heappush(events, (begin + durations[j], j))

        for i, count in enumerate(waits):
            if count == 0:
                arrive(i)
        while events:
            now, i = heapq.heappop(events)
            end[i] = now
            for j in after[i]:
                waits[j] -= 1
                if waits[j] == 0:
                    arrive(j)
        assert None not in end, "the ops wait for each other in a circle"
        return launch, end

    def step_times(self, measured=lambda row: True, delayed=None):
        """Step times: ``measured`` ops as traced, others ideal; delays where ``delayed``."""
        chosen = [
            own if self.noop[i] or measured(self.rows[i]) else self.ideal[self.rows[i]["kind"]]
            for i, own in enumerate(self.durations)
        ]
        delays = delayed and [
            d if delayed(i, self.rows[i]) else 0.0 for i, d in enumerate(self.delays)
        ]
        _, end = self.run(chosen, delays)
        last = defaultdict(lambda: -float("inf"))
        for i, row in enumerate(self.rows):
            last[row["step"]] = max(last[row["step"]], end[i])
        return [last[step] for step in sorted(last)]
