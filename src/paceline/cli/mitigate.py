"""``paceline mitigate``: what to do about fail-slows, and when."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import case_input, trace_input
from paceline.cli.case_input import CaseInput
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_floats, whole_number
from paceline.cli.trace_input import TraceInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.graph import Measured
    from paceline.mitigate.fault import Fault
    from paceline.mitigate.findings import TracedSteps
    from paceline.mitigate.planner import Action
    from paceline.mitigate.strategies import Strategies

EPILOG = """\
examples:
  paceline mitigate trace.parquet
  paceline mitigate trace.parquet --slow-worker 3,1,1.4 --overheads s2=5,s3=60,s4=1800
  paceline mitigate --simulate scenario.yaml
  tail -f events.jsonl | paceline mitigate trace.parquet --follow --state planner.json
  paceline detect train.log --json | paceline mitigate --follow

Without --slow-*, the fail-slows are those that the diagnosis of the trace finds. With them, the
trace says only how long operations usually take.
--follow reads JSON lines: {"step": 7, "duration_s": 1.31} for a step, {"step": 7, "event": "onset",
"kind": "compute", "worker": [3, 1], "factor": 1.4} and "event": "relief" for fail-slows,
and the lines of paceline detect --json. Without a trace, they show from which step on a restart
pays (S1, S4). If steps have "rank", the slowest rank's time counts.
"""

#: Options that a scenario has no use for.
_NOT_SIMULATED = (
    *("slow_worker", "slow_nic", "slow_link", "slow_dp_link", "steps_left", "follow", "job"),
    *("ignore_kinds", "keep_clocks", "layers", "seqlens", "hosts", "gpu_hour_cost"),
)

#: Option, kind of fail-slow, and the step in (dp, pp) from one end of a link to the other.
_SLOW = (
    ("slow_worker", "compute", (0, 0)),
    ("slow_nic", "nic", (0, 0)),
    ("slow_link", "link", (0, 1)),
    ("slow_dp_link", "link", (1, 0)),
)

_OVERHEADS = "s2=5,s3=60,s4=1800"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "mitigate",
        help=HELP["mitigate"],
        description="Predict by simulation the gain of each strategy against fail-slows (S1 "
        "ignore, S2 microbatches, S3 placement, S4 restart), and plan when to use it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_input.add_arguments(
        parser, help_text="the trace file; not with --simulate", optional=True
    )
    parser.add_argument(
        "--simulate",
        metavar="YAML",
        type=trace_input.file_name,
        help="simulate a job's fail-slows over its life, with and without mitigation "
        "(docs/mitigate.md)",
    )
    group = parser.add_argument_group("fail-slows (repeat for several)")
    for flag, metavar, text in (
        ("--slow-worker", "DP,PP[,PEER],FACTOR", "a worker computes slowly"),
        ("--slow-nic", "DP,PP,FACTOR", "all transfers of a worker are slow"),
        ("--slow-link", "DP,PP,FACTOR", "the link from a stage to the next is slow"),
        ("--slow-dp-link", "DP,PP,FACTOR", "the link from a replica to the next, of a stage"),
    ):
        group.add_argument(flag, metavar=metavar, action="append", default=[], help=text)
    plan = parser.add_argument_group("planner")
    plan.add_argument(
        "--overheads",
        metavar="S=SECONDS,...",
        help=f"one-off costs of the strategies (default {_OVERHEADS}); s4=never forbids one",
    )
    plan.add_argument(
        "--rule",
        choices=("loss", "savings"),
        help="apply a strategy when the loss since the onset equals its cost (default, as in the "
        "falcon paper), or when the saving that it would have brought does",
    )
    plan.add_argument(
        "--steps-left",
        type=int,
        metavar="N",
        help="steps until the job ends: a strategy must save its cost by then; with --follow, "
        "counted from the first step that is read",
    )
    plan.add_argument(
        "--follow", action="store_true", help="plan online: JSON lines from standard input"
    )
    plan.add_argument(
        "--state",
        metavar="FILE",
        type=trace_input.file_name,
        help="with --follow: continue from the planner's state in this file, and keep it up to "
        "date",
    )
    case_input.add_arguments(parser)
    case_input.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict, plan and print."""
    from paceline.errors import MitigateError

    if args.follow and args.trace is None and args.simulate is None:
        return _follow_times(args)
    if (args.trace is None) == (args.simulate is None):
        raise MitigateError("give a trace, or --simulate with a scenario; not both")
    if args.steps_left is not None and args.steps_left < 0:
        raise MitigateError(f"--steps-left must be 0 or more, not {args.steps_left}")
    if args.state and not args.follow:
        raise MitigateError("--state goes with --follow")
    if args.simulate:
        return _simulate(args)
    overhead_s = parse_overheads(args.overheads)
    names_faults = any(getattr(args, option) for option, *_ in _SLOW)
    if not names_faults and not args.follow:
        return _of_trace(args, overhead_s)
    measured, strategies = _strategies(args, overhead_s)
    faults = _faults(args, strategies.model.dp)
    if args.follow:
        return _follow(args, measured, strategies, faults)
    return _show(args, strategies, faults)


