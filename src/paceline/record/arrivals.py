"""Times when buckets of gradients are complete, by hooks in a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: If the same gradients come last in this many successive backwards, only these are watched.
AGREED = 3

#: One recorded backward in RECHECK watches all gradients again: their order may change.
RECHECK = 32


class Arrivals:
    """Reports when the gradients of each bucket are complete.

    At first every parameter has a hook during a recorded backward. Once the same gradient of each
    bucket came last several times, only these gradients keep hooks, permanently. For a small model,
    hooks in all parameters cost more than all other recording. If a later check finds another
    order, all gradients are watched from then on.

    Args:
        trained: parameters with gradients.
        ready: called with a bucket.
        fail: called with an error, which is not raised.
    """

    def __init__(
        self,
        trained: Sequence[Any],
        ready: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._trained, self._ready, self._fail = trained, ready, fail
        self._of: Sequence[int] = ()  # [parameter] its bucket
        self._missing: list[int] = []  # [bucket] number of missing gradients
        self._last: list[int] = []  # [bucket] the parameter whose gradient came last
        self._usual: list[int] = []  # the same in the previous backward
        self._agreed = self._count = 0  # backwards
        self._is_settled = self._is_narrow = self._is_unsteady = False
        self._hooks = [self._hook(number) for number in range(len(trained))]
        self._handles: list[Any] = []  # handles of hooks during a recorded backward
        self._stays: list[Any] = []  # handles of hooks for the last gradients

    def begin(self, of: Sequence[int], sizes: Sequence[int], *, settled: bool) -> None:
        """Start of a backward.

        Args:
            of: [parameter] its bucket.
            sizes: [bucket] number of its parameters.
            settled: whether all later backwards use the same buckets and parameters.
        """
        self._is_settled = settled and not self._is_unsteady
        self._is_narrow = False  # a backward that raised may have left it on
        self._count += 1
        if self._is_settled and self._agreed >= AGREED and self._count % RECHECK:
            if not self._stays:
                self._stay()
            self._is_narrow = True
            return
        self._of, self._missing = of, list(sizes)
        self._last = [-1] * len(sizes)
        self._unhook()  # left by a backward that raised
        self._handles = [
            parameter.register_post_accumulate_grad_hook(hook)
            for parameter, hook in zip(self._trained, self._hooks, strict=True)
        ]

    def end(self) -> None:
        """End of the backward."""
        self._unhook()
        if self._is_narrow:
            self._is_narrow = False
        elif self._is_settled and -1 not in self._last:
            self._compare()

    def _compare(self) -> None:
        """Compare the last gradients with those of the previous backward."""
        if self._last == self._usual:
            self._agreed += 1
            return
        if self._stays:
            self._is_unsteady = True
            for handle in self._stays:
                handle.remove()
        self._usual, self._agreed = self._last, 1

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int) -> Callable[[object], None]:
        """Called when the gradient of a parameter is complete."""

        def gradient(_: object) -> None:
            try:  # inlined, for a model has hundreds of parameters
                bucket = self._of[number]
                self._missing[bucket] -= 1
                if not self._missing[bucket]:
                    self._last[bucket] = number
                    self._ready(bucket)
            except Exception as error:
                self._fail(error)

        return gradient

    def _stay(self) -> None:
        for bucket, number in enumerate(self._usual):
            hook = self._last_hook(bucket)
            self._stays.append(self._trained[number].register_post_accumulate_grad_hook(hook))

    def _last_hook(self, bucket: int) -> Callable[[object], None]:
        """Called when the last gradient of a bucket is complete."""

        def gradient(_: object) -> None:
            if self._is_narrow:
                try:
                    self._ready(bucket)
                except Exception as error:
                    self._fail(error)

        return gradient
