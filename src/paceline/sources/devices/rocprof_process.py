"""Activity of one process in rocprofv3's output, by GPU, in any of its formats."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.errors import TraceError
from paceline.sources.devices.nsight import STEP_NAME
from paceline.sources.devices.table import Devices, DeviceTable
from paceline.sources.kineto.device import Work, work_of

#: HIP's own kernels for copies and sets.
_COPY_KERNEL = re.compile(r"__amd_rocclr_(?:copy|fill)")

_NOTE = "rocprofv3 does not say global ranks; GPUs are listed by process and number"


class RocprofProcess:
    """Activity of one process, added record by record; ``names``: key of a GPU -> its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = ""
        self.names: dict[str, str] = {}
        self._tables: dict[str, DeviceTable] = {}
        self._works: dict[str, Work] = {}
        self._copies: list[tuple[tuple[str, str], int, int, int]] = []
        self._calls: list[tuple[int, int, int]] = []
        self._steps: list[tuple[int, int, int]] = []

    @property
    def has_kernels(self) -> bool:
        """Whether any kernel was added."""
        return bool(self._tables)

    def kernel(
        self, gpu: str, name: str, start_ns: int, end_ns: int, stream: int, number: int
    ) -> None:
        """Add a kernel, which the call of the same number launched."""
        table = self._tables.get(gpu)
        if table is None:
            table = self._tables[gpu] = DeviceTable(self.path)
        work = self._works.get(name)
        if work is None:
            work = Work.MEMORY if _COPY_KERNEL.match(name) else work_of(name)
            self._works[name] = work
        table.add(name, work, start_ns, end_ns, stream, number)

    def copy(self, ends: tuple[str, str], start_ns: int, end_ns: int, number: int) -> None:
        """Add a copy from one agent to another; at least one of them is a GPU."""
        self._copies.append((ends, start_ns, end_ns, number))

    def call(self, number: int, start_ns: int, end_ns: int) -> None:
        """Add a call of the host, which may have launched an event."""
        self._calls.append((number, start_ns, end_ns))

    def range(self, name: str, start_ns: int, end_ns: int) -> None:
        """Add a range of roctx if it names a step."""
        match = STEP_NAME.fullmatch(name.strip())
        if match:
            self._steps.append((start_ns, end_ns, int(match[1])))

    def devices(self) -> Devices:
        """The events of each GPU.

        Raises:
            TraceError: there are no kernels.
        """
        if not self._tables:
            raise TraceError(
                f"{self.path} has no kernels; profile with rocprofv3 --kernel-trace --hip-trace "
                "--memory-copy-trace --marker-trace --output-format json"
            )
        for ends, start_ns, end_ns, number in self._copies:
            for gpu in {*ends} & self._tables.keys():
                self._tables[gpu].add("Memcpy", Work.MEMORY, start_ns, end_ns, -1, number)
        ranks = []
        for gpu, table in sorted(self._tables.items()):
            for number, start_ns, end_ns in self._calls:
                table.launch(number, start_ns, end_ns)
            ranks.append(table.finish(self.names.get(gpu, gpu) + self.label, self._steps))
        return Devices(tuple(ranks), (_NOTE,))
