"""Who is slow: by hand, from synthesised traces, and from the call logs of the same jobs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from call_logs import of_trace, to_log
from paceline.cli.main import run
from paceline.detect.event import Event
from paceline.detect.job import job_events
from paceline.detect.locate import episode_end, locate_in_calls, locate_in_trace, locate_last
from paceline.detect.steps_of_calls import step_times
from paceline.detect.who import Suspect, Transfers, Work, find_suspects, lower_median, waited_for
from paceline.detect.who_calls import who_from_calls
from paceline.detect.who_trace import who_from_trace, who_slow_before
from paceline.errors import DetectError
from paceline.graph import from_trace
from paceline.synth import SlowLink, SlowNic, SlowWorker, SynthSpec, synthesize
from paceline.trace.kinds import PASSES, OpKind
from paceline.whatif import analyze
from recordings import RankStep, data_parallel_job

SPEC = SynthSpec(dp=8, pp=4, microbatches=8, steps=12)


def ints(*values):
    return np.array(values, dtype=np.int64)


def no_transfers():
    return Transfers(ints(), ints(), ints(), np.zeros(0), (), ())


def no_work():
    return Work(ints(), ints(), np.zeros(0), np.zeros(0))


def test_a_group_is_slow_beside_its_like_by_hand():
    # Groups a, b, c call 8 bytes twice each; c takes 0.3 s instead of 0.2. Group d calls 16 bytes.
    transfers = Transfers(
        group=ints(0, 0, 1, 1, 2, 2, 3),
        op=ints(0, 0, 0, 0, 0, 0, 0),
        size=ints(8, 8, 8, 8, 8, 8, 16),
        seconds=np.array([0.2, 0.2, 0.2, 0.2, 0.3, 0.3, 9.0]),
        names=("a", "b", "c", "d"),
        members=((0, 1), (2, 3), (4, 5), (6, 7)),
    )
    (found,) = find_suspects(transfers, no_work(), step_s=2.0, steps=1)
    assert (found.kind, found.ranks) == ("communication", (4, 5))
    assert found.factor == pytest.approx(1.5)
    assert found.share == pytest.approx(0.1)  # 0.2 s of a step of 2 s
    assert found.name == "ranks 4-5 (group c); communication"


def test_a_step_without_length_has_no_suspect():
    """NCCL 2.30.7 on a machine that was overloaded, beside a pause (docs/pause.md, mounts)."""
    transfers = Transfers(
        ints(0, 1, 2), ints(0, 0, 0), ints(8, 8, 8), np.array([1.0, 1.0, 9.0]),
        ("a", "b", "c"), ((0, 1), (2, 3), (4, 5)),
    )  # fmt: skip
    assert find_suspects(transfers, no_work(), 0.0, 1) == ()


def test_a_group_up_to_1_1_times_its_like_is_not_suspicious():
    transfers = Transfers(
        ints(0, 1, 2), ints(0, 0, 0), ints(8, 8, 8), np.array([1.0, 1.0, 1.09]),
        ("a", "b", "c"), ((0, 1), (2, 3), (4, 5)),
    )  # fmt: skip
    assert find_suspects(transfers, no_work(), 4.0, 1) == ()
    slower = replace(transfers, seconds=np.array([1.0, 1.0, 1.11]))
    assert [found.ranks for found in find_suspects(slower, no_work(), 4.0, 1)] == [(4, 5)]


def test_only_a_rank_that_works_longer_and_is_waited_for_is_slow():
    # Rank 2 works 1.5 s instead of 1 and is waited for; rank 3 comes late too, but works no
    # longer; nobody waits for rank 1; ranks 4 and 5 do other work.
    work = Work(
        rank=ints(0, 1, 2, 3, 6, 4, 5),
        label=ints(0, 0, 0, 0, 0, 1, 1),
        seconds=np.array([1.0, 1.5, 1.5, 1.0, 1.0, 4.0, 4.0]),
        waited_for=np.array([0.0, 0.0, 0.9, 0.9, 0.0, 0.9, 0.9]),
    )
    (found,) = find_suspects(no_transfers(), work, step_s=2.0, steps=1)
    assert (found.kind, found.ranks, found.factor) == ("compute", (2,), 1.5)
    assert found.share == pytest.approx(0.25)


def test_who_is_waited_for():
    # Three calls of ranks 0, 1, 2: rank 2 comes last in two of them, rank 0 in one.
    call, rank, group = ints(0, 0, 0, 1, 1, 1, 2, 2, 2), ints(*[0, 1, 2] * 3), ints(*[0] * 9)
    waited_s = np.array([4.0, 3.0, 0.0, 4.0, 5.0, 0.0, 0.0, 2.0, 3.0])
    found = waited_for(call, rank, group, waited_s)
    assert found == {0: pytest.approx(1 / 3), 1: 0.0, 2: pytest.approx(2 / 3)}
    # Of two members the one that waits is not waited for.
    assert waited_for(ints(0, 0), ints(0, 1), ints(0, 0), np.array([0.0, 1.0])) == {0: 1.0, 1: 0.0}


def test_of_two_the_faster_is_usual():
    assert lower_median(np.array([3.0, 1.0])) == 1.0
    assert lower_median(np.array([3.0, 1.0, 2.0])) == 2.0


CAUSES = {
    "slow worker": ((SlowWorker(3, 1, 1.5),), (), (), [("compute", (11,))]),
    "slow worker of the first stage": ((SlowWorker(2, 0, 1.3),), (), (), [("compute", (2,))]),
    "slow worker of the last stage": ((SlowWorker(5, 3, 1.3),), (), (), [("compute", (29,))]),
    "two slow workers": (
        (SlowWorker(3, 1, 1.4), SlowWorker(4, 1, 1.4)), (), (), [("compute", (11, 12))],
    ),
    "slow link": ((), (SlowLink(2, 1, 60.0),), (), [("communication", (10, 18))]),
    "slow NIC": ((), (), (SlowNic(2, 1, 8.0),), [("communication", tuple(range(8, 16)))]),
    "none": ((), (), (), []),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_found_in_a_trace_and_in_its_call_log(cause):
    workers, links, nics, expected = CAUSES[cause]
    spec = replace(SPEC, slow_workers=workers, slow_links=links, slow_nics=nics)
    trace = synthesize(spec)
    measured = from_trace(trace)
    result = analyze(measured)
    found = who_from_trace(measured, result)
    assert [(suspect.kind, suspect.ranks) for suspect in found] == expected
    log = of_trace(trace)
    heard = who_from_calls(log, step_times(log))
    assert [(suspect.kind, suspect.ranks) for suspect in heard] == expected
    if workers:
        # Other calls may cut some of the time between calls, so that a part of it is not seen.
        truth = workers[0].factor
        assert 1 + 0.7 * (truth - 1) < heard[0].factor < 1 + 1.1 * (truth - 1)
    if len(workers) == 1:
        dp, pp = workers[0].dp, workers[0].pp
        assert found[0].factor == pytest.approx(result.by_worker[pp, dp], rel=1e-9)


def test_two_slow_workers_have_factors_of_their_own():
    spec = replace(SPEC, slow_workers=(SlowWorker(3, 1, 1.5), SlowWorker(6, 1, 1.3)))
    trace = synthesize(spec)
    measured = from_trace(trace)
    log = of_trace(trace)
    suspects = who_from_trace(measured, analyze(measured))
    heard = who_from_calls(log, step_times(log))
    assert [s.ranks for s in suspects] == [s.ranks for s in heard] == [(11,), (14,)]
    assert suspects[0].factor > suspects[1].factor + 0.1
    assert [s.factor for s in heard] == pytest.approx([1.5, 1.3], abs=0.06)


def test_a_log_of_one_rank_leaves_it_unknown():
    trace = synthesize(replace(SPEC, slow_workers=(SlowWorker(3, 1, 1.5),)))
    log = of_trace(trace)
    rows = log.rank == 0
    columns = ("rank", "time_s", "op", "size", "communicator", "duration_s")
    alone = replace(log, **{name: getattr(log, name)[rows] for name in columns})
    onset = job_events([Event("onset", 0, 8, 4, 1.4, 0.1, 1.0)], 1)
    (event,) = locate_in_calls(onset, alone, step_times(alone))
    assert event.suspects is None


def test_computation_and_communication_at_once():
    spec = replace(SPEC, slow_workers=(SlowWorker(3, 1, 1.5),), slow_links=(SlowLink(2, 1, 60.0),))
    trace = synthesize(spec)
    measured = from_trace(trace)
    log = of_trace(trace)
    expected = {("compute", (11,)), ("communication", (10, 18))}
    for found in (
        who_from_trace(measured, analyze(measured)),
        who_from_calls(log, step_times(log)),
    ):
        assert {(suspect.kind, suspect.ranks) for suspect in found} == expected


def with_uneven_exchange(spec, factor):
    """The measured job; in each second step the exchange of gradients takes ``factor`` as long."""
    measured = from_trace(synthesize(spec))
    durations = measured.durations
    scatter = np.flatnonzero(measured.graph.kind == OpKind.GRADS_REDUCE_SCATTER)
    for op in scatter.tolist():
        durations.row(op)[::2] *= factor
    return measured, analyze(measured)


TWO_RANKS = SynthSpec(dp=2, pp=1, microbatches=4, steps=16, noise=0.01)


def test_a_collective_that_all_wait_for_names_nobody_beside_a_slow_worker():
    """Two ranks, one group."""
    spec = replace(TWO_RANKS, slow_workers=(SlowWorker(0, 0, 1.5),))
    measured, result = with_uneven_exchange(spec, 8)
    assert result.by_worker.min() > 1.03  # each member alone makes the exchange as long
    (found,) = who_from_trace(measured, result)
    assert (found.kind, found.ranks) == ("compute", (0,))


@pytest.mark.parametrize(("before", "is_network"), [(None, False), (8, False), (1, True)])
def test_a_collective_of_all_is_slow_only_beside_other_steps(before, is_network):
    """Two ranks have no peers: only the healthy steps before tell a fault from variation."""
    measured, result = with_uneven_exchange(TWO_RANKS, 8)
    healthy = None if before is None else with_uneven_exchange(TWO_RANKS, before)[1]
    suspects = who_from_trace(measured, result, healthy)
    found = [(suspect.kind, suspect.ranks) for suspect in suspects]
    assert found == [("communication", (0, 1))] * is_network
    for suspect in suspects:
        assert "in the healthy steps before, they were" in suspect.text


def test_variation_of_all_transfers_names_nobody(tmp_path, capsys):
    """As on two gloo ranks: transfers vary, and rank 1 waits for its data from step 80 on."""
    exchange = 40.0 * np.random.default_rng(5).lognormal(0, 0.6, 120)

    def step_of(number, rank):
        data = 82.0 if rank == 1 and number >= 80 else 0.3
        return RankStep(data=data, exchange=exchange[number])

    data_parallel_job(tmp_path / "run", step_of, steps=120, ranks=2, measures=True)
    assert run(["detect", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "since step 80; rank 1 (stage 0 of replica 1); data loading; " in out
    assert "since step 56; who: nobody stands out; " in out
    assert "ranks 0-1" not in out


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("is_slow", [True, False])
def test_computes_of_all_that_vary_name_nobody_but_a_slower_one(seed, is_slow):
    slow = (SlowWorker(0, 0, 1.5),) * is_slow
    spec = replace(TWO_RANKS, microbatches=1, steps=40, noise=0.4, seed=seed, slow_workers=slow)
    measured = from_trace(synthesize(spec))
    result = analyze(measured)
    assert result.by_worker.min() > 1.03
    assert [s.ranks for s in who_from_trace(measured, result)] == [(0,)] * is_slow


def varying_job(folder, vary):
    """A recorded job of two ranks, whose computes take ``vary`` [step, rank] times 60 ms."""
    return data_parallel_job(
        folder,
        lambda number, rank: RankStep(
            forward=20 * vary[number, rank], backward=40 * vary[number, rank]
        ),
        steps=len(vary),
        ranks=2,
    )


@pytest.mark.parametrize("is_slow", [True, False])
def test_recorded_computes_of_all_that_vary_name_nobody_but_a_lasting_one(tmp_path, is_slow):
    """The medians over the steps tell them apart."""
    vary = np.random.default_rng(1).lognormal(0, 0.35, (60, 2)) * (1.0, 1.3 if is_slow else 1.0)
    trace = varying_job(tmp_path, vary)
    measured = from_trace(trace)
    result = analyze(measured)
    assert result.by_worker.min() > 1.03
    suspects = [suspect for suspect in who_from_trace(measured, result) if not suspect.steps]
    assert [suspect.ranks for suspect in suspects] == [(1,)] * is_slow


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_worker_that_did_not_change_beside_its_peers_is_no_suspect(tmp_path, seed, factor):
    """Both ranks vary, and take 1.5 times as long from step 44 on. Rank 1 may be slow as well."""
    vary = np.random.default_rng(seed).lognormal(0, 0.35, (60, 2))
    vary[44:] *= (1.5, 1.5 * factor)
    trace = varying_job(tmp_path, vary)
    (event,) = locate_in_trace(job_events([Event("onset", 0, 48, 44, 1.5, 1.0, 0.1)], 2), trace)
    suspects = [suspect.ranks for suspect in event.suspects if not suspect.steps]
    assert suspects == [(1,)] * (factor > 1)


@pytest.mark.parametrize("lasts", [True, False])
def test_only_what_lasts_was_slow_before(tmp_path, lasts):
    """Rank 0 waits for data from step 30 on. Rank 1 is slow, or varies, before and after that."""

    def step_of(number, rank):
        forward = 3 if rank and (lasts or number % 5 in (0, 1)) else 1
        backward = 2 if rank and (lasts or number % 5 in (2, 3)) else 1
        wait = 90.0 * (rank == 0 and number >= 30)
        return RankStep(data=wait, forward=20.0 * forward, backward=40.0 * backward)

    trace = data_parallel_job(tmp_path, step_of, steps=60, ranks=2, measures=True)
    (event,) = locate_in_trace(job_events([Event("onset", 0, 33, 30, 1.5, 1.0, 0.1)], 2), trace)
    assert [(s.kind, s.ranks) for s in event.slow_before] == [("compute", (1,))] * lasts


def test_a_worker_stands_for_its_tensor_parallel_ranks():
    trace = synthesize(replace(SPEC, tp=8, slow_workers=(SlowWorker(3, 0, 1.5),)))
    measured = from_trace(trace)
    (found,) = who_from_trace(measured, analyze(measured))
    assert found.name == "ranks 24-31 (stage 0 of replica 3); compute"
    unknown = replace(measured, rank=np.full_like(measured.rank, -1))
    (found,) = who_from_trace(unknown, analyze(unknown))
    assert (found.ranks, found.name) == ((), "stage 0 of replica 3; compute")


@pytest.mark.parametrize("dp", [0, 2])
def test_a_log_without_durations_says_who_is_late(dp):
    spec = replace(SPEC, steps=6, slow_workers=(SlowWorker(dp, 1, 1.5),))
    log = replace(of_trace(synthesize(spec)), duration_s=None)
    (suspect,) = who_from_calls(log, step_times(log))
    assert suspect.ranks == tuple(stage * spec.dp + dp for stage in range(spec.pp))
    assert suspect.name.startswith("one of ranks ")  # stages wait for each other
    assert "it does not show which rank waited for which" in suspect.text


def arrivals(late_of, *, steps=8):
    """Calls of four ranks: two all-reduces and a gather a step of 1 s; rank -> late by, of each."""
    rows = [
        (step + at + late_of(rank)[n], rank, (op, 8, "dp"))
        for step in range(steps)
        for rank in range(4)
        for n, (at, op) in enumerate(((0.0, "Gather"), (0.5, "AllReduce"), (0.9, "Scatter")))
    ]
    return to_log(sorted(rows, key=lambda row: row[:2]))


def test_who_is_late_by_hand():
    log = arrivals(lambda rank: (0, 0.1 * (rank == 2), 0))
    (suspect,) = who_from_calls(log, step_times(log))
    assert (suspect.ranks, suspect.place) == ((2,), "rank 2")
    assert suspect.share == pytest.approx(0.1)
    # Its clock is 20 ms ahead, which is no lateness.
    log = arrivals(lambda rank: (0.02, 0.12, 0.02) if rank == 2 else (0, 0, 0))
    (suspect,) = who_from_calls(log, step_times(log))
    assert suspect.share == pytest.approx(0.1)


def test_a_rank_that_is_always_late_may_have_another_clock():
    log = arrivals(lambda rank: (0.2 * (rank == 1),) * 3)
    (suspect,) = who_from_calls(log, step_times(log))
    assert suspect.ranks == (1,)
    assert "or its clock is ahead by as much" in suspect.text


@pytest.mark.parametrize("offset_s", [0.004, -0.004])
def test_a_clock_that_is_off_makes_nobody_late(offset_s):
    log = replace(of_trace(synthesize(replace(SPEC, steps=6))), duration_s=None)
    shifted = replace(log, time_s=log.time_s + offset_s * (log.rank == 1))
    assert who_from_calls(shifted, step_times(shifted)) == ()


def test_a_window_behind_the_log_is_refused():
    log = of_trace(synthesize(replace(SPEC, steps=6)))
    with pytest.raises(DetectError, match="no steps from 90 to"):
        who_from_calls(log, step_times(log), 90, 95)


def test_one_group_alone_is_not_judged():
    rows = [
        (step + 0.1 * at + 0.01 * rank, rank, ("AllReduce", size, "dp"))
        for step in range(8)
        for at, size in enumerate((4, 8))
        for rank in range(2)
    ]
    log = to_log(rows)
    log = replace(log, duration_s=np.full(len(log), 0.05))
    assert who_from_calls(log, step_times(log)) == ()


def onset(rank, step, lost_s=252.0):
    return Event("onset", rank, step, step - 22, 1.31, lost_s, 1.0)


def test_the_sentence():
    event = job_events([onset(rank, 5120) for rank in range(64)], 64)[0]
    assert event.explain() == (
        "step 5,120: 1.31x slower since step 5,098; who: unknown, run paceline validate by "
        "torchrun on all hosts (docs/validate.md); 4.2 minutes lost so far"
    )
    suspect = Suspect("compute", tuple(range(24, 32)), "ranks 24-31", 1.4, 0.3, "1.4x as long")
    told = replace(
        event,
        suspects=(suspect,),
        advice="moving 3 micro-batches off replica 3 recovers 78%",
    )
    assert told.explain() == (
        "step 5,120: 1.31x slower since step 5,098; ranks 24-31; compute; 4.2 minutes lost so far; "
        "moving 3 micro-batches off replica 3 recovers 78%"
    )
    assert told.to_mapping()["who"][0]["ranks"] == list(range(24, 32))
    assert event.to_mapping()["who"] is None
    assert "nobody stands out" in replace(event, suspects=()).explain()
    assert job_events([onset(3, 5120, 7200.0)], 64)[0].explain() == (
        "step 5,120: rank 3: 1.31x slower since step 5,098; why: unknown, run paceline validate by "
        "torchrun on all hosts (docs/validate.md); 2.0 hours lost so far"
    )


@pytest.mark.parametrize(
    ("ranks", "gpus", "command"),
    [
        (4, None, "paceline validate --world-size 4 --run"),
        (1, 8, "paceline validate --world-size 8 --run"),
        (1, None, "paceline validate --world-size N --run"),
    ],
)
def test_the_hint_is_a_command_that_validate_takes(capsys, monkeypatch, ranks, gpus, command):
    event = job_events([onset(rank, 5120) for rank in range(ranks)], ranks)[0]
    assert f"who: unknown, run {command}" in replace(event, gpus=gpus).explain()
    monkeypatch.setattr("paceline.cli.validate._measure", lambda *_: None)
    words = command.replace(" N ", " 4 ").split()[1:]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith(f"ring of {words[2]} ranks")


def episodes():
    """Slow from step 78 to 149, again from step 278."""
    relief = Event("relief", 0, 160, 150, 1.3, 9.0, 1.0)
    return job_events([onset(0, 100), relief, onset(0, 300)], 1)


def test_episodes_end_with_their_relief():
    first, _, second = episodes()
    assert episode_end(first, episodes()) == 150
    assert episode_end(second, episodes()) is None


def test_an_episode_has_a_step_where_relief_is_dated_before_onset():
    events = [onset(0, 100), onset(1, 102), onset(2, 104), Event("relief", 1, 110, 79, 1.3, 9.0, 1)]
    first, relief = job_events(events, 3)
    assert relief.since_step < first.since_step
    assert episode_end(first, [first, relief]) == first.since_step + 1


def test_a_trace_speaks_for_the_fail_slow_it_has_steps_of():
    trace = synthesize(replace(SPEC, steps=4, slow_workers=(SlowWorker(3, 1, 1.5),)))
    late = replace(trace, steps=trace.steps + 148)  # 148 and 149 are slow, 150 and 151 are not
    first, relief, second = locate_in_trace(episodes(), late)
    assert [suspect.ranks for suspect in first.suspects] == [(11,)]
    assert relief.suspects is None
    assert second.suspects is None


def test_a_worker_that_was_as_slow_before_is_no_suspect_of_the_change():
    trace = synthesize(replace(SPEC, slow_workers=(SlowWorker(3, 1, 1.5),)))
    (event,) = locate_in_trace(job_events([Event("onset", 0, 8, 6, 1.2, 0.1, 1.0)], 1), trace)
    assert event.suspects == ()
    (slow,) = event.slow_before
    assert slow.ranks == (11,)
    assert slow.text.startswith("in the 6 slow steps of the trace, alone it makes a step 1.")
    assert "; slow before, too: rank 11 (stage 1 of replica 3); " in event.explain()
    assert event.to_mapping()["slow_before"][0]["ranks"] == [11]


def test_evidence_stands_below_its_own_event(capsys, tmp_path):
    """Rank 1 is slow from step 80 to 119, rank 0 from step 200 on."""

    def step_of(number, rank):
        is_slow = 80 <= number < 120 if rank else number >= 200
        return RankStep(forward=60.0 if is_slow else 20.0)

    data_parallel_job(tmp_path / "run", step_of, steps=260, ranks=2)
    assert run(["detect", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "  in the end" not in line]
    assert "since step 80; rank 1 " in lines[0]
    assert lines[1].startswith("  rank 1 (stage 0 of replica 1); compute: in the 40 slow steps")
    assert "healthy again since step 120" in lines[2]
    assert "since step 200; rank 0 " in lines[3]
    assert [line[:34] for line in lines].count("  rank 0 (stage 0 of replica 0); c") == 1
    assert run(["detect", str(tmp_path / "run"), "--by-rank"]) == 0
    by_rank = capsys.readouterr().out
    assert "  since step 80: rank 1 (stage 0 of replica 1); compute: in the 40 slow" in by_rank
    assert "  since step 200: rank 0 (stage 0 of replica 0); compute: in the 60 slow" in by_rank


@pytest.mark.parametrize(("said", "since"), [(27, 30), (33, 30), (30, 30), (8, 8)])
def test_the_slow_workers_own_computes_date_the_onset(tmp_path, said, since):
    """Steps of both ranks take up to three times as long by chance; rank 1 is slow from 30 on."""
    rng = np.random.default_rng(3)
    shared, own = rng.lognormal(0, 0.6, 60), rng.lognormal(0, 0.1, (60, 2, 2))

    def step_of(number, rank):
        forward, backward = shared[number] * own[number, rank] * (20, 40)
        late = 1.5 * (forward + backward) * (rank == 1 and number >= 30)
        return RankStep(forward=forward + late, backward=backward)

    trace = data_parallel_job(tmp_path, step_of, steps=60, ranks=2)
    event = Event("onset", 0, 40, said, 1.9, 1.0, 0.1)
    (found,) = locate_in_trace(job_events([event], 2), trace)
    assert [suspect.ranks for suspect in found.suspects] == [(1,)]
    assert found.since_step == since


def test_one_noisy_step_of_the_slow_worker_moves_no_onset(tmp_path):
    """Step 30 is slow already, but less so: it does not contradict the job's own step times."""

    def step_of(number, rank):
        factor = (2.4 if number == 30 else 3.5) if rank == 1 and number >= 30 else 1.0
        return RankStep(forward=20.0 * factor, backward=40.0 * factor)

    trace = data_parallel_job(tmp_path, step_of, steps=60, ranks=2)
    (found,) = locate_in_trace(job_events([Event("onset", 0, 40, 30, 2, 1.0, 0.1)], 2), trace)
    assert found.since_step == 30


