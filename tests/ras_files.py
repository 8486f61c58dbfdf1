"""Statuses of NCCL RAS as ``jsonWriteHeader`` to ``jsonWriteFooter`` write them.

NCCL 2.30.7, ``src/ras/client_support.cc``, lines 1918 to 2016, printed by hand: equal byte for byte
to what these functions print when they are compiled alone.
"""

from collections.abc import Sequence
from pathlib import Path

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def _member(rank: int, host: str, pid: int, gpu: int) -> str:
    return (
        f'        {{\n          "rank": {rank},\n          "host": "{host}",\n'
        f'          "pid": {pid},\n          "cuda_dev": {gpu},\n          "nvml_dev": {gpu},\n'
    )


def rank(
    number: int,
    *,
    counts: dict[str, int] | int,
    host: str = "10.0.0.1",
    pid: int | None = None,
    gpu: int | None = None,
    init_state: int = 0,
    async_error: int = 0,
    finalize: bool = False,
    abort: bool = False,
) -> str:
    """One rank that answered; a number of counts is that of AllReduce."""
    done = {"AllReduce": counts} if isinstance(counts, int) else counts
    pid, gpu = 100 + number if pid is None else pid, number % 8 if gpu is None else gpu
    flags = {"finalize_called": finalize, "destroy_flag": False, "abort_flag": abort}
    status = [
        f'            "init_state": {init_state}',
        f'            "async_error": {async_error}',
    ]
    status += [f'            "{name}": {str(flag).lower()}' for name, flag in flags.items()]
    launched = [f'            "{op}": {done.get(op, 0)}' for op in OPS]
    return (
        _member(number, host, pid, gpu)
        + '          "status": {\n'
        + ",\n".join(status)
        + '\n          },\n          "collective_counts": {\n'
        + ",\n".join(launched)
        + "\n          }\n        }"
    )


def missing(
    number: int, *, dead: bool = False, unresponsive: bool = True, host: str = "10.0.0.1"
) -> str:
    """One rank that did not answer."""
    return (
        _member(number, host, 100 + number, number % 8)
        + f'          "status": {{\n            "unresponsive": {str(unresponsive).lower()},\n'
        + f'            "considered_dead": {str(dead).lower()}\n          }}\n        }}'
    )


def communicator(ranks: Sequence[str], absent: Sequence[str] = (), name: str = "0xa") -> str:
    """One communicator."""
    return (
        f'    {{\n      "hash": "{name}",\n      "secondary_hash": "0x1:0x2",\n'
        f'      "size": {len(ranks) + len(absent)},\n      "ranks_count": {len(ranks)},\n'
        f'      "missing_ranks_count": {len(absent)},\n      "ranks": [\n'
        + ",\n".join(ranks)
        + '\n      ],\n      "missing_ranks": [\n'
        + ",\n".join(absent)
        + "\n      ]\n    }"
    )


def status(*communicators: str, at: str = "2026-06-11 13:06:53") -> str:
    """A whole status."""
    return (
        '{\n  "nccl_version": "2.30.7",\n  "cuda_runtime_version": 13000,\n'
        f'  "cuda_driver_version": 13000,\n  "timestamp": "{at}",\n'
        f'  "communicators_count": {len(communicators)},\n  "communicators": [\n'
        + ",\n".join(communicators)
        + '\n  ],\n  "ras": {\n    "collection_time_sec": 0.001,\n    "timeouts_count": 0\n  }\n}\n'
    )


def saved(path: Path, *communicators: str, at: str = "2026-06-11 13:06:53") -> Path:
    """A status in a file."""
    path.write_text(status(*communicators, at=at))
    return path
