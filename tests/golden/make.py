"""Makes the files of tests/golden: one of each format in the version that this Paceline writes.

    PYTHONPATH=src:tests python tests/golden/make.py

A file that is there stays: what a release has written does not change. So after a format got a new
version, run this and commit the new file. For a version that is no longer written, run it with
PYTHONPATH on a checkout of the release that wrote it (the files of version 0: commit 9d5b60d).
Equal runs give equal files, but for the times in a backup.
"""

import gzip
import importlib
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
NOTHING_TO_SAY = 0  # the version of files that told none


def version(module, name):
    return getattr(importlib.import_module(f"paceline.{module}"), name, NOTHING_TO_SAY)


def snapshot(folder):
    """Two ranks of 1 s and 2 s; both 1.5 times slower from step 60 on, seen up to step 69."""
    from paceline.monitor.step_stream import Stream
    from step_batches import of_step

    stream = Stream()
    for step in range(70):
        factor = 1.5 if step >= 60 else 1.0
        list(stream.take(of_step(step, [factor, 2 * factor], source="one/0")))
    if hasattr(stream, "save"):  # before version 1
        stream.save(folder)
    else:
        from paceline.monitor.snapshot import save_stream

        save_stream(stream, folder)
    return folder / "detector.npz"


def trace():
    """dp 2 x pp 2, 2 microbatches, 2 steps without noise; computes of worker (1, 0) take twice."""
    from paceline.synth import SynthSpec, synthesize
    from paceline.synth.spec import SlowWorker

    spec = SynthSpec(
        dp=2, pp=2, microbatches=2, steps=2, noise=0.0, slow_workers=(SlowWorker(1, 0, 2.0),)
    )
    return synthesize(spec)


def trace_file(folder):
    from paceline.sources import parquet

    parquet.write(trace(), folder / "trace.parquet")
    return folder / "trace.parquet"


def result(folder):
    from paceline.cli.main import run

    code = run(["analyze", str(trace_file(folder)), "--out", str(folder / "out")])
    if code:
        raise SystemExit(code)
    return folder / "out" / "result.json"


def recording(folder):
    """The trace as its four ranks record it, rank 1's clock 5 ms ahead; one file per rank."""
    from recordings import record_trace

    socket.gethostname, os.getpid = lambda: "host", lambda: 1
    record_trace(trace(), folder / "recording", ahead_ns=np.array([[0, 5_000_000], [0, 0]]))
    return folder / "recording"


def profile(folder):
    from paceline.model.operators import Operator
    from paceline.model.profile import OperatorProfile, Timing, save_profile

    product = Operator("qkv", "gemm", flops=2.0 * 64**3, bytes=6.0 * 64**2, m=64, n=64, k=64)
    norm = Operator("norm", "memory", flops=0.0, bytes=1e6)
    timings = (
        Timing(operator=product, seconds=1e-6, spread=0.01, repeats=9),
        Timing(operator=norm, seconds=5e-7, spread=0.02, repeats=9),
    )
    made = OperatorProfile(
        device="NVIDIA A100-SXM4-80GB",
        device_kind="cuda",
        memory_bytes=80 * 2.0**30,
        processors=108,
        torch="2.5.1",
        cuda="12.4",
        driver="550.54",
        date="2026-11-22T10:00:00+00:00",
        precision="bf16",
        launch_s=5e-6,
        peak_flops=2.5e14,
        memory_bandwidth=1.6e12,
        shapes={"hidden": (64,)},
        timings=timings,
        left_out=("tp 16: no such split",),
    )
    save_profile(made, folder / "profile.json")
    return folder / "profile.json"


def cluster(folder):
    """The A100 preset, cheaper, its efficiency and calibration with it."""
    from dataclasses import replace

    from paceline.model.cluster_presets import cluster_preset
    from paceline.model.cluster_yaml import save_cluster

    preset = cluster_preset("a100-80g")
    ours = replace(preset, name="ours", price_per_gpu_hour=1.25, price_source="contract")
    save_cluster(ours, folder / "cluster.yaml")
    return folder / "cluster.yaml"


