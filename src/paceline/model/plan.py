"""The plan: the split of a model over GPUs and the schedule of its step."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, get_args

from paceline.errors import PlanError
from paceline.model.field_checks import MAX_FIELD
from paceline.model.llm import LLM

Schedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev", "dualpipe"]
Recompute = Literal["none", "selective", "full"]
#: Megatron-Core's names (d98e8a6, ``transformer_config.py``) of what selective recomputation may
#: repeat; those of DeltaNets and hyper-connections are not modelled.
RECOMPUTE_MODULES = (
    *("core_attn", "layernorm", "moe_act", "mla_up_proj"),
    *("mlp", "moe", "shared_experts"),
)
Kernels = Literal["auto", "fused", "compiled", "eager"]
Precision = Literal["fp32", "fp16", "bf16", "fp8", "nvfp4"]

#: Schedules that split the backward (``graph.zero_bubble``) -> chunks of the model on a stage.
SPLIT_SCHEDULES = MappingProxyType({"zb-h1": 1, "zbv": 2, "dualpipev": 2, "dualpipe": 1})
#: Schedules that overlap a forward with a backward.
OVERLAPPING = ("dualpipev", "dualpipe")

_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "global_batch")
_SWITCHES = (
    *("sequence_parallel", "flash", "fused_experts"),
    *("overlap_dp", "overlap_tp", "overlap_pp"),
)
_WORDS = (
    ("schedule", get_args(Schedule)),
    ("recompute", get_args(Recompute)),
    ("precision", get_args(Precision)),
    ("kernels", get_args(Kernels)),
)
#: Bytes per element of a product's input in quantised precisions. NVFP4 has half a byte per element
#: and an fp8 scale per block of 16 (NVIDIA, "Pretraining LLMs with NVFP4", 2025, 2).
_QUANTISED_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees of parallelism, batch sizes, schedule and memory savings of one training job.

    Experts follow Megatron-Core with an expert tensor-parallel degree of 1. An expert-parallel
    group of ``ep`` ranks is cut out of the ``tp * cp * dp`` ranks of a stage. The ranks left over
    replicate the experts (``expert_dp``).

    Attributes:
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        dp: data-parallel replicas.
        cp: context-parallel ranks.
        ep: expert-parallel ranks.
        vpp: model chunks per stage.
        micro_batch: samples of one microbatch.
        global_batch: samples of one step, over all replicas.
        schedule: "1f1b", "gpipe" or "interleaved"; "1f1b" becomes "interleaved" if vpp > 1 (so
            ``dataclasses.replace`` to ``vpp=1`` must also name the schedule). With split backwards:
            "zb-h1", "zbv", "dualpipev" (vpp becomes 2) or "dualpipe" (two copies of the model,
            microbatches in both directions; vpp stays 1).
        recompute: activations recomputed in the backward: "none", "selective" (the attention's
            scores; Korthikanti et al. 2022) or "full" (all except each layer's input).
        recompute_modules: with "selective", the recomputed modules, a subset of
            :data:`RECOMPUTE_MODULES` (see the module ``recompute``); () = the default of
            "selective".
        zero: ZeRO stage, sharding over the dp * cp ranks (Rajbhandari et al. 2020): 0 nothing, 1
            optimizer states (Megatron's distributed optimizer), 2 also gradients, 3 also parameters
            (FSDP2). Under a pipeline, stage 3 gathers parameters and reduces gradients once per
            step.
        shards: with zero 3, number of neighbouring ranks that shard one copy of the parameters.
            That is HSDP, the hybrid sharding of PyTorch FSDP (Zhao et al. 2023, 3.2.2); 0 = all dp
            * cp ranks.
        sequence_parallel: norms and dropouts split along the sequence over the tp ranks.
        precision: of the matrix products.
        flash: fused attention that never stores the scores.
        kernels: "fused" (Transformer Engine, Megatron-Core), "compiled" (``torch.compile``), or
            "eager" PyTorch; "auto" is eager with zero 3, otherwise fused.
        fused_experts: all experts of a GPU share one kernel per product, which includes activation
            and casts. CUDA graphs of whole steps launch it (Transformer Engine d0067d0,
            ``ops/fused/grouped_mlp.py``: MXFP8 and NVFP4 on Blackwell).
        overlap_dp: gradient reduction and parameter gathering run beside compute.
        overlap_tp: tensor-parallel communication runs beside the product that needs it.
        overlap_pp: a stage computes while it sends and receives.
        overlap_factor: for "dualpipev" and "dualpipe", 0 to 1. A pair's compute and its exchange of
            tokens overlap; this share of the shorter one hides behind the longer one.
        bucket_bytes: size of one gradient bucket; None = 40 million elements (Megatron-Core).
        grad_bytes: bytes per element of gradients, stored and reduced: 4 (Megatron's fp32
            accumulation) or 2 (DeepSpeed's fp16).
        layers_per_stage: layers of each chunk in model order (pp * vpp entries); None = even.
        adapter_rank: rank of LoRA adapters (Hu et al. 2021) on the attention's products, over
            weights that are frozen; 0 = all weights are trained.
        offload_layers: layers whose activations are kept in the host's memory between forward and
            backward (Megatron-Core d98e8a6, ``cpu_offloading_num_layers``).

    Raises:
        PlanError: a value is out of its range for any model; ``plan_check`` has the rules that
            depend on the model.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    micro_batch: int = 1
    global_batch: int
    schedule: Schedule = "1f1b"
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ()
    zero: int = 1
    shards: int = 0
    sequence_parallel: bool = False
    precision: Precision = "bf16"
    flash: bool = True
    kernels: Kernels = "auto"
    fused_experts: bool = False
    overlap_dp: bool = True
    overlap_tp: bool = False
    overlap_pp: bool = False
    overlap_factor: float = 1.0
    bucket_bytes: float | None = None
    grad_bytes: int = 4
    layers_per_stage: tuple[int, ...] | None = None
    adapter_rank: int = 0
    offload_layers: int = 0

    def __post_init__(self) -> None:
        for field in _DEGREES:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                text = reprlib.repr(value)
                raise PlanError(
                    f"the plan's {field} must be a whole number >= 1, not {text}", fields=(field,)
                )
            if value > MAX_FIELD:
                raise PlanError(
                    f"the plan's {field} is {reprlib.repr(value)}, beyond any real plan",
                    fields=(field,),
                )
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                text = reprlib.repr(getattr(self, field))
                raise PlanError(
                    f"the plan's {field} must be true or false, not {text}", fields=(field,)
                )
        for field, words in _WORDS:
            _check_word(field, getattr(self, field), words)
        if isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            text = reprlib.repr(self.zero)
            raise PlanError(
                f"the plan's zero must be 0 (nothing sharded), 1 (optimizer states), 2 (and "
                f"gradients) or 3 (and parameters), not {text}",
                fields=("zero",),
            )
        if isinstance(self.grad_bytes, bool) or self.grad_bytes not in (2, 4):
            text = reprlib.repr(self.grad_bytes)
            raise PlanError(
                f"the plan's grad_bytes must be 2 or 4 bytes an element, not {text}",
                fields=("grad_bytes",),
            )
        if self.bucket_bytes is not None and not _positive(self.bucket_bytes):
            text = reprlib.repr(self.bucket_bytes)
            raise PlanError(
                f"the plan's bucket_bytes must be a positive number or nothing, not {text}",
                fields=("bucket_bytes",),
            )
        for field in ("adapter_rank", "offload_layers", "shards"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                text = reprlib.repr(value)
                raise PlanError(
                    f"the plan's {field} must be a whole number >= 0, not {text}", fields=(field,)
                )
        if self.fused_experts and not self.quantised:
            raise PlanError(
                f"fused experts need fp8 or nvfp4, not {self.precision}",
                fields=("fused_experts", "precision"),
            )
        if self.shards and self.zero != 3:
            raise PlanError(
                f"shards {self.shards} needs zero 3 (FSDP), not {self.zero}",
                fields=("shards", "zero"),
            )
        self._check_modules()
        self._check_overlap_factor()
        self._settle_schedule()
        self._check_layers()

    @property
    def kernel_set(self) -> str:
        """Its kernels: "fused", "compiled" or "eager"."""
        if self.kernels != "auto":
            return self.kernels
        return "eager" if self.zero == 3 else "fused"

    @property
    def shard_ranks(self) -> int:
        """Number of ranks that shard one copy of the parameters, or of ZeRO's states."""
        return self.shards or self.dp * self.cp * self.copies

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation, and of a weight that layers compute with."""
        return 4 if self.precision == "fp32" else 2

    @property
    def quantised(self) -> bool:
        """Whether inputs of products have fewer bits than activations."""
        return self.precision in _QUANTISED_BYTES

    @property
    def input_bytes(self) -> float:
        """Bytes of an element as an input of a product."""
        return _QUANTISED_BYTES.get(self.precision, self.element_bytes)

    def _check_overlap_factor(self) -> None:
        factor = self.overlap_factor
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not (is_number and 0 <= factor <= 1):
            text = reprlib.repr(factor)
            raise PlanError(
                f"the plan's overlap_factor must be a number from 0 to 1, not {text}",
                fields=("overlap_factor",),
            )
        if factor != 1 and self.schedule not in OVERLAPPING:
            raise PlanError(
                f"overlap_factor is for {' and '.join(OVERLAPPING)}; {self.schedule} overlaps no "
                "forward with a backward",
                fields=("overlap_factor", "schedule"),
            )

    def _check_modules(self) -> None:
        modules = self.recompute_modules
        if not isinstance(modules, list | tuple):
            text = reprlib.repr(modules)
            raise PlanError(
                f"the plan's recompute_modules must be a list of names, not {text}",
                fields=("recompute_modules",),
            )
        for name in modules:
            _check_word("recompute_modules", name, RECOMPUTE_MODULES)
        if modules and self.recompute != "selective":
            raise PlanError(
                f"recompute_modules need recompute selective, not {self.recompute}",
                fields=("recompute", "recompute_modules"),
            )
        object.__setattr__(self, "recompute_modules", tuple(modules))

    def _settle_schedule(self) -> None:
        if self.schedule in SPLIT_SCHEDULES:
            chunks = SPLIT_SCHEDULES[self.schedule]
            if self.vpp not in (1, chunks):
                raise PlanError(
                    f"{self.schedule} has vpp {chunks}, not {self.vpp}", fields=("vpp", "schedule")
                )
            object.__setattr__(self, "vpp", chunks)
            return
        if self.vpp > 1 and self.schedule == "gpipe":
            raise PlanError(
                f"gpipe has one chunk per stage, not vpp {self.vpp}; use interleaved",
                fields=("vpp",),
            )
        if self.vpp == 1 and self.schedule == "interleaved":
            raise PlanError(
                "the interleaved schedule needs vpp > 1; with vpp 1 it is 1f1b",
                fields=("schedule", "vpp"),
            )
        if self.vpp > 1:
            object.__setattr__(self, "schedule", "interleaved")

    def _check_layers(self) -> None:
        layers = self.layers_per_stage
        if layers is None:
            return
        if not isinstance(layers, list | tuple) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in layers
        ):
            text = reprlib.repr(layers)
            raise PlanError(
                f"layers_per_stage must be whole numbers >= 0, not {text}",
                fields=("layers_per_stage",),
            )
        if len(layers) != self.chunks:
            raise PlanError(
                f"layers_per_stage has {len(layers)} entries, not pp {self.pp} x vpp {self.vpp} "
                f"= {self.chunks}",
                fields=("layers_per_stage", "pp", "vpp"),
            )
        object.__setattr__(self, "layers_per_stage", tuple(layers))

    @property
    def gpus(self) -> int:
        """GPUs in all: tp * pp * dp * cp (experts are spread over these)."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def chunks(self) -> int:
        """Model chunks in all: pp * vpp."""
        return self.pp * self.vpp

    @property
    def microbatches(self) -> int:
        """Microbatches of one replica in one step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert within its stage: tp * cp * dp / ep."""
        return self.tp * self.cp * self.dp // self.ep

    def stage_of(self, place: int) -> int:
        """Stage of the model's ``place``-th chunk; with two copies, the first copy's."""
        return next(row.index(place) for row in self.places if place in row)

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of inputs and of weights are separate computes."""
        return self.schedule in SPLIT_SCHEDULES

    @property
    def copies(self) -> int:
        """Stages that hold each chunk of the model: 2 under DualPipe."""
        return 2 if self.schedule == "dualpipe" else 1

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """[chunk, stage] index of the stage's chunk in the order of the model.

        Chunks go round the stages in order. Under ZBV and DualPipeV the second chunk returns in a
        V. DualPipe has a second copy of the model that begins at the last stage.
        """
        p = self.pp
        if self.copies == 2:
            return tuple(range(p)), tuple(reversed(range(p)))
        if self.splits_backward and self.vpp == 2:
            return tuple(range(p)), tuple(reversed(range(p, 2 * p)))
        return tuple(tuple(range(c * p, c * p + p)) for c in range(self.vpp))

    def chunk_layers(self, llm: LLM) -> tuple[range, ...]:
        """Layers of each chunk in model order: entry ``chunk * pp + stage``.

        Raises:
            PlanError: the layers do not divide evenly, or ``layers_per_stage`` has a wrong sum.
        """
        reason = layer_problem(self, llm)
        if reason:
            raise PlanError(f"{llm.name} with {self.describe()}: {reason}")
        counts = self.layers_per_stage or (llm.layers // self.chunks,) * self.chunks
        ends = tuple(accumulate(counts))
        return tuple(range(end - n, end) for n, end in zip(counts, ends, strict=True))

    @property
    def trained(self) -> str:
        """The trained weights, if these are adapters: "LoRA of rank 16"; "" for all weights."""
        return f"LoRA of rank {self.adapter_rank}" if self.adapter_rank else ""

    def parts(self) -> dict[str, str]:
        """Short name of a field -> its value as text, mostly without defaults."""
        parts = {"tp": str(self.tp), "pp": str(self.pp), "dp": str(self.dp)}
        parts |= {name: str(n) for name, n in (("cp", self.cp), ("ep", self.ep)) if n > 1}
        parts["mb"] = str(self.micro_batch)
        if self.schedule == "interleaved":
            parts["vpp"] = str(self.vpp)
        elif self.schedule != "1f1b":
            parts["schedule"] = self.schedule
        if self.recompute != "none":
            parts["recompute"] = "+".join(self.recompute_modules) or self.recompute
        parts |= {"offload": str(self.offload_layers)} if self.offload_layers else {}
        parts["zero"] = str(self.zero)
        parts |= {"shards": str(self.shards)} if self.shards else {}
        parts |= {"kernels": self.kernels} if self.kernels != "auto" else {}
        parts |= {"sp": "sp"} if self.sequence_parallel else {}
        parts |= {"precision": self.precision} if self.precision != "bf16" else {}
        is_uneven = self.layers_per_stage and len(set(self.layers_per_stage)) > 1
        return parts | ({"layers": "uneven"} if is_uneven else {})

    def describe(self) -> str:
        """The plan as a short text, mostly without defaults: "tp8 pp8 dp16 mb1 vpp2 zero1"."""
        return " ".join(part_text(*part) for part in self.parts().items())


def part_text(name: str, value: str) -> str:
    """One of a plan's parts in its text: "tp8", "selective"."""
    return f"{name}{value}" if value.isdigit() else value


def layer_problem(plan: Plan, llm: LLM) -> str:
    """The reason why the model's layers cannot be split like this; "" if they can."""
    layers = plan.layers_per_stage
    if layers is not None:
        total = sum(layers)
        return (
            f"layers_per_stage adds up to {total}, not {llm.layers}" if total != llm.layers else ""
        )
    if llm.layers % plan.chunks == 0:
        return ""
    split = f"pp {plan.pp} x vpp {plan.vpp}" if plan.vpp > 1 else f"pp {plan.pp}"
    return (
        f"layers {llm.layers} not divisible by {split} (or give layers_per_stage: --layers N,N,...)"
    )


def _check_word(field: str, value: object, words: tuple[str, ...]) -> None:
    if value in words:
        return
    near = get_close_matches(str(value).lower(), words, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    text = reprlib.repr(value)
    raise PlanError(
        f"the plan's {field} must be one of {', '.join(words)}, not {text}{hint}", fields=(field,)
    )


def _positive(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < float(str(value)) < float("inf")
