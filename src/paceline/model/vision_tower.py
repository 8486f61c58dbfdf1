"""The plan for a model's vision tower."""

from __future__ import annotations

from dataclasses import replace

from paceline.model.plan import Plan
from paceline.model.vision import VisionTower


def tower_plan(tower: VisionTower, plan: Plan) -> Plan:
    """The plan by which a GPU of the first stage runs the tower; its sample is one image.

    It is split over tp like the language model, without sequence parallelism. Each context-parallel
    rank runs all images. Its products stay in 16 bits even if the language model's are quantised.
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
