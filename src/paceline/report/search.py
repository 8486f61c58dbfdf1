"""A search for plans: its table on the terminal, as JSON, as parquet and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from paceline.model.memory_rules import EXPANDABLE_SEGMENTS
from paceline.plan.explain import Explanation, Term
from paceline.plan.interval import LEVEL, beyond_evidence, untested_blocks
from paceline.plan.launch.exclusions import SOFTWARE
from paceline.plan.model_warnings import model_warnings
from paceline.plan.search import SearchResult
from paceline.report.layout import wrap
from paceline.report.model_size import model_size
from paceline.report.plan_table import PlanTable
from paceline.report.prices import price_text
from paceline.report.terms import TERMS
from paceline.units import (
    GIB,
    decimals_of,
    fixed,
    gib,
    gpu_memory,
    percent,
    seconds_range,
    short_percent,
    signed,
    significant,
)

if TYPE_CHECKING:
    from paceline.plan.launch.files import Launch

SCHEMA = 1

#: Objective of the ranking -> its name for people.
OBJECTIVES = {"time": "shortest step", "cost": "least GPU-time", "gpus": "fewest GPUs"}

#: A causal MFU of at least this share of the MFU needs no sentence where its column is left out.
_NEAR = 0.9
#: Kernels of all plans of a search -> their name for people.
_KERNELS = {
    "auto": "eager PyTorch with zero 3, else fused (Transformer Engine)",
    "fused": "fused (Transformer Engine)",
    "compiled": "compiled (torch.compile)",
    "eager": "eager PyTorch",
}


def describe(result: SearchResult) -> str:
    """The search in a line."""
    gpus = result.legal.gpus
    low, high = int(gpus.min()), int(gpus.max())
    batch = result.legal.base.global_batch
    tokens = "" if result.tokens is None else f" · {result.tokens / 1e9:,.6g} billion tokens"
    count = f"{low:,} GPUs" if low == high else f"{low:,} to {high:,} GPUs"
    size = f"{batch:,} x {result.llm.describe_samples()}"
    trained = result.legal.base.trained
    return (
        f"{result.llm.name} ({model_size(result.llm)}) on {count} ({result.cluster.name})"
        f"{trained and f' · {trained}'} · global batch {size}{tokens}"
    )


def front(result: SearchResult) -> list[int]:
    """Indices of the Pareto front, fastest first."""
    places = np.flatnonzero(result.pareto)
    order: list[int] = places[np.argsort(result.step_time_s[places], kind="stable")].tolist()
    return order


# Terminal.


def lines(result: SearchResult, top: int, width: int) -> list[Text]:
    """The screen: the search, the best plans, the rest of the front, the pruned plans."""
    width = max(40, min(width, 132))
    legal, fits = len(result.legal), len(result)
    words = f"{fits:,} of {legal:,} legal plans fit, evaluated in {result.seconds:.1f} s; ranked by"
    best = list(range(min(top, fits)))
    other_front = [i for i in front(result) if i not in set(best)][:top]
    table = PlanTable(result, [*best, *other_front], width)
    text = [
        *wrap(describe(result), width, style="bold"),
        *wrap(f"{words} {OBJECTIVES[result.objective]}", width),
        *wrap(table.shared, width),
        Text(""),
        *table.lines(best),
    ]
    if other_front:
        text += [
            Text(""),
            Text("Other plans that no plan beats in both time and cost", style="bold"),
        ]
        text += table.lines(other_front)
    text += [Text(""), Text("Ruled out", style="bold")]
    for reason, count in pruned_counts(result):
        text += wrap(f"{count:>14,}  {reason}", width, indent=" " * 16)
    notes = [
        *table.legend,
        f"{LEVEL:.0%} within: {LEVEL:.0%} of measured steps lie in this range of seconds.",
        result.interval(0).about,
        *_unseen(result),
        *_mfu(result, table.left_out),
        _reserve(result),
        kernels(result),
    ]
    notes.append(f"{gpu_memory(result.cluster.gpu.memory_bytes)}.")
    if result.days is not None:
        price = price_text(result.cluster)
        notes.append(f"{price[:1].upper()}{price[1:]}.")
    marks = [] if result.has_one_count else ["* no other plan is both faster and cheaper."]
    marks += segments(result, [*best, *other_front])
    text.append(Text(""))
    for mark in (*marks, " ".join(notes)):
        text += wrap(mark, width, style="dim")
    for warning in model_warnings(result.llm):
        text += wrap(f"! {warning}", width, indent="  ", style="yellow")
    return text


def _mfu(result: SearchResult, left_out: Sequence[str]) -> list[str]:
    """Sentences on columns of the MFU, and on those that a narrow window leaves out."""
    if "causal" not in left_out:
        return ["causal: MFU without the masked half of attention."]
    first, causal = float(result.mfu[0]), float(result.mfu_causal[0])
    notes = []
    if "MFU" in left_out:
        notes.append(f"The first plan's MFU is {first:.1%}.")
    if causal < _NEAR * first:
        notes.append(
            f"Without the masked half of attention the MFU is {causal / first:.2f} times as large: "
            f"{causal:.1%} for the first plan."
        )
    names = ", ".join(f'"{name}"' for name in left_out)
    columns = "column" if len(left_out) == 1 else "columns"
    return [*notes, f"A wider terminal also shows the {columns} {names}."]


def kernels(result: SearchResult) -> str:
    """A sentence on the kernels of all plans."""
    return f"Kernels: {_KERNELS[result.legal.base.kernels]}; --kernels changes them."


def _reserve(result: SearchResult) -> str:
    """A sentence on the memory that plans leave free, with the reason for a larger share."""
    rules = result.rules
    text = f"A plan leaves {short_percent(rules.least_reserve)} of the memory free"
    if rules.least_reserve > rules.reserve:
        return f"{text}, for fixed segments of PyTorch's allocator."
    if rules.safe_reserve > rules.least_reserve:
        safe = short_percent(rules.safe_reserve)
        return f"{text}. One that fits without expandable segments leaves {safe} free."
    return f"{text}."


def _unseen(result: SearchResult) -> list[str]:
    """A sentence if plans have features that no measured step has: intervals may be too narrow."""
    llm, plan = result.llm, result.plan(0)
    unseen = [*beyond_evidence(llm, plan, result.cluster), *untested_blocks(llm)]
    return (
        [f"No measured step has {' or '.join(unseen)}: such steps may lie outside the range."]
        if unseen
        else []
    )


def segments(result: SearchResult, places: Sequence[int]) -> list[str]:
    """A sentence if plans at these places need a setting of PyTorch's allocator."""
    if not result.expandable[list(places)].any():
        return []
    safe = np.flatnonzero(~result.expandable)
    sign = f"+ needs {EXPANDABLE_SEGMENTS}"
    if not len(safe):
        return [f"{sign}; no plan fits without it."]
    shown = "" if safe[0] in places else f" (--top {safe[0] + 1} shows it)"
    return [f"{sign}; rank {safe[0] + 1}{shown} is the first plan that fits without it."]