HOSTS = {"data": "data-loading", "host": "host", "late": "host"}
DATES = [(46, 54, 50, None), (54, 56, 50, None), (50, 53, 50, None), (46, 48, 46, 50)]


@pytest.mark.parametrize(
    ("field", "said", "told", "since", "own"),
    [
        *((field, *dates) for field in HOSTS for dates in DATES),
        *((field, 20, 54, 20, 50) for field in ("data", "host")),
    ],
)
def test_the_lateness_of_the_slow_host_dates_the_onset(tmp_path, field, said, told, since, own):
    """Steps take up to three times as long by chance; rank 1 is late from 50 on.

    A begin before the step that told the fail-slow is its onset. A later one, or one that is more
    than 20 steps off, is the rank's own.
    """
    shared = np.random.default_rng(3).lognormal(0, 0.4, 80)

    def step_of(number, rank):
        late = {field: 60.0 * (rank == 1 and number >= 50)}
        return RankStep(forward=20 * shared[number], backward=40 * shared[number], **late)

    trace = data_parallel_job(tmp_path, step_of, steps=80, ranks=2, measures=field == "data")
    event = Event("onset", 0, told, said, 1.9, 1.0, 0.1)
    (found,) = locate_in_trace(job_events([event], 2), trace)
    (suspect,) = found.suspects
    assert (suspect.kind, suspect.ranks) == (HOSTS[field], (1,))
    assert (found.since_step, suspect.since_step) == (since, own)
    steps = 80 - max(said, 50)
    head = f"{steps} slow steps of the trace" if own is None else "30 steps of the trace since then"
    assert suspect.text.startswith(f"in the {head}, ")
    assert (" since step 50: in " in suspect.explain()) is (own is not None)
    assert suspect.to_mapping()["since_step"] == own