def parse_overheads(
    text: str | None, unless_named: Mapping[str, float | None] | None = None
) -> dict[str, float | None]:
    """The overheads that the text names; the others are the defaults, or as given."""
    from paceline.errors import MitigateError
    from paceline.mitigate.strategies import OVERHEAD_S, check_overhead

    overhead_s: dict[str, float | None] = {}
    for entry in text.split(",") if text else ():
        name, equals, value = entry.partition("=")
        name = name.strip().lower()
        try:
            seconds = None if value.strip() == "never" else float(value)
        except ValueError:
            equals, seconds = "", None
        if not equals or name in overhead_s:
            raise MitigateError(f"--overheads {text!r} should be like {_OVERHEADS}")
        overhead_s[name] = seconds
        check_overhead(name, seconds)
    return dict(OVERHEAD_S if unless_named is None else unless_named) | overhead_s


def _faults(args: argparse.Namespace, n_dp: int) -> tuple[Fault, ...]:
    """The named fail-slow; after the last replica comes the first, as in a ring."""
    from paceline.mitigate.fault import Fault

    faults = []
    for option, kind, (more_dp, more_pp) in _SLOW:
        usage = f"--{option.replace('_', '-')} DP,PP,FACTOR, such as 3,1,1.4, or DP,PP,PEER,FACTOR"
        for text in getattr(args, option):
            *place, factor = parse_floats(text, (3, 4), usage)
            at = tuple(whole_number(number, usage) for number in place)
            there = ((at[0] + more_dp) % n_dp, at[1] + more_pp, *at[2:])
            other_end = there if kind == "link" else None
            faults.append(Fault(kind, at, factor, other_end))
    return tuple(faults)


def _strategies(
    args: argparse.Namespace, overhead_s: dict[str, float | None]
) -> tuple[Measured, Strategies]:
    from paceline.mitigate.job_model import JobModel
    from paceline.mitigate.strategies import Strategies

    measured = TraceInput.of(args)._replace(by_rules=True).measured()
    return measured, Strategies(JobModel(measured), overhead_s)


def _of_trace(args: argparse.Namespace, overhead_s: dict[str, float | None]) -> int:
    """Fail-slows as the trace shows them."""
    from paceline.mitigate.findings import faults_of, slow_steps, traced_steps
    from paceline.mitigate.job_model import JobModel
    from paceline.mitigate.strategies import Strategies

    inputs = CaseInput.of(args)
    trace = inputs.trace._replace(by_rules=True)
    case = inputs._replace(trace=trace).case()
    faults, measured = faults_of(case), case.measured
    if not faults:
        if args.json:
            print(json.dumps({"fail_slows": [], "options": [], "planner": []}))
            return 0
        print(
            "the end of the trace shows no slow worker and no slow link; name one with "
            "--slow-worker"
        )
        return 0
    traced = traced_steps(case)
    if (steps := slow_steps(case)) is not None:
        measured = trace._replace(steps=steps).measured()
    model = JobModel(measured)
    return _show(args, Strategies(model, overhead_s), faults, traced)


