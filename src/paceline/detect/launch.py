"""Processes of one host for a validation: started, watched, and never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from paceline.detect.join import validate_joined
from paceline.detect.passes import Pass, ring_passes
from paceline.detect.validate import Effort, Injected
from paceline.detect.verdict import Measurements, Place
from paceline.errors import DetectError

#: Exit code of a worker that reports why it gave up, often because of a lost peer. A worker with
#: another code or a signal is then the cause.
_EXIT_GAVE_UP = 3

#: Interval of the checks on workers.
_POLL_S = 0.02

#: Time for a failing process to end, whose peers may give up first.
_GRACE_S = 0.5

#: Most processes: each takes about 200 MB for PyTorch alone.
MAX_PROCESSES = 128

_PR_SET_PDEATHSIG = 1


def validate_local(
    world_size: int,
    ranks: Sequence[int] | None = None,
    passes: Sequence[Pass] | None = None,
    *,
    effort: Effort | None = None,
    backend: str = "auto",
    injected: Injected | None = None,
) -> Measurements:
    """Start ``world_size`` processes that meet on the loopback interface, and measure.

    Each has one thread. All have ended when this returns or raises. Should this process be killed,
    the kernel (elsewhere than on Linux: a thread that looks five times a second) ends them.

    Args:
        world_size: number of processes.
        ranks: ranks whose matrix products to measure; None: all.
        passes: links to measure; None: a ring of ``ranks``.
        effort: amount of measurement; its timeout includes the start of the processes.
        backend: "gloo", "nccl" or "auto".
        injected: artificial slowness.

    Raises:
        DetectError: a process ended early (with its rank and reason), the time is up, or as in
            ``run_validation``.
    """
    effort = effort or Effort()
    if not 1 <= world_size <= MAX_PROCESSES:
        raise DetectError(
            f"1 to {MAX_PROCESSES} processes can be started on one machine, not {world_size:,}; "
            "use torchrun on several"
        )
    ranks = range(world_size) if ranks is None else ranks
    passes = ring_passes(ranks) if passes is None else passes
    task = {
        "ranks": [*ranks],
        "passes": passes,
        "effort": asdict(effort),
        "backend": backend,
        "injected": asdict(injected or Injected()),
        "parent": os.getpid(),
    }
    workers: list[_Worker] = []
    with contextlib.ExitStack() as stack:
        result = stack.enter_context(tempfile.TemporaryFile())
        stack.callback(lambda: _end(workers))
        # Bound here and passed to rank 0, so that no other process can take the port.
        with socket.create_server(("127.0.0.1", 0), backlog=world_size) as server:
            for rank in range(world_size):
                errors = stack.enter_context(tempfile.TemporaryFile())
                workers.append(_Worker(rank, world_size, task, server, result, errors))
        _watch(workers, effort.timeout_s)
        result.seek(0)
        return _from_mapping(json.load(result))


class _Worker:
    """A process and its output."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        task: dict[str, Any],
        server: socket.socket,
        result: IO[bytes],
        errors: IO[bytes],
    ) -> None:
        self.rank, self.errors = rank, errors
        mine = {**task, "result_fd": result.fileno(), "listen_fd": server.fileno()}
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from paceline.detect.launch import worker_main; worker_main(sys.argv[1])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(mine)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # gloo logs a lot there
            stderr=errors,
            pass_fds=(result.fileno(), server.fileno()) if rank == 0 else (),
            env=_environment(rank, world_size, server.getsockname()[1]),
        )

    def reason(self) -> str:
        """Reason of a failure, or "" if it is running or succeeded."""
        code = self.process.poll()
        if not code:
            return ""
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return f"failed: {text.rpartition(chr(10))[2][:300] or f'exit code {code}'}"


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    loopback = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), "lo")
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def _watch(workers: Sequence[_Worker], timeout_s: float) -> None:
    """Return once all have succeeded.

    Raises:
        DetectError: one failed, or the time is up.
    """
    deadline = time.monotonic() + timeout_s
    while any(worker.process.poll() is None for worker in workers):
        _blame(workers)
        if time.monotonic() > deadline:
            waiting = [str(worker.rank) for worker in workers if worker.process.poll() is None]
            raise DetectError(
                f"the validation took more than {timeout_s:g} s; not done: rank "
                f"{', '.join(waiting[:8])}; give it more time, or fewer ranks"
            )
        time.sleep(_POLL_S)
    _blame(workers)


def _blame(workers: Sequence[_Worker]) -> None:
    """Raise an error that names a failed process, if any."""
    if not any(worker.process.poll() for worker in workers):
        return
    if all(worker.process.poll() in (None, 0, _EXIT_GAVE_UP) for worker in workers):
        time.sleep(_GRACE_S)
    failed = [worker for worker in workers if worker.process.poll()]
    first = min(failed, key=lambda w: (w.process.returncode == _EXIT_GAVE_UP, w.rank))
    raise DetectError(f"rank {first.rank} {first.reason()}; the other processes were ended")


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()


def _from_mapping(values: dict[str, Any]) -> Measurements:
    return Measurements(
        gemm_s=dict(values["gemm_s"]),
        link_s={(source, to): rounds for (source, to), rounds in values["link_s"]},
        places={rank: Place(**place) for rank, place in values["places"]},
        **values["what"],
    )


# In the worker.


def worker_main(task_json: str) -> None:
    """Entry point of a worker: measure; rank 0 writes the result."""
    task = json.loads(task_json)
    die_with(task["parent"])
    rank = int(os.environ["RANK"])
    injected = {**task["injected"], "link": tuple(task["injected"]["link"] or ()) or None}
    try:
        measured = validate_joined(
            task["ranks"],
            [tuple((source, to) for source, to in links) for links in task["passes"]],
            effort=Effort(**task["effort"]),
            backend=task["backend"],
            injected=Injected(**injected),
            store=_store(rank, task["listen_fd"]),
        )
    except DetectError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(_EXIT_GAVE_UP)  # without destructors that wait for lost peers
    if rank == 0:
        with os.fdopen(task["result_fd"], "w") as file:
            json.dump(_to_mapping(measured), file)


def _store(rank: int, listen_fd: int) -> Any:
    distributed: Any = importlib.import_module("torch.distributed")
    return distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listen_fd if rank == 0 else None,
    )


def _to_mapping(measured: Measurements) -> dict[str, Any]:
    return {
        "gemm_s": [*measured.gemm_s.items()],
        "link_s": [*measured.link_s.items()],
        "places": [(rank, asdict(place)) for rank, place in measured.places.items()],
        "what": {
            "gemm": measured.gemm,
            "message_bytes": measured.message_bytes,
            "backend": measured.backend,
        },
    }


def die_with(parent: int) -> None:
    """End this process with its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before
        os._exit(1)


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
