"""Times the operators that predictions need, with PyTorch, on a local GPU or CPU.

They are the operators of predictions for the requested shapes. vTrain (III-C) calls them "necessary
operators", one per hidden size, tensor parallelism, microbatch and sequence. Each runs alone, over
copies of its inputs that together exceed the last-level cache. So its inputs are cold, like weights
and saved activations in a training step.

torch is imported when a profile is taken, not with this module.
"""

from __future__ import annotations

import datetime
import importlib
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import ModelError
from paceline.extras import pip_install
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.operators import Operator
from paceline.model.plan import Plan, Precision
from paceline.model.plan_check import problems
from paceline.model.profile import OperatorProfile, Timing
from paceline.model.profile_cost import one_of_batch, operator_class, shape_of
from paceline.model.profile_operators import Case, Tensors, Thunk, thunk_of

Progress = Callable[[int, int], None]

#: Least bytes of an operator's copied inputs, which are used in turn. That exceeds the last-level
#: cache of present GPUs (H100 50 MB, B200 126 MB) and CPUs.
_COLD_BYTES = 192e6
_MAX_COPIES = 16
_LAYERS = 8  # layers of the synthetic models: the optimizer is timed for one layer and for all
_VOCAB = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes to profile.

    Attributes:
        models: models whose operators are timed, each with every ``tp`` and ``micro_batch``.
        tp: tensor-parallel degrees; degrees that a model does not allow are skipped.
        micro_batch: samples of one microbatch.
        precision: of the matrix products ("fp8" is not timed).
        flash: time fused attention (``scaled_dot_product_attention``) instead of the unfused core.
    """

    models: tuple[LLM, ...]
    tp: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = (1,)
    precision: Precision = "bf16"
    flash: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of the measuring time.

    Attributes:
        warmup: runs before the first that counts.
        repeats: fewest runs behind a median (on a GPU: batches of runs).
        most: most of them.
        operator_s: seconds for one operator beyond its fewest repeats.
        total_s: seconds after which the remaining operators, the largest ones, are left out.
    """

    warmup: int = 3
    repeats: int = 7
    most: int = 50
    operator_s: float = 0.25
    total_s: float = 900.0


QUICK = Effort(warmup=1, repeats=5, most=20, operator_s=0.05, total_s=120.0)


def made_up(hidden: int, seq_len: int, vocab: int = _VOCAB) -> tuple[LLM, LLM]:
    """A GPT (LayerNorm, GELU, biases, dropout) and a variant with rotary positions.

    The second adds only operators that the first lacks; its other operators run the same kernels.

    Raises:
        ModelError: the width is not a multiple of 64, the width of one head.
    """
    head = 128 if hidden % 128 == 0 and hidden >= 2048 else 64
    if hidden < 1 or hidden % head:
        raise ModelError(f"hidden {hidden} cannot be profiled: choose a multiple of {head}")
    gpt = LLM(
        name=f"gpt-{hidden}",
        layers=_LAYERS,
        hidden=hidden,
        heads=hidden // head,
        vocab=vocab,
        seq_len=seq_len,
    )
    return gpt, replace(gpt, name=f"rotary-{hidden}", positions="rotary")


def necessary(shapes: Shapes) -> list[Case]:
    """The distinct operators of all shapes, the cheapest first.

    Raises:
        ModelError: no plan among ``shapes`` is legal for a model.
    """
    case_of: dict[object, Case] = {}
    for llm in shapes.models:
        legal = 0
        reasons: list[str] = []
        for tp in shapes.tp:
            for micro_batch in shapes.micro_batch:
                plan = Plan(
                    tp=tp,
                    micro_batch=micro_batch,
                    global_batch=micro_batch,
                    precision=shapes.precision,
                    flash=shapes.flash,
                )
                obstacles = problems(plan, llm)
                if llm.mamba is not None:
                    obstacles.append("there is no operator to measure its Mamba-2 scans with")
                if llm.delta is not None:
                    obstacles.append("there is no operator to measure its DeltaNets with")
                if llm.index is not None:
                    obstacles.append("there is no operator to measure its sparse attention with")
                if llm.compressed is not None:
                    obstacles.append("there is no operator to measure compressed attention with")
                reasons += obstacles
                legal += not obstacles
                for case in () if obstacles else _cases_of(llm, plan):
                    case_of.setdefault(_key(case.op), case)
        if not legal:
            raise ModelError(f"{llm.name} cannot be profiled with any of these plans: {reasons[0]}")
    return sorted(case_of.values(), key=lambda case: (case.op.flops + case.op.bytes, case.op.name))


