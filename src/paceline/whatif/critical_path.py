"""The critical path: the operations on workers that determine the time of a step.

A step ends when its last operation ends. That operation started when the last of its peers was
launched. The peer was launched a launch delay after the end of its last dependency, and so on, back
to the step's start. These segments follow one another without a gap, so they sum to the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.graph import Durations, Measured, StepGraph
from paceline.graph.served import served
from paceline.simulate import ends
from paceline.trace import KIND_GROUPS, OpKind
from paceline.whatif.segments import Replay, Sort
from paceline.whatif.slack import Slack, slack_summary
from paceline.whatif.trace_back import Walker

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Name = TypeVar("Name")

#: Key in ``by_kind`` of the time between operations.
LAUNCH_DELAY = "launch-delay"


@dataclass(frozen=True)
class Lead(Generic[Name]):
    """The kind or worker with the largest share of all paths together.

    Attributes:
        name: a kind's label, or a worker (dp, pp).
        share: its share of the mean step.
        n_steps: number of steps in which it has the largest share.
    """

    name: Name
    share: float
    n_steps: int


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of every step; an analysis replays measured durations and launch delays.

    If several paths are equally long (within floating point), this is one of them. A segment of
    negative transfer time (clock error) ends before its start. With such segments, too, the
    segments have no gaps and sum to the step.

    Attributes:
        steps: [step] step numbers.
        n_dp, n_pp: number of data-parallel ranks and of stages.
        step_s: [step] simulated step times, seconds: the length of each path.
        ptr: [step + 1] index of the first segment of each step.
        op: [segment] op that runs; in a delay, the op that is launched late.
        dp, pp: [segment] the op's worker.
        kind: [segment] the op's :class:`OpKind`.
        chunk, microbatch: [segment] those of the op, or of the compute that a transfer serves; -1 =
            none.
        sort: [segment] :class:`Sort`.
        start_s, end_s: [segment] seconds since the step's start.
        slack: slack of the operations; None if not computed.
    """

    steps: Ints
    n_dp: int
    n_pp: int
    step_s: Floats
    ptr: Ints
    op: Ints
    dp: Ints
    pp: Ints
    kind: Ints
    chunk: Ints
    microbatch: Ints
    sort: Ints
    start_s: Floats
    end_s: Floats
    slack: Slack | None = None

    @cached_property
    def step_index(self) -> Ints:
        """[segment] index of its step."""
        return np.repeat(np.arange(len(self.steps)), np.diff(self.ptr))

    def _seconds(self, key: Ints, n_keys: int) -> Floats:
        """[step, key] seconds of the path."""
        cell = self.step_index * n_keys + key
        seconds = np.bincount(cell, self.end_s - self.start_s, len(self.steps) * n_keys)
        return seconds.reshape(len(self.steps), n_keys).astype(np.float64)

    @cached_property
    def sort_s(self) -> Floats:
        """[step, sort] seconds."""
        return self._seconds(self.sort, len(Sort))

    @cached_property
    def stage_s(self) -> Floats:
        """[step, pp] seconds; a delay counts on the stage of the delayed op."""
        return self._seconds(self.pp, self.n_pp)

    @cached_property
    def worker_s(self) -> Floats:
        """[step, pp, dp] seconds, delays included."""
        seconds = self._seconds(self.pp * self.n_dp + self.dp, self.n_pp * self.n_dp)
        return seconds.reshape(-1, self.n_pp, self.n_dp)

    @cached_property
    def _kind_s(self) -> Floats:
        """[step, kind] seconds, delays last."""
        return self._seconds(
            np.where(self.sort == Sort.DELAY, len(OpKind), self.kind), len(OpKind) + 1
        )

    @cached_property
    def kind_s(self) -> Mapping[str, Floats]:
        """Kind label -> [step] seconds, send and recv together; delays under ``launch-delay``."""
        table = {
            label: self._kind_s[:, [int(kind) for kind in kinds]].sum(axis=1)
            for label, kinds in KIND_GROUPS.items()
            if np.isin(self.kind[self.sort != Sort.DELAY], kinds).any()
        }
        return {**table, LAUNCH_DELAY: self._kind_s[:, -1]}

    def _shares(self, seconds: Floats) -> Floats:
        """[...] mean seconds over the mean step."""
        shares: Floats = seconds.mean(axis=0) / self.step_s.mean()
        return shares

    @property
    def by_sort(self) -> Mapping[str, float]:
        """Label of each :class:`Sort` -> share of the mean step; they sum to 1."""
        shares = self._shares(self.sort_s).tolist()
        return {sort.label: share for sort, share in zip(Sort, shares, strict=True)}

    @property
    def by_kind(self) -> Mapping[str, float]:
        """Kind label (and ``launch-delay``) -> share of the mean step; they sum to 1."""
        return {label: float(self._shares(seconds)) for label, seconds in self.kind_s.items()}

    @property
    def by_stage(self) -> Mapping[int, float]:
        """Stage -> share of the mean step; they sum to 1."""
        return dict(enumerate(self._shares(self.stage_s).tolist()))

    @property
    def by_worker(self) -> Floats:
        """[pp, dp] share of the mean step; they sum to 1."""
        return self._shares(self.worker_s)

    @property
    def leading_worker(self) -> Lead[tuple[int, int]]:
        """The worker (dp, pp) with the largest share of all paths together."""
        flat = self.worker_s.reshape(len(self.steps), -1)
        best = int(flat.sum(axis=0).argmax())
        pp, dp = divmod(best, self.n_dp)
        share = float(self._shares(flat)[best])
        return Lead((dp, pp), share, int((flat.argmax(axis=1) == best).sum()))

    @property
    def leading_kind(self) -> Lead[str]:
        """The kind (or the launch delays) with the largest share of all paths together."""
        labels, table = list(self.kind_s), np.stack(list(self.kind_s.values()), axis=1)
        best = int(table.sum(axis=0).argmax())
        share = float(self._shares(table)[best])
        return Lead(labels[best], share, int((table.argmax(axis=1) == best).sum()))


