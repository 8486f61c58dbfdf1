"""The log that torchcomms' own description of clog has as an example (59426ba)."""

from pathlib import Path

import pytest

import requires
from paceline.sources.call_logs.files import load_call_log


def test_the_example_of_its_description(tmp_path: Path) -> None:
    page = requires.source(
        "meta-pytorch/torchcomms",
        "59426ba",
        "comms/torchcomms/hooks/clog/AI_TOOL_INSTRUCTIONS_V1.md",
    )
    example = page[page.index("## Example Log") :].split("```")[1].lstrip()
    path = tmp_path / "clog.log"
    path.write_text(example)
    log, notes = load_call_log([path])
    assert log.time_s - 1714234567.890 == pytest.approx([0.002, 0.011, 0.013], abs=1e-6)
    assert log.duration_s == pytest.approx([0.003, 0.004, 0.003], abs=1e-6)
    assert [log.ops[op] for op in log.op] == ["all_reduce"] * 3
    assert log.size.tolist() == [1024, 2048, 1024]
    assert "rank 0: 2 calls in CUDA graphs are left out" in notes
