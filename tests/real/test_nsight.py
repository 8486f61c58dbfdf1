"""Reports of real exports of Nsight Systems against sums over their tables.

The files are test data of GindaChen/nsys-ai (MIT, commit ab196ea, ``tests/fixtures``): windows of
Nsight Systems 2026.2.1 exports (schema 3.25) of FastVideo on two H100, one with NCCL's kernels.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import requires
from paceline.ranks import rank_report

#: File -> process ids by device.
FILES = {"h100_2gpu_1s.sqlite": (111, 112), "mfu_2gpu_after.sqlite": (148, 149)}


def real(name: str) -> Path:
    return requires.public("GindaChen/nsys-ai", "ab196ea", f"tests/fixtures/{name}", "nsys-ai")


def busy_ns(path: Path, device: int, *tables: str) -> int:
    """Time in which a row of the tables ran on a device, counted edge by edge."""
    edges: list[tuple[int, int]] = []
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            for low, high in connection.execute(
                f"select start, end from {table} where deviceId = {device}"
            ):
                edges += [(low, 1), (high, -1)]
    n_running, busy, before = 0, 0, 0
    for at, change in sorted(edges):
        busy += (at - before) * (n_running > 0)
        n_running, before = n_running + change, at
    return busy


@pytest.mark.parametrize("name", FILES)
def test_times_are_those_of_the_tables(name: str) -> None:
    path = real(name)
    ranks = rank_report(path).ranks
    kinds = ("KERNEL", "MEMCPY", "MEMSET")
    tables = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds]
    for number, (process, rank) in enumerate(zip(FILES[name], ranks, strict=True)):
        assert rank.label == f"GPU {number} of process {process}"
        device = rank.device
        assert device is not None
        busy_s = busy_ns(path, number, *tables) * 1e-9
        assert device.window_s - device.idle_s == pytest.approx(busy_s, abs=1e-8)
        running_s = device.compute_s + device.communication_exposed_s
        assert running_s == pytest.approx(busy_ns(path, number, tables[0]) * 1e-9, abs=1e-8)


def test_communication_is_told_by_its_kernels() -> None:
    path = real("mfu_2gpu_after.sqlite")
    first, second = rank_report(path).ranks
    assert first.communication_s == pytest.approx(9.99e-3, abs=1e-5)
    assert second.communication_s == pytest.approx(23.8e-3, abs=1e-4)
    assert sum(kernel.count for kernel in first.kernels if "SendRecv" in kernel.name) == 31


def test_ranges_where_kernels_were_not_recorded(tmp_path: Path) -> None:
    """The tables of CUDA are taken out of a real export, as without ``--trace cuda``."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(real("h100_2gpu_1s.sqlite").read_bytes())
    text = "coalesce(text, (select value from StringIds where id = textId))"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("drop table CUPTI_ACTIVITY_KIND_KERNEL")
        rows = connection.execute(
            f"select globalTid, start, end, {text} from NVTX_EVENTS "
            "order by globalTid, start, end desc"
        ).fetchall()
    total_ns: dict[tuple[int, str], int] = {}
    inside: tuple[int, int] = (0, 0)
    for thread, start, end, name in rows:
        if (thread, start) >= inside or thread != inside[0]:
            inside = (thread, end)
            key = ((thread >> 24) & 0xFFFFFF, name.partition(", ")[0])
            total_ns[key] = total_ns.get(key, 0) + end - start
    ranks = rank_report(path).ranks
    reported = {
        (int(rank.label.removeprefix("process ")), operator.name): operator.total_s
        for rank in ranks
        for operator in rank.operators
    }
    assert len(ranks) == 2
    assert reported.keys() == total_ns.keys()
    for key, seconds in reported.items():
        assert seconds == pytest.approx(total_ns[key] * 1e-9, abs=1e-9)
