"""vTrain's multi-tenant case study (V-B): ElasticFlow with fixed plans against the best plans.

The paper gives the cluster (128 nodes of 8 A100), the models (Table II), the arrivals (Microsoft's
ITP trace) and the numbers of jobs. Its deadlines lie 0.5 to 1.5 durations after the arrival. It
does not give the rest; :class:`Choices` has our choices, and every result names them. So the study
shows whether the paper's figures are plausible, and does not reproduce them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import QueueError
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.scheduling.elasticflow import ElasticFlow, Order
from paceline.scheduling.jobs import Array, JobList, Throughputs, job_list
from paceline.scheduling.replay import replay_queue
from paceline.scheduling.result import QueueReplay
from paceline.scheduling.throughputs import Tables, Workload, powers_of_two, throughput_tables

Progress = Callable[[int, int], None]

GPUS = 1024
#: Nodes of the paper's multi-node cluster: 8 A100 and four 200 Gb/s adapters.
CLUSTER = "a100-80g-4nic"

#: Table II: name, layers, hidden, heads, batch; sequences of 2,048 tokens. The tensor- and
#: pipeline-parallel degrees of the fixed plans are the paper's for 39.1B. The others follow the
#: same rule: tensor parallelism over a node, and the fewest stages that fit.
MODELS = (
    ("18.4B", 40, 6144, 48, 1024, (8, 1)),
    ("39.1B", 48, 8192, 64, 1536, (8, 2)),
    ("81.2B", 64, 10240, 80, 1792, (8, 4)),
)
_VOCAB, _SEQ_LEN = 51_200, 2048

#: Software of the paper's time: fp16, full recomputation, one sample per microbatch, at most the
#: distributed optimizer. There is no fused attention and no interleaving. Gradients have 16 bits
#: and are reduced after the backward. If the fixed plans also use their best microbatch, all gains
#: are about half.
VTRAIN_SOFTWARE: Mapping[str, Any] = {
    "max_vpp": 1,
    "micro_batches": (1,),
    "zeros": (0, 1),
    "sequence_parallels": (False,),
    "recomputes": ("full",),
    "precision": "fp16",
    "flash": False,
    "grad_bytes": 2,
    "overlap_dp": False,
    "uneven": False,
}

#: Results of the paper (V-B, Figures 12 to 14).
PAPER = {
    "deadline_gain_64": 1.17,
    "deadline_gain_128": 1.30,
    "jct_change": -0.5259,
    "makespan_change": -0.2643,
}

#: Jobs of each part. Parts with deadlines use all windows, others one fewer (the paper's nine).
WITH_DEADLINES, WITHOUT = (64, 128), 32
AT_ONCE = (16, 30, 44, 58, 72)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices for the gaps in the paper.

    Attributes:
        seed: seed of all random draws.
        software: "vtrain", or "today" for everything that ``paceline plan`` searches.
        span_h: hours over which the arrivals of a window are stretched.
        duration_h: bounds of the durations in hours, drawn log-uniformly.
        duration_gpus: numbers of GPUs for which a duration holds (with the fixed plan), drawn.
        slot_s: seconds between decisions.
        rescale_s: seconds that a change of its GPUs costs a job; plans include them.
        marginal: see :class:`ElasticFlow`.
        order: see :class:`ElasticFlow`.
    """

    seed: int = 20261122
    software: str = "vtrain"
    span_h: float = 400.0
    duration_h: tuple[float, float] = (5.0, 100.0)
    duration_gpus: tuple[int, ...] = (64, 128, 256)
    slot_s: float = 240.0
    rescale_s: float = 0.0
    marginal: str = "saved"
    order: Order = "arrival"

    def __post_init__(self) -> None:
        if self.software not in ("vtrain", "today"):
            raise QueueError(f"software must be vtrain or today, not {self.software!r}")
        if not 0 < self.duration_h[0] <= self.duration_h[1]:
            raise QueueError("durations need bounds above 0 hours")
        if not 0 < self.span_h < np.inf:
            raise QueueError(f"the span must be above 0 hours, not {self.span_h:g}")


@dataclass(frozen=True)
class Window:
    """One queue, replayed with fixed plans and with the best ones.

    Attributes:
        part: "deadlines", "jct" or "makespan".
        name: name of the window.
        jobs: number of its jobs.
        fixed, best: the replays.
        gain: the figure of the part: ratio of met deadlines, or relative change of the mean JCT or
            the makespan.
    """

    part: str
    name: str
    jobs: int
    fixed: QueueReplay
    best: QueueReplay
    gain: float


@dataclass(frozen=True)
class Study:
    """All windows, and their means.

    Attributes:
        choices: the choices for the paper's gaps.
        windows: windows of each part, the worst first.
        tables: the throughputs.
    """

    choices: Choices
    windows: tuple[Window, ...]
    tables: Tables

    def mean(self, part: str, jobs: int) -> float:
        """The mean gain of a part's windows with this number of jobs."""
        return float(np.mean([w.gain for w in self.windows if (w.part, w.jobs) == (part, jobs)]))

    @property
    def late(self) -> int:
        """Admitted jobs that ended late, over all windows."""
        return sum(w.fixed.late + w.best.late for w in self.windows)

    def summary(self) -> dict[str, float]:
        """The figures of the paper; the makespan's is the largest reduction ("up to")."""
        makespans = [w.gain for w in self.windows if w.part == "makespan"]
        return {
            "deadline_gain_64": self.mean("deadlines", 64),
            "deadline_gain_128": self.mean("deadlines", 128),
            "jct_change": self.mean("jct", WITHOUT),
            "makespan_change": min(makespans),
            "late": self.late,
        }


