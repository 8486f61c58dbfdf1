"""Measured or planned runs in a CSV file, one per row, and errors of predictions for them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError, PacelineError
from paceline.model.cluster import Cluster
from paceline.model.cluster_presets import cluster_preset
from paceline.model.cluster_yaml import load_cluster
from paceline.model.csv_table import read_csv
from paceline.model.llm import LLM
from paceline.model.llm_presets import llm_preset
from paceline.model.packing import Packing, documents_of
from paceline.model.plan import Plan
from paceline.model.plan_check import check
from paceline.model.precision_names import precision_of
from paceline.model.software import as_run_by, software_preset
from paceline.plan.cells import Cells
from paceline.plan.interval import Interval

#: Columns that a row needs; without ``model`` also the model's own fields.
NEEDED = ("gpus", "global_batch", "micro_batch", "tp", "dp", "pp")
MODEL_FIELDS = ("hidden", "heads", "layers", "seq_len")
OPTIONAL = (
    *("vpp", "cp", "ep", "recompute", "sequence_parallel", "precision", "zero", "vocab"),
    *("kv_heads", "ffn", "gpu", "model", "flash", "schedule", "step_time_s"),
    *(
        "software",
        "adapter_rank",
        "fused_experts",
        "kernels",
        "offload_layers",
        "recompute_modules",
        "shards",
        "overlap_tp",
        "overlap_dp",
        "layers_per_chunk",
        "grad_bytes",
        "grad_reduce_bytes",
        "task",
        "documents",
        "padding",
    ),
)

#: Default GPU of rows: the cluster of vTrain's runs.
DEFAULT_GPU = "a100-80g-4nic"
DEFAULT_VOCAB = 51_200

#: GPUs from the years before fused attention was usual.
_UNFUSED = ("v100", "a100")


@dataclass(frozen=True)
class Run:
    """One row.

    Attributes:
        llm: the model.
        plan: the plan.
        gpu: name of the GPU, "" = not given.
        measured_s: its step time; None = not given.
        line: line of the file, from 1.
    """

    llm: LLM
    plan: Plan
    gpu: str
    measured_s: float | None
    line: int


@dataclass(frozen=True)
class RunTable:
    """A file of runs.

    Attributes:
        columns: names in its header.
        rows: all rows as text.
        runs: the runs of the rows without errors.
        errors: line of a row -> reason why it cannot be expressed, without file and line.
        lines: line of each row, from 1.
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    runs: tuple[Run, ...]
    errors: Mapping[int, str]
    lines: tuple[int, ...]


def read_runs(
    path: Path, *, need_times: bool = False, skip_errors: bool = False, ignore_gpu: bool = False
) -> RunTable:
    """Read a file of runs.

    Defaults of a row are those of the runs published with vTrain: full recomputation, fp16, 16-bit
    gradients that are reduced after the backward pass, no ZeRO and 51,200 words. On V100 and A100,
    attention is not fused by default.

    Args:
        path: CSV with a header.
        need_times: every row must have ``step_time_s``.
        skip_errors: put rows that cannot be expressed into ``errors`` instead of raising.
        ignore_gpu: accept rows' GPUs that are not presets, since the caller has a cluster.

    Raises:
        ModelError: the file cannot be read or lacks columns, or a value is wrong (line and
            column).
        PlanError: a row's plan cannot train its model.
    """
    columns, rows, lines, ragged = _read_table(path)
    missing = [name for name in NEEDED if name not in columns]
    if "model" not in columns:
        missing += [name for name in MODEL_FIELDS if name not in columns]
    if need_times and "step_time_s" not in columns:
        missing.append("step_time_s")
    if missing:
        raise ModelError(
            f"{path} lacks the columns {', '.join(missing)}{_near(missing, columns)}; it has "
            f"{', '.join(columns)[:200]}"
        )
    runs, errors = [], dict[int, str]()
    for line, row in zip(lines, rows, strict=True):
        try:
            if line in ragged:
                raise ModelError(f"{path}:{line} {ragged[line]}")
            runs.append(_checked_run(Cells(row, f"{path}:{line}: "), line, need_times, ignore_gpu))
        except ModelError as error:
            if not skip_errors:
                raise
            errors[line] = str(error).removeprefix(f"{path}:{line}").lstrip(": ")
    return RunTable(columns, tuple(rows), tuple(runs), errors, lines)


