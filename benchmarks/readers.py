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
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from multiprocessing import get_context
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
    return "-c", CALL_LOG, *(str(path) for path in sorted(folder.iterdir()))


#: Reads the call logs that follow, and no more of the command.
CALL_LOG = (
    "import sys; from pathlib import Path; from paceline.sources.call_logs.files import *; "
    "load_call_log([Path(p) for p in sys.argv[1:]])"
)


def flight_recorder(folder: Path, mb: float, *, text: bool) -> tuple[str, ...]:
    """A dump of 20,000 entries a rank, the same of all ranks."""
    from test_sources_flight_recorder import dump

    data = json.dumps(dump(20_000)).encode() if text else pickle.dumps(dump(20_000), 2)
    for rank in range(max(1, round(mb * MB / len(data)))):
        (folder / f"trace_rank_{rank}{'.json' * text}").write_bytes(data)
    return "-c", CALL_LOG, *(str(path) for path in sorted(folder.iterdir()))


def clog(folder: Path, mb: float) -> tuple[str, ...]:
    """torchcomms' log of four ranks."""
    from test_sources_torchcomms import clog as head

    def calls() -> Iterator[str]:
        for n in count():
            at = 0.1 * n
            yield (
                f"C2|Q|work_id={n}|+{at:.3f}\nC2|S|+{at + 0.001:.3f}\nC2|E|+{at + 0.02:.3f}\n"
                f"C2|W|+{at + 0.021:.3f}"
            )

    for rank in range(4):
        path = folder / f"clog_{rank}.log"
        fill(path, mb * MB / 4, calls(), (head(rank, ranks=4), "\n", "\n"))
    return "-c", CALL_LOG, *(str(path) for path in sorted(folder.iterdir()))


def ras(folder: Path, mb: float) -> tuple[str, ...]:
    """NCCL RAS: one status, communicators of 10,000 ranks."""
    from ras_files import communicator, rank, status

    ranks = [
        rank(n, counts=1_000_000, host=f"10.0.{n // 2000}.{n // 8 % 250}") for n in range(10_000)
    ]
    n_comms = max(1, int(mb * MB / len(communicator(ranks))))
    names = (f"0x{n:x}" for n in range(n_comms))
    (folder / "a.json").write_text(status(*(communicator(ranks, name=name) for name in names)))
    read = "import sys; from pathlib import Path; from paceline.sources import nccl_ras; "
    return "-c", read + "nccl_ras.read(Path(sys.argv[1]))", str(folder / "a.json")


def chakra(folder: Path, mb: float) -> tuple[str, ...]:
    """A linked trace: the nodes of the tests, one after the other."""
    from test_sources_chakra import one_rank

    once = json.loads(one_rank(folder / "a.json").read_text())

    def nodes() -> Iterator[str]:
        for n in count():
            shifted = [
                {**node, "id": 10 * n + i, **({"ts": node["ts"] + 400 * n} if "ts" in node else {})}
                for i, node in enumerate(once["nodes"])
                if n == 0 or not node["name"].startswith("ProfilerStep")
            ]
            yield json.dumps(shifted, indent=4)[1:-1].strip("\n")

    start = json.dumps({**once, "nodes": []}, indent=4)
    fill(folder / "a.json", mb * MB, nodes(), (start[: start.rindex("]")], ",\n", "]}"))
    return "ranks", str(folder / "a.json")


def raw_log(folder: Path, mb: float) -> tuple[str, ...]:
    """veScale's raw log: a flush of 4 steps after the other."""
    from fused_jobs import play
    from test_sources_ndtimeline_raw import DP, STAGES, raw_lines

    rows = play(STAGES, DP)

    def flushes() -> Iterator[str]:
        for n in count():
            later = [(*r[:2], r[2] + 4 * n, r[3], r[4] + 100 * n, r[5] + 100 * n) for r in rows]
            yield "\n".join(raw_lines(later))

    fill(folder / "timeline_run0_raw.log", mb * MB, flushes(), ("", "\n", "\n"))
    return "import", str(folder), "-o", str(folder / "t.parquet")


