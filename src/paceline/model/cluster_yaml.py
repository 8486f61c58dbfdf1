"""Cluster files: YAML with units, based on a preset or complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from paceline.errors import ModelError
from paceline.files import write_files
from paceline.marked_yaml import Section, read_marked
from paceline.model.calibration import Calibration
from paceline.model.cluster import PRECISIONS, Cluster, Gpu, Network, Node
from paceline.model.cluster_presets import cluster_preset
from paceline.model.efficiency import Efficiency
from paceline.quantities import format_quantity

#: Version of the file; a file without one has this version. New fields do not change it; a changed
#: meaning of a field does.
VERSION = 1

#: Field -> its quantity, for fields that are neither text nor a whole number.
_MEASURES = {
    "memory_bytes": "bytes",
    "memory_bandwidth": "byte/s",
    "bandwidth": "byte/s",
    "host_bandwidth": "byte/s",
    "nic_bandwidth": "byte/s",
    "latency_s": "seconds",
    "oversubscription": "",
    "price_per_gpu_hour": "dollars",
}
_COUNTS = ("sms", "gpus", "nics")
_FIELDS = tuple(field.name for field in fields(Cluster))

_Part = TypeVar("_Part", Gpu, Node, Network, Efficiency)


def load_cluster(path: Path | str) -> Cluster:
    """The cluster that a YAML file describes.

    With ``preset: a100-80g`` the file needs only the differences from the preset.

    Raises:
        ModelError: the file cannot be read, or a field is unknown, missing or wrong.
    """
    return cluster_from_section(read_marked(Path(path), ModelError))


def cluster_from_section(section: Section) -> Cluster:
    """The cluster that a mapping of a YAML file describes.

    Raises:
        ModelError: a field is unknown, missing or wrong.
    """
    # "networks" is read by networks.calibration_file.
    section.allow(("version", "preset", "networks", *_FIELDS))
    if "version" in section and section.whole("version") != VERSION:
        section.fail(
            "version", f"this Paceline reads cluster files of version {VERSION}: update it"
        )
    base = _base(section)
    values: dict[str, Any] = {
        "gpu": _part(section, "gpu", Gpu, base.gpu if base else None),
        "node": _part(section, "node", Node, base.node if base else None),
        "network": _part(section, "network", Network, base.network if base else None),
    }
    for field in ("name", "price_source"):
        if field in section:
            values[field] = section.plain(field)
    if "price_per_gpu_hour" in section:
        price = section.plain("price_per_gpu_hour")
        priced = price is not None
        values["price_per_gpu_hour"] = (
            section.quantity("price_per_gpu_hour", "dollars") if priced else None
        )
        values.setdefault("price_source", str(section.path) if priced else "")
    if "efficiency" in section:
        default = base.efficiency if base else Efficiency()
        values["efficiency"] = _part(section, "efficiency", Efficiency, default)
    if "calibration" in section:
        values["calibration"] = Calibration.from_mapping(section.plain("calibration"))
    try:
        if base is not None:
            return replace(base, **values)
        return Cluster(**{"name": section.path.stem, **values})
    except ModelError as error:
        section.blame(error)


def _base(section: Section) -> Cluster | None:
    if "preset" not in section:
        return None
    try:
        return cluster_preset(section.text("preset"))
    except ModelError as error:
        section.fail("preset", str(error))


def _part(section: Section, field: str, kind: type[_Part], base: _Part | None) -> _Part:
    """One of the cluster's dataclasses: all of its fields, or those that differ from ``base``."""
    if field not in section and base is not None:
        return base
    if field not in section:
        section.fail("", f"lacks {field}; describe it, or start from a preset (preset: a100-80g)")
    inner = section.section(field)
    names = [item.name for item in fields(kind)]
    inner.allow(names)
    values: dict[str, Any] = {name: _value(inner, name, base) for name in inner.nodes}
    try:
        if base is not None:
            return replace(base, **values)
        return kind(**values)
    except ModelError as error:
        inner.blame(error)
    except TypeError:
        optional = {"source", "topology", "oversubscription", "host_bandwidth", *values}
        inner.fail("", f"lacks {', '.join(name for name in names if name not in optional)}")


def _value(section: Section, field: str, base: object) -> Any:
    if field == "peak_flops":
        peaks = section.section(field)
        peaks.allow(PRECISIONS)
        values = {precision: peaks.quantity(precision, "FLOP/s") for precision in peaks.nodes}
        return {**base.peak_flops, **values} if isinstance(base, Gpu) else values
    if field in _COUNTS:
        return section.whole(field)
    if field in _MEASURES:
        return section.quantity(field, _MEASURES[field])
    if isinstance(base, Efficiency):
        return section.quantity(field, "seconds" if field.endswith("_s") else "")
    return section.text(field) if field in ("name", "topology") else section.plain(field)


def cluster_text(cluster: Cluster) -> str:
    """The YAML from which ``load_cluster`` makes an equal cluster."""
    import yaml

    values = {"version": VERSION} | {
        name: _saved(name, getattr(cluster, name))
        for name in _FIELDS
        if getattr(cluster, name) is not None
    }
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    return text


def _saved(name: str, value: Any) -> Any:
    if name == "peak_flops":
        return {key: format_quantity(peak, "FLOP/s") for key, peak in value.items()}
    if _MEASURES.get(name, "dollars") not in ("", "dollars"):
        return format_quantity(value, _MEASURES[name])
    if isinstance(value, Gpu | Node | Network):
        held = {item.name: getattr(value, item.name) for item in fields(value)}
        return {key: _saved(key, part) for key, part in held.items() if part is not None}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    return _plain(value)


def _plain(value: Any) -> Any:
    """Mappings and tuples in the form of YAML."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def save_cluster(cluster: Cluster, path: Path | str, *, force: bool = False) -> None:
    """Write a cluster file.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    text = cluster_text(cluster).encode()

    def write(file: BinaryIO) -> None:
        file.write(text)

    write_files({Path(path): write}, force=force)
