"""Spans that Megatron-LM's own 1F1B schedule sends, of four gloo ranks with a slow one."""

import numpy as np
import pytest

import megatron_spans
import peace
import requires
from paceline.sources import otlp
from paceline.trace import Job
from paceline.whatif import analyze

timed = peace.timed


@pytest.mark.alone
def test_megatrons_own_schedule_sends_spans_that_are_read(tmp_path, timed):
    requires.installed("nemo.lens", "megatron.core", "triton")
    if not megatron_spans.are_sent():
        pytest.skip("this Megatron-LM has no telemetry: install core 0.20.0 or newer")
    folder = megatron_spans.of_a_job(tmp_path, pp=2, world=4, slow_rank=3)
    # The first step connects the ranks, which takes what a busy machine makes of it.
    got = otlp.read([folder], steps=frozenset((1, 2, 3)))
    assert got.trace.job == Job(dp_size=2, pp_size=2)
    assert not got.unplaced
    result = analyze(got.trace)
    with timed():
        assert np.unravel_index(np.argmax(result.by_worker), (2, 2)) == (1, 1)  # [stage, replica]
        # About 1.48 on a quiet machine: half of 1.95, as there is one peer.
        assert result.slowdown > 1.3
        assert abs(result.discrepancy) < 0.1
