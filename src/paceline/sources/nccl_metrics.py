"""NCCL Inspector's files for Prometheus: mean times of collectives, a file per GPU.

Format: ``inspectorPromWriteCollBucket`` and ``inspectorPromWriteP2pBucket`` of
``plugins/profiler/inspector/inspector_prom.cc`` (NCCL v2.30.7-1). NCCL rewrites a file every 30 s
or more, with the calls since it wrote it last. Calls are grouped by communicator, operation, range
of sizes and algorithm. A group has the arithmetic mean of its times and the geometric mean of its
bus bandwidths, but not the number of its calls. The file's name holds the UUID of the GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.json_stream import ends_within_line, head, read_whole

#: 256 communicators of 20 kinds of calls are some 5 MB.
MAX_BYTES = 64 << 20

_TIMES = {
    "nccl_collective_exec_time_microseconds": "collective",
    "nccl_p2p_exec_time_microseconds": "p2p_operation",
}
_BANDWIDTHS = {
    "nccl_bus_bandwidth_gbs": "collective",
    "nccl_p2p_bus_bandwidth_gbs": "p2p_operation",
}
_LINE = re.compile(r"(nccl_\w+)\{(.*)\} ([-+.\w]+)")
#: A value may hold any character, even a quotation mark: the Inspector escapes none.
_LABEL = re.compile(r'(\w+)="(.*?)"(?=,\w+="|$)')
_FILE = re.compile(r"nccl_inspector_metrics_(.+)\.prom")


@dataclass(frozen=True)
class Gpu:
    """A GPU. If each process of a node sees only its own GPU, all these GPUs share a ``name``.

    Attributes:
        node: host name.
        name: ``GPU`` and its number in the process.
        uuid: the UUID in the file's name; empty if the file was renamed.
    """

    node: str
    name: str
    uuid: str

    def explain(self) -> str:
        """``GPU3 of node-7 (9f2c...)``."""
        return f"{self.name} of {self.node}" + f" ({self.uuid})" * bool(self.uuid)


@dataclass(frozen=True)
class Bucket:
    """A group of calls with one mean.

    Attributes:
        communicator: its name; ``unknown`` if the program gave it none.
        n_ranks: number of ranks of the communicator.
        n_nodes: number of nodes of the communicator.
        operation: such as ``AllReduce`` or ``Send``.
        size: a range of sizes, such as ``4-5MB``.
        algorithm: algorithm and protocol, such as ``Ring_LL``; empty for sends and receives.
    """

    communicator: str
    n_ranks: int
    n_nodes: int
    operation: str
    size: str
    algorithm: str


@dataclass(frozen=True)
class Mean:
    """The means of a bucket on a GPU.

    Attributes:
        gpu: the measuring GPU.
        bucket: the calls.
        time_us: arithmetic mean of the calls' times; NaN where the file lacks it.
        bandwidth_gbs: geometric mean of their bus bandwidths, 10^9 bytes a second; NaN where the
            file lacks it.
    """

    gpu: Gpu
    bucket: Bucket
    time_us: float
    bandwidth_gbs: float


def matches(path: Path) -> bool:
    """Whether a file is the Inspector's output for Prometheus."""
    return re.match(r"\s*nccl_(p2p_)?\w+\{version=", head(path)) is not None


def refuse_otlp(path: Path) -> None:
    """Refuse the Inspector's metrics over OTLP (``inspector_otel.cc``, NVIDIA/nccl at 8898068).

    Its points name a node and the number by which a process knows its GPU, but neither the process
    nor the GPU itself. So points of several processes of a node may be one series.

    Raises:
        TraceError: it is a Collector's file, or a request, with such metrics.
    """
    start = head(path)
    if re.match(r'\s*\{\s*"resourceMetrics"', start) and re.search(r'"nccl[-_]\w+"', start):
        raise TraceError(
            f"{path} is NCCL Inspector's metrics over OTLP, which do not tell the processes of a "
            "node apart; let it write files: NCCL_INSPECTOR_OTEL_EXPORT=0, and "
            "NCCL_INSPECTOR_PROM_DUMP=1 or NCCL_INSPECTOR_DUMP_VERBOSE=1"
        )


