"""The requester (asker) of a pause: docs/pause.md has the protocol, ``rules`` its decisions."""

from __future__ import annotations

import contextlib
import fcntl
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from paceline.errors import PauseError
from paceline.pause.records import (
    CONTROL,
    FOLDER,
    SLOTS,
    Control,
    Slot,
    load_control,
    read_slot,
    write_in_place,
)
from paceline.pause.rules import ENDED, Phase, judge, stop_number, undisturbed

#: Intervals of the asker's reads, and of its heartbeats, which have their own thread.
_LOOK_S: Final = 0.05
_BEAT_S: Final = 0.2
#: Threads that read slots, each a round trip to a network file system.
_READERS: Final = 16
#: Time for measuring the rate of collectives, which determines the margin.
_RATE_S: Final = 0.3
_ATTEMPTS: Final = 3
#: Least collectives from the farthest rank to the stop, as hosts queue ahead.
MARGIN: Final = 8


@dataclass(frozen=True)
class Times:
    """Time limits of a pause.

    Attributes:
        hold_s: time while all ranks are paused.
        arrive_s: longest wait of the first paused rank for the last.
        answer_s: time until all processes have answered; the plugin checks twice a second.
        wait_s: time until the first rank stops, as an evaluation or a checkpoint may be running.
        silent_s: time without a heartbeat of the asker after which the job continues.
    """

    hold_s: float = 20.0
    arrive_s: float = 10.0
    answer_s: float = 5.0
    wait_s: float = 60.0
    silent_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("hold_s", "arrive_s", "answer_s", "wait_s", "silent_s"):
            if not 0 < getattr(self, name) < 1e5:
                raise PauseError(f"{name} must be some seconds, not {getattr(self, name):g}")
        if self.silent_s > 30:
            raise PauseError(f"silent_s must be at most 30, not {self.silent_s:g}")


@dataclass(frozen=True)
class RankOutcome:
    """Outcome for one rank.

    Attributes:
        rank: rank in the communicator; host, pid: its process.
        state: its last reported state.
        reason: reason why it continued, or did not stop.
        stopped_s: length of its pause, seconds.
    """

    rank: int
    host: str
    pid: int
    state: str
    reason: str
    stopped_s: float


@dataclass(frozen=True)
class Pause:
    """Outcome of a pause.

    Attributes:
        held: whether all ranks were paused at once for the requested time.
        undisturbed: whether no rank continued before its release.
        number: collective of the communicator after which they stopped; 0: no stop was requested.
        communicator: its identity.
        held_s: seconds from the last rank's arrival to the end.
        why: reason if it was not held or was disturbed, else "".
        ranks: outcome of each rank.
    """

    held: bool
    undisturbed: bool
    number: int
    communicator: int
    held_s: float
    why: str
    ranks: tuple[RankOutcome, ...]


#: Called while all ranks are paused, with their slots and a function that checks whether they still
#: are.
Work = Callable[[Sequence[Slot], Callable[[], bool]], object]


#: Called before any rank stops; its exception ends the pause.
Accept = Callable[[Sequence[Slot]], None]


def pause(
    folder: Path,
    times: Times,
    work: Work | None = None,
    *,
    accept: Accept = lambda slots: None,
    margin: int = MARGIN,
) -> Pause:
    """Stop the job of a folder, run ``work``, and continue the job.

    Without ``work``, all ranks pause for ``hold_s``. With it, they continue when it returns, or
    after ``hold_s``. ``work`` runs in its own thread. If a rank had passed the number, the request
    is repeated with a larger margin. ``margin`` is in collectives, and larger for a fast job.

    Raises:
        PauseError: no job runs there, another pause runs, or the job cannot or must not stop.
    """
    check_folder(folder)
    place = folder / FOLDER
    with _alone(place / CONTROL):
        for attempt in range(_ATTEMPTS):
            asker = _Asker(place, times, margin * 4**attempt)
            result = asker.run(work, accept)
            if result.held or not any(one.state == "missed" for one in result.ranks):
                break
    return result


