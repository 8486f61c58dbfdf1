"""Faults of instances, database and bucket: python benchmarks/monitor_faults.py [--rounds 100].

Each round makes each fault of tests/monitor_faults.py once, in another order. The bucket is moto's
S3 server where it is installed (pip install 'moto[server]' s3fs), else a folder that has no faults.
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


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with a bucket; 0 where none is installed."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ImportError:
        yield 0
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    os.environ |= {**dict.fromkeys(names, "test"), "AWS_DEFAULT_REGION": "us-east-1"}
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}").mkdir("paceline")
    try:
        yield port
    finally:
        server.stop()


def main() -> None:
    """Break things, and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--seed", type=int, default=os.getpid())
    args = parser.parse_args()
    paceline.client.CHUNK_BYTES = 4096
    began = time.monotonic()
    with s3_server() as port, tempfile.TemporaryDirectory(prefix="paceline-faults-") as name:
        found = monitor_faults.run(
            Path(name),
            args.rounds,
            n=args.instances,
            s3=port,
            seed=args.seed,
            only=args.only,
            say=lambda line: print(f"{time.monotonic() - began:.0f} s: {line}", flush=True),
        )
    print(f"seed {args.seed}, {args.instances} instances, {time.monotonic() - began:.0f} s")
    for key, value in found.items():
        print(f"  {key}: {value}")


if __name__ == "__main__":
    main()
