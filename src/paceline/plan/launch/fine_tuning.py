"""Packed and padded samples and LoRA adapters in the terms of each framework.

Read at the versions of the launch files: Megatron-LM's ``pretrain_gpt.py``,
``megatron/training/datasets/sft_dataset.py`` and ``core/datasets/gpt_dataset.py``;
Megatron-Bridge's ``training/config.py``, ``data/builders/gpt_sft.py`` and ``peft/lora.py``;
torchtitan's ``hf_datasets/text_datasets.py`` and ``models/*/__init__.py``; Accelerate's
``docs/source/concept_guides/context_parallelism.md``. Scripts of Hugging Face use TRL's
``SFTConfig`` (016013e) and PEFT's ``LoraConfig`` (0.21.2).
"""

from __future__ import annotations

from paceline.errors import PlanError
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.launch.exclusions import DEEPSPEED

Flags = list[tuple[str, str]]  # name, value ("" = a switch)

#: Modules of Megatron-Core with adapters in the prediction: queries, keys and values are fused.
_MEGATRON_TARGETS = "[linear_qkv,linear_proj]"
#: The same in models of transformers (Llama's names).
_HF_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def refuse(framework: str, what: str, condition: bool, *fields: str) -> None:
    """Raise an error that names what a framework cannot express, under a condition.

    Raises:
        PlanError: the condition holds.
    """
    if condition:
        raise PlanError(f"{framework} cannot express {what}", fields=fields)


def refuse_adapters(framework: str, plan: Plan) -> None:
    """Raise an error if the plan has adapters, for a framework that knows none.

    Raises:
        PlanError: it has.
    """
    refuse(framework, "LoRA adapters; it trains all weights", plan.adapter_rank > 0, "adapter_rank")


def megatron_samples(framework: str, llm: LLM, plan: Plan) -> Flags:
    """Flags of Megatron-LM for how documents fill samples.

    ``GPTDataset`` cuts one stream of documents into samples without padding. ``SFTDataset`` packs
    the conversations of a line and pads the rest of the sample.

    Raises:
        PlanError: it has no such samples.
    """
    documents, padding = bool(llm.packed.documents), llm.packed.padding > 0
    refuse(
        framework,
        "padded samples with attention that is not fused",
        padding and not plan.flash,
        *("padding", "flash"),
    )
    if padding:
        return [
            ("sft", ""),
            ("tokenizer-type", "SFTTokenizer"),
            ("no-create-attention-mask-in-dataloader", ""),
        ]
    if documents and not plan.flash:
        return [("reset-position-ids", ""), ("reset-attention-mask", "")]
    return [("dataloader-inter-document-masking", "")] if documents else []


def bridge_mode(llm: LLM, plan: Plan) -> str:
    """``--mode`` of Megatron-Bridge. Its pretraining neither separates documents nor pads."""
    if plan.adapter_rank:
        return "lora"
    return "pretrain" if llm.packing is None else "sft"


def bridge_fine_tuning(framework: str, llm: LLM, plan: Plan) -> Flags:
    """Overrides of a fine-tuning recipe of Megatron-Bridge for samples and adapters.

    Raises:
        PlanError: it has no such samples, or no adapters there.
    """
    documents = bool(llm.packed.documents)
    refuse(
        framework,
        f"packed documents with micro batch {plan.micro_batch}; a packed sample is a microbatch",
        documents and plan.micro_batch > 1,
        *("documents", "micro_batch"),
    )
    refuse(
        framework,
        f"LoRA adapters with zero {plan.zero}; none of its recipes has them with Megatron FSDP",
        plan.adapter_rank > 0 and plan.zero >= 2,
        *("adapter_rank", "zero"),
    )
    overrides: Flags = []
    if bridge_mode(llm, plan) != "pretrain":
        overrides.append(("dataset.enable_offline_packing", str(documents).lower()))
        # The recipes' specs are refused beside unpacked samples; the runner makes its own.
        overrides += [] if documents else [("dataset.offline_packing_specs", "null")]
        overrides.append(("++dataset.dataset_kwargs.pad_to_max_length", "true"))
        overrides.append(("checkpoint.pretrained_checkpoint", "PRETRAINED_CHECKPOINT"))
    if plan.adapter_rank:
        overrides.append(("peft.dim", str(plan.adapter_rank)))
        overrides.append(("peft.target_modules", f"'{_MEGATRON_TARGETS}'"))
    return overrides


def torchtitan_flavor(framework: str, llm: LLM, plan: Plan) -> str:
    """The flavor of a torchtitan model that keeps documents apart; "" without documents.

    Raises:
        PlanError: torchtitan has no such samples.
    """
    packed = llm.packed
    refuse(
        framework,
        "padded samples; its loader fills them with documents",
        packed.padding > 0,
        "padding",
    )
    if not packed.documents:
        return ""
    refuse(
        framework,
        "packed documents with latent attention and cp > 1",
        llm.latent is not None and plan.cp > 1,
        *("documents", "cp"),
    )
    kinds = "flex" if plan.cp > 1 else "flex or varlen"
    return f"a flavor with attn_type {kinds} and attn_mask_type block_causal"


def script_lines(framework: str, llm: LLM, plan: Plan) -> list[str]:
    """Settings of a Hugging Face training script, one line each.

    Raises:
        PlanError: the framework has no such samples, or no adapters there.
    """
    packed, lines = llm.packed, []
    if plan.recompute == "full" and framework == DEEPSPEED:
        lines.append(
            "model.activation_checkpointing_enable(), or gradient_checkpointing_enable() of an "
            "older transformers"
        )
    refuse(
        framework,
        "packed documents with cp > 1; its ring attention has one causal mask",
        bool(packed.documents) and plan.cp > 1,
        *("documents", "cp"),
    )
    refuse(
        framework,
        "LoRA adapters with tp > 1; no source shows PEFT's adapters split",
        plan.adapter_rank > 0 and plan.tp > 1,
        *("adapter_rank", "tp"),
    )
    if plan.adapter_rank:
        names = ", ".join(f'"{name}"' for name in _HF_TARGETS)
        lines.append(
            f"PEFT's LoraConfig(r={plan.adapter_rank}, target_modules=[{names}]), "
            "or the model's names of these products"
        )
    if packed.documents:
        lines.append(
            f"samples of whole documents that attend to themselves alone, as of TRL's "
            f"SFTConfig(packing=True, max_length={llm.seq_len}) with flash_attention_2"
        )
    if packed.padding:
        lines.append(f"each sample padded to {llm.seq_len} tokens")
    return lines
