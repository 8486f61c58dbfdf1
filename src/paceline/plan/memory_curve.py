"""Memory of a stage's GPUs over the predicted step, by its use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.activations import end_activations
from paceline.model.memory import ends_in_flight
from paceline.model.memory_peak import PARTS, memory_moments, place_activations
from paceline.plan.predict import Prediction
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FORWARD = int(OpKind.FORWARD_COMPUTE)
_COMPUTES = (_FORWARD, int(OpKind.BACKWARD_COMPUTE), int(OpKind.WEIGHT_COMPUTE))
_ACTIVATIONS, _TRANSIENT = PARTS.index("activations"), PARTS.index("transient")


@dataclass(frozen=True)
class MemoryCurve:
    """Memory of a GPU of one stage over a step: straight lines between points.

    Attributes:
        stage: the stage.
        time_s: [point] seconds from the step's begin to its end; two points at one time are a jump.
        bytes: [part, point] in the order of ``model.memory_peak.PARTS``.
    """

    stage: int
    time_s: Array
    bytes: Array

    @property
    def peak(self) -> int:
        """The first point with the most bytes."""
        return int(self.bytes.sum(axis=0).argmax())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by name at the peak."""
        return dict(zip(PARTS, self.bytes[:, self.peak].tolist(), strict=True))


def memory_curve(prediction: Prediction, stage: int | None = None) -> MemoryCurve:
    """Memory of ``stage`` (None = the fullest) over the predicted step.

    A forward adds its chunk's activations evenly, and the backward (with a split one, the weights'
    part) frees them evenly. Temporary tensors exist while a compute runs. The loss ends the last
    chunk's forward and is drawn as long as a layer; its logits are free in the layers' backward.
    """
    llm, plan, rules = prediction.llm, prediction.plan, prediction.rules
    if stage is None:
        stage = int(np.argmax(prediction.memory_bytes))
    start, end, place, kind = _computes(prediction, stage)
    forward, at_end = kind == _FORWARD, place == plan.chunks - 1
    frees = kind == (_COMPUTES[2] if plan.splits_backward else _COMPUTES[1])

    kept, work = place_activations(llm, plan, rules)
    first, logits, loss = end_activations(llm, plan, rules)
    kept[-1] += logits
    moments = memory_moments(llm, plan, rules)[:, :, stage]
    idle, backward = moments[:2, _TRANSIENT] - _own_work(prediction, stage, loss, work)

    change = forward.astype(float) - frees
    at_start = np.cumsum(change * (place == 0))
    # Korthikanti et al. (4.2.2) count fewer masks than an interleaved order holds.
    masks = first * np.minimum(at_start, ends_in_flight(plan)[0])
    after = np.cumsum(kept[place] * change) + masks
    before = np.concatenate([[0.0], after[:-1]])
    held = np.cumsum(change * at_end)
    free = logits * np.where(forward, at_end, (held - change * at_end) > 0)
    layers = len(plan.chunk_layers(llm)[-1])
    turn = np.where(forward & at_end, end - (end - start) / (layers + 1), end)
    ended = np.where(forward | (frees & at_end), after, after - free)
    busy = np.where(forward, idle, backward + work[place])
    late = busy + loss * (forward & at_end)
    none = np.full(len(start), idle)
    # Points: idle, begin, the loss's begin (before and after), end, idle.
    times = np.stack([start, start, turn, turn, end, end])
    activations = np.stack(
        [
            before,
            np.where(forward, before, before - free),
            np.where(forward, after - free, ended),
            *(ended, ended, after),
        ]
    )
    transient = np.stack([none, busy, busy, late, late, none])
    chosen = np.ones(times.shape, dtype=bool)
    chosen[0, 1:] = chosen[-1, :-1] = start[1:] > end[:-1]  # idle between two computes
    points = (values.T[chosen.T] for values in (times, activations, transient))
    return _curve(prediction, stage, moments, *points)


def _computes(prediction: Prediction, stage: int) -> tuple[Array, Array, Ints, Ints]:
    """[compute] start and end in seconds, place and kind of a stage's computes, by their start."""
    line, graph = prediction.timeline, prediction.timeline.graph
    ops = np.flatnonzero((graph.pp == stage) & np.isin(graph.kind, _COMPUTES))
    start, end = (times.block(0)[ops, 0, 0] for times in (line.start, line.end))
    place = np.array(prediction.plan.places)[np.maximum(graph.chunk[ops], 0), stage]
    order = np.argsort(start, kind="stable")
    return start[order], end[order], place[order], graph.kind[ops][order].astype(np.int64)


def _own_work(prediction: Prediction, stage: int, loss: float, work: Array) -> Array:
    """[loss, backward] bytes of a stage's temporary tensors that belong to its computes."""
    places = [row[stage] for row in prediction.plan.places]
    has_loss = prediction.plan.chunks - 1 in places
    return np.array([loss * has_loss, work[places].max()])


def _curve(
    prediction: Prediction,
    stage: int,
    moments: Array,
    times: Array,
    activations: Array,
    transient: Array,
) -> MemoryCurve:
    """The curve with the time before the first compute and after the last."""
    n = len(times) + 3
    bytes_ = np.repeat(moments[0][:, None], n, axis=1)
    bytes_[_ACTIVATIONS, 1:-2], bytes_[_TRANSIENT, 1:-2] = activations, transient
    bytes_[_ACTIVATIONS, 0], bytes_[_TRANSIENT, 0] = activations[0], transient[0]
    bytes_[:, -2:] = moments[-1][:, None]
    step = prediction.step_time_s
    return MemoryCurve(stage, np.concatenate([[0.0], times, [times[-1], step]]), bytes_)
