"""A prediction on the terminal, as JSON, and as a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from rich.text import Text

from paceline.model.llm import LLM
from paceline.model.memory_rules import EXPANDABLE_SEGMENTS, MemoryRules
from paceline.model.plan import OVERLAPPING, Plan
from paceline.plan.interval import LEVEL
from paceline.plan.predict import Prediction
from paceline.report import perfetto
from paceline.report.layout import wrap
from paceline.report.model_size import model_size
from paceline.report.prices import price_text
from paceline.report.scene import scene_of
from paceline.report.terms import TERMS
from paceline.units import (
    GIB,
    count,
    day_count,
    dollars,
    gib,
    gpu_memory,
    in_gib,
    seconds,
    short_percent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.plan.expect import Expectation

SCHEMA = 1

_BAR = 24  # characters of the longest bar
#: Characters of a line beside its bar and its name.
_NUMBERS = 21


def _plan(plan: Plan) -> dict[str, Any]:
    """The plan's fields; ``overlap_factor`` only if a forward overlaps with a backward."""
    fields = asdict(plan)
    if plan.schedule not in OVERLAPPING:
        del fields["overlap_factor"]
    return {**fields, "microbatches": plan.microbatches, "text": plan.describe()}


def _samples(llm: LLM) -> dict[str, Any]:
    """How documents fill the samples, where that is said."""
    if llm.packing is None:
        return {}
    packing = llm.packing
    return {"samples": {"documents": list(packing.documents), "padding": packing.padding}}


def to_mapping(prediction: Prediction) -> dict[str, Any]:
    """The prediction in the form of JSON; ``docs/predict.md`` lists the keys."""
    plan, cluster = prediction.plan, prediction.cluster
    fullest = int(np.argmax(prediction.memory_bytes))
    return {
        "schema": SCHEMA,
        "model": {
            "name": prediction.llm.name,
            "parameters": prediction.llm.parameters,
            "active_parameters": prediction.llm.active_parameters,
        },
        **_samples(prediction.llm),
        "cluster": {"name": cluster.name, "gpu": cluster.gpu.name, "gpus": plan.gpus},
        "plan": _plan(plan),
        "step_time_s": prediction.step_time_s,
        "interval": {"level": LEVEL, **prediction.interval._asdict()},
        "breakdown_s": dict(prediction.breakdown),
        "tokens_per_s": prediction.tokens_per_s,
        "tokens_per_s_per_gpu": prediction.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": prediction.model_flops_per_gpu / 1e12,
        "mfu": prediction.mfu,
        "mfu_causal": prediction.mfu_causal,
        "hfu": prediction.hfu,
        "memory": {
            "capacity_bytes": cluster.gpu.memory_bytes,
            "reserve_bytes": prediction.rules.least_reserve * cluster.gpu.memory_bytes,
            "by_stage": [
                {
                    "stage": stage.stage,
                    "total_bytes": stage.total_bytes,
                    "moment": stage.moment,
                    **stage.parts,
                }
                for stage in prediction.memory
            ],
            "fullest_stage": fullest,
            "headroom_bytes": prediction.memory_headroom_bytes,
            "fits": prediction.fits,
            "fit": prediction.fit,
            "to_fit": list(prediction.to_fit),
        },
        "training": {
            "tokens": prediction.tokens,
            "days": prediction.days,
            "dollars": prediction.dollars,
            "price_per_gpu_hour": cluster.price_per_gpu_hour,
            "price_source": cluster.price_source,
        },
        "warnings": list(prediction.warnings),
    }


def lines(prediction: Prediction, width: int) -> list[Text]:
    """The screen of a prediction."""
    width = max(40, min(width, 132))
    blocks = [
        _head(prediction, width),
        _breakdown(prediction, width),
        _memory(prediction, width),
        _training(prediction, width),
        [
            line
            for note in prediction.warnings
            for line in wrap(f"! {note}", width, indent="  ", style="yellow")
        ],
    ]
    screen: list[Text] = []
    for block in filter(None, blocks):
        screen += [*([Text("")] if screen else []), *block]
    return screen


