"""From an onset to a plan: the folder of a recorded job is watched while it grows."""

import json

import numpy as np
import pytest

from paceline import record, synthesize
from paceline.blockfile import CONTROL, STEP_HEAD, SUFFIX, TIME, TIMES, block, file_header
from paceline.cli.main import run
from paceline.detect.validation_files import REQUEST, write_validation
from paceline.errors import PauseError, TraceError
from paceline.monitor import recording_tail
from paceline.monitor.recording_tail import RecordingTail
from paceline.sources import load
from paceline.sources.recording.status import record_now
from paceline.synth import SlowWorker
from paceline.watch import Watch
from paceline.watch.examiner import Examiner
from paceline.watch.rows import Rows
from recordings import BASE_NS, record_trace
from test_monitor_client import Fake
from test_sources_recording import spec

#: Steps before the slowness, and what a step is numbered from.
HEALTHY = 70


class Job:
    """A job of 2 x 2 ranks whose worker (1, 0) becomes slow at step 70; nobody runs it.

    From step ``worse`` on the worker (0, 1) is 5x slow, too. It is ``usual`` times slow before.
    """

    def __init__(self, folder, worse=1_000_000, usual=1.0, factor=2.0):
        self.folder, self.next, self.worse = folder, 0, worse
        first, second = SlowWorker(1, 0, factor), SlowWorker(0, 1, 5.0)
        always = () if usual == 1 else (SlowWorker(0, 1, usual),)
        healthy = synthesize(spec(steps=1, slow_workers=always))
        slow = synthesize(spec(steps=1, slow_workers=(first, *always)))
        both = synthesize(spec(steps=1, slow_workers=(first, second)))
        self.traces = {"healthy": healthy, "slow": slow, "both": both}
        for name, trace in self.traces.items():
            record_trace(trace, folder.parent / name)
        record_trace(healthy.select_steps([0]), folder)
        self.files = sorted(folder.glob("rank-*"))
        for file in self.files:
            file.write_bytes(self._head(file))

    def _head(self, file):
        """All before the first step."""
        data = file.read_bytes()
        return data[: data.index(self._steps(self.folder.parent / "healthy" / file.name)[0])]

    @staticmethod
    def _steps(file):
        """The blocks of a file's steps: operations, times."""
        from paceline import blockfile

        data, at, blocks = file.read_bytes(), 0, []
        at = len(blockfile.file_header(blockfile.read_header(file)))
        while at < len(data):
            end = blockfile.block_end(data, at)
            blocks.append((data[at + 4], data[at:end]))
            at = end
        return [raw for kind, raw in blocks if kind in blockfile.PROFILED]

    def run(self, until, profiled=True):
        """Append steps."""
        for file in self.files:
            out = b""
            for number in range(self.next, until):
                name = (
                    "both" if number >= self.worse else "slow" if number >= HEALTHY else "healthy"
                )
                trace = self.traces[name]
                noise = 1 + 0.002 * np.sin(7 * number)
                length_ns = int(trace.traced_step_s()[0] * noise * 1e9)
                zero = BASE_NS + number * 10**10
                if profiled:
                    out += self._renumbered(self.folder.parent / name / file.name, number, zero)
                out += block(TIMES, TIME.pack(number, zero, length_ns))
            with file.open("ab") as stream:
                stream.write(out)
        self.next = until

    def _renumbered(self, file, number, zero):
        from paceline import blockfile

        (raw,) = self._steps(file)
        payload = raw[blockfile._BLOCK.size : blockfile.block_end(raw, 0)]
        _, _, length, n_ops = STEP_HEAD.unpack_from(payload)
        head = STEP_HEAD.pack(number, zero, length, n_ops)
        return block(blockfile.STEP, head + payload[STEP_HEAD.size :])


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "job")


def kinds(news):
    return [entry.kind for entry in news]


def test_an_onset_is_followed_to_a_plan(job):
    clock = iter(range(1_000_000, 2_000_000))
    watch = Watch(job.folder, clock=lambda: next(clock))
    job.run(60)
    assert kinds(watch.look()) == ["watching"]
    job.run(90, profiled=False)
    news = watch.look()
    assert kinds(news) == ["change", "profile-asked"]
    assert news[0].fields["kind"] == "onset"
    wish = json.loads((job.folder / CONTROL).read_text())
    assert wish["until"] == news[1].fields["until"] > 90
    job.run(93)
    assert watch.look() == []
    job.run(95)
    news = watch.look()
    assert kinds(news) == ["named", "not-validated", "plan"]
    assert news[1].text.endswith("to confirm, run paceline validate --world-size 4 --run")
    (suspect,) = news[0].fields["who"]
    assert suspect["kind"] == "compute"
    assert suspect["ranks"] == [2]
    (fault,) = news[2].fields["fail_slows"]
    assert fault["factor"] == pytest.approx(2, rel=0.05)
    assert news[2].fields["planner"]
    assert "move" in news[2].text
    assert all(entry.after_onset_s > 0 for entry in news)
    assert watch.look() == []