def run_of(row: Mapping[str, str]) -> Run:
    """The run of one row, by the rules of :func:`read_runs`.

    Args:
        row: column -> text; ``NEEDED`` columns are required.

    Raises:
        ModelError: a value is wrong.
        PlanError: the plan cannot train the model.
    """
    return _checked_run(Cells(row), 1, need_times=False, ignore_gpu=False)


def _checked_run(cells: Cells, line: int, need_times: bool, ignore_gpu: bool) -> Run:
    """The run of a row, with a plan that can train its model; errors name file and line."""
    try:
        run = _run(cells, line, ignore_gpu)
        check(run.plan, run.llm)
    except ModelError as error:
        if str(error).startswith(cells.where):
            raise
        raise type(error)(f"{cells.where}{error}") from None
    if need_times and run.measured_s is None:
        cells.fail("step_time_s", "is empty; every run needs its measured seconds")
    return run


def runs_cluster(runs: Sequence[Run], requested: str | None) -> Cluster:
    """The cluster for all runs.

    Args:
        runs: with their GPUs.
        requested: a preset's name or a cluster file, which overrides the rows' GPUs.

    Raises:
        ModelError: the rows name several GPUs and none is given.
    """
    if requested is not None:
        return named_cluster(requested)
    names = sorted({run.gpu for run in runs})
    if len(names) > 1:
        gpu_names = ", ".join(name or "(none)" for name in names)
        raise ModelError(
            f"the runs are of several GPUs ({gpu_names}); name a folder for a cluster file of "
            "each: -o clusters/"
        )
    return cluster_preset(names[0] or DEFAULT_GPU)


def named_cluster(name: str) -> Cluster:
    """The cluster file of that name if it exists, otherwise the preset."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return load_cluster(path)
    return cluster_preset(name)


def by_gpu(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Name of a preset -> the runs on its GPUs, in any spelling."""
    runs_of: dict[str, list[Run]] = {}
    for run in runs:
        runs_of.setdefault(cluster_preset(run.gpu or DEFAULT_GPU).name, []).append(run)
    return runs_of


def is_cluster_folder(requested: str | None) -> bool:
    """Whether a name is a folder with a cluster file for each GPU, as ``calibrate`` writes it."""
    return requested is not None and Path(requested).is_dir()


def run_clusters(runs: Sequence[Run], requested: str | None) -> list[Cluster]:
    """The cluster of each run.

    Args:
        runs: with their GPUs.
        requested: a preset's name, a cluster file, or a folder with a file for each GPU (those
            without one have their presets); None = the presets.
    """
    if requested is not None and is_cluster_folder(requested):
        files = {name: Path(requested) / f"{name}.yaml" for name in by_gpu(runs)}
        found = {
            name: load_cluster(path) if path.is_file() else cluster_preset(name)
            for name, path in files.items()
        }
        return [found[cluster_preset(run.gpu or DEFAULT_GPU).name] for run in runs]
    if requested is not None:
        return [named_cluster(requested)] * len(runs)
    cluster_of = {name: cluster_preset(name or DEFAULT_GPU) for name in {run.gpu for run in runs}}
    return [cluster_of[run.gpu] for run in runs]