def test_slowness_of_a_rank_that_explains_the_onset_is_not_dated_by_its_worsening(tmp_path):
    """Rank 1 waits 30 ms from step 30 on, and 120 ms from step 50 on."""

    def step_of(number, rank):
        wait = 30.0 * (number >= 30) + 90.0 * (number >= 50)
        return RankStep(data=wait * (rank == 1))

    trace = data_parallel_job(tmp_path, step_of, steps=80, ranks=2, measures=True)
    (found,) = locate_in_trace(job_events([Event("onset", 0, 33, 30, 1.4, 1.0, 0.1)], 2), trace)
    (suspect,) = found.suspects
    assert (found.since_step, suspect.since_step) == (30, None)


@pytest.mark.parametrize("first", [20, 40])
def test_each_of_two_slow_ranks_has_its_own_begin(tmp_path, first):
    """Rank 2 is slow from the onset on, rank 1 from step 60 on, and it costs more."""

    def step_of(number, rank):
        slow = {1: 3.0 if number >= 60 else 1.0, 2: 1.8 if number >= first else 1.0}
        return RankStep(forward=20.0 * slow.get(rank, 1.0), backward=40.0 * slow.get(rank, 1.0))

    trace = data_parallel_job(tmp_path, step_of, steps=100, ranks=4)
    event = Event("onset", 0, first + 5, first, 1.7, 1.0, 0.1)
    (found,) = locate_in_trace(job_events([event], 4), trace)
    assert found.since_step == first
    assert {s.ranks: s.since_step for s in found.suspects} == {(1,): 60, (2,): None}
    later, lasting = found.suspects
    assert later.text.startswith("in the 40 steps of the trace since then, alone it causes ")
    slow_steps = f"in the {100 - first} slow steps of the trace"
    assert lasting.text.startswith(f"{slow_steps}, alone it causes ")


