"""The planned job: model, cluster, plan and training, from a YAML file or from options.

A job file::

    model: gpt3-175b          # or {preset: gpt3-175b, layers: 48}, {hf: config.json}, {hidden: ..}
    cluster: a100-80g          # or {preset: a100-80g, network: {nics: 4}}, mycluster.yaml
    gpus: 1024
    plan: {tp: 8, pp: 8, micro_batch: 1, global_batch: 1536}    # dp follows from gpus
    training: {tokens: 300 B, price_per_gpu_hour: 4.10}
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import ModelError, PlanError
from paceline.marked_yaml import Section, read_marked
from paceline.model.blocks import Indexer, LatentAttention, MoE
from paceline.model.cluster import Cluster
from paceline.model.cluster_presets import cluster_preset
from paceline.model.cluster_yaml import cluster_from_section, load_cluster
from paceline.model.delta_net import DeltaNet
from paceline.model.hf import from_hf
from paceline.model.llm import LLM
from paceline.model.llm_fields import RECORDS
from paceline.model.llm_presets import llm_preset
from paceline.model.mamba import Mamba
from paceline.model.packing import Packing
from paceline.model.plan import Plan
from paceline.model.vision import VisionCost, VisionTower

_PLAN_FIELDS = tuple(field.name for field in fields(Plan))
_LLM_FIELDS = tuple(field.name for field in fields(LLM))
_SECTIONS = ("model", "cluster", "gpus", "plan", "training")
_TRAINING = ("tokens", "price_per_gpu_hour")

_Record = TypeVar(
    "_Record",
    LLM,
    MoE,
    LatentAttention,
    Indexer,
    Mamba,
    DeltaNet,
    VisionTower,
    VisionCost,
    Packing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """Model, cluster and plan of a training job.

    Attributes:
        llm: the model.
        cluster: the machines, with the job's price.
        plan: split of the model over the GPUs; None = to be searched.
        gpus: GPUs in all; None = the plan's, or to be searched.
        tokens: tokens to train on; None = unknown.
        source: the file it was read from; "" = options.
    """

    llm: LLM
    cluster: Cluster
    plan: Plan | None = None
    gpus: int | None = None
    tokens: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.plan is not None and self.gpus is None:
            object.__setattr__(self, "gpus", self.plan.gpus)
        if self.plan is not None and self.gpus != self.plan.gpus:
            plan = self.plan
            raise PlanError(
                f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} x cp {plan.cp} = {plan.gpus} GPUs, "
                f"not {self.gpus}; leave out dp, and it follows from gpus",
                fields=("tp", "pp", "dp", "cp"),
            )
        if self.tokens is not None and not 0 < self.tokens < float("inf"):
            raise ModelError(
                f"the training's tokens must be above 0, not {self.tokens:g}", fields=("tokens",)
            )


def load_job(path: Path | str) -> PlannedJob:
    """The job that a YAML file describes.

    Raises:
        ModelError: the file cannot be read, or a field is unknown, missing or wrong.
        PlanError: the degrees do not fit the GPUs.
    """
    section = read_marked(Path(path), ModelError)
    section.allow(_SECTIONS)
    for field in ("model", "cluster"):
        if field not in section:
            section.fail("", f"lacks {field}; a job has {', '.join(_SECTIONS)}")
    gpus = section.whole("gpus") if "gpus" in section else None
    training = section.section("training")
    training.allow(_TRAINING)
    values: dict[str, Any] = {
        "llm": _model(section),
        "cluster": _cluster(section),
        "gpus": gpus,
        "source": str(section.path),
    }
    if "tokens" in training:
        values["tokens"] = training.quantity("tokens", "tokens")
    if "price_per_gpu_hour" in training:
        price = training.quantity("price_per_gpu_hour", "dollars")
        values["cluster"] = _priced(training, values["cluster"], price)
    if "plan" in section:
        values["plan"] = _plan(section.section("plan"), gpus)
    try:
        return PlannedJob(**values)
    except PlanError as error:
        section.section("plan").blame(error)
    except ModelError as error:
        training.blame(error)


def job_from_options(
    *,
    model: str | LLM,
    gpu: str | None = None,
    cluster: str | Path | Cluster | None = None,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    tokens: float | None = None,
    price_per_gpu_hour: float | None = None,
    seq_len: int | None = None,
    images: int | None = None,
    packing: Packing | None = None,
    **plan_fields: Any,
) -> PlannedJob:
    """The job from a command's options; None means that an option was not given.

    Args:
        model: a preset's name, the path of a Hugging Face config.json, or a model.
        gpu: a GPU preset's name; either this or ``cluster``.
        cluster: a cluster file, or a cluster.
        gpus: GPUs in all.
        gpus_per_node: with ``gpu``: GPUs per node instead of the preset's.
        tokens: tokens to train on.
        price_per_gpu_hour: dollars, instead of the preset's or the file's.
        seq_len: tokens of a sample, instead of the model's.
        images: images of a sample, for a config.json with a vision tower.
        packing: how documents fill the samples, instead of the model's.
        plan_fields: fields of the plan; without any, the job has no plan.

    Raises:
        ModelError: a name is unknown, a file is wrong, or gpu and cluster contradict each other.
        PlanError: the degrees do not fit the GPUs.
    """
    given = {key: value for key, value in plan_fields.items() if value is not None}
    for key in given:
        if key not in _PLAN_FIELDS:
            raise PlanError(f"the plan has no field {key!r}{_hint(key, _PLAN_FIELDS)}")
    machines = _chosen_cluster(gpu, cluster, gpus_per_node)
    if price_per_gpu_hour is not None:
        machines = replace(machines, price_per_gpu_hour=price_per_gpu_hour, price_source="given")
    llm = model if isinstance(model, LLM) else _named_model(model, Path(), seq_len, images)
    if seq_len is not None and llm.seq_len != seq_len:
        llm = _changed(llm, {"seq_len": seq_len})
    if packing is not None:
        llm = replace(llm, packing=packing)
    plan = _complete(given, gpus) if given else None
    return PlannedJob(llm=llm, cluster=machines, plan=plan, gpus=gpus, tokens=tokens)


def derive_dp(gpus: int, tp: int = 1, pp: int = 1, cp: int = 1) -> int:
    """The number of data-parallel replicas that uses all ``gpus`` GPUs.

    Raises:
        PlanError: the other degrees do not divide them; the nearest GPU counts are named.
    """
    for name, value in (("gpus", gpus), ("tp", tp), ("pp", pp), ("cp", cp)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(
                f"{name} must be a whole number >= 1, not {reprlib.repr(value)}", fields=(name,)
            )
    replica = tp * pp * cp
    if gpus % replica:
        degrees = f"tp {tp} x pp {pp}" + (f" x cp {cp}" if cp > 1 else "")
        fewer = gpus // replica * replica
        would = f"{fewer} or {fewer + replica}" if fewer else str(replica)
        raise PlanError(
            f"{gpus} GPUs are no multiple of {degrees} = {replica}; {would} GPUs would be",
            fields=("tp", "pp", "cp"),
        )
    return gpus // replica


def _complete(values: Mapping[str, Any], gpus: int | None) -> Plan:
    """A plan; dp is derived from the GPUs if not given."""
    if "global_batch" not in values:
        raise PlanError("the plan lacks global_batch, the samples of one step")
    values = dict(values)
    if gpus is not None and "dp" not in values:
        degrees = {name: values[name] for name in ("tp", "pp", "cp") if name in values}
        values["dp"] = derive_dp(gpus, **degrees)
    return Plan(**values)


def _plan(section: Section, gpus: int | None) -> Plan:
    section.allow(_PLAN_FIELDS)
    values: dict[str, Any] = {}
    for field in section.nodes:
        value = section.plain(field)
        if field == "bucket_bytes" and value is not None:
            value = section.quantity(field, "bytes")
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        values[field] = tuple(value) if isinstance(value, list) else value
    try:
        return _complete(values, gpus)
    except ModelError as error:
        section.blame(error)


def _model(job: Section) -> LLM:
    if not job.is_section("model"):
        name = job.text("model")
        try:
            return _named_model(name, job.path.parent, None)
        except ModelError as error:
            job.fail("model", str(error))
    section = job.section("model")
    section.allow(("preset", "hf", "images", *_LLM_FIELDS))
    if "images" in section and "hf" not in section:
        section.fail("images", "images are of a Hugging Face config (hf: config.json); give vision")
    if "preset" in section and "hf" in section:
        section.fail("hf", "a model is based on a preset or on a Hugging Face config, not on both")
    base = _base_model(section)
    values = {
        field: _model_value(section, field, base)
        for field in section.nodes
        if field not in ("preset", "hf", "images")
    }
    try:
        if base is not None:
            return _changed(base, values)
        values.setdefault("name", job.path.stem)
        return _new(section, LLM, values)
    except ModelError as error:
        section.blame(error)


def _base_model(section: Section) -> LLM | None:
    for field in ("preset", "hf"):
        if field in section:
            name = section.text(field)
            try:
                if field == "preset":
                    return llm_preset(name)
                images = section.whole("images") if "images" in section else None
                return from_hf(section.path.parent / name, images=images)
            except ModelError as error:
                section.fail(field, str(error))
    return None


def _model_value(section: Section, field: str, base: LLM | None) -> Any:
    if field in RECORDS and section.is_section(field):
        inner, kind, record = section.section(field), RECORDS[field], getattr(base, field, None)
        if isinstance(kind, tuple):  # the record with these fields
            names = [{item.name for item in fields(one)} for one in kind]
            kind = kind[max(range(len(kind)), key=lambda i: len(names[i] & set(inner.nodes)))]
            record = record if isinstance(record, kind) else None
        return _inner(inner, kind, record)
    return _number(section.plain(field))


def _number(value: Any) -> Any:
    """4e8 as a whole number; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _inner(section: Section, kind: type[_Record], base: _Record | None) -> _Record:
    """Experts, latent attention or mixers, whole or as changes to ``base``."""
    section.allow(item.name for item in fields(kind))
    values = {field: _number(section.plain(field)) for field in section.nodes}
    try:
        return replace(base, **values) if base is not None else _new(section, kind, values)
    except ModelError as error:
        section.blame(error)