def predicted_csv(
    table: RunTable,
    predicted_s: Mapping[int, float],
    intervals: Mapping[int, Interval],
    errors: Mapping[int, str],
) -> str:
    """The file with ``predicted_step_time_s``, ``predicted_low_s`` and ``predicted_high_s``.

    Existing columns are kept.

    Args:
        table: the file.
        predicted_s: line -> seconds.
        intervals: line -> where 80% of measured steps lie.
        errors: line -> reason for a missing prediction; with any, there is a column
            ``prediction_error``.
    """
    added = ["predicted_step_time_s", "predicted_low_s", "predicted_high_s"]
    added += ["prediction_error"] if errors else []
    columns = [name for name in table.columns if name not in added]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *added])
    for line, row in zip(table.lines, table.rows, strict=True):
        cells = ["", "", "", errors.get(line, "")]
        if line in predicted_s:
            numbers = predicted_s[line], intervals[line].low_s, intervals[line].high_s
            cells[:3] = [f"{number:.6g}" for number in numbers]
        cells = cells[: len(added)]
        writer.writerow([*(row[name] for name in columns), *cells])
    return text.getvalue()


def error_table(measured: Any, predicted: Any) -> dict[str, float | None]:
    """Errors of predictions as shares of measured times: n, mape, median, p90, and R^2 of seconds.

    R^2 is None if all measured times are equal.
    """
    measured_s = np.asarray(measured, dtype=np.float64)
    predicted_s: npt.NDArray[np.float64] = np.asarray(predicted, dtype=np.float64)
    share = np.abs(predicted_s / measured_s - 1)
    spread = float(((measured_s - measured_s.mean()) ** 2).sum())
    return {
        "n": len(measured_s),
        "mape": float(share.mean()),
        "median": float(np.median(share)),
        "p90": float(np.quantile(share, 0.9)),
        "r2": 1.0 - float(((predicted_s - measured_s) ** 2).sum()) / spread if spread else None,
    }


def _read_table(
    path: Path,
) -> tuple[tuple[str, ...], list[dict[str, str]], tuple[int, ...], dict[int, str]]:
    """Columns, rows, their lines, and errors of lines with a wrong number of cells."""
    table = read_csv(path, "table of runs")
    columns = table.columns
    if not any(columns):
        raise ModelError(f"{path} is empty; the first line names the columns")
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise ModelError(f"{path} has the column {twice[0]!r} more than once")
    if not table.lines:
        raise ModelError(f"{path} has a header but no run")
    return columns, table.rows(), tuple(line for line, _ in table.lines), table.ragged()


def _run(row: Cells, line: int, ignore_gpu: bool) -> Run:
    gpu = row.text("gpu")
    if gpu and not ignore_gpu:
        _checked(row, "gpu", lambda: cluster_preset(gpu))
    llm = _packed(row, _llm(row))
    unfused = not gpu or any(name in gpu.lower() for name in _UNFUSED)
    seconds = row.number("step_time_s")
    if seconds is not None and seconds <= 0:
        row.fail("step_time_s", f"must be above 0, not {seconds:g}")
    vpp = row.whole("vpp", 1)
    plan = Plan(
        tp=row.whole("tp"),
        pp=row.whole("pp"),
        dp=row.whole("dp"),
        cp=row.whole("cp", 1),
        ep=row.whole("ep", 1),
        vpp=vpp,
        micro_batch=row.whole("micro_batch"),
        global_batch=row.whole("global_batch"),
        schedule=row.word("schedule", "interleaved" if vpp > 1 else "1f1b"),
        recompute=row.word("recompute", "full"),
        recompute_modules=tuple(row.text("recompute_modules").replace(",", " ").split()),
        # Without tensor parallelism it has no effect; Megatron-LM switches it off, too.
        sequence_parallel=row.flag("sequence_parallel", False) and row.whole("tp") > 1,
        precision=precision_of(row.text("precision", "fp16")),
        zero=row.whole("zero", 0),
        flash=row.flag("flash", not unfused),
        fused_experts=row.flag("fused_experts", False),
        kernels=row.word("kernels", "auto"),
        overlap_dp=row.flag("overlap_dp", not unfused),
        overlap_tp=row.flag("overlap_tp", False) and row.whole("tp") > 1,
        grad_bytes=_grad_bytes(row, 2 if unfused else 4),
        layers_per_stage=row.counts("layers_per_chunk"),
        adapter_rank=_adapter_rank(row),
        offload_layers=row.whole("offload_layers", 0),
        shards=row.whole("shards", 0),
    )
    if row.text("software"):
        name = row.text("software")
        _checked(row, "software", lambda: software_preset(name))
        plan = as_run_by(llm, plan, software_preset(name))
    if plan.gpus != row.whole("gpus"):
        row.fail(
            "gpus",
            f"is {row.whole('gpus')}, but tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp "
            f"{plan.cp} = {plan.gpus}",
        )
    return Run(llm, plan, gpu, seconds, line)


