"""The time that the training thread waits for torch's data loader.

A loader without workers makes the batch in this time; one with workers hands it over. It lies
before a step's first operation, or between two microbatches, where a trace shows nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from paceline.record.recorder import Recorder


def instrument(recorder: Recorder) -> None:
    """Measure the waits for batches; without torch's data loader nothing is measured."""
    module: Any = sys.modules.get("torch.utils.data.dataloader")
    base = getattr(module, "_BaseDataLoaderIter", None)
    if base is not None:
        recorder.wrap(base, "__next__", lambda fetch: _timed(fetch, recorder))
        recorder.measures_data = True


def _timed(fetch: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    depth = 0

    def fetch_batch(iterator: Any) -> Any:
        nonlocal depth
        if depth or not recorder.in_training_thread:  # a loader within a loader counts once
            return fetch(iterator)
        depth += 1
        begin = perf_counter_ns()
        try:
            return fetch(iterator)
        finally:
            recorder.data_ns += perf_counter_ns() - begin
            depth -= 1

    return fetch_batch
