"""The layers of a vision tower as a model of their own, and what is counted of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.errors import ModelError
from paceline.model.vision import VisionCost, VisionTower

if TYPE_CHECKING:
    from paceline.model.llm import LLM
    from paceline.model.plan import Plan


def check_vision(llm: LLM, where: str) -> None:
    """Refuse a model whose tower or whose attention to all tokens contradicts the rest.

    Raises:
        ModelError: it does.
    """
    if llm.bidirectional and (llm.window is not None or llm.index is not None):
        raise ModelError(
            f"{where}: a window and an index beside bidirectional are not modelled",
            fields=("bidirectional", "window", "index"),
        )
    tower = llm.vision
    if isinstance(tower, VisionTower) and tower.image_tokens > llm.seq_len:
        raise ModelError(
            f"{where}: {tower.images} images of {tower.patches} patches are "
            f"{tower.image_tokens} tokens, more than seq_len {llm.seq_len}",
            fields=("seq_len", "vision"),
        )


def tower_layers(tower: VisionTower) -> LLM:
    """The layers of a tower as a model, one image its sample; its word embedding has one row."""
    from paceline.model.llm import LLM

    return LLM(
        name="the vision tower",
        layers=tower.layers,
        hidden=tower.hidden,
        heads=tower.heads,
        ffn=tower.ffn,
        vocab=1,
        seq_len=tower.inner_tokens,
        positions="rotary" if tower.rotary else "none",
        bidirectional=True,
    )


def tower_plan(tower: VisionTower, plan: Plan) -> Plan:
    """The plan by which a GPU of the first stage runs the tower, a sample of it one image.

    Split over tp like the language model, without sequence parallelism; each context-parallel rank
    runs all images; products stay in 16 bits where the language model's are quantised.
    """
    images = plan.micro_batch * tower.images
    return replace(
        plan,
        pp=1,
        dp=1,
        cp=1,
        ep=1,
        vpp=1,
        micro_batch=images,
        global_batch=images,
        schedule="1f1b",
        overlap_factor=1.0,
        sequence_parallel=False,
        overlap_tp=False,
        precision="bf16" if plan.quantised else plan.precision,
        fused_experts=False,
        layers_per_stage=None,
        adapter_rank=0,
        offload_layers=0,
    )


def vision_parameters(llm: LLM) -> int:
    """Parameters of a model's vision tower, the projector among them; 0 without one."""
    tower = llm.vision
    if tower is None:
        return 0
    if isinstance(tower, VisionCost):
        return tower.parameters
    layers = tower.layers * tower_layers(tower).layer_parameters(0)
    return layers + tower.end_parameters + tower.projector_parameters(llm.hidden)


def vision_flops(llm: LLM) -> tuple[float, float]:
    """FLOPs of one sample's images: forward and backward, and forward alone.

    A given cost says none. Pixels need no gradient; nor do the inputs of the projector where the
    tower is frozen.
    """
    tower = llm.vision
    if not isinstance(tower, VisionTower):
        return 0.0, 0.0
    layers = tower_layers(tower)
    per_token = layers.model_flops_per_token() - 6.0 * layers.vocab * layers.hidden
    through = per_token / 3 * tower.images * tower.inner_tokens
    patches = 2.0 * tower.images * tower.patches * tower.patch_inputs * tower.hidden
    products = [k * n for k, n in tower.products(llm.hidden)]
    merged = 2.0 * tower.image_tokens * (1 + tower.deepstack)
    forward = through + patches + merged * sum(products)
    backward = 2 * merged * sum(products)
    backward += -merged * products[0] if tower.frozen else 2 * through + patches
    return forward + backward, forward