def critical_path(measured: Measured) -> CriticalPath:
    """The critical path of every step, with its measured durations and launch delays."""
    parts = ends(measured.durations, delays=measured.delays)
    replay = Replay(measured.durations, measured.delays)
    path = path_of(measured.graph, measured.steps, parts, replay)
    return replace(path, slack=slack_summary(measured, path.step_s))


def path_of(
    graph: StepGraph,
    steps: Ints,
    end: Iterable[tuple[int, Durations]],
    replay: Replay | None = None,
) -> CriticalPath:
    """The critical path of simulated steps.

    Args:
        graph: the ops.
        steps: [step] step numbers.
        end: (index of a first step, ends of its ops and of the next steps'), as yielded by
            :func:`simulate.ends`.
        replay: the input of a simulation with launch delays; None without delays.
    """
    walker = Walker(graph, len(steps))
    paths = [path for first, part in end for path in walker.walk(part, replay, first)]
    op, dp, sort, start_s, end_s = (
        np.concatenate([getattr(path, name) for path in paths])
        for name in ("op", "dp", "sort", "start_s", "end_s")
    )
    ptr = np.append(0, np.cumsum([len(path.op) for path in paths]))
    chunk, microbatch = served(graph)
    return CriticalPath(
        steps=np.asarray(steps, dtype=np.int64),
        n_dp=graph.n_dp,
        n_pp=graph.n_pp,
        step_s=end_s[ptr[1:] - 1],
        ptr=ptr,
        op=op,
        dp=dp,
        pp=graph.pp[op].astype(np.int64),
        kind=graph.kind[op].astype(np.int64),
        chunk=chunk[op],
        microbatch=microbatch[op],
        sort=sort,
        start_s=start_s,
        end_s=end_s,
    )