def _show(
    args: argparse.Namespace,
    strategies: Strategies,
    faults: tuple[Fault, ...],
    traced: TracedSteps | None = None,
) -> int:
    """Print the forecast, beside the steps of the trace that shows the fail-slows."""
    from paceline.mitigate.forecast import forecast

    result = forecast(strategies, faults, rule=args.rule or "loss", steps_left=args.steps_left)
    if args.json:
        measured = {} if traced is None else {"measured": traced.to_mapping()}
        return _json({**result.to_mapping(), **measured})
    from paceline.report.mitigation import forecast_lines
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    print_lines(forecast_lines(result, min(console.width, 110), traced), console)
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from paceline.cli.progress import ProgressBar
    from paceline.errors import MitigateError
    from paceline.mitigate.life import compare
    from paceline.mitigate.life_yaml import load_scenario

    values = {name: getattr(args, name) for name in _NOT_SIMULATED}
    flags = [
        f"--{name.replace('_', '-')}"
        for name, value in values.items()
        if not (value is None or value is False or value in ([], ()))
    ]
    if flags:
        raise MitigateError(
            f"--simulate takes everything from its scenario; leave out {', '.join(flags)}"
        )
    scenario = load_scenario(args.simulate)
    if args.overheads:
        overhead_s = parse_overheads(args.overheads, scenario.overhead_s)
        scenario = replace(scenario, overhead_s=overhead_s)
    if args.rule:
        scenario = replace(scenario, rule=args.rule)
    with ProgressBar("living") as progress:
        lives = compare(scenario, progress)
    if args.json:
        return _json(lives.to_mapping())
    from paceline.report.mitigation import lives_lines
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    print_lines(lives_lines(lives, min(console.width, 110)), console)
    return 0


def _json(values: dict[str, Any]) -> int:
    from paceline.report.result_json import lines_of_json

    sys.stdout.write(lines_of_json(values))
    return 0


def _follow(
    args: argparse.Namespace,
    measured: Measured,
    strategies: Strategies,
    faults: tuple[Fault, ...],
) -> int:
    """Feed a planner from standard input; print its actions as soon as they are due."""
    from paceline.errors import MitigateError
    from paceline.mitigate.follow import Follower
    from paceline.mitigate.planner import Planner, load_state, save_state
    from paceline.sources.step_times import json_lines

    path: Path | None = args.state
    state = load_state(path) if path is not None and path.exists() else None
    planner = Planner(strategies, state=state, rule=args.rule or "loss")
    for fault in faults:
        if fault.name not in planner.state.setting.replaced:  # the state knows more
            planner.onset(fault, 0)
    follower = Follower(planner, measured, steps_left=args.steps_left, note=_note)

    def tell(action: Action | None) -> None:
        if path is not None:
            save_state(planner.state, path)
        if action is not None:
            text = json.dumps(action.to_mapping()) if args.json else action.explain()
            print(text, flush=True)

    for number, line in json_lines(sys.stdin, "standard input"):
        try:
            action = follower.take(line)
        except MitigateError as error:
            raise MitigateError(f"standard input:{number}: {error}") from None
        tell(action)
    tell(follower.end())
    return 0


def _follow_times(args: argparse.Namespace) -> int:
    """Without a trace: decide from detect's events and step times when a restart pays."""
    from paceline.errors import MitigateError
    from paceline.mitigate.strategies import RESTART
    from paceline.mitigate.times_only import TimesOnly
    from paceline.sources.step_times import json_lines

    options = ("slow_worker", "slow_nic", "slow_link", "slow_dp_link", "steps_left", "state")
    for name in options:
        if getattr(args, name):
            raise MitigateError(f"--{name.replace('_', '-')} needs a trace")
    planner = TimesOnly(parse_overheads(args.overheads)[RESTART])
    for number, line in json_lines(sys.stdin, "standard input"):
        try:
            answer = planner.take(line)
        except MitigateError as error:
            raise MitigateError(f"standard input:{number}: {error}") from None
        if answer is not None:
            print(json.dumps(answer.to_mapping()) if args.json else answer.explain(), flush=True)
    return 0


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
