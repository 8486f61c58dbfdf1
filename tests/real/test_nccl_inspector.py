"""Logs that NCCL Inspector's own writer made, of jobs of four processes that a test makes up.

``inspector_json.cc`` and ``json.cc`` are those of NVIDIA/nccl (Apache-2.0) at v2.30.7-1, compiled
alone (``inspector_writers``). No log of a run was at hand.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import inspector_writers
from paceline.errors import TraceError
from paceline.sources.call_logs.files import load_call_log

NCCL = "v2.30.7-1"
BEGIN_US = 1_780_000_000_000_000
RANKS, STEPS, STEP_US, LATE_US = 4, 20, 5000, 400

Write = Callable[[str, Path, bool], Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return inspector_writers.log_writer(NCCL, tmp_path_factory.mktemp("inspector") / "built")


def calls_of(rank: int, every: int) -> str:
    """A sum of all ranks in each step, and a send to the next; a dump every so many steps.

    The last rank comes late; the others wait for it.
    """
    lines = []
    for step in range(STEPS):
        at_us = BEGIN_US + STEP_US * step
        if step % every == 0:
            lines.append(f"dump {at_us + STEP_US * every}")
            lines.append(f"comm 7f8c496ae9f661 dp_0 {rank} {RANKS} 1")
        start_us = at_us + LATE_US * (rank == RANKS - 1)
        lines.append(f"coll AllReduce {step} 4096 {start_us} {at_us + LATE_US + 300}")
        sends = rank % 2 == 0
        name, peer = ("Send", rank + 1) if sends else ("Recv", rank - 1)
        lines.append(f"p2p {name} {step} 512 {at_us + 2000} {at_us + 2100} {peer}")
    return "\n".join(lines) + "\n"


def logs(write: Write, folder: Path, *, every: int, verbose: bool) -> None:
    for rank in range(RANKS):
        write(calls_of(rank, every), folder / f"node-pid{rank}.log", verbose)


@pytest.mark.parametrize("every", [1, STEPS])
def test_all_calls_with_their_begins(write: Write, tmp_path: Path, every: int) -> None:
    logs(write, tmp_path, every=every, verbose=True)
    log, _ = load_call_log([tmp_path])
    assert sorted(set(log.ops)) == ["AllReduce", "Recv", "Send"]
    summed = log.op == log.ops.index("AllReduce")
    assert summed.sum() == RANKS * STEPS
    for rank in range(RANKS):
        mine = log.time_s[summed & (log.rank == rank)] * 1e6 - BEGIN_US
        late = LATE_US * (rank == RANKS - 1)
        assert mine == pytest.approx([STEP_US * step + late for step in range(STEPS)], abs=1)
        assert (~summed & (log.rank == rank)).sum() == STEPS


def test_without_the_event_trace_begins_of_one_dump_are_made_up(
    write: Write, tmp_path: Path
) -> None:
    logs(write, tmp_path, every=STEPS, verbose=False)
    with pytest.raises(TraceError, match="NCCL_INSPECTOR_DUMP_VERBOSE=1"):
        load_call_log([tmp_path])
