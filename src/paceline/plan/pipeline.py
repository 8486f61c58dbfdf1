"""Pipelines of many plans at once: the end of each chunk's last backward pass.

The rules are those of ``graph.build``, solved for one microbatch after another. For non-negative
durations, the end of every compute follows from a few earlier ends, so no graph is needed. The
result equals the simulation of the graph of ``replica_ops``. A test compares them: the largest
difference over 3,000 random cases with unequal places and transfers is 0. With equal stages the
result is the closed form (m + p - 1)(f + b), with the bubble divided by v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import PlanError
from paceline.jit import compiled

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: From this number of computes on, the compiled walk is worth its loading time of 0.5 s. An
#: interpreted compute takes about 2.5 us.
INTERPRETED_COMPUTES = 100_000


@dataclass(frozen=True)
class Pipelines:
    """Plans that share a schedule and the shape of their pipeline.

    Attributes:
        schedule: "gpipe", "1f1b" or "interleaved".
        pp: stages.
        vpp: chunks per stage; a place is ``chunk * pp + stage``.
        microbatches: [plan] number of microbatches of one replica in one step.
        forward_s: [plan, place] seconds of a microbatch.
        backward_s: [plan, place] seconds of a microbatch.
        p2p_s: [plan, place] seconds to hand a microbatch to the next place, or its gradient back.
        ready_s: [plan, place] earliest start of the first forward (its parameters are gathered);
            None = 0.
    """

    schedule: str
    pp: int
    vpp: int
    microbatches: Ints
    forward_s: Array
    backward_s: Array
    p2p_s: Array
    ready_s: Array | None = None

    def __post_init__(self) -> None:
        shape = (len(self.microbatches), self.pp * self.vpp)
        for name in ("forward_s", "backward_s", "p2p_s", "ready_s"):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise PlanError(f"{name} is {value.shape}, not [plan, place] = {shape}")
        if self.schedule not in ("gpipe", "1f1b", "interleaved"):
            raise PlanError(f"there is no schedule {self.schedule!r}")
        if (self.vpp > 1) != (self.schedule == "interleaved"):
            raise PlanError(f"{self.schedule} with {self.vpp} chunks per stage")
        if self.vpp > 1 and (self.microbatches % self.pp).any():
            raise PlanError(f"interleaved needs multiples of the {self.pp} stages as microbatches")

    @property
    def computes(self) -> int:
        """Forward and backward computes of all plans together."""
        return int(2 * self.pp * self.vpp * self.microbatches.sum())

    def ends(self, fast: bool | None = None) -> Array:
        """[plan, place] end of the last backward pass, seconds since the step's start.

        Args:
            fast: use the compiled walk; None = if these pipelines alone are worth loading it.
        """
        ready = np.zeros_like(self.forward_s) if self.ready_s is None else self.ready_s
        # The backward pass is a forward pass through the places in reverse.
        into = np.pad(self.p2p_s[:, :-1], ((0, 0), (1, 0)))
        back = np.pad(self.p2p_s[:, :-1][:, ::-1], ((0, 0), (1, 0)))
        seconds = np.stack([self.forward_s, self.backward_s[:, ::-1]])
        result = np.zeros(self.forward_s.shape)
        if fast is None:
            fast = self.computes > INTERPRETED_COMPUTES
        walk = compiled(_walk) if fast else _walk
        walk(
            self.pp,
            self.microbatches.astype(np.int64),
            self._warmup(),
            seconds,
            np.stack([into, back]),
            np.ascontiguousarray(ready),
            result,
        )
        return result[:, ::-1]

    def _warmup(self) -> Ints:
        """[plan, stage] number of forwards before the first one that a backward follows."""
        total = (self.microbatches * self.vpp)[:, None]
        behind = self.pp - 1 - np.arange(self.pp)
        if self.schedule == "gpipe":
            return np.repeat(total, self.pp, axis=1)
        if self.schedule == "1f1b":
            return np.minimum(behind, total)
        ahead = np.minimum(2 * behind + (self.vpp - 1) * self.pp, total)
        return np.where(self.microbatches[:, None] == self.pp, total, ahead)


def pipeline_times(
    schedule: str,
    pp: int,
    vpp: int,
    microbatches: Ints,
    forward_s: Array,
    backward_s: Array,
    p2p_s: Array,
) -> Array:
    """[plan] seconds from the first forward to the last backward; see :class:`Pipelines`."""
    pipelines = Pipelines(schedule, pp, vpp, microbatches, forward_s, backward_s, p2p_s)
    latest: Array = pipelines.ends().max(axis=1)
    return latest


def _walk(
    pp: int, microbatches: Any, warmup: Any, seconds: Any, into: Any, ready: Any, result: Any
) -> None:
    """Walk back and forth over the stages; each stage proceeds while its inputs are ready.

    A receive is posted when the previous compute of its direction ended on the stage (the first
    backward one: the second-last forward before it). It takes its time once the other side has
        sent, too, and the next compute waits for it.

    Args:
        pp: stages.
        microbatches: [plan].
        warmup: [plan, stage].
        seconds: [direction, plan, place]; backward in reverse order of the places.
        into: [direction, plan, place] seconds to receive a microbatch.
        ready: [plan, place] earliest start of the first forward.
        result: [plan, place] receives the end of the last backward.
    """
    places = seconds.shape[2]
    for plan in range(len(microbatches)):
        m = microbatches[plan]
        total = m * (places // pp)
        order = np.arange(total)
        chunk_start, microbatch = order % places // pp * pp, order // places * pp + order % pp
        ends = np.full((2, places, m), -1.0)
        done = np.zeros((2, pp), dtype=np.int64)
        clock, posted = np.zeros(pp), np.zeros((2, pp))
        unfinished = pp
        up = False
        while unfinished > 0:
            up = not up
            for i in range(pp):
                s = i if up else pp - 1 - i
                ahead = warmup[plan, s]
                hold = ahead - 1 if ahead < total else ahead - 2
                n = done[0, s] + done[1, s]
                while n < 2 * total:
                    turn = n >= ahead and (n - ahead) & 1 == 1
                    direction = 1 if turn or done[0, s] == total else 0
                    k = done[direction, s]
                    place = chunk_start[k] + (s if direction == 0 else pp - 1 - s)
                    start = clock[s]
                    if place > 0 and pp > 1:
                        arrival = ends[direction, place - 1, microbatch[k]]
                        if arrival < 0.0:
                            break
                        start = max(
                            start, max(arrival, posted[direction, s]) + into[direction, plan, place]
                        )
                    if direction == 0:
                        start = max(start, ready[plan, place])
                    clock[s] = start + seconds[direction, plan, place]
                    ends[direction, place, microbatch[k]] = clock[s]
                    posted[direction, s] = clock[s]
                    if n == hold:
                        posted[1, s] = clock[s]
                    done[direction, s] = k + 1
                    n += 1
                    unfinished -= n == 2 * total
        for place in range(places):
            result[plan, place] = ends[1, place, m - 1]
