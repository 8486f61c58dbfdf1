"""The plan: how a model is spread over GPUs and how its step is scheduled."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, get_args

from paceline.errors import PlanError
from paceline.model.llm import LLM

Schedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev", "dualpipe"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "fp16", "bf16", "fp8", "nvfp4"]

#: Schedules that split the backward (``graph.zero_bubble``) -> chunks of the model on a stage.
SPLIT_SCHEDULES = MappingProxyType({"zb-h1": 1, "zbv": 2, "dualpipev": 2, "dualpipe": 1})
#: Those that overlap a forward with a backward.
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
)
# FP8 matrix products need both inner dimensions in multiples of 16 (cuBLAS, "FP8 tensor core
# usage"; Transformer Engine refuses others); NVFP4 scales blocks of 16.
_LOW_MULTIPLE = 16

#: Bytes of an element of a product's input in the precisions that are quantised before it. NVFP4
#: has half a byte and an fp8 scale a block of 16 (NVIDIA, "Pretraining LLMs with NVFP4", 2025, 2).
_QUANTISED_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees of parallelism, batch sizes, schedule and memory savings of one training job.

    Experts follow Megatron-Core with an expert tensor-parallel degree of 1: an expert-parallel
    group of ``ep`` ranks is cut out of the ``tp * cp * dp`` ranks of a stage, and the ranks left
    over replicate the experts (``expert_dp``).

    Attributes:
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        dp: data-parallel replicas.
        cp: context-parallel ranks.
        ep: expert-parallel ranks.
        vpp: model chunks per stage.
        micro_batch: samples of one microbatch.
        global_batch: samples of one step, over all replicas.
        schedule: "1f1b", "gpipe" or "interleaved"; "1f1b" becomes "interleaved" where vpp > 1
            (so ``dataclasses.replace`` to ``vpp=1`` has to name the schedule, too). With split
            backwards: "zb-h1", "zbv", "dualpipev" (vpp becomes 2) or "dualpipe" (two copies of the
            model, microbatches in both directions; vpp stays 1).
        recompute: activations computed again in the backward: "none", "selective" (the attention's
            scores; Korthikanti et al. 2022) or "full" (all but each layer's input).
        zero: what the dp * cp ranks share out (Rajbhandari et al. 2020): 0 nothing, 1 optimizer
            states (Megatron's distributed optimizer), 2 and gradients, 3 and parameters (FSDP2;
            under a pipeline it gathers parameters and reduces gradients once a step).
        shards: with zero 3, neighbouring ranks that share out one copy of the parameters (HSDP, the
            hybrid sharding of PyTorch FSDP, Zhao et al. 2023, 3.2.2); 0 = all dp * cp ranks.
        sequence_parallel: norms and dropouts split along the sequence over the tp ranks.
        precision: of the matrix products.
        flash: fused attention that never stores the scores.
        fused_experts: all experts of a GPU share one kernel a product, with activation and casts in
            it, and CUDA graphs of whole steps launch it (Transformer Engine d0067d0,
            ``ops/fused/grouped_mlp.py``: MXFP8 and NVFP4 on Blackwell).
        overlap_dp: gradient reduction and parameter gathering run beside compute.
        overlap_tp: tensor-parallel communication runs beside the product that needs it.
        overlap_pp: a stage computes while it sends and receives.
        overlap_factor: of "dualpipev" and "dualpipe": which share of the shorter of a pair's
            compute and its exchange of tokens hides behind the longer, 0 to 1.
        bucket_bytes: size of one gradient bucket; None = 40 million elements (Megatron-Core).
        grad_bytes: bytes of one gradient element, held and reduced: 4 (Megatron's fp32
            accumulation) or 2 (DeepSpeed's fp16).
        layers_per_stage: layers of each chunk in model order (pp * vpp entries); None = even.
        adapter_rank: rank of LoRA adapters (Hu et al. 2021) on the attention's products, over
            weights that are frozen; 0 = all weights are trained.
        offload_layers: layers whose activations are kept in the host's memory between forward and
            backward (Megatron-Core d98e8a6, ``cpu_offloading_num_layers``).

    Raises:
        PlanError: a value is out of its range whatever the model; ``check`` says what the model
            forbids.
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
    zero: int = 1
    shards: int = 0
    sequence_parallel: bool = False
    precision: Precision = "bf16"
    flash: bool = True
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
        if self.adapter_rank and self.zero > 1:
            raise PlanError(
                "adapters over frozen weights are modelled with zero 0 and 1",
                fields=("adapter_rank", "zero"),
            )
        self._check_overlap_factor()
        self._settle_schedule()
        self._check_layers()

    @property
    def shard_ranks(self) -> int:
        """Ranks that share out one copy of the parameters, or of what ZeRO shards of them."""
        return self.shards or self.dp * self.cp * self.copies

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation, and of a weight that layers compute with."""
        return 4 if self.precision == "fp32" else 2

    @property
    def quantised(self) -> bool:
        """Whether products take their inputs in fewer bits than activations have."""
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
        """Stage that holds the ``place``-th chunk of the model; of two copies the first one's."""
        return next(row.index(place) for row in self.places if place in row)

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of inputs and of weights are computes of their own."""
        return self.schedule in SPLIT_SCHEDULES

    @property
    def copies(self) -> int:
        """Stages that hold each chunk of the model: 2 under DualPipe."""
        return 2 if self.schedule == "dualpipe" else 1

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """[chunk, stage] which of the model's chunks, in its order, a stage has there.

        Round after round; under ZBV and DualPipeV the second chunk comes back as a V; DualPipe
        has a second copy of the model that begins at the last stage.
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
            PlanError: the layers do not divide evenly, or ``layers_per_stage`` has another sum.
        """
        reason = _layer_problem(self, llm)
        if reason:
            raise PlanError(f"{llm.name} with {self.describe()}: {reason}")
        counts = self.layers_per_stage or (llm.layers // self.chunks,) * self.chunks
        ends = tuple(accumulate(counts))
        return tuple(range(end - n, end) for n, end in zip(counts, ends, strict=True))

    def describe(self) -> str:
        """The plan in a few words, defaults left out: "tp8 pp8 dp16 mb1 vpp2 full"."""
        words = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}"]
        words += [f"{key}{n}" for key, n in (("cp", self.cp), ("ep", self.ep)) if n > 1]
        words.append(f"mb{self.micro_batch}")
        words += [f"vpp{self.vpp}"] if self.schedule == "interleaved" else []
        words += [self.schedule] if self.schedule not in ("1f1b", "interleaved") else []
        words += [self.recompute] if self.recompute != "none" else []
        words += [f"offload{self.offload_layers}"] if self.offload_layers else []
        words += [f"zero{self.zero}"] if self.zero != 1 else []
        words += [f"shards{self.shards}"] if self.shards else []
        words += ["sp"] if self.sequence_parallel else []
        words += [self.precision] if self.precision != "bf16" else []
        words += ["uneven"] if self.layers_per_stage and len(set(self.layers_per_stage)) > 1 else []
        return " ".join(words)


def problems(plan: Plan, llm: LLM, cluster_gpus: int | None = None) -> list[str]:
    """Every reason for which ``plan`` cannot train ``llm``; empty where it can.

    Memory is not looked at. The rules are those of Megatron-LM (Megatron-Core) and, where named,
    of DeepSpeed.

    Args:
        plan: the plan.
        llm: the model.
        cluster_gpus: GPUs that the plan must use up exactly; None = any number.
    """
    reasons = []
    if cluster_gpus is not None and plan.gpus != cluster_gpus:
        product = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus}"
        reasons.append(f"{product} GPUs, not {cluster_gpus}")
    reasons += _tensor_problems(plan, llm)
    reasons += _sequence_problems(plan, llm)
    reasons += _pipeline_problems(plan, llm)
    reasons += _expert_problems(plan, llm)
    reasons += _offload_problems(plan, llm)
    reasons += _shard_problems(plan, llm)
    if plan.adapter_rank and llm.latent is not None:
        reasons.append("adapters on multi-head latent attention are not modelled")
    if plan.adapter_rank and llm.pattern:
        reasons.append("adapters on hybrid models are not modelled")
    if plan.adapter_rank and llm.delta is not None:
        reasons.append("adapters on linear attention are not modelled")
    return reasons


def check(plan: Plan, llm: LLM, gpus: int | None = None) -> None:
    """Raise with every reason for which ``plan`` cannot train ``llm`` on ``gpus`` GPUs.

    Raises:
        PlanError: there is one reason or more; all are named.
    """
    reasons = problems(plan, llm, gpus)
    if reasons:
        raise PlanError(f"{llm.name} cannot use {plan.describe()}: {'; '.join(reasons)}")


def _tensor_problems(plan: Plan, llm: LLM) -> list[str]:
    tp = plan.tp
    reasons = []
    widths = [("heads", llm.heads), ("hidden", llm.hidden)]
    if llm.block_counts["-"]:
        widths.append(("ffn", llm.ffn))
    if llm.moe is not None and llm.moe.shared_ffn:
        widths.append(("shared_ffn", llm.moe.shared_ffn))
    if llm.mamba is not None:
        widths.append(("mamba groups", llm.mamba.groups))
    if llm.delta is not None:
        widths.append(("delta key_heads", llm.delta.key_heads))
    reasons += [f"{name} {n} not divisible by tp {tp}" for name, n in widths if n % tp]
    # Megatron-Core replicates key and value heads where there are fewer of them than ranks.
    if llm.latent is None and llm.kv_heads % tp and tp % llm.kv_heads:
        reasons.append(f"kv_heads {llm.kv_heads} and tp {tp}: neither divides the other")
    if plan.quantised:
        counts = ("heads", "mamba groups", "delta key_heads")
        sizes = [(name, n // tp) for name, n in widths if name not in counts and n % tp == 0]
        if llm.mamba is not None and llm.mamba.groups % tp == 0:
            sizes.append(("mamba projection", llm.mamba.projected // tp))
        if llm.delta is not None and llm.delta.key_heads % tp == 0:
            sizes.append(("delta projection", llm.delta.projected // tp))
        if llm.moe is not None:
            sizes.append(("expert ffn", llm.moe.ffn))
        reasons += [
            f"{plan.precision} needs {name} per rank ({n}) divisible by {_LOW_MULTIPLE}"
            for name, n in sizes
            if n % _LOW_MULTIPLE
        ]
    if plan.overlap_tp and tp > 1 and not plan.sequence_parallel:
        reasons.append("overlap_tp needs sequence_parallel")
    return reasons


def _sequence_problems(plan: Plan, llm: LLM) -> list[str]:
    reasons = []
    s, cp, tp = llm.seq_len, plan.cp, plan.tp
    if cp > 1 and s % (2 * cp):
        # Each rank takes one early and one late piece, to balance the causal mask.
        reasons.append(f"seq_len {s} not divisible by 2 x cp {cp}")
    if cp > 1 and not plan.flash:
        reasons.append("cp > 1 needs flash attention")
    if llm.index is not None and not plan.flash:
        reasons.append("sparse attention is modelled with its fused kernels alone; use flash")
    if cp > 1 and llm.mamba is not None and llm.mamba.heads % (tp * cp):
        heads = llm.mamba.heads
        reasons.append(f"mamba heads {heads} not divisible by tp {tp} x cp {cp}")
    if cp > 1 and llm.delta is not None and llm.delta.key_heads % (tp * cp):
        heads = llm.delta.key_heads
        reasons.append(f"delta key_heads {heads} not divisible by tp {tp} x cp {cp}")
    if plan.sequence_parallel and tp == 1:
        reasons.append("sequence_parallel needs tp > 1")
    elif plan.sequence_parallel and s % (cp * tp):
        split = f"cp {cp} x tp {tp}" if cp > 1 else f"tp {tp}"
        reasons.append(f"seq_len {s} not divisible by {split}, which sequence_parallel needs")
    return reasons


def _pipeline_problems(plan: Plan, llm: LLM) -> list[str]:
    reasons = [reason] if (reason := _layer_problem(plan, llm)) else []
    samples = plan.dp * plan.micro_batch
    if plan.global_batch % samples:
        reasons.append(
            f"global_batch {plan.global_batch} not divisible by dp {plan.dp} x micro_batch "
            f"{plan.micro_batch} = {samples}"
        )
    elif plan.splits_backward:
        reasons += _split_problems(plan)
    elif plan.vpp > 1 and plan.microbatches % plan.pp:
        reasons.append(
            f"{plan.microbatches} microbatches not divisible by pp {plan.pp}, which the "
            "interleaved schedule needs"
        )
    if plan.vpp > 1 and plan.pp == 1:
        reasons.append(f"vpp {plan.vpp} needs pp > 1")
    if plan.zero == 2 and plan.pp > 1:
        reasons.append(
            f"zero 2 with pp {plan.pp}: no framework shards gradients alone under a pipeline; use "
            "zero 1, or zero 3 (FSDP2, which keeps both whole over the step)"
        )
    return reasons


def _offload_problems(plan: Plan, llm: LLM) -> list[str]:
    """Conditions of offloading in Megatron-Core (d98e8a6, ``transformer_config.py``)."""
    if not plan.offload_layers:
        return []
    reasons = []
    if plan.offload_layers >= llm.layers:
        reasons.append(f"offload_layers {plan.offload_layers} must be below layers {llm.layers}")
    if plan.pp > 1:
        reasons.append(f"offload_layers needs pp 1, not {plan.pp}")
    if plan.recompute != "none":
        reasons.append(f"offload_layers beside recompute {plan.recompute}; use recompute none")
    return reasons


def _shard_problems(plan: Plan, llm: LLM) -> list[str]:
    if not plan.shards:
        return []
    reasons = []
    ranks = plan.dp * plan.cp
    if ranks % plan.shards or plan.shards % plan.cp:
        within = f"dp {plan.dp}" + (f" x cp {plan.cp}" if plan.cp > 1 else "")
        multiple = f" and be a multiple of cp {plan.cp}" if plan.cp > 1 else ""
        reasons.append(f"shards {plan.shards} must divide {within}{multiple}")
    if plan.copies > 1:
        reasons.append(f"shards beside {plan.schedule} is not modelled")
    if llm.moe is not None and plan.tp * plan.ep > 1:
        reasons.append("shards of experts need tp 1 and ep 1")
    return reasons


def _split_problems(plan: Plan) -> list[str]:
    """Conditions of schedules with split backwards (torch 2.13; deepseek-ai/DualPipe)."""
    name, m = plan.schedule, plan.microbatches
    reasons = []
    if name in OVERLAPPING and m < 2 * plan.pp:
        reasons.append(f"{m} microbatches are fewer than 2 x pp {plan.pp}, which {name} needs")
    if name == "dualpipe":
        numbers = ((plan.pp, "pp"), (m, "microbatches"))
        reasons += [f"{what} {n} is odd; dualpipe needs it even" for n, what in numbers if n % 2]
    return reasons


def _layer_problem(plan: Plan, llm: LLM) -> str:
    layers = plan.layers_per_stage
    if layers is not None:
        total = sum(layers)
        return (
            f"layers_per_stage adds up to {total}, not {llm.layers}" if total != llm.layers else ""
        )
    if llm.layers % plan.chunks == 0:
        return ""
    split = f"pp {plan.pp} x vpp {plan.vpp}" if plan.vpp > 1 else f"pp {plan.pp}"
    return f"layers {llm.layers} not divisible by {split} (or give layers_per_stage)"


def _expert_problems(plan: Plan, llm: LLM) -> list[str]:
    if plan.ep == 1:
        return []
    if llm.moe is None:
        return [f"ep {plan.ep} but the model has no experts"]
    reasons = []
    if llm.moe.experts % plan.ep:
        reasons.append(f"experts {llm.moe.experts} not divisible by ep {plan.ep}")
    ranks = plan.tp * plan.cp * plan.dp
    if ranks % plan.ep:
        reasons.append(f"tp x cp x dp = {ranks} ranks not divisible by ep {plan.ep}")
    return reasons


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
