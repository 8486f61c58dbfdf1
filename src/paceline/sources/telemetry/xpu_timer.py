"""xpu_timer's metrics among Prometheus' series: speed of matrix products, and kernels that hang.

Source: intelligent-machine-learning/dlrover at 7c3e964, ``xpu_timer/xpu_timer/common/constant.h``
(names), ``bvar_prometheus.cc`` and ``nvidia_timer.cc``. Products are put into buckets by their
speed; ``XPU_TIMER_MM_KERNEL_FLOPS`` is each bucket's TFLOPS since the last push. A bucket that is
not used any more keeps its value for minutes. Times of collectives include waiting, so they do not
show the speed of a GPU. Counts of data loader calls come about every 10 s, too seldom for step
times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from paceline.sources.telemetry.table import Gpu

FLOPS, HANG = "XPU_TIMER_MM_KERNEL_FLOPS", "XPU_TIMER_COMMON_HANG"
#: The GPU's metric whose value is that of the fastest bucket.
FASTEST = "matmul_tflops"
_PRODUCTS = "Matmul"
_UNSET = "NOT_SET"


def gpu_of(labels: Mapping[str, str]) -> Gpu:
    """The GPU of a series: the local rank, and the pod or else the host's address."""
    names = (labels.get(key, _UNSET) for key in ("pod_name", "ip", "instance", "Hostname"))
    host = next((name for name in names if name not in ("", _UNSET)), "?")
    return Gpu(host, labels.get("local_rank", "?"))


def is_product(labels: Mapping[str, str]) -> bool:
    """Whether a series is of matrix products; those of attention are not."""
    return labels.get("operation") == _PRODUCTS


def fresh(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Points of a series without repeated values: the bucket was not used in between."""
    before = None
    for at, value in points:
        if value != before:
            yield at, value
        before = value


def fastest(
    rows: Iterable[tuple[Gpu, str, float, float]],
) -> Iterator[tuple[Gpu, str, float, float]]:
    """The rows; of a GPU's buckets at the same time, only the fastest."""
    most: dict[tuple[Gpu, float], float] = {}
    for gpu, metric, time_s, value in rows:
        if metric != FASTEST:
            yield gpu, metric, time_s, value
        elif value > 0:
            most[gpu, time_s] = max(value, most.get((gpu, time_s), 0.0))
    for (gpu, time_s), value in most.items():
        yield gpu, FASTEST, time_s, value


def hang_note(hangs: Mapping[Gpu, float]) -> str | None:
    """A note on the hanging GPUs, from each GPU's last value; None if no GPU hangs.

    xpu_timer reports a kernel after ``XPU_TIMER_HANG_TIMEOUT``, by default 300 s.
    """
    late = sorted(gpu for gpu, value in hangs.items() if value)
    if not late:
        return None
    listed = ", ".join(map(str, late[:8])) + f" and {len(late) - 8:,} more" * (len(late) > 8)
    rest = sorted(hangs.keys() - late)
    free = f"; none on {', '.join(map(str, rest[:8]))}" if 0 < len(rest) <= len(late) else ""
    return f"xpu_timer: kernels hang on {len(late):,} of {len(hangs):,} GPUs: {listed}{free}"
