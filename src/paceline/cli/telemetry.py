"""``paceline telemetry``: which GPUs report a problem?"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from paceline.cli.commands import HELP
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from paceline.detect.gpu_health import GpuHealth
    from paceline.sources.telemetry.table import Gpu, Telemetry

EPILOG = """\
examples:
  paceline telemetry node1.csv node2.csv
  paceline telemetry dcgm.json --begin 2026-11-23T06:10 --end 2026-11-23T06:40
  paceline telemetry dcgm.json --gpu node17:3

Formats are recognised by their content:
  nvidia-smi --query-gpu=timestamp,index,clocks.sm,clocks_event_reasons.active,... --format=csv -l 5
    (one file a host, which is its name)
  Prometheus' answer to a range query of DCGM's fields, or a list of answers
  the page of dcgm-exporter, once
  xpu_timer's metrics (DLRover), as Prometheus' answer or its page
GPUs are compared with the others in the files. Telemetry is shown next to the results from step
times and traces, and never replaces them.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "telemetry",
        help=HELP["telemetry"],
        description="Name the GPUs whose clocks, throttling, temperatures, links or error counts "
        "differ from the others'.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=file_name, help="telemetry")
    parser.add_argument(
        "--gpu",
        metavar="HOST:N",
        action="append",
        default=[],
        help="show this GPU even if it is healthy; may be repeated",
    )
    parser.add_argument(
        "--begin", metavar="TIME", help="begin of the window: ISO time (UTC) or seconds"
    )
    parser.add_argument("--end", metavar="TIME", help="of the window")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, compare, print."""
    from paceline.detect.gpu_health import gpu_health
    from paceline.sources.telemetry.files import load_telemetry

    telemetry = load_telemetry(args.files)
    for note in telemetry.notes:
        print(f"note: {note}", file=sys.stderr)
    begin_s, end_s = _time(args.begin, -math.inf), _time(args.end, math.inf)
    _check_window(telemetry, begin_s, end_s)
    gpus = [_gpu(name, telemetry) for name in args.gpu]
    judged = gpu_health(telemetry, gpus=gpus, begin_s=begin_s, end_s=end_s)
    print(_json(telemetry, judged) if args.json else _text(telemetry, judged))
    return 0


def tell_beside(files: list[Path], hosts: Path | None, ranks: list[int], *, as_json: bool) -> None:
    """Print telemetry of the suspected ranks' GPUs, or of all GPUs if no place is known.

    Args:
        files: telemetry.
        hosts: file of where ranks run; None if their places are unknown.
        ranks: the suspected ranks.
        as_json: print a JSON object for each GPU.
    """
    from paceline.detect.gpu_health import gpu_health
    from paceline.sources.hosts import read_hosts
    from paceline.sources.telemetry.files import load_telemetry

    telemetry = load_telemetry(files)
    for note in telemetry.notes:
        print(f"note: {note}", file=sys.stderr)
    gpus = [] if hosts is None else _gpus_of(ranks, read_hosts(hosts), telemetry)
    if ranks and not gpus:
        reason = "give --hosts to map ranks to GPUs" if hosts is None else "not in the files"
        print(f"note: telemetry of the suspected ranks: {reason}", file=sys.stderr)
    for health in gpu_health(telemetry, gpus=gpus):
        if as_json:
            print(json.dumps({"kind": "telemetry", **_mapping(health)}))
        else:
            print(f"  telemetry: {health.explain()}")


def _gpus_of(
    ranks: list[int], hosts: dict[int, tuple[str, str]], telemetry: Telemetry
) -> list[Gpu]:
    """The GPUs that ranks run on; all GPUs of a host if its file names none."""
    places = [hosts[rank] for rank in ranks if rank in hosts]
    return [
        gpu
        for gpu in telemetry.gpus
        if any(
            gpu.host.partition(".")[0] == host.partition(".")[0] and number in ("", gpu.number)
            for host, number in places
        )
    ]


def _mapping(health: GpuHealth) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "host": health.gpu.host,
        "gpu": health.gpu.number,
        "signs": [asdict(sign) for sign in health.signs],
        "text": health.explain(),
    }


def _text(telemetry: Telemetry, judged: tuple[GpuHealth, ...]) -> str:
    n, total = sum(bool(health.signs) for health in judged), len(telemetry.gpus)
    head = f"{total:,} GPUs; {n:,} differ from the others" if total > 1 else "1 GPU"
    return "\n".join([head, *(f"  {health.explain()}" for health in judged)])


def _json(telemetry: Telemetry, judged: tuple[GpuHealth, ...]) -> str:
    return json.dumps({"gpus": len(telemetry.gpus), "judged": [_mapping(h) for h in judged]})


def _time(text: str | None, usual: float) -> float:
    from datetime import UTC, datetime

    from paceline.errors import TraceError

    if text is None:
        return usual
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(
            f"{text!r} is no time: give 2026-11-23T06:10 or seconds since 1970"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _check_window(telemetry: Telemetry, begin_s: float, end_s: float) -> None:
    from datetime import UTC, datetime

    from paceline.errors import TraceError

    if any(len(samples.between(begin_s, end_s).time_s) for samples in telemetry.of.values()):
        return
    times = [samples.time_s for samples in telemetry.of.values()]
    first, last = min(t[0] for t in times), max(t[-1] for t in times)
    told = (datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (first, last))
    raise TraceError(f"no sample lies in this time; the files have {' to '.join(told)}")


def _gpu(name: str, telemetry: Telemetry) -> Gpu:
    from difflib import get_close_matches

    from paceline.errors import TraceError
    from paceline.sources.telemetry.table import Gpu

    host, _, number = name.rpartition(":")
    gpu = Gpu(host, number)
    if gpu in telemetry.gpus:
        return gpu
    names = [f"{known.host}:{known.number}" for known in telemetry.gpus]
    near = get_close_matches(name, names, n=1) or names[:1]
    raise TraceError(f"the files have no GPU {name!r}; they have {len(names):,}, such as {near[0]}")
