"""Measured training steps of networks, a row a run, as ``paceline calibrate`` and ``predict`` read.

Needed: model, strategy, gpus, global_batch; step_time_s to compare. Known beside these: framework,
gpus_per_node, split_in_node, crop, gradients, precision, channels_last, compute_s, communication_s,
status ("normal", or what is wrong). All other columns are kept as they are.

Without a framework, or with "chainer", the model is one of ChainerMNX's. With "pytorch" it is a
preset or a layers file, beside the runs, and gradients go by DDP's buckets.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import ModelError
from paceline.networks.layer import LayerNetwork, Shape
from paceline.networks.layers_json import read_layers
from paceline.networks.presets import network_preset
from paceline.networks.presets_chainer import chainer_network
from paceline.networks.strategy import STRATEGIES, Strategy

NEEDED = ("model", "strategy", "gpus", "global_batch")
ADDED = ("predicted_step_time_s", "abnormal", "reason")
FRAMEWORKS = ("chainer", "pytorch")
_IMAGE = 224
_VOLUME = {"cosmoflow-256": 256, "cosmoflow-512": 512}
_END_OF_COSMOFLOW = "pool2"  # ParaDL paper, 4.5.1: behind its second pooling all GPUs have all


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRun:
    """One row.

    Attributes:
        line: in its file, from 1.
        row: its text by column.
        network: the trained network; equal rows share one.
        strategy: how.
        step_s, compute_s, communication_s: measured; None where not.
        status: "normal", "" where the file says nothing, or what is wrong.
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
        """Properties of runs that differ in the number of GPUs alone."""
        each = self.strategy.global_batch / self.strategy.replicas
        name, split = self.strategy.name, self.strategy.split
        split = split if "+" in name else 0
        rest = tuple(self.row.get(key, "") for key in ("crop", "gradients", "includes_input"))
        return (self.network.name, name, split, each, *rest)


@dataclass(frozen=True, slots=True)
class RunTable:
    """A file of runs.

    Attributes:
        columns: of the file.
        runs: its rows in order, but those that cannot be run.
        rows: all of them, text by column.
        errors: line -> why its row cannot be run.
    """

    columns: tuple[str, ...]
    runs: tuple[NetworkRun, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...] = ()
    errors: Mapping[int, str] = field(default_factory=dict)


def is_network_runs(path: Path) -> bool:
    """Whether the file's header is that of networks' runs, not of language models'."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False  # the other reader says why
    return "strategy" in (name.strip() for name in header)


def read_network_runs(path: Path, *, skip_errors: bool = False) -> RunTable:
    """All rows of a CSV file.

    Args:
        path: of the file.
        skip_errors: a wrong row goes to ``errors``, unless all are wrong.

    Raises:
        ModelError: it cannot be read, a column is missing or in another unit, or a row is wrong.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            _check_columns(path, columns)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not a CSV file"
        raise ModelError(f"{path} cannot be read: {reason}") from None
    if not rows:
        raise ModelError(f"{path} has no rows")
    networks: dict[tuple[str, Shape], LayerNetwork] = {}
    runs, errors = [], dict[int, str]()
    for line, row in rows:
        try:
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
    if None in row or None in row.values():
        raise ModelError("it has another number of values than the header")
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
    """A layers file beside the runs, or a preset; ``shape`` is that of a preset's images."""
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
    """ChainerMNX's implementation (ParaDL paper, 4.5.1): halos by MPI, leaders and segments."""
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
    """PyTorch's: DDP's buckets, NCCL for everything."""
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
    # A communication of 0 is one that does not happen: a single GPU's.
    if not math.isfinite(value) or value < 0 or (value == 0 and name == "step_time_s"):
        raise ModelError(f"{name} must be a number of seconds above 0, not {text[:40]!r}")
    return value or None


def checked_csv(table: RunTable, added: Mapping[int, Mapping[str, str]]) -> str:
    """The input's columns and ``ADDED``, a row a run; ``added`` by line.

    A row that cannot be run has its error as reason, and no prediction.
    """
    own = [name for name in table.columns if name not in ADDED]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*own, *ADDED], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for line, row in table.rows:
        values = added.get(line) or {"reason": table.errors.get(line, "")}
        writer.writerow({**row, **dict.fromkeys(ADDED, ""), **values})
    return text.getvalue()
