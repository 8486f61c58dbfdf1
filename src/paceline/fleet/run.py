"""A fleet from its traces to its dataset: the tasks, their engine, and their results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import FleetError, OutputError
from paceline.fleet import results
from paceline.fleet.columns import SCHEMA
from paceline.fleet.compact import Pair, compact, dataset_digest
from paceline.fleet.discover import STUDY_FILE, find_traces
from paceline.fleet.engines import Engine, InProcessEngine, LocalEngine, cpu_count, memory_here
from paceline.fleet.key_index import KeyIndex
from paceline.fleet.keys import AnalysisOptions, analysis_version, stamp_key
from paceline.fleet.lock import locked
from paceline.fleet.manifest import read_manifest
from paceline.fleet.rules import RuleOptions
from paceline.fleet.store import BucketStore, FolderStore, is_remote, open_store
from paceline.fleet.study import Study, read_about
from paceline.fleet.task import Outcome, Settings, Task
from paceline.fleet.trace_entry import TraceEntry

#: Least memory: the packages of an analysis alone need this much.
MIN_MEMORY_BYTES = 256 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RunOptions:
    """Settings of a fleet's analysis that do not change its numbers.

    Attributes:
        engine: ``local`` or ``ray``.
        address: address of the Ray cluster; "" starts one here.
        processes: processes of the local engine; None: one per processor; 0: this process.
        timeout_s: time limit for one trace; None: no limit.
        memory_bytes: memory for analyses on one machine; None: 80% of the free memory.
        again: analyse traces again that exceeded a limit before.
    """

    engine: str = "local"
    address: str = ""
    processes: int | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None
    again: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise FleetError(f"there is no engine {self.engine!r}; choose local or ray")
        if self.engine == "ray" and self.processes is not None:
            raise FleetError("the number of processes is the local engine's; Ray has its own")
        if self.engine == "local" and self.address:
            raise FleetError("an address is that of a Ray cluster: choose the engine ray")
        if self.processes is not None and self.processes < 0:
            raise FleetError(f"processes must not be below 0, but are {self.processes}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise FleetError(f"the timeout must be above 0 s, not {self.timeout_s:g}")
        if self.processes == 0 and (self.timeout_s or self.memory_bytes):
            raise FleetError("limits of time and memory need processes of their own, not 0")
        if self.memory_bytes is not None and self.memory_bytes < MIN_MEMORY_BYTES:
            raise FleetError(
                f"memory must be at least {MIN_MEMORY_BYTES >> 20} MiB, what an analysis of a "
                "small trace takes"
            )


def fleet(
    traces: str | Path | None = None,
    out: str | Path = "study",
    *,
    manifest: str | Path | None = None,
    analysis: AnalysisOptions | None = None,
    rules: RuleOptions | None = None,
    run: RunOptions | None = None,
    by: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> Study:
    """Analyse all traces of a folder or bucket into one dataset; finished traces are kept.

    Args:
        traces: folder, or an address that fsspec knows.
        out: folder or address of the study; an existing study is continued.
        manifest: CSV or parquet table of the traces instead.
        analysis: settings that change the numbers.
        rules: rules for jobs that count.
        run: engine and limits.
        by: labels of the manifest for further groups of jobs.
        progress: called with (finished traces, all traces).

    Raises:
        FleetError: there are no traces, the manifest or ``out`` cannot be used, or no job counts.
        OutputError: the study cannot be written.
    """
    analysis, rules, run = (
        analysis or AnalysisOptions(),
        rules or RuleOptions(),
        run or RunOptions(),
    )
    entries, n_ignored = _entries(traces, manifest)
    store = open_store(out)
    _check_out(store)
    with locked(store):
        _check_out(store)
        study_settings = Settings(
            store.address, analysis_version(), analysis, run.timeout_s, None, run.again
        )
        about = {
            "schema": SCHEMA,
            "version": study_settings.version,
            "analysis": asdict(analysis),
            "rules": asdict(rules),
            "engine": run.engine,
            "traces": len(entries),
            "ignored_files": n_ignored,
            "by": list(by),
        }
        before = read_about(store)
        pairs = _outcomes(store, entries, study_settings, rules, run, about, progress)
        digest = dataset_digest(pairs, rules)
        if before is not None and before.get("dataset") == digest:
            counts = before["counts"]
        else:
            counts = compact(store, pairs, rules)
        _write_about(store, {**about, "state": "complete", "counts": counts, "dataset": digest})
    if not counts.get("analysed"):
        listed = ", ".join(f"{rule}: {count:,}" for rule, count in counts.items())
        raise FleetError(f"none of {len(entries):,} jobs counts ({listed}); {out} says why of each")
    study = Study(out)
    study.write_summary()
    return study


def _entries(
    traces: str | Path | None, manifest: str | Path | None
) -> tuple[list[TraceEntry], int]:
    if (traces is None) == (manifest is None):
        raise FleetError("give a folder of traces or a manifest, not both")
    if manifest is not None:
        return read_manifest(Path(manifest)), 0
    return find_traces(str(traces))


def _check_out(store: FolderStore | BucketStore) -> None:
    """Refuse a folder that is not a study and not empty, before anything is written."""
    if isinstance(store, FolderStore):
        if store.folder.exists() and not store.folder.is_dir():
            raise OutputError(f"{store.folder} cannot be a folder: a file is in the way")
        if store.folder.is_dir() and not os.access(store.folder, os.W_OK | os.X_OK):
            raise OutputError(f"{store.folder} cannot be written: permission denied")
        if not store.folder.is_dir():
            return
    if read_about(store) is None and next(store.files(), None) is not None:
        raise FleetError(f"{store.address} is not empty and no study; choose another folder")


def _write_about(store: FolderStore | BucketStore, about: dict[str, Any]) -> None:
    store.write(STUDY_FILE, (json.dumps(about, indent=1) + "\n").encode())


def _outcomes(
    store: FolderStore | BucketStore,
    entries: Sequence[TraceEntry],
    settings: Settings,
    rules: RuleOptions,
    run: RunOptions,
    about: dict[str, Any],
    progress: Progress,
) -> list[Pair]:
    """Each trace with its outcome; traces without a result yet are analysed."""
    index = KeyIndex(store)
    done = {key for key, of_limit in results.keys(store) if not of_limit}
    stamps = [
        stamp_key(_absolute(e.path), e.stamp, settings.options, settings.version) for e in entries
    ]
    outcomes: dict[str, Outcome | None] = {}
    tasks: list[Task] = []
    for entry, stamp in zip(entries, stamps, strict=True):
        key = index.key(stamp)
        if rules.before(entry)[0]:
            outcomes[entry.path] = None
        elif key in done:
            outcomes[entry.path] = Outcome(entry.path, key)
        else:
            tasks.append(_task(entry))
    if tasks:
        _write_about(store, {**about, "state": "running"})
        stamp_of = dict(zip((entry.path for entry in entries), stamps, strict=True))
        engine = _engine(settings, run, len(tasks), here=_needs_here(entries, store))
        try:
            _drive(engine, tasks, outcomes, index, stamp_of, progress)
        finally:
            engine.close()
            index.merge()
    return [(entry, outcomes[entry.path]) for entry in entries]


def _drive(
    engine: Engine,
    tasks: list[Task],
    outcomes: dict[str, Outcome | None],
    index: KeyIndex,
    stamp_of: dict[str, str],
    progress: Progress,
) -> None:
    """Submit the large tasks first, and gather outcomes."""
    waiting = sorted(tasks, key=lambda task: (task.size, task.name))  # taken from the end
    total, under_way = len(outcomes) + len(tasks), 0
    while waiting or under_way:
        while waiting and engine.has_room(waiting[-1]):
            engine.submit(waiting.pop())
            under_way += 1
        for outcome in engine.next_finished():
            under_way -= 1
            outcomes[outcome.name] = outcome
            if outcome.key:
                index.add(stamp_of[outcome.name], outcome.key)
        progress(len(outcomes), total)


def _task(entry: TraceEntry) -> Task:
    return Task(
        _absolute(entry.path), entry.path, _absolute(entry.meta), _absolute(entry.hosts), entry.size
    )


def _absolute(address: str) -> str:
    return address if not address or is_remote(address) else str(Path(address).absolute())


def _needs_here(entries: Sequence[TraceEntry], store: FolderStore | BucketStore) -> bool:
    """Whether a bucket is in the memory of this process, invisible to others."""
    addresses = (store.address, *(entry.path for entry in entries[:1]))
    return any(address.startswith("memory://") for address in addresses)


def _engine(settings: Settings, run: RunOptions, n_tasks: int, *, here: bool) -> Engine:
    if run.engine == "ray":
        from paceline.fleet.engine_ray import RayEngine
        from paceline.fleet.ray_cluster import RayCluster

        if here:
            raise FleetError("memory:// is in this process only; use a bucket that Ray reaches")
        return RayEngine(settings, RayCluster(run.address), run.memory_bytes, n_tasks)
    if run.processes == 0 or (here and run.processes is None):
        return InProcessEngine(settings)
    if here:
        raise FleetError("memory:// is in this process only; use --processes 0")
    memory = run.memory_bytes or memory_here()
    return LocalEngine(replace(settings, memory_bytes=memory), run.processes or cpu_count(), memory)
