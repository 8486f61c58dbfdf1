"""xpu_timer's metrics among Prometheus' series: how fast matrix products are, and what hangs.

Source: intelligent-machine-learning/dlrover at 7c3e964, ``xpu_timer/xpu_timer/common/constant.h``
(names), ``bvar_prometheus.cc`` and ``nvidia_timer.cc``. Products are put into buckets by their
speed; ``XPU_TIMER_MM_KERNEL_FLOPS`` is each bucket's TFLOPS since the last push. A bucket that is
not used any more keeps its value for minutes. Collectives' times hold waiting, so they say nothing
of a GPU. Counts of data loader calls come every 10 s or so, too seldom for step times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from paceline.sources.telemetry.table import Gpu

FLOPS, HANG = "XPU_TIMER_MM_KERNEL_FLOPS", "XPU_TIMER_COMMON_HANG"
#: The metric of GPUs that the fastest bucket gives.
FASTEST = "matmul_tflops"
_PRODUCTS = "Matmul"
_UNSET = "NOT_SET"


def gpu_of(labels: Mapping[str, str]) -> Gpu:
    """The GPU that a series is of: its pod, else its host's address, and its local rank."""
    names = (labels.get(key, _UNSET) for key in ("pod_name", "ip", "instance", "Hostname"))
    host = next((name for name in names if name not in ("", _UNSET)), "?")
    return Gpu(host, labels.get("local_rank", "?"))


def is_product(labels: Mapping[str, str]) -> bool:
    """Whether a series is of matrix products; attention's are others."""
    return labels.get("operation") == _PRODUCTS


def fresh(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Points of a series without those that repeat the one before: the bucket was not used."""
    before = None
    for at, value in points:
        if value != before:
            yield at, value
        before = value


def fastest(
    rows: Iterable[tuple[Gpu, str, float, float]],
) -> Iterator[tuple[Gpu, str, float, float]]:
    """The rows, but of all buckets of a GPU at a time only the fastest."""
    most: dict[tuple[Gpu, float], float] = {}
    for gpu, metric, time_s, value in rows:
        if metric != FASTEST:
            yield gpu, metric, time_s, value
        elif value > 0:
            most[gpu, time_s] = max(value, most.get((gpu, time_s), 0.0))
    for (gpu, time_s), value in most.items():
        yield gpu, FASTEST, time_s, value


def hang_note(hangs: Mapping[Gpu, float]) -> str | None:
    """The hanging GPUs in words, from each GPU's last value; None without any.

    A kernel hangs from ``XPU_TIMER_HANG_TIMEOUT`` on, 300 s unless set.
    """
    late = sorted(gpu for gpu, value in hangs.items() if value)
    if not late:
        return None
    told = ", ".join(map(str, late[:8])) + f" and {len(late) - 8:,} more" * (len(late) > 8)
    rest = sorted(hangs.keys() - late)
    free = f"; none on {', '.join(map(str, rest[:8]))}" if 0 < len(rest) <= len(late) else ""
    return (
        f"xpu_timer: kernels that do not end on {len(late):,} of {len(hangs):,} GPUs: {told}{free}"
    )
