"""Policies for rigid jobs, against a second-by-second brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import QueueError
from paceline.scheduling.jobs import JobList, Throughputs, job_list
from paceline.scheduling.policies import LAS_LIMIT_GPU_S
from paceline.scheduling.replay import SlowJobs, SlowNodes, replay_queue

TOTAL = 8


def brute_force(jobs: JobList, policy: str) -> list[int]:
    """[job] when it ends: the queue second by second, whole numbers only."""
    left = [int(work) for work in jobs.work]
    asked = jobs.gpus.tolist()
    attained = [0] * len(jobs)
    running: list[int] = []
    ends = [0] * len(jobs)
    now = 0
    while any(left):
        queue = [i for i in range(len(jobs)) if jobs.submitted_s[i] <= now and left[i]]
        running = [i for i in running if left[i]]
        free = TOTAL - sum(asked[i] for i in running)
        if policy != "fifo":
            running, free = [], TOTAL
        key = {
            "fifo": lambda i: 0,
            "srtf": lambda i: left[i],
            "edf": lambda i: jobs.deadline_s[i],
            "tiresias": lambda i: attained[i] >= LAS_LIMIT_GPU_S,
        }[policy]
        for i in sorted((i for i in queue if i not in running), key=key):
            if asked[i] <= free:
                running.append(i)
                free -= asked[i]
            elif policy == "fifo":
                break
        now += 1
        for i in running:
            left[i] -= 1
            attained[i] += asked[i]
            ends[i] = now if not left[i] else 0
    return ends


@st.composite
def rigid_jobs(draw: st.DrawFn, longest: int = 30) -> JobList:
    n = draw(st.integers(1, 12))
    submitted = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    work = draw(st.lists(st.integers(1, longest), min_size=n, max_size=n))
    gpus = draw(st.lists(st.integers(1, TOTAL), min_size=n, max_size=n))
    slack = draw(st.lists(st.integers(0, 60), min_size=n, max_size=n, unique=True))
    deadlines = [s + w + k for s, w, k in zip(submitted, work, slack, strict=True)]
    return job_list([str(i) for i in range(n)], submitted, work, gpus=gpus, deadline_s=deadlines)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "edf"])
@given(jobs=rigid_jobs())
@settings(max_examples=60, deadline=None)
def test_policy_equals_brute_force(policy: str, jobs: JobList) -> None:
    done = replay_queue(jobs, TOTAL, policy)
    assert done.end_s.tolist() == pytest.approx(brute_force(jobs, policy))


def test_tiresias_demotes_after_its_limit() -> None:
    # Job 0 passes the limit on 8 GPUs after 406.25 s; job 1 waits until then, runs, and ends first.
    jobs = job_list(["long", "short"], [0, 10], [1000, 100], gpus=[8, 8])
    done = replay_queue(jobs, TOTAL, "tiresias")
    assert done.end_s.tolist() == pytest.approx([1100, LAS_LIMIT_GPU_S / 8 + 100])
    assert done.restarts.tolist() == [1, 0]


def test_backfill_never_delays_the_first_that_waits() -> None:
    # Job 1 needs all GPUs and can start at 100. Job 2 ends before and passes it; job 3 may not.
    jobs = job_list(list("0123"), [0, 1, 2, 3], [100, 50, 90, 200], gpus=[4, 8, 4, 4])
    plain = replay_queue(jobs, TOTAL, "fifo")
    filled = replay_queue(jobs, TOTAL, "backfill")
    assert plain.start_s.tolist() == [0, 100, 150, 150]
    assert filled.start_s.tolist() == [0, 100, 2, 150]


@given(jobs=rigid_jobs(), policy=st.sampled_from(["fifo", "backfill", "srtf", "edf", "tiresias"]))
@settings(max_examples=80, deadline=None)
def test_gpus_and_work_are_conserved(jobs: JobList, policy: str) -> None:
    done = replay_queue(jobs, TOTAL, policy)
    assert (done.gpus_over_time()[1] <= TOTAL).all()
    assert done.gpu_seconds == pytest.approx(jobs.work * jobs.gpus)
    assert (done.jct_s >= jobs.work - 1e-6).all()
    again = replay_queue(jobs, TOTAL, policy)
    assert again.end_s.tolist() == done.end_s.tolist()


def test_own_policy_and_its_mistakes() -> None:
    jobs = job_list(["a", "b"], [0, 0], [10, 10], gpus=[8, 8])

    def last_first(queue, free, now):  # type: ignore[no-untyped-def]
        wanted = np.zeros(len(queue), dtype=np.int64)
        wanted[-1] = queue.asked[-1]
        return wanted

    assert replay_queue(jobs, TOTAL, last_first).end_s.tolist() == [20, 10]
    with pytest.raises(QueueError, match=r"gives 16 GPUs; there are 8"):
        replay_queue(jobs, TOTAL, lambda queue, free, now: queue.asked)
    with pytest.raises(QueueError, match="cannot run on 3 GPUs"):
        replay_queue(jobs, TOTAL, lambda queue, free, now: np.array([3, 0]))
    with pytest.raises(QueueError, match="would wait for ever"):
        replay_queue(jobs, TOTAL, lambda queue, free, now: np.zeros(len(queue), dtype=np.int64))


def test_restarts_cost_their_seconds() -> None:
    jobs = job_list(["long", "short"], [0, 10], [100, 20], gpus=[8, 8])
    done = replay_queue(jobs, TOTAL, "srtf", rescale_s=7)
    assert done.end_s.tolist() == [127, 30]


def test_slots_let_gpus_go_at_boundaries() -> None:
    jobs = job_list(["a", "b"], [0, 1], [10, 10], gpus=[8, 8])
    done = replay_queue(jobs, TOTAL, "fifo", slot_s=8)
    assert done.start_s.tolist() == [0, 16]
    assert done.end_s.tolist() == [10, 26]


def test_slow_nodes_slow_jobs() -> None:
    jobs = job_list(["a", "b"], [0, 0], [10, 10], gpus=[4, 4])
    slow = SlowNodes(share=1.0, factor=1.5)
    assert replay_queue(jobs, TOTAL, "fifo", slow=slow).end_s.tolist() == [15, 15]
    none = SlowNodes(share=0.0, factor=9.0)
    assert replay_queue(jobs, TOTAL, "fifo", slow=none).end_s.tolist() == [10, 10]


def test_slowdowns_of_a_fleet_slow_jobs() -> None:
    jobs = job_list([str(i) for i in range(40)], [0] * 40, [10] * 40, gpus=[1] * 40)
    slow = SlowJobs(np.array([1.0, 1.5]))
    jct = replay_queue(jobs, 40, "fifo", slow=slow).jct_s
    assert set(jct.tolist()) == {10, 15}
    with pytest.raises(QueueError, match="each at least 1"):
        SlowJobs(np.array([0.5]))


def test_job_beyond_the_cluster_is_refused() -> None:
    jobs = job_list(["big", "small"], [0, 0], [10, 10], gpus=[16, 8])
    done = replay_queue(jobs, TOTAL, "fifo")
    assert dict(done.refused) == {0: "asks for 16 GPUs of a cluster of 8"}
    assert done.end_s[1] == 10
    assert np.isnan(done.jct_s[0])


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("deadline lies before", lambda: job_list(["a"], [5], [1], gpus=[1], deadline_s=[4])),
        ("occurs twice", lambda: job_list(["a", "a"], [0, 1], [1, 1], gpus=[1, 1])),
        ("its work is", lambda: job_list(["a"], [0], [0], gpus=[1])),
        ("submission_time is", lambda: job_list(["a"], [-1], [1], gpus=[1])),
        ("differ in length", lambda: job_list(["a"], [0, 1], [1], gpus=[1])),
        ("at least 1 GPU", lambda: replay_queue(job_list(["a"], [0], [1], gpus=[1]), 0)),
        (
            "whole nodes",
            lambda: replay_queue(job_list(["a"], [0], [1], gpus=[1]), 12),
        ),
        ("no policy", lambda: replay_queue(job_list(["a"], [0], [1], gpus=[1]), 8, "magic")),
        (
            "no throughputs of",
            lambda: replay_queue(
                job_list(["a"], [0], [1], curve=["x"]), 8, "elasticflow", Throughputs.of({})
            ),
        ),
        (
            "does not say its num_gpu",
            lambda: replay_queue(
                job_list(["a"], [0], [1], curve=["x"]), 8, "fifo", Throughputs.of({("x", 1): 1.0})
            ),
        ),
    ],
)
def test_impossible_queues_are_refused(words: str, make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(QueueError, match=words):
        make()
