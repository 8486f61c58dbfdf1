"""A job.yaml with ``network`` in place of a language model's ``model``.

network: net.layers.json      # or a preset; a file is looked for beside the job
cluster: v100-16g             # or a cluster file
gpus: 64
strategy: {name: data+spatial, split: 4, global_batch: 1024}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.marked_yaml import read_marked
from paceline.networks.strategy import Strategy

_FIELDS = ("network", "cluster", "gpus", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkJob:
    """Content of the file. Options may add missing fields of the strategy.

    Attributes:
        network: a preset's name, or a layers file.
        cluster: a preset's name, or a cluster file.
        gpus: number of GPUs; None if the file has none.
        strategy: fields for ``Strategy``.
    """

    network: Path
    cluster: str
    gpus: int | None = None
    strategy: Mapping[str, Any] = field(default_factory=dict)


def is_network_job(path: Path) -> bool:
    """Whether a YAML file has the key ``network``."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False  # the reader of jobs reports the error
    return any(line.startswith("network:") for line in lines)


def load_network_job(path: Path) -> NetworkJob:
    """Read a job.

    Raises:
        ModelError: a field is unknown, missing or wrong; the message names file and line.
    """
    job = read_marked(path, ModelError)
    job.allow(_FIELDS)
    for name in ("network", "cluster"):
        if name not in job:
            job.fail("", f"lacks {name}; a network's job has {', '.join(_FIELDS)}")
    strategy = job.section("strategy") if "strategy" in job else None
    values: dict[str, Any] = {}
    if strategy is not None:
        names = [item.name for item in dataclass_fields(Strategy) if item.name != "gpus"]
        strategy.allow(names)
        values = {name: strategy.plain(name) for name in names if name in strategy}
        if isinstance(values.get("grid"), list):
            values["grid"] = tuple(values["grid"])
    return NetworkJob(
        network=_beside(path, job.text("network"), ".json"),
        cluster=str(_beside(path, job.text("cluster"), ".yaml")),
        gpus=job.whole("gpus") if "gpus" in job else None,
        strategy=values,
    )


def _beside(path: Path, name: str, suffix: str) -> Path:
    return path.parent / name if name.endswith(suffix) else Path(name)