def test_a_fail_slow_that_worsens_is_named_anew(tmp_path):
    """The falcon paper's compound case: another rank becomes slow in an episode."""
    job = Job(tmp_path / "job", worse=100)
    watch = Watch(job.folder)
    job.run(90)
    news = watch.look()
    (named,) = [one for one in news if one.kind == "named"]
    assert [who["ranks"] for who in named.fields["who"]] == [[2]]
    job.run(125)
    news = watch.look()
    assert [one.fields["kind"] for one in news if one.kind == "change"] == ["worsening"]
    (named,) = [one for one in news if one.kind == "named"]
    assert named.fields["steps"][0] >= 100
    assert 1 in {rank for who in named.fields["who"] for rank in who["ranks"]}
    assert [one.kind for one in news if one.kind == "plan"] == ["plan"]


def named_of(news):
    (named,) = [one for one in news if one.kind == "named"]
    return [who["ranks"] for who in named.fields["who"]], named


@pytest.mark.parametrize("until", [60, 71])
def test_a_worker_that_was_as_slow_before_is_no_suspect(tmp_path, until):
    """Rank 1 is 3x slow from the first step, rank 2 is 4x slow from step 70."""
    job = Job(tmp_path / "job", usual=3.0, factor=4.0)
    watch = Watch(job.folder)
    for end in (until, 90):
        job.run(end)
        news = watch.look()
    ranks, named = named_of(news)
    assert ranks == [[2]]
    assert [who["ranks"] for who in named.fields["slow_before"]] == [[1]]
    assert "slow before the change, too: rank 1" in named.line()


def test_without_profiled_steps_before_all_slow_workers_are_suspects(tmp_path):
    job = Job(tmp_path / "job", usual=3.0, factor=4.0)
    watch = Watch(job.folder)
    job.run(HEALTHY, profiled=False)
    watch.look()
    job.run(90)
    ranks, named = named_of(watch.look())
    assert sorted(ranks) == [[1], [2]]
    assert "slow_before" not in named.fields


def test_steps_of_a_former_fail_slow_are_not_the_healthy_ones(tmp_path):
    """Rank 2 is slow, healthy again, then slow again: it is a suspect both times."""
    job = Job(tmp_path / "job")
    watch = Watch(job.folder)
    job.run(100)
    assert named_of(watch.look())[0] == [[2]]
    job.traces["slow"], slow = job.traces["healthy"], job.traces["slow"]
    for file in (job.folder.parent / "slow").glob("rank-*"):
        file.rename(file.with_suffix(".kept"))
        file.write_bytes((job.folder.parent / "healthy" / file.name).read_bytes())
    job.run(170)
    assert "relief" in [one.fields.get("kind") for one in watch.look()]
    job.traces["slow"] = slow
    for file in (job.folder.parent / "slow").glob("rank-*.kept"):
        file.replace(file.with_suffix(SUFFIX))
    job.run(200)
    assert named_of(watch.look())[0] == [[2]]


def test_few_steps_are_kept_where_they_are_large(job, monkeypatch):
    tail = RecordingTail(job.folder)
    job.run(40)
    tail.look()
    size = sum(len(file.steps[0]) for file in tail._present)
    tail.forget(35, keep=8)
    assert tail.ready() == list(range(28, 40))
    monkeypatch.setattr(recording_tail, "_KEPT_BYTES", 3.5 * size)
    tail.forget(35, keep=8)
    assert tail.ready() == list(range(33, 40))
    tail.forget(35)
    assert tail.ready() == list(range(36, 40))