def explained_lines(explanation: Explanation, width: int) -> list[Text]:
    """Comparison of plan A with plan B: differences, seconds and bytes by term."""
    first, second = explanation.first, explanation.second
    winner, loser = ("A", "B") if first.step_time_s <= second.step_time_s else ("B", "A")
    text = [Text(""), Text(f"Why {winner} beats {loser}", style="bold")]
    for mark, prediction in (("A", first), ("B", second)):
        step, within = prediction.step_time_s, prediction.interval
        words = (
            f"{mark}  {prediction.plan.describe()}: {significant(step, 4)} s "
            f"({LEVEL:.0%} of steps: {seconds_range(within.low_s, within.high_s)} s)"
        )
        text += wrap(words, width, indent="   ")
    text += wrap(_doubt(explanation), width)
    changes = (f"{name} {_field(a)} -> {_field(b)}" for name, (a, b) in explanation.changes.items())
    text += wrap(f"A -> B: {', '.join(changes)}", width, indent="   ")
    in_s = explanation.second.step_time_s >= 1
    times = ("seconds", 1.0) if in_s else ("milliseconds", 1e-3)
    text += _term_lines(explanation.time, *times)
    text += _term_lines(explanation.memory, "GiB on the fullest GPU", GIB)
    return text


def _term_lines(terms: Sequence[Term], title: str, scale: float) -> list[Text]:
    """Terms with the decimals of their sum; terms that are 0 then are left out."""
    total = Term("all", sum(t.first for t in terms), sum(t.second for t in terms))
    decimals = decimals_of(max(total.first, total.second) / scale, 4)
    text = [Text(f"  {'A':>9} {'B':>9} {'B - A':>9}  {title}", style="dim")]
    for term in (*terms, total):
        values = [fixed(x / scale, decimals) for x in (term.first, term.second)]
        if values == ["0", "0"]:
            continue
        more = signed(term.difference / scale, decimals)
        numbers = f"{values[0]:>9} {values[1]:>9} {more:>9}"
        text.append(Text(f"  {numbers}  {TERMS.get(term.name, term.name)}"))
    return text


