"""Does a task in this process: from the files of a trace to its result in the study."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.fleet import results
from paceline.fleet.analysis import Analysis, analyse
from paceline.fleet.keys import file_digest, result_key
from paceline.fleet.store import Store, is_remote, open_store, split_address
from paceline.fleet.task import Outcome, Settings, Task


@dataclass
class Performer:
    """Does tasks one after the other.

    Attributes:
        settings: settings of the study.
        stores: folder or prefix -> store of its traces.
    """

    settings: Settings
    stores: dict[str, Store] = field(default_factory=dict)

    def perform(self, task: Task, tell_key: Callable[[str], None] = lambda _: None) -> Outcome:
        """Analyse a trace, unless its result exists; ``tell_key`` is called before the work."""
        start = time.monotonic()
        try:
            with ExitStack() as stack:
                files = {
                    name: self._local(address, stack)
                    for name, address in (
                        *(("trace", task.path), ("meta", task.meta), ("hosts", task.hosts)),
                    )
                }
                digests = {
                    name: "" if path is None else file_digest(path) for name, path in files.items()
                }
                key = result_key(digests, self.settings.options, self.settings.version)
                tell_key(key)
                rule = self._rule_of(key)
                if rule is None:
                    rule = self._analyse(task, files, key, start)
        except OSError as error:  # an error of reading; writing raises OutputError
            reason = error.strerror or " ".join(str(error).split())
            return Outcome(task.name, rule="corrupt", error=f"it cannot be read: {reason}")
        return Outcome(task.name, key, rule if rule in results.OF_LIMITS else "")

    def _local(self, address: str, stack: ExitStack) -> Path | None:
        if not address:
            return None
        if not is_remote(address):
            return Path(address)
        folder, name = split_address(address)
        store = self.stores.setdefault(folder, open_store(folder))
        path: Path = stack.enter_context(store.local(name))
        return path

    def _study(self) -> Store:
        return self.stores.setdefault(self.settings.study, open_store(self.settings.study))

    def _rule_of(self, key: str) -> str | None:
        """The outcome of a final existing result; None: analyse the trace."""
        store, settings = self._study(), self.settings
        if store.exists(results.name_of(key)):
            return ""
        if settings.again or not store.exists(results.name_of(key, limit=True)):
            return None
        document = results.read(store, key)
        exceeds = results.exceeds_still(document, settings.timeout_s, settings.memory_bytes)
        return str(document["rule"]) if exceeds else None

    def _analyse(self, task: Task, files: dict[str, Path | None], key: str, start: float) -> str:
        """Analyse and write the result; returns its rule."""
        trace = files["trace"]
        assert trace is not None
        _forget_peak()
        settings = self.settings
        analysis = analyse(
            trace, files["meta"], files["hosts"], settings.options, settings.memory_bytes
        )
        analysis = replace(analysis, error=_without_paths(analysis.error, files))
        row = {"seconds": time.monotonic() - start, "peak_memory": _peak_bytes()}
        results.write(self._study(), document_of(key, analysis, settings, task, row))
        return analysis.rule


def _without_paths(text: str, files: dict[str, Path | None]) -> str:
    """The text with placeholders for paths: a result belongs to a content at any path."""
    for name, words in (
        ("meta", "its job file"),
        ("hosts", "its hosts file"),
        ("trace", "the trace"),
    ):
        text = text.replace(str(files[name] or "\0"), words)
    return text


def document_of(
    key: str, analysis: Analysis, settings: Settings, task: Task, run: dict[str, Any]
) -> results.Document:
    """The result of a trace; ``run`` describes the run of the analysis."""
    return {
        "key": key,
        "version": settings.version,
        "rule": analysis.rule,
        "error": analysis.error,
        "row": {"trace_bytes": task.size, **analysis.row},
        "steps": analysis.steps,
        "run": {"place": f"{socket.gethostname()}:{os.getpid()}", "attempts": 1, **run},
        "limits": {"timeout_s": settings.timeout_s, "memory_bytes": settings.memory_bytes},
    }


def _forget_peak() -> None:
    """Reset the peak of memory that Linux keeps of a process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    """Peak memory of this process since :func:`_forget_peak`."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
