"""One line about the job and its steps."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.trace import Job
from paceline.units import count


def size_and_steps(job: Job, steps: Sequence[int]) -> str:
    """``dp 4 × pp 2 on 8 GPUs · 10 steps, 0 to 9``."""
    degrees = [f"dp {job.dp_size}", f"pp {job.pp_size}"]
    for name, size in (("tp", job.tp_size), ("dsp", job.dsp_size), ("vpp", job.vpp_size)):
        degrees += [f"{name} {size}"] if size > 1 else []
    step_range = (
        f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    )
    return f"{' × '.join(degrees)} on {count(job.world_size, 'GPU')} · {step_range}"
