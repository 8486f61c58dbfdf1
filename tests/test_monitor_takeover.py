"""An owner of leases is killed, or paused, while step times come: none lost, no event twice."""

import signal
import time

import pytest

import requires

requires.installed("starlette", "fsspec")

from monitor_durability import make_trace
from monitor_instances import check_log, events_of, several
from monitor_lab import Server, Steps
from monitor_postgres import programs

pytestmark = pytest.mark.skipif(
    programs() is None, reason="PostgreSQL is not installed: apt-get install postgresql"
)

#: Longer than instances/membership.py's LIFE_S.
OVER_S = 13.0


def stream(instances, n, slow_from=120):
    client = instances.client()
    found = [Steps(instances.client(), f"job-{i}", 4, slow_from, 0.02) for i in range(n)]
    for each in found:
        client.register(each.name, gpus=each.ranks)
        each.start()
    return client, found


def end(streams, least=200):
    until = time.monotonic() + 120
    while any(len(each.acknowledged) < least for each in streams):
        assert time.monotonic() < until
        assert all(each.is_alive() for each in streams), [each.error for each in streams]
        time.sleep(0.1)
    for each in streams:
        each.end()


def check(instances, client, streams, tmp_path):
    """What was acknowledged is there, and the events are those of a single service."""
    until = time.monotonic() + 90
    while any(client.job(each.name)["last_step"] != len(each.acknowledged) - 1 for each in streams):
        assert time.monotonic() < until, [client.job(each.name) for each in streams]
        time.sleep(0.2)
    time.sleep(1.5)  # rows of the series follow
    for each in streams:
        check_log(instances.store, client.job(each.name)["id"], each)
        series = client.steps(each.name, points=0)
        assert series["step"] == list(range(len(each.acknowledged)))
        assert set(series["samples"]) == {each.ranks}
    with Server(tmp_path / "single") as single:
        other = single.client()
        for each in streams:
            steps = [step for step in each.acknowledged for _ in range(each.ranks)]
            ranks = [*range(each.ranks)] * len(each.acknowledged)
            times = [seconds for row in each.acknowledged.values() for seconds in row]
            other.push_steps(each.name, steps, ranks, times, source="start/0", world=each.ranks)
        last = {each.name: len(each.acknowledged) - 1 for each in streams}
        until = time.monotonic() + 90
        while any(other.job(name)["last_step"] != step for name, step in last.items()):
            assert time.monotonic() < until
            time.sleep(0.2)
        for each in streams:
            assert events_of(client, each.name) == events_of(other, each.name)
            assert [kind for kind, *_ in events_of(other, each.name)] == ["onset"]


def test_the_owner_is_killed_while_steps_and_traces_come(tmp_path):
    with several(tmp_path, 3) as instances:
        worker = instances.add_worker()
        client, streams = stream(instances, 6)
        time.sleep(2)
        session = client.push_trace("traced", make_trace(tmp_path, 1))
        instances.owner().kill()
        worker.kill()
        other = client.push_trace("traced", make_trace(tmp_path, 2))
        time.sleep(OVER_S)
        end(streams)
        check(instances, client, streams, tmp_path)
        for number in (session, other):
            assert client.wait(number, 120)["status"] == "done"
            assert client.result(number)["slowdown"] > 1


def test_a_paused_owner_that_comes_back_changes_nothing(tmp_path):
    with several(tmp_path, 2) as instances:
        client, streams = stream(instances, 4)
        time.sleep(2)
        paused = instances.owner()
        before = set(instances.leases(paused))
        assert before
        paused.process.send_signal(signal.SIGSTOP)
        time.sleep(OVER_S)
        left = next(server for server in instances.servers if server is not paused)
        assert set(instances.leases(left)) >= before
        paused.process.send_signal(signal.SIGCONT)
        end(streams)
        check(instances, client, streams, tmp_path)
