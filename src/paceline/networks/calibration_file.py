"""The section ``networks`` of a cluster file.

A calibration has factors, coverage and constants of kernels. A user's own file may have only
constants: ``networks: {compute: {product_share: 0.7}}``. Missing constants are the GPU's defaults.
``model.cluster_yaml`` reads the same file as a plain cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.files import text_writer, write_files
from paceline.model.cluster import Cluster
from paceline.model.cluster_yaml import cluster_text, load_cluster
from paceline.networks.calibrate import Coverage, NetworkCalibration
from paceline.networks.compute import ComputeConstants, constants_of
from paceline.networks.factors import Factors
from paceline.networks.terms import TERMS

#: 2: the terms come from ``compute``, and the file has its constants.
SCHEMA = 2


def save_calibration(calibration: NetworkCalibration, path: Path, *, force: bool = False) -> None:
    """Write the cluster file.

    Raises:
        OutputError: it exists and ``force`` is not given, or it cannot be written.
    """
    write_files({path: text_writer(calibration_text(calibration))}, force=force)


def calibration_text(calibration: NetworkCalibration) -> str:
    """The YAML from which ``load_calibration`` makes an equal calibration."""
    import yaml

    coverage = calibration.coverage
    section = {
        "schema": SCHEMA,
        "compute": asdict(calibration.software),
        "factors": dict(calibration.factors.shared),
        "strategies": {name: dict(own) for name, own in calibration.factors.own.items()},
        "spread": {
            "run": calibration.spread,
            "network": calibration.spread_network,
            "strategy": calibration.spread_strategy,
        },
        "coverage": {
            "networks": list(coverage.networks),
            "strategies": list(coverage.strategies),
            "most_gpus": coverage.most_gpus,
            "samples": dict(coverage.samples),
        },
    }
    text: str = yaml.safe_dump({"networks": section}, sort_keys=False, width=100)
    return cluster_text(calibration.cluster) + text


def says_networks(path: Path) -> bool:
    """Whether the cluster file has a section ``networks``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False  # the reader of clusters reports the error
    return any(line.startswith("networks:") for line in lines)


def load_machine(path: Path) -> tuple[Cluster, ComputeConstants, Factors | None]:
    """The cluster, its kernels' constants, and the factors of a calibration.

    Raises:
        ModelError: the file is not a cluster file, or its section is damaged.
    """
    cluster, section = load_cluster(path), _section(path)
    if "factors" in section:
        calibration = load_calibration(path)
        return cluster, calibration.software, calibration.factors
    if list(section) != ["compute"]:
        raise ModelError(f"{path}: networks has compute, or is written by `paceline calibrate`")
    return cluster, _constants(path, section["compute"], constants_of(cluster.gpu)), None


def _section(path: Path) -> Mapping[str, Any]:
    import yaml

    section = yaml.safe_load(path.read_text(encoding="utf-8")).get("networks")
    return section if isinstance(section, Mapping) else {}


def load_calibration(path: Path) -> NetworkCalibration:
    """Read a file of ``save_calibration``.

    Raises:
        ModelError: the file is not a cluster file, or has no calibration of networks.
    """
    cluster, section = load_cluster(path), _section(path)
    if "factors" not in section:
        raise ModelError(
            f"{path} has no calibration of networks; make one with `paceline calibrate runs.csv`"
        )
    if section.get("schema") != SCHEMA:
        raise ModelError(
            f"{path}: this Paceline reads calibrations of schema {SCHEMA}, not "
            f"{section.get('schema')!r}: update it, or calibrate again"
        )
    try:
        spread, coverage = section["spread"], section["coverage"]
        return NetworkCalibration(
            cluster=cluster,
            software=_constants(path, section["compute"], ComputeConstants()),
            factors=Factors(
                shared=_factors(path, section["factors"]),
                own={str(k): _factors(path, v) for k, v in section["strategies"].items()},
            ),
            coverage=Coverage(
                networks=tuple(coverage["networks"]),
                strategies=tuple(coverage["strategies"]),
                most_gpus=int(coverage["most_gpus"]),
                samples={str(k): float(v) for k, v in coverage["samples"].items()},
            ),
            spread=_positive(path, "spread.run", spread["run"]),
            spread_network=_positive(path, "spread.network", spread["network"]),
            spread_strategy=_positive(path, "spread.strategy", spread["strategy"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: its section networks is damaged ({error!r})") from None


def _constants(path: Path, values: object, others: ComputeConstants) -> ComputeConstants:
    """The constants of the file; ``others`` for missing ones."""
    names = [item.name for item in fields(ComputeConstants)]
    if not isinstance(values, Mapping) or not set(values) <= set(names):
        raise ModelError(f"{path}: networks.compute has {', '.join(names)}, not {values!r:.100}")
    constants = {name: _positive(path, f"compute.{name}", values[name]) for name in values}
    for name, value in constants.items():
        if name != "kernel_s" and value > 1:
            raise ModelError(f"{path}: networks: compute.{name} must be at most 1, not {value!r}")
    return replace(others, **constants)


def _factors(path: Path, values: Mapping[str, Any]) -> dict[str, float]:
    for name in values:
        if name not in TERMS:
            raise ModelError(f"{path}: networks has a factor for {name!r}; terms are {TERMS}")
    return {name: _positive(path, name, value) for name, value in values.items()}


def _positive(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{path}: networks: {name} must be a number, not {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise ModelError(f"{path}: networks: {name} must be above 0, not {value!r}")
    return float(value)