def _head(prediction: Prediction, width: int) -> list[Text]:
    llm, plan, cluster = prediction.llm, prediction.plan, prediction.cluster
    title = f"{llm.name} ({model_size(llm)}) on {plan.gpus:,} {cluster.gpu.name} ({cluster.name})"
    about = (
        f"{plan.describe()} · {plan.trained and f'{plan.trained} · '}"
        f"{count(plan.microbatches, 'microbatch', 'microbatches')} · "
        f"global batch {plan.global_batch:,} x {llm.describe_samples()}"
    )
    first = Text("step ", style="bold")
    first.append(seconds(prediction.step_time_s), style="bold cyan")
    first.append(
        f"   MFU {prediction.mfu:.1%} (causal {prediction.mfu_causal:.1%})   "
        f"HFU {prediction.hfu:.1%}"
    )
    rate = (
        f"{prediction.model_flops_per_gpu / 1e12:,.4g} TFLOP/s and "
        f"{prediction.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
    )
    speed = [Text.assemble(first, "   ", rate)]
    if len(speed[0]) > width:
        speed = [first, *wrap(rate, width)]
    low, high, evidence = prediction.interval
    rests = f"{LEVEL:.0%} of such steps take {seconds(low)} to {seconds(high)}. {evidence}"
    return [
        *wrap(title, width, style="bold"),
        *wrap(about, width),
        Text(""),
        *speed,
        *wrap(rests, width, style="dim"),
    ]


def _breakdown(prediction: Prediction, width: int) -> list[Text]:
    terms = {
        k: v for k, v in prediction.breakdown.items() if abs(v) > 5e-5 * prediction.step_time_s
    }
    largest = max(terms.values())
    size = max(4, min(_BAR, width - _NUMBERS - max(len(TERMS[name]) for name in terms)))
    bars = []
    for name, value in terms.items():
        bar = "█" * max(0, round(size * value / largest))
        line = Text(f"  {bar:<{size}} {value / prediction.step_time_s:6.1%} {seconds(value):>9}  ")
        line.append(TERMS[name])
        bars.append(line)
    return bars


def _memory(prediction: Prediction, width: int) -> list[Text]:
    room = prediction.cluster.gpu.memory_bytes
    total = prediction.memory_bytes
    fullest = prediction.memory[int(np.argmax(total))]
    terms = ", ".join(f"{k} {gib(v)}" for k, v in fullest.parts.items() if v > 5e7)
    rules, fit = prediction.rules, prediction.fit
    beside = _beside(rules, rules.least_reserve)
    if fit == "yes" and replace(rules, expandable_segments=False).fit(max(total), room) == "no":
        spare = in_gib(rules.room(room) - max(total))
        verdict = f"memory: fits ONLY with {EXPANDABLE_SEGMENTS}, which counts as set; {spare} to "
        verdict, style = f"{verdict}spare {_beside(rules, rules.safe_reserve)}", "yellow"
    elif fit == "yes":
        spare = in_gib(rules.room(room) - max(total))
        beside = _beside(rules, rules.safe_reserve)
        verdict, style = f"memory: fits, {spare} to spare {beside}", "green"
    elif fit == "expandable segments":
        spare = in_gib(prediction.memory_headroom_bytes)
        verdict = f"memory: fits ONLY with {EXPANDABLE_SEGMENTS}, {spare} to spare {beside}"
        style = "bold yellow"
    else:
        short = in_gib(-prediction.memory_headroom_bytes)
        verdict, style = f"memory: does NOT fit, {short} too much {beside}", "bold red"
    text = wrap(verdict, width, indent="  ", style=style)
    text += wrap(
        f"  fullest is stage {fullest.stage}: {gib(fullest.total_bytes)} of "
        f"{in_gib(room)} at the {fullest.moment}: {terms}",
        width,
        indent="  ",
    )
    if len(total) > 1:
        by_stage = " ".join(f"{x / GIB:.0f}" for x in total[:24])
        overflow = f" ... ({len(total)} stages)" if len(total) > 24 else ""
        text += wrap(f"  GiB by stage: {by_stage}{overflow}", width, indent="  ")
    if not prediction.fits:
        changes = "; ".join(prediction.to_fit) or "no change of one or two things in the plan"
        text += wrap(f"  would fit with: {changes}", width, indent="  ")
    return text + wrap(f"  {gpu_memory(room)}", width, indent="  ", style="dim")


