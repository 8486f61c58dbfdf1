"""``paceline serve``: the monitor of all jobs."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli import monitor_config
from paceline.cli.commands import HELP

if TYPE_CHECKING:
    from paceline.monitor.config import Config

_FILES = 65_536

EPILOG = """\
examples:
  paceline serve
  paceline serve --store postgresql://paceline@db/paceline --data /srv/paceline --bind 0.0.0.0:8765
  paceline serve --config monitor.yaml

The first start prints a token, once; `paceline admin token create` makes others. Log lines (JSON)
go to standard error. Ctrl-C and SIGTERM end the service once its current work is finished.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "serve",
        help=HELP["serve"],
        description="Run the monitor: it receives traces and step times, analyses them, and shows "
        "the results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    monitor_config.add_arguments(parser)
    parser.add_argument(
        "--bind",
        metavar="HOST:PORT",
        help="address to listen on (default 127.0.0.1:8765); port 0 takes a free one",
    )
    parser.add_argument(
        "--blobs",
        metavar="URL",
        help="place for traces and results: s3://BUCKET/PREFIX (default: in --data)",
    )
    parser.add_argument(
        "--instance",
        metavar="NAME",
        help="name of this instance, if several share a PostgreSQL (--store) and a bucket",
    )
    parser.add_argument(
        "--public-read", action="store_true", default=None, help="reading needs no token"
    )
    parser.add_argument("--tls-cert", metavar="PEM", help="certificate: serve HTTPS")
    parser.add_argument("--tls-key", metavar="PEM", help="the certificate's key")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    config = monitor_config.config_of(
        args,
        bind=args.bind,
        blobs=args.blobs,
        instance=args.instance,
        public_read=args.public_read,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
    )
    from paceline.monitor.instances.instance import Instance
    from paceline.monitor.log import configure
    from paceline.monitor.service import Service
    from paceline.monitor.web.app import create_app
    from paceline.monitor.web.server import listen, server_of

    configure(config.log_level)
    _allow_files()
    socket = listen(config)  # before any file is written: a second service on this port stops here
    config = _reachable(config, *socket.getsockname()[:2])
    with socket, monitor_config.private():
        service = Instance(config) if config.instance else Service(config)
        server = server_of(
            create_app(service),
            config,
            ready=lambda: _greet(service, config),
            stopping=service.bus.close,
        )
        # uvicorn stops at the first signal, then raises it again for the earlier handlers.
        before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            server.run(sockets=[socket])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0 if server.started else 1


def _allow_files() -> None:
    """Raise the limit of open files: each connection needs one, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, _FILES):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _FILES), hard))


def _reachable(config: Config, host: str, port: int) -> Config:
    """The settings with the address that users reach, for the links in alerts."""
    from dataclasses import replace
    from socket import gethostname

    if config.base_url:
        return config
    scheme = "https" if config.tls_cert else "http"
    if host in ("0.0.0.0", "::"):
        host = gethostname()
    url_host = f"[{host}]" if ":" in host else host
    return replace(config, base_url=f"{scheme}://{url_host}:{port}")


def _greet(service: Any, config: Config) -> None:
    """Print the service's address and, at the first start, the admin token."""
    import logging

    from paceline import __version__
    from paceline.monitor.log import log
    from paceline.monitor.store.tokens import create_token, list_tokens

    store = service.engine.url.set(query={}).render_as_string(hide_password=True)
    fields = {"version": __version__, "url": config.url, "data": str(config.data), "store": store}
    log(logging.INFO, "started", **fields)
    print(f"listening on {config.url}, data in {config.data}")
    if not list_tokens(service.engine):
        _, secret = create_token(service.engine, "first-token", scope="admin", now=service.clock())
        print(f"admin token, shown this once: {secret}")
    sys.stdout.flush()