def read(paths: Sequence[Path]) -> tuple[list[Mean], list[str]]:
    """The means of all GPUs, and notes on what was left out.

    Args:
        paths: a file of each GPU, of one moment.

    Raises:
        TraceError: a file is damaged, cut off, of another job, or of a GPU that another file has.
    """
    means: list[Mean] = []
    jobs: dict[str, Path] = {}
    owners: dict[Gpu, Path] = {}
    n_twice = 0
    for path in paths:
        of_file, job, twice = _read(path)
        n_twice += twice
        first = next(iter(jobs.items()), (job, path))
        jobs.setdefault(job, path)
        if len(jobs) > 1:
            raise TraceError(
                f"{path} is of Slurm's job {job}, {first[1]} of {first[0]}; give files of one job"
            )
        for gpu in {mean.gpu for mean in of_file}:
            if gpu in owners:
                raise TraceError(
                    f"{gpu.explain()} is in {owners[gpu]} and in {path}; give one file of each "
                    "GPU, under the names that NCCL gave them"
                )
            owners[gpu] = path
        means += of_file
    notes = []
    if n_twice:
        notes.append(
            f"{n_twice:,} means were left out: their communicators have one name on a GPU, or one "
            "was created again, so they cannot be told apart"
        )
    return means, notes


def _read(path: Path) -> tuple[list[Mean], str, int]:
    """Means of a file, its job, and the number of repeated buckets."""
    known = _FILE.fullmatch(path.name)
    uuid = known[1] if known else ""
    values: dict[tuple[Gpu, Bucket], list[list[float]]] = {}  # time and bandwidth: all values
    job = ""
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}, line {number}"
        metric, labels, value = _parsed(line, where)
        own_job = labels.get("slurm_job_id", "unknown")
        if job and own_job != job:
            raise TraceError(f"{where} is of Slurm's job {own_job}, the first line of {job}")
        job = own_job
        key = _gpu(labels, uuid, where), _bucket(labels, metric, where)
        values.setdefault(key, [[], []])[metric in _BANDWIDTHS].append(value)
    if not values:
        raise TraceError(f"{path} holds no mean of NCCL Inspector")
    single = {key: pair for key, pair in values.items() if max(map(len, pair)) == 1}
    means = [
        Mean(gpu, bucket, times[0] if times else math.nan, rates[0] if rates else math.nan)
        for (gpu, bucket), (times, rates) in single.items()
    ]
    return means, job, len(values) - len(single)


def _text(path: Path) -> str:
    text = read_whole(path, MAX_BYTES, "a file of NCCL Inspector").decode(errors="replace")
    if not text.endswith("\n"):
        raise TraceError(ends_within_line(path, "NCCL was writing the file; copy it again"))
    return text


def _parsed(line: str, where: str) -> tuple[str, dict[str, str], float]:
    match = _LINE.fullmatch(line.rstrip("\r"))
    if match is None or match[1] not in {*_TIMES, *_BANDWIDTHS}:
        raise TraceError(f"{where} is no line of NCCL Inspector (v5.1): {line[:80]!r}")
    try:
        value = float(match[3])
    except ValueError:
        raise TraceError(f"{where} has no number: {match[3]!r}") from None
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{where} says {match[3]}: a mean is finite and not negative")
    return match[1], dict(_LABEL.findall(match[2])), value


def _gpu(labels: dict[str, str], uuid: str, where: str) -> Gpu:
    return Gpu(_label(labels, "node", where), _label(labels, "gpu", where), uuid)


def _bucket(labels: dict[str, str], metric: str, where: str) -> Bucket:
    sizes = []
    for name in ("nranks", "n_nodes"):
        text = _label(labels, name, where)
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            raise TraceError(f"{where} has {name}={text!r}, which is no count")
        sizes.append(int(text))
    operation = _label(labels, ({**_TIMES, **_BANDWIDTHS})[metric], where)
    name, size = _label(labels, "comm_name", where), _label(labels, "message_size", where)
    return Bucket(name, sizes[0], sizes[1], operation, size, labels.get("algo_proto", ""))


def _label(labels: dict[str, str], name: str, where: str) -> str:
    if name not in labels:
        raise TraceError(f"{where} lacks the label {name}")
    return labels[name]
