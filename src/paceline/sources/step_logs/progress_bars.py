"""Step times from the states of a tqdm bar.

Held against tqdm 4.70.1 (``tqdm/std.py``: ``format_meter``, ``format_interval``, ``EMA``,
``update``) and the bars of Hugging Face's Trainer, Lightning
(``callbacks/progress/tqdm_progress.py``, commit 7f0c343) and torchtune.

A state has a count, a clock of whole seconds, and a rate. tqdm smooths the rate: at each refresh it
takes 0.3 of the newest value and 0.7 of the mean before. That is undone here, which gives the time
between two states. Lightning, and any bar with another ``smoothing``, has other rates. So the
result is compared with the clock. Where they disagree, the clock alone counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import TraceError
from paceline.sources.step_logs.lines import FINE_TICKS, Columns, Covers

Array = npt.NDArray[np.float64]

#: In every state of a bar.
CUE = " ["
#: tqdm's default weight of the newest value.
_SMOOTHING = 0.3
#: Spans of the clock in seconds over which rates must agree with it: within a tick and 1%.
_SPANS_S, _AGREES, _TICK_S = (20.0, 100.0, 1000.0), 0.01, 1.0
#: Neighbours that differ in turn by more than rounding are rates that had no smoothing.
_TURNS, _ROUNDINGS, _AROUND = -0.3, 3.0, 9
#: Share of the states with at most the usual number of steps.
_MOST = 0.75
#: Share of the states whose count falls, from which on they are of several processes.
_MIXED = 0.2
#: A first count this many times as large as the usual one goes on from a checkpoint.
_JUMP = 10
#: Runs of a bar that are slow and fast in turn are training and validation: least difference in
#: speed (logarithm), fewest runs, and least share of neighbours.
_OTHER_SPEED, _ENOUGH_RUNS, _IN_TURN = 0.1, 4, 0.8
#: The rank in a bar's name.
_RANK = re.compile(
    r"(?<![a-z])(?:(?:local|global)_?)?(?:rank|gpu|cuda|device|process|proc)\W{0,3}(?P<rank>\d{1,6})\b",
    re.I,
)
_UNITS = "it|its|iter|iters|step|steps|batch|batches|ba|update|updates"
_STATE = re.compile(
    rf"(?:^|[\s|])(?P<n>\d{{1,12}})(?:/(?P<total>\d{{1,12}}|\?)|(?:{_UNITS})) "
    r"\[(?P<clock>(?:\d{1,5}:)?\d\d:\d\d)(?:<[\d:?, a-z]{1,30})?, *"
    rf"(?:(?P<rate>\d{{1,9}}(?:\.\d{{1,3}})?)|\?)(?:(?P<per_s>(?:{_UNITS})/s)|s/(?:{_UNITS}))\b"
)
_PERCENT = re.compile(r"\s*\d{1,3}%\s*\|")
#: Bars of these names are no training. A bar of an epoch has its number in its name.
_OTHER = re.compile(
    r"valid|eval|test|predict|sanity|load|fetch|map|token|sav|generat|shard|filter|pack|infer|"
    r"sampling|rollout|convert|extract|encod|writing|processing|perplex|quantiz|calibrat|index|scan|"
    r"embeddings|copy|check|^\s*epochs?\W*$",
    re.I,
)


@dataclass(frozen=True)
class _State:
    """A state: steps done, seconds of the clock, and steps a second with its rounding error."""

    n: int
    clock_s: int
    rate: float
    rounding: float


def state_of(line: str) -> re.Match[str] | None:
    """The state of a bar that counts steps; None if the line has none."""
    return _STATE.search(line) if CUE in line else None


def read_bars(
    states: Iterable[re.Match[str]], where: str, notes: list[str]
) -> tuple[Columns, Covers]:
    """The step times of the bar that runs longest, and what they cover.

    Args:
        states: states of bars (:func:`state_of`), in the order of the file.
        where: the file, for errors.
        notes: the way in which times were found is added to them.

    Raises:
        TraceError: no bar is of training, bars of several processes are mixed, or states are few.
    """
    bars = _bars_of(states)
    if not bars:
        raise TraceError(f"{where}: its progress bars are of validation or of data, not of steps")
    name, by_rank = max(bars.items(), key=lambda bar: max(map(_seconds, bar[1].values())))
    total = int(name.rpartition("/")[2]) if name.rpartition("/")[2].isdigit() else None
    if len(bars) > 1:
        notes.append(f"of {len(bars)} progress bars the longest one counts ({name.strip() or '-'})")
    if len(by_rank) > 1:
        notes.append(f"the names of the progress bars have {len(by_rank)} ranks")
    runs_of = {}
    for rank, bar in by_rank.items():
        runs = [_steady(run, total) for run in _of_training(_runs_of(bar, where), name, notes)]
        if runs:
            runs_of[rank] = runs
    refined = {rank: [_of_rates(run) for run in runs] for rank, runs in runs_of.items()}
    by_rates = all(passed is not None for of_rank in refined.values() for passed in of_rank)
    passed_of = {rank: [p for p in passed if p is not None] for rank, passed in refined.items()}
    if not by_rates:
        spacing = max((_spacing_of_clock(runs) for runs in runs_of.values()), default=1)
        passed_of = {
            rank: [_of_clock(run, spacing) for run in runs] for rank, runs in runs_of.items()
        }
    spacing = _usual_steps([passed for of_rank in passed_of.values() for passed in of_rank])
    rows: list[Array] = []
    for rank, runs in runs_of.items():
        steps, seconds = _joined(runs, passed_of[rank], spacing, total, aligned=len(by_rank) > 1)
        rows.append(np.stack([steps, np.full(len(steps), float(rank)), seconds]))
    table = np.concatenate(rows, axis=1) if rows else np.zeros((3, 0))
    if table.shape[1] < 2:
        raise TraceError(f"{where}: its progress bar has too few states for step times")
    notes.append(
        "times of steps are a progress bar's rates without their smoothing; they agree with its "
        "clock"
        if by_rates
        else "times of steps are a progress bar's clock, which is coarse: a sample is the mean of "
        f"about {spacing:,} steps"
    )
    step, rank_column, duration_s = table[:, table[2] > 0]
    return {"step": step, "rank": rank_column, "duration_s": duration_s}, "mean"


def _joined(
    runs: list[list[_State]],
    passed: list[tuple[Array, Array]],
    spacing: int,
    total: int | None,
    *,
    aligned: bool,
) -> tuple[Array, Array]:
    """Steps and seconds a step of the runs of a bar, which count on."""
    offset = 0
    steps: list[float] = []
    seconds: list[float] = []
    for run, (ends, passed_s) in zip(runs, passed, strict=True):
        if steps and run[0].n <= 1 < steps[-1] - offset:  # else from a checkpoint on
            offset += total if total is not None else int(steps[-1]) - offset
        count, of_run = _evenly(ends, passed_s, spacing, aligned=aligned)
        steps += (count + offset).tolist()
        seconds += of_run.tolist()
    return np.array(steps, float), np.array(seconds, float)


def _of_training(runs: list[list[_State]], name: str, notes: list[str]) -> list[list[_State]]:
    """The runs of a bar without those of validations that have its name and its total.

    An epoch then has a run of training and one of validation, which differ in speed.
    """
    step_s = np.array([_step_s(run) for run in runs])
    ups = np.diff(step_s) > 0
    if len(runs) < 2 or not (np.abs(np.diff(np.log(step_s))) > _OTHER_SPEED).any():
        return runs
    differ = np.abs(np.diff(np.log(step_s))) > _OTHER_SPEED
    first_up = np.arange(len(ups)) % 2 == 0
    in_turn = max((differ & (ups == first_up)).sum(), (differ & (ups != first_up)).sum())
    if len(runs) >= _ENOUGH_RUNS and in_turn >= _IN_TURN * len(ups):
        halves = runs[::2], runs[1::2]
        slower = max(halves, key=lambda half: float(np.median([_step_s(run) for run in half])))
        others = halves[1] if slower is halves[0] else halves[0]
        notes.append(
            f"{len(runs)} runs of one bar are slow and fast in turn: the {len(slower)} slow ones "
            f"count as training, the {len(others)} others as validation; a name (desc=) tells it"
        )
        return slower
    if not name.rpartition("/")[0].strip():
        notes.append(
            f"{len(runs)} progress bars without a name count as one; if some are validations, "
            "give them a name (desc=)"
        )
    return runs


def _step_s(run: list[_State]) -> float:
    """Typical seconds of a step of a run."""
    rates = [state.rate for state in run if state.rate > 0]
    if rates:
        return 1 / float(np.median(rates))
    return max(run[-1].clock_s - run[0].clock_s, 0.5) / (run[-1].n - run[0].n)


def _bars_of(states: Iterable[re.Match[str]]) -> dict[str, dict[int, list[_State]]]:
    """Name without numbers, and total -> rank in the name (0 without) -> states of training."""
    bars: dict[str, dict[int, list[_State]]] = defaultdict(lambda: defaultdict(list))
    for match in states:
        head = _PERCENT.split(match.string[: match.start("n")], maxsplit=1)[0]
        if _OTHER.search(head):
            continue
        name = re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?|\bnan\b|\binf\b|\x1b\[A", "", head)
        rate, rounding = 0.0, 0.0
        if match["rate"] is not None:
            value, half = float(match["rate"]), 0.5 * 10.0 ** -len(match["rate"].partition(".")[2])
            if value > 0:
                rate = value if match["per_s"] else 1 / value
                rounding = half / value
        clock_s = 0
        for part in match["clock"].split(":"):
            clock_s = clock_s * 60 + int(part)
        named = _RANK.search(head)
        rank = 0 if named is None else int(named["rank"])
        bars[f"{name}/{match['total'] or ''}"][rank].append(
            _State(int(match["n"]), clock_s, rate, rounding)
        )
    return bars


def _seconds(states: list[_State]) -> float:
    """Seconds that a bar's clock runs, over all its runs."""
    clock_s = np.array([state.clock_s for state in states])
    ahead = np.diff(clock_s)
    return float(ahead[ahead > 0].sum()) + len(states) * 1e-6


