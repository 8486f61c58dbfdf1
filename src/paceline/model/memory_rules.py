"""Rules for memory that depends on the training software.

The defaults follow Megatron-Core up to ZeRO-2 and FSDP2 at ZeRO-3. They were read in these sources:
Megatron-Core d98e8a64 (2026-08), Transformer Engine d0067d0d (2026-08), torchtitan ba246978
(2024-12) and b5bcd76c (2026-08), Megatron-Bridge 067f987d (2026-08). ``trainer`` names others, for
which launch files are written; ``trainer_memory`` has their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from paceline.errors import ModelError
from paceline.model.plan import Plan

Loss = Literal["unfused", "in-place", "fused", "chunked"]
Selective = Literal["norms", "per-op"]
Trainer = Literal["torchtitan", "deepspeed", "accelerate"]
#: Whether a plan fits with any allocator, only with expandable segments, or not at all.
Fit = Literal["yes", "expandable segments", "no"]

#: Loss -> bytes per logit that are held until the backward, and at the peak of the loss. Unfused
#: (eager PyTorch: ``cross_entropy(logits.float())``): log-softmax, its gradient and the logits' in
#: fp32; a test counts them. In place (Megatron-Core, ``tensor_parallel/cross_entropy.py``): one
#: fp32 copy that becomes softmax and gradient, logits in bf16. Fused (``torch.compile``, Liger):
#: logits and gradient in bf16. Chunked: fused, an eighth of the tokens at a time.
LOSS_BYTES = MappingProxyType(
    {"unfused": (4.0, 12.0), "in-place": (4.0, 6.0), "fused": (2.0, 4.0), "chunked": (0.0, 0.5)}
)

#: Bytes per logit of the model's output, which a script holds beside the loss of transformers.
OUTPUT_BYTES = 2.0

#: Bytes of Adam per parameter: fp32 master copy and two moments (Rajbhandari et al. 2020).
OPTIMIZER_BYTES = 12.0

#: Reserved over allocated bytes of PyTorch's allocator, in torchtitan's runs with expandable
#: segments. It is the only fitted number here (shared torchtitan rows of ``docs/accuracy.md``).
FRAGMENTATION = 1.17

#: Default share of a GPU's memory that plans leave free, for fragmentation and unmodelled memory.
RESERVE = 0.08

#: The same without expandable segments, the default of PyTorch's allocator (torch 2.13,
#: ``CUDAAllocatorConfig``). Free pieces of two segments cannot be joined, so memory can run out
#: while much of it is free. One measured job (Llama 3 70B, tp 4, pp 4, vpp 5, H100 of 80 GB;
#: ``memory_peaks.csv``, mb-70b-0) failed at a peak of 58.8 GB. Megatron-Bridge calls it
#: "segmentation penalties" (067f987, its performance guide).
FIXED_SEGMENTS_RESERVE = 1 - 58.8 / 80

#: Launch files set this variable; the README of Megatron-Core's ``transformer/moe``
#: sets it, too.
EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Memory use of a job's software; None and 0 stand for the defaults of the plan.

    Attributes:
        loss: how cross entropy is computed: "unfused" (eager PyTorch), "in-place" (Megatron-Core),
            "fused" (compiled, or Liger), "chunked" (an eighth of the tokens at a time).
        weight_bytes: bytes of a weight that layers compute with; 1 if only its fp8 copy is held
            (fp8 parameter gather on Blackwell; Hopper also holds its transpose).
        optimizer_bytes: bytes of Adam's states; 8 with moments in bf16.
        selective: effect of ``recompute: selective``: "norms" (norms and activations), "per-op"
            (torchtitan: all except every second product and fused attention).
        fp8_activation: the gated activation's input is stored in fp8
            (``activation_func_fp8_input_store``).
        reserve: share of a GPU's memory that is left free; at least 0.265 without expandable
            segments.
        expandable_segments: whether the job sets :data:`EXPANDABLE_SEGMENTS`; None = unknown.
        trainer: the software whose modules, loss and buffers count; None = the defaults.

    Raises:
        ModelError: a value is out of range.
    """

    loss: Loss | None = None
    weight_bytes: float | None = None
    optimizer_bytes: float = OPTIMIZER_BYTES
    selective: Selective | None = None
    fp8_activation: bool = False
    reserve: float = RESERVE
    expandable_segments: bool | None = None
    trainer: Trainer | None = None

    def __post_init__(self) -> None:
        kinds = (("loss", Loss), ("selective", Selective), ("trainer", Trainer))
        for name, words in ((name, get_args(kind)) for name, kind in kinds):
            value = getattr(self, name)
            if value is not None and value not in words:
                raise ModelError(f"{name} must be one of {', '.join(words)}, not {value!r}")
        if not 0 <= self.reserve < 1:
            raise ModelError(
                f"reserve is a share of the memory from 0 to below 1, not {self.reserve:g}",
                fields=("reserve",),
            )

    def loss_of(self, plan: Plan) -> tuple[float, float]:
        """Bytes per logit that are held until the backward, and at the peak of the loss."""
        if self.loss is not None:
            return LOSS_BYTES[self.loss]
        if self.eager(plan):
            held, peak = LOSS_BYTES["unfused"]
            return held + OUTPUT_BYTES, peak + OUTPUT_BYTES
        if self.trainer is not None:
            return LOSS_BYTES["fused"]
        return LOSS_BYTES["unfused" if is_fsdp(plan) else "in-place"]

    def selective_of(self, plan: Plan) -> Selective:
        """Operators that selective recomputation repeats."""
        return self.selective or ("per-op" if self.torch_modules(plan) else "norms")

    def torch_modules(self, plan: Plan) -> bool:
        """Whether layers are modules of plain PyTorch, not Megatron-Core's."""
        return self.trainer is not None or is_fsdp(plan)

    @property
    def transformers(self) -> bool:
        """Whether the trainer runs models of Hugging Face transformers."""
        return self.trainer in ("deepspeed", "accelerate")

    def eager(self, plan: Plan) -> bool:
        """Whether modules and loss of transformers run eagerly."""
        return self.transformers and plan.kernels != "compiled"

    def autocast(self, plan: Plan) -> bool:
        """Whether weights in fp32 are cast at each product (``torch.autocast``)."""
        narrow = plan.element_bytes < 4 and not plan.adapter_rank
        return self.trainer == "accelerate" and plan.zero == 0 and narrow

    @property
    def safe_reserve(self) -> float:
        """Share to leave free for a certain fit: for fixed segments, unless the job sets others."""
        return self.reserve if self.expandable_segments else self._fixed_reserve

    @property
    def least_reserve(self) -> float:
        """Share to leave free at least: for expandable segments, unless the job has fixed ones."""
        return self._fixed_reserve if self.expandable_segments is False else self.reserve

    @property
    def _fixed_reserve(self) -> float:
        return max(self.reserve, FIXED_SEGMENTS_RESERVE)

    def room(self, memory_bytes: float) -> float:
        """Bytes that a plan may fill for a certain fit."""
        return memory_bytes * (1.0 - self.safe_reserve)

    def most_room(self, memory_bytes: float) -> float:
        """Most bytes that a plan may fill."""
        return memory_bytes * (1.0 - self.least_reserve)

    def fit(self, needed_bytes: float, memory_bytes: float) -> Fit:
        """Whether these bytes fit."""
        if needed_bytes <= self.room(memory_bytes):
            return "yes"
        return "expandable segments" if needed_bytes <= self.most_room(memory_bytes) else "no"


def is_fsdp(plan: Plan) -> bool:
    """Whether PyTorch's FSDP2 runs the plan: parameters are sharded over some ranks."""
    return plan.zero == 3


DEFAULT_RULES = MemoryRules()
