"""Batches of step times for the tests of the monitor."""

import numpy as np

from paceline.monitor.step_files import Batch


def batch(number, steps, ranks, seconds=1.0, *, source="start/0", at=1000.0, world=0):
    steps, ranks = np.array(steps, np.int64), np.array(ranks, np.int32)
    return Batch(
        source,
        str(number),
        at,
        steps,
        ranks,
        np.broadcast_to(np.float32(seconds), steps.shape),
        world,
    )


def of_step(step, seconds, *, source="start/0", at=None, ranks=None, world=None):
    """One step of all ranks."""
    n = len(seconds)
    return Batch(
        source,
        f"{step}",
        1000.0 + step if at is None else at,
        np.full(n, step, np.int64),
        np.arange(n, dtype=np.int32) if ranks is None else np.array(ranks, np.int32),
        np.array(seconds, np.float32),
        n if world is None else world,
    )


def same(one, two):
    arrays = ("steps", "ranks", "durations_s")
    return all(np.array_equal(getattr(one, a), getattr(two, a)) for a in arrays) and (
        (one.source, one.number, one.at, one.world) == (two.source, two.number, two.at, two.world)
    )