def _runs_of(states: list[_State], where: str) -> list[list[_State]]:
    """Runs of a bar from its start to its end; of several states of a count the first."""
    runs: list[list[_State]] = []
    last: _State | None = None
    falls = 0
    for state in states:
        if last is not None and state.n < last.n:
            falls += 1
            is_restart = state.clock_s < last.clock_s or last.clock_s <= 1
            if not is_restart or falls > _MIXED * len(states) + 1:
                raise TraceError(
                    f"{where} mixes the progress bars of several processes (count {state.n} comes "
                    f"after {last.n}); log one rank alone, or give --pattern"
                )
        if last is None or state.clock_s < last.clock_s or state.n < last.n:
            runs.append([])
        if not runs[-1] or state.n > runs[-1][-1].n:
            runs[-1].append(state)
        last = state
    return [run for run in runs if len(run) > 1]


def _steady(run: list[_State], total: int | None) -> list[_State]:
    """A run without a jump to its checkpoint, and without an end that its closing has drawn."""
    steps = np.diff([state.n for state in run])
    usual = float(np.median(steps))
    if steps[0] > _JUMP * usual and len(run) > 2:
        run, steps = run[1:], steps[1:]
    # tqdm closes with the mean rate since the start, which is the first state of the last count
    # if the bar was not drawn at it.
    if run[-1].n == total and steps[-1] < usual and len(run) > 2:
        run = run[:-1]
    return run


