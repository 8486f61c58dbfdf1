"""The compute-optimal size, as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.text import Text

from paceline.plan.optimal import LAWS, Optimal, Sized
from paceline.report.layout import wrap

SCHEMA = 1

_HEAD = ("hidden", "layers", "params B", "tokens B", "at peak", "days", "GPUs", "MFU", "best plan")


def lines(result: Optimal, width: int, law: str | None = None) -> list[Text]:
    """The screen: the laws' points, the candidates, the answer."""
    width = max(40, min(width, 132))
    budget = f"{result.gpus:,} GPUs ({result.cluster.name}) for {result.days:g} days"
    text = [*wrap(f"{budget}: {result.flops:.3g} FLOPs at peak", width, style="bold"), Text("")]
    for entry in LAWS:
        if law in (None, entry.name):
            parameters, tokens = result.points[entry.name]
            sizes = f"{parameters / 1e9:,.1f} B parameters, {tokens / 1e9:,.0f} B tokens"
            text += wrap(f"{sizes}: {entry.source}", width, indent="  ")
    rows = [_HEAD, *(_row(sized) for sized in result.candidates)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD))]
    text += [Text("")]
    for i, row in enumerate(rows):
        sized = result.candidates[i - 1] if i else None
        cells = (f"{cell:>{size}}" for cell, size in zip(row[:-1], widths, strict=False))
        mark = "*" if sized is not None and sized is result.realistic else " "
        style = "" if sized is not None and sized.days <= result.days else "dim"
        text.append(Text(f"{mark} {'  '.join(cells)}  {row[-1]}", style=style))
    text.append(Text(""))
    for sentence in explanation(result):
        text += wrap(sentence, width)
    return text


def _row(sized: Sized) -> tuple[str, ...]:
    shape = (f"{sized.llm.hidden:,}", f"{sized.llm.layers}")
    sizes = (f"{sized.llm.parameters / 1e9:,.2f}", f"{sized.tokens / 1e9:,.0f}")
    if sized.plan is None:
        return (*shape, *sizes, f"{sized.ideal_days:.1f}", "-", "-", "-", "none fits")
    plan_cells = (
        f"{sized.days:,.1f}",
        f"{sized.gpus:,}",
        f"{sized.mfu:.1%}",
        sized.plan.describe(),
    )
    return (*shape, *sizes, f"{sized.ideal_days:.1f}", *plan_cells)


def explanation(result: Optimal) -> list[str]:
    """The answer, and the reason why it differs from the answer by peak FLOPs."""
    naive, real = result.naive, result.realistic
    text = []
    if naive is not None:
        fate = f"with its best plan it takes {naive.days:,.1f}" if naive.plan else naive.why_not
        text.append(
            f"At the GPUs' peak the largest candidate would be {_size_text(naive)}, done in "
            f"{naive.ideal_days:.1f} days; {fate}."
        )
    if real is None:
        return [
            *text,
            (
                "No candidate can be trained in this time; give more days or GPUs, or "
                "smaller sizes in --grid."
            ),
        ]
    text.append(
        f"The largest that fits in practice is {_size_text(real)} in {real.days:.1f} days: "
        f"{real.plan.describe() if real.plan else ''} on {real.gpus:,} GPUs, "
        f"{real.step_time_s:.2f} s a step."
    )
    idle = result.gpus - real.gpus
    idle_text = f" and {idle:,} of {result.gpus:,} GPUs are left idle" if idle else ""
    text.append(
        f"The difference: its MFU is {real.mfu:.1%}, not 100%{idle_text}. Time at a given number "
        "of tokens per parameter grows with the square of the size."
    )
    return text


def _size_text(sized: Sized) -> str:
    tokens = f"{sized.tokens / 1e9:,.0f} B tokens"
    return f"{sized.llm.parameters / 1e9:,.2f} B parameters on {tokens}"


def to_mapping(result: Optimal, law: str | None = None) -> dict[str, Any]:
    """The result in the form of JSON."""
    return {
        "schema": SCHEMA,
        "cluster": result.cluster.name,
        "gpus": result.gpus,
        "days": result.days,
        "flops_at_peak": result.flops,
        "laws": {
            entry.name: {
                "parameters": result.points[entry.name][0],
                "tokens": result.points[entry.name][1],
                "source": entry.source,
            }
            for entry in LAWS
            if law in (None, entry.name)
        },
        "candidates": [_record(sized) for sized in result.candidates],
        "naive": _record(result.naive) if result.naive else None,
        "realistic": _record(result.realistic) if result.realistic else None,
        "explanation": explanation(result),
    }


def _record(sized: Sized) -> dict[str, Any]:
    fits = sized.plan is not None
    return {
        "hidden": sized.llm.hidden,
        "layers": sized.llm.layers,
        "parameters": sized.llm.parameters,
        "tokens": sized.tokens,
        "days_at_peak": sized.ideal_days,
        "plan": sized.plan.describe() if sized.plan else None,
        "gpus": sized.gpus if fits else None,
        "step_time_s": sized.step_time_s if fits else None,
        "mfu": sized.mfu if fits else None,
        "days": sized.days if math.isfinite(sized.days) else None,
        "why_not": sized.why_not or None,
    }
