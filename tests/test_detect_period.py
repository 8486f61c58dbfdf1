import numpy as np
import pytest

from call_logs import deepspeed, fsdp, make, megatron, of_length, to_log
from paceline.detect.period import find_period
from paceline.detect.steps_of_calls import step_times
from paceline.errors import DetectError

JOBS = {"megatron": megatron(), "fsdp": fsdp(), "deepspeed": deepspeed()}


def codes_of(step, repetitions, begin=0):
    name = {call: code for code, call in enumerate(dict.fromkeys(step))}
    return np.roll(np.tile([name[call] for call in step], repetitions), -begin)


def test_a_small_period_is_found_by_hand():
    found = find_period([7, 1, 1, 9] * 5)
    assert found is not None
    assert (found.calls, found.confidence, found.repetitions) == (4, 1.0, 5.0)


@pytest.mark.parametrize("calls", [4, 5, 7, 17, 100, 199, 200, 777, 1999, 2000])
@pytest.mark.parametrize("repetitions", [3, 5])
def test_every_period_is_found_after_few_repetitions(calls, repetitions):
    found = find_period(codes_of(of_length(calls), repetitions, begin=calls // 3))
    assert found is not None
    assert found.calls == calls


@pytest.mark.parametrize("job", JOBS)
def test_layers_are_not_taken_for_the_step(job):
    found = find_period(codes_of(JOBS[job], 5, begin=11))
    assert found is not None
    assert found.calls == len(JOBS[job])


@pytest.mark.parametrize("calls", [4, 5, 17, 40, 165, 777, 2000])
@pytest.mark.parametrize("change", ["missing", "extra"])
def test_one_call_missing_or_extra_does_not_matter(calls, change):
    codes = codes_of(of_length(calls), 5, begin=3)
    at = int(2.4 * calls)
    codes = np.delete(codes, at) if change == "missing" else np.insert(codes, at, codes[at + 1])
    found = find_period(codes)
    assert found is not None
    assert found.calls == calls


@pytest.mark.parametrize("swaps", [1, 2, 4])
def test_a_short_step_in_a_long_log_is_no_multiple_of_it(swaps):
    """The longest lag leaves the least to compare, so that swapped calls do not count there."""
    codes = np.tile(np.arange(7), 400)
    for at in np.random.default_rng(swaps).choice(400, swaps, replace=False) * 7 + 2:
        codes[at : at + 2] = codes[at : at + 2][::-1]
    found = find_period(codes)
    assert found is not None
    assert found.calls == 7


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("seed", range(4))
def test_a_call_missing_and_another_extra_in_five_repetitions(job, seed):
    rng = np.random.default_rng(seed)
    codes = codes_of(JOBS[job], 5, begin=int(rng.integers(50)))
    codes = np.delete(codes, rng.integers(len(codes)))
    found = find_period(np.insert(codes, rng.integers(len(codes)), codes[0]))
    assert found is not None
    assert found.calls == len(JOBS[job])
    assert found.confidence == pytest.approx(1 - 2 / (5 * len(JOBS[job])), abs=0.005)


def test_codes_are_names_not_numbers():
    codes = codes_of(megatron(), 5)
    renamed = np.random.default_rng(0).permutation(100)[codes] * 10**12
    assert find_period(renamed) == find_period(codes)


def test_calls_before_the_loop_do_not_matter():
    found = find_period(np.append(np.arange(100, 140), codes_of(fsdp(), 5)))
    assert found is not None
    assert found.calls == len(fsdp())


@pytest.mark.parametrize("codes", [[], [1], [1, 2], list(range(50))])
def test_without_repetition_there_is_no_period(codes):
    assert find_period(codes) is None


def test_random_calls_have_no_period():
    rng = np.random.default_rng(0)
    assert find_period(rng.integers(6, size=2000)) is None


def test_longest_bounds_the_period():
    assert find_period(codes_of(of_length(100), 5), longest=99) is None


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_iteration_time_within_1_2_percent_with_ranks_interleaved(job, seed):
    made = make([JOBS[job]] * 3, 20, noise=0.02, missing=2, extra=1, seed=seed)
    found = step_times(made.log)
    truth = np.diff(made.start_s[0])
    assert abs(found.iteration_s / np.median(truth) - 1) < 0.012
    assert {period.calls for period in found.periods.values()} == {len(JOBS[job])}
    assert set(np.bincount(found.rank).tolist()) <= {18, 19}  # a damaged first step has no start
    at = np.rint(np.interp(found.start_s, made.start_s[0], np.arange(21))).astype(int)
    assert found.duration_s == pytest.approx(truth[at], rel=0.02)


def test_a_slow_step_is_where_it_was_on_every_rank():
    step_s = np.where((np.arange(30) >= 12) & (np.arange(30) < 20), 1.5, 1.0)
    made = make([megatron(4), megatron(6)], 30, step_s=step_s, noise=0.0)
    found = step_times(made.log)
    for rank in (0, 1):
        mine = found.rank == rank
        assert found.step[mine].tolist() == list(range(29))
        assert found.duration_s[mine] == pytest.approx(step_s[:29], rel=0.01)


def test_the_first_call_of_a_step_may_be_missing():
    made = make([fsdp()], 10, noise=0.0)
    gone = 4 * len(fsdp())
    keep = np.arange(len(made.log)) != gone
    log = made.log
    columns = (log.rank, log.time_s, log.op, log.size, log.communicator)
    damaged = type(log)(*(column[keep] for column in columns), log.ops, log.communicators)
    assert step_times(damaged).duration_s == pytest.approx(np.ones(9), rel=0.012)


def test_a_log_that_begins_later_keeps_its_step_numbers():
    made = make([fsdp(), fsdp()], 12, noise=0.0)
    log = made.log
    keep = (log.rank == 0) | (log.time_s > made.start_s[1][3] - 0.01)
    columns = (log.rank, log.time_s, log.op, log.size, log.communicator)
    late = type(log)(*(column[keep] for column in columns), log.ops, log.communicators)
    found = step_times(late)
    assert found.step[found.rank == 1].tolist() == list(range(3, 11))


def test_an_evaluation_in_between_does_not_move_the_steps():
    step = [(f"op{at}", 8, "dp") for at in range(6)]
    rows = [(n + 0.1 * at, 0, call) for n in range(20) for at, call in enumerate(step)]
    rows += [(25 + 0.01 * at, 0, ("AllReduce", 4, "world")) for at in range(100)]
    rows += [(30 + n + 0.1 * at, 0, call) for n in range(20) for at, call in enumerate(step)]
    found = step_times(to_log(rows))
    assert found.duration_s == pytest.approx([*[1.0] * 19, 11.0, *[1.0] * 19])


def test_a_table_has_a_gap_where_a_rank_has_no_step():
    made = make([fsdp(), fsdp()], 12, noise=0.0)
    log = made.log
    keep = (log.rank == 0) | (log.time_s > made.start_s[1][3] - 0.01)
    columns = (log.rank, log.time_s, log.op, log.size, log.communicator)
    table = step_times(type(log)(*(c[keep] for c in columns), log.ops, log.communicators)).table()
    assert (table.steps.tolist(), table.ranks.tolist()) == (list(range(11)), [0, 1])
    assert np.isnan(table.duration_s[:3, 1]).all()
    assert table.duration_s[3:] == pytest.approx(np.ones((8, 2)), rel=0.01)


def test_threads_that_call_in_no_order_leave_the_longest_communicator():
    rng = np.random.default_rng(0)
    dp = [("AllReduce", size, "dp") for size in (4, 8, 8, 2)]
    rows = [(step + 0.2 * at, 0, call) for step in range(30) for at, call in enumerate(dp)]
    rows += [(float(at), 0, ("AllToAll", 1, "ep")) for at in rng.uniform(0, 30, 300)]
    found = step_times(to_log(sorted(rows)))
    assert found.periods[0].calls == 4
    assert found.iteration_s == pytest.approx(1.0)


def test_a_rank_of_equal_microbatches_takes_the_step_of_the_others():
    even = [("AllReduce", 8, "tp"), ("AllGather", 8, "tp")] * 8
    found = step_times(make([megatron(), megatron(), even], 12, noise=0.0).log)
    assert found.periods[2].calls == len(even)
    assert found.iteration_s == pytest.approx(1.0, rel=0.01)


def test_calls_that_never_repeat_are_refused():
    rows = [(float(at), 0, ("AllReduce", at, "dp")) for at in range(40)]
    with pytest.raises(DetectError, match="40 calls of 1 ranks"):
        step_times(to_log(rows))
