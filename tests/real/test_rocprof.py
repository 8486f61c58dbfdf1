"""The report of a real file of rocprofv3 against sums over its records.

The file is test data of AMD-AGI/TraceLens (MIT, commit 171dd74, ``tests/rocprof``): 50 steps of a
training job on one of eight MI350X, kernels only.
"""

import gzip
import json

import pytest

import requires
from paceline.ranks import rank_report


def test_times_are_those_of_the_records() -> None:
    origin = "tests/rocprof/908_results.json.gz of AMD-AGI/TraceLens, commit 171dd74"
    path = requires.data("real", "tracelens", "908_results.json.gz", origin=origin)
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
