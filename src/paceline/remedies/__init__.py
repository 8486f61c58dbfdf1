"""Changes to the job, each with its gain predicted by the one simulator."""

from paceline.remedies import (
    accumulate,
    buckets,
    even_microbatches,
    hide_delays,
    load_ahead,
    microbatches,
    peer_groups,
    placement,
    planned_gc,
    prefetch,
    replace,
    reshard,
    schedule,
    sequence_balance,
    shard_shape,
    stage_layout,
)
from paceline.remedies.advise import Advice, advise, propose_all
from paceline.remedies.outcome import beyond_s
from paceline.remedies.remedy import Case, Remedy, RemedyKind

#: All remedies, in the order of the list that users see.
REMEDIES: tuple[RemedyKind, ...] = (
    *replace.KINDS,
    *peer_groups.KINDS,
    stage_layout.KIND,
    sequence_balance.KIND,
    even_microbatches.KIND,
    microbatches.KIND,
    planned_gc.KIND,
    placement.KIND,
    load_ahead.KIND,
    hide_delays.KIND,
    *schedule.KINDS,
    prefetch.KIND,
    reshard.KIND,
    shard_shape.KIND,
    accumulate.KIND,
    buckets.KIND,
)

__all__ = [
    "REMEDIES",
    "Advice",
    "Case",
    "Remedy",
    "RemedyKind",
    "advise",
    "beyond_s",
    "propose_all",
]