def seqlens(folder):
    """Steps 3 and 4, 2 replicas, 2 microbatches: one sequence each, of 10, 11, ...; then a 5."""
    from paceline.sources.seqlens import write_seqlens
    from paceline.trace.seqlens import SeqLens

    lengths = np.array([10, 11, 12, 13, 14, 15, 16, 17, 5])
    first = np.arange(8).reshape(2, 2, 2)
    end = first + 1
    end[1, 1, 1] += 1  # two sequences in the last
    pointers = np.stack([first, end], axis=-1)
    write_seqlens(SeqLens(np.array([3, 4]), pointers, lengths), folder / "seqlens.parquet")
    return folder / "seqlens.parquet"


def planner(folder):
    from paceline.mitigate.fault import COMPUTE, Fault
    from paceline.mitigate.job_model import Setting
    from paceline.mitigate.planner import State, save_state

    fault = Fault(COMPUTE, (1, 0), 1.5)
    state = State(
        Setting((7, 9), (((0, 0), (1, 0)),), frozenset({"worker (0, 1)"})),
        frozenset({fault}),
        lost_s=12.5,
        since_step=40,
        accrued_s={("s2", fault.name): 4.25},
        applied=("s2",),
    )
    save_state(state, folder / "planner.json")
    return folder / "planner.json"


def steps(folder):
    """Two batches: steps 7 and 8 of ranks 0 and 1, then step 9 of rank 0 alone."""
    from paceline.monitor.step_files import StepFile
    from step_batches import batch

    file = StepFile(folder / "steps")
    file.append(batch(0, [7, 7, 8, 8], [0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], at=1000.5, world=2))
    file.append(batch(1, [9], [0], [5.0], at=1001.5, world=2))
    file.close()
    return folder / "steps" / "00000000.steps"


def series(folder):
    """Steps 0 to 2, of the job's second start the last."""
    from paceline.monitor.step_series import ROW, append_rows

    rows = np.zeros(3, ROW)
    rows["step"], rows["at"], rows["samples"] = [0, 1, 0], [10.0, 11.0, 20.0], 4
    rows["median_s"], rows["max_s"], rows["slowest"] = [1.0, 1.5, 1.25], [2.0, 3.0, 2.5], [3, 2, 1]
    rows["start"], rows["healthy_s"] = [0, 0, 1], [np.nan, 1.0, np.nan]
    append_rows(folder, rows)
    return folder / "series.rows"


def rank_map(folder):
    """Ranks 0, 1 and 5; 3 steps of start 0, 2 of start 1; rank 5 takes 1.5 times as long then."""
    from paceline.monitor.rank_file import NAME, save_rank_map
    from paceline.monitor.rank_map import RankMap
    from paceline.monitor.step_series import ROW

    made = RankMap()
    for start, step in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2)):
        row = np.zeros((), ROW)
        row["step"], row["start"], row["at"], row["median_s"] = step, start, 10.0 + step, 2.0
        seconds = np.array([2.0, 2.0 if start else np.nan, 3.0 if start else 2.0])
        made.add(row, np.array([0, 1, 5], np.int32), seconds)
    save_rank_map(made, folder)
    return folder / NAME


#: Rows that every version of the store can hold.
ROWS = """
INSERT INTO jobs (id, project, name, created_at, gpus, degrees, labels, status, seen_at, last_step,
    step_s, healthy_s, slow_since_step, gpu_hours_lost, n_sessions, trend, slowdown)
VALUES (1, 'default', 'job', 100.0, 64, '{"dp_size": 4}', '{"team": "a"}', 'running', 200.0, 99,
    1.5, 1.0, 80, 2.5, 1, '[1.25]', 1.25);
INSERT INTO sessions (id, job_id, sha256, size_bytes, file_name, meta, created_at, status, attempts,
    slowdown, waste, cause)
VALUES (1, 1, 'ab', 1000, 'trace.parquet', '{}', 150.0, 'done', 1, 1.25, 0.2, 'slow-worker');
INSERT INTO events (id, job_id, at, kind, step, since_step, factor, lost_s, ranks, text)
VALUES (1, 1, 180.0, 'onset', 82, 80, 1.5, 1.5, '[0, 1]', 'step 82: 1.50x slower');
INSERT INTO tokens (id, name, project, scope, sha256, created_at)
VALUES (1, 'ann', 'default', 'push', 'cd', 50.0);
"""


