"""Computes and messages of a vision tower, from the operators of the language model's layers."""

from __future__ import annotations

from paceline.model.llm import LLM
from paceline.model.operators import Collective, LayerKind, LayerMaker, LayerWork, layer_work
from paceline.model.plan import Plan
from paceline.model.vision import VisionTower
from paceline.model.vision_tower import tower_plan

#: The layers of a tower: attention and a dense MLP.
KIND = LayerKind("*-", 0)


def vision_work(llm: LLM, plan: Plan) -> LayerWork:
    """The tower and its projectors, for the images of one microbatch; nothing without a tower.

    Frozen weights have no backward: with adapters nothing has one, otherwise the tower has none.
    """
    tower, layers = llm.vision, llm.tower
    if layers is None or not isinstance(tower, VisionTower):
        return LayerWork()
    own = tower_plan(tower, plan)
    work = _tower(tower, LayerMaker(layers, own))
    if tower.frozen:
        work.backward.clear()
        work.recompute.clear()
    projectors = _projectors(llm, tower, LayerMaker(layers, own))
    work.forward.extend(projectors.forward)
    work.backward.extend(projectors.backward)
    if plan.adapter_rank:
        work.backward.clear()
        work.recompute.clear()
    return work


def _tower(tower: VisionTower, maker: LayerMaker) -> LayerWork:
    tokens = maker.plan.micro_batch * tower.patches
    size = 2.0 * maker.tokens * tower.hidden
    maker.linear("patches", tokens, tower.hidden, tower.patch_inputs, detached=True)
    if tower.position_rows:
        maker.memory("patch-positions", 3 * size, 2 * size)
    for _ in range(tower.end_norms):
        maker.norm("norm-tower")
    layer = layer_work(maker.llm, KIND, maker.plan)
    work = maker.work
    for name in ("forward", "backward", "recompute"):
        getattr(work, name).extend(getattr(layer, name) * tower.layers)
    return work


def _projectors(llm: LLM, tower: VisionTower, maker: LayerMaker) -> LayerWork:
    """Norm, products with activations between them, and the copy into the word embeddings."""
    tokens = maker.plan.micro_batch * tower.patches // tower.merge
    products = tower.split(llm.hidden, maker.plan.tp)
    for number in range(1 + tower.deepstack):
        if number or tower.projector_norm:
            maker.norm("norm-projector")
        for i, (k, n) in enumerate(products):
            name = f"projector-{i}"
            maker.linear(name, tokens, n, k, detached=tower.frozen and i == 0)
            split = i < len(products) // 2 * 2
            size = float(maker.element * tokens)
            if split and i % 2:
                maker.collective(Collective(f"{name}-out", "tp", "all_reduce", size * n), None)
            elif split and not (tower.frozen and i == 0):
                back = Collective(f"{name}-in-backward", "tp", "all_reduce", size * k)
                maker.collective(None, back)
            if i < len(products) - 1:
                maker.memory(f"{name}-activation", 4.0 * tokens * n, 6.0 * tokens * n)
        copied = 4.0 * tokens * llm.hidden
        maker.memory("projector-copy", copied, copied)
    return maker.work
