"""ParaDL's projection by the formulas of its paper: Table 3, for one epoch, cell by cell.

It is a bound, not an estimate: computation shrinks by p and nothing overlaps. ``step_time`` is
Paceline's own model. The paper's misprints, and their corrections:

* Pipeline, weight update: Table 3 adds it once an epoch, Eq. 12 once a sample and segment; a step
  needs it once. ``corrected`` counts D/B updates; without it the cell is the printed one.
* Eq. 22 leaves out delta in both terms; its row of Table 3 has it. Table 3 is used.
* In 4.3, m is the contribution of ONE GPU in T_ag(p, m), and the whole buffer in T_ar(p, m).
Filter's 3 (p - 1) needs this reading: m = B|y|/p for the all-gather and B|x| for the all-reduce.
* By 5.3.2, filter and channel split activations; Table 3 does not divide |x| and |y|. Each GPU
  gathers the whole activation (A.1.4), so the table is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.networks.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLayer:
    """A layer in the paper's letters (Table 2).

    Attributes:
        name: name of the layer.
        x, y, w, bias: numbers of elements of input, output (one sample), weights and biases.
        filters, channels: F and C.
        extents: W, H and D of the input.
        forward_s, backward_s: FW and BW, seconds per sample.
        update_s: WU, seconds per step.
        halo_x, halo_dy: elements per sample that one GPU of the split receives.
    """

    name: str = ""
    x: float
    y: float
    w: float = 0.0
    bias: float = 0.0
    filters: int = 1
    channels: int = 1
    extents: tuple[int, ...] = ()
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    halo_x: float = 0.0
    halo_dy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperMachine:
    """The paper's constants.

    Attributes:
        alpha: seconds per message.
        beta: seconds per byte.
        delta: bytes per element.
        gamma: needed share of the naive memory (4.2).
        phi: flows that share a link (4.3); the paper uses 2 for gradients of data+filter.
        split_alpha, split_beta: alpha and beta inside the group that shares a sample (4.4: they
            differ inside a node); None = equal to those between groups.
    """

    alpha: float
    beta: float
    delta: float = 4.0
    gamma: float = 1.0
    phi: float = 1.0
    split_alpha: float | None = None
    split_beta: float | None = None

    def inside(self) -> tuple[float, float]:
        """Alpha and delta beta of the group that shares a sample."""
        alpha = self.alpha if self.split_alpha is None else self.split_alpha
        beta = self.beta if self.split_beta is None else self.split_beta
        return alpha, self.delta * beta


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One row of Table 3, for an epoch.

    Attributes:
        computation_s, communication_s: seconds.
        memory_bytes: memory of the fullest GPU.
        most_gpus: limit in the last column.
        steps: steps of the epoch (D/B).
    """

    computation_s: float
    communication_s: float
    memory_bytes: float
    most_gpus: int
    steps: float

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return (self.computation_s + self.communication_s) / self.steps


def project(
    layers: Sequence[PaperLayer],
    strategy: Strategy,
    machine: PaperMachine,
    samples: float,
    *,
    stages: Sequence[int] = (),
    corrected: bool = False,
) -> Projection:
    """The row of Table 3 for ``strategy`` and an epoch of ``samples``.

    Args:
        layers: layers of the network.
        strategy: the strategy: its replicas are p1, its split p2, its microbatches S.
        machine: alpha, beta, delta, gamma, phi.
        samples: D.
        stages: layers of each stage of a pipeline.
        corrected: the pipeline updates weights once a step.

    Raises:
        ModelError: Table 3 has no row for it, or the stages do not add up to the layers.
    """
    row = _Row(layers, strategy, machine, samples)
    if strategy.name == "data+pipeline":
        raise ModelError("Table 3 has no row for data+pipeline; leave --method paradl out")
    if strategy.is_pipeline:
        if len(stages) != strategy.gpus or sum(stages) != len(layers):
            raise ModelError(
                f"{strategy.gpus} stages of {len(layers)} layers in all are needed, not {stages}"
            )
        return row.pipeline(stages, corrected)
    return Projection(
        computation_s=row.computation(),
        communication_s=row.communication(),
        memory_bytes=row.memory(),
        most_gpus=row.most_gpus(),
        steps=row.steps,
    )


