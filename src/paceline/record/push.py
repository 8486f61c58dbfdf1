"""Pushing while recording: a process beside rank 0's that sends what the folder grows by.

The training process only starts it; it ends by itself when that process does, after the last
steps. It reads the files of all ranks, so their folder has to be a shared one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("paceline.record")

MONITOR, JOB = "PACELINE_MONITOR", "PACELINE_JOB"

#: What the pushing process says, in the recording's folder.
LOG = "push.log"

#: Kept, as they outlive this process.
_children: list[subprocess.Popen[bytes]] = []


def start(folder: Path, rank: int, env: Mapping[str, str] = os.environ) -> bool:
    """Push from now on, on rank 0, where the environment names a monitor; never raises.

    Args:
        folder: of the recording.
        rank: of this process.
        env: PACELINE_MONITOR: the service's URL; PACELINE_TOKEN; PACELINE_JOB: the job's name.
    """
    if rank != 0 or not env.get(MONITOR):
        return False
    command = [sys.executable, "-m", "paceline", "push", str(folder), "--follow"]
    command += ["--parent", str(os.getpid())]
    if env.get(JOB):
        command += ["--name", env[JOB]]
    try:
        with (folder / LOG).open("ab") as file:
            _children.append(
                subprocess.Popen(  # URL and token reach it by the environment, unseen by ps
                    command,
                    env={**env, "CUDA_VISIBLE_DEVICES": ""},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
    except (OSError, ValueError) as error:
        log.error("step times are not pushed: %s", error)
        return False
    return True
