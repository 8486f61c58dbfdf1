"""Spans of a job that runs Megatron-LM's own schedule, as ``paceline otlp`` receives them."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from paceline.sources import otlp


def are_sent() -> bool:
    """Whether the installed Megatron-LM has spans; looked up, for to import it takes seconds."""
    folders = find_spec("megatron").submodule_search_locations
    return any(Path(folder, "core", "telemetry").is_dir() for folder in folders)


def of_a_job(folder: Path, *, pp: int, world: int, slow_rank: int = -1) -> Path:
    """Run ``megatron_spans_job.py`` on ``world`` processes; returns the receiver's folder."""
    spans = folder / "spans"
    receiver = subprocess.Popen(
        [sys.executable, "-m", "paceline", "otlp", "--listen", "127.0.0.1:0", "-o", spans],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = receiver.stdout.readline().split()[2].rstrip(",")
        env = {**os.environ, **otlp.environment(url), "NEMO_LENS_RUN_ID": "run-7"}
        env |= {"WORLD_SIZE": str(world), "PP": str(pp), "STORE": str(folder / "store")}
        env |= {"SLOW_RANK": str(slow_rank), "MEGATRON_OTEL_METRICS_ENABLED": "0"}
        job = Path(__file__).with_name("megatron_spans_job.py")
        ranks = [
            subprocess.Popen([sys.executable, job], env={**env, "RANK": str(rank)})
            for rank in range(world)
        ]
        assert [rank.wait(300) for rank in ranks] == [0] * world
    finally:
        receiver.send_signal(signal.SIGTERM)
        receiver.communicate(timeout=60)
    return spans