class _Row:
    """Common sums in the cells of Table 3."""

    def __init__(
        self, layers: Sequence[PaperLayer], strategy: Strategy, machine: PaperMachine, d: float
    ) -> None:
        self.layers, self.strategy, self.machine, self.d = layers, strategy, machine, d
        self.p, self.b = strategy.gpus, strategy.global_batch
        self.p1, self.p2 = strategy.replicas, strategy.split
        self.steps = d / self.b

    def computation(self) -> float:
        passes = sum(layer.forward_s + layer.backward_s for layer in self.layers)
        update = sum(layer.update_s for layer in self.layers)
        divided = self.p2 if self.strategy.splits_weights else 1
        return self.d / self.p * passes + self.steps / divided * update

    def communication(self) -> float:
        if self.p == 1:
            return 0.0
        if self.strategy.is_spatial:
            return self._gradients(self.p) + self._halos()
        if not self.strategy.splits_weights:
            return self._gradients(self.p)
        activations = self._layers()
        return activations + (self._gradients(self.p1) if self.p1 > 1 else 0.0)

    def _gradients(self, groups: int) -> float:
        """2 D/B (p - 1) (alpha + sum |w| / p delta beta); phi flows share the link."""
        m = self.machine
        weights = sum(layer.w for layer in self.layers) / self.p
        return 2 * self.steps * (groups - 1) * (m.alpha + weights * m.delta * m.beta * m.phi)

    def _layers(self) -> float:
        """3 D/B (p2 - 1) sum over all but the last (alpha + B |y| / p delta beta)."""
        alpha, beta = self.machine.inside()
        terms = (alpha + self.b * layer.y / self.p * beta for layer in self.layers[:-1])
        return 3 * self.steps * (self.p2 - 1) * sum(terms)

    def _halos(self) -> float:
        (alpha, beta), batch = self.machine.inside(), self.b / self.p1
        terms = (2 * alpha + batch * (layer.halo_x + layer.halo_dy) * beta for layer in self.layers)
        return 2 * self.steps * sum(terms)

    def memory(self) -> float:
        divided = self.p2 if self.strategy.splits_weights else 1
        activations = self.p if self.strategy.is_spatial else self.p1
        return self._bytes(self.layers, activations, divided)

    def _bytes(self, layers: Sequence[PaperLayer], activations: float, weights: float) -> float:
        elements = sum(
            2 * self.b * (layer.x + layer.y) / activations + 2 * layer.w / weights + layer.bias
            for layer in layers
        )
        return self.machine.gamma * self.machine.delta * elements

    def most_gpus(self) -> int:
        name, layers = self.strategy.name, self.layers
        fewest_filters = min(layer.filters for layer in layers)
        smallest = min(math.prod(layer.extents) for layer in layers)
        return {
            "data": self.b,
            "spatial": smallest,
            "filter": fewest_filters,
            "channel": min(layer.channels for layer in layers),
            "data+filter": self.b * fewest_filters,
            "data+spatial": self.b * smallest,
        }[name]

    def pipeline(self, stages: Sequence[int], corrected: bool) -> Projection:
        ends = [sum(stages[: i + 1]) for i in range(len(stages))]
        groups = [self.layers[end - n : end] for end, n in zip(ends, stages, strict=True)]
        segments, m = self.strategy.microbatches, self.machine
        forward = max(sum(layer.forward_s for layer in group) for group in groups)
        backward = max(sum(layer.backward_s for layer in group) for group in groups)
        update = max(sum(layer.update_s for layer in group) for group in groups)
        filled = self.d * (self.p + segments - 1) / segments
        hand_over = max(
            (m.alpha + self.b / segments * g[-1].y * m.delta * m.beta for g in groups[:-1]),
            default=0.0,
        )
        return Projection(
            computation_s=filled * (forward + backward) + (self.steps if corrected else 1) * update,
            communication_s=2 * self.d * (self.p + segments - 2) / self.b * hand_over,
            memory_bytes=max(self._bytes(group, 1, 1) for group in groups),
            most_gpus=len(self.layers),
            steps=self.steps,
        )
