"""The complete loop on a real job: record, slow down, diagnose, mitigate (whatif, 6).

1. Rank 0 is slowed at three levels; the slowdown estimated from the recording is compared with the
measured one.
2. It is slowed again: the detector finds it in the step times, and a validation names the rank.
With the NCCL plugin, a watch pauses the job for the validation; otherwise it runs between two
steps.
3. The planner moves microbatches to the other replica while the job runs.
4. Relief: the computes of rank 0 become fast again, and the shares return to the old values.

Finally, the job's losses are compared with those of the same training in one process. They are
bitwise equal, and except for rounding also equal those of even shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.demo.alone import losses_alone
from paceline.demo.busy import OtherWork
from paceline.demo.paused import validated_by_pause
from paceline.demo.processes import Line, Shape, Training
from paceline.demo.watched import MonitorResult, Watched
from paceline.detect.detector import Detector
from paceline.detect.event import Event
from paceline.diagnose import diagnose
from paceline.errors import DemoLateError
from paceline.graph import from_trace
from paceline.mitigate.fault import Fault
from paceline.mitigate.job_model import JobModel
from paceline.mitigate.planner import Action, Planner
from paceline.mitigate.strategies import Strategies
from paceline.remedies import Case
from paceline.remedies.replace import replace_worker
from paceline.sources import load
from paceline.trace import OpKind
from paceline.watch import Watch
from paceline.whatif import analyze

#: Rank 0, as (dp, stage).
SLOWED = (0, 0)

Array = npt.NDArray[np.float64]
Say = Callable[[str], None]

#: Factors of rank 0's computes, for about the slowdowns of the paper's 1.16, 1.40 and 2.03.
LEVELS = (1.25, 1.5, 2.2)
#: Runs per level, steps per run, and steps left out after a change.
RUNS, RUN_STEPS, SETTLE = 5, 3, 2
#: Steps of the detector's warm-up, and steps between two episodes.
WARM_UP_STEPS, PAUSE_STEPS = 56, 10
#: The fail-slow to be mitigated, and the assumed cost of moving microbatches.
FACTOR, OVERHEAD_S = 3.0, 0.5
#: Steps that measure the fail-slow and the mitigation, and most steps until an event.
SLOW_STEPS, MEASURED_STEPS, MAX_STEPS = 8, 20, 80
#: Most seconds until the watch names a rank.
MAX_WATCH_S = 60.0


@dataclass(frozen=True)
class Level:
    """One level of slowness.

    Attributes:
        factor: slowdown of rank 0's computes.
        measured: ratio of the step time to the healthy one, median of the runs.
        estimated: the analysis's estimate of this ratio, with rank 0 as fast as its peer, median of
            the runs.
        slowdown: S, relative to the ideal job (where work could be shared), median of the runs.
        workers: slow workers (dp, stage) named by the runs' diagnoses.
    """

    factor: float
    measured: float
    estimated: float
    slowdown: float
    workers: tuple[tuple[int, int], ...]

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return self.estimated / self.measured - 1


@dataclass
class LiveResult:
    """The outcome.

    Attributes:
        healthy_s: median step time before the fail-slow to be mitigated, seconds.
        levels: part 1.
        detected_after: steps from onset to detection.
        named: ranks that the validation calls slow.
        slow_s, mitigated_s: median step times before and after microbatches were moved.
        watched: ranks that a watch names from the operations of slow steps.
        watched_after_s: seconds from the first slow step's begin until then.
        counts: microbatches of the replicas after the move.
        relieved_after: steps from relief to even shares.
        back_s: median step time after that.
        pause: the event of the pause (:mod:`paceline.pause.events`); None without the plugin.
        lost_steps: steps whose loss is missing or not bitwise equal to that of the same training in
            one process with the same shares.
        loss_difference: largest relative difference to the loss with even shares.
        actions: the planner's actions in words.
        monitor: the monitor's view; None without one.
        seconds: total time.
    """

    healthy_s: float = 0.0
    levels: list[Level] = field(default_factory=list)
    detected_after: int = -1
    named: tuple[int, ...] = ()
    slow_s: float = 0.0
    mitigated_s: float = 0.0
    watched: tuple[int, ...] = ()
    watched_after_s: float = float("nan")
    counts: tuple[int, ...] = ()
    relieved_after: int = -1
    pause: Mapping[str, Any] | None = None
    lost_steps: int = -1
    back_s: float = 0.0
    loss_difference: float = float("nan")
    actions: list[str] = field(default_factory=list)
    monitor: MonitorResult | None = None
    seconds: float = 0.0

    @property
    def recovered(self) -> float:
        """Share of the lost step time that the mitigation recovered."""
        return (self.slow_s - self.mitigated_s) / (self.slow_s - self.healthy_s)

    def to_mapping(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        levels = [asdict(level) | {"error": level.error} for level in self.levels]
        return asdict(self) | {"levels": levels, "recovered": self.recovered}


def run_live(
    folder: Path,
    say: Say,
    shape: Shape | None = None,
    watched: Watched | None = None,
    plugin: Path | None = None,
) -> LiveResult:
    """Train, slow down, diagnose and mitigate, in about two minutes.

    Args:
        folder: folder for the recordings.
        say: function called with progress messages.
        shape: shape of the job.
        watched: monitor that the job's recorder pushes to.
        plugin: NCCL plugin, notified of gloo's collectives, which can pause the job.

    Raises:
        DemoError: a process ended.
        DemoLateError: the job hangs, or an expected event was late; the message has the machine's
            other load.
    """
    other = OtherWork()
    try:
        return _run_live(folder, say, shape or Shape(), watched, plugin, other)
    except DemoLateError as error:
        busy = other.explain()
        raise DemoLateError(f"{error}; {busy}" if busy else str(error)) from error


def _run_live(
    folder: Path,
    say: Say,
    shape: Shape,
    watched: Watched | None,
    plugin: Path | None,
    other: OtherWork,
) -> LiveResult:
    begin = time.monotonic()
    result = LiveResult()
    with Training(folder / "job", shape, watched.environment if watched else {}, plugin) as job:
        if watched:
            say(f"The monitor shows this job at {watched.url}")
        story = _Story(job, result, say)
        story.healthy()
        for factor in LEVELS:
            story.level(factor)
        if busy := other.explain():
            say(f"  {busy}")
        earlier = story.recover(watched)
        story.mitigate()
        story.relieve()
        if watched:
            watched.calm()
        job.stop()
        lines = job.losses()
    if watched:
        result.monitor = watched.result(job.folder)
        result.monitor.earlier = earlier
        _say_monitor(result.monitor, say)
    say("The same training once more, in one process and left alone, for its losses ...")
    result.lost_steps, result.loss_difference = _compare_losses(lines, shape)
    say(
        f"  of {len(lines)} steps {result.lost_steps} are lost or differ by a bit; with even "
        f"shares losses differ by {result.loss_difference:.1e} at most: moving microbatches with "
        "weighted gradients changes nothing"
    )
    result.seconds = time.monotonic() - begin
    return result


class _Story:
    """The parts in order."""

    def __init__(self, job: Training, result: LiveResult, say: Say) -> None:
        self.job, self.result, self.say = job, result, say
        ranks = job.shape.dp * job.shape.pp
        self.steps = _Feed(Detector(ranks), _step_times)
        # The ranks' compute times show the slow rank even if microbatches hide it.
        self.computes = _Feed(Detector(ranks, warm_up=30), _compute_times)

    def healthy(self) -> None:
        job = self.job
        shape = job.shape
        self.say(
            f"A GPT on {shape.dp} replicas x {shape.pp} stages, {shape.microbatches} microbatches "
            "each, 1F1B, gloo; computes are paced by sleeps, as there are fewer cores than ranks."
        )
        job.wait_for(WARM_UP_STEPS)
        healthy_s = self._median(SETTLE, WARM_UP_STEPS)
        self.steps.take(job, WARM_UP_STEPS)
        self.computes.take(job, WARM_UP_STEPS)
        self.say(f"  {WARM_UP_STEPS} healthy steps: {healthy_s * 1e3:.0f} ms each")

    def level(self, factor: float) -> None:
        runs = [self._run(factor) for _ in range(RUNS)]
        measured, estimated, slowdown = np.median([run[:3] for run in runs], axis=0).tolist()
        workers = sorted({worker for run in runs for worker in run[3]})
        level = Level(factor, measured, estimated, slowdown, tuple(workers))
        self.result.levels.append(level)
        blamed = "; ".join(f"dp {dp}, stage {pp}" for dp, pp in workers) or "nobody"
        self.say(
            f"  rank 0 computes {factor:.2f}x as long: the step takes {measured:.2f}x as long, the "
            f"analysis says {estimated:.2f}x ({level.error:+.1%}) and blames {blamed}"
        )

    def _run(self, factor: float) -> tuple[float, float, float, list[tuple[int, int]]]:
        """(measured, estimated, S, workers) of some slow steps and the healthy ones after them.

        Neighbours in time are compared, as the machine's other load changes every minute.
        """
        slow, end = self._steps(factor)
        estimated, slowdown, workers = self._analyse(slow, end)
        healthy, last = self._steps(1.0)
        measured = self._median(slow, end) / self._median(healthy, last)
        return measured, estimated, slowdown, workers

    def _steps(self, factor: float) -> tuple[int, int]:
        """The next few steps under a factor: the first, and the one after the last."""
        first = self.job.say(factor=factor)
        self.job.wait_for(first + RUN_STEPS)
        return first, first + RUN_STEPS

    def _analyse(self, first: int, end: int) -> tuple[float, float, list[tuple[int, int]]]:
        """Result of the recording of some steps: estimated slowdown, S, slow workers."""
        measured = from_trace(load(self.job.folder, steps=range(first, end)))
        analysis = analyze(measured)
        diagnosis = diagnose(measured, analysis)
        worker_lists = [f.where["workers"] for f in diagnosis.findings if f.cause == "worker"]
        workers = [(int(dp), int(pp)) for places in worker_lists for dp, pp in places]
        estimated = 1.0
        if SLOWED in workers:
            case = Case(measured, analysis, diagnosis, options={"workers": [SLOWED]})
            estimated = 1 / (1 - replace_worker(case).gain)
        return estimated, analysis.slowdown, workers

    def recover(self, watched: Watched | None) -> int:
        """Return to health, also in the monitor; returns the number of its alerts."""
        first = self.job.say(factor=1.0) + SETTLE
        self.job.wait_for(first + PAUSE_STEPS)
        earlier = watched.calm() if watched else 0
        # Steps just before the fail-slow, as the machine's other load changes.
        first = max(first, self.job.steps_done() - PAUSE_STEPS)
        self.result.healthy_s = self._median(first, first + PAUSE_STEPS)
        self.steps.skip_to(first)
        self.computes.skip_to(first)
        return earlier

    def mitigate(self) -> None:
        job, result = self.job, self.result
        watch = Watch(job.folder, validate=False)
        watch.look()  # all earlier steps
        onset = job.say(factor=FACTOR)
        # If noise has begun an episode, the fail-slow worsens it.
        event = self._watch(self.steps, ("onset", "worsening"), onset)
        result.detected_after = event.step - onset
        self.say(
            f"  fail-slow: seen in step {event.step}, {result.detected_after} steps after its "
            f"onset: {event.explain()}"
        )
        self._name(watch)
        verdict = self._validate()
        result.named = tuple(slow["rank"] for slow in verdict["slow_ranks"])
        if not result.named:
            raise DemoLateError("the validation found no slow rank")
        rank, factor = result.named[0], float(verdict["slow_ranks"][0]["factor"])
        self.say(
            f"  validation: rank {rank} is {factor:.2f}x slower (the slowness is emulated there as "
            "in training: rank 0 does its matrix work that many times)"
        )
        job.wait_for(onset + SETTLE + SLOW_STEPS)
        result.slow_s = self._median(onset + SETTLE, onset + SETTLE + SLOW_STEPS)
        self.fault = Fault("compute", (rank % job.shape.dp, rank // job.shape.dp), factor)
        self._plan(event)
        first = job.steps_done() + SETTLE + 2
        job.wait_for(first + MEASURED_STEPS)
        result.mitigated_s = self._median(first, first + MEASURED_STEPS)
        self.say(
            f"  a step takes {result.mitigated_s * 1e3:.0f} ms instead of "
            f"{result.slow_s * 1e3:.0f} ms: {result.recovered:.0%} of what was lost is back"
        )

    def _validate(self) -> Mapping[str, Any]:
        """The verdict of a validation, during a pause of all ranks or between two steps."""
        if self.job.plugin is None:
            self.say("  no NCCL plugin is built (paceline nccl path): the job is not paused")
            return self.job.validate()
        said, verdict = validated_by_pause(self.job, FACTOR)
        for news in said:
            self.say(f"  watch of the plugin's calls: {news.text}")
        self.result.pause = next(news.fields for news in said if news.kind == "paused")
        return verdict

    def _name(self, watch: Watch) -> None:
        """Ranks that ``paceline watch`` names from a trace of slow steps."""
        deadline = time.monotonic() + MAX_WATCH_S
        while time.monotonic() < deadline:
            for news in watch.look():
                if news.kind == "named":
                    ranks = {rank for who in news.fields["who"] for rank in who["ranks"]}
                    self.result.watched = tuple(sorted(ranks))
                    self.result.watched_after_s = news.after_onset_s or 0.0
                    self.say(f"  watch: {news.after_onset_s:.1f} s after the onset: {news.text}")
                    return
            time.sleep(0.2)
        raise DemoLateError(f"the watch named nobody within {MAX_WATCH_S:.0f} s")

    def _plan(self, event: Event) -> None:
        """Ask the planner step by step until it moves microbatches."""
        trace = load(self.job.folder, steps=range(SETTLE, WARM_UP_STEPS))
        healthy = from_trace(trace, by_rules=True)
        strategies = Strategies(JobModel(healthy), {"s2": OVERHEAD_S})
        self.planner = Planner(strategies, healthy_s=self.result.healthy_s)
        self.planner.onset(self.fault, event.since_step, event.lost_s)
        action = self._ask_planner(event.step)
        self.result.counts = action.option.setting.counts

    def _ask_planner(self, after: int) -> Action:
        for step, times in self.steps.follow(self.job, after, MAX_STEPS):
            action = self.planner.update(step, float(np.nanmax(times)))
            if action is not None:
                self.say(f"  planner: {action.explain()}")
                self.result.actions.append(action.explain())
                self.job.say(counts=action.option.setting.counts)
                return action
        raise DemoLateError(f"the planner did nothing within {MAX_STEPS} steps")

    def relieve(self) -> None:
        job, result = self.job, self.result
        self.computes.take(job, job.steps_done() - 1)
        relief = job.say(factor=1.0)
        event = self._watch(self.computes, ("relief",), relief, result.named[0])
        self.say(f"  relief: {event.explain()}")
        self.planner.relief(self.fault, event.step)
        self._ask_planner(job.steps_done())
        first = job.steps_done() + SETTLE + 2
        result.relieved_after = first - relief
        job.wait_for(first + PAUSE_STEPS)
        result.back_s = self._median(first, first + PAUSE_STEPS)
        self.say(f"  a step takes {result.back_s * 1e3:.0f} ms again")

    def _watch(
        self, feed: _Feed, kinds: tuple[str, ...], after: int, rank: int | None = None
    ) -> Event:
        """The first event of some kinds (and rank) from a step on, from steps as they come."""
        for _ in feed.follow(self.job, None, MAX_STEPS + after - self.job.steps_done()):
            for event in feed.news:
                if event.kind in kinds and event.step >= after and rank in (None, event.rank):
                    return event
        raise DemoLateError(f"no {kinds[0]} was seen within {MAX_STEPS} steps")

    def _median(self, first: int, end: int) -> float:
        """Step time of the slowest rank, median over steps, seconds."""
        times = self.job.times()
        assert times is not None
        mine = (times.steps >= first) & (times.steps < end)
        return float(np.median(np.nanmax(times.duration_s[mine], axis=1)))


Samples = tuple[npt.NDArray[np.int64], Array]


def _step_times(job: Training, first: int, end: int) -> Samples:
    """[step] numbers and [step, rank] seconds of steps."""
    times = job.times()
    assert times is not None
    mine = (times.steps >= first) & (times.steps < end)
    return times.steps[mine], times.duration_s[mine]


def _compute_times(job: Training, first: int, end: int) -> Samples:
    """[step] numbers and [step, rank] mean seconds of a microbatch's computes."""
    trace = load(job.folder, steps=range(first, end))
    mine = trace.kind <= OpKind.BACKWARD_COMPUTE
    step = np.searchsorted(trace.steps, trace.step[mine])
    rank = trace.pp[mine] * job.shape.dp + trace.dp[mine]
    n_ranks = job.shape.dp * job.shape.pp
    cell = step * n_ranks + rank
    size = len(trace.steps) * n_ranks
    seconds = np.bincount(cell, (trace.end - trace.start)[mine], size)
    return trace.steps, (seconds / np.bincount(cell, minlength=size)).reshape(-1, n_ranks)