#: Default rank of adapters: MLPerf's LoRA benchmark.
_ADAPTER_RANK = 16


def _adapter_rank(row: Cells) -> int:
    """Rank of adapters; 0 if all weights are trained. ``task`` "lora" means adapters."""
    task = row.text("task", "pretrain").lower()
    if task not in ("pretrain", "sft", "lora"):
        row.fail("task", f"{task!r} cannot be expressed; known are pretrain, sft and lora")
    return row.whole("adapter_rank", _ADAPTER_RANK if task == "lora" else 0)


def _grad_bytes(row: Cells, default: int) -> int:
    """Bytes of a gradient, from either name of the column."""
    column = "grad_bytes" if row.text("grad_bytes") else "grad_reduce_bytes"
    return row.whole(column) if row.text(column) else default


def _llm(row: Cells) -> LLM:
    """The row's model: a preset, a preset with other fields, or a GPT of these fields."""
    changes: dict[str, Any] = {
        name: row.whole(name)
        for name in (*MODEL_FIELDS, "vocab", "kv_heads", "ffn")
        if row.text(name)
    }
    name = row.text("model")
    is_described = all(row.text(column) for column in MODEL_FIELDS)
    preset: LLM | None = None
    if name:
        try:
            preset = llm_preset(name)
        except ModelError as error:
            if not is_described:  # otherwise only a label
                row.fail("model", f"is unknown: {error}")
    if preset is not None:
        different = {key: value for key, value in changes.items() if getattr(preset, key) != value}
        if set(different) <= {"seq_len", "vocab"}:
            if different.get("seq_len", 0) > preset.max_positions:
                different["max_positions"] = different["seq_len"]
            return replace(preset, **different)
    for column in MODEL_FIELDS:
        if column not in changes:
            row.fail(column, "is empty")
    changes.setdefault("vocab", DEFAULT_VOCAB)
    if preset is not None:
        # The row has a preset's family but another size, so derived sizes are derived again.
        fresh = {"kv_heads": 0, "head_dim": 0, "ffn": 0, "max_positions": 0}
        return replace(preset, **{**fresh, **changes})
    return LLM(name=name or f"{changes['layers']} x {changes['hidden']}", **changes)


def _packed(row: Cells, llm: LLM) -> LLM:
    """The row's model with the row's documents and padding, if it names any."""
    documents, padding = row.text("documents"), row.number("padding")
    if not documents and padding is None:
        return llm
    lengths = documents_of(documents) if documents else ()
    return replace(llm, packing=Packing(documents=lengths, padding=padding or 0.0))


def _checked(row: Cells, column: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PacelineError as error:
        row.fail(column, f"is unknown: {error}")


def _near(missing: Sequence[str], columns: Sequence[str]) -> str:
    hints = {name: get_close_matches(name, columns, n=1) for name in missing}
    hint_texts = [f"{near[0]} for {name}" for name, near in hints.items() if near]
    return f" (did you mean {', '.join(hint_texts)}?)" if hint_texts else ""
