"""``paceline otlp``: take in the spans that a running job sends."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import TYPE_CHECKING

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name
from paceline.extras import pip_install

if TYPE_CHECKING:
    from paceline.monitor.otlp import Receiver

EPILOG = """\
examples:
  paceline otlp -o runs/job-18
  paceline otlp --listen 10.0.0.7:4318 -o runs/job-18

It prints the environment variables with which to run the job (Megatron-LM, unmodified). Without
them only one rank sends spans, without steps and microbatches, over gRPC, which this command does
not receive.

Ctrl-C or SIGTERM ends it. Spans are appended to an existing otlp.jsonl in the folder. Anyone who
reaches the address can send spans: use the loopback or a private network.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "otlp",
        help=HELP["otlp"],
        description="Receive spans by OTLP/HTTP (protobuf or JSON) and keep them in a folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        default=("127.0.0.1", 4318),
        help="address to listen on (default 127.0.0.1:4318); port 0 takes a free one",
    )
    parser.add_argument(
        *("-o", "--out"),
        metavar="FOLDER",
        type=file_name,
        required=True,
        help="folder for the spans: FOLDER/otlp.jsonl",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from paceline.monitor.otlp import Receiver
    from paceline.sources.otlp import environment, protobuf_encoding

    ended = threading.Event()
    receiver = Receiver(args.out, *args.listen)
    before = {s: signal.signal(s, lambda *_: ended.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    # A daemon, so that the process ends if anything below fails.
    thread = threading.Thread(target=receiver.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        if receiver.file.torn_bytes:
            _note(f"removed {receiver.file.torn_bytes:,} bytes of a request that was cut off")
        if not protobuf_encoding.available():
            _note(f"protobuf needs {pip_install('otlp')}; only JSON is taken")
        print(f"listening on {receiver.url}, writing {receiver.file.path}")
        print("run the job, Megatron-LM unmodified, with:")
        for variable, value in environment(receiver.url).items():
            print(f"  export {variable}={value}")
        sys.stdout.flush()
        while not ended.wait(3600.0):  # a wait without limit would not see signals everywhere
            pass
    finally:
        receiver.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    print(_summary(receiver))
    return 0


def _summary(receiver: Receiver) -> str:
    counts = receiver.counts
    text = (
        f"stopped: {counts.requests:,} requests with {counts.spans:,} spans, "
        f"{counts.bytes:,} bytes, in {receiver.file.path}"
    )
    if counts.refused:
        refusals = ", ".join(f"{n:,} with {status}" for status, n in sorted(counts.refused.items()))
        text += f"; refused: {refusals}"
    return text


def _note(message: str) -> None:
    print(f"note: {message}", file=sys.stderr)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no HOST:PORT; write, for example, 127.0.0.1:4318 or [::1]:4318"
        )
    return host, int(port)
