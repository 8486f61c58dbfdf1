"""What may befall the files of a pause while a job runs; the job is that of ``pause_stress``."""

from __future__ import annotations

import os
import random
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paceline.errors import PauseError
from paceline.pause.asker import Times, pause
from paceline.pause.records import CONTROL, FOLDER, SLOTS, Control, read_start
from pause_stress import Built, Job

#: Of a pause that is tried between two mishaps.
_TIMES = Times(hold_s=0.1, arrive_s=1.0, answer_s=0.6, wait_s=1.0, silent_s=1.0)

Mishap = Callable[[Path, random.Random], object]


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _write(data: Callable[[random.Random], bytes]) -> Mishap:
    def mishap(path: Path, rng: random.Random) -> None:
        with suppress(OSError):
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
            os.ftruncate(number, 0) if rng.random() < 0.5 else None
            os.pwrite(number, data(rng), 0)
            os.close(number)

    return mishap


def _instead(make: Callable[[Path], object]) -> Mishap:
    def mishap(path: Path, rng: random.Random) -> None:
        _remove(path)
        make(path)

    return mishap


def _cut(path: Path, rng: random.Random) -> None:
    with suppress(OSError):
        os.truncate(path, rng.choice([0, 1, 100, 191, 193, 2047, 1 << 32]))


def _flip(path: Path, rng: random.Random) -> None:
    with suppress(OSError):
        data = bytearray(read_start(path, 4095))
        for _ in range(rng.choice([1, 3, 20])):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        if path.is_file() and not path.is_symlink():
            path.write_bytes(bytes(data))


def _times(path: Path, rng: random.Random) -> None:
    with suppress(OSError):
        os.utime(path, (rng.choice([0, 4e9]),) * 2)


def _order(rng: random.Random) -> bytes:
    """A whole record of an asker gone mad, or of another job."""
    phase = rng.choice(["ask", "stop", "held", "go", "cancel", "none", "-1"])
    large = [0, 1, 50, 10_000, 2**31, 2**32 - 1, -1]
    return Control(
        pause=rng.choice([1, 77, rng.randrange(1, 2**63)]),
        phase=phase,  # type: ignore[arg-type]
        beat=rng.choice(large),
        hold_ms=rng.choice(large),
        arrive_ms=rng.choice(large),
        silent_ms=rng.choice(large),
        communicator=rng.choice([0, 0xABC, 0xDEF, 0xABC, 2**64 - 1]),
        number=rng.choice([0, 1, rng.randrange(5000), 2**64 - 1]),
    ).to_bytes()


def _conversation(path: Path, rng: random.Random) -> None:
    """An asker that asks, and says anything then."""
    one = Control(rng.randrange(1, 2**63), "ask", 1, 200, 800, 1000)
    for phase in ("ask", *rng.choices(["stop", "held", "go", "cancel", "ask"], k=3)):
        number = rng.choice([0, 1, rng.randrange(20_000)])
        one = replace(one, phase=phase, beat=one.beat + 1, communicator=0xABC, number=number)  # type: ignore[arg-type]
        if path.is_file() and not path.is_symlink():
            path.write_bytes(one.to_bytes())
        time.sleep(0.06)


def _slot(rng: random.Random) -> bytes:
    """A slot whose sum is right and whose fields are not."""
    head = '{"what":"paceline-pause","version":1,"beat":1,"host":"h","pid":1,"rank":0,"world":8,'
    times = '"allowed_ms":9000,"timeout_from":"x","stopped_ms":0,'
    odd = ["1e999", "null", "[[]]", '"z"', "-1", '[["0xabc",0,8,1]]', "[" * 1500, "{}"]
    rest = (
        f'"id":{rng.choice([*odd, chr(34) + "ff" + chr(34)])},"state":"published",'
        f'"reason":{rng.choice(odd)},"number":{rng.choice(odd)},"signature":{rng.choice(odd)},'
        f'"communicators":{rng.choice(odd)}}}'
    )
    text = (head + times + rest).encode()[:2039].ljust(2039)
    return text + f"{zlib.crc32(text):08x}\n".encode()


MISHAPS: dict[str, Mishap] = {
    "random bytes": _write(lambda rng: rng.randbytes(rng.choice([1, 192, 2048, 100_000]))),
    "cut or grown": _cut,
    "bytes changed": _flip,
    "an order": _write(_order),
    "a conversation": _conversation,
    "a slot": _write(_slot),
    "removed": lambda path, rng: _remove(path),
    "a directory": _instead(lambda path: path.mkdir()),
    "a pipe": _instead(os.mkfifo),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a link to zeros": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to nowhere": _instead(lambda path: path.symlink_to("/nowhere/at/all")),
    "no permission": lambda path, rng: path.chmod(0) if path.is_file() else None,
    "another time": _times,
    "the folder removed": lambda path, rng: (
        _remove(path.parent) if path.parent.name == FOLDER else 0
    ),
}


def fuzz(built: Built, folder: Path, seed: int, mishaps: int) -> Counter[str]:
    """Befall the files of a running job; what each pause between ended with.

    Raises:
        AssertionError: a rank died or no longer goes on.
        subprocess.TimeoutExpired: a rank stands for ever.
    """
    rng = random.Random(seed)
    job = Job(built, folder)
    place, ended = folder / FOLDER, Counter[str]()
    try:
        while len(list(place.glob(SLOTS))) < len(job.pids):
            time.sleep(0.02)
        slots = sorted(place.glob(SLOTS))
        for n in range(mishaps):
            targets = [place / CONTROL, rng.choice(slots), folder / "control.json"]
            name = rng.choice(list(MISHAPS))
            MISHAPS[name](rng.choice(targets), rng)
            place.mkdir(exist_ok=True)
            if n % 8 == 7:
                for path in (place / CONTROL, *slots):
                    if not path.is_file() or path.is_symlink():
                        _remove(path)
                        path.touch()
                    path.chmod(0o644)
            if n % 4 == 3:
                try:
                    result = pause(folder, _TIMES)
                    ended["undisturbed" if result.undisturbed else "not undisturbed"] += 1
                except PauseError:
                    ended["refused"] += 1
            assert job.process.poll() is None, f"seed {seed}: the job ended after {name}"
    finally:
        text = job.end()
    lines = [line for line in text.splitlines() if line.startswith("rank")]
    assert len(lines) == len(job.pids), f"seed {seed}: {text}"
    assert job.process.returncode == 0, f"seed {seed}"
    # "longest ... ms": the deadline of any order is a third of the smallest timeout.
    ended["longest ms"] = max(int(line.split()[5]) for line in lines)
    return ended
