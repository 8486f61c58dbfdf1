"""The place of a rank of Megatron-LM, from the degrees that its spans carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import TraceError
from paceline.sources.fields import optional_whole
from paceline.trace import Job

#: Attribute of a span -> the field of the job that it gives.
SIZES = {
    "dl.data_parallel.size": "dp_size",
    "dl.pipeline_parallel.size": "pp_size",
    "dl.tensor_parallel.size": "tp_size",
    "dl.context_parallel.size": "dsp_size",
    "dl.virtual_pipeline_parallel.size": "vpp_size",
}


#: Attribute with the number of all ranks. The degree of context parallelism follows from it where
#: no attribute gives that degree.
WORLD = "dl.world_size"


class MegatronPlace:
    """The degrees of parallelism in the ranks' attributes, and the ranks that are there.

    Attributes:
        world: number of all ranks by the attributes; 0 = they do not have it.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}  # field -> (size, rank that said so)
        self._ranks: set[int] = set()
        self.world = 0

    def add_sizes(self, attributes: Mapping[str, Any], rank: int, place: str) -> None:
        """Note the sizes that a rank gives.

        Raises:
            TraceError: a size is invalid, or another rank gave another one.
        """
        self._ranks.add(rank)
        self.world = max(self.world, optional_whole(attributes.get(WORLD)) or 0)
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
            before, first_rank = self._sizes.setdefault(field, (size, rank))
            if before != size:
                raise TraceError(
                    f"{place}: {name} is {size} on rank {rank}, but {before} on rank {first_rank}; "
                    "are these two jobs? Give the files of one"
                )

    def job(self, known_job: Job | None, where: str) -> Job:
        """The job: ``known_job``, checked against the attributes, or else that of the attributes.

        Raises:
            TraceError: the degrees are not known, contradict ``known_job``, or are too few.
        """
        sizes = {field: size for field, (size, _) in self._sizes.items()}
        if known_job is None:
            for name, field in SIZES.items():
                if field not in sizes and field in ("dp_size", "pp_size"):
                    raise TraceError(f"{where} lacks {name}; give the job's degrees with --job")
            known_job = Job(
                dp_size=sizes["dp_size"],
                pp_size=sizes["pp_size"],
                tp_size=sizes.get("tp_size", 1),
                dsp_size=sizes.get("dsp_size", self._rest(sizes)),
                vpp_size=sizes.get("vpp_size", 1),
            )
        for field, size in sizes.items():
            if getattr(known_job, field) != size:
                raise TraceError(
                    f"{where} was recorded with {field} {size}, but the given job has "
                    f"{getattr(known_job, field)}; correct the job or leave it out"
                )
        if max(self._ranks) >= known_job.ranks:
            raise TraceError(
                f"{where} has a rank {max(self._ranks)}, but the degrees of the job make only "
                f"{known_job.ranks} ranks"
            )
        return known_job

    def _rest(self, sizes: Mapping[str, int]) -> int:
        """The degree of context parallelism: Megatron's ranks are tp x cp x dp x pp."""
        product = sizes["dp_size"] * sizes["pp_size"] * sizes.get("tp_size", 1)
        rest, remainder = divmod(self.world, product)
        return rest if rest and not remainder else 1
