"""The runs behind a calibration, kept in the cluster file with its constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import ModelError
from paceline.model.llm import LLM
from paceline.model.plan import Plan

#: Values beyond the fitted range by less than this factor give no warning.
_MARGIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The origin of the constants in a cluster's efficiency.

    Attributes:
        runs: number of fitted measured steps.
        constants: fitted constant -> its relative standard error.
        fixed: constants that the runs do not determine; they keep the values of their sources.
        mape: mean absolute error of the fitted runs, as a share.
        median: median absolute error, as a share.
        ranges: numbers that the runs cover: name -> [lowest, highest].
        words: texts that the runs cover: name -> values.
    """

    runs: int
    constants: Mapping[str, float] = field(hash=False)
    fixed: tuple[str, ...]
    mape: float
    median: float
    ranges: Mapping[str, tuple[float, float]] = field(hash=False)
    words: Mapping[str, tuple[str, ...]] = field(hash=False)

    def outside(self, llm: LLM, plan: Plan) -> list[str]:
        """Properties of a job outside the runs, as text; empty if there are none."""
        beyond = []
        for name, value in features(llm, plan).items():
            if isinstance(value, str):
                values = self.words.get(name, ())
                if values and value not in values:
                    beyond.append(f"{name} {value} (calibrated: {', '.join(values)})")
            elif name in self.ranges:
                low, high = self.ranges[name]
                if not low / _MARGIN <= value <= high * _MARGIN:
                    beyond.append(f"{name} {value:g} (calibrated: {low:g} to {high:g})")
        return beyond

    def to_mapping(self) -> dict[str, Any]:
        """The calibration in the form of YAML."""
        return {
            "runs": self.runs,
            "constants": dict(self.constants),
            "fixed": list(self.fixed),
            "mape": self.mape,
            "median": self.median,
            "ranges": {name: list(pair) for name, pair in self.ranges.items()},
            "words": {name: list(values) for name, values in self.words.items()},
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Calibration:
        """The opposite of :meth:`to_mapping`.

        Raises:
            ModelError: a field is missing or wrong.
        """
        try:
            return cls(
                runs=int(mapping["runs"]),
                constants={str(k): float(v) for k, v in mapping["constants"].items()},
                fixed=tuple(str(name) for name in mapping["fixed"]),
                mape=float(mapping["mape"]),
                median=float(mapping["median"]),
                ranges={
                    str(name): (float(low), float(high))
                    for name, (low, high) in mapping["ranges"].items()
                },
                words={
                    str(name): tuple(str(word) for word in values)
                    for name, values in mapping["words"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"the cluster's calibration is not what calibrate writes ({error!r}); remove it or "
                "calibrate again"
            ) from None


def features(llm: LLM, plan: Plan) -> dict[str, float | str]:
    """Properties of a job that decide how far its prediction can be trusted."""
    return {
        "gpus": plan.gpus,
        "hidden": llm.hidden,
        "layers": llm.layers,
        "seq_len": llm.seq_len,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "cp": plan.cp,
        "ep": plan.ep,
        "vpp": plan.vpp,
        "micro_batch": plan.micro_batch,
        "microbatches": plan.microbatches,
        "recompute": plan.recompute,
        "precision": plan.precision,
    }


def coverage(
    jobs: list[tuple[LLM, Plan]],
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[str, ...]]]:
    """Ranges and words of a calibration's runs."""
    rows = [features(llm, plan) for llm, plan in jobs]
    ranges: dict[str, tuple[float, float]] = {}
    words: dict[str, tuple[str, ...]] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, str):
            words[name] = tuple(sorted({str(value) for value in values}))
        else:
            numbers = [float(value) for value in values]
            ranges[name] = (min(numbers), max(numbers))
    return ranges, words
