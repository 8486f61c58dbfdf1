"""Push while recording: a process beside rank 0 sends the folder's new data.

The training process only starts it. It ends by itself after that process and the last steps. It
reads the files of all ranks, so their folder must be shared.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("paceline.record")

MONITOR, JOB, SESSION_STEPS = "PACELINE_MONITOR", "PACELINE_JOB", "PACELINE_SESSION_STEPS"

#: Log file of the pushing process, in the recording's folder.
LOG = "push.log"

#: Import folder of this package, which the job's PYTHONPATH may lack.
_SOURCE = str(Path(__file__).parents[2])

#: Folder -> the process that pushes it.
_children: dict[Path, subprocess.Popen[bytes]] = {}


def start(folder: Path, rank: int, env: Mapping[str, str] = os.environ) -> bool:
    """Push from now on, on rank 0, if the environment names a monitor; never raises.

    Args:
        folder: folder of the recording.
        rank: rank of this process.
        env: PACELINE_MONITOR: the service's URL; PACELINE_TOKEN; PACELINE_JOB: the job's name;
            PACELINE_SESSION_STEPS: profiled steps of a session.
    """
    if rank != 0 or not env.get(MONITOR):
        return False
    try:
        folder = folder.absolute()
        child = _children.get(folder)
        if child is None or child.poll() is not None:
            with (folder / LOG).open("ab") as file:
                _children[folder] = subprocess.Popen(
                    _command(folder, env),
                    env=_environment(env),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
    except (OSError, ValueError) as error:
        log.error("not pushed to the monitor: %s", error)
        return False
    return True


def _command(folder: Path, env: Mapping[str, str]) -> list[str]:
    """The command, without URL and token, for every user of the machine can read it."""
    command = [sys.executable, "-m", "paceline", "push", str(folder), "--follow"]
    command += ["--parent", str(os.getpid())]
    for name, option in ((JOB, "--name"), (SESSION_STEPS, "--session-steps")):
        if env.get(name):
            command += [option, env[name]]
    return command


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (_SOURCE, env.get("PYTHONPATH"))))
    return {**env, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
