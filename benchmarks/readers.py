"""Large files of each format: how fast they are read, and in how much memory.

    python benchmarks/readers.py [--mb 250] [--format ndtimeline] [--kineto PROFILE]

Files are written by what the tests write, step after step, until they have that many megabytes.
``--kineto``: a real profile of one rank, as JSON or gzip, whose events are repeated. CPU time and
peak memory are those of a process that runs the whole command; of NCCL Inspector's logs the reader.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

STEP_S = 10_000
MB = 1_000_000


def fill(path: Path, n_bytes: float, items: Iterator[str], ends: tuple[str, str, str]) -> None:
    """Items between the beginning and the end, with what stands between two, to a size."""
    begin, between, end = ends
    with path.open("w") as file:
        size = file.write(begin + next(items))
        while size < n_bytes:
            size += file.write(between + next(items))
        file.write(end)


def ndtimeline(folder: Path, mb: float) -> tuple[str, ...]:
    from import_files import PROFILED, make_trace, timelines

    hosts = timelines(make_trace(PROFILED, steps=1, microbatches=32), folder)
    once = [json.loads(host.read_text()) for host in hosts]
    n_steps = int(mb * MB / sum(len(json.dumps(events)) for events in once))

    def steps(events: list[dict]) -> Iterator[str]:
        for number in range(n_steps):
            for event in events:
                args = {**event["args"], "step": number}
                yield json.dumps({**event, "ts": event["ts"] + number * STEP_S * 1e6, "args": args})

    for path, events in zip(hosts, once, strict=True):
        with path.open("w") as file:
            file.write("[")
            for i, text in enumerate(steps(events)):
                file.write(f",{text}" if i else text)
            file.write("]")
    return "import", str(folder), "-o", str(folder / "t.parquet")


def otlp(folder: Path, mb: float) -> tuple[str, ...]:
    from jobs import Spec, make_rows
    from otlp_spans import WITH_SPANS, requests_of

    rows = make_rows(Spec(pp=2, microbatches=(32, 32), steps=1, **WITH_SPANS))
    requests = [json.dumps(request) for request in requests_of(rows)]

    def shifted(number: int) -> Iterator[str]:
        for text in requests:
            request = json.loads(text)
            for span in spans_of(request):
                for key in ("startTimeUnixNano", "endTimeUnixNano"):
                    span[key] = str(int(span[key]) + number * STEP_S * 10**9)
                for key in ("spanId", "parentSpanId"):
                    if span.get(key):
                        span[key] = f"{number + 1:08x}{span[key][8:]}"
                for attribute in span.get("attributes", ()):
                    if attribute["key"] == "megatron.iteration":
                        attribute["value"] = {"intValue": str(number)}
            yield json.dumps(request)

    n_steps = int(mb * MB / sum(map(len, requests)))
    with (folder / "spans.jsonl").open("w") as file:
        for number in range(n_steps):
            file.writelines(f"{text}\n" for text in shifted(number))
    return "import", str(folder / "spans.jsonl"), "-o", str(folder / "t.parquet")


def spans_of(request: dict) -> Iterator[dict]:
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def inspector(folder: Path, mb: float) -> tuple[str, ...]:
    from test_sources_nccl_inspector import line

    for rank in range(2):
        calls = (
            json.dumps(line(rank, number, 1000 + 5000 * number, verbose=True)) for number in count()
        )
        path = folder / f"node-{rank}-pid{100 + rank}.log"
        fill(path, mb * MB / 2, calls, ("", "\n", "\n"))
    read = "import sys; from pathlib import Path; from paceline.sources.call_logs.files import *; "
    files = (str(path) for path in sorted(folder.iterdir()))
    return "-c", read + "load_call_log([Path(p) for p in sys.argv[1:]])", *files


def kineto(folder: Path, mb: float, profile: str) -> tuple[str, ...]:
    with gzip.open(profile) if profile.endswith(".gz") else Path(profile).open("rb") as file:
        text = file.read().decode()
    start = text.index("[", text.index('"traceEvents"'))
    _, end = json.JSONDecoder().raw_decode(text, start)
    # As Kineto lays them out, also where a copy follows another.
    events = text[start + 1 : end - 1].strip()
    ends = text[: start + 1] + "\n  ", ",\n  ", "\n  " + text[end - 1 :]
    fill(folder / "a.json", mb * MB, (events for _ in count()), ends)
    return "ranks", str(folder / "a.json")


WRITERS: dict[str, Callable[[Path, float], tuple[str, ...]]] = {
    "ndtimeline": ndtimeline,
    "otlp": otlp,
    "inspector": inspector,
}


def measure(name: str, write: Callable[[Path, float], tuple[str, ...]], mb: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = write(Path(folder), mb)
        size_mb = sum(path.stat().st_size for path in Path(folder).iterdir()) / MB
        env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        command = [
            sys.executable,
            *(() if arguments[0] == "-c" else ("-m", "paceline")),
            *arguments,
        ]
        child = os.spawnve(os.P_NOWAIT, sys.executable, command, env)
        _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(
        f"{name:12s} {size_mb:7.0f} MB  {cpu_s:6.1f} s of CPU time  {size_mb / cpu_s:5.0f} MB/s  "
        f"{usage.ru_maxrss / 1000:5.0f} MB of memory  exit code {os.waitstatus_to_exitcode(status)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=250)
    parser.add_argument("--format", choices=WRITERS, action="append")
    parser.add_argument("--kineto")
    args = parser.parse_args()
    if args.kineto:
        measure("kineto", lambda folder, mb: kineto(folder, mb, args.kineto), args.mb)
    for name in args.format or () if args.kineto else args.format or WRITERS:
        measure(name, WRITERS[name], args.mb)


if __name__ == "__main__":
    main()
