"""Jobs of the harness that are paused while ranks or the asker die and files are slow."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cli import nccl
from paceline.pause.records import FOLDER, SLOTS, Slot, read_slot

NATIVE = Path(__file__).parent / "native"
RANKS = 8

#: In seconds. The job itself lasts until it is told to end.
TIMES = {"hold_s": 0.3, "arrive_s": 1.5, "answer_s": 5.0, "wait_s": 5.0, "silent_s": 1.0}

#: What a busy machine may add before a rank that stands for ever is one.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Built:
    """The plugin, the harness and the slow file system, built."""

    plugin: Path
    harness: Path
    slow: Path


def build(folder: Path, cc: str) -> Built:
    """Compile all three."""
    built = Built(folder / nccl.PLUGIN, folder / "harness", folder / "slow.so")
    strict = ["-Wall", "-Wextra", "-Werror"]
    sources = sorted(nccl.NATIVE.glob("*.c"))
    flags = ["-std=c11", f"-I{nccl.NATIVE}", "-pthread", *strict]
    shared = ["-std=c11", "-shared", "-fPIC", *strict]
    for command in (
        [cc, *nccl.FLAGS.split(), *strict, "-o", built.plugin, *sources],
        [cc, *flags, "-o", built.harness, NATIVE / "harness.c", "-ldl"],
        [cc, *shared, "-o", built.slow, NATIVE / "slow_files.c", "-ldl"],
    ):
        subprocess.run(command, check=True)
    return built


class Job:
    """Eight processes that may be paused."""

    def __init__(self, built: Built, folder: Path, **env: str) -> None:
        self.folder = folder
        environment = {key: value for key, value in os.environ.items() if key != "RANK"}
        environment |= {"PACELINE_RECORD": str(folder), "PACELINE_NCCL_POLL_MS": "20", **env}
        self.process = subprocess.Popen(
            [built.harness, built.plugin, "6", "pause", "600000"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(pid) for pid in self.process.stdout.readline().split()[1:]]

    def end(self) -> str:
        """What the survivors print. A rank that stands for ever raises TimeoutExpired."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=PATIENCE_S)[0]
        finally:
            for pid in (*self.pids, self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def slots(self) -> list[Slot]:
        paths = sorted((self.folder / FOLDER).glob(SLOTS))
        return [slot for path in paths if (slot := read_slot(path)) is not None]


def ask(folder: Path, times: Mapping[str, float] = TIMES, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, Path(__file__).parent / "pause_asker.py", folder, json.dumps(dict(times))],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Outcome:
    seed: int
    killed: str
    slow_ms: int
    result: Mapping[str, Any]
    slots: Sequence[Slot]

    @property
    def name(self) -> str:
        if self.killed == "asker":
            return "asker killed"
        if "error" in self.result:
            return "refused"
        if not self.result["held"]:
            return "not held"
        return "undisturbed" if self.result["undisturbed"] else "disturbed"


def interleaving(built: Built, seed: int) -> Outcome:
    """One job and one pause, with what may befall it.

    Raises:
        AssertionError: two ranks stopped at different collectives, or an outcome that cannot be.
        subprocess.TimeoutExpired: a rank stands for ever.
    """
    rng = random.Random(seed)
    killed = rng.choice(["", "", "rank", "asker"])
    slow_ms = rng.choice([0, 0, 30, 150])
    preload = {"LD_PRELOAD": str(built.slow), "SLOW_MS": str(slow_ms)} if slow_ms else {}
    with tempfile.TemporaryDirectory() as name:
        job = Job(built, Path(name), **preload)
        time.sleep(rng.uniform(0.05, 0.3))
        asker = ask(job.folder, **preload)
        if killed:
            time.sleep(rng.uniform(0.0, 1.5))
            victim = rng.choice(job.pids) if killed == "rank" else asker.pid
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        text = asker.communicate(timeout=PATIENCE_S)[0]
        job.end()
        outcome = Outcome(seed, killed, slow_ms, json.loads(text or "{}"), job.slots())
    check(outcome)
    return outcome


def check(outcome: Outcome) -> None:
    """No split, and nothing said that was not so."""
    answers: dict[int, set[int]] = {}
    for slot in outcome.slots:
        if slot.place.number:
            answers.setdefault(slot.pause, set()).add(slot.place.number)
    for numbers in answers.values():
        assert len(numbers) == 1, f"seed {outcome.seed}: a split at {sorted(numbers)}"
    if outcome.result.get("undisturbed"):
        reasons = {slot.place.reason for slot in outcome.slots}
        assert len(outcome.slots) == RANKS, f"seed {outcome.seed}"
        assert reasons == {"go"}, f"seed {outcome.seed}: {reasons}"
