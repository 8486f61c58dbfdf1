"""``paceline alerts``: test the channels; list, acknowledge and silence the alerts that fire."""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.cli import monitor_config
from paceline.cli.commands import HELP
from paceline.errors import MonitorError
from paceline.units import moment

if TYPE_CHECKING:
    from paceline.monitor.alerts.notice import Notice
    from paceline.monitor.alerts.rule import Rule

EPILOG = """\
examples:
  paceline alerts rules --config monitor.yaml
  paceline alerts test --rule slow-job --config monitor.yaml
  paceline alerts list --firing
  paceline alerts acknowledge 17 --hours 2 --comment "the host is being drained"
  paceline alerts silence --rule job-silent --job job-17 --hours 8 --comment "moves to other hosts"

docs/alerts.md describes the file of rules and channels.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "alerts",
        help=HELP["alerts"],
        description="The alerts of a monitor: rules, channels, firing alerts, silences.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    rules = actions.add_parser("rules", help="the rules and channels in force")
    test = actions.add_parser("test", help="send a made-up alert of a rule to the channels")
    test.add_argument("--rule", default="slow-job", help="which rule (default slow-job)")
    test.add_argument("--channel", help="only this channel (default all that take the rule)")
    test.add_argument("--dry-run", action="store_true", help="print it, send nothing")
    listed = actions.add_parser("list", help="alerts and silences")
    listed.add_argument("--firing", action="store_true", help="only firing alerts")
    listed.add_argument("--json", action="store_true", help="print a JSON object per alert")
    _add_acknowledge(actions)
    _add_silence(actions)
    for action, act in ((rules, _rules), (test, _test), (listed, _list)):
        monitor_config.add_arguments(action)
        action.set_defaults(act=act)
    parser.set_defaults(run=run)


def _add_acknowledge(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    acknowledge = actions.add_parser(
        "acknowledge", help="say that you look at alerts; they are told as before"
    )
    acknowledge.add_argument("ids", type=int, nargs="+", metavar="ID", help="numbers of alerts")
    acknowledge.add_argument("--hours", type=float, default=4.0, help="how long (default 4)")
    acknowledge.add_argument("--comment", default="", help="why")
    acknowledge.add_argument("--end", action="store_true", help="you no longer look at them")
    monitor_config.add_arguments(acknowledge)
    acknowledge.set_defaults(act=_acknowledge)


def _add_silence(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    silence = actions.add_parser("silence", help="send no messages about some alerts for a while")
    silence.add_argument(
        "--rule", help="only this rule, or rules that match this pattern (default any)"
    )
    silence.add_argument(
        "--job", help="only this job, or jobs that match this pattern (default any)"
    )
    silence.add_argument("--project", default="*", help="only this project (default all)")
    silence.add_argument("--hours", type=float, default=4.0, help="how long, in hours (default 4)")
    silence.add_argument("--comment", default="", help="why")
    silence.add_argument("--end", type=int, metavar="ID", help="end the silence with this number")
    monitor_config.add_arguments(silence)
    silence.set_defaults(act=_silence)


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    return int(args.act(args))


def _rules(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.alerts.settings import load_settings

    settings = load_settings(config.alerts, config.silent_after_s)
    for rule in settings.rules:
        print(f"{rule.name:16} {rule.importance:8} {rule.explain()}")
    for route in settings.routes:
        print(f"channel {route.channel.name}: {type(route.channel).__name__}; {route.explain()}")
    if not settings.routes:
        print("no channel: alerts are shown on the page only (docs/alerts.md)")
    return 0


def _test(args: argparse.Namespace) -> int:
    """Send; exit code 1 if a channel did not take it."""
    config = monitor_config.config_of(args)
    from paceline.monitor.alerts.settings import load_settings

    settings = load_settings(config.alerts, config.silent_after_s)
    rules = {rule.name: rule for rule in settings.rules}
    if args.rule not in rules:
        raise MonitorError(f"there is no rule {args.rule}; known are {', '.join(rules)}")
    rule, now = rules[args.rule], time.time()
    notice = _made_up(rule, config.url, now)
    if args.dry_run:
        print("\n".join([notice.title, *notice.lines()]))
        return 0
    routes = [r for r in settings.routes if args.channel in (None, r.channel.name)]
    if args.channel is None:
        routes = [r for r in routes if r.takes(rule.name, "test", rule.importance)]
    if not routes:
        raise MonitorError("no channel takes this; name one in the settings' file of alerts")
    failed = 0
    for route in routes:
        try:
            route.channel.send([notice], now)
            print(f"{route.channel.name}: delivered")
        except MonitorError as error:
            failed += 1
            print(f"{route.channel.name}: failed: {error}")
    return 1 if failed else 0


def _made_up(rule: Rule, base: str, now: float) -> Notice:
    from paceline.monitor.alerts.notice import FIRING, Notice

    return Notice(
        id=0,
        status=FIRING,
        rule=rule.name,
        importance=rule.importance,
        project="test",
        job="test",
        headline=f"This is a test of the rule {rule.name} ({rule.explain()}); nothing is wrong.",
        cause="worker",
        place="worker dp 3, stage 1",
        gain="replace worker dp 3, stage 1 (saves 12.0% of the step)",
        url=f"{base}/alerts",
        started_at=now,
        labels=rule.labels,
    )


def _list(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store import alerts

    engine, now = monitor_config.engine_of(config), time.time()
    rows = alerts.list_alerts(engine, "*", status="firing" if args.firing else "")
    for row in rows:
        if args.json:
            print(json.dumps(row))
        else:
            start_text = f"{moment(row['started_at'])} UTC"
            head = f"{row['id']:>5}  {row['status']:8}  {row['importance']:8}  {start_text}"
            print(f"{head}  {row['project']}/{row['job']}  {row['rule']}: {row['headline']}")
            if row["status"] == "firing" and (row["acknowledged_until"] or 0.0) > now:
                print(f"{'':7}acknowledged by {_who_and_why(row)}")
    if args.json:
        return 0
    for row in alerts.list_silences(engine, "*", now):
        end_text = f"{moment(row['until'])} UTC"
        scope = f"rule {row['rule'] or 'any'}, job {row['job'] or 'any'}, project {row['project']}"
        comment = f": {row['comment']}" if row["comment"] else ""
        print(f"silence {row['id']} until {end_text}: {scope}{comment}")
    if not rows:
        print("nothing fires" if args.firing else "no alerts")
    return 0


def _who_and_why(row: Mapping[str, Any]) -> str:
    end_text = f"{moment(row['acknowledged_until'])} UTC"
    comment = f": {row['acknowledged_why']}" if row["acknowledged_why"] else ""
    return f"{row['acknowledged_by']} until {end_text}{comment}"


def _acknowledge(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.acknowledgements import acknowledge, end_acknowledgement

    engine, now, by = monitor_config.engine_of(config), time.time(), monitor_config.actor()
    if args.end:
        done = [each for each in args.ids if end_acknowledgement(engine, each, "*", now, by)]
    else:
        until, comment = now + args.hours * 3600, args.comment
        done = acknowledge(engine, args.ids, "*", until=until, comment=comment, now=now, by=by)
    missing = ", ".join(str(each) for each in args.ids if each not in done)
    for each in done:
        hours = f"{args.hours:g} hour{'s' * (args.hours != 1)}"
        state = "no longer acknowledged" if args.end else f"acknowledged for {hours}"
        print(f"alert {each} is {state}")
    if missing:
        state = "is acknowledged" if args.end else "fires"
        raise MonitorError(f"no alert {missing} {state}; paceline alerts list shows them")
    return 0


def _silence(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store import alerts

    engine, now = monitor_config.engine_of(config), time.time()
    if args.end is not None:
        if not alerts.end_silence(engine, args.end, "*", now, monitor_config.actor()):
            raise MonitorError(f"no silence {args.end} holds; paceline alerts list shows them")
        print(f"silence {args.end} is over")
        return 0
    from paceline.monitor.alerts.settings import load_settings

    rules = [rule.name for rule in load_settings(config.alerts, config.silent_after_s).rules]
    if args.rule is not None and not fnmatch.filter(rules, args.rule):
        raise MonitorError(f"there is no rule {args.rule}; known are {', '.join(rules)}")
    number = alerts.add_silence(
        engine,
        args.project,
        rule=args.rule,
        job=args.job,
        until=now + args.hours * 3600,
        comment=args.comment,
        now=now,
        by=monitor_config.actor(),
    )
    print(f"silence {number} holds for {args.hours:g} hours; --end {number} ends it")
    return 0
