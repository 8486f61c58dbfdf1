"""The compute-optimal model for some GPUs and days: in theory, and with real step times.

Scaling laws (Hoffmann et al. 2022, "Training compute-optimal large language models"; vTrain, V-C)
turn FLOPs into parameters and tokens. FLOPs of GPUs x peak x time give a model that cannot be
trained in that time. Here each candidate takes the time of its best plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ModelError, PlanError
from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.cost import SECONDS_PER_DAY
from paceline.plan.search import search

Progress = Callable[[int, int], None]

#: Candidates of vTrain's Table III: (hidden, layers).
PAPER_GRID = (
    *((12288, 80), (12288, 70), (12288, 60), (10240, 80), (10240, 70), (10240, 60)),
    *((9216, 80), (9216, 70), (9216, 60), (8192, 70), (8192, 60)),
)
TOKENS_PER_PARAMETER = 20.0

#: Samples of 2,048 tokens in one step (MT-NLG's batch; it has many divisors).
_BATCH_TOKENS = 1920 * 2048

#: Largest share of GPUs that a plan may leave idle, for numbers that divide badly.
_IDLE = 0.2

_HEAD_DIM = 128

# Ratios of width to depth in GPT-3's and Megatron's larger models.
_ASPECTS = (100.0, 210.0)


@dataclass(frozen=True)
class Law:
    """A scaling law.

    Attributes:
        name: its name in options.
        source: source of its constants.
        point: FLOPs -> (parameters, tokens).
    """

    name: str
    source: str
    point: Callable[[float], tuple[float, float]]


def _vtrain(flops: float) -> tuple[float, float]:
    # The paper rounds C = 2.717e24 to 2.72e24, and its numbers follow from that.
    root = math.sqrt(float(f"{flops:.3g}"))
    return 0.089 * root, 1.875 * root


def _hoffmann(flops: float) -> tuple[float, float]:
    """Approach 3: the minimum of E + A / N^alpha + B / D^beta with 6 N D = C (Eq. 4)."""
    a, b, alpha, beta = 406.4, 410.7, 0.34, 0.28
    g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    parameters = g * (flops / 6) ** (beta / (alpha + beta))
    return parameters, flops / 6 / parameters


def _ratio(flops: float) -> tuple[float, float]:
    parameters = math.sqrt(flops / 6 / TOKENS_PER_PARAMETER)
    return parameters, TOKENS_PER_PARAMETER * parameters


LAWS = (
    Law("vtrain", "N = 0.089 C^0.5, T = 1.875 C^0.5 (vTrain, V-C)", _vtrain),
    Law("hoffmann", "approach 3 of Hoffmann et al. 2022: A 406.4, B 410.7, 0.34, 0.28", _hoffmann),
    Law("ratio", "20 tokens per parameter, C = 6 N T", _ratio),
)


@dataclass(frozen=True)
class Sized:
    """A model of the grid and its best plan.

    Attributes:
        llm: the model.
        tokens: tokens to train on.
        ideal_days: days at the peak of all GPUs (6 N T FLOPs).
        plan: the fastest plan; None = none fits.
        gpus: number of GPUs that the plan uses.
        step_time_s: its seconds per step; infinite without a plan.
        mfu: its MFU over the used GPUs.
        days: days of the training; infinite without a plan.
        why_not: reason why there is no plan.
    """

    llm: LLM
    tokens: float
    ideal_days: float
    plan: Plan | None = None
    gpus: int = 0
    step_time_s: float = math.inf
    mfu: float = 0.0
    days: float = math.inf
    why_not: str = ""


@dataclass(frozen=True)
class Optimal:
    """The models that can be trained.

    Attributes:
        cluster: the machines.
        gpus: number of GPUs.
        days: available days.
        flops: FLOPs of these GPUs and days at peak.
        points: law -> (parameters, tokens) for these FLOPs.
        candidates: the grid, largest model first.
    """

    cluster: Cluster
    gpus: int
    days: float
    flops: float
    points: dict[str, tuple[float, float]]
    candidates: tuple[Sized, ...]

    @property
    def naive(self) -> Sized | None:
        """The largest candidate that fits at peak speed."""
        return next((c for c in self.candidates if c.ideal_days <= self.days), None)

    @property
    def realistic(self) -> Sized | None:
        """The largest candidate that fits with its best plan."""
        return next((c for c in self.candidates if c.days <= self.days), None)


def compute_budget(gpus: int, peak_flops: float, days: float) -> float:
    """FLOPs of GPUs that reach their peak all the time."""
    return gpus * peak_flops * days * SECONDS_PER_DAY


def gpt(hidden: int, layers: int, *, seq_len: int = 2048, vocab: int = 50257) -> LLM:
    """A GPT of this width and depth, with heads of 128."""
    if hidden % _HEAD_DIM:
        raise ModelError(f"hidden {hidden} is no multiple of {_HEAD_DIM}, the size of a head")
    name = f"gpt {hidden} x {layers}"
    heads = hidden // _HEAD_DIM
    return LLM(name=name, layers=layers, hidden=hidden, heads=heads, vocab=vocab, seq_len=seq_len)


def default_grid(parameters: float) -> tuple[tuple[int, int], ...]:
    """(hidden, layers) of candidates up to a size: the paper's grid for the paper's sizes.

    For other sizes, depths grow in steps of about a seventh, with widths in multiples of 128 at
    usual ratios.
    """
    sizes = [gpt(*shape).parameters for shape in PAPER_GRID]
    if min(sizes) < parameters < 1.1 * max(sizes):
        return PAPER_GRID
    shapes = []
    depth = max(4, round((parameters / (12 * _ASPECTS[1] ** 2)) ** (1 / 3) * 0.6 / 2) * 2)
    while depth**3 * 12 * _ASPECTS[0] ** 2 < parameters:
        for aspect in (110, 130, 150, 170, 200):
            unit = 1024 if depth * aspect > 6000 else _HEAD_DIM
            hidden = max(1, round(depth * aspect / unit)) * unit
            if 0.25 * parameters <= gpt(hidden, depth).parameters <= 1.02 * parameters:
                shapes.append((hidden, depth))
        depth += max(2, round(depth / 7 / 2) * 2)
    return tuple(dict.fromkeys(shapes))


def optimal(
    cluster: Cluster,
    gpus: int,
    days: float,
    *,
    grid: Sequence[tuple[int, int]] | None = None,
    precision: str = "bf16",
    seq_len: int = 2048,
    vocab: int = 50257,
    global_batch: int | None = None,
    tokens_per_parameter: float = TOKENS_PER_PARAMETER,
    progress: Progress | None = None,
    **options: Any,
) -> Optimal:
    """The largest model of a grid whose training on its tokens fits into the days.

    Args:
        cluster: the machines.
        gpus: number of GPUs.
        days: available days.
        grid: (hidden, layers) of the candidates; None = :func:`default_grid`.
        precision: of the matrix products.
        seq_len: tokens of a sample.
        vocab: rows of the embedding.
        global_batch: samples of a step; None = about 4 million tokens.
        tokens_per_parameter: training tokens per parameter of a candidate.
        progress: called with (done, total).
        options: options of :func:`paceline.plan.search.search`.

    Raises:
        ModelError: a number is out of range.
    """
    for name, value in (
        ("gpus", gpus),
        ("days", days),
        ("tokens per parameter", tokens_per_parameter),
    ):
        if not 0 < value < math.inf:
            raise ModelError(f"{name} must be above 0, not {value}")
    flops = compute_budget(gpus, cluster.gpu.peak(precision), days)
    points = {law.name: law.point(flops) for law in LAWS}
    if grid is None:
        grid = default_grid(points["ratio"][0])
    if not grid:
        raise ModelError("the grid of models is empty; give --grid HIDDENxLAYERS,...")
    models = [gpt(hidden, layers, seq_len=seq_len, vocab=vocab) for hidden, layers in grid]
    batch = global_batch or max(1, _BATCH_TOKENS // seq_len)
    counts = range(math.ceil(gpus * (1 - _IDLE)), gpus + 1)
    done = []
    for llm in sorted(models, key=lambda llm: -llm.parameters):
        tokens = tokens_per_parameter * llm.parameters
        ideal = 6 * llm.parameters * tokens / flops * days
        options_ = {**options, "precision": precision}
        done.append(_evaluate(llm, cluster, counts, batch, tokens, ideal, options_))
        if progress is not None:
            progress(len(done), len(models))
    return Optimal(cluster, gpus, days, flops, points, tuple(done))


def _evaluate(
    llm: LLM,
    cluster: Cluster,
    counts: range,
    batch: int,
    tokens: float,
    ideal_days: float,
    options: dict[str, Any],
) -> Sized:
    try:
        plans = search(llm, cluster, counts, batch, tokens=tokens, **options)
    except PlanError as error:
        return Sized(llm, tokens, ideal_days, why_not=str(error))
    assert plans.days is not None
    best = (plans.plan(0), int(plans.gpus[0]), float(plans.step_time_s[0]), float(plans.mfu[0]))
    return Sized(llm, tokens, ideal_days, *best, float(plans.days[0]))
