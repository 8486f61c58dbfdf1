"""A job's rank map in a file beside its series; without the file it is rebuilt from batches.

The file is written before the detector's snapshot, so it may be ahead but not behind. Steps that a
restart reads again are recognised as counted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import StateError
from paceline.monitor.rank_map import BIN, MAX_BINS, Place, RankMap, Ratios
from paceline.monitor.state_file import read_state, write_state
from paceline.monitor.step_files import Batch, StepFile
from paceline.monitor.step_series import read_rows

#: The name of the file, which includes its version.
NAME = "ranks.npz"
#: Number of last starts that a batch may belong to.
_STARTS_BACK = 8
#: Lock between retention, which drops bins of the file, and the detector, which writes it.
_lock = threading.Lock()


def save_rank_map(rank_map: RankMap, folder: Path) -> None:
    """Write the map; it is on disk on return."""
    with _lock:
        _write(rank_map, folder)


def _write(rank_map: RankMap, folder: Path) -> None:
    state = rank_map.state_dict()
    arrays = {name: state.pop(name) for name in list(state) if isinstance(state[name], np.ndarray)}
    write_state(folder / NAME, state, arrays)


def load_rank_map(folder: Path) -> RankMap | None:
    """The map as last saved; None without one.

    Raises:
        StateError: the file is damaged, or has another version.
    """
    saved = read_state(folder / NAME)
    return None if saved is None else RankMap.from_state_dict({**saved[0], **saved[1]})


def remove_older_bins(folder: Path, before: float) -> None:
    """Drop bins before that time; a damaged file is left to the detector."""
    with _lock, contextlib.suppress(StateError):
        rank_map = load_rank_map(folder)
        if rank_map is not None and rank_map.drop_before(before):
            _write(rank_map, folder)


def restore_rank_map(
    file: StepFile, saved_to: Place | None, is_over: Callable[[], bool]
) -> Generator[None, None, tuple[RankMap, str]]:
    """The map with which a job's detector continues, and the reason if it was rebuilt (or "").

    Args:
        file: of the job's step times.
        saved_to: place up to which the detector's snapshot has seen the job; later steps repeat.
            None if the detector itself is rebuilt.
        is_over: whether to pause.
    """
    try:
        rank_map, reason = load_rank_map(file.folder), "there was none"
    except StateError as error:
        rank_map, reason = None, str(error)
    if rank_map is not None:
        reason = "it is older than the detector"
    rank_map = rank_map or RankMap()
    if rank_map.counted >= _last_place(read_rows(file.folder), saved_to):
        return rank_map, ""
    for ratios in ratios_of_batches(file, rank_map.counted):
        if ratios is not None:
            rank_map.append(ratios)
        if is_over():
            yield
    return rank_map, reason


def _last_place(rows: npt.NDArray[Any], most: Place | None) -> Place:
    """The last step of the series up to a place."""
    if most is not None:
        rows = rows[~_is_behind(rows, most)]
    return (int(rows["start"][-1]), int(rows["step"][-1])) if len(rows) else (-1, -1)


def ratios_of_batches(file: StepFile, behind: Place) -> Iterator[Ratios | None]:
    """Steps of the series after a place, from the kept batches; None is a pause."""
    rows = read_rows(file.folder)
    rows = np.array(rows[_is_behind(rows, behind) & (rows["median_s"] > 0)])
    if not len(rows):
        return
    number = _bin_numbers(rows)
    sums = _Sums(int(number[-1]) + 1)
    finder = _RowFinder(rows)
    for batch in file.read():
        found = finder.rows_of(batch)
        hit = found >= 0
        medians_s = rows["median_s"][found[hit]].astype(np.float64)
        sums.add(number[found[hit]], batch.ranks[hit], batch.durations_s[hit] / medians_s)
        yield None
    yield sums.ratios(rows, number)


class _RowFinder:
    """Assigns samples to rows of the series: the latest row of the step that had begun then."""

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        self._rows = rows
        self._begins = np.flatnonzero(np.diff(rows["start"], prepend=-1))
        self._ends = [*self._begins[1:].tolist(), len(rows)]
        self._first_at = np.minimum.accumulate(rows["at"][self._begins][::-1])[::-1]

    def rows_of(self, batch: Batch) -> npt.NDArray[np.int64]:
        """[sample] its row; -1 without a row."""
        found = np.full(len(batch.steps), -1, dtype=np.int64)
        latest = int(np.searchsorted(self._first_at, batch.at, side="right"))
        for start in range(latest - 1, max(-1, latest - 1 - _STARTS_BACK), -1):
            begin, end = int(self._begins[start]), self._ends[start]
            rows = self._rows[begin:end]
            place = np.minimum(np.searchsorted(rows["step"], batch.steps), len(rows) - 1)
            hit = (rows["step"][place] == batch.steps) & (rows["at"][place] <= batch.at)
            found = np.where((found < 0) & hit, begin + place, found)
        return found


class _Sums:
    """Sums of ratios by bin and rank, for ranks that are not known in advance."""

    def __init__(self, bins: int) -> None:
        self._ranks = np.zeros(0, dtype=np.int32)
        self._sum = np.zeros((bins, 0), dtype=np.float32)
        self._count = np.zeros((bins, 0), dtype=np.float32)

    def add(self, number: Any, ranks: npt.NDArray[np.int32], ratios: Any) -> None:
        """Add [sample] ratios to their bins."""
        merged = np.union1d(self._ranks, ranks).astype(np.int32)
        if len(merged) > len(self._ranks):
            place = np.searchsorted(merged, self._ranks)
            for name in ("_sum", "_count"):
                wider = np.zeros((len(self._sum), len(merged)), dtype=np.float32)
                wider[:, place] = getattr(self, name)
                setattr(self, name, wider)
            self._ranks = merged
        place = number * len(self._ranks) + np.searchsorted(self._ranks, ranks)
        np.add.at(self._sum.reshape(-1), place, ratios.astype(np.float32))
        np.add.at(self._count.reshape(-1), place, np.float32(1))

    def ratios(self, rows: npt.NDArray[Any], number: Any) -> Ratios:
        """The bins with data of any rank."""
        values = np.full(self._sum.shape, np.nan, dtype=np.float32)
        np.divide(self._sum, self._count, out=values, where=self._count > 0)
        begins = np.flatnonzero(np.diff(number, prepend=-1))
        ends = np.append(begins[1:], len(rows)) - 1
        bins = np.zeros(len(begins), BIN)
        bins["first"], bins["last"] = rows["step"][begins], rows["step"][ends]
        bins["start"], bins["last_start"] = rows["start"][begins], rows["start"][ends]
        bins["steps"], bins["at"] = ends - begins + 1, rows["at"][ends]
        told = (self._count > 0).any(axis=1)
        return Ratios(self._ranks, bins[told], values[told])


def _is_behind(rows: npt.NDArray[Any], place: Place) -> npt.NDArray[np.bool_]:
    start, step = place
    behind = (rows["start"] > start) | ((rows["start"] == start) & (rows["step"] > step))
    return np.asarray(behind, dtype=np.bool_)


def _bin_numbers(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """[row] its bin; starts are separate unless there are too many."""
    begins = np.diff(rows["start"], prepend=rows["start"][0]) != 0
    if begins.sum() >= MAX_BINS // 4:
        begins[:] = False
    of_start = np.cumsum(begins)
    since = np.arange(len(rows)) - np.flatnonzero(np.append(True, begins[1:]))[of_start]
    size = 1
    while True:
        opens = (since % size == 0) | begins
        opens[0] = True
        if opens.sum() <= MAX_BINS // 2:
            return np.cumsum(opens, dtype=np.int64) - 1
        size *= 2
