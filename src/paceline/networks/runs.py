"""Measured training steps of networks, one run per row, for ``paceline calibrate`` and ``predict``.

Required columns: model, strategy, gpus, global_batch; for comparisons also step_time_s. Optional
columns: framework, gpus_per_node, split_in_node, crop, gradients, precision, channels_last,
compute_s, communication_s, status ("normal", or a fault). All other columns are kept unchanged.

Without a framework, or with "chainer", the model is one of ChainerMNX's. With "pytorch" it is a
preset or a layers file in the folder of the runs, and gradients use DDP's buckets.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import ModelError
from paceline.model.csv_table import read_csv
from paceline.networks.layer import LayerNetwork, Shape
from paceline.networks.layers_json import read_layers
from paceline.networks.presets import network_preset
from paceline.networks.presets_chainer import chainer_network
from paceline.networks.strategy import STRATEGIES, Strategy

NEEDED = ("model", "strategy", "gpus", "global_batch")
ADDED = ("predicted_step_time_s", "abnormal", "reason")
FRAMEWORKS = ("chainer", "pytorch")
_KIND = "table of runs"
_IMAGE = 224
_VOLUME = {"cosmoflow-256": 256, "cosmoflow-512": 512}
_END_OF_COSMOFLOW = (
    "pool2"  # ParaDL paper, 4.5.1: after its second pooling all GPUs have whole samples
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRun:
    """One row.

    Attributes:
        line: in its file, from 1.
        row: text by column.
        network: the trained network; equal rows share one.
        strategy: split of the training.
        step_s, compute_s, communication_s: measured seconds; None if not measured.
        status: "normal", "" without a status, or a fault.
        framework: "chainer" or "pytorch".
    """

    line: int
    row: Mapping[str, str]
    network: LayerNetwork
    strategy: Strategy
    step_s: float | None
    compute_s: float | None
    communication_s: float | None
    status: str
    framework: str = "chainer"

    @property
    def series(self) -> tuple[object, ...]:
        """Key of a series: its runs differ only in the number of GPUs."""
        each = self.strategy.global_batch / self.strategy.replicas
        name, split = self.strategy.name, self.strategy.split
        split = split if "+" in name else 0
        rest = tuple(self.row.get(key, "") for key in ("crop", "gradients", "includes_input"))
        return (self.network.name, name, split, each, *rest)


@dataclass(frozen=True, slots=True)
class RunTable:
    """A file of runs.

    Attributes:
        columns: columns of the file.
        runs: its runs in order, without rows that cannot be run.
        rows: all rows, text by column.
        errors: line -> reason why its row cannot be run.
    """

    columns: tuple[str, ...]
    runs: tuple[NetworkRun, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...] = ()
    errors: Mapping[int, str] = field(default_factory=dict)


def is_network_runs(path: Path) -> bool:
    """Whether the file's header is for runs of networks, not of language models."""
    try:
        columns = read_csv(path, _KIND).columns
    except ModelError:
        return False  # the other reader reports the error
    return "strategy" in columns


def read_network_runs(path: Path, *, skip_errors: bool = False) -> RunTable:
    """All rows of a CSV file.

    Args:
        path: path of the file.
        skip_errors: put wrong rows into ``errors``, unless all are wrong.

    Raises:
        ModelError: it cannot be read, a column is missing or in another unit, or a row is wrong.
    """
    table = read_csv(path, _KIND)
    columns, ragged = table.columns, table.ragged()
    _check_columns(path, columns)
    rows = [(line, row) for (line, _), row in zip(table.lines, table.rows(), strict=True)]
    if not rows:
        raise ModelError(f"{path} has no rows")
    networks: dict[tuple[str, Shape], LayerNetwork] = {}
    runs, errors = [], dict[int, str]()
    for line, row in rows:
        try:
            if line in ragged:
                raise ModelError(ragged[line])
            runs.append(_run(line, row, networks, path.parent))
        except ModelError as error:
            errors[line] = str(error)
    if errors and not (skip_errors and runs):
        line, text = next(iter(errors.items()))
        raise ModelError(f"{path}, line {line}: {text}")
    return RunTable(columns, tuple(runs), tuple(rows), errors)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    absent = [name for name in NEEDED if name not in columns]
    if absent:
        raise ModelError(f"{path} lacks the columns {', '.join(absent)} of networks' runs")
    if "step_time_s" not in columns:
        near = [name for name in columns if name.startswith("step_time")]
        if near:
            raise ModelError(f"{path} has {near[0]}; give seconds, as step_time_s")


