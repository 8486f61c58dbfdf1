"""Automatic naming of the slow rank after the demo's job becomes slow.

A watch reads the calls that the NCCL plugin records. It stops all ranks at one collective by the
pause protocol, validates as many separate processes, and compares them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from paceline.demo.processes import Training
from paceline.detect.launch import validate_local
from paceline.detect.validate import Effort, Injected
from paceline.detect.verdict import Measurements
from paceline.errors import DemoLateError
from paceline.pause.asker import Times
from paceline.pause.validation import pause_and_validate
from paceline.watch import CallsWatch, News

#: A busy machine starts four processes slowly; the plugin allows 160 s in total.
TIMES = Times(hold_s=100.0, arrive_s=40.0, answer_s=20.0, silent_s=20.0)
#: Least collectives until the stop; the job has one of all ranks per step.
MARGIN = 2
#: Most seconds until the watch has validated the job.
MAX_S = 200.0


def validated_by_pause(job: Training, factor: float) -> tuple[list[News], Mapping[str, Any]]:
    """The news of a watch until its validation of the ranks, and the verdict.

    Args:
        job: slow job with the plugin.
        factor: slowdown of rank 0, which the validation emulates like the training.

    Raises:
        DemoLateError: the watch finds nothing, or the pause is disturbed.
    """

    def measure(ranks: int, most_s: float) -> Measurements:
        effort, injected = Effort(rounds=3, timeout_s=most_s), Injected(rank=0, factor=factor)
        return validate_local(ranks, effort=effort, injected=injected)

    watch = CallsWatch(
        job.folder,
        examine=lambda: pause_and_validate(job.folder, TIMES, measure, margin=MARGIN),
    )
    said: list[News] = []
    until = time.monotonic() + MAX_S
    while time.monotonic() < until:
        for news in watch.look():
            said.append(news)
            if news.kind == "validated":
                return said, news.fields["verdict"]
            if news.kind in ("not-paused", "not-validated"):
                raise DemoLateError(news.text)
        time.sleep(0.1)
    raise DemoLateError(f"the watch saw no fail-slow within {MAX_S:g} s")