def _usual_steps(passed: list[tuple[Array, Array]]) -> int:
    """Steps from one state to the next: as many as most states have, or more."""
    steps = np.concatenate([np.diff(counts) for counts, _ in passed])
    return int(np.quantile(steps, _MOST, method="higher")) if len(steps) else 1


def _evenly(
    counts: Array, passed_s: Array, spacing: int, *, aligned: bool = False
) -> tuple[Array, Array]:
    """Counts, and seconds a step since the count before, at equal numbers of steps.

    tqdm draws by time, so a slower step means fewer steps in a state. Equal numbers let each
    sample weigh the same. Time within a state is shared equally. The last sample may be shorter.
    ``aligned`` counts are multiples of the number, as ranks are compared at equal steps.
    """
    if len(counts) < 2:
        return np.zeros(0), np.zeros(0)
    if aligned:
        first = np.ceil(counts[0] / spacing) * spacing
        even = np.arange(first, counts[-1] + 1, spacing)
        if len(even) < 2:
            return np.zeros(0), np.zeros(0)
    else:
        even = np.append(np.arange(counts[0], counts[-1], spacing), counts[-1])
    return even[1:], np.diff(np.interp(even, counts, passed_s)) / np.diff(even)


def _of_rates(run: list[_State]) -> tuple[Array, Array] | None:
    """[state] counts, and seconds since the first state; None if they disagree with the clock."""
    n = np.array([state.n for state in run], float)
    clock_s = np.array([state.clock_s for state in run], float)
    rate = np.array([state.rate for state in run])
    rounding = max(state.rounding for state in run)
    steps = np.diff(n)
    if (rate[1:] <= 0).any():
        return None
    if rate[0] > 0:  # the log begins within the bar: the mean before is unknown
        steps_mean, seconds_mean = 1.0, 1.0 / rate[0]
    else:
        steps_mean = seconds_mean = 0.0
    spent_s = np.empty(len(steps))
    for row, (count, per_s) in enumerate(zip(steps, rate[1:], strict=True)):
        steps_mean = (1 - _SMOOTHING) * steps_mean + _SMOOTHING * count
        before, seconds_mean = seconds_mean, steps_mean / per_s
        spent_s[row] = (seconds_mean - (1 - _SMOOTHING) * before) / _SMOOTHING
    if (spent_s <= 0).sum() > 0.01 * len(spent_s) + 1:
        return None
    passed_s = np.concatenate([[0.0], np.cumsum(spent_s)])
    if not _agree(passed_s, clock_s, rounding) or _turns(spent_s / steps, rounding):
        return None
    return n, passed_s


