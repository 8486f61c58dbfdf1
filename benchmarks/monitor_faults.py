"""Faults of service, database, bucket, disk, clock, network: python benchmarks/monitor_faults.py

  --instances 3   instances and a worker; 0: one service that has the store to itself
  --rounds 100    each round makes each fault of tests/monitor_faults.py once, in another order
  --minutes 40    begin no new round after that

The bucket is the S3 server "s3rver" where PACELINE_S3RVER names a folder in which ``npm install
s3rver`` was run; else moto's where it is installed (pip install 'moto[server]' s3fs), which cannot
be killed, as it forgets its objects; else a folder, which has no faults.

Printed: a table in Markdown, and what was compared at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import monitor_faults
import paceline.client
from monitor_wires import S3rver


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[tuple[int, S3rver | None]]:
    """The port of an S3 server with a bucket, 0 where none is installed; and what can kill it."""
    try:
        import s3fs
    except ImportError:
        yield 0, None
        return
    if S3rver.program() is not None:
        _log_in("S3RVER")
        with S3rver(folder) as bucket:
            yield bucket.port, bucket
        return
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        yield 0, None
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _log_in("test")
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}").mkdir("paceline")
    try:
        yield port, None
    finally:
        server.stop()


def _log_in(key: str) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    os.environ |= {**dict.fromkeys(names, key), "AWS_DEFAULT_REGION": "us-east-1"}


def main() -> None:
    """Break things, and say what became of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--seed", type=int, default=os.getpid())
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which is kept")
    args = parser.parse_args()
    paceline.client.CHUNK_BYTES = 4096
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="paceline-faults-")
        folder = args.keep or Path(stack.enter_context(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        port, bucket = stack.enter_context(s3_server(folder / "s3"))
        found = monitor_faults.run(
            folder,
            args.rounds,
            n=args.instances,
            s3=port,
            seed=args.seed,
            only=args.only,
            alone=not args.instances,
            bucket=bucket,
            for_s=args.minutes * 60,
            say=lambda line: print(f"{time.monotonic() - began:.0f} s: {line}", flush=True),
        )
    outcomes = found.pop("outcomes")
    seconds = time.monotonic() - began
    print(f"seed {args.seed}, {args.instances} instances, {seconds:.0f} s")
    print(f"load {os.getloadavg()[1]:.1f} of {os.cpu_count()} cores")
    print(monitor_faults.table(outcomes))
    for key, value in found.items():
        print(f"  {key}: {value}")


if __name__ == "__main__":
    main()