def read_windows(path: Path) -> dict[str, Array]:
    """Window -> submission times [s] of its jobs, from a CSV (``window``, ``submission_time``).

    Raises:
        QueueError: the file cannot be read, lacks a column, or has no window of 128 jobs.
    """
    windows: dict[str, list[float]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                windows.setdefault(row["window"], []).append(float(row["submission_time"]))
    except OSError as error:
        raise QueueError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, csv.Error, UnicodeDecodeError):
        raise QueueError(
            f"{path} is no file of windows: it needs the columns window and submission_time"
        ) from None
    short = [name for name, times in windows.items() if len(times) < max(WITH_DEADLINES)]
    if short or not windows:
        raise QueueError(f"{path}: every window needs {max(WITH_DEADLINES)} jobs")
    return {name: np.sort(np.array(times)) for name, times in sorted(windows.items())}


def study_tables(choices: Choices, folder: Path | None, progress: Progress | None = None) -> Tables:
    """The throughputs of the three models; see :func:`throughput_tables`."""
    workloads = [
        Workload(
            name=name,
            llm=LLM(
                name=name,
                hidden=hidden,
                layers=layers,
                heads=heads,
                seq_len=_SEQ_LEN,
                vocab=_VOCAB,
            ),
            global_batch=batch,
            fixed=fixed,
        )
        for name, layers, hidden, heads, batch, fixed in MODELS
    ]
    software = VTRAIN_SOFTWARE if choices.software == "vtrain" else {}
    return throughput_tables(
        workloads,
        cluster_preset(CLUSTER),
        powers_of_two(GPUS),
        folder=folder,
        progress=progress,
        **software,
    )


def run_study(
    windows: Mapping[str, Array],
    choices: Choices,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Study:
    """Replay all windows; ``progress`` is called with (windows done, windows)."""
    tables = study_tables(choices, folder)
    names = list(windows)
    cases = [("deadlines", name, jobs) for jobs in WITH_DEADLINES for name in names]
    cases += [("jct", name, WITHOUT) for name in names[: max(1, len(names) - 1)]]
    cases += [("makespan", names[k % len(names)], jobs) for k, jobs in enumerate(AT_ONCE)]
    replayed = []
    for k, (part, name, count) in enumerate(cases):
        if progress is not None:
            progress(k, len(cases))
        jobs = _jobs(windows[name][:count], tables.fixed, choices, f"{part} {name} {count}", part)
        replayed.append(_window(part, name, jobs, tables, choices))
    worst_first = sorted(
        replayed, key=lambda w: (w.part, w.jobs, w.gain if w.part == "deadlines" else -w.gain)
    )
    return Study(choices, tuple(worst_first), tables)


def _jobs(arrivals: Array, fixed: Throughputs, choices: Choices, key: str, part: str) -> JobList:
    """Jobs with drawn models, durations and deadlines, the same for both plans."""
    rng = np.random.default_rng([choices.seed, *key.encode()])
    n = len(arrivals)
    if part == "makespan":
        submitted = np.zeros(n)
    else:
        length = arrivals[-1] - arrivals[0]
        share = (arrivals - arrivals[0]) / length if length else np.linspace(0, 1, n)
        submitted = share * choices.span_h * 3600
    curve = [MODELS[k][0] for k in rng.integers(len(MODELS), size=n)]
    low, high = np.log(choices.duration_h)
    duration_s = np.exp(rng.uniform(low, high, n)) * 3600
    gpus = rng.choice(choices.duration_gpus, n)
    rates = [fixed.rate(name, int(count)) for name, count in zip(curve, gpus, strict=True)]
    slack = rng.uniform(0.5, 1.5, n)
    return job_list(
        [f"{k}" for k in range(n)],
        submitted.tolist(),
        (duration_s * np.array(rates)).tolist(),
        curve=curve,
        deadline_s=(submitted + slack * duration_s).tolist() if part == "deadlines" else None,
    )


def _window(part: str, name: str, jobs: JobList, tables: Tables, choices: Choices) -> Window:
    replays: Sequence[QueueReplay] = [
        replay_queue(
            jobs,
            GPUS,
            ElasticFlow(choices.marginal, choices.order),  # type: ignore[arg-type]
            table,
            rescale_s=choices.rescale_s,
            slot_s=choices.slot_s,
        )
        for table in (tables.fixed, tables.best)
    ]
    fixed, best = replays
    if part == "deadlines":
        gain = int(best.met.sum()) / max(1, int(fixed.met.sum()))
    elif part == "jct":
        gain = float(best.jct_s.mean() / fixed.jct_s.mean() - 1)
    else:
        gain = best.makespan_s / fixed.makespan_s - 1
    return Window(part, name, len(jobs), fixed, best, gain)


def to_mapping(study: Study) -> dict[str, Any]:
    """The study in the form of JSON."""
    return {
        **study.summary(),
        "paper": PAPER,
        "choices": asdict(study.choices),
        "fixed_degrees": {name: list(degrees) for name, degrees in study.tables.degrees.items()},
        "windows": [
            {
                "part": w.part,
                "window": w.name,
                "jobs": w.jobs,
                "gain": w.gain,
                "deadline_ratio": [w.fixed.deadline_ratio, w.best.deadline_ratio],
                "mean_jct_s": [float(np.nanmean(w.fixed.jct_s)), float(np.nanmean(w.best.jct_s))],
                "makespan_s": [w.fixed.makespan_s, w.best.makespan_s],
                "late": w.fixed.late + w.best.late,
            }
            for w in study.windows
        ],
    }
