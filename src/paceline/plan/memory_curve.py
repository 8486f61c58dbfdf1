"""Memory of a stage's GPUs over the predicted step, by its use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.activations import end_activations
from paceline.model.memory_peak import MOMENTS, PARTS, memory_moments, place_activations
from paceline.plan.predict import Prediction
from paceline.trace import OpKind

Array = npt.NDArray[np.float64]

_FORWARD = int(OpKind.FORWARD_COMPUTE)
_COMPUTES = (_FORWARD, int(OpKind.BACKWARD_COMPUTE), int(OpKind.WEIGHT_COMPUTE))
_ACTIVATIONS, _TRANSIENT = PARTS.index("activations"), PARTS.index("transient")


@dataclass(frozen=True)
class MemoryCurve:
    """Memory of a GPU of one stage over a step.

    Attributes:
        stage: the stage.
        start_s: [interval] its begin, seconds; the last interval ends with the step.
        end_s: the step's end, seconds.
        bytes: [part, interval] in the order of ``model.memory_peak.PARTS``.
    """

    stage: int
    start_s: Array
    end_s: float
    bytes: Array

    @property
    def peak(self) -> int:
        """The first interval with the most bytes."""
        return int(self.bytes.sum(axis=0).argmax())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by name at the peak."""
        return dict(zip(PARTS, self.bytes[:, self.peak].tolist(), strict=True))


def memory_curve(prediction: Prediction, stage: int | None = None) -> MemoryCurve:
    """Memory of ``stage`` (None = the fullest) over the predicted step.

    A forward adds its chunk's activations, and the backward (with a split one, the weights' part)
    frees them. Temporary tensors exist while a compute runs.
    """
    llm, plan, rules = prediction.llm, prediction.plan, prediction.rules
    if stage is None:
        stage = int(np.argmax(prediction.memory_bytes))
    line, graph = prediction.timeline, prediction.timeline.graph
    ops = np.flatnonzero((graph.pp == stage) & np.isin(graph.kind, _COMPUTES))
    start, end = (times.block(0)[ops, 0, 0] for times in (line.start, line.end))
    order = np.argsort(start, kind="stable")
    ops, start, end = ops[order], start[order], end[order]
    place = np.array(plan.places)[np.maximum(graph.chunk[ops], 0), stage]
    forward = graph.kind[ops] == _FORWARD
    kept, work = place_activations(llm, plan, rules)
    first, last, loss = end_activations(llm, plan, rules)
    kept = kept + first * _at(plan.chunks, 0) + last * _at(plan.chunks, -1)
    moments = memory_moments(llm, plan, rules)[:, :, stage]
    whole = moments[:2, _TRANSIENT] - _own_work(prediction, stage, loss, work)
    busy = np.where(forward, whole[0] + loss * (place == plan.chunks - 1), whole[1] + work[place])
    releases = graph.kind[ops] == (_COMPUTES[2] if plan.splits_backward else _COMPUTES[1])
    after = np.cumsum(kept[place] * (forward.astype(float) - releases))
    during = after + kept[place] * releases
    return _curve(prediction, stage, moments, (start, end), (during, busy), after)


def _at(n: int, i: int) -> Array:
    one = np.zeros(n)
    one[i] = 1.0
    return one


def _own_work(prediction: Prediction, stage: int, loss: float, work: Array) -> Array:
    """[loss, backward] bytes of a stage's temporary tensors that belong to its computes."""
    places = [row[stage] for row in prediction.plan.places]
    has_loss = prediction.plan.chunks - 1 in places
    return np.array([loss * has_loss, work[places].max()])


def _curve(
    prediction: Prediction,
    stage: int,
    moments: Array,
    times: tuple[Array, Array],
    computes: tuple[Array, Array],
    after: Array,
) -> MemoryCurve:
    """Intervals: the time before the first compute, then each compute and the time after it."""
    (start, end), (during, busy) = times, computes
    n = 2 * len(start) + 1
    begins, bytes_ = np.zeros(n), np.repeat(moments[0][:, None], n, axis=1)
    begins[1::2], begins[2::2] = start, end
    activations, transient = np.zeros(n), np.zeros(n)
    activations[1::2], activations[2::2] = during, after
    transient[1::2] = busy
    bytes_[_ACTIVATIONS], bytes_[_TRANSIENT] = activations, transient
    bytes_[:, -1] = moments[len(MOMENTS) - 1]
    return MemoryCurve(stage, begins, prediction.step_time_s, bytes_)
