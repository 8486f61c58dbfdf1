"""The Mamba-2 mixer of hybrid models (Dao & Gu 2024, "Transformers are SSMs"), counted exactly.

Its tensors are those of Megatron-Core (d98e8a6, ``ssm/mamba_mixer.py``) and of transformers 5.23
(``NemotronHMamba2Mixer``). Its scan is the chunked one of mamba_ssm (``ssd_combined.py``). It saves
its inputs and its output and recomputes the rest in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.errors import ModelError
from paceline.model.field_checks import check_whole_number

#: Letters of a layer pattern: the block of each layer.
BLOCKS = {
    "M": "a Mamba-2 mixer",
    "G": "a gated DeltaNet",
    "*": "attention",
    "-": "an MLP",
    "E": "experts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """The Mamba-2 mixers of a model.

    Attributes:
        heads: heads of the state-space model.
        head_dim: channels of one head.
        state: width of the state of each channel.
        groups: groups of heads that share their B and C.
        conv: width of the causal convolution.
        chunk: tokens of one chunk of the scan.
    """

    heads: int
    head_dim: int = 64
    state: int = 128
    groups: int = 8
    conv: int = 4
    chunk: int = 128

    def __post_init__(self) -> None:
        for field in fields(self):
            check_whole_number(self, field.name, 1, "the Mamba-2 mixer")
        if self.heads % self.groups:
            raise ModelError(
                f"the Mamba-2 mixer's heads {self.heads} are not a multiple of its groups "
                f"{self.groups}",
                fields=("heads", "groups"),
            )

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels that the convolution runs over: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Columns of the input projection: z, x, B, C and dt."""
        return self.inner + self.convolved + self.heads

    def matmul(self, hidden: int) -> int:
        """Elements of the two projections."""
        return hidden * (self.projected + self.inner)

    def parameters(self, hidden: int) -> int:
        """Parameters of a mixer with its gated norm, without the block's norm."""
        # The convolution with its bias; dt_bias, A_log and D of each head; the gated norm.
        small = (self.conv + 1) * self.convolved + 3 * self.heads + self.inner
        return self.matmul(hidden) + small

    @property
    def model_flops_per_token(self) -> float:
        """FLOPs of the recurrence, forward, as Megatron-LM counts them (``training.py``)."""
        return 7.0 * self.inner * self.state

    @property
    def scan_flops_per_token(self) -> tuple[float, float]:
        """(forward, backward) FLOPs of the chunked scan's products (Dao & Gu 2024, 6).

        Forward per chunk: scores of C and B, their product with x, the chunk's state from B and x,
        and the output of the incoming state. Backward: 3 products for the scores, 3 for their
        product with x, 5 for the state.
        """
        scores = 2.0 * self.chunk * self.state * self.groups
        within = 2.0 * self.chunk * self.inner
        states = 2.0 * self.state * self.inner
        return scores + within + 2 * states, 3 * scores + 3 * within + 5 * states

    def scan_bytes_per_token(self, element: int) -> tuple[float, float]:
        """(forward, backward) bytes that the scan's kernels move, each tensor once per kernel.

        They follow ``_mamba_chunk_scan_combined_fwd`` and ``_bwd`` of mamba_ssm. States of chunks
        and scores are in fp32 and passed on in ``element`` bytes. dt and its sums are too narrow to
        count.
        """
        channels = element * self.inner
        shared = element * self.groups * self.state
        score = 4.0 * self.groups * self.chunk
        state = self.inner * self.state / self.chunk
        # Chunk states write 4 bytes. Passing them on reads these and writes elements, which are
        # read.
        forward = 5 * channels + 4 * shared + 2 * score + (8 + 2 * element) * state
        # States again: 12 bytes. Their gradient: 4 written, 8 passed back, elements twice, 3 reads.
        wide = 4.0 * self.groups * self.state  # gradients of B and C before they are summed
        of_states = (24 + 5 * element) * state
        backward = 17 * channels + 11 * shared + 4 * wide + 6 * score + of_states
        return forward, backward


def check_pattern(pattern: object, where: str, field: str = "pattern") -> None:
    """Refuse a layer pattern with letters that are not in :data:`BLOCKS`.

    Raises:
        ModelError: it has.
    """
    letters = ", ".join(f"{letter} ({name})" for letter, name in BLOCKS.items())
    if not isinstance(pattern, str):
        raise ModelError(f"{where}: {field} must be a text of {letters}", fields=(field,))
    wrong = [letter for letter in pattern if letter not in BLOCKS]
    if wrong:
        raise ModelError(
            f"{where}: {field} has {wrong[0]!r} at {pattern.index(wrong[0]) + 1}; a layer is one "
            f"of {letters}",
            fields=(field,),
        )