def test_the_only_rank_of_a_job_is_not_named(tmp_path):
    """No peer tells how long its computes should take."""
    rng = np.random.default_rng(0)
    times = rng.lognormal(0, 0.4, (60, 2)) * (20, 40)

    def step_of(number, rank):
        forward, backward = times[number] * (1.5 if number >= 40 else 1)
        return RankStep(forward=forward, backward=backward)

    trace = data_parallel_job(tmp_path, step_of, steps=60, ranks=1)
    (found,) = locate_in_trace(job_events([Event("onset", 0, 50, 40, 1.5, 1.0, 0.1)], 1), trace)
    assert found.suspects == ()
    assert "since step 40; who: the only rank, which has no peer; " in found.explain()


@pytest.mark.parametrize(
    ("factor", "spike", "is_suspect"),
    [(1.0, 1.0, True), (1.0, 9.0, True), (1.2, 1.0, True), (1.5, 1.0, False)],
)
def test_a_worker_that_became_slower_is_a_suspect_even_after_a_spike(factor, spike, is_suspect):
    spec = replace(SPEC, dp=4, pp=1)
    measured = from_trace(synthesize(replace(spec, slow_workers=(SlowWorker(1, 0, 1.5),))))
    result = analyze(measured)
    suspects = who_from_trace(measured, result)
    healthy = synthesize(replace(spec, seed=1, slow_workers=(SlowWorker(1, 0, factor),)))
    before = analyze(with_spike(healthy, 1, 0, 6, spike))
    same = who_slow_before(suspects, measured, result, before)
    assert [s.ranks for s in suspects] == [(1,)]
    assert same == (() if is_suspect else suspects)