class _Feed:
    """A detector and its position in the job's steps."""

    def __init__(
        self, detector: Detector, samples: Callable[[Training, int, int], Samples]
    ) -> None:
        self.detector, self.samples = detector, samples
        self.next = 0
        self.news: list[Event] = []

    def skip_to(self, step: int) -> None:
        """Skip earlier steps."""
        self.next = step

    def take(self, job: Training, end: int) -> list[tuple[int, Array]]:
        """Feed the steps before ``end``; returns their samples."""
        if end <= self.next:
            return []
        numbers, table = self.samples(job, self.next, end)
        self.news = []
        for number, row in zip(numbers.tolist(), table, strict=True):
            self.news += self.detector.update(number, row)
        self.next = end
        return list(zip(numbers.tolist(), table, strict=True))

    def follow(self, job: Training, after: int | None, steps: int) -> Any:
        """(step, samples) of new steps after ``after``, as they appear."""
        last = job.steps_done() + steps
        while self.next < last:
            # Some ranks may not have written the newest step.
            job.wait_for(self.next)
            for number, row in self.take(job, job.steps_done() - 1):
                if after is None or number > after:
                    yield number, row


def _say_monitor(result: MonitorResult, say: Say) -> None:
    seen_s = [session.seen_after_s for session in result.sessions]
    analysed = [session.analysed_after_s for session in result.sessions]
    if seen_s:
        say(
            f"  the monitor: {len(seen_s)} sessions, on the page {max(seen_s):.1f} s after their "
            f"last step at most, analysed after {np.median(analysed):.1f} s ({max(analysed):.1f} s "
            "at most)"
        )
    for status, headline in result.alerts[result.earlier :]:
        say(f"  alert at the webhook, {status}: {headline}")


def _compare_losses(lines: Sequence[Line], shape: Shape) -> tuple[int, float]:
    """Steps that are missing or not bitwise equal, and the largest difference to even shares."""
    steps = {line.step: line for line in lines}
    last = max(steps)
    counts = [steps[n].counts if n in steps else lines[0].counts for n in range(last + 1)]
    same, even = losses_alone(counts, shape.pp)
    lost = sum(n not in steps or steps[n].loss != same[n] for n in range(last + 1))
    lost += len(lines) - len(steps)  # repeated steps
    return lost, max(abs(line.loss / even[line.step] - 1) for line in lines)
