"""Input of a detector: durations within bounds, and the numbers of samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.errors import DetectError

Array = npt.NDArray[np.float64]

#: Default and largest number of samples before any event.
WARM_UP, ANCHOR_STEPS = 50, 512
#: The same where a sample stands for this many steps or more. In 10,000 samples of real logs and
#: 40,000 made-up ones no false event came of it.
SAMPLED_WARM_UP, SAMPLED_STEPS = 20, 5
#: A step of at least this multiple of the level is a pause (checkpoint, evaluation, restart).
PAUSE = 5.0
#: Bounds of valid durations, which single precision can represent.
MIN_STEP_S, MAX_STEP_S = 1e-12, 1e12
#: Steps without a sample after which a rank is called silent.
SILENT_AFTER = 10


def checked_durations(
    step: int, durations_s: npt.ArrayLike, ranks: int, last_step: int | None
) -> Array:
    """[rank] the durations of a step that comes after ``last_step``.

    Raises:
        DetectError: they are no numbers, not one per rank, or the step is not after the last.
    """
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise DetectError(f"a step is a whole number, not {step!r}")
    try:
        x = np.asarray(durations_s, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DetectError(f"step {step} needs a number of seconds for each rank") from None
    if len(x) != ranks:
        raise DetectError(f"step {step} has {len(x)} durations for {ranks} ranks")
    if last_step is not None and step <= last_step:
        raise DetectError(f"step {step} comes after step {last_step}; steps must grow")
    return x


def warm_up_of(steps_per_sample: int) -> int:
    """Number of samples before any event, where a sample stands for some steps."""
    return WARM_UP if steps_per_sample < SAMPLED_STEPS else SAMPLED_WARM_UP


def usable(durations_s: Array) -> npt.NDArray[np.bool_]:
    """The durations that a detector uses: numbers within the bounds."""
    with np.errstate(invalid="ignore"):
        within: npt.NDArray[np.bool_] = (durations_s >= MIN_STEP_S) & (durations_s <= MAX_STEP_S)
    return within
