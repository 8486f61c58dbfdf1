"""Operators of attention: projections, and a core that is fused, sparse or unfused."""

from __future__ import annotations

from typing import Any

from paceline.model.blocks import Indexer, LatentAttention
from paceline.model.compressed import COARSE, FINE, CompressedAttention, complete_entries
from paceline.model.layer_maker import WorkMaker
from paceline.model.operator_types import Collective, Operator


class AttentionMaker(WorkMaker):
    """Adds the work of attention."""

    def attention(self, window: int) -> None:
        """Projections and the core; multi-head latent attention has more projections."""
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
            rotated = 4.0 * self.tokens * heads * llm.qk_dim  # concatenated again, too
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

    def compressed_attention(self, kind: str) -> None:
        """Projections, pooled entries, an indexer's selection, the core (DeepSeek-V4).

        It follows transformers 5.24 (``deepseek_v4``), where no projection is split over tp. The
        core reads each key once, as a fused kernel does. No kernel's source was read.
        """
        llm, c = self.llm, self.llm.compressed
        if c is None:  # pragma: no cover (a layer kind with these blocks has it)
            raise AssertionError
        tokens, wide = self.tokens, llm.heads * llm.head_dim
        self.linear("q-down", tokens, c.q_rank, llm.hidden)
        self.linear("q-up", tokens, wide, c.q_rank)
        self.linear("kv", tokens, llm.head_dim, llm.hidden)
        size = 2.0 * tokens * (wide + llm.head_dim)
        self.memory("qk-norm", 2 * size, 3 * size, kernels=2)
        size = 2.0 * tokens * (2 * llm.heads + 1) * c.rope_dim  # of the result, too
        self.memory("rotary", 2 * size, 2 * size, kernels=3)
        if kind == COARSE:
            self._pool("entries", llm.head_dim, c.coarse)
        elif kind == FINE:
            self._pool("entries", 2 * llm.head_dim, c.fine)
            self._select(c)
        keys = c.keys(kind, llm.seq_len)
        flops = 4.0 * tokens * wide * keys
        moved = self.element * tokens * (2.0 * wide + 2 * llm.head_dim)
        for suffix, share in (("", 1.0), ("-backward", 2.5)):
            ops = self.work.backward if suffix else self.work.forward
            core = (share * flops, share * moved)
            name = f"core-attention{suffix}"
            ops.append(Operator(name, "attention", *core, precision=self.wide))
        group = wide // c.groups
        self.linear("projection-groups", tokens, c.group_rank, group, batch=c.groups)
        self.linear("projection", tokens, llm.hidden, c.groups * c.group_rank)

    def _pool(self, name: str, width: int, rate: int, *, detached: bool = False) -> None:
        """Entries of ``rate`` tokens: values and gates, and their softmax-weighted sum."""
        self.linear(name, self.tokens, 2 * width, self.llm.hidden, detached=detached)
        size = 2.0 * self.tokens * 2 * width
        self.memory(f"{name}-pool", size + size / (2 * rate), 2 * size + size / (2 * rate))

    def _select(self, c: CompressedAttention) -> None:
        """The indexer: its own entries, scores of all before a query, the best of them.

        Its inputs are detached and it learns from the kept entries, as in :meth:`_sparse_core`.
        """
        llm, tokens, s = self.llm, self.tokens, self.llm.seq_len
        inner = c.index_heads * c.index_dim
        seen, kept = c.entries(FINE, s), complete_entries(c.fine, s, c.top_k)
        self._pool("index-entries", 2 * c.index_dim, c.fine, detached=True)
        self.linear("index-q", tokens, inner, c.q_rank, detached=True)
        heads = c.index_heads
        self.linear("index-weights", tokens, heads, llm.hidden, precision=self.wide, detached=True)
        reads = self.element * (inner + c.index_dim)
        scores = (tokens * 2.0 * inner * seen, tokens * (reads + 4 * seen))
        back = (tokens * 6.0 * inner * kept, tokens * (2.5 * reads + 8 * kept))
        self.work.forward.append(
            Operator("index-scores", "attention", *scores, precision=self.wide)
        )
        topk = tokens * (4 * seen + 4 * c.top_k)
        self.work.forward.append(Operator("index-topk", "memory", 0.0, topk, kernels=2))
        wide = llm.heads * llm.head_dim
        loss = (
            tokens * 2.0 * wide * kept,
            tokens * (self.element * (wide + llm.head_dim) + 8 * kept),
        )
        self.work.forward.append(Operator("index-loss", "attention", *loss, precision=self.wide))
        self.work.backward.append(
            Operator("index-scores-backward", "attention", *back, precision=self.wide)
        )

    def _fused_core(self, heads: int, kv_heads: int, window: int) -> None:
        """FlashAttention: only unmasked pairs are computed; 2 products forward, 5 backward."""
        llm, plan = self.llm, self.plan
        s = llm.seq_len
        # Average number of keys of a query.
        pairs = float(s) if llm.bidirectional else llm.packed.computed_keys(window or s, s)
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
        """The indexer, then attention to the keys that it keeps, each with its own kernels.

        It follows Megatron-Core with fused kernels (d98e8a6, ``dsa.py``, ``absorbed_mla.py``,
        ``dsa_cudnn_kernels.py``). The indexer is not split over tp. All heads share the latent as
        their key and value: the up-projections are applied to queries and results instead. The
        indexer's loss compares its scores of the kept keys with the attention's scores, which are
        computed again. Its inputs are detached.
        """
        tokens, s, wide = self.tokens, self.llm.seq_len, self.wide
        seen, kept = (self.llm.packed.computed_keys(n, s) for n in (s, index.top_k))
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
        # Three of the five products have the width of keys, two the width of values.
        flops = 2.0 * heads * kept * (3 * key + 2 * latent.kv_rank)
        run("core-attention-backward", flops, 2.5 * widths, backward=True)
        run("index-scores-backward", 6.0 * inner * kept, 2.5 * reads + 8 * kept, backward=True)
        if self.plan.cp > 1:
            # The keys of both are gathered, for a query may keep any key.
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