def check_folder(folder: Path) -> None:
    """Refuse a folder without a job that can be paused.

    Raises:
        PauseError: no plugin has written there.
    """
    if not (folder / FOLDER / CONTROL).exists():
        raise PauseError(
            f"{folder} has no {FOLDER}/{CONTROL}: no job with Paceline's NCCL plugin writes there; "
            "give the folder that PACELINE_RECORD names"
        )
    if not (folder / FOLDER / CONTROL).is_file():
        raise PauseError(
            f"{folder}/{FOLDER}/{CONTROL} is no file; remove it and start the job again"
        )


@contextmanager
def _alone(control: Path) -> Iterator[None]:
    """Allow one asker at a time, by a lock that ends with its process, and by heartbeats."""
    try:
        file: IO[bytes] = control.open("r+b")
    except OSError as error:
        raise PauseError(f"{control} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PauseError(f"another pause of {control.parent.parent} is under way") from None
        except OSError:
            pass  # a file system without locks: rely on the heartbeat
        before = load_control(control)
        if before and before.phase in ("ask", "stop", "held"):
            time.sleep(1.0)
            now = load_control(control)
            if now != before:
                raise PauseError(f"another pause of {control.parent.parent} is under way")
        yield


class _Asker:
    def __init__(self, place: Path, times: Times, margin: int) -> None:
        self.place, self.times, self.margin = place, times, margin
        self.control = Control(
            pause=secrets.randbits(63) | 1,
            phase="ask",
            beat=0,
            hold_ms=round(times.hold_s * 1e3),
            arrive_ms=round(times.arrive_s * 1e3),
            silent_ms=round(times.silent_s * 1e3),
        )
        self.slots: dict[Path, Slot] = {}
        self.moved_at: dict[Path, float] = {}
        self.why, self.held_s, self.held = "", 0.0, False
        self._writing, self._over = threading.Lock(), threading.Event()
        self._failure: PauseError | None = None

    def run(self, work: Work | None, accept: Accept) -> Pause:
        """Run all phases in order."""
        beating = threading.Thread(target=self._beat_on, daemon=True)
        with ThreadPoolExecutor(_READERS) as self._readers:
            try:
                self.beat()
                beating.start()
                self._ask(accept)
                if self._wait():
                    self._hold(work)
                return self._finish()
            except BaseException:
                with contextlib.suppress(PauseError):
                    self.say("cancel")
                raise
            finally:
                self._over.set()

    # One read.

    def say(self, phase: Phase, *, communicator: int | None = None, number: int = 0) -> None:
        """Write a phase and keep earlier decisions."""
        with self._writing:
            self.control = replace(self.control, phase=phase)
            if communicator is not None:
                self.control = replace(self.control, communicator=communicator, number=number)
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat; give up if another asker has written.

        Raises:
            PauseError: another asker owns the file, or it cannot be written.
        """
        path = self.place / CONTROL
        with self._writing:
            try:
                found = load_control(path)
                if self.control.beat and found and found.pause != self.control.pause:
                    raise PauseError(
                        "another pause was asked at the same time; this one is given up"
                    )
                self.control = replace(self.control, beat=self.control.beat + 1)
                write_in_place(path, self.control.to_bytes())
            except OSError as error:
                raise PauseError(f"{path} cannot be written: {error.strerror}") from None

    def _beat_on(self) -> None:
        while not self._over.wait(_BEAT_S):
            try:
                self.beat()
            except PauseError as error:
                self._failure = error
                return

    def look(self) -> list[Slot]:
        """Read all slots that answer this pause.

        Raises:
            PauseError: the heartbeat failed.
        """
        if self._failure:
            raise self._failure
        asked = self.control.phase == "ask"
        paths = sorted(self.place.glob(SLOTS)) if asked else list(self.slots)
        for path, slot in zip(paths, self._readers.map(_try_read, paths), strict=True):
            if slot is None or slot.pause != self.control.pause:
                continue
            if path not in self.slots or self.slots[path].beat != slot.beat:
                self.moved_at[path] = time.monotonic()
            self.slots[path] = slot
        return list(self.slots.values())

    # The phases.

    def _ask(self, accept: Accept) -> None:
        """Send the request, and choose the place of the stop.

        Raises:
            PauseError: some ranks do not answer, or they cannot stop together.
        """
        began = time.monotonic()
        while True:
            slots = self.look()
            chosen = common_communicator(slots)
            if chosen is not None:
                break
            refused = any(slot.place.state == "refused" for slot in slots)
            if refused or time.monotonic() - began > self.times.answer_s:
                raise PauseError(_why_not(self.place, slots))
            time.sleep(_LOOK_S)
        accept(slots)
        answered_s = time.monotonic() - began
        first = _counts(slots, chosen)
        time.sleep(_RATE_S)
        counts = _counts(self.look(), chosen)
        if counts.keys() != first.keys():
            raise PauseError("the job destroyed its largest communicator just now; ask again")
        rate = max(counts[rank] - first[rank] for rank in first) / _RATE_S
        margin = max(self.margin, math.ceil(rate * (2 * answered_s + _RATE_S)))
        number = stop_number(list(counts.values()), margin)
        self.say("stop", communicator=chosen, number=number)

    def _wait(self) -> bool:
        """Wait until all ranks are paused; False if they cannot be."""
        began = time.monotonic()
        while True:
            places = [slot.place for slot in self.look()]
            phase = judge("stop", places)
            if phase == "held":
                return True
            if phase == "cancel":
                self.why = _why_cancelled(list(self.slots.values()), self.times)
                return False
            if (silent := self._silent()) is not None:
                self.why = f"{_name(silent)} no longer answers"
                return False
            if time.monotonic() - began > self.times.wait_s + self.times.arrive_s:
                self.why = (
                    f"the job reached no collective {self.control.number:,} of its largest "
                    f"communicator within {self.times.wait_s:g} s (evaluation, checkpoint?)"
                )
                return False
            time.sleep(_LOOK_S)

    def _hold(self, work: Work | None) -> None:
        """Hold the pause."""
        self.say("held")
        self.held, began = True, time.monotonic()
        standing = True
        with ThreadPoolExecutor(1) as pool:
            slots = list(self.slots.values())
            task: Future[object] | None = (
                pool.submit(work, slots, lambda: standing) if work else None
            )
            try:
                while time.monotonic() - began < self.times.hold_s and not (task and task.done()):
                    if judge("held", [slot.place for slot in self.look()]) == "cancel":
                        self.why = "a rank went on by itself"
                        break
                    if (silent := self._silent()) is not None:
                        self.why = f"{_name(silent)} no longer answers"
                        break
                    time.sleep(_LOOK_S)
            finally:
                standing = False
                self.held_s = time.monotonic() - began
                self.say("cancel" if self.why else "go")
            if task:
                task.result()

    def _finish(self) -> Pause:
        """Release all ranks, and read their outcomes."""
        if not self.held:
            self.say("cancel")
        until = time.monotonic() + self.times.answer_s
        while time.monotonic() < until:
            waiting = [slot for slot in self.look() if slot.place.state not in ENDED]
            if all(self._is_silent(slot.path) for slot in waiting):
                break
            time.sleep(_LOOK_S)
        slots = self.slots.values()
        clean = self.held and undisturbed([slot.place for slot in slots])
        if self.held and not clean and not self.why:
            self.why = "not every rank says that it stood to the end"
        chosen = self.control.communicator
        ranks = [
            RankOutcome(
                rank=slot.communicators[chosen].rank if chosen in slot.communicators else slot.rank,
                host=slot.host,
                pid=slot.pid,
                state=slot.place.state,
                reason=slot.place.reason,
                stopped_s=slot.stopped_s,
            )
            for slot in slots
        ]
        return Pause(
            held=self.held,
            undisturbed=clean,
            number=max((slot.place.number for slot in slots), default=0),
            communicator=chosen,
            held_s=self.held_s,
            why=self.why,
            ranks=tuple(sorted(ranks, key=lambda one: one.rank)),
        )

    def _silent(self) -> Slot | None:
        """A process with an unchanged file, which died, or whose file system hangs."""
        silent = (slot for path, slot in self.slots.items() if self._is_silent(path))
        return next(silent, None)

    def _is_silent(self, path: Path) -> bool:
        return time.monotonic() - self.moved_at[path] > self.times.silent_s + 1.0


def _try_read(path: Path) -> Slot | None:
    try:
        return read_slot(path)
    except OSError:
        return None


def common_communicator(slots: Sequence[Slot]) -> int | None:
    """The communicator of all processes; of several, the one with the most calls.

    None without one, if a process cannot stop, or if some have not answered. The first to answer
    may form a smaller group.
    """
    if not slots or any(slot.place.state != "published" for slot in slots):
        return None
    if len(slots) < _largest(slots):
        return None
    every = set(range(len(slots)))
    candidates = [
        name
        for name in sorted(slots[0].communicators)
        if all(name in slot.communicators for slot in slots)
        and {slot.communicators[name].rank for slot in slots} == every
        and all(slot.communicators[name].ranks == len(slots) for slot in slots)
    ]
    calls = {name: min(slot.communicators[name].count for slot in slots) for name in candidates}
    return max(calls, key=lambda name: calls[name], default=None)


def _largest(slots: Sequence[Slot]) -> int:
    """Number of the job's ranks, by the largest communicator or WORLD_SIZE of any process.

    0 if unknown.
    """
    told = [one.ranks for slot in slots for one in slot.communicators.values()]
    return max((*told, *(slot.world for slot in slots)), default=0)


def _counts(slots: Sequence[Slot], name: int) -> dict[int, int]:
    members = [slot.communicators[name] for slot in slots if name in slot.communicators]
    return {member.rank: member.count for member in members}


def _why_cancelled(slots: Sequence[Slot], times: Times) -> str:
    for slot in slots:
        if slot.place.state == "left" and slot.place.reason == "deadline":
            return (
                f"{_name(slot)} stood {times.arrive_s:g} s and not all came; let the first wait as "
                "long as a step takes (--arrive)"
            )
        if slot.place.state in ENDED:
            return f"{_name(slot)} did not stop: {slot.place.reason}"
    return "ranks stood after different collectives: they do not queue them in the same order"


def _name(slot: Slot) -> str:
    return f"process {slot.pid} on {slot.host}"


def _why_not(place: Path, slots: Sequence[Slot]) -> str:
    if not slots:
        return (
            f"no process of a job answers in {place.parent}; is it running, with Paceline's plugin?"
        )
    for slot in slots:
        if slot.place.state == "refused" and slot.place.reason == "longer than allowed":
            return (
                f"{_name(slot)} allows pauses of at most {slot.allowed_s:g} s, arrival included: a "
                f"third of its timeout ({slot.timeout_from}); ask for less (docs/pause.md)"
            )
        if slot.place.state != "published":
            return f"{_name(slot)} cannot stop: {slot.place.reason or slot.place.state}"
    largest = _largest(slots)
    if not largest:
        return f"the {len(slots)} processes that answer have no communicator yet"
    if len(slots) < largest:
        return f"{len(slots)} of {largest} ranks answer; a pause needs all"
    return (
        f"the {len(slots)} processes that answer share no communicator; a pause needs one of all "
        "ranks, such as that of the default process group once it was used"
    )
