"""``paceline admin token``, ``account`` and ``audit``: permissions, and the log of acts."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from paceline.cli import monitor_config

if TYPE_CHECKING:
    from paceline.monitor.store.tokens import Token

DAY_S = 86_400.0


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    _add_token(actions)
    _add_accounts(actions)
    _add_audit(actions)


def _add_token(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    token = actions.add_parser("token", help="create, list or revoke tokens")
    verbs = token.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser("create", help="make a token and print it, once")
    create.add_argument("name", help="the owner: a person, a job, a service")
    _add_grant(create)
    create.add_argument("--days", type=float, metavar="N", help="expires after N days")
    listed = verbs.add_parser("list", help="list all tokens, without their secrets")
    revoke = verbs.add_parser("revoke", help="make a token invalid")
    revoke.add_argument("id", type=int, help="its number in the list")
    for verb, action in ((create, _create), (listed, _list), (revoke, _revoke)):
        monitor_config.add_arguments(verb)
        verb.set_defaults(act=action)


def _add_grant(parser: argparse.ArgumentParser) -> None:
    scopes = ("push", "read", "operate", "admin")
    parser.add_argument("--scope", choices=scopes, required=True, help="what the token allows")
    parser.add_argument("--project", default="*", help="restrict it to this project (default all)")


def _add_accounts(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    account = actions.add_parser(
        "account", help="service accounts; all tokens of an account end together"
    )
    verbs = account.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser("create", help="make a service account")
    create.add_argument("name", help="name of the program")
    _add_grant(create)
    token = verbs.add_parser("token", help="make one more token of it and print it, once")
    disable = verbs.add_parser("disable", help="end it with all its tokens")
    for verb in (token, disable):
        verb.add_argument("id", type=int, help="its number in the list")
    token.add_argument("--days", type=float, metavar="N", help="expires after N days")
    listed = verbs.add_parser("list", help="list all service accounts")
    for verb, action in (
        (create, _create_account),
        (token, _account_token),
        (disable, _disable_account),
        (listed, _list_accounts),
    ):
        monitor_config.add_arguments(verb)
        verb.set_defaults(act=action)


def _add_audit(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    audit = actions.add_parser("audit", help="the log of acts: logins, tokens, silences, removals")
    audit.add_argument("--project", default="*", help="only acts in this project")
    audit.add_argument("--limit", type=int, default=100, metavar="N", help="rows (default 100)")
    audit.add_argument("--json", action="store_true", help="print a JSON object per line")
    monitor_config.add_arguments(audit)
    audit.set_defaults(act=_audit)


def _create(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.tokens import create_token

    now = time.time()
    _, secret = create_token(
        monitor_config.engine_of(config),
        args.name,
        scope=args.scope,
        project=args.project,
        now=now,
        expires_at=None if args.days is None else now + args.days * DAY_S,
        by=monitor_config.actor(),
    )
    print(secret)
    return 0


def _list(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.tokens import list_tokens

    print(f"{'id':>4}  {'scope':7}  {'project':16}  {'name':20}  {'last used':16}  state")
    for token in list_tokens(monitor_config.engine_of(config)):
        used = "never" if token.used_at is None else _date(token.used_at)
        print(
            f"{token.id:>4}  {token.scope:7}  {token.project:16}  {token.name:20}  {used:16}  "
            f"{_state(token)}"
        )
    return 0


def _revoke(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.tokens import revoke_token

    engine = monitor_config.engine_of(config)
    token = revoke_token(engine, args.id, time.time(), by=monitor_config.actor())
    print(f"token {token.id} ({token.name}) is revoked")
    return 0


def _create_account(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.accounts import create_account

    account = create_account(
        monitor_config.engine_of(config),
        args.name,
        project=args.project,
        scope=args.scope,
        now=time.time(),
        by=monitor_config.actor(),
    )
    print(f"service account {account.id}; paceline admin account token {account.id} makes a token")
    return 0


def _account_token(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.accounts import account_token

    now = time.time()
    _, secret = account_token(
        monitor_config.engine_of(config),
        args.id,
        "*",
        now=now,
        expires_at=None if args.days is None else now + args.days * DAY_S,
        by=monitor_config.actor(),
    )
    print(secret)
    return 0


def _disable_account(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.accounts import disable_account

    engine = monitor_config.engine_of(config)
    account = disable_account(engine, args.id, "*", time.time(), monitor_config.actor())
    print(f"service account {account.id} ({account.name}) is disabled")
    return 0


def _list_accounts(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.accounts import list_accounts

    print(f"{'id':>4}  {'scope':7}  {'project':16}  {'name':20}  state")
    for account in list_accounts(monitor_config.engine_of(config)):
        state = "good" if account.disabled_at is None else f"disabled {_date(account.disabled_at)}"
        row = f"{account.id:>4}  {account.scope:7}  {account.project:16}  {account.name:20}"
        print(f"{row}  {state}")
    return 0


def _audit(args: argparse.Namespace) -> int:
    config = monitor_config.config_of(args)
    from paceline.monitor.store.audit import ACTIONS, list_entries

    engine = monitor_config.engine_of(config)
    for row in reversed(list_entries(engine, args.project, None, max(1, args.limit))):
        if args.json:
            print(json.dumps(row))
            continue
        who = f"{row['kind']} {row['name']}" + (f" from {row['client']}" if row["client"] else "")
        what = f"{ACTIONS.get(row['action'], row['action'])}: {row['subject']}"
        print(f"{_date(row['at'])}  {row['project']:16}  {who}  {what}")
    return 0


def _state(token: Token) -> str:
    problem = token.problem(time.time())
    if problem:
        return problem
    return "good" if token.expires_at is None else f"good until {_date(token.expires_at)}"


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