def test_the_jobs_validator_is_asked_and_confirms(job):
    write_validation(job.folder, number=0, step=0, every=100, verdict={"slow_ranks": []})
    watch = Watch(job.folder)
    job.run(90)
    news = watch.look()
    assert kinds(news) == ["watching", "change", "named", "validation-asked", "plan"]
    assert json.loads((job.folder / REQUEST).read_text()) == {"number": 1, "ranks": [2]}
    assert watch.look() == []
    verdict = {"slow_ranks": [{"rank": 2, "factor": 2.0}]}
    write_validation(job.folder, number=1, step=92, every=100, verdict=verdict)
    (last,) = watch.look()
    assert (last.kind, last.fields["confirmed"]) == ("validated", [2])
    assert watch.look() == []


def test_a_job_without_a_validator_is_paused_and_its_ranks_compared(job):
    verdict = {"slow_ranks": [{"rank": 2, "factor": 2.0}]}
    event = {"kind": "paused", "text": "paused", "undisturbed": True, "verdict": verdict}
    watch = Watch(job.folder, examine=lambda: event)
    job.run(90)
    news = watch.look()
    assert kinds(news) == ["watching", "change", "named", "pause-asked", "plan"]
    paused, validated = watch.look()
    assert (paused.kind, validated.fields["confirmed"]) == ("paused", [2])
    assert watch.look() == []


def event_of(**fields):
    return {"kind": "paused", "text": "paused", "undisturbed": True, **fields}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (event_of(verdict={"slow_ranks": [{"rank": 7}]}), ("validated", "not a suspect")),
        (event_of(verdict={"slow_ranks": []}), ("validated", "no slow rank")),
        (event_of(error="no memory"), ("not-validated", "no memory")),
        (
            event_of(verdict={}, undisturbed=False, why="a rank went on"),
            ("not-validated", "does not count: a rank went on"),
        ),
        ({"kind": "not-paused", "text": "not paused: why"}, ("not-paused", "why")),
    ],
)
def test_what_a_pause_says_of_the_suspects(event, expected):
    kind, text, _ = Examiner(lambda: event, lambda: 0.0).examine({2})[-1]
    assert kind == expected[0]
    assert expected[1] in text


def test_a_job_is_not_paused_again_within_ten_minutes_nor_does_a_failure_end_the_watch():
    now = [0.0]

    def refuse():
        raise PauseError("no process of a job answers")

    examiner = Examiner(refuse, lambda: now[0])
    assert not examiner.is_resting
    assert examiner.examine({1}) == [("not-paused", "no process of a job answers", {})]
    now[0] = 599.0
    assert examiner.is_resting
    assert "less than 10 minutes ago" in examiner.examine({1})[0][1]
    now[0] = 601.0
    assert not examiner.is_resting


@pytest.fixture
def monitor():
    fake = Fake()
    yield fake
    fake.close()


def test_the_command_pauses_and_tells_the_monitor(job, monitor, monkeypatch, capsys):
    verdict = {"slow_ranks": [{"rank": 2, "factor": 2.0}]}
    monkeypatch.setattr(
        "paceline.pause.validation.pause_and_validate",
        lambda folder, times, measure: event_of(verdict=verdict, held_s=times.hold_s),
    )
    monkeypatch.setattr("paceline.cli.validate.has_torch", lambda: True)
    (job.folder / "pause").mkdir()
    (job.folder / "pause" / "control").touch()
    job.run(90)
    monitor.answers = [(200, {"id": 1}, {}), (403, {"detail": "no"}, {})]
    command = ["watch", str(job.folder), "--once", "--json", "--pause", "--pause-for", "3s"]
    assert run([*command, "--monitor", monitor.url, "--name", "job-17"]) == 0
    said = capsys.readouterr()
    kinds_said = [json.loads(line)["kind"] for line in said.out.splitlines()]
    assert kinds_said[-2:] == ["paused", "validated"]
    paused, validated = [json.loads(body) for _, path, _, body in monitor.asked]
    assert monitor.asked[0][1] == "/api/v1/jobs/job-17/events"
    assert (paused["kind"], paused["ranks"]) == ("paused", [])
    assert (validated["kind"], validated["ranks"]) == ("validated", [2])
    assert "the monitor was not told" in said.err


def test_a_pause_needs_the_plugin(job, capsys):
    assert run(["watch", str(job.folder), "--once", "--pause"]) == 2
    assert "no job with Paceline's NCCL plugin" in capsys.readouterr().err


def test_a_job_that_does_not_answer_is_said(job):
    now = [0.0]
    watch = Watch(job.folder, clock=lambda: now[0])
    job.run(90, profiled=False)
    assert kinds(watch.look()) == ["watching", "change", "profile-asked"]
    now[0] = 61
    (last,) = watch.look()
    assert last.kind == "not-named"
    assert "record status" in last.text
    assert watch.look() == []
    job.run(100)
    assert kinds(watch.look())[0] == "named"