def _cases_of(llm: LLM, plan: Plan) -> Iterator[Case]:
    """Operators for predictions of a plan, and of its pipeline of single layers."""
    for variant in (plan, replace(plan, pp=llm.layers)):
        operators: list[Operator] = []

        def record(op: Operator, operators: list[Operator] = operators) -> float:
            operators.append(op)
            return 1.0

        model = CostModel(llm, cluster_preset("a100-80g"), record)  # which does not matter
        model.costs(variant)
        work = model.stage_work(variant)
        parameters = (work.parameters + work.expert_parameters).astype(int).tolist()
        for op in operators:
            count = parameters.pop(0) if op.name == "optimizer" else 0
            yield Case(one_of_batch(op), llm, plan, count)


def _key(op: Operator) -> object:
    return operator_class(op), *(round(value) for value in shape_of(op).values())


# Clocks.


class Clock:
    """Seconds of one run on the device."""

    def __init__(self, torch: Any, device: str, effort: Effort) -> None:
        self.torch, self.device, self.effort = torch, device, effort

    def sync(self) -> None:
        """Wait until the device has finished."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def samples(self, thunks: Sequence[Thunk]) -> list[float]:
        """Seconds per run of each repeat; the thunks take turns."""
        effort = self.effort
        for i in range(max(effort.warmup, min(len(thunks), 2))):
            thunks[i % len(thunks)]()
        self.sync()
        sample = self._on_gpu if self.device == "cuda" else self._on_cpu
        seconds: list[float] = []
        begin = time.perf_counter()
        while len(seconds) < effort.repeats or (
            len(seconds) < effort.most and time.perf_counter() - begin < effort.operator_s
        ):
            seconds.append(sample(thunks, len(seconds)))
        return seconds

    def _on_cpu(self, thunks: Sequence[Thunk], i: int) -> float:
        thunk = thunks[i % len(thunks)]
        begin = time.perf_counter()
        thunk()
        return time.perf_counter() - begin

    def _on_gpu(self, thunks: Sequence[Thunk], i: int) -> float:
        """Run all thunks between two events, with the GPU held back until all are queued.

        Otherwise small kernels would be timed at the host's speed, which is measured separately.
        """
        torch = self.torch
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if hasattr(torch.cuda, "_sleep"):
            torch.cuda._sleep(500_000 * len(thunks))  # cycles: about 0.3 ms each
        first.record()
        for thunk in thunks:
            thunk()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / len(thunks)


def measure(case: Case, make: Tensors, clock: Clock, room_bytes: float) -> Timing | str:
    """The timing of one operator, or the reason why there is none."""
    # Inputs, outputs, gradients and temporaries; the optimizer moves all its bytes at least once.
    needed = (1 if case.op.name == "optimizer" else 4) * case.op.bytes
    if needed > room_bytes:
        return f"{case.op.name}: needs about {needed / 2**30:.0f} GiB"
    # A sample on a GPU needs several runs because of the resolution of events.
    least = 4 if make.device == "cuda" and needed < room_bytes / 8 else 1
    copies = int(min(_MAX_COPIES, room_bytes // needed, _COLD_BYTES // case.op.bytes + 1))
    try:
        thunks = [thunk_of(case, make) for _ in range(max(least, copies))]
        ready = [thunk for thunk in thunks if thunk is not None]
        if not ready:
            return f"{case.op.name}: not timed by this version"
        samples = clock.samples(ready)
    except (RuntimeError, NotImplementedError) as error:  # out of memory, no such kernel
        if make.device == "cuda":
            make.torch.cuda.empty_cache()
        return f"{case.op.name}: {str(error).partition(chr(10))[0][:120]}"
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    return Timing(
        operator=case.op,
        seconds=middle,
        spread=(high - low) / middle,
        repeats=len(samples),
    )


def launch_seconds(torch: Any, device: str) -> float:
    """Host seconds per kernel, from a step through autograd with negligible kernels."""
    layers = 20
    weights = [torch.randn(8, 8, device=device, requires_grad=True) for _ in range(layers)]
    x = torch.randn(8, 8, device=device)

    def step() -> None:
        y = x
        for w in weights:
            y = torch.nn.functional.gelu(y @ w)
        torch.autograd.grad(y.sum(), weights)

    kernels = 5 * layers  # product, GELU; GELU's gradient and two products
    samples = []
    for i in range(25):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if i >= 5:
            samples.append((time.perf_counter() - begin) / kernels)
    return statistics.median(samples)


def bandwidth(torch: Any, device: str, clock: Clock) -> float:
    """byte/s of a copy between two large buffers, counting read and written bytes."""
    size = 1 << (30 if device == "cuda" else 27)
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    source.fill_(1)
    return 2 * size / statistics.median(clock.samples([lambda: target.copy_(source)]))


# The profile.


def import_torch() -> Any:
    """PyTorch.

    Raises:
        ModelError: PyTorch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ModelError(
            f"profiling needs PyTorch ({error}); install it: {pip_install('profile')}"
        ) from None