def _beside(rules: MemoryRules, share: float) -> str:
    """The share of the memory that stays free, with the reason if it is above the usual one."""
    text = f"beside a reserve of {short_percent(share)}"
    if share > rules.reserve:
        usual = short_percent(rules.reserve)
        text += f" for the allocator's fixed segments ({usual} with expandable ones)"
    return text


def _training(prediction: Prediction, width: int) -> list[Text]:
    if prediction.days is None or prediction.tokens is None:
        return []
    text = f"training on {prediction.tokens / 1e9:,.6g} billion tokens: "
    text += f"{day_count(prediction.days)} days"
    price = price_text(prediction.cluster)
    cost = prediction.dollars
    text += f"; {price}" if cost is None else f", {dollars(cost)} at {price}"
    return wrap(text, width, indent="  ")


def timeline_writer(prediction: Prediction, *, compress: bool) -> Callable[[BinaryIO], None]:
    """The writer of the predicted step for Perfetto.

    Raises:
        OutputError: too many operations for a viewer.
    """
    perfetto.check_size(prediction.timeline.graph.n_ops, 1, 1)
    scene = scene_of(prediction.timeline, np.zeros(1, dtype=np.int64))
    about = {
        "model": prediction.llm.name,
        "plan": prediction.plan.describe(),
        "cluster": prediction.cluster.name,
        "step_time_s": prediction.step_time_s,
    }
    names = {0: f"one of {prediction.plan.dp} equal replicas"}
    return perfetto.trace_writer(
        [scene], prediction.planned.job, about, replica_names=names, compress=compress
    )


def error_text(errors: Mapping[str, float | None]) -> str:
    """The errors in one line."""
    text = (
        f"mean error {errors['mape']:.1%}, median {errors['median']:.1%}, p90 {errors['p90']:.1%}"
    )
    return text if errors["r2"] is None else f"{text}, R² {errors['r2']:.4f}"


def error_lines(
    errors: Mapping[str, float | None], worst: Sequence[tuple[str, float]], width: int
) -> list[Text]:
    """Errors of predictions against measured runs."""
    text = [Text(f"{errors['n']} measured runs: {error_text(errors)}", style="bold")]
    for name, share in worst:
        text += wrap(f"  {share:+.0%}  {name}", width, indent="        ")
    return text


def expectation_lines(expectation: Expectation, width: int) -> list[Text]:
    """The measured beside the modelled step."""
    e = expectation
    head = (
        f"the model of this job ({e.model}, {e.plan}) takes {seconds(e.modelled_step_s)} per step; "
        f"it took {seconds(e.traced_step_s)}: {e.traced_ratio:.3f} times as long"
    )
    split = (
        f"  = {e.launch_slowdown:.3f} launch delays × {e.straggler_ratio:.3f} stragglers × "
        f"{e.hardware_ratio:.3f} hardware and software (computes alone: {e.compute_ratio:.3f})"
    )
    kinds = ", ".join(f"{k} {v:.2f}" for k, v in e.by_kind.items() if v is not None)
    stages = " ".join(f"{ratio:.2f}" for ratio in e.by_stage[:32])
    return [
        *wrap(head, width, style="bold"),
        *wrap(split, width, indent="    "),
        *wrap(f"  measured over modelled by kind: {kinds}", width, indent="    "),
        *wrap(f"  computes by stage: {stages}", width, indent="    "),
    ]
