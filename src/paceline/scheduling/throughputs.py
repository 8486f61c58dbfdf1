"""Throughputs of training jobs from the plan search, cached on disk.

``best`` is the fastest plan that fits on a number of GPUs. ``fixed`` is the fastest one with given
tensor- and pipeline-parallel degrees, as for a scheduler that only adds replicas (vTrain, V-B).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import OutputError, PlanError, QueueError
from paceline.files import make_folder, text_writer, write_files
from paceline.model.cluster import Cluster
from paceline.model.llm import LLM
from paceline.plan.search import search
from paceline.scheduling.jobs import Throughputs

Progress = Callable[[int, int], None]

#: The source of these packages is part of a table's key, so a changed model makes new tables.
_SOURCES = ("model", "plan", "graph")
#: Most GPU counts of a table beyond powers of two.
MAX_COUNTS = 4096


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Key of a curve.

    Attributes:
        name: name of the curve.
        llm: the model.
        global_batch: samples of a step.
        fixed: (tp, pp) of the fixed plans; None = the degrees of the fastest plan on the fewest
            GPUs.
    """

    name: str
    llm: LLM
    global_batch: int
    fixed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Tables:
    """Throughputs with the best plans, and with fixed ones.

    Attributes:
        best, fixed: the tables.
        degrees: curve -> (tp, pp) of its fixed plans; curves that fit nowhere are left out.
    """

    best: Throughputs
    fixed: Throughputs
    degrees: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def powers_of_two(gpus: int) -> list[int]:
    """1, 2, 4, ... up to ``gpus``."""
    return [1 << k for k in range(gpus.bit_length())]


def throughput_tables(
    workloads: Sequence[Workload],
    cluster: Cluster,
    counts: Sequence[int],
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Tables:
    """Search the plans of every workload on every number of GPUs.

    Args:
        workloads: the trained models.
        cluster: the machines.
        counts: numbers of GPUs.
        folder: folder of cached tables; None = no cache.
        progress: called with (workloads done, workloads).
        options: options of :func:`paceline.plan.search.search`.

    Raises:
        QueueError: two workloads have one name.
        ModelError: an option is out of range.
    """
    if len({workload.name for workload in workloads}) < len(workloads):
        raise QueueError("two workloads have the same name")
    best: dict[tuple[str, int], float] = {}
    fixed: dict[tuple[str, int], float] = {}
    plans: dict[str, dict[tuple[str, int], str]] = {"best": {}, "fixed": {}}
    degrees = {}
    for k, workload in enumerate(workloads):
        curve = _kept(folder, workload, cluster, counts, options)
        for gpus, rate, text in curve["best"]:
            best[workload.name, gpus] = rate
            plans["best"][workload.name, gpus] = text
        for gpus, rate, text in curve["fixed"]:
            fixed[workload.name, gpus] = rate
            plans["fixed"][workload.name, gpus] = text
        if curve["degrees"]:
            degrees[workload.name] = (curve["degrees"][0], curve["degrees"][1])
        if progress is not None:
            progress(k + 1, len(workloads))
    names = tuple(workload.name for workload in workloads)
    return Tables(_table(names, best, plans["best"]), _table(names, fixed, plans["fixed"]), degrees)


def _table(
    names: tuple[str, ...], rates: dict[tuple[str, int], float], plans: dict[tuple[str, int], str]
) -> Throughputs:
    counts = np.array(sorted({gpus for _, gpus in rates}), dtype=np.int64)
    table = np.zeros((len(names), len(counts)))
    for (name, gpus), rate in rates.items():
        table[names.index(name), np.searchsorted(counts, gpus)] = rate
    return Throughputs(names, counts, table, plans)


def _kept(
    folder: Path | None,
    workload: Workload,
    cluster: Cluster,
    counts: Sequence[int],
    options: dict[str, Any],
) -> dict[str, Any]:
    """The curve from the cache, or searched and then cached."""
    if folder is None:
        return _searched(workload, cluster, counts, options)
    path = folder / f"{_key(workload, cluster, counts, options)}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and {"best", "fixed", "degrees"} <= set(kept):
            return kept
    except (OSError, ValueError):
        pass
    curve = _searched(workload, cluster, counts, options)
    try:
        make_folder(folder)
        write_files({path: text_writer(json.dumps(curve))}, force=True)
    except OutputError:
        pass  # an uncached table is searched again
    return curve


def _key(
    workload: Workload, cluster: Cluster, counts: Sequence[int], options: dict[str, Any]
) -> str:
    digest = hashlib.sha256()
    facts = (workload.llm, workload.global_batch, workload.fixed, cluster, list(counts))
    digest.update(repr((*facts, sorted(options.items()))).encode())
    package = Path(__file__).parents[1]
    for name in _SOURCES:
        for path in sorted((package / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def cache_folder() -> Path:
    """The default folder for tables."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / "throughputs"


def _searched(
    workload: Workload, cluster: Cluster, counts: Sequence[int], options: dict[str, Any]
) -> dict[str, Any]:
    """{"best", "fixed": [(GPUs, steps/s, plan)], "degrees": [tp, pp] or []}; [] = fits nowhere."""
    try:
        result = search(workload.llm, cluster, sorted(counts), workload.global_batch, **options)
    except PlanError:
        return {"best": [], "fixed": [], "degrees": []}
    data = result.columns()
    gpus, times = data["gpus"], data["step_time_s"]
    best = _fastest(result, np.arange(len(result)), gpus, times)
    degrees = workload.fixed or _fewest(data)
    rows = np.flatnonzero(
        (data["tp"] == degrees[0]) & (data["pp"] == degrees[1]) & (data["cp"] == 1)
    )
    return {
        "best": best,
        "fixed": _fastest(result, rows, gpus, times),
        "degrees": list(degrees) if len(rows) else [],
    }


def _fastest(result: Any, rows: Any, gpus: Any, times: Any) -> list[list[Any]]:
    curve = []
    for count in np.unique(gpus[rows]).tolist():
        here = rows[gpus[rows] == count]
        i = int(here[np.argmin(times[here])])
        curve.append([int(count), 1.0 / float(times[i]), result.plan(i).describe()])
    return curve


def _fewest(data: Mapping[str, Any]) -> tuple[int, int]:
    """(tp, pp) of the fastest plan on the fewest GPUs, without context parallelism if it fits."""
    order = np.lexsort((data["step_time_s"], data["gpus"], data["cp"] > 1))
    i = int(order[0])
    return int(data["tp"][i]), int(data["pp"][i])
