"""The share of this machine used by other work; if it is large, times are unreliable."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Cores used by other work above which times are unreliable.
MOST_OF_OTHERS = 0.15

_PROC = Path("/proc")


class OtherWork:
    """CPU time of all processes except this one and its descendants, from now on."""

    def __init__(self) -> None:
        self._began_s, self._before = time.monotonic(), cpu_seconds()

    def cores(self) -> float:
        """Their average use in cores; 0 if unknown (known on Linux)."""
        now = cpu_seconds()
        if now is None or self._before is None:
            return 0.0
        ours, all_of_it = (after - b for after, b in zip(now, self._before, strict=True))
        return max(all_of_it - ours, 0.0) / max(time.monotonic() - self._began_s, 1e-9)

    def explain(self) -> str:
        """The use in words; "" if negligible."""
        cores = self.cores()
        if cores <= MOST_OF_OTHERS:
            return ""
        return (
            f"other work took {cores:.1f} of this machine's {os.cpu_count()} cores meanwhile, so "
            "the demo's times say little"
        )


def cpu_seconds(root: Path = _PROC, pid: int | None = None) -> tuple[float, float] | None:
    """(of a process and its descendants, of all and what its host took from it) since boot.

    None without Linux's /proc/stat.
    """
    try:
        fields = (root / "stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft, steal = (int(field) for field in fields)
    tick = os.sysconf("SC_CLK_TCK")
    ours = _ticks_of(root, os.getpid() if pid is None else pid)
    return ours / tick, (user + nice + system + irq + soft + steal) / tick


def _ticks_of(root: Path, pid: int) -> int:
    """CPU time of a process and its descendants, including ended ones."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in root.glob("[0-9]*/stat"):
        try:
            # After the name, which may hold blanks: state, parent, ..., utime to cstime.
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # the process ended
            continue
        one = int(path.parent.name)
        ticks[one] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(one)
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total
