"""Computes and messages of one GPU for one microbatch, operator by operator.

These are counts: shapes, FLOPs, bytes. ``compute`` and ``network`` turn them into seconds. Tensors
have the names of Shoeybi et al. 2019 (Megatron-LM) and Korthikanti et al. 2022.
"""

from __future__ import annotations

from paceline.model.attention_work import AttentionMaker
from paceline.model.compressed import KINDS
from paceline.model.llm import LLM
from paceline.model.network import places_visited
from paceline.model.operator_types import (
    Collective,
    LayerKind,
    LayerWork,
    Operator,
    Work,
    all_operators,
    is_weight_gradient,
    layer_kind,
    mtp_kinds,
)
from paceline.model.plan import Plan
from paceline.model.recompute import repeat
from paceline.model.torch_kernels import as_torch_runs

__all__ = [
    "Collective",
    "LayerKind",
    "LayerWork",
    "Operator",
    "Work",
    "all_operators",
    "embedding_work",
    "head_work",
    "is_weight_gradient",
    "layer_kind",
    "layer_work",
    "mtp_kinds",
    "mtp_work",
]


def layer_work(llm: LLM, kind: LayerKind, plan: Plan) -> LayerWork:
    """A layer: its blocks, each between a norm and the addition to the residual stream."""
    maker = LayerMaker(llm, plan)
    for block in kind.blocks:
        names = {"*": "attention", "M": "mixer", "G": "delta", **dict.fromkeys(KINDS, "attention")}
        name = names.get(block, "mlp")
        if llm.streams > 1:
            maker.collapse(name)
        maker.norm(f"norm-{name}")
        if block == "E":
            maker.experts()
        else:
            maker.enter(f"{name}-in")
            if block == "*":
                maker.attention(kind.window)
            elif block in KINDS:
                maker.compressed_attention(block)
            elif block == "M":
                maker.mixer()
            elif block == "G":
                maker.delta_net()
            else:
                maker.mlp("mlp", maker.tokens, llm.ffn // plan.tp)
            maker.leave(f"{name}-out")
        if llm.post_norms:
            maker.norm(f"norm-{name}-behind")
        if llm.streams > 1:
            maker.mix(name)
        else:
            maker.residual(f"residual-{name}")
    work = maker.work
    as_torch_runs(work, llm, plan)
    repeat(work, plan)
    return work


def embedding_work(llm: LLM, plan: Plan) -> LayerWork:
    """The word (and learned position) embedding before the first layer."""
    maker = LayerMaker(llm, plan)
    size = 2.0 * maker.tokens * llm.hidden
    maker.memory("embedding", 2 * size, 0.0 if plan.adapter_rank else 3 * size, kernels=2)
    maker.leave("embedding-out")
    if llm.positions == "learned":
        maker.memory("embedding-positions", 2 * size / maker.split, size / maker.split)
    if maker.dropout:
        maker.memory("embedding-dropout", 2.5 * size / maker.split, 2.5 * size / maker.split)
    return maker.work


def head_work(llm: LLM, plan: Plan) -> LayerWork:
    """Final norm, output projection and loss after the last layer (never recomputed)."""
    maker = LayerMaker(llm, plan)
    maker.norm("norm-final")
    maker.enter("head-in")
    columns = llm.padded_vocab(plan.tp) // plan.tp
    maker.linear("head", maker.tokens, columns, llm.hidden, precision=maker.wide)
    # fp32 copy of the logits, their maximum, exponential, sum; backward: softmax minus one, cast.
    logits = float(maker.tokens * columns)
    maker.memory("loss", 22 * logits, 14 * logits, kernels=8)
    small = 4.0 * maker.tokens
    for name in ("loss-max", "loss-target", "loss-sum"):
        maker.collective(Collective(name, "tp", "all_reduce", small), None)
    return maker.work


def mtp_work(llm: LLM, plan: Plan) -> LayerWork:
    """The projection of a multi-token-prediction module (DeepSeek-V3, 2.2)."""
    maker = LayerMaker(llm, plan)
    maker.linear("mtp-projection", maker.tokens, llm.hidden // plan.tp, 2 * llm.hidden)
    return maker.work


class LayerMaker(AttentionMaker):
    """Adds the work of a layer's other blocks."""

    def mixer(self) -> None:
        """Mamba-2: projection in, convolution, chunked scan with its gate, norm, projection out.

        Tensor parallelism splits the heads and their groups. Context parallelism exchanges tokens
        for heads around convolution and scan (Megatron-Core, ``mamba_context_parallel.py``). The
        scan is not cheaper in fp8. Its share of the GPU's peak is assumed to be that of attention.
        """
        llm, plan, mamba = self.llm, self.plan, self.llm.mamba
        if mamba is None:  # pragma: no cover (a pattern with mixers has them)
            raise AssertionError
        inner, convolved = mamba.inner // plan.tp, mamba.convolved // plan.tp
        self.linear("mixer-in", self.tokens, mamba.projected // plan.tp, llm.hidden)
        self._tokens_for_heads("mixer-heads", mamba.projected // plan.tp)
        if plan.micro_batch > 1:  # batch and tokens are transposed, here and after the scan
            moved = 4.0 * self.tokens * (mamba.projected // plan.tp + inner)
            self.memory("mixer-transpose", moved, moved, kernels=2)
        size = 2.0 * self.tokens * convolved
        self.memory("mixer-conv", 2 * size, 5 * size)  # repeated in the backward pass
        share = self.tokens / plan.tp
        sizes = mamba.scan_bytes_per_token(self.element)
        (flops, again), (moved, back) = mamba.scan_flops_per_token, sizes
        scan = ("attention", share * flops, share * moved)
        self.work.forward.append(Operator("mixer-scan", *scan, kernels=5, precision=self.wide))
        scan = ("attention", share * again, share * back)
        name = "mixer-scan-backward"
        self.work.backward.append(Operator(name, *scan, kernels=15, precision=self.wide))
        self._tokens_for_heads("mixer-tokens", inner)
        size = 2.0 * self.tokens * inner
        self.memory("mixer-norm", 2 * size, 4 * size)
        self.linear("mixer-out", self.tokens, llm.hidden, inner)

    def delta_net(self) -> None:
        """Projection in, convolution, chunked rule with its norms, gated norm, projection out.

        Tensor and context parallelism as of :meth:`mixer` (Megatron-Core, ``gated_delta_net``).
        """
        llm, plan, delta = self.llm, self.plan, self.llm.delta
        if delta is None:  # pragma: no cover (a layer kind with DeltaNets has them)
            raise AssertionError
        values = delta.values // plan.tp
        self.linear("delta-in", self.tokens, delta.projected // plan.tp, llm.hidden)
        self._tokens_for_heads("delta-heads", delta.projected // plan.tp)
        size = 2.0 * self.tokens * (delta.convolved // plan.tp)
        self.memory("delta-conv", 2 * size, 5 * size)  # repeated in the backward pass
        share = self.tokens / plan.tp
        (flops, again), (moved, back) = (
            delta.rule_flops_per_token,
            delta.rule_bytes_per_token(self.element),
        )
        rule = ("attention", share * flops, share * moved)
        self.work.forward.append(Operator("delta-rule", *rule, kernels=7, precision=self.wide))
        rule = ("attention", share * again, share * back)
        name = "delta-rule-backward"
        self.work.backward.append(Operator(name, *rule, kernels=9, precision=self.wide))
        self._tokens_for_heads("delta-tokens", values)
        size = 2.0 * self.tokens * values
        self.memory("delta-norm", 3 * size, 5 * size)  # the result times its gate
        self.linear("delta-out", self.tokens, llm.hidden, values)

    def _tokens_for_heads(self, name: str, width: int) -> None:
        """Exchange ``width`` columns of this rank's tokens over the context-parallel ranks."""
        if self.plan.cp > 1:
            size = float(self.element * self.tokens * width)
            self.collective(
                Collective(name, "cp", "all_to_all", size),
                Collective(f"{name}-backward", "cp", "all_to_all", size),
            )

    def experts(self) -> None:
        """Router, dispatch, the experts of this rank, combine, and shared experts.

        Projections into and out of a latent width are not split over tp and lie around all of it
        (Megatron-Core d98e8a6, ``moe_layer.py``).
        """
        llm, plan = self.llm, self.plan
        moe = llm.moe
        if moe is None:  # pragma: no cover (a layer kind with experts has them)
            raise AssertionError
        local = max(1, self.tokens // plan.tp)  # experts have no tensor parallelism of their own
        self.linear("router", local, moe.experts, llm.hidden, precision=self.wide)
        routed = local * moe.top_k * min(1.0, moe.capacity or 1.0)
        width = moe.width(llm.hidden)
        elements = 2.0 * routed * width
        if moe.latent:
            self.linear("latent-down", local, moe.latent, llm.hidden)
        # Top-k, indices and sort of the router; copies into and out of the order of the experts.
        self.memory("router-topk", 16.0 * local * moe.experts, 8.0 * local * moe.experts, 8)
        self.memory("permute", 4 * elements, 4 * elements, kernels=4)
        if plan.ep > 1:
            # A rank receives a token once for all of its experts (DeepEP, 2025).
            size = self.element * local * width * places_visited(plan.ep, moe.top_k)
            for name in ("dispatch", "combine"):
                self.collective(
                    Collective(name, "ep", "dispatch", size, visits=moe.top_k),
                    Collective(f"{name}-backward", "ep", "dispatch", size, visits=moe.top_k),
                )
        here = moe.experts // plan.ep
        per_expert = max(1, round(routed * plan.ep / moe.experts))
        self.mlp("expert", per_expert, moe.ffn, batch=here, hidden=width)
        self.memory("unpermute", 4 * elements, 4 * elements, kernels=2)
        if moe.latent:
            self.linear("latent-up", local, llm.hidden, moe.latent)
        if plan.tp > 1 and not plan.sequence_parallel:
            # Each rank routed its part of the tokens, and all ranks need all tokens.
            size_all = float(self.element * self.tokens * llm.hidden)
            self.collective(
                Collective("experts-out", "tp", "all_gather", size_all),
                Collective("experts-out-backward", "tp", "all_gather", size_all),
            )
        if moe.shared_ffn:
            self.enter("shared-in")
            self.mlp("shared", self.tokens, moe.shared_ffn // plan.tp)
            self.leave("shared-out")
            size = 2.0 * local * llm.hidden
            if moe.shared_gate:  # a product with one column, and the result times it
                self.memory("shared-gate", 3 * size, 6 * size, kernels=3)
            self.memory("shared-add", 3 * size, 3 * size)
