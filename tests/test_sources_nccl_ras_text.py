"""NCCL's RAS as text: read line by line, refused where a line is missing or another one's."""

import json
from pathlib import Path

import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import SHARED_FIXTURES
from paceline.cli.main import run
from paceline.detect.not_arrived_text import (
    MISREAD,
    NOT_NAMED,
    SEVERAL,
    NotArrivedText,
    not_arrived_text,
)
from paceline.errors import PacelineError, TraceError
from paceline.sources import nccl_ras, nccl_ras_text

HEAD = """\
NCCL version 2.30.7 compiled with CUDA 13.0
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
LEVEL = (
    HEAD
    + """\
    0         4         2         1         2         8   RUNNING      OK

Errors
======

Warnings
========

"""
)
#: A rank that is behind, one that did not answer, one with an error, and three that left.
TROUBLE = (
    HEAD
    + """\
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE,ERROR,MISMATCH
    1         4         2         1         2         8   RUNNING      OK
    2         1         1         1         4         1  FINALIZE  MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 107 on node 10.0.0.2 managing GPU 3 (NVML 7)

#0-0 (00a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 3 (NVML 7) managed by process 107 on node 10.0.0.2

#0-0 (00a079b828ff1a75) ERROR
  Asynchronous error on 1 rank
  Rank 6 reported Remote process error -- GPU 2 managed by process 106 on node 10.0.0.2

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (00a079b828ff1a75) MISMATCH
  Communicator ranks have different AllGather operation counts
  6 ranks have launched up to operation 12
  Rank 1 has not launched any operations -- GPU 1 managed by process 101 on node 10.0.0.1

  Communicator ranks have different AllReduce operation counts
  4 ranks have launched up to operation 40
  3 ranks have launched up to operation 39

#2-0 (0000000000000bad) MISMATCH
  Communicator ranks have different status
  3 ranks have status NOCOMM
  Rank 2 has status FINALIZE -- GPU 2 managed by process 102 on node 10.0.0.1
"""
)


def answer(folder: Path, text: str) -> NotArrivedText:
    path = folder / "status.txt"
    path.write_text(text)
    return not_arrived_text(nccl_ras_text.read(path))


def test_a_level_job(tmp_path: Path) -> None:
    result = answer(tmp_path, LEVEL)
    assert result.who == ()
    assert result.explain().splitlines() == [
        "NCCL 2.30.7, 4 communicators, 4 of them level",
        "no rank is behind, and none is missing",
    ]


def test_all_that_a_text_names(tmp_path: Path) -> None:
    result = answer(tmp_path, TROUBLE)
    head = "communicator 0xa079b828ff1a75 of 8 ranks"
    assert result.explain().splitlines() == [
        "NCCL 2.30.7, 6 communicators, 4 of them level",
        "1 process did not answer: GPU 7 of process 107 on 10.0.0.2",
        f"{head}: rank 1 is 12 AllGather behind: GPU 1 of process 101 on 10.0.0.1",
        f"{head}: 3 ranks are 1 AllReduce behind",
        f"{head}: rank 7 did not answer: GPU 7 of process 107 on 10.0.0.2",
        f"{head}: rank 6: remote process error: GPU 2 of process 106 on 10.0.0.2",
        "communicator 0xbad of 4 ranks: its ranks are in different states: 3 ranks nocomm, "
        "rank 2 finalize",
        "behind when asked: GPU 7 of process 107 on 10.0.0.2; GPU 1 of process 101 on 10.0.0.1",
    ]
    assert NOT_NAMED in result.notes
    assert SEVERAL not in result.notes
    assert "RAS waited 2 times in vain for processes" in result.notes
    behind = result.to_mapping()["communicators"][0]["behind"]
    assert [(late["op"], late["calls"], late["size"]) for late in behind] == [
        ("AllGather", 12, 1),
        ("AllReduce", 1, 3),
    ]


def test_late_ranks_of_several_communicators_may_wait_for_each_other(tmp_path: Path) -> None:
    rows = "    0         2         2         1         2         4   RUNNING  MISMATCH\n"
    blocks = "".join(
        f"#0-{n} ({n + 1:016x}) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 1 on node 10.0.0.1\n"
        "  Rank 1 has launched up to operation 6 -- GPU 1 managed by process 2 on node 10.0.0.1\n\n"
        for n in range(2)
    )
    text = HEAD + rows + "\nErrors\n======\n\nWarnings\n========\n\n" + blocks
    result = answer(tmp_path, text)
    assert [process.pid for process in result.who] == [2]
    assert SEVERAL in result.notes


def test_a_status_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    lines = TROUBLE.splitlines(keepends=True)
    for n in range(5, len(lines)):
        with pytest.raises(TraceError, match=r"status\.txt"):
            answer(tmp_path, "".join(lines[:n]))
    for n in range(1, 20):  # nor may the name of the last node be shorter
        with pytest.raises(TraceError, match=r"status\.txt"):
            answer(tmp_path, TROUBLE.rstrip()[:-n])
    # Nor may a line be missing that says something of a communicator.
    for n, line in enumerate(lines):
        if line.startswith(("#", "  Rank", "  3 ranks", "  4 ranks", "  6 ranks")):
            with pytest.raises(TraceError, match=r"status\.txt"):
                answer(tmp_path, "".join(lines[:n] + lines[n + 1 :]))


def test_a_line_of_another_release_is_refused_with_its_place(tmp_path: Path) -> None:
    text = TROUBLE.replace(
        "  Missing communicator data from 1 rank\n",
        "  Missing communicator data from 1 rank\n  The missing rank: 7\n",
    )
    with pytest.raises(TraceError, match=r"line 29: 'The missing rank: 7' is no line of NCCL RAS"):
        answer(tmp_path, text)


def test_communicators_that_an_old_nccl_takes_from_a_wrong_place_are_left_out(
    tmp_path: Path,
) -> None:
    result = answer(tmp_path, TROUBLE.replace("NCCL version 2.30.7", "NCCL version 2.28.9"))
    assert MISREAD in result.notes
    assert result.explain().splitlines() == [
        "NCCL 2.28.9, 6 communicators, left out",
        "1 process did not answer: GPU 7 of process 107 on 10.0.0.2",
        "behind when asked: GPU 7 of process 107 on 10.0.0.2",
    ]
    level = answer(tmp_path, LEVEL.replace("NCCL version 2.30.7", "NCCL version 2.28.9"))
    assert MISREAD not in level.notes


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "status.txt", tmp_path / "later.txt"
    path.write_text(TROUBLE)
    other.write_text(LEVEL)
    assert run(["detect", "--collectives", str(path), "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert answered["kind"] == "not-arrived-text"
    assert [process["pid"] for process in answered["who"]] == [107, 101]
    assert not nccl_ras.matches(path)
    assert run(["detect", "--collectives", str(path), str(other)]) == 2
    assert "so their order is unknown" in capsys.readouterr().err


@settings(max_examples=300, deadline=None, suppress_health_check=SHARED_FIXTURES)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(TROUBLE)), st.integers(0, 30), st.text(max_size=12) | st.just("\n")
        ),
        max_size=3,
    )
)
def test_any_text(tmp_path: Path, edits: list[tuple[int, int, str]]) -> None:
    text = TROUBLE
    for at, n, put in edits:
        text = text[:at] + put + text[at + n :]
    path = tmp_path / "any.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        result = not_arrived_text(nccl_ras_text.read(path))
    except PacelineError as error:
        assert str(path) in str(error)  # noqa: PT017 (reading it is no error, either)
    else:
        json.dumps(result.to_mapping())
        assert result.explain()