def test_a_profile_without_numbers_speaks_for_the_last_fail_slow():
    first, relief, second = locate_last(episodes(), ())
    assert (first.suspects, relief.suspects, second.suspects) == (None, None, ())


def test_each_fail_slow_of_a_call_log_has_its_own_culprits():
    begin_s, parts = 0.0, []
    for seed, worker in enumerate(((), (SlowWorker(3, 1, 1.5),), (), (SlowWorker(2, 0, 1.5),))):
        trace = synthesize(replace(SPEC, steps=80, dp=4, pp=2, seed=seed, slow_workers=worker))
        log = of_trace(trace)
        parts.append(replace(log, time_s=log.time_s + begin_s))
        begin_s += float(trace.traced_step_s().sum())
    names = ("rank", "time_s", "op", "size", "communicator", "duration_s")
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    log = replace(parts[0], **whole)
    steps = step_times(log)
    ranks = range(8)
    events = [Event("onset", rank, 84, 80, 1.3, 1.0, 1.0) for rank in ranks]
    events += [Event("relief", rank, 165, 160, 1.3, 1.0, 1.0) for rank in ranks]
    events += [Event("onset", rank, 245, 240, 1.3, 1.0, 1.0) for rank in ranks]
    first, _, second = locate_in_calls(job_events(events, 8), log, steps)
    assert [suspect.ranks for suspect in first.suspects] == [(7,)]
    assert [suspect.ranks for suspect in second.suspects] == [(2,)]


