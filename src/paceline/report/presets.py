"""Names that commands and job files take, with their main numbers: tables for every output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.model.cluster_presets import CLUSTER_PRESETS
from paceline.model.llm_presets import LLM_PRESETS
from paceline.networks.presets import PRESETS
from paceline.units import NONE

Row = tuple[str, ...]


@dataclass(frozen=True)
class Presets:
    """The presets of one kind.

    Attributes:
        kind: key of the kind in JSON.
        title: name of the kind for people.
        usage: options and fields that take such a name, in backticks.
        head: heads of the columns; the first column has the name.
        rows: cells of each preset.
        texts: number of leading columns that are text.
    """

    kind: str
    title: str
    usage: str
    head: Row
    rows: tuple[Row, ...]
    texts: int = 1

    def containing(self, word: str) -> Presets:
        """The presets whose name contains the word, whatever its case."""
        rows = tuple(row for row in self.rows if word.lower() in row[0].lower())
        return replace(self, rows=rows)


def presets() -> tuple[Presets, ...]:
    """All presets, kind by kind."""
    return (
        Presets(
            "models",
            "Language models",
            "`--model`, `model:` of a job file, `preset:`",
            ("preset", "parameters, billions", "layers", "hidden", "sequence", "longest"),
            tuple(_models()),
        ),
        Presets(
            "clusters",
            "GPUs and clusters",
            "`--gpu`, `cluster:` of a job file, `preset:`",
            (
                *("preset", "GPU", "memory, GiB", "bf16 or fp16, TFLOP/s", "GPUs a node"),
                "$ a GPU and hour",
            ),
            tuple(_clusters()),
            texts=2,
        ),
        Presets(
            "networks",
            "Other networks",
            "`paceline layers`, whose file `predict` and `plan` take",
            ("preset",),
            tuple((name,) for name in PRESETS),
        ),
    )


def _models() -> Iterator[Row]:
    for name, llm in LLM_PRESETS.items():
        yield (
            name,
            f"{llm.parameters / 1e9:,.4g}",
            f"{llm.layers}",
            f"{llm.hidden:,}",
            f"{llm.seq_len:,}",
            f"{llm.context:,}" if llm.context else "not known",
        )


def _clusters() -> Iterator[Row]:
    for name, preset in CLUSTER_PRESETS.items():
        gpu = preset.gpu
        peak = gpu.peak_flops.get("bf16", gpu.peak_flops.get("fp16", 0)) / 1e12
        yield (
            name,
            gpu.name,
            f"{gpu.memory_bytes / 2**30:,.4g}",
            f"{peak:,.0f}",
            f"{preset.node.gpus}",
            f"{preset.price:,.2f}" if preset.price else NONE,
        )
