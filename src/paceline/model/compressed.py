"""Compressed attention and residual streams (DeepSeek-V4), counted as in transformers 5.24.

``deepseek_v4/modular_deepseek_v4.py`` there. A query meets the tokens of a window, and pooled
entries of all tokens before it. Keys and values are one vector, shared by all heads.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from paceline.errors import ModelError
from paceline.model.blocks import mean_keys
from paceline.model.field_checks import check_whole_number

#: Letters of attention blocks: the window alone, fine entries that an indexer selects, all coarse
#: entries ("sliding", "compressed sparse" and "heavily compressed" attention).
WINDOW, FINE, COARSE = KINDS = ("W", "F", "C")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Attention to a window and to pooled entries.

    Attributes:
        layers: a letter of :data:`KINDS` for each layer of the model.
        q_rank: rank of the queries' down-projection.
        rope_dim: columns of a head with rotary positions.
        window: tokens that a query sees itself.
        groups: groups of heads with a first output projection of their own.
        group_rank: columns of a group after it.
        fine: tokens of a fine entry. It also pools the entry's predecessor, from a projection of
            its own.
        coarse: tokens of a coarse entry.
        index_heads: query heads of the indexer, which has fine entries of its own.
        index_dim: width of these heads.
        top_k: fine entries that a query keeps.
    """

    layers: str
    q_rank: int
    rope_dim: int
    window: int
    groups: int
    group_rank: int
    index_heads: int
    index_dim: int
    top_k: int
    fine: int = 4
    coarse: int = 128

    def __post_init__(self) -> None:
        if not isinstance(self.layers, str) or not self.layers or set(self.layers) - {*KINDS}:
            raise ModelError(
                f"the compressed attention's layers are letters {', '.join(KINDS)}, not "
                f"{reprlib.repr(self.layers)}",
                fields=("layers",),
            )
        sizes = ("q_rank", "rope_dim", "window", "groups", "group_rank", "index_heads")
        for field in (*sizes, "index_dim", "top_k", "fine", "coarse"):
            check_whole_number(self, field, 1, "the compressed attention")

    def matmul(self, kind: str, hidden: int, heads: int, head_dim: int) -> int:
        """Elements of one layer's matrices."""
        wide = heads * head_dim
        queries = self.q_rank * (hidden + wide)
        out = self.group_rank * (wide + self.groups * hidden)
        return queries + hidden * head_dim + out + self._pooled(kind, hidden, head_dim)

    def _pooled(self, kind: str, hidden: int, head_dim: int) -> int:
        if kind == WINDOW:
            return 0
        if kind == COARSE:
            return 2 * hidden * head_dim
        return 4 * hidden * head_dim + self.index_matmul(hidden)

    def index_matmul(self, hidden: int) -> int:
        """Elements of one indexer's matrices: entries and their gates, queries, head weights."""
        queries = self.q_rank * self.index_heads * self.index_dim
        return hidden * (4 * self.index_dim + self.index_heads) + queries

    def parameters(self, kind: str, hidden: int, heads: int, head_dim: int) -> int:
        """Parameters of one layer: matrices, norms, sinks, biases of positions within an entry."""
        count = self.matmul(kind, hidden, heads, head_dim) + self.q_rank + head_dim + heads
        if kind == COARSE:
            return count + (self.coarse + 1) * head_dim
        if kind == FINE:
            return count + (2 * self.fine + 1) * (head_dim + self.index_dim)
        return count

    def entries(self, kind: str, seq_len: float) -> float:
        """Entries before a query that are complete, on average; for an indexer those it scores."""
        if kind == WINDOW:
            return 0.0
        return complete_entries(self.coarse if kind == COARSE else self.fine, seq_len)

    def keys(self, kind: str, seq_len: float) -> float:
        """Keys of a query on average: the window and the entries that it keeps."""
        kept = self.entries(kind, seq_len)
        if kind == FINE:
            kept = complete_entries(self.fine, seq_len, self.top_k)
        return mean_keys(self.window, seq_len) + kept

    def model_flops_per_token(
        self, kind: str, hidden: int, heads: int, head_dim: int, seq_len: float
    ) -> float:
        """FLOPs of one layer's products beside its matrices, forward and backward, unmasked alone.

        Two products of attention. For an indexer, scores of all entries, and the gradients of
        those it keeps. Its inputs are detached, so a third of its matrices' 6 FLOPs is not there.
        """
        flops = 12.0 * heads * head_dim * self.keys(kind, seq_len)
        if kind != FINE:
            return flops
        kept = complete_entries(self.fine, seq_len, self.top_k)
        pairs = self.entries(kind, seq_len) + 2 * kept
        scores = 2.0 * self.index_heads * self.index_dim * pairs
        return flops + scores - 2.0 * self.index_matmul(hidden)


def complete_entries(rate: int, seq_len: float, top_k: float = float("inf")) -> float:
    """Mean over a sample of the complete entries of ``rate`` tokens at a token, at most ``top_k``.

    A token ends the j-th entry if it is token j ``rate``.
    """
    full = min(top_k, seq_len // rate)
    # 1, 2, ... full - 1 entries for ``rate`` tokens each, then ``full`` to the end.
    return full * ((full - 1) * rate / 2 + seq_len - full * rate + 1) / seq_len


def stream_maps(streams: int) -> int:
    """Numbers that weigh the residual streams around a block: into it, out of it, one another."""
    return streams * (streams + 2)


def stream_parameters(streams: int, hidden: int) -> int:
    """Parameters of one block's hyper-connection (Xie et al. 2026); 0 with a single stream."""
    if streams == 1:
        return 0
    return stream_maps(streams) * (streams * hidden + 1) + 3


def end_stream_parameters(streams: int, hidden: int) -> int:
    """Parameters of the weighted sum of all streams before the final norm."""
    return 0 if streams == 1 else streams * (streams * hidden + 1) + 1


def stream_flops(streams: int, hidden: int) -> float:
    """FLOPs per token of one block's maps and of mixing the streams, forward and backward."""
    if streams == 1:
        return 0.0
    return 6.0 * (stream_maps(streams) + streams) * streams * hidden
