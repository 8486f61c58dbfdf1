"""The printed report of ``paceline detect FILE``: a block for each episode, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import numpy as np
    import numpy.typing as npt

    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector
    from paceline.detect.event import Event
    from paceline.detect.job import JobEvent
    from paceline.detect.live import LiveEvents
    from paceline.sources.step_times import StepTimes

#: A worse level is told at once if it is this many times the worst one so far.
_WORSE = 1.1


def print_events(
    events: Sequence[Event | JobEvent], bursts: Container[int], *, verbose: bool
) -> None:
    """A block for each episode; of clock jumps in consecutive steps the first one, and a count.

    Args:
        events: the events in the order of their steps.
        bursts: places of onsets that were bursts.
        verbose: print each event of an episode, not only the first and the last.
    """
    from paceline.detect.bursts import changes_of, ranks_of
    from paceline.detect.episodes import episodes_of
    from paceline.detect.job import JobEvent

    last_change = {rank: places[-1] for rank, places in changes_of(events).items()}
    last_jump, repeats = None, 0

    def tell(place: int) -> None:
        event = events[place]
        print(event.explain())
        if place in bursts and event.refined is not None:
            median = f"the median of its {event.refined.samples:,} samples is healthy"
            print(f"  in the end: a burst, {median} ({event.refined.factor:.2f}x)")
        elif event.refined is not None:
            goes_on = any(last_change[rank] == place for rank in ranks_of(event))
            print(f"  {'so far' if goes_on else 'in the end'}: {event.refined.explain()}")

    def tell_suspects(place: int) -> None:
        event = events[place]
        for line in event.suspect_lines() if isinstance(event, JobEvent) else ():
            print(f"  {line}")

    if verbose:
        for place in _without_repeats(events):
            tell(place)
            tell_suspects(place)
    else:
        shown = set(_without_repeats(events))
        for episode in episodes_of(events):
            first, *_ = episode.places
            if first not in shown:
                continue
            tell(first)
            if episode.changes:
                print(f"  {_changes_text([events[p] for p in (first, *episode.changes)])}")
            tell_suspects(first)
            if episode.is_over and len(episode.places) > 1:
                tell(episode.places[-1])
    for event in events:
        if event.kind == "clock-jump":
            repeats += last_jump is not None and event.step <= last_jump + 1
            last_jump = event.step
    if repeats:
        print(f"{repeats:,} more impossible durations followed such a duration directly")


class StreamReport:
    """Lines of a stream: of a fail-slow its begin, each new worst level, and its end.

    Args:
        every: print every event.

    Attributes:
        blocks: number of blocks so far; a fail-slow is one.
        onsets: number of fail-slows so far.
    """

    def __init__(self, *, every: bool) -> None:
        self._every = every
        self._open: list[Event | JobEvent] = []
        self._slow: set[int] = set()
        self.blocks = self.onsets = 0

    def tell(self, event: Event | JobEvent) -> None:
        """Print the event, or remember it for the line that ends its fail-slow."""
        from paceline.detect.bursts import ranks_of
        from paceline.detect.event import LEVEL_KINDS, SLOW_KINDS

        was_slow = bool(self._slow)
        self.blocks += not was_slow
        if event.kind not in LEVEL_KINDS:
            print(event.explain(), flush=True)
            return
        self.onsets += event.kind == "onset" and not was_slow
        worst = max((other.factor for other in self._open), default=0.0)
        if event.kind in SLOW_KINDS:
            self._slow.update(ranks_of(event))
            self._open.append(event)
            is_news = event.kind == "onset" or event.factor > _WORSE * worst
        else:
            self._slow.difference_update(ranks_of(event))
            is_news = not self._slow
            if not is_news:
                self._open.append(event)
        if is_news or self._every:
            changes = ""
            if len(self._open) > 1 and not self._slow and not self._every:
                changes = f"; {_changes_text(self._open, '')}"
            print(f"{event.explain()}{changes}", flush=True)
        if not self._slow:
            self._open.clear()

    def last_line(self, live: LiveEvents) -> str:
        """The number of fail-slows, and the state at the end of the stream."""
        from paceline.detect.event import counted
        from paceline.units import duration

        slow = live.slow
        state = f"{counted(int(slow.sum()), 'rank')} slow at the end"
        if len(slow) == 1 or slow.all() or not slow.any():
            state = "slow at the end" if slow.any() else "healthy at the end"
        lost = f", {duration(live.lost_s)} lost so far" if slow.any() else ""
        ranks = counted(len(slow), "rank")
        return (
            f"{counted(live.detector.steps, 'step')} of {ranks}: "
            f"{counted(self.onsets, 'fail-slow')}, {state}{lost}"
        )


def _without_repeats(events: Sequence[Event | JobEvent]) -> list[int]:
    """Places of the events, without clock jumps that follow one directly."""
    places, last_jump = [], None
    for place, event in enumerate(events):
        if event.kind == "clock-jump":
            is_repeat = last_jump is not None and event.step <= last_jump + 1
            last_jump = event.step
            if is_repeat:
                continue
        places.append(place)
    return places


def _changes_text(events: Sequence[Event | JobEvent], hint: str = "; --verbose lists them") -> str:
    """The changes of an episode after its onset, in words."""
    from paceline.detect.bursts import ranks_of
    from paceline.detect.event import SLOW_KINDS, counted
    from paceline.detect.job import factor_of
    from paceline.detect.who import name_ranks
    from paceline.units import duration

    slow = sorted((event for event in events if event.kind in SLOW_KINDS), key=factor_of)
    least, most = slow[0], slow[-1]
    is_part = len({ranks_of(event) for event in events}) > 1
    place = f" ({name_ranks(ranks_of(most))})" if is_part else ""
    lost = duration(max(event.lost_s for event in events))
    return (
        f"{counted(len(events) - 1, 'change')} until step {events[-1].since_step:,}: levels from "
        f"{factor_of(least):.2f}x to {factor_of(most):.2f}x{place}, {lost} lost by then{hint}"
    )


def extent(times: StepTimes) -> str:
    """Number of steps, and of samples if a sample stands for several steps; else of lines."""
    import numpy as np

    from paceline.detect.event import counted

    n_samples, noun = len(times.steps), "line" if times.counts_lines else "step"
    if times.steps_per_sample == 1:
        return counted(n_samples, noun)
    of_later = np.minimum(np.diff(times.steps), times.steps_per_sample)  # the last may be shorter
    steps = counted(times.steps_per_sample + int(of_later.sum()), noun)
    return f"{counted(n_samples, 'sample')} ({steps})"


def too_few(times: StepTimes, warm_up: int) -> str:
    """How long a log is that the warm-up takes as a whole, and how much more it needs."""
    missing = warm_up + 1 - len(times.steps)
    spacing, noun = times.steps_per_sample, "lines" if times.counts_lines else "steps"
    samples, more = ("", "") if spacing == 1 else (" samples", f" ({missing * spacing:,} {noun})")
    return (
        f"{extent(times)}; the first {warm_up}{samples} are the warm-up, so {missing:,} "
        f"more{samples}{more} are needed at least"
    )


def at_the_end(
    detector: Detector | Bocd,
    job_wide: list[JobEvent],
    times: StepTimes,
    gpus: int | None,
    warm_up: int,
    *,
    running: bool = False,
) -> str:
    """Ranks that are slow at the end of the file, and the time lost in all fail-slows.

    Args:
        detector: of all ranks; or of one that stands for all, if they are slow together.
        job_wide: events of the job.
        times: the step times of all ranks.
        gpus: number of GPUs; None: one for each of several ranks.
        warm_up: number of samples before any event.
        running: whether the job still runs.
    """
    import numpy as np

    from paceline.detect.detector import Detector
    from paceline.detect.event import counted
    from paceline.detect.limits import SILENT_AFTER, usable
    from paceline.units import duration

    slow, is_usable = detector.slow, usable(times.duration_s)
    is_silent = ~is_usable[-SILENT_AFTER:].any(axis=0)
    is_short = is_usable.sum(axis=0) <= warm_up
    is_warming = np.zeros_like(is_short)
    if isinstance(detector, Detector) and slow.size == is_short.size:
        is_warming = np.isnan(detector.healthy_s) & ~is_short
    text = f"{counted(int(slow.sum()), 'rank')} slow at the end"
    if len(slow) == 1:
        text = "slow at the end" if slow.any() else "healthy at the end"
        if is_silent.all():
            text = f"no sample in the last {SILENT_AFTER} steps"
        elif is_warming.any():
            text = "not judged (its steps become shorter still)"
    if is_silent.any() and len(times.ranks) > 1:
        text += f", {counted(int(is_silent.sum()), 'rank')} silent"
    if is_short.any():
        text += f", {counted(int(is_short.sum()), 'rank')} not judged (up to {warm_up} samples)"
    if is_warming.any() and len(slow) > 1:
        warming = counted(int(is_warming.sum()), "rank")
        text += f", {warming} not judged (steps become shorter still)"
    rises = detector.unsure_rise if isinstance(detector, Detector) else np.zeros(len(slow))
    if slow.size == is_silent.size:
        rises = np.where(is_silent, 0.0, rises)
    text = _unsure_text(rises, text)
    unknown = slow.any() or is_silent.any() or is_short.any() or is_warming.any()
    is_judged = not (unknown or rises.any())
    if isinstance(detector, Detector) and is_judged and not _has_onset(job_wide):
        text = _hidden_text(times, warm_up, detector.threshold) or text
    of_last_s = float(detector.lost_s[slow].max(initial=0.0)) * times.steps_per_sample
    lost_s = of_last_s + _lost_before_s(job_wide)
    if not job_wide or not lost_s:
        return text if gpus is None else f"{text}, 0 GPU-hours lost in all"
    hours = job_wide[-1].gpu_hours(lost_s)
    of_gpus = "" if hours is None else f" ({hours:,.3g} GPU-hours)"
    return f"{text}, {duration(lost_s)}{of_gpus} lost {'so far' if running else 'in all'}"


def _has_onset(events: Sequence[JobEvent]) -> bool:
    return any(event.kind == "onset" for event in events)


def _hidden_text(times: StepTimes, warm_up: int, threshold: float) -> str:
    """Why few samples do not tell the state at the end; "" if they do."""
    from paceline.detect.few_samples import enough, may_hide_rise
    from paceline.detect.limits import warm_up_of
    from paceline.sources.step_logs.files import median_of_ranks

    usual = warm_up_of(times.steps_per_sample)
    if warm_up != usual or not may_hide_rise(median_of_ranks(times.duration_s), usual, threshold):
        return ""
    missing = enough(usual) + 1 - len(times.steps)
    noun = "line" if times.counts_lines else "step"
    more = f"{missing:,} more {noun}s are needed"
    if times.steps_per_sample > 1:
        more = f"{missing:,} more samples ({missing * times.steps_per_sample:,} {noun}s) are needed"
    return (
        f"not judged (in this noise a slowdown within the first {usual} samples, the warm-up, "
        f"may not show; {more})"
    )


def _unsure_text(rises: npt.NDArray[np.float64], text: str) -> str:
    """``text`` on the end, or what a rise leaves open that is no certain fail-slow.

    Args:
        rises: [rank] share by which its steps became longer; 0 without a rise.
        text: the ranks that are slow at the end.
    """
    from statistics import median

    from paceline.detect.event import counted

    risen = [rise for rise in rises.tolist() if rise > 0]
    if not risen:
        return text
    steps = f"the last third of the steps takes {1 + median(risen):.2f}x the first"
    if len(rises) == 1:
        return f"not judged ({steps}, but no change is certain)"
    return f"{text}, {counted(len(risen), 'rank')} not judged ({steps}, but no change is certain)"


def _is_end(event: JobEvent) -> bool:
    """Whether the event ends the fail-slow of its ranks, and thus has their whole loss."""
    from paceline.detect.event import SLOW_KINDS

    return event.kind not in SLOW_KINDS


def _lost_before_s(job_wide: Sequence[JobEvent]) -> float:
    """Seconds that the job lost in the fail-slows that ended; their ranks lose in parallel."""
    from paceline.detect.episodes import episodes_of

    return sum(
        max(event.lost_s for event in map(job_wide.__getitem__, episode.places) if _is_end(event))
        for episode in episodes_of(job_wide)
        if episode.is_over
    )
