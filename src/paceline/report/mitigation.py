"""Lines for the terminal: strategies against fail-slows, and lives of jobs with them."""

from __future__ import annotations

from rich.text import Text

from paceline.mitigate.forecast import Forecast
from paceline.mitigate.life import Lives
from paceline.mitigate.strategies import TITLES, Option
from paceline.report.layout import wrap
from paceline.units import duration, seconds

#: Most actions of a life that are listed.
_MAX_ACTIONS = 30


#: Least share by which traced steps are longer than the model's for a note.
_LONGER = 0.1


def forecast_lines(result: Forecast, width: int, traced_s: float | None = None) -> list[Text]:
    """Fail-slows, a table of the options, and the planner's next actions.

    Args:
        result: the forecast.
        width: available characters.
        traced_s: mean seconds of a traced step with the fail-slows, if a trace shows them.
    """
    slowdown = result.now_s / result.healthy_s
    head = f"a step takes {seconds(result.now_s)} instead of {seconds(result.healthy_s)}"
    lines = [Text(f"{head} ({slowdown:.2f}x)", style="bold")]
    for fault in result.faults:
        lines += wrap(f"  {fault.describe()}", width, indent="    ")
    if traced_s is not None and traced_s > (1 + _LONGER) * result.now_s:
        text = (
            f"  note: traced steps take {seconds(traced_s)} on average: these times leave out "
            "noise and delays between operations. Compare them with each other"
        )
        lines += wrap(text, width, indent="    ", style="dim")
    lines += [Text("")]
    columns = f"{'strategy':18}{'step s':>9}{'recovers':>12}{'once':>13}{'pays after':>13}"
    lines += [Text(columns, style="dim")]
    for option in result.options:
        lines += _option_lines(option, width)
    lines += [Text(""), *_due_lines(result, width)]
    return lines


def _option_lines(option: Option, width: int) -> list[Text]:
    name = f"{option.strategy.upper()} {TITLES[option.strategy]}"
    if not option.applicable:
        return wrap(f"{name:18}does not apply: {option.why_not}", width, indent=" " * 18)
    steps = option.pays_after_steps
    pays = f"{steps:,.0f} steps" if option.overhead_s and steps < 1e9 else "-"
    once = duration(option.overhead_s or 0.0)
    row = Text(f"{name:18}{option.step_s:9.4g}{option.recovered_text:>12}{once:>13}{pays:>13}")
    lines = [row]
    if option.strategy != "s1":
        lines += wrap(f"    {option.text}", width, indent="    ")
    for note in option.notes:
        lines += wrap(f"    note: {note}", width, indent="      ", style="dim")
    return lines


def _due_lines(result: Forecast, width: int) -> list[Text]:
    if not result.due:
        return wrap("planner: nothing to do: no allowed strategy helps", width)
    lines = [Text("planner, if nothing changes", style="bold")]
    for due in result.due:
        option = due.action.option
        text = (
            f"  after {due.after_steps:,} steps ({duration(due.after_s)}): "
            f"{option.strategy.upper()}, {option.text}: {seconds(option.now_s)} to "
            f"{seconds(option.step_s)} a step"
        )
        lines += wrap(text, width, indent="    ")
    return lines


def lives_lines(lives: Lives, width: int) -> list[Text]:
    """Completion times under each policy, and the planner's actions with their times."""
    columns = f"{'policy':24}{'completion':>14}{'slowdown':>10}{'reduced by':>12}{'actions':>9}"
    lines = [Text(columns, style="dim")]
    for name, life in lives.lives.items():
        reduced = "-" if name in ("healthy", "none") else f"{lives.reduced(name):.1%}"
        actions = str(len(life.actions)) if name not in ("healthy", "none", "oracle") else "-"
        row = f"{name:24}{duration(life.completion_s):>14}{lives.slowdown(name):10.3f}"
        style = "bold" if name == "planner" else ""
        lines.append(Text(f"{row}{reduced:>12}{actions:>9}", style=style))
    kind = "the oracle" if lives.oracle_exact else "the oracle (its search was not exhaustive)"
    text = (
        f"The planner loses {lives.competitive_ratio:.2f} times as much as {kind}, which knows "
        "when fail-slows will end."
    )
    lines += [Text(""), *wrap(text, width)]
    actions_done = lives.lives["planner"].actions
    for action in actions_done[:_MAX_ACTIONS]:
        lines += wrap(f"  {action.explain()}", width, indent="    ")
    if len(actions_done) > _MAX_ACTIONS:
        lines.append(
            Text(f"  and {len(actions_done) - _MAX_ACTIONS} more actions (--json has them all)")
        )
    return lines