def with_spike(trace, dp, pp, at, times):
    """The measured trace with the computes of a worker in one step this many times as long."""
    measured = from_trace(trace)
    graph = measured.graph
    rows = np.flatnonzero((graph.pp == pp) & np.isin(graph.kind, PASSES))
    measured.durations.block(0)[rows, at, dp] *= times
    return measured


def test_a_rank_that_lasts_comes_before_one_with_a_longer_spike():
    """As on two gloo ranks: one slow in 27 of 29 steps, the other 5.5x in step 176."""
    spec = replace(SPEC, dp=4, pp=1, slow_workers=(SlowWorker(1, 0, 1.2),))
    trace = replace(synthesize(spec), steps=np.arange(170, 182))
    measured = with_spike(trace, 3, 0, 6, 9.0)
    result = analyze(measured)
    assert result.by_worker[0, 3] > result.by_worker[0, 1] + 0.3
    lasting, spike = who_from_trace(measured, result)
    assert (lasting.ranks, lasting.steps, lasting.kind) == ((1,), (), "compute")
    assert (spike.ranks, spike.steps, spike.kind) == ((3,), (176,), "compute")
    assert spike.name == "rank 3 (stage 0 of replica 3); compute in step 176 only"
    assert spike.text == (
        "it makes step 176 8.20x as long as if all were alike, and the 11 other traced steps "
        "1.00x: a spike, not a lasting fault"
    )
    assert spike.to_mapping()["steps"] == [176]


