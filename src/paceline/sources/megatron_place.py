"""Where a rank of Megatron-LM stands: from the degrees that its spans carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import optional_whole
from paceline.trace import Job

#: Attribute -> field of the job. The sizes that Megatron's data-parallel size leaves out.
SIZES = {
    "dl.data_parallel.size": "dp_size",
    "dl.pipeline_parallel.size": "pp_size",
    "dl.tensor_parallel.size": "tp_size",
    "dl.context_parallel.size": "dsp_size",
    "dl.virtual_pipeline_parallel.size": "vpp_size",
}


class MegatronPlace:
    """The degrees of parallelism, as the ranks' attributes say them, and which ranks there are."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}  # field -> (size, rank that said so)
        self._ranks: set[int] = set()

    def add_sizes(self, attributes: Mapping[str, Any], rank: int, place: str) -> None:
        """Note what a rank says.

        Raises:
            TraceError: a size is none, or another rank said otherwise.
        """
        self._ranks.add(rank)
        for name, field in SIZES.items():
            if attributes.get(name) is None:
                continue
            size = optional_whole(attributes[name])
            if not size:
                # Megatron has None (and some exporters 0) where there are no virtual stages.
                if field == "vpp_size" and str(attributes[name]) in ("0", "None"):
                    continue
                raise TraceError(
                    f"{place}: {name} of rank {rank} is {str(attributes[name])[:40]!r}; it should "
                    "be a whole number from 1"
                )
            before, other = self._sizes.setdefault(field, (size, rank))
            if before != size:
                raise TraceError(
                    f"{place}: {name} is {size} on rank {rank}, but {before} on rank {other}; are "
                    "these two jobs? Give the files of one"
                )

    def job(self, given: Job | None, where: str) -> Job:
        """The job: ``given``, checked against the attributes, or else that of the attributes.

        Raises:
            TraceError: the degrees are not known, contradict ``given``, or there are more ranks.
        """
        said = {field: size for field, (size, _) in self._sizes.items()}
        if given is None:
            for name, field in SIZES.items():
                if field not in said and field in ("dp_size", "pp_size"):
                    raise TraceError(f"{where} lacks {name}; give the job's degrees with --job")
            given = Job(
                dp_size=said["dp_size"],
                pp_size=said["pp_size"],
                tp_size=said.get("tp_size", 1),
                dsp_size=said.get("dsp_size", 1),
                vpp_size=said.get("vpp_size", 1),
            )
        for field, size in said.items():
            if getattr(given, field) != size:
                raise TraceError(
                    f"{where} was recorded with {field} {size}, the job given has "
                    f"{getattr(given, field)}; correct it or leave it out"
                )
        if max(self._ranks) >= given.ranks:
            raise TraceError(
                f"{where} has a rank {max(self._ranks)}, but the degrees of the job make only "
                f"{given.ranks} ranks"
            )
        return given
