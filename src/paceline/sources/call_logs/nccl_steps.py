"""Steps marked by the NCCL plugin when it records one step in n: see ``native/sampling.c``.

For a step that is left out, the files have only the first collective, so the begin of each step is
known. Before the first mark and after the last one, all calls are recorded. Steps there are counted
from the marks, as far as the calls repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]

_START, _STEP = 0, 3
_COLL, _CE_COLL = 1, 12


@dataclass(frozen=True, eq=False)
class StepMarks:
    """The begins of a process's steps in the last period, ascending.

    Attributes:
        handle: [step] handle of its first collective.
        number: [step] number, equal on all ranks of the counted communicator.
        is_whole: [step] whether all its records were written.
        host_ns: [step] time when the host queued that collective.
        calls: number of a step's collectives in that communicator.
        every: n, if each n-th step was recorded at the end.
        communicator: the process's number of that communicator.
    """

    handle: npt.NDArray[np.uint64]
    number: Ints
    is_whole: Bools
    host_ns: Ints
    calls: int
    every: int
    communicator: int

    def step_of(self, host_ns: int) -> int:
        """The whole step in which a call was queued; -1 without one."""
        at = int(np.searchsorted(self.host_ns, host_ns, side="right")) - 1
        return int(self.number[at]) if at >= 0 and self.is_whole[at] else -1


def step_marks(records: Records) -> StepMarks | None:
    """The steps of a process; None if it recorded all steps."""
    marks = records[(records["what"] == _STEP) & (records["c"] > 0)]
    begins = marks[marks["d"] > 0]
    if not len(begins):
        return None
    last = begins[np.argmax(begins["time_ns"])]
    calls = int(last["c"])
    marks = marks[(marks["c"] == calls) & (marks["communicator"] == last["communicator"])]
    marks = marks[np.argsort(marks["time_ns"], kind="stable")]
    own = records[
        (records["what"] == _START)
        & np.isin(records["type"], (_COLL, _CE_COLL))
        & (records["communicator"] == last["communicator"])
    ]
    own = own[np.argsort(own["time_ns"], kind="stable")]
    steps = _counted_on(own, marks, calls)
    order = sorted(steps, key=lambda number: steps[number][0])
    # A new count after irregular calls may repeat old numbers.
    number = np.array(order, dtype=np.int64)
    later = number > np.maximum.accumulate(np.append(-1, number[:-1]))
    at = np.array([steps[one][0] for one in order], dtype=np.int64)[later]
    return StepMarks(
        handle=own["handle"][at],
        number=number[later],
        is_whole=np.array([steps[one][1] for one in order], dtype=bool)[later],
        host_ns=own["time_ns"][at],
        calls=calls,
        every=int(last["d"]),
        communicator=int(last["communicator"]),
    )


def _counted_on(own: Records, marks: Records, calls: int) -> dict[int, tuple[int, bool]]:
    """Number of a step -> the index of its first call in ``own``, and whether the step is whole."""
    place = {handle: at for at, handle in enumerate(own["handle"].tolist())}
    marks = marks[[int(handle) in place for handle in marks["handle"]]]
    _, code = np.unique(own[["func", "datatype", "b"]], return_inverse=True)
    at = np.array([place[int(handle)] for handle in marks["handle"]], dtype=np.int64)
    goes_on = marks["d"] > 0
    whole = goes_on & (marks["a"] % np.maximum(marks["d"], 1).astype(np.uint64) == 0)
    steps = {
        int(number): (first, is_whole)
        for number, first, is_whole in zip(
            marks["a"][goes_on], at[goes_on].tolist(), whole[goes_on].tolist(), strict=True
        )
    }
    complete = np.flatnonzero(whole[:-1] & (np.diff(at) == calls))
    if not len(complete):
        return steps
    first = int(at[complete[0]])
    template = code[first : first + calls]

    def extend(number: int, first: int, direction: int, low: int, high: int) -> None:
        """Add whole steps, forwards or backwards, while their calls equal the template."""
        while number >= 0 and number not in steps and low <= first <= high - calls:
            if not np.array_equal(code[first : first + calls], template):
                return
            steps[number] = first, True
            number, first = number + direction, first + direction * calls

    free_from = 0
    for i in range(len(marks)):
        if goes_on[i] and (i == 0 or not goes_on[i - 1]):
            extend(int(marks["a"][i]) - 1, int(at[i]) - calls, -1, free_from, int(at[i]))
        elif not goes_on[i] and i > 0 and goes_on[i - 1]:
            free_from = int(at[i])
            if marks["b"][i] == 0:
                high = int(at[i + 1]) if i + 1 < len(marks) else len(own)
                extend(int(marks["a"][i]), free_from, 1, free_from, high)
    return steps
