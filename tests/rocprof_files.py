"""Files of rocprofv3 as ``generateJSON.cpp`` and ``generateCSV.cpp`` lay them out, but short."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN_NS = 63_857_982_592_000
GEMM, REDUCE, FILL = 8, 9, 10
NAMES = {
    GEMM: "Cijk_Ailk_Bljk_BBS_BH",
    REDUCE: "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    FILL: "__amd_rocclr_fillBufferAligned",
}
#: Kernel, number of the call, start and end in us after BEGIN_NS.
KERNELS = ((GEMM, 1, 100, 200), (REDUCE, 2, 150, 300), (FILL, 3, 390, 400), (GEMM, 4, 410, 500))


def _times(start_us: int, end_us: int) -> dict[str, int]:
    return {
        "start_timestamp": BEGIN_NS + start_us * 1000,
        "end_timestamp": BEGIN_NS + end_us * 1000,
    }


def _dispatch(kernel: int, number: int, start_us: int, end_us: int) -> dict[str, Any]:
    return {
        "kind": 11,
        "correlation_id": {"internal": number, "external": 0},
        **_times(start_us, end_us),
        "dispatch_info": {
            "agent_id": {"handle": 37946},
            "queue_id": {"handle": 16},
            "kernel_id": kernel,
        },
        "stream_id": {"handle": 20 if kernel == REDUCE else 7},
    }


def _call(number: int, start_us: int, end_us: int) -> dict[str, Any]:
    return {"correlation_id": {"internal": number}, **_times(start_us, end_us)}


def document(**records: Any) -> dict[str, Any]:
    """The document of one process with two steps; ``records`` replaces some of its lists."""
    symbols = [{"kernel_id": n, "formatted_kernel_name": name} for n, name in NAMES.items()]
    ranges = [{"key": 50, "value": "step 1"}, {"key": 51, "value": "step 2"}]
    copy = {
        **_call(5, 500, 520),
        "src_agent_id": {"handle": 37946},
        "dst_agent_id": {"handle": 37944},
    }
    process = {
        "metadata": {"pid": 908, "init_time": 1, "fini_time": 2},
        "agents": [
            {"id": {"handle": 37944}, "type": 1, "product_name": "EPYC", "node_id": 0},
            {"id": {"handle": 37946}, "type": 2, "product_name": "MI350X", "node_id": 2},
        ],
        "counters": [],
        "strings": {"buffer_records": [], "marker_api": ranges},
        "kernel_symbols": symbols,
        "callback_records": {"counter_collection": [{"a": [1]}]},
        "buffer_records": {
            "kernel_dispatch": [_dispatch(*row) for row in KERNELS],
            "hip_api": [
                _call(number, start_us - 10, start_us - 8)
                for number, start_us in ((1, 100), (2, 150), (3, 370), (4, 405), (5, 460))
            ],
            "marker_api": [_call(50, 50, 310), _call(51, 310, 600)],
            "memory_copy": [copy],
            **records,
        },
    }
    return {"rocprofiler-sdk-tool": [process]}


def write_json(path: Path, value: Mapping[str, Any] | None = None) -> Path:
    path.write_text(json.dumps(value or document(), separators=(",", ":")))
    return path


def write_csv(folder: Path, *, agent: str = "Agent 2") -> Path:
    """The CSV of kernels, and beside it that of calls and of ranges."""
    times = '"Correlation_Id","Start_Timestamp","End_Timestamp"'
    head = f'"Kind","Agent_Id","Queue_Id","Kernel_Name",{times}'
    rows = [
        f'"KERNEL_DISPATCH","{agent}",1,"{NAMES[kernel]}",{number},{BEGIN_NS + low * 1000},'
        f"{BEGIN_NS + high * 1000}"
        for kernel, number, low, high in KERNELS
    ]
    calls = [f'"Domain","Function",{times}']
    ranges = list(calls)
    calls.append(f'"HIP","hipLaunchKernel",1,{BEGIN_NS + 90_000},{BEGIN_NS + 92_000}')
    ranges.append(f'"MARKER","step 3",50,{BEGIN_NS + 50_000},{BEGIN_NS + 600_000}')
    for what, text in (
        ("hip_api", calls),
        ("marker_api", ranges),
        ("kernel", [head, *rows]),
    ):
        (folder / f"908_{what}_trace.csv").write_text("\n".join(text) + "\n")
    return folder / "908_kernel_trace.csv"
