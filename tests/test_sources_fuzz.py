"""Every reader, on damaged files, for a fixed time: it reads or refuses, and raises nothing else.

PACELINE_FUZZ_S sets the seconds per reader, PACELINE_FUZZ_SEED what the damage is: a failure names
the seed and the number of the case, which make the same file again.
"""

import copy
import gzip
import json
import os
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import requires
import test_sources_chakra
import test_sources_flight_recorder
import test_sources_nccl_inspector
import test_sources_nccl_metrics
import test_sources_torchcomms
import test_telemetry
import test_timer_logs
from gpu_profiles import fsdp_step, job
from import_files import PROFILED, ProfileWriter, make_trace, timelines
from jobs import Spec, make_rows
from nsight_files import two_processes
from otlp_spans import WITH_SPANS, requests_of
from paceline.detect.gpu_health import gpu_health
from paceline.detect.host_times import report_times
from paceline.detect.mean_waits import mean_waits
from paceline.detect.not_arrived import not_arrived
from paceline.errors import PacelineError
from paceline.ranks import rank_report
from paceline.sources import importers, kineto, load, nccl_metrics, nccl_ras, otlp, parquet
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.host_times import load_host_times
from paceline.sources.hosts import read_hosts
from paceline.sources.job_file import read_job
from paceline.sources.otlp import protobuf_encoding
from paceline.sources.recording import load_recorded_step_times
from paceline.sources.seqlens import read_seqlens
from paceline.sources.step_times import load_step_times
from paceline.sources.telemetry.files import load_telemetry
from ras_files import communicator, missing, rank, saved
from recordings import record_trace
from rocpd_files import write_rocpd
from rocprof_files import write_csv, write_json
from xpu_timer_files import one_rank

SECONDS = float(os.environ.get("PACELINE_FUZZ_S", "1"))
SEED = int(os.environ.get("PACELINE_FUZZ_SEED", "0"))

#: Bytes that mean something in one format or another.
WORDS = (
    *(b"-", b"9" * 30, b"1e999", b"NaN", b"null", b"{", b"]", b'"', b",", b"\n", b"\0", b"\xff"),
    *(b"\xef\xbb\xbf", b"\x1b[31m", b"[" * 5000, b"\xff\xff\xff\x7f", b"\x80" * 9),
)

#: Values of other types, for those of JSON.
VALUES = (
    *(None, True, -1, 0, 1, 2.5, 2**31, 2**63, 10**400, 1e308, -1e18, float("nan"), float("inf")),
    *("", "x", "0", "9" * 30, "\x1b", [], {}, [[1]], {"a": 1}),
)

TRACE = make_trace(PROFILED, steps=2, microbatches=2)
SPANS = requests_of(
    make_rows(
        Spec(
            pp=2,
            microbatches=(2, 2),
            steps=1,
            **WITH_SPANS,
        )
    )
)