def _run(
    line: int,
    row: dict[str, str],
    networks: dict[tuple[str, Shape], LayerNetwork],
    folder: Path,
) -> NetworkRun:
    framework = row.get("framework", "").strip().lower() or FRAMEWORKS[0]
    if framework not in FRAMEWORKS:
        raise ModelError(f"no framework {framework!r}; choose {', '.join(FRAMEWORKS)}")
    name = row["model"].strip()
    shape = _shape(name, row.get("crop", "").strip())
    if (name, shape) not in networks:
        is_chainer = framework == "chainer"
        networks[name, shape] = (
            chainer_network(name, shape) if is_chainer else _network(name, shape, folder)
        )
    network = networks[name, shape]
    return NetworkRun(
        line=line,
        row=row,
        network=network,
        strategy=_strategy(row, network) if framework == "chainer" else _of_torch(row),
        step_s=_seconds(row, "step_time_s"),
        compute_s=_seconds(row, "compute_s"),
        communication_s=_seconds(row, "communication_s"),
        status=row.get("status", "").strip(),
        framework=framework,
    )


def _network(name: str, shape: Shape, folder: Path) -> LayerNetwork:
    """A layers file in the folder of the runs, or a preset with images of ``shape``."""
    if not name.endswith(".json"):
        return network_preset(name, shape)
    try:
        return read_layers(folder / name)
    except OSError as error:
        raise ModelError(f"{folder / name} cannot be read: {error.strerror}") from None


def _shape(name: str, crop: str) -> Shape:
    if name.startswith("cosmoflow"):
        return (4, *(_VOLUME.get(name, 256),) * 3)
    size = _whole("crop", crop) if crop else _IMAGE
    return (3, size, size)


def _strategy(row: Mapping[str, str], network: LayerNetwork) -> Strategy:
    """The strategy of ChainerMNX (ParaDL paper, 4.5.1): halos by MPI, leaders, segments."""
    name = _strategy_name(row)
    gpus, batch = _whole("gpus", row["gpus"]), _whole("global_batch", row["global_batch"])
    spatial = name.endswith("spatial")
    gradients = row.get("gradients", "").strip() or "packed"
    exchange = "ring"
    if "+" in name:
        exchange = "leader" if spatial and gradients == "per tensor" else "segmented"
    until = None
    if spatial and network.name.startswith("cosmoflow"):
        names = [layer.name for layer in network.layers]
        until = names.index(_END_OF_COSMOFLOW)
    split = 0
    if "+" in name:
        split = _whole("split_in_node", row.get("split_in_node", ""))
    return Strategy(
        name=name,
        gpus=gpus,
        global_batch=batch,
        split=split,
        spatial_until=until,
        gradients=gradients,
        exchange=exchange,
        halo_library="mpi" if spatial else "nccl",
    )


def _of_torch(row: Mapping[str, str]) -> Strategy:
    """The strategy of PyTorch's implementation: DDP's buckets, NCCL for everything."""
    name = _strategy_name(row)
    return Strategy(
        name=name,
        gpus=_whole("gpus", row["gpus"]),
        global_batch=_whole("global_batch", row["global_batch"]),
        split=_whole("split_in_node", row.get("split_in_node", "")) if "+" in name else 0,
        gradients=row.get("gradients", "").strip() or "buckets",
        exchange="tree",
        precision=row.get("precision", "").strip() or "fp32",
        channels_last=row.get("channels_last", "").strip().lower() in ("1", "true", "yes"),
    )


def _strategy_name(row: Mapping[str, str]) -> str:
    name = row["strategy"].strip()
    if name not in STRATEGIES:
        raise ModelError(f"no strategy {name!r}; choose {', '.join(STRATEGIES)}")
    if name.endswith("pipeline"):
        raise ModelError(
            "runs of pipelines are not compared: a row does not say their cut; predict each with "
            "`paceline predict NET --strategy pipeline --microbatches N`"
        )
    return name


def _whole(name: str, text: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and 0 < len(stripped) < 10):
        raise ModelError(f"{name} must be a whole number >= 1, not {text[:40]!r}")
    return int(stripped)


def _seconds(row: Mapping[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # A communication of 0 s is allowed: a single GPU has none.
    if not math.isfinite(value) or value < 0 or (value == 0 and name == "step_time_s"):
        raise ModelError(f"{name} must be a number of seconds above 0, not {text[:40]!r}")
    return value or None


def checked_csv(table: RunTable, added: Mapping[int, Mapping[str, str]]) -> str:
    """Write the input's columns and ``ADDED``, one run per row; ``added`` has the values by line.

    A row that cannot be run has its error as the reason, and no prediction.
    """
    own = [name for name in table.columns if name not in ADDED]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*own, *ADDED], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for line, row in table.rows:
        values = added.get(line) or {"reason": table.errors.get(line, "")}
        writer.writerow({**row, **dict.fromkeys(ADDED, ""), **values})
    return text.getvalue()
