"""Groups of jobs, each replayed separately: means and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from paceline.report.layout import wrap
from paceline.report.queue import SCHEMA, duration
from paceline.scheduling.summary import Labelled, Mean, figures, means
from paceline.units import count, percent

#: Figure, its name, whether it is a share.
_FIGURES = (
    ("deadline_ratio", "deadlines met", True),
    ("mean_jct_s", "mean JCT", False),
    ("mean_wait_s", "mean wait", False),
    ("makespan_s", "makespan", False),
)


def lines(
    column: str, groups: Mapping[str, Sequence[Labelled]], notes: Sequence[str], width: int
) -> list[Text]:
    """The screen: each policy's means over the groups, and the groups' completion times."""
    width = max(40, min(width, 132))
    head = f"{count(len(groups), 'group')} by {column}, each by itself; 80% of resampled groups"
    text = wrap(head, width, style="bold")
    for label, figures_of in means(groups).items():
        text += [Text(""), Text(label, style="bold")]
        for name, words, share in _FIGURES:
            if figures_of[name].mean is not None:
                text.append(Text(f"  {words:<14} {_value(figures_of[name], share)}"))
        jct = (
            f"{value} {_time(figures(entry.replay)['mean_jct_s'])}"
            for value, entries in groups.items()
            for entry in entries
            if entry.label == label
        )
        text += wrap(f"  mean JCT of each: {', '.join(jct)}", width, indent="    ", style="dim")
    text.append(Text(""))
    for note in notes:
        text += wrap(note, width, style="dim")
    return text


def _value(mean: Mean, share: bool) -> str:
    form = percent if share else duration
    text = form(mean.mean or 0.0)
    if mean.interval is None:
        return f"{text} (too few groups for an interval)"
    return f"{text} ({form(mean.interval[0])} to {form(mean.interval[1])})"


def _time(seconds: float | int | None) -> str:
    return "-" if seconds is None else duration(float(seconds))


def to_mapping(
    column: str,
    groups: Mapping[str, Sequence[Labelled]],
    choices: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The groups in the form of JSON."""
    return {
        "schema": SCHEMA,
        "by": column,
        "choices": dict(choices),
        "warnings": list(warnings),
        "means": {
            label: {
                name: {"mean": mean.mean, "interval": mean.interval}
                for name, mean in figures_of.items()
            }
            for label, figures_of in means(groups).items()
        },
        "groups": {
            value: [{"label": entry.label, **figures(entry.replay)} for entry in entries]
            for value, entries in groups.items()
        },
    }