def database(folder, revision):
    """A store as the migrations up to a revision leave it, with :data:`ROWS`, as SQL."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine

    import paceline.monitor.store.database as store

    config = Config()
    scripts = Path(store.__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts))
    path = folder / "store.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    connection = sqlite3.connect(path)
    connection.executescript(ROWS)
    text = "\n".join(connection.iterdump())
    connection.close()
    (folder / "store.sql").write_text(f"{text}\n", encoding="utf-8")
    return folder / "store.sql"


def revisions():
    """Of the store, the oldest first."""
    from alembic.script import ScriptDirectory

    import paceline.monitor.store.database as store

    scripts = ScriptDirectory(str(Path(store.__file__).parent / "migrations"))
    return sorted(script.revision for script in scripts.walk_revisions())


def backup(folder):
    """A monitor with one job, and step times of it."""
    from paceline.monitor.backup import write_backup
    from paceline.monitor.config import Config
    from paceline.monitor.store import jobs
    from paceline.monitor.store.database import open_database

    data = folder / "data"
    (data / "steps" / "001" / "1").mkdir(parents=True)
    shutil.copy(steps(folder), data / "steps" / "001" / "1")
    config = Config(data=data)
    engine = open_database(config.store_url)
    jobs.register(engine, "default", "job", 100.0, gpus=64)
    with (folder / "backup.tar").open("wb") as file:
        write_backup(config, engine, file)
    engine.dispose()
    packed = gzip.compress((folder / "backup.tar").read_bytes(), 9, mtime=0)
    (folder / "backup.tar.gz").write_bytes(packed)
    return folder / "backup.tar.gz"


def snapshot_version():
    """Of the stream and of the detector in it."""
    stream = version("monitor.step_stream", "STATE_VERSION")
    return f"{stream}.{version('detect.detector', 'STATE_VERSION')}" if stream else "0"


def formats():
    """Name of a golden file -> what makes it."""
    made = {
        f"snapshot-{snapshot_version()}.npz": snapshot,
        f"result-{version('results.document', 'SCHEMA')}.json": result,
        f"trace-{version('sources.parquet_metadata', 'FORMAT_VERSION')}.parquet": trace_file,
        f"recording-{version('blockfile', 'VERSION')}": recording,
        f"profile-{version('model.profile', 'VERSION')}.json": profile,
        f"cluster-{version('model.cluster_yaml', 'VERSION')}.yaml": cluster,
        f"seqlens-{version('sources.seqlens', 'VERSION')}.parquet": seqlens,
        f"planner-{version('mitigate.planner', 'VERSION')}.json": planner,
        f"{steps_version()}.steps": steps,
        "series-1.rows": series,  # the version is the name of the file, series.rows
        f"ranks-{version('monitor.rank_map', 'STATE_VERSION')}.npz": rank_map,
        f"backup-{version('monitor.backup', 'FORMAT')}.tar.gz": backup,
    }
    for revision in revisions():
        made[f"store-{revision}.sql"] = lambda folder, n=revision: database(folder, n)
    return made


def steps_version():
    """Blocks begin with their version: PSB1."""
    from paceline.monitor.step_files import _MARK

    return f"steps-{_MARK[3:].decode()}"


def main():
    for name, make in formats().items():
        if (HERE / name).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = make(Path(folder))
            if source.is_dir():
                shutil.copytree(source, HERE / name)
            else:
                shutil.copyfile(source, HERE / name)
        print(f"made {name}")


if __name__ == "__main__":
    sys.path.insert(1, str(HERE.parent))
    main()
