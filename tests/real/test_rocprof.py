"""The report of a real file of rocprofv3 against sums over its records, and out of its database.

The file is test data of AMD-AGI/TraceLens (MIT, commit 171dd74, ``tests/rocprof``): 50 steps of a
training job on one of eight MI350X, kernels only.
"""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import requires
from paceline.ranks import rank_report
from rocpd_files import write_rocpd
from rocprof_files import write_json

#: Of rocprofv3's databases, in ROCm/rocm-systems: the folder, its files, and the commit.
SCHEMA = "projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd"
SCHEMA_FILES = ("rocpd_tables", "rocpd_views", "data_views", "rocpd_indexes")
SCHEMA_COMMIT = "1b1610fc2b2ab32af71e6e04e4d4a6a4ae597992"


def recorded() -> Path:
    path = "tests/rocprof/908_results.json.gz"
    return requires.public("AMD-AGI/TraceLens", "171dd74", path, "tracelens")


def schema() -> str:
    files = (
        requires.source("ROCm/rocm-systems", SCHEMA_COMMIT, f"{SCHEMA}/{name}.sql")
        for name in SCHEMA_FILES
    )
    return "\n".join(files)


def test_a_database_of_the_tool_s_schema_says_what_json_says(tmp_path: Path) -> None:
    """The short file, in tables that the tool's own SQL makes; its views have the same kernels."""
    path = write_rocpd(tmp_path / "a.db", schema=schema())
    (of_json,) = rank_report(write_json(tmp_path / "a.json")).ranks
    (of_database,) = rank_report(path).ranks
    expected, got = of_json.to_mapping(), of_database.to_mapping()
    del expected["file"], got["file"]
    assert got == expected
    with closing(sqlite3.connect(path)) as connection:
        copies = connection.execute("select sum(duration) from memory_copies").fetchone()
        assert copies == (20_000,)
        ranges = "select count(*) from regions where category like 'MARKER%'"
        assert connection.execute(ranges).fetchone() == (2,)


def test_the_records_out_of_a_database() -> None:
    """50 steps on an MI350X, moved from JSON to tables that the tool's own SQL makes."""
    path, text = recorded(), schema()
    with gzip.open(path) as file:
        document = json.load(file)
    with TemporaryDirectory() as folder:
        (of_database,) = rank_report(write_rocpd(Path(folder) / "908.db", document, text)).ranks
    (of_json,) = rank_report(path).ranks
    assert of_database.label == of_json.label
    assert of_database.kernels == of_json.kernels
    assert of_database.device == of_json.device
    assert of_database.streams == of_json.streams


def test_times_are_those_of_the_records() -> None:
    path = recorded()
    with gzip.open(path) as file:
        process = json.load(file)["rocprofiler-sdk-tool"][0]
    records = process["buffer_records"]["kernel_dispatch"]
    names = {item["kernel_id"]: item["formatted_kernel_name"] for item in process["kernel_symbols"]}
    (rank,) = rank_report(path).ranks
    assert rank.label == "AMD Instinct MI350X 2 of process 908"
    total_s = {kernel.name: kernel.total_s for kernel in rank.kernels}
    expected_ns = dict.fromkeys(total_s, 0)
    busy_ns, until = 0, 0
    for item in sorted(records, key=lambda record: record["start_timestamp"]):
        low, high = item["start_timestamp"], item["end_timestamp"]
        expected_ns[names[item["dispatch_info"]["kernel_id"]]] += high - low
        busy_ns += max(0, high - max(low, until))
        until = max(until, high)
    assert sum(kernel.count for kernel in rank.kernels) == len(records) == 43_915
    for name, ns in expected_ns.items():
        assert total_s[name] == pytest.approx(ns * 1e-9, abs=1e-8)
    assert rank.device is not None
    assert rank.device.window_s - rank.device.idle_s == pytest.approx(busy_ns * 1e-9, abs=1e-7)
    assert rank.communication_s == pytest.approx(4.158, abs=1e-3)


def test_a_database_whose_tables_end_with_a_number_only() -> None:
    """Two kernels and two copies that AMD's Ammar ELWazir wrote to test a plugin of Babeltrace."""
    repository, name = "ammarwa/Babeltrace2-ROCpd-Plugin", "test_rocm_database.db"
    (rank,) = rank_report(requires.public(repository, "94174f5", name, "rocpd")).ranks
    device = rank.device
    assert device is not None
    times_s = (device.window_s, device.compute_s, device.memory_exposed_s)
    assert times_s == pytest.approx((4e-3, 2e-3, 0.6e-3))
    assert [kernel.name for kernel in rank.kernels][:2] == [
        "vector_add_kernel",
        "matrix_multiply_kernel",
    ]
