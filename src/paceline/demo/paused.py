"""The demo's job becomes slow; from there to the slow rank's name nobody gives a command.

A watch reads the calls that the NCCL plugin records. It asks all ranks through the pause protocol
to stop at one collective, lets as many processes beside them be validated, and compares.
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

#: A busy machine takes long to start four processes; the plugin allows 160 s in all.
TIMES = Times(hold_s=100.0, arrive_s=40.0, answer_s=20.0, silent_s=20.0)
#: Collectives until the stop, at least: the job has one of all ranks a step.
MARGIN = 2
#: Seconds at most until the watch has had the job validated.
MAX_S = 200.0


def validated_by_pause(job: Training, factor: float) -> tuple[list[News], Mapping[str, Any]]:
    """The news of a watch until it has had the ranks validated, and the verdict.

    Args:
        job: with the plugin; slow.
        factor: of rank 0, which the validation emulates as the training does.

    Raises:
        DemoLateError: the watch sees nothing, or the pause is not held undisturbed.
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