@pytest.mark.parametrize("wrong", [{"world": None}, {"world": 10**9}, {"dp": "two"}])
def test_a_damaged_header_is_said_in_a_line(tmp_path, wrong):
    given = {"rank": 0, "world": 1, "dp": 1, "pp": 1, "dp_rank": 0, "pp_rank": 0, "session": "s"}
    meta = {**given, "started_ns": 1, "kinds": [], **wrong}
    path = tmp_path / f"rank-00000-0{SUFFIX}"
    path.write_bytes(file_header(meta) + block(TIMES, TIME.pack(0, 1, 10**9)))
    with pytest.raises(TraceError, match=r"header lacks|ranks"):
        Watch(tmp_path).look()


def until_it_hangs(watch, job, now):
    """Four looks that see new steps, a second apart, then a minute without any."""
    for until in (20, 30, 40, 50):
        now[0] += 1
        job.run(until, profiled=False)
        watch.look()
    now[0] += 5 * 60


def test_a_step_that_does_not_end_is_told_once(job):
    now = [0.0]
    watch = Watch(job.folder, stacks=False, clock=lambda: now[0])
    until_it_hangs(watch, job, now)
    (hang,) = watch.look()
    assert (hang.kind, hang.fields["kind"], hang.fields["step"]) == ("change", "hang", 50)
    assert hang.fields["stacks"] is None
    assert watch.look() == []
    job.files = job.files[1:]  # rank 0 stands still
    until_it_hangs(watch, job, now)
    job.run(60, profiled=False)
    watch.look()
    now[0] += 5 * 60
    (hang,) = watch.look()
    assert (hang.fields["step"], hang.fields["ranks"]) == (59, [0])
    assert "rank 0 did not arrive" in hang.text


def test_a_job_whose_processes_have_ended_does_not_hang(job, monkeypatch):
    now = [0.0]
    watch = Watch(job.folder, clock=lambda: now[0])
    until_it_hangs(watch, job, now)
    monkeypatch.setattr("paceline.watch.job.processes_of", lambda headers: {})
    monkeypatch.setattr("paceline.watch.job.is_here", lambda header: True)
    (news,) = watch.look()
    assert (news.kind, news.text) == ("ended", "no step for 300 s: no process of it runs")


def test_ranks_that_lag_do_not_hold_steps_for_ever():
    rows = Rows(2)
    rows.add(0, [(n, 1.0) for n in range(10)])
    assert list(rows.close()) == []
    rows.add(1, [(0, 2.0), (1, 2.0)])
    assert [(step, row.tolist()) for step, row in rows.close()] == [(0, [1, 2]), (1, [1, 2])]
    rows.add(0, [(n, 1.0) for n in range(10, 100)])
    assert [step for step, _ in rows.close()][-1] == 49


def test_the_command(job, capsys):
    job.run(90)
    log = job.folder.parent / "events.jsonl"
    assert run(["watch", str(job.folder), "--once", "--json", "--events", str(log)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == [
        "watching", "onset", "named", "not-validated", "plan",
    ]  # fmt: skip
    assert [json.loads(line) for line in log.read_text().splitlines()] == lines
    assert run(["watch", str(job.folder), "--once"]) == 0
    assert "slower since step 70" in capsys.readouterr().out
    assert run(["watch", str(job.folder / "absent"), "--once"]) == 2
    assert run(["watch", str(job.folder), "--steps", "0"]) == 2


def test_steps_are_recorded_at_once_up_to_the_one_that_was_asked_for(tmp_path, capsys):
    record_now(tmp_path, 3, last_step=4, step_s=5.0)
    assert json.loads((tmp_path / CONTROL).read_text()) == {
        "on": True, "until": 9, "at_once": 10,
    }  # fmt: skip
    rec = record.start(tmp_path, every=100)
    for number in range(1, 20):
        with rec.step(number), rec.op("forward-compute", 0):
            pass
    rec.close()
    assert load(tmp_path).steps.tolist() == list(range(1, 10))
    assert run(["record", "on", str(tmp_path), "--now", "2"]) == 0
    assert "up to" in capsys.readouterr().out
    for wrong in (["off", "--now", "2"], ["on", "--now", "0"], ["status", "--now", "2"]):
        assert run(["record", wrong[0], str(tmp_path), *wrong[1:]]) == 2