def text_of(values: list[object]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def recordings(folder: Path) -> list[Path]:
    record_trace(TRACE, folder)
    return sorted(folder.glob("*.blocks"))


def parquet_trace(folder: Path) -> list[Path]:
    parquet.write(TRACE, folder / "t.parquet")
    return [folder / "t.parquet"]


def protobuf(folder: Path) -> list[Path]:
    requires.installed("opentelemetry.proto")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ParseDict(SPANS[0], ExportTraceServiceRequest())
    return [write(folder / "a.bin", message.SerializeToString())]


def table(folder: Path, name: str, **columns: list) -> list[Path]:
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return [folder / f"{name}.parquet"]


def raw_log(folder: Path) -> list[Path]:
    names = ("forward-compute", "backward-compute")
    told = [
        f"{name} rank={rank} step=0 dp={rank} pp=0 tp=0 ts={2 * n} dur=1.5\n"
        for rank in range(2)
        for n, name in enumerate(names)
    ]
    return [write(folder / "a.log", "".join(told).encode())]


def call_table(folder: Path, csv: bool) -> list[Path]:
    if csv:
        rows = "rank,time_s,op,size,communicator\n" + "0,0.5,AllReduce,8,dp\n" * 3
        return [write(folder / "calls.csv", rows.encode())]
    names = {"op": ["a", "b"], "communicator": ["dp", "dp"]}
    return table(folder, "calls", rank=[0, 1], time_s=[0.5, 0.7], size=[8, 8], **names)


def dumps(folder: Path, text: bool) -> list[Path]:
    what = test_sources_flight_recorder.dump(6)
    data = json.dumps(what).encode() if text else pickle.dumps(what, 2)
    return [write(folder / f"trace_rank_0{'.json' * text}", data)]


def inspector(folder: Path) -> list[Path]:
    logs = test_sources_nccl_inspector.job(steps=2, ranks=2, verbose=True)
    return test_sources_nccl_inspector.saved(folder, logs)


def imported(paths: list[Path]) -> None:
    importer, files, _ = importers.find_files([paths[0].parent])
    importer.read(files, None, None)


def recorded(paths: list[Path]) -> None:
    refused = None
    for read in (load, load_recorded_step_times):
        try:
            read(paths[0].parent)
        except PacelineError as error:
            refused = error
    if refused:
        raise refused


def first(read: Callable[[Path], object]) -> Callable[[list[Path]], object]:
    return lambda paths: read(paths[0])


#: Name -> (writes good files into a folder, reads them).
READERS: dict[str, tuple[Callable[[Path], list[Path]], Callable[[list[Path]], object]]] = {
    "parquet": (parquet_trace, first(load)),
    "recording": (recordings, recorded),
    "kineto": (lambda folder: ProfileWriter(TRACE).write(folder, ".json"), kineto.read),
    "kineto with ranges": (
        lambda folder: ProfileWriter(TRACE, ranges=True).write(folder, ".json"),
        imported,
    ),
    "kineto with stream waits": (lambda folder: job(folder, 1.5, fsdp_step)[0], kineto.read),
    "kineto, ranks alone": (
        lambda folder: ProfileWriter(TRACE).write(folder, ".json"),
        lambda paths: [rank_report(path).to_mapping() for path in paths],
    ),
    "nsight systems": (
        lambda folder: [two_processes(folder / "a.sqlite")],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "rocprofv3's JSON": (
        lambda folder: [write_json(folder / "a.json")],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "rocprofv3's CSV": (
        lambda folder: [write_csv(folder)],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "rocprofv3's database": (
        lambda folder: [write_rocpd(folder / "a.db")],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "xpu_timer": (
        lambda folder: [one_rank(folder)],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "chakra's linked trace": (
        lambda folder: [test_sources_chakra.one_rank(folder / "a.json")],
        lambda paths: rank_report(paths).to_mapping(),
    ),
    "xpu_timer's collectives": (lambda folder: [one_rank(folder)], load_call_log),
    "ndtimeline": (lambda folder: timelines(TRACE, folder), imported),
    "ndtimeline's raw log": (raw_log, imported),
    "otlp": (lambda folder: [write(folder / "a.json", text_of(SPANS))], otlp.read),
    "otlp as protobuf": (
        protobuf,
        lambda paths: otlp.check_request(protobuf_encoding.decode(paths[0].read_bytes(), "a"), "a"),
    ),
    "nccl inspector": (inspector, load_call_log),
    "nccl inspector's means": (
        lambda folder: test_sources_nccl_metrics.four(folder, 62, 100, 101, 102),
        lambda paths: mean_waits(nccl_metrics.read(paths)[0]).to_mapping(),
    ),
    "telemetry of xpu_timer": (
        lambda folder: [test_telemetry.xpu_timer_json(folder / "a.json")],
        lambda paths: gpu_health(load_telemetry(paths)),
    ),
    "telemetry of nvidia-smi": (
        lambda folder: [test_telemetry.smi(folder)],
        lambda paths: gpu_health(load_telemetry(paths)),
    ),
    "torchcomms' clog": (test_sources_torchcomms.job, load_call_log),
    "torchcomms' flight recorder": (
        lambda folder: [test_sources_torchcomms.flight_recorder_dump(folder)],
        load_call_log,
    ),
    "timers in logs": (
        lambda folder: [
            write(folder / "train.log", test_timer_logs.iteration(10, 1000).encode() * 3)
        ],
        lambda paths: report_times(load_host_times(paths)),
    ),
    "nccl ras": (
        lambda folder: [
            saved(
                folder / "a.json",
                communicator([rank(n, counts=n) for n in range(3)], [missing(3)]),
            )
        ],
        lambda paths: not_arrived([nccl_ras.read(paths[0])]).to_mapping(),
    ),
    "flight recorder's pickle": (lambda folder: dumps(folder, False), load_call_log),
    "flight recorder's JSON": (lambda folder: dumps(folder, True), load_call_log),
    "calls as CSV": (lambda folder: call_table(folder, True), load_call_log),
    "calls as parquet": (lambda folder: call_table(folder, False), load_call_log),
    "step times as CSV": (
        lambda folder: [write(folder / "a.csv", b"step,duration_s,rank\n" + b"1,0.5,0\n2,1,0\n")],
        first(load_step_times),
    ),
    "step times as JSON lines": (
        lambda folder: [
            write(folder / "a.jsonl", text_of([{"step": n, "duration_s": 0.5} for n in range(3)]))
        ],
        first(load_step_times),
    ),
    "step times as parquet": (
        lambda folder: table(folder, "a", step=[1, 2], duration_s=[0.5, 0.5], rank=[0, 0]),
        first(load_step_times),
    ),
    "sequence lengths": (
        lambda folder: table(
            folder, "a", step=[0, 0], dp_rank=[0, 0], mb_id=[0, 1], lengths=[[3, 4], [7]]
        ),
        first(read_seqlens),
    ),
    "hosts": (
        lambda folder: [write(folder / "a.csv", b"rank,host,switch\n0,a,s\n1,b,s\n")],
        first(read_hosts),
    ),
    "job": (
        lambda folder: [write(folder / "a.yaml", b"dp_size: 2\npp_size: 2\nname: 'a'\n")],
        first(read_job),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    write_files, read = READERS[name]
    paths = write_files(tmp_path)
    good = [path.read_bytes() for path in paths]
    read(paths)
    until, n, n_refused = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < until or n < 3:
        draw = random.Random(f"{SEED} {name} {n}")
        which = draw.randrange(len(paths))
        paths[which].write_bytes(damaged(good[which], draw))
        try:
            read(paths)
        except PacelineError as error:
            assert str(error)  # noqa: PT017 (a file may survive)
            n_refused += 1
        except BaseException as error:
            error.add_note(f"{name}: case {n} of PACELINE_FUZZ_SEED={SEED}")
            raise
        paths[which].write_bytes(good[which])
        n += 1
    assert n_refused


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Some values of JSON replaced by others, or some bytes; or a cut; or all of it packed."""
    if draw.random() < 0.5:
        data = other_values(data, draw) or other_bytes(data, draw)
    else:
        data = other_bytes(data, draw)
    if draw.random() < 0.15:
        data = data[: draw.randrange(len(data) + 1)]
    if draw.random() < 0.1:
        data = gzip.compress(data)
        data = data[: draw.choice((len(data), draw.randrange(len(data))))]
    return data


def other_bytes(data: bytes, draw: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(draw.randint(1, 5)):
        at, length = draw.randrange(len(content) + 1), draw.choice((0, 1, 1, 2, 9))
        content[at : at + length] = draw.choice((draw.randbytes(length), draw.choice(WORDS)))
    return bytes(content)


def other_values(data: bytes, draw: random.Random) -> bytes | None:
    """The document, or one of its lines, with other values; None where it is no JSON."""
    lines = [data] if data[:1] in b"[{" and data[1:2] == b"\n" else data.split(b"\n")
    at = draw.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return None
    for _ in range(draw.randint(1, 4)):
        place = value
        while isinstance(place, dict | list) and place:
            key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if draw.random() < 0.1 or not isinstance(place[key], dict | list) or not place[key]:
                if draw.random() < 0.2:
                    del place[key]
                else:
                    place[key] = copy.deepcopy(draw.choice(VALUES))
                break
            place = place[key]
    lines[at] = json.dumps(value).encode()
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("a.yaml", b"dp_size: " + b"[" * 5000, read_job),
        ("a.yaml", b"name: 2025-13-01", read_job),
        ("a.jsonl", b'{"step": 1, "duration_s": ' + b"9" * 400 + b"}", load_step_times),
        ("a.jsonl", b"{}\n" + b"[" * 100_000, load_step_times),
        ("a.csv", b"rank,host\n" + b"9" * 5000 + b",a\n", read_hosts),
    ],
)
def test_what_fuzzing_has_found(
    tmp_path: Path, name: str, content: bytes, read: Callable[[Path], object]
) -> None:
    with pytest.raises(PacelineError, match=str(tmp_path)):
        read(write(tmp_path / name, content))
