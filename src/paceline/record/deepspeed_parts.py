"""Numbers of the parts that DeepSpeed's ZeRO communicates (read at 0.19.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.record.recorder import Recorder

#: A gather of parameters has at most this many collectives: of values, and of scales if they are
#: quantised.
SHARES = 4


class Parts:
    """Numbers of communicated parts, equal on all ranks, so that parts can be compared.

    A gather has the number of its first parameter, so the backward's gather has the forward's
    number. Reductions are counted in each backward, and gathers of updated parameters in each
    update.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._parameter = -1  # the first parameter of the running gather
        self._share = self._count = 0

    def restart(self) -> None:
        """Start of a backward or an update."""
        self._count = 0

    def gather(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a parameter's ``all_gather_coalesced``; its argument has the other parameters."""

        def all_gather_coalesced(params: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_profiling:
                return function(params, *args, **kwargs)
            params = list(params)
            self._parameter = min((getattr(one, "ds_id", -1) for one in params), default=-1)
            self._share = 0
            try:
                return function(params, *args, **kwargs)
            finally:
                self._parameter = -1

        return all_gather_coalesced

    def of_parameters(self) -> int:
        """The number of a gather within a pass; -1 if its parameters are unknown."""
        if self._parameter < 0:
            return -1
        share, self._share = self._share, min(self._share + 1, SHARES - 1)
        return self._parameter * SHARES + share

    def following(self) -> int:
        """The next number of a reduction, or of a gather in an update."""
        number, self._count = self._count, self._count + 1
        return number
