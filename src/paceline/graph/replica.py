"""The ops of one replica, before their dependencies are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True)
class ReplicaOps:
    """The ops of one replica in one step, sorted by (pp, kind, seq).

    Attributes:
        kind: [op] :class:`OpKind`.
        pp: [op] stage.
        seq: [op] number among its kind on its stage.
        chunk: [op] model chunk on the stage, -1 = not applicable.
        microbatch: [op] microbatch, -1 = not applicable.
        rank: [op] sort key: ops of one stream of a stage run in ascending rank. Where the program
            is known, it is the position at which an op is launched.
        part: [op] place within its pass, unit or bucket; None where the program is not known.
        awaited: [op] position of the last op launched before the program waited for this one, -1 =
            never; None where the program is not known.
        family: [op] row of the structure's families: the ranks that meet in its collective; None:
            all ranks.
    """

    kind: npt.NDArray[Any]
    pp: npt.NDArray[Any]
    seq: npt.NDArray[Any]
    chunk: npt.NDArray[Any]
    microbatch: npt.NDArray[Any]
    rank: npt.NDArray[Any]
    part: npt.NDArray[Any] | None = None
    awaited: npt.NDArray[Any] | None = None
    family: npt.NDArray[Any] | None = None
