"""Lines for the terminal: strategies against fail-slows, and lives of jobs with them."""

from __future__ import annotations

from rich.text import Text

from paceline.mitigate.findings import TracedSteps
from paceline.mitigate.forecast import Forecast
from paceline.mitigate.life import Lives
from paceline.mitigate.strategies import RESTART, TITLES, Option
from paceline.report.layout import wrap
from paceline.units import duration, seconds

#: Most actions of a life that are listed.
_MAX_ACTIONS = 30


#: Least shares by which traced steps are longer than the model's, and their slowdown is unlike it,
#: for a note.
_LONGER, _UNLIKE = 0.1, 0.03


def forecast_lines(result: Forecast, width: int, traced: TracedSteps | None = None) -> list[Text]:
    """Fail-slows, a table of the options, and the planner's next actions.

    Args:
        result: the forecast.
        width: available characters.
        traced: the traced steps, if a trace shows the fail-slows.
    """
    slowdown = result.now_s / result.healthy_s
    head = f"a step takes {seconds(result.now_s)} instead of {seconds(result.healthy_s)}"
    lines = [Text(f"{head} ({slowdown:.2f}x)", style="bold")]
    for fault in result.faults:
        lines += wrap(f"  {fault.describe()}", width, indent="    ")
    if traced is not None and (text := _traced(traced, result)):
        lines += wrap(f"  {text}", width, indent="    ", style="dim")
    lines += [Text("")]
    columns = f"{'strategy':18}{'step s':>9}{'recovers':>12}{'once':>13}{'pays after':>13}"
    lines += [Text(columns, style="dim")]
    for option in result.options:
        lines += _option_lines(option, width)
    lines += [Text(""), *_due_lines(result, width)]
    return lines


def _traced(traced: TracedSteps, result: Forecast) -> str:
    """The traced steps, where the simulated ones are others; "" where they agree."""
    if traced.healthy_s is None or traced.slow_s <= traced.healthy_s:
        if traced.slow_s <= (1 + _LONGER) * result.now_s:
            return ""
        return (
            f"note: traced steps take {seconds(traced.slow_s)} in the median: these times leave "
            "out noise and delays between operations. Compare them with each other"
        )
    factor = traced.slow_s / traced.healthy_s
    if abs(result.now_s / result.healthy_s / factor - 1) <= _UNLIKE:
        return ""
    text = (
        f"note: traced steps take {seconds(traced.slow_s)}, and {seconds(traced.healthy_s)} "
        f"without this ({factor:.2f}x): the times here leave out noise and delays between "
        "operations"
    )
    restart = next(option for option in result.options if option.strategy == RESTART)
    if restart.overhead_s and restart.applicable:
        steps = restart.overhead_s / (traced.slow_s - traced.healthy_s)
        text += f". By the traced times a restart pays after {steps:,.0f} steps"
    return text


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
