"""A stage of a GPT small enough for one thread, and its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, SEQUENCE, ROWS = 64, 32, 2, 2, 16, 1


class Stage(nn.Module):
    """The layers of one pipeline stage; the first embeds tokens, the last gives logits."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__()
        torch.manual_seed(1)  # equal initial layers on all replicas, independent of the stages
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Embedding(SEQUENCE, WIDTH)
        size = LAYERS // stages
        self.blocks = nn.ModuleList(_block(stage * size + i) for i in range(size))
        if self.is_last:
            torch.manual_seed(2)
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(SEQUENCE)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Any) -> Any:
        """Tokens [row, place] or hidden states [row, place, width] -> hidden states or logits."""
        if self.is_first:
            x = self.tokens(x) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return self.head(self.norm(x)) if self.is_last else x


def _block(layer: int) -> nn.Module:
    torch.manual_seed(1000 + layer)
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )


def microbatch(step: int, number: int) -> Any:
    """Tokens [row, place + 1], equal on all ranks: sums of the two before, with noise."""
    random = torch.Generator().manual_seed(step * 1_000_003 + number)
    tokens = torch.randint(0, VOCABULARY, (ROWS, SEQUENCE + 1), generator=random)
    for place in range(2, SEQUENCE + 1):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % VOCABULARY
    return tokens
