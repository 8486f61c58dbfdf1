"""The time that the training thread waits for its batches.

A loader without workers makes the batch in this time; one with workers hands it over. It lies
before a step's first operation, or between two microbatches, where a trace shows nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter_ns
from types import TracebackType
from typing import Any, TypeVar, cast

from paceline.record.recorder import Recorder
from paceline.record.steps import Step

Loader = TypeVar("Loader")

#: Module, class and method of iterators whose every call returns a batch, and of those whose method
#: is a context around the wait. Read at torch 2.13, torchdata 0.11, DALI 2.4, Grain 0.2.18 and Ray
#: 2.60 (since 2.49).
_NEXT = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("torchdata.nodes.loader", "LoaderIterator"),
    ("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),
    ("nvidia.dali.plugin.pytorch", "DALIRaggedIterator"),
    ("grain._src.python.data_loader", "DataLoaderIterator"),
)
_RAY = ("ray.data._internal.block_batching.iter_batches", "BatchIterator")

#: The recorder that was started last; :func:`batches` asks for it at each batch.
_recorder: Recorder | None = None


def instrument(recorder: Recorder) -> None:
    """Measure the waits for batches, of a library that is imported later from its import on."""
    global _recorder
    _recorder = recorder
    hooks = _Hooks(recorder)
    hooks.install()
    recorder.at_step_end(hooks.after)


def batches(loader: Loader) -> Loader:
    """A loader or iterator whose every batch is timed as a wait for data.

    Use it where the loop iterates: ``for batch in record.batches(loader)``, or ``data =
    record.batches(iter(loader))`` and ``next(data)``. Length and attributes are the loader's own.
    Nothing is timed while nothing records, or in another thread than that of the steps.

    Args:
        loader: any iterable or iterator. A loader that is measured by itself counts once.
    """
    kind: type[_Batches] = _BatchIterator if hasattr(type(loader), "__next__") else _Batches
    return cast(Loader, (_SIZED[kind] if hasattr(type(loader), "__len__") else kind)(loader))


class _Hooks:
    """The measured libraries that are not imported yet, and the hooks of the others."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._missing = {
            **dict.fromkeys(_NEXT, ("__next__", self._next)),
            _RAY: ("get_next_batch_context", self._context),
        }

    def install(self) -> None:
        """Hook the libraries that are imported."""
        for (module, name), (method, wrapper) in list(self._missing.items()):
            owner = getattr(sys.modules.get(module), name, None)
            if owner is not None:
                del self._missing[module, name]
                self._recorder.wrap(owner, method, wrapper)

    def after(self, step: Step) -> None:
        """A step ended; profiled ones look for libraries imported since."""
        if step.program is not None:
            self.install()

    def _next(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def fetch_batch(iterator: Any) -> Any:
            with _Wait(recorder):
                return fetch(iterator)

        return fetch_batch

    def _context(
        self, enter: Callable[..., AbstractContextManager[None]]
    ) -> Callable[..., AbstractContextManager[None]]:
        @contextmanager
        def context(iterator: Any) -> Any:
            with _Wait(self._recorder), enter(iterator):
                yield

        return context


class _Wait:
    """A block in which the training thread waits for a batch; one inside another counts once."""

    __slots__ = ("_begin", "_mark", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begin: int | None = None
        self._mark: Any = None

    def __enter__(self) -> None:
        recorder = self._recorder
        if recorder.waits_for_data or not recorder.in_training_thread:
            return
        recorder.waits_for_data = True
        self._mark = recorder.mark_in_block()
        self._begin = perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._begin is not None:
            recorder = self._recorder
            recorder.data_ns += perf_counter_ns() - self._begin
            recorder.waits_for_data, recorder.measures_data = False, True
            if self._mark is not None:
                recorder.leave_out(self._mark)


class _Batches:
    """A loader whose iterators are timed; all else is the loader's own."""

    __slots__ = ("_loader",)

    def __init__(self, loader: Any) -> None:
        object.__setattr__(self, "_loader", loader)

    def __iter__(self) -> Any:
        return batches(iter(self._loader))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_loader"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __reduce__(self) -> Any:
        return batches, (self._loader,)


class _BatchIterator(_Batches):
    """An iterator whose batches are timed. Unlike a generator, it goes on after an exception."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if _recorder is None:
            return next(self._loader)
        with _Wait(_recorder):
            return next(self._loader)


def _length(loader: Any) -> int:
    return len(loader._loader)


_SIZED: dict[type[_Batches], type[_Batches]] = {
    kind: type(kind.__name__, (kind,), {"__slots__": (), "__len__": _length})
    for kind in (_Batches, _BatchIterator)
}