def _field(value: Any) -> str:
    """A plan's field; runs of equal numbers of layers in one: ``3, 14 x 4, 2``."""
    if value is None:
        return "even"
    if not isinstance(value, tuple):
        return str(value)
    runs = [(layers, len(list(run))) for layers, run in groupby(value)]
    return "({})".format(", ".join(f"{n} x {of}" if n > 1 else f"{of}" for of, n in runs))


def _doubt(explanation: Explanation) -> str:
    """A sentence on whether the measured steps of the two plans will differ in this order."""
    steps = (explanation.first.step_time_s, explanation.second.step_time_s)
    apart = f"The steps differ by {percent(max(steps) / min(steps) - 1)}"
    if explanation.sure:
        return f"{apart}: one lies outside the other's interval."
    return f"{apart}, and each lies within the other's interval: the difference is not sure."


def memory_note(launch: Launch, framework: str) -> list[str]:
    """A sentence on the memory that a framework adds to its plan, if it adds any."""
    if not launch.memory:
        return []
    name = SOFTWARE[framework]
    *parts, total = launch.memory
    terms = ", ".join(f"{t.name} {signed(t.difference / GIB)}" for t in parts)
    return [
        f"Memory of plan {launch.place + 1}: {gib(total.second)} GiB as {name} allocates it, "
        f"{gib(total.first)} GiB without --launch. `paceline predict --framework {framework}` "
        f"counts it, too. Difference in GiB: {terms}."
    ]


def launch_lines(launch: Launch, framework: str, result: SearchResult, width: int) -> list[Text]:
    """Lines before a launch file: skipped plans, memory, and the plan itself."""
    width = max(40, min(width, 132))
    head = f"plan {launch.place + 1}, {result.plan(launch.place).describe()}:"
    notes = [*map(str, launch.skipped), *memory_note(launch, framework), head]
    wrapped = [line for note in notes for line in wrap(note, width, indent="  ")]
    return [Text(""), *wrapped, Text("")]


def pruned_counts(result: SearchResult) -> list[tuple[str, int]]:
    """Reasons and counts, the largest first."""
    return sorted(result.pruned.items(), key=lambda item: -item[1])


# Data.


def to_mapping(result: SearchResult, top: int) -> dict[str, Any]:
    """The result in the form of JSON: the best plans, the front, the rules that excluded others."""
    data = result.columns()
    gpus = result.legal.gpus
    return {
        "schema": SCHEMA,
        "model": result.llm.name,
        "parameters": result.llm.parameters,
        "active_parameters": result.llm.active_parameters,
        "cluster": result.cluster.name,
        "gpus": [int(gpus.min()), int(gpus.max())],
        "global_batch": result.legal.base.global_batch,
        "precision": result.legal.base.precision,
        "kernels": result.legal.base.kernels,
        "adapter_rank": result.legal.base.adapter_rank,
        "tokens": result.tokens,
        "price_per_gpu_hour": result.cluster.price_per_gpu_hour,
        "objective": result.objective,
        "legal": len(result.legal),
        "fit": len(result),
        "fit_without_expandable_segments": int((~result.expandable).sum()),
        "seconds": result.seconds,
        "plans": [_record(result, data, i) for i in range(min(top, len(result)))],
        "pareto": [_record(result, data, i) for i in front(result)],
        "pruned": dict(pruned_counts(result)),
        "warnings": model_warnings(result.llm),
    }


def _record(result: SearchResult, data: dict[str, Any], i: int) -> dict[str, Any]:
    record = {name: values[i].item() for name, values in data.items()}
    plan, within = result.plan(i), result.interval(i)
    return {
        "rank": i + 1,
        "plan": plan.describe(),
        **record,
        "low_s": within.low_s,
        "high_s": within.high_s,
        "layers_per_stage": plan.layers_per_stage,
    }