def _turns(step_s: Array, rounding: float) -> bool:
    """Whether neighbours differ in turn, as undoing a smoothing that was none makes them.

    Jobs whose odd and even steps differ are alike two steps apart, which tells them.
    """
    if len(step_s) < FINE_TICKS + _AROUND:
        return False
    weight = (1 - _SMOOTHING) / _SMOOTHING + 1 / _SMOOTHING
    error_s = np.median(step_s) * rounding * weight
    around = np.lib.stride_tricks.sliding_window_view(step_s, _AROUND)
    level = step_s[_AROUND // 2 : -(_AROUND // 2)] - np.median(around, axis=1)
    limit = 5 * float(np.median(np.abs(level))) + 1e-12  # without pauses and other levels
    near = np.abs(level) < limit
    if np.median(np.abs(np.diff(step_s))) < _ROUNDINGS * error_s or near.sum() < FINE_TICKS:
        return False

    def alike(lag: int) -> float:
        both = near[lag:] & near[:-lag]
        return float(np.corrcoef(level[lag:][both], level[:-lag][both])[0, 1])

    return alike(1) < _TURNS and alike(2) < -_TURNS


def _agree(passed_s: Array, clock_s: Array, rounding: float) -> bool:
    """Whether sums of times agree with the clock over spans of different lengths."""
    if clock_s[-1] - clock_s[0] < _SPANS_S[0]:
        return bool(abs(passed_s[-1] - (clock_s[-1] - clock_s[0])) <= 2 * _TICK_S)
    for span_s in _SPANS_S:
        ends = np.searchsorted(clock_s, clock_s + span_s)
        rows = np.flatnonzero(ends < len(clock_s))
        by_clock = clock_s[ends[rows]] - clock_s[rows]
        off = np.abs(passed_s[ends[rows]] - passed_s[rows] - by_clock)
        # A rate's rounding is undone with its error, which is 1 / smoothing as large.
        newest_s = np.diff(passed_s).max() * rounding / _SMOOTHING
        if (off > _TICK_S + newest_s + (_AGREES + rounding) * by_clock).any():
            return False
    return True


def _clock_of(run: list[_State]) -> tuple[Array, float]:
    """[state] seconds since the bar began, and their error.

    Rates that are means since the start (``smoothing=0``) give the time with more digits.
    """
    clock_s = np.array([state.clock_s for state in run], float)
    n = np.array([state.n for state in run], float)
    rate = np.array([state.rate for state in run])
    n -= n[0] if rate[0] == 0 else 0.0
    known = rate > 0
    by_rate_s = np.where(known, n / np.where(known, rate, 1.0), clock_s)
    error_s = by_rate_s * np.array([state.rounding for state in run])
    is_mean = np.abs(by_rate_s - clock_s - _TICK_S / 2) <= _TICK_S / 2 + error_s
    if is_mean[known].mean() > 0.99 and error_s.max() < _TICK_S / 2:
        return by_rate_s, float(error_s.max())
    return clock_s, _TICK_S


def _spacing_of_clock(runs: list[list[_State]]) -> int:
    """Steps in a sample: its error by the clock's, or by a shorter step, is 5%."""
    seconds = sum(run[-1].clock_s - run[0].clock_s for run in runs)
    steps = sum(run[-1].n - run[0].n for run in runs)
    step_s = seconds / max(steps, 1)
    error_s = min(max(_clock_of(run)[1] for run in runs), step_s)
    return max(1, int(np.ceil(FINE_TICKS * error_s / step_s))) if step_s > 0 else max(1, steps)


def _of_clock(run: list[_State], spacing: int) -> tuple[Array, Array]:
    """Counts and seconds of states at which the clock moves, ``spacing`` steps apart or more."""
    clock_s, _ = _clock_of(run)
    moves = (np.flatnonzero(np.diff(clock_s) > 0) + 1).tolist()
    rows = moves[:1]
    for row in moves[1:]:
        if run[row].n - run[rows[-1]].n >= spacing:
            rows.append(row)
    return np.array([run[row].n for row in rows], float), clock_s[rows]