def recording(folder: Path, mb: float) -> tuple[str, ...]:
    """``paceline.record``'s files of four ranks, step after step."""
    from import_files import PROFILED, make_trace
    from paceline import blockfile
    from recordings import record_trace

    record_trace(make_trace(PROFILED, steps=1, microbatches=32), folder)
    for path in folder.iterdir():
        data = path.read_bytes()
        at = next(i for i in range(len(data)) if step_block(data, i) is not None)
        operations = step_block(data, at)
        assert operations is not None
        size, zero = blockfile.STEP_HEAD.size, blockfile.STEP_HEAD.unpack_from(operations)
        n_ops = (len(operations) - size) // blockfile.OP.size
        with path.open("wb") as file:
            written = file.write(data[:at])
            for number in count():
                if written >= mb * MB / 4:
                    break
                head = blockfile.STEP_HEAD.pack(number, zero[1] + number * 10**10, zero[2], n_ops)
                written += file.write(blockfile.block(blockfile.STEP, head + operations[size:]))
    return "import", str(folder), "-o", str(folder / "t.parquet")


def step_block(data: bytes, at: int) -> bytes | None:
    """The content of the block of a step that begins there."""
    from paceline import blockfile

    for length in range(blockfile.STEP_HEAD.size, len(data) - at):
        content = data[at + 16 : at + 16 + length]
        if data[at : at + 4] != b"\xb1BLK" or data[at + 4] != blockfile.STEP:
            return None
        if blockfile.block(blockfile.STEP, content) == data[at : at + 16 + length]:
            return content
    return None


def parquet(folder: Path, mb: float) -> tuple[str, ...]:
    """Our own format, not compressed: the steps of a small trace one after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from import_files import PROFILED, make_trace
    from paceline.sources import parquet as ours

    ours.write(make_trace(PROFILED, steps=100, microbatches=32), folder / "small.parquet")
    table = pq.read_table(folder / "small.parquet")
    (folder / "small.parquet").unlink()
    steps, start = (table[name].to_numpy() for name in ("step", "start_ts"))
    n_copies = max(1, round(mb * MB / table.nbytes))
    path = folder / "t.parquet"
    options = {"compression": "none", "use_dictionary": False}
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for n in range(n_copies):
            later = {"step": (steps + 100 * n).astype(steps.dtype), "start_ts": start + 1e4 * n}
            columns = [
                pa.array(later[name]) if name in later else table[name]
                for name in table.column_names
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=table.schema))
    return "-c", "import sys; from paceline.sources import load; load(sys.argv[1])", str(path)


def timers(folder: Path, mb: float) -> tuple[str, ...]:
    """Megatron-LM's timers in a text log."""
    from test_timer_logs import iteration, min_max

    lines = (iteration(n, 900.0 + n % 7) + min_max(100.5, 130.25) for n in count(1))
    fill(folder / "train.log", mb * MB, lines, ("", "", ""))
    return "times", str(folder / "train.log")


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
    "flight-recorder": partial(flight_recorder, text=False),
    "flight-recorder-json": partial(flight_recorder, text=True),
    "clog": clog,
    "ras": ras,
    "chakra": chakra,
    "raw-log": raw_log,
    "recording": recording,
    "parquet": parquet,
    "timers": timers,
}


def measure(name: str, write: Callable[[Path, float], tuple[str, ...]], mb: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Linux counts the memory of the process that starts another to it, so that one stays small.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            arguments = pool.submit(write, Path(folder), mb).result()
        size_mb = sum(path.stat().st_size for path in Path(folder).iterdir()) / MB
        env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        command = [
            sys.executable,
            *(() if arguments[0] == "-c" else ("-m", "paceline")),
            *arguments,
        ]
        child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(
        f"{name:20s} {size_mb:7.0f} MB  {cpu_s:6.1f} s of CPU time  {size_mb / cpu_s:5.0f} MB/s  "
        f"{usage.ru_maxrss / 1000:5.0f} MB of memory  exit code {os.waitstatus_to_exitcode(status)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=250)
    parser.add_argument("--format", choices=WRITERS, action="append")
    parser.add_argument("--kineto")
    args = parser.parse_args()
    if args.kineto:
        measure("kineto", partial(kineto, profile=args.kineto), args.mb)
    for name in args.format or () if args.kineto else args.format or WRITERS:
        measure(name, WRITERS[name], args.mb)


if __name__ == "__main__":
    main()
