"""A linked trace that Chakra's own linker writes.

``TraceLinker`` of ``chakra_trace_link`` runs out of a clone of mlcommons/chakra (MIT, commit
21585d8), with the ``et_replay`` of facebookresearch/param that Chakra pins (MIT, commit 7b19f58).
It links HTA's pair of an execution trace and a profile. The profile's torch of 2023 wrote no
``Record function id``: here the nodes of the execution trace give it, by name and order. It has no
``ProfilerStep``, in which the linker looks for synchronisations: HTA 0.5.0 then returns nothing,
which the linker cannot take.
"""

import gzip
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import requires
from paceline.ranks import rank_report

CHAKRA, PARAM = ("mlcommons/chakra", "21585d8"), ("facebookresearch/param", "7b19f58")
LINKER = ("trace_linker", "kineto_operator", "unique_id_assigner")
LINKER += ("chakra_host_trace_loader", "chakra_device_trace_loader")
REPLAY = ("__init__", "execution_trace", "utils")

LINK = """
import sys
from trace_link.trace_linker import TraceLinker
TraceLinker.load_sync_dependencies = lambda *_: {}
host, device, linked = sys.argv[1:]
TraceLinker().link(0, host, device, linked)
"""


def tool(folder: Path) -> Path:
    """The modules of the linker, as a folder to import from."""
    for package, names, below, origin in (
        ("trace_link", LINKER, "src/trace_link", CHAKRA),
        ("et_replay", REPLAY, "et_replay", PARAM),
    ):
        (folder / package).mkdir(parents=True)
        for name in names:
            text = requires.source(*origin, f"{below}/{name}.py")
            (folder / package / f"{name}.py").write_text(text)
    return folder


def pair(folder: Path) -> tuple[Path, Path]:
    """HTA's execution trace, and its profile with the ids of records."""
    trace, device = (
        requires.data("real", "hta", "execution_trace", f"benchmark_simple_add_{name}.json.gz")
        for name in ("et", "trace")
    )
    ids: dict[str, list[int]] = defaultdict(list)
    host = folder / "et.json"
    host.write_bytes(gzip.decompress(trace.read_bytes()))
    for node in json.loads(host.read_text())["nodes"]:
        ids[node["name"]].append(node["rf_id"])
    profile = json.loads(gzip.decompress(device.read_bytes()))
    events = [event for event in profile["traceEvents"] if "ts" in event]
    for event in sorted(events, key=lambda event: event["ts"]):
        if event.get("cat") in ("cpu_op", "user_annotation") and ids[event["name"]]:
            event["args"]["Record function id"] = ids[event["name"]].pop(0)
    path = folder / "profile.json"
    path.write_text(json.dumps(profile))
    return host, path


def test_the_linkers_own_file(tmp_path: Path) -> None:
    requires.installed("hta", "pydot")
    host, device = pair(tmp_path)
    linked = tmp_path / "linked.json"
    job = subprocess.run(
        [sys.executable, "-c", LINK, host, device, linked],
        env=os.environ | {"PYTHONPATH": str(tool(tmp_path / "tool"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert job.returncode == 0, job.stderr
    (rank,) = rank_report(linked).ranks
    (profiled,) = rank_report(device).ranks
    assert [(k.name, k.count, k.total_s) for k in rank.kernels] == [
        (k.name, k.count, pytest.approx(k.total_s)) for k in profiled.kernels
    ]
    assert sum(kernel.count for kernel in rank.kernels) == 4
    assert rank.device is not None
    # HTA's figures of the profile, in microseconds.
    assert rank.device.compute_s == pytest.approx(16e-6, abs=1e-9)
    assert rank.device.window_s == pytest.approx(108_919e-6, abs=1e-9)
