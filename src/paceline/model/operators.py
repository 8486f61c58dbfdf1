"""Computes and messages of one GPU for one microbatch, operator by operator.

Counts only: shapes, FLOPs, bytes; ``compute`` and ``network`` turn them into seconds. Tensors are
named as in Shoeybi et al. 2019 (Megatron-LM) and Korthikanti et al. 2022.
"""

from __future__ import annotations

from typing import Any

from paceline.model.blocks import Indexer, LatentAttention, mean_keys
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
        name = {"*": "attention", "M": "mixer", "G": "delta"}.get(block, "mlp")
        maker.norm(f"norm-{name}")
        if block == "E":
            maker.experts()
        else:
            maker.enter(f"{name}-in")
            if block == "*":
                maker.attention(kind.window)
            elif block == "M":
                maker.mixer()
            elif block == "G":
                maker.delta_net()
            else:
                maker.mlp("mlp", maker.tokens, llm.ffn // plan.tp)
            maker.leave(f"{name}-out")
        if llm.post_norms:
            maker.norm(f"norm-{name}-behind")
        maker.residual(f"residual-{name}")
    work = maker.work
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
    """Final norm, output projection and loss behind the last layer (never recomputed)."""
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


class LayerMaker:
    """Collects the work of one layer."""

    def __init__(self, llm: LLM, plan: Plan) -> None:
        self.llm, self.plan = llm, plan
        self.work = LayerWork()
        self.tokens = plan.micro_batch * llm.seq_len // plan.cp
        # Sequence parallelism splits what tensor parallelism repeats.
        self.split = plan.tp if plan.sequence_parallel else 1
        self.dropout = llm.dropout
        self.wide = "bf16" if plan.quantised else plan.precision
        self.element = plan.element_bytes  # bytes of an activation

    def memory(self, name: str, forward: float, backward: float, kernels: int = 1) -> None:
        """Element-wise kernels that move these bytes (given for 2-byte elements)."""
        scale = self.element / 2
        if forward:
            self.work.forward.append(
                Operator(name, "memory", 0.0, forward * scale, kernels=kernels)
            )
        if backward:
            self.work.backward.append(
                Operator(f"{name}-backward", "memory", 0.0, backward * scale, kernels=kernels)
            )

    def collective(self, forward: Collective | None, backward: Collective | None) -> None:
        if self.plan.tp == 1 and (forward or backward).part == "tp":  # type: ignore[union-attr]  # one of them is given
            return
        if forward is not None:
            self.work.forward.append(forward)
        if backward is not None:
            self.work.backward.append(backward)

    def norm(self, name: str) -> None:
        """LayerNorm or RMSNorm: read and write; backward reads input and gradient, writes one."""
        size = 2.0 * self.tokens * self.llm.hidden / self.split
        self.memory(name, 2 * size, 4 * size, kernels=1)

    def residual(self, name: str) -> None:
        """Bias, dropout and residual addition in one kernel (GPT), or the addition alone."""
        size = 2.0 * self.tokens * self.llm.hidden / self.split
        forward, backward = (3.5, 5.5) if self.dropout else (3.0, 3.0)
        self.memory(name, forward * size, backward * size)

    def enter(self, name: str) -> None:
        """The activations enter tensor-parallel operators: Megatron's f, or its g-bar."""
        self._tensor_parallel(name, into=True)

    def leave(self, name: str) -> None:
        """Partial results leave them: Megatron's g, or its g-bar's conjugate."""
        self._tensor_parallel(name, into=False)

    def _tensor_parallel(self, name: str, *, into: bool) -> None:
        size = float(self.element * self.tokens * self.llm.hidden)
        behind = "*" if self.plan.overlap_tp else ""
        if self.plan.sequence_parallel:
            first, second = ("all_gather", "reduce_scatter")[:: 1 if into else -1]
            self.collective(
                Collective(name, "tp", first, size, behind),
                Collective(f"{name}-backward", "tp", second, size, behind),
            )
            # The input was kept in shards: gathered once more for the weights' gradient.
            if into and not self.plan.adapter_rank:
                repeated = Collective(f"{name}-again", "tp", "all_gather", size, "*")
                self.collective(None, repeated)
        elif into:
            # The all-reduce of the input's gradient runs beside the weights' gradient.
            beside = Collective(f"{name}-backward", "tp", "all_reduce", size, behind)
            self.collective(None, beside)
        else:
            self.collective(Collective(name, "tp", "all_reduce", size, behind), None)

    def linear(
        self,
        name: str,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        precision: str = "",
        detached: bool = False,
    ) -> None:
        """A product y = x w: one product forward, two backward (gradients of x and of w).

        A batch is that of experts, for each of which the host launches its own kernels
        (Transformer Engine's GroupedLinear), but where they are fused; or of heads, in one kernel.
        A ``detached`` input gets no gradient.
        """
        of_experts = name.startswith("expert-")
        fused = of_experts and self.plan.fused_experts
        kernels = batch if of_experts and not fused else 1
        precision = precision or self.plan.precision
        quantised = precision == self.plan.precision and self.plan.quantised
        input_bytes = self.plan.input_bytes if quantised else self.element
        flops = 2.0 * m * n * k * batch
        x, w, y = m * k * batch, k * n * batch, m * n * batch
        if quantised and fused:
            self._cast_fused(name, x, y)
        elif quantised:
            # Read to find the largest, read to scale and cast, write that, once more transposed.
            # NVFP4 with a Hadamard transform has as many passes (Transformer Engine d0067d0,
            # ``NVFP4Quantizer::quantize_impl``).
            passes = 2 * self.element + 2 * input_bytes
            self.memory(f"{name}-cast", passes * x, passes * y, kernels=2 * batch)
        grads = 2 * self.plan.grad_bytes * w  # accumulated in place
        self.work.forward.append(
            Operator(
                name,
                "gemm",
                flops,
                input_bytes * (x + w) + self.element * y,
                m,
                n,
                k,
                batch,
                kernels,
                precision,
            )
        )
        dgrad = input_bytes * (y + w) + self.element * x
        shape = (m, k, n, batch, kernels, precision)
        if not detached:
            self.work.backward.append(Operator(f"{name}-dgrad", "gemm", flops, dgrad, *shape))
        if self.plan.adapter_rank:  # frozen
            return
        self.work.backward.append(
            Operator(
                f"{name}-wgrad",
                "gemm",
                flops,
                input_bytes * (x + y) + grads,
                k,
                n,
                m,
                batch,
                kernels,
                precision,
            )
        )

    def _cast_fused(self, name: str, x: int, y: int) -> None:
        """Inputs of fused experts are cast at once; in between, products write cast values.

        Block scales need no maximum of the whole: one read, two writes.
        """
        passes = self.element + 2 * self.plan.input_bytes
        if name.endswith("-up"):
            self.memory(f"{name}-cast", passes * x, 0.0)
        else:
            self.memory(f"{name}-cast", 0.0, passes * y)

    def adapter(self, name: str, n: int, k: int) -> None:
        """A LoRA adapter beside a product: down to its rank, up again, and an addition.

        Thin products move bytes only: the input twice (forward; gradient of the down projection),
        the output three times to add it.
        """
        if not self.plan.adapter_rank:
            return
        x, y = 2.0 * self.tokens * k, 2.0 * self.tokens * n
        self.memory(f"{name}-adapter", x + 3 * y, 3 * x + 2 * y, kernels=4)

    def attention(self, window: int) -> None:
        """Projections and the core; multi-head latent attention has a longer way in."""
        llm, plan = self.llm, self.plan
        heads = llm.heads // plan.tp
        kv_heads = max(1, llm.kv_heads // plan.tp)
        if llm.latent is None:
            gate = heads if llm.gated_attention else 0
            columns = (heads + gate + 2 * kv_heads) * llm.head_dim
            self.linear("qkv", self.tokens, columns, llm.hidden)
            self.adapter("qkv", columns, llm.hidden)
            rotated = 2.0 * self.tokens * (heads + kv_heads) * llm.head_dim
        else:
            latent = llm.latent
            local = self.tokens // self.split  # down-projections are not split over tp
            if latent.q_rank:
                self.linear("q-down", local, latent.q_rank, llm.hidden)
                self.linear("q-up", self.tokens, heads * llm.qk_dim, latent.q_rank)
            else:
                self.linear("q", self.tokens, heads * llm.qk_dim, llm.hidden)
            self.linear("kv-down", local, latent.kv_rank + latent.rope_dim, llm.hidden)
            if llm.index is None:
                expanded = heads * (latent.nope_dim + latent.value_dim)
                self.linear("kv-up", self.tokens, expanded, latent.kv_rank)
            rotated = 4.0 * self.tokens * heads * llm.qk_dim  # concatenated anew, too
        if llm.positions == "rotary":
            self.memory("rotary", 2 * rotated, 2 * rotated, kernels=2)
        if llm.qk_norm:
            self.memory("qk-norm", 2 * rotated, 3 * rotated, kernels=2)
        if llm.index is not None and llm.latent is not None:
            self._sparse_core(heads, llm.latent, llm.index)
        elif plan.flash:
            self._fused_core(heads, kv_heads, window)
        else:
            self._unfused_core(heads)
        if llm.gated_attention:
            size = 2.0 * self.tokens * heads * llm.value_dim
            self.memory("attention-gate", 3 * size, 5 * size)
        self.linear("projection", self.tokens, llm.hidden, heads * llm.value_dim)
        self.adapter("projection", llm.hidden, heads * llm.value_dim)

    def _fused_core(self, heads: int, kv_heads: int, window: int) -> None:
        """FlashAttention: only what is unmasked is computed; backward has 5 products to 2."""
        llm, plan = self.llm, self.plan
        s = llm.seq_len
        reach = min(window or s, s)
        # Keys that a query meets, on average.
        pairs = float(s) if llm.bidirectional else reach * (1 - reach / (2 * s))
        widths = llm.qk_dim + llm.value_dim
        flops = 2.0 * self.tokens * heads * pairs * widths
        per_token = heads * widths + (kv_heads if llm.latent is None else heads) * widths
        size = self.element * self.tokens * per_token
        self.work.forward.append(
            Operator("core-attention", "attention", flops, size, precision=self.wide)
        )
        self.work.backward.append(
            Operator(
                "core-attention-backward",
                "attention",
                2.5 * flops,
                2.5 * size,
                kernels=3,
                precision=self.wide,
            )
        )
        if plan.cp > 1:
            # Keys and values travel around the ring while a block is computed (Liu et al. 2023).
            travel = self.element * self.tokens * kv_heads * widths * (plan.cp - 1)
            self.collective(
                Collective("ring", "cp", "p2p", travel, "core-attention"),
                Collective("ring-backward", "cp", "p2p", 2 * travel, "core-attention-backward"),
            )

    def _sparse_core(self, heads: int, latent: LatentAttention, index: Indexer) -> None:
        """The indexer, then attention to the keys it keeps, with kernels of their own.

        As Megatron-Core runs it with fused kernels (d98e8a6, ``dsa.py``, ``absorbed_mla.py``,
        ``dsa_cudnn_kernels.py``). The indexer is not split over tp. All heads share the latent as
        their key and value: the up-projections are applied to queries and results instead.
        The indexer's loss compares its scores of the kept keys with the attention's, which are
        computed once more; its inputs are detached.
        """
        tokens, s, wide = self.tokens, self.llm.seq_len, self.wide
        seen, kept = mean_keys(s, s), mean_keys(index.top_k, s)
        inner, key = index.heads * index.head_dim, latent.kv_rank + latent.rope_dim
        self.linear("index-q", tokens, inner, latent.q_rank or 0, detached=True)
        self.linear("index-key", tokens, index.head_dim, self.llm.hidden, detached=True)
        self.linear(
            "index-weights", tokens, index.heads, self.llm.hidden, precision=wide, detached=True
        )
        moved = 4.0 * tokens * (inner + index.head_dim)  # rotated
        self.memory("index-rotary", moved, moved, kernels=2)

        def run(name: str, flops: float, moved: float, backward: bool = False) -> None:
            ops = self.work.backward if backward else self.work.forward
            ops.append(Operator(name, "attention", tokens * flops, tokens * moved, precision=wide))

        reads = self.element * (inner + index.head_dim)
        run("index-scores", 2.0 * inner * seen, reads + 4 * seen)
        topk = float(tokens * (4 * seen + 4 * index.top_k))
        self.work.forward.append(Operator("index-topk", "memory", 0.0, topk, kernels=2))
        absorbed: Any = {"batch": heads, "precision": wide}
        self.linear("absorb-key", tokens, latent.kv_rank, latent.nope_dim, **absorbed)
        widths = self.element * (heads * (key + latent.kv_rank) + key)
        run("core-attention", 2.0 * heads * kept * (key + latent.kv_rank), widths)
        run("index-loss", 2.0 * heads * kept * key, self.element * (heads + 1) * key + 8 * kept)
        self.linear("absorb-value", tokens, latent.value_dim, latent.kv_rank, **absorbed)
        # Of the five products three are as wide as keys, two as values.
        flops = 2.0 * heads * kept * (3 * key + 2 * latent.kv_rank)
        run("core-attention-backward", flops, 2.5 * widths, backward=True)
        run("index-scores-backward", 6.0 * inner * kept, 2.5 * reads + 8 * kept, backward=True)
        if self.plan.cp > 1:
            # Keys of both are gathered: a query may keep any.
            size = float(self.element * tokens * self.plan.cp * (key + index.head_dim))
            self.collective(
                Collective("keys", "cp", "all_gather", size),
                Collective("keys-backward", "cp", "reduce_scatter", size),
            )

    def _unfused_core(self, heads: int) -> None:
        """Scores in memory: products, fused scale-mask-softmax, dropout (Megatron-LM)."""
        llm, plan = self.llm, self.plan
        s, b = llm.seq_len, plan.micro_batch
        batch = b * heads
        scores = float(batch * s * s)

        def product(name: str, m: int, n: int, k: int) -> Operator:
            flops = 2.0 * batch * m * n * k
            bytes_moved = self.element * batch * (m * n + k * (m + n))
            return Operator(name, "attention", flops, bytes_moved, m, n, k, batch, 1, self.wide)

        self.work.forward.append(product("core-scores", s, s, llm.qk_dim))
        self.memory("core-softmax", 4 * scores, 6 * scores)
        if self.dropout:
            self.memory("core-dropout", 5 * scores, 5 * scores)
        self.work.forward.append(product("core-values", s, llm.value_dim, s))
        self.work.backward.extend(
            [
                product("core-scores-dgrad", s, llm.qk_dim, s),
                product("core-scores-wgrad", s, llm.qk_dim, s),
                product("core-values-dgrad", s, s, llm.value_dim),
                product("core-values-wgrad", s, llm.value_dim, s),
            ]
        )

    def mixer(self) -> None:
        """Mamba-2: projection in, convolution, chunked scan with its gate, norm, projection out.

        Tensor parallelism splits the heads and their groups. Context parallelism exchanges tokens
        for heads around convolution and scan (Megatron-Core, ``mamba_context_parallel.py``). The
        scan is no cheaper in fp8. Its share of the GPU's peak is taken to be that of attention.
        """
        llm, plan, mamba = self.llm, self.plan, self.llm.mamba
        if mamba is None:  # pragma: no cover (a pattern with mixers has them)
            raise AssertionError
        inner, convolved = mamba.inner // plan.tp, mamba.convolved // plan.tp
        self.linear("mixer-in", self.tokens, mamba.projected // plan.tp, llm.hidden)
        self._tokens_for_heads("mixer-heads", mamba.projected // plan.tp)
        if plan.micro_batch > 1:  # batch and tokens change places, here and after the scan
            moved = 4.0 * self.tokens * (mamba.projected // plan.tp + inner)
            self.memory("mixer-transpose", moved, moved, kernels=2)
        size = 2.0 * self.tokens * convolved
        self.memory("mixer-conv", 2 * size, 5 * size)  # once more in the backward pass
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
        self.memory("delta-conv", 2 * size, 5 * size)  # once more in the backward pass
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
        self.memory("delta-norm", 3 * size, 5 * size)  # of the result, times its gate
        self.linear("delta-out", self.tokens, llm.hidden, values)

    def _tokens_for_heads(self, name: str, width: int) -> None:
        """Exchange ``width`` columns of this rank's tokens over the context-parallel ranks."""
        if self.plan.cp > 1:
            size = float(self.element * self.tokens * width)
            self.collective(
                Collective(name, "cp", "all_to_all", size),
                Collective(f"{name}-backward", "cp", "all_to_all", size),
            )

    def mlp(self, name: str, tokens: int, width: int, *, batch: int = 1, hidden: int = 0) -> None:
        """Two linears (three when gated) around the activation; ``batch`` experts at once."""
        llm, hidden = self.llm, hidden or self.llm.hidden
        up = 2 * width if llm.gated else width
        self.linear(f"{name}-up", tokens, up, hidden, batch=batch)
        if name != "expert" or not self.plan.fused_experts:
            through = 2.0 * tokens * batch
            self.memory(f"{name}-activation", through * (up + width), through * (2 * up + width))
        self.linear(f"{name}-down", tokens, hidden, width, batch=batch)

    def experts(self) -> None:
        """Router, dispatch, the experts of this rank, combine; shared experts beside them.

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
            # A rank receives a token once, however many of its experts want it (DeepEP, 2025).
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
            # Each rank routed its part of the tokens; all of them need all.
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
