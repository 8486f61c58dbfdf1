"""The NCCL profiler plugin, against a harness that plays NCCL's side; read back as a call log."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paceline.blockfile import COUNTS, block, file_header
from paceline.cli import nccl
from paceline.cli.main import run as main
from paceline.detect.steps_of_calls import step_times
from paceline.detect.who_calls import who_from_calls
from paceline.errors import TraceError
from paceline.sources.call_logs.files import load_call_log
from paceline.sources.call_logs.nccl_profiler import SUFFIX, Process, calls_of, read_processes
from paceline.watch import CallsWatch

ROOT = Path(__file__).parents[1]
CC = shutil.which(os.environ.get("CC", "cc"))
VERSIONS = (4, 5, 6, 7)

#: As in tests/native/harness.c.
RANKS, STEPS, SLOW, THREADS = 8, 60, 5, 4
LONG, ONSET = 140, 90
#: Units of the pool and of a segment, as in native/ring.h: a start of a call takes two.
UNITS, SEGMENT = 448 * 292, 292


@dataclass(frozen=True)
class Harness:
    program: Path
    plugin: Path

    def run(
        self, folder: Path | str, version: int, mode: str, *more: str, **env: str
    ) -> tuple[int, str]:
        """The records that the plugin was asked for, and its stderr."""
        environment = {k: v for k, v in os.environ.items() if k != "RANK"}
        environment |= {"PACELINE_RECORD": str(folder)} | env
        done = subprocess.run(
            [self.program, self.plugin, str(version), mode, *more],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return int(done.stdout.split("attempts ")[1]), done.stderr


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    if CC is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("native")
    plugin, program = folder / nccl.PLUGIN, folder / "harness"
    sources = sorted(nccl.NATIVE.glob("*.c"))
    strict = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([CC, *nccl.FLAGS.split(), *strict, "-o", plugin, *sources], check=True)
    own = ROOT / "tests" / "native" / "harness.c"
    flags = ["-std=c11", f"-I{nccl.NATIVE}", "-pthread", *strict]
    subprocess.run([CC, *flags, "-o", program, own, "-ldl"], check=True)
    return Harness(program, plugin)


@pytest.fixture(scope="module", params=VERSIONS)
def job(harness: Harness, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("job")
    harness.run(folder, request.param, "job")
    return folder


def processes(folder: Path) -> list[Process]:
    return read_processes(sorted(folder.glob(f"*{SUFFIX}")))


def test_only_the_plugins_symbols_are_exported_and_it_is_small(harness: Harness) -> None:
    assert harness.plugin.stat().st_size < 200_000
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    lines = subprocess.check_output([nm, "-D", "--defined-only", harness.plugin], text=True)
    names = {line.split()[-1] for line in lines.splitlines()}
    assert names == {f"ncclProfiler_v{version}" for version in VERSIONS}


def test_a_job_of_eight_processes_names_the_slow_rank(job: Path) -> None:
    (job / "rank-00000-0.blocks").write_bytes(b"a recording of the hooks lies beside")
    log, notes = load_call_log([job])
    assert notes == ()
    assert len(log) == RANKS * STEPS * 4
    assert set(log.ops) == {"AllGather", "ReduceScatter", "AllReduce"}
    assert log.communicators == ("0xabc",)
    assert set(log.size.tolist()) == {4096, 8192, 16384, 32768}
    steps = step_times(log)
    assert np.median(steps.duration_s) == pytest.approx(44e-3, rel=0.01)
    suspects = who_from_calls(log, steps)
    assert suspects
    assert set(suspects[0].ranks) == {SLOW}


def test_the_durations_are_those_of_the_device(job: Path) -> None:
    log, _ = load_call_log([job])
    assert log.duration_s is not None
    first = log.duration_s[log.size == 4096].reshape(RANKS, STEPS)
    late_s = np.delete(first, SLOW, axis=0).mean() - first[SLOW].mean()
    assert late_s == pytest.approx(8e-3, abs=1e-4)


def test_watch_names_the_onset_and_who_once(harness: Harness, tmp_path: Path) -> None:
    harness.run(tmp_path, 6, "onset")
    watch = CallsWatch(tmp_path)
    news = watch.look()
    assert [one.kind for one in news] == ["watching", "change", "named", "plan"]
    _, onset, named, plan = news
    assert f"{RANKS} ranks" in news[0].text
    assert onset.fields["kind"] == "onset"
    assert abs(onset.fields["since_step"] - ONSET) <= 1
    assert onset.fields["factor"] == pytest.approx(44 / 36, rel=0.02)
    assert [who["ranks"] for who in named.fields["who"]] == [[SLOW]]
    assert plan.fields["strategy"] == "s1"
    with next(tmp_path.glob(f"*{SUFFIX}")).open("ab") as file:
        file.write(b"\0")  # more to read, nothing new in it
    assert watch.look() == []


def test_watch_tells_that_calls_have_ceased(job: Path, tmp_path: Path) -> None:
    for path in job.glob(f"*{SUFFIX}"):
        shutil.copy(path, tmp_path)
    now = [0.0]
    watch = CallsWatch(tmp_path, stacks=False, clock=lambda: now[0])
    for _ in range(4):
        now[0] += 1
        watch.look()
        with next(tmp_path.glob(f"*{SUFFIX}")).open("ab") as file:
            file.write(b"\0")
    watch.look()
    now[0] += 60
    (hang,) = watch.look()
    assert (hang.kind, hang.fields["kind"]) == ("change", "hang")
    assert hang.fields["step"] >= STEPS - 2
    assert watch.look() == []


def test_an_onset_is_examined_once_at_the_next_look(harness: Harness, tmp_path: Path) -> None:
    harness.run(tmp_path, 6, "onset")
    verdict = {"slow_ranks": [{"rank": SLOW, "factor": 2.0}]}
    event = {"kind": "paused", "text": "paused", "undisturbed": True, "verdict": verdict}
    asked = []
    watch = CallsWatch(tmp_path, examine=lambda: asked.append(1) or event)
    kinds = [one.kind for one in watch.look()]
    # On a busy machine the level may change once more after the plan.
    assert [kind for kind in kinds if kind != "change"][-2:] == ["plan", "pause-asked"]
    assert kinds[-1] == "pause-asked"
    assert asked == []
    paused, validated = watch.look()
    assert (paused.kind, validated.kind) == ("paused", "validated")
    assert validated.fields["confirmed"] == [SLOW]
    assert watch.look() == []
    assert asked == [1]


def test_a_healthy_start_is_watched_and_names_nobody(job: Path) -> None:
    assert [one.kind for one in CallsWatch(job).look()] == ["watching"]


def test_watch_reads_a_folder_of_the_plugin(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in job.glob(f"*{SUFFIX}"):
        shutil.copy(path, tmp_path)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert f"{RANKS} ranks" in capsys.readouterr().out


@pytest.mark.parametrize("version", VERSIONS)
def test_below_the_capacity_nothing_is_lost(harness: Harness, tmp_path: Path, version: int) -> None:
    calls = UNITS // THREADS // 3 - SEGMENT
    attempts, _ = harness.run(tmp_path, version, "threads", str(calls))
    (process,) = processes(tmp_path)
    assert process.dropped == 0
    assert attempts == process.recorded == len(process.records) == 2 * THREADS * calls
    assert len(np.unique(process.records["handle"])) == THREADS * calls


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_job_makes_in_a_second_has_room_however_late_the_writer_is(
    harness: Harness, tmp_path: Path, version: int
) -> None:
    """100,000 records, most of them of one thread: all fit, whatever else the machine does."""
    attempts, _ = harness.run(tmp_path, version, "rate", "100000", "1000000")
    (process,) = processes(tmp_path)
    assert process.dropped == 0
    assert attempts == process.recorded == len(process.records) > 99_000
    starts = process.records[process.records["what"] == 0]
    of_type = Counter(starts["type"].tolist())
    calls = of_type[1]
    assert of_type == {0: calls, 1: calls, 3: 8 * calls, 6: 8 * calls}
    texted = starts["type"] == 1
    assert set(starts["func"][texted].tolist()) == {b"AllReduce"}
    assert set(starts["proto"][texted].tolist()) == {b"SIMPLE"}
    assert set(starts["func"][~texted].tolist()) == {b""}
    assert starts["a"][texted].tolist() == list(range(calls))


def test_a_process_that_is_killed_has_told_what_it_lost(harness: Harness, tmp_path: Path) -> None:
    job = subprocess.Popen(
        [harness.program, harness.plugin, "6", "threads", "1000000000"],
        env={**os.environ, "PACELINE_RECORD": str(tmp_path), "PACELINE_NCCL_FILE_MB": "4"},
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = processes(tmp_path) if list(tmp_path.glob(f"*{SUFFIX}")) else []
            if found and found[0].dropped:
                break
            time.sleep(0.05)
    finally:
        job.kill()
        job.wait()
    assert found[0].dropped > 0


def test_a_file_that_is_rotated_away_while_it_is_read_is_left_out(
    job: Path, tmp_path: Path
) -> None:
    paths = sorted(job.glob(f"*{SUFFIX}"))
    gone = tmp_path / "nccl-gone-1-00000.nccl"
    assert len(read_processes([gone, *paths])) == len(read_processes(paths))
    with pytest.raises(TraceError, match="is gone"):
        read_processes([gone])


def test_what_a_full_buffer_drops_is_counted(harness: Harness, tmp_path: Path) -> None:
    attempts, _ = harness.run(tmp_path, 6, "threads", "300000", PACELINE_NCCL_FILE_MB="1")
    (process,) = processes(tmp_path)
    assert process.dropped > 0
    assert process.recorded + process.dropped == attempts
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) <= 16
    _, notes = load_call_log([tmp_path])
    assert any("dropped" in note for note in notes)


def test_a_thousand_communicators_end_in_any_order(harness: Harness, tmp_path: Path) -> None:
    attempts, _ = harness.run(tmp_path, 5, "communicators", "1000")
    (process,) = processes(tmp_path)
    assert len(process.communicators) == 1000
    assert process.recorded + process.dropped == attempts


@pytest.mark.parametrize("version", [4, 6, 7])
def test_a_group_of_a_thousand_sends_and_recvs_is_whole(
    harness: Harness, tmp_path: Path, version: int
) -> None:
    attempts, _ = harness.run(tmp_path, version, "group", "1000", PACELINE_NCCL_FILE_MB="8")
    (process,) = processes(tmp_path)
    assert process.recorded + process.dropped == attempts
    calls = calls_of(process)
    assert len(calls) + process.dropped >= 6000
    assert {call.op for call in calls} == {"Send", "Recv"}
    assert {call.peer for call in calls} == set(range(1000))


@pytest.mark.parametrize("version", [4, 7])
def test_whatever_is_called_is_answered_and_what_is_written_can_be_read(
    harness: Harness, tmp_path: Path, version: int
) -> None:
    harness.run(tmp_path, version, "fuzz", "20000")
    (process,) = processes(tmp_path)
    assert process.recorded == len(process.records) > 0
    assert set(process.records["type"].tolist()) <= set(range(16))


def test_damaged_files_are_read_or_refused_in_a_line(job: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    data = next(job.glob(f"*-00000{SUFFIX}")).read_bytes()
    path = tmp_path / f"a{SUFFIX}"
    read, refused = 0, []
    for _ in range(60):
        broken = bytearray(data[: rng.integers(1, len(data))])
        for at in rng.integers(0, len(broken), 4).tolist():
            broken[at] = int(rng.integers(0, 256))
        path.write_bytes(broken)
        try:
            load_call_log([tmp_path])
            read += 1
        except TraceError as error:
            refused.append(str(error))
    assert read > 0
    assert not any("\n" in text for text in refused)


def test_a_plugin_that_is_loaded_twice_writes_files_of_its_own(
    harness: Harness, tmp_path: Path
) -> None:
    shutil.copy(harness.plugin, f"{harness.plugin}.copy")
    harness.run(tmp_path, 7, "twice")
    found = processes(tmp_path)
    assert sorted(len(process.records) for process in found) == [2, 4]
    assert len(list((tmp_path / "pause").glob("*.slot"))) == 3
    _, notes = load_call_log([tmp_path])
    assert any("several processes here had rank 0" in note for note in notes)


def test_a_forked_child_writes_nothing_and_an_exit_without_finalize_loses_nothing(
    harness: Harness, tmp_path: Path
) -> None:
    attempts, _ = harness.run(tmp_path, 6, "fork")
    (process,) = processes(tmp_path)
    assert len(process.records) == attempts == 4
    assert b"Broadcast" not in process.records["func"]


@pytest.mark.parametrize("version", [4, 7])
def test_programs_that_a_job_starts_have_none_of_its_files_and_one_that_replaces_it_has_its_own(
    harness: Harness, tmp_path: Path, version: int
) -> None:
    attempts, stderr = harness.run(tmp_path, version, "exec", "2")
    assert stderr == ""
    assert attempts == 4, "of the last program"
    found = sorted(processes(tmp_path), key=lambda process: str(process.meta["begun_ns"]))
    assert len(found) == 3
    assert len({process.meta["pid"] for process in found}) == 1
    assert len(found[-1].records) == found[-1].recorded == 4
    # What a program that is replaced did not write in its last 10 ms is lost.
    assert all(len(process.records) <= 4 for process in found[:-1])
    log, notes = load_call_log([tmp_path])
    assert len(log) == 2
    said = any("the one that began last counts" in note for note in notes)
    assert said == any(len(process.records) for process in found[:-1]), notes


@pytest.mark.parametrize("target", ["a file, no folder", "/proc/nowhere", "s3://bucket/job-17"])
def test_where_nothing_can_be_written_it_stays_off(
    harness: Harness, tmp_path: Path, target: str
) -> None:
    if not target.startswith(("/", "s3:")):
        target = str(tmp_path / target)
        Path(target).write_text("")
    _, stderr = harness.run(target, 6, "off")
    assert stderr.count("\n") == 1
    assert "training goes on without it" in stderr


def test_a_full_disk_turns_it_off_with_one_line(harness: Harness, tmp_path: Path) -> None:
    # A file may have 64 kB: what a full disk says comes as EFBIG.
    limit = f'ulimit -f 64; trap "" XFSZ; exec "{harness.program}" "{harness.plugin}" 6 cost 100'
    done = subprocess.run(
        ["bash", "-c", limit],
        env={**os.environ, "PACELINE_RECORD": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr


def test_a_disk_that_hangs_holds_up_no_communicator_and_no_end_for_ever(
    harness: Harness, tmp_path: Path
) -> None:
    hanging = harness.plugin.with_name("hanging.so")
    source = ROOT / "tests" / "native" / "slow_files.c"
    assert CC is not None
    subprocess.run([CC, "-std=c11", "-shared", "-fPIC", "-o", hanging, source, "-ldl"], check=True)
    # The header is two writes; the communicators' block hangs.
    hang = {"LD_PRELOAD": str(hanging), "HANG_AFTER": "2"}
    attempts, stderr = harness.run(tmp_path, 7, "communicators", "300", **hang)
    assert attempts == 300
    assert stderr.count("\n") == 1
    assert "the folder does not answer" in stderr


def test_a_process_that_began_again_counts_once(job: Path, tmp_path: Path) -> None:
    for path in job.glob(f"*{SUFFIX}"):
        shutil.copy(path, tmp_path)
    again = next(tmp_path.glob("*-00000.nccl"))
    data = again.read_bytes()
    at = data.index(b'"begun_ns": ') + len(b'"begun_ns": ')
    end = data.index(b"}", at) + 1
    text = data[20:end].replace(data[at : at + 4], b"9999")
    header = file_header(json.loads(text))
    (tmp_path / "copy.nccl").write_bytes(header + data[end:])
    log, notes = load_call_log([tmp_path])
    assert len(log) == RANKS * STEPS * 4
    assert [note for note in notes if "the one that began last counts" in note]


def test_a_cut_file_is_read_to_its_last_block_and_told(job: Path, tmp_path: Path) -> None:
    for path in job.glob(f"*{SUFFIX}"):
        shutil.copy(path, tmp_path)
    cut = next(tmp_path.glob("*-00000.nccl"))
    cut.write_bytes(cut.read_bytes()[:-700])
    log, notes = load_call_log([tmp_path])
    assert 0 < len(log) < RANKS * STEPS * 4 + 1
    assert any("damaged or cut" in note for note in notes)


def test_files_without_a_communicator_are_refused(tmp_path: Path) -> None:
    meta = {"what": "nccl-profiler", "pid": 1, "begun_ns": 1, "host": "a", "rank": -1}
    (tmp_path / "a.nccl").write_bytes(file_header(meta) + block(COUNTS, bytes(16)))
    with pytest.raises(TraceError, match="did NCCL run"):
        load_call_log([tmp_path])


def test_a_process_of_several_ranks_is_refused(tmp_path: Path) -> None:
    meta = {"what": "nccl-profiler", "pid": 1, "begun_ns": 1, "host": "a", "rank": -1}
    entries = b"".join(
        struct.pack("<QIiii32s", 7, rank + 1, rank, 2, 1, b"").ljust(56, b"\0") for rank in (0, 1)
    )
    (tmp_path / "a.nccl").write_bytes(file_header(meta) + block(17, entries))
    with pytest.raises(TraceError, match="one process per GPU"):
        load_call_log([tmp_path])


def test_path_prints_the_plugin_or_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl, "NATIVE", tmp_path)
    assert main(["nccl", "path"]) == 2
    assert "build it: cc" in capsys.readouterr().err
    (tmp_path / nccl.PLUGIN).touch()
    assert main(["nccl", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / nccl.PLUGIN}\n"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.26.2.post1", "cannot take this plugin; use the shim"),
        ("2.27.3", f"opens no plugin by its path; set NCCL_PROFILER_PLUGIN={nccl.PLUGIN} LD_LIB"),
        ("2.27.5", ""),
        ("2.32.3", ""),
    ],
)
def test_path_says_what_the_nccl_beside_it_needs(
    version: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """tests/real/test_nccl_library.py starts 2.27.3 with the setting that is named here."""
    (tmp_path / nccl.PLUGIN).touch()
    site = tmp_path / "site" / f"nvidia_nccl_cu12-{version}.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(f"Name: nvidia-nccl-cu12\nVersion: {version}\n")
    monkeypatch.setattr(nccl, "NATIVE", tmp_path)
    monkeypatch.syspath_prepend(site.parent)
    assert main(["nccl", "path"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / nccl.PLUGIN}\n"
    assert (words in err) if words else (err == "")