def _new(section: Section, kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    missing = [item.name for item in fields(kind) if item.default is MISSING]
    missing = [name for name in missing if name not in values]
    if missing:
        hint = "" if kind is not LLM else "; or start from one (preset: gpt3-175b, hf: config.json)"
        section.fail("", f"lacks {', '.join(missing)}{hint}")
    return kind(**values)


def _changed(llm: LLM, values: Mapping[str, Any]) -> LLM:
    """The model with other values; derived sizes are derived again."""
    derived = {
        "kv_heads": llm.kv_heads == llm.heads and "heads" in values,
        "head_dim": llm.head_dim * llm.heads == llm.hidden and {"hidden", "heads"} & set(values),
        "ffn": llm.ffn == 4 * llm.hidden and "hidden" in values,
        "max_positions": isinstance(values.get("seq_len"), int)
        and values["seq_len"] > llm.max_positions,
        "context": "max_positions" in values,
    }
    renewed = {field: 0 for field, follows in derived.items() if follows}
    return replace(llm, **{**renewed, **values})


def _named_model(name: str, folder: Path, seq_len: int | None, images: int | None = None) -> LLM:
    """A preset, or a config.json if the name is a file or a folder that contains one."""
    path = folder / name
    if name.endswith(".json") or (path / "config.json").is_file():
        return from_hf(path, seq_len=seq_len, images=images)
    if images is not None:
        raise ModelError(
            f"images are counted with a config.json that has a vision_config; {name} is a preset "
            "(a job file gives it one: vision: {layers: .., images: ..})"
        )
    try:
        return llm_preset(name)
    except ModelError as error:
        raise ModelError(f"{error}; or give the path of the model's config.json") from None


def _cluster(job: Section) -> Cluster:
    if job.is_section("cluster"):
        return cluster_from_section(job.section("cluster"))
    name = job.text("cluster")
    try:
        if name.endswith((".yaml", ".yml")):
            return load_cluster(job.path.parent / name)
        return cluster_preset(name)
    except ModelError as error:
        job.fail("cluster", str(error))


def _priced(training: Section, cluster: Cluster, price: float) -> Cluster:
    source = str(training.path)
    try:
        return replace(cluster, price_per_gpu_hour=price, price_source=source)
    except ModelError as error:
        training.blame(error)


def _chosen_cluster(
    gpu: str | None, cluster: str | Path | Cluster | None, gpus_per_node: int | None
) -> Cluster:
    if (gpu is None) == (cluster is None):
        raise ModelError("give either a GPU (a100-80g) or a cluster file, one of the two")
    if gpu is not None:
        return cluster_preset(gpu, gpus_per_node)
    if gpus_per_node is not None:
        raise ModelError("a cluster has its own GPUs per node; set node.gpus in its file")
    if isinstance(cluster, Cluster):
        return cluster
    assert cluster is not None
    return load_cluster(cluster)


def _hint(word: str, names: Iterable[str]) -> str:
    near = get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else f"; it has {', '.join(names)}"