def test_a_spike_of_the_slow_rank_changes_nothing():
    spec = replace(SPEC, dp=4, pp=1, slow_workers=(SlowWorker(1, 0, 1.2),))
    measured = with_spike(synthesize(spec), 1, 0, 6, 9.0)
    (lasting,) = who_from_trace(measured, analyze(measured))
    assert (lasting.ranks, lasting.steps) == ((1,), ())


def test_a_worker_that_is_slow_in_some_steps_is_no_spike():
    """Slow in a third of the steps, as a worker with garbage collection is."""
    measured = from_trace(synthesize(replace(SPEC, dp=4, pp=1)))
    rows = np.flatnonzero(np.isin(measured.graph.kind, PASSES))
    measured.durations.block(0)[rows[:, None], np.arange(0, 12, 3), 2] *= 1.5
    (found,) = who_from_trace(measured, analyze(measured))
    assert (found.ranks, found.steps) == ((2,), ())


@pytest.mark.parametrize("measures", [True, False])
def test_long_steps_name_the_worker_that_they_wait_for(tmp_path, capsys, measures):
    """Rank 2's loader takes 120 ms longer in every seventh step; a checkpoint names nobody."""

    def step_of(number, rank):
        return RankStep(data=120.0 * (rank == 2 and number % 7 == 6))

    data_parallel_job(tmp_path, step_of, steps=140, measures=measures)
    assert run(["detect", str(tmp_path)]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("long steps: "))
    assert ", every 7 steps: 2.4 s lost" in line
    what = "data loading: it waits 120 ms longer for its data" if measures else ""
    what = what or "host: it begins 120 ms later"
    than = "in the 20 long steps of the trace than in the steps beside them"
    assert line.endswith(f"rank 2 (stage 0 of replica 2); {what} {than}")
    run(["detect", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["kind"], found["who"][0]["ranks"]) == ("long-steps", [2])


def test_long_steps_of_all_ranks_name_the_usual_causes(tmp_path, capsys):

    def step_of(number, _):
        return RankStep(host=400.0 * (number % 25 == 24))

    data_parallel_job(tmp_path, step_of, steps=150)
    assert run(["detect", str(tmp_path)]) == 0
    assert "; typical of evaluation, checkpoints and garbage" in capsys.readouterr().out


def log_beside_loader(number, rank):
    """Rank 0's host blocks 200 ms in every tenth step; rank 2 waits 49 ms from step 130 on."""
    waits = 49.0 if rank == 2 and number >= 130 else 4.6
    return RankStep(
        forward=40, backward=70, data=waits, host=200.0 * (rank == 0 and number % 10 == 3)
    )


def long_line(folder, capsys):
    assert run(["detect", str(folder)]) == 0
    return next(x for x in capsys.readouterr().out.splitlines() if x.startswith("long steps: "))


@pytest.mark.parametrize(("every", "of"), [(1, 28), (7, 4)])
def test_what_all_steps_have_makes_no_step_longer(tmp_path, capsys, every, of):
    """Newcomer 15: rank 2, which waits as long in all later steps, was named for the long ones."""
    data_parallel_job(tmp_path, log_beside_loader, steps=280, every=every, ranks=3, measures=True)
    line = long_line(tmp_path, capsys)
    than = f"in the {of} long steps of the trace than in the steps beside them"
    assert "; rank 0 (stage 0 of replica 0); host: it begins " in line
    assert line.endswith(than)
    late_ms = float(line.split("begins ")[1].split()[0])
    assert 200 - 49 < late_ms <= 200


def test_profiled_steps_that_are_not_long_name_nobody(tmp_path, capsys):
    data_parallel_job(tmp_path, log_beside_loader, steps=280, every=10, ranks=3, measures=True)
    assert "typical of evaluation" in long_line(tmp_path, capsys)


def test_profiled_steps_that_are_all_long_name_whom_the_others_cannot_wait_for(tmp_path, capsys):
    """The steps beside take 172 ms, 126 ms of it work, so nobody is 200 ms late in them."""

    def step_of(number, rank):
        return log_beside_loader(number + 3, rank)

    data_parallel_job(tmp_path, step_of, steps=280, every=10, ranks=3, measures=True)
    line = long_line(tmp_path, capsys)
    assert "rank 0 (stage 0 of replica 0); host: it begins at least " in line
    assert float(line.split("at least ")[1].split()[0]) > 100


def onset_of(folder, capsys):
    run(["detect", str(folder), "--json"])
    events = map(json.loads, capsys.readouterr().out.splitlines())
    return next(event for event in events if event["kind"] == "onset")


def test_waits_of_all_steps_name_a_loader_that_profiled_steps_hide(tmp_path, capsys):
    """Newcomer 15: rank 0's log call in each profiled step hid rank 2's loader there."""

    def step_of(number, rank):
        waits = 49.0 if rank == 2 and number >= 127 else 4.6
        return RankStep(waits, 200.0 * (rank == 0 and number % 20 == 0), 40, 70)

    data_parallel_job(tmp_path, step_of, steps=280, every=20, ranks=3, measures=True)
    onset = onset_of(tmp_path, capsys)
    (suspect,) = onset["who"]
    assert (suspect["kind"], suspect["ranks"], onset["since_step"]) == ("data-loading", [2], 127)
    assert suspect["text"] == (
        "in all 153 slow steps it waits 49.0 ms a step for data, 4.60 ms before; the job's step "
        "rose by 44.4 ms"
    )
    assert suspect["share"] == pytest.approx(44.4 / 169.0, abs=1e-3)


def test_waits_of_all_ranks_that_rise_together_name_all(tmp_path, capsys):
    def step_of(number, _):
        return RankStep(forward=40, backward=70, data=4.0 + 40.0 * (number >= 130))

    data_parallel_job(tmp_path, step_of, steps=280, every=20, ranks=3, measures=True)
    (suspect,) = onset_of(tmp_path, capsys)["who"]
    assert (suspect["kind"], suspect["ranks"]) == ("data-loading", [0, 1, 2])
    assert "they wait 44.0 ms a step for data, 4.00 ms before" in suspect["text"]


@pytest.mark.parametrize("measures", [True, False])
def test_waits_that_stay_name_nobody(tmp_path, capsys, measures):
    """All ranks compute longer; rank 2 waits 30 ms before and after."""

    def step_of(number, rank):
        return RankStep(forward=40 + 40 * (number >= 130), backward=70, data=30.0 * (rank == 2))

    data_parallel_job(tmp_path, step_of, steps=280, every=10, ranks=3, measures=measures)
    assert onset_of(tmp_path, capsys)["who"] == []