def choose_device(torch: Any, requested: str) -> str:
    """The device to use, "cuda" or "cpu"; "auto" takes a GPU if there is one.

    Raises:
        ModelError: a GPU is requested and there is none.
    """
    available = bool(torch.cuda.is_available())
    if requested == "cuda" and not available:
        raise ModelError(
            f"torch {torch.__version__} sees no GPU; check the driver and CUDA_VISIBLE_DEVICES, or "
            "use --device cpu"
        )
    return "cuda" if available and requested != "cpu" else "cpu"


def take_profile(
    shapes: Shapes,
    device: str = "auto",
    effort: Effort | None = None,
    progress: Progress = lambda done, total: None,
) -> OperatorProfile:
    """Measure.

    Args:
        shapes: the shapes to measure.
        device: "cuda", "cpu" or "auto".
        effort: limits of time.
        progress: called with operators done and in all.

    Raises:
        ModelError: no torch, no such device, a precision that is not timed, or nothing measured.
    """
    if shapes.precision == "fp8":
        raise ModelError("fp8 products cannot be timed; profile bf16: fp8 is scaled from it")
    torch = import_torch()
    device = choose_device(torch, device)
    effort = effort or Effort()
    cases = necessary(shapes)
    make, clock = Tensors(torch, device, shapes.precision), Clock(torch, device, effort)
    memory, room = _memory(torch, device)
    begin = time.monotonic()
    timings: list[Timing] = []
    left_out: list[str] = []
    for i, case in enumerate(cases):
        progress(i, len(cases))
        if time.monotonic() - begin > effort.total_s:
            left_out.append(f"{len(cases) - i} operators: {effort.total_s:g} s were over")
            break
        outcome = measure(case, make, clock, room)
        if isinstance(outcome, Timing):
            timings.append(outcome)
        elif outcome not in left_out:
            left_out.append(outcome)
    progress(len(cases), len(cases))
    products = [timing for timing in timings if timing.operator.part == "gemm"]
    if not products:
        raise ModelError(f"nothing could be measured: {'; '.join(left_out)[:400]}")
    return OperatorProfile(
        device=device_name(torch, device),
        device_kind=device,
        memory_bytes=memory,
        processors=_processors(torch, device),
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda or getattr(torch.version, "hip", None) or ""),
        driver=_driver() if device == "cuda" else "",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        precision=shapes.precision,
        launch_s=launch_seconds(torch, device),
        peak_flops=max(timing.operator.flops / timing.seconds for timing in products),
        memory_bandwidth=bandwidth(torch, device, clock),
        shapes={
            "models": tuple(llm.name for llm in shapes.models),
            "hidden": tuple(sorted({llm.hidden for llm in shapes.models})),
            "tp": shapes.tp,
            "micro_batch": shapes.micro_batch,
            "seq_len": tuple(sorted({llm.seq_len for llm in shapes.models})),
        },
        timings=tuple(timings),
        left_out=tuple(left_out),
    )


def _memory(torch: Any, device: str) -> tuple[float, float]:
    """Bytes of memory, and the limit for one operator with its copies."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return float(total), 0.8 * free
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(total), 0.25 * total


def device_name(torch: Any, device: str) -> str:
    """The GPU's or the CPU's name."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 (no ordinary file)
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    name = names[0] if names else platform.processor() or platform.machine() or "CPU"
    return f"{name}, {torch.get_num_threads()} threads"


def _processors(torch: Any, device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).multi_processor_count)
    return int(torch.get_num_threads())


def _driver() -> str:
    """Version of the NVIDIA driver; "" if nvidia-smi does not report it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()
