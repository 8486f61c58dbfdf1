"""Which NIC, rail or direction is slow: from proxies that ``native/network.c`` plays, and by hand.

``real/test_nccl_library.py`` has the same of NVIDIA's own library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import nccl
from paceline.cli.main import run
from paceline.detect.nic_names import name_nics
from paceline.detect.nics import Network, Nic, network
from paceline.errors import TraceError
from paceline.sources.call_logs.nccl_log import read_channels
from paceline.sources.call_logs.nccl_profiler import SUFFIX
from paceline.sources.call_logs.nccl_ranks import read_ranks
from paceline.sources.call_logs.proxy_steps import Operations, operations, plugin_events

NATIVE = Path(__file__).parent / "native"
CC = shutil.which(os.environ.get("CC", "cc"))
#: As in tests/native/network.c.
RANKS, HOST, ROUNDS, STEPS, BYTES = 8, 4, 10, 3, 1 << 20


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if CC is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path_factory.mktemp("network")
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    sources = sorted(nccl.NATIVE.glob("*.c"))
    plugin = [CC, *nccl.FLAGS.split(), *strict, "-o", folder / nccl.PLUGIN, *sources]
    own = [CC, *strict, f"-I{nccl.NATIVE}", "-o", folder / "network", NATIVE / "network.c", "-ldl"]
    subprocess.run(plugin, check=True)
    subprocess.run(own, check=True)
    return folder


def play(built, folder, what, number, version=6, events="0xdf"):
    """The folder of a job whose network is slow somewhere."""
    command = [built / "network", built / nccl.PLUGIN, str(version), what, str(number)]
    env = {**os.environ, "PACELINE_RECORD": str(folder), "PACELINE_NCCL_EVENTS": events}
    subprocess.run(command, check=True, env=env, timeout=120)
    return folder


def judged(folder) -> Network:
    processes, _ = read_ranks(sorted(folder.glob(f"*{SUFFIX}")))
    told = operations(processes)
    return network(told, *name_nics(told, processes))


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_one_slow_direction_of_one_nic_is_named(built, tmp_path, version):
    (slow,) = judged(play(built, tmp_path, "send", 5, version)).slow
    assert slow.kind == "nic"
    assert slow.send == Nic("node1", "NIC of rank 5", "of local rank 1")
    assert slow.recv is None
    assert 2.8 < slow.low <= slow.ratio <= slow.high < 3.2


def test_a_slow_receiver_is_told_from_slow_senders(built, tmp_path):
    (slow,) = judged(play(built, tmp_path, "recv", 2)).slow
    assert (slow.send, slow.recv.name, slow.recv.host) == (None, "NIC of rank 2", "node0")
    assert 2.8 < slow.low < slow.high < 3.2


def test_a_slow_rail_is_named_once(built, tmp_path):
    (slow,) = judged(play(built, tmp_path, "rail", 1)).slow
    assert (slow.kind, slow.rail) == ("rail", "of local rank 1")


def test_a_healthy_network_names_nobody_though_a_gpu_and_a_peer_are_late(built, tmp_path):
    found = judged(play(built, tmp_path, "none", 0))
    assert (found.slow, found.notes) == ((), ())
    sends = {row.ranks[0]: row for row in found.rows if row.direction == "send"}
    assert sends[0].gpu_s == pytest.approx(2 * ROUNDS * STEPS * 4e-3)
    assert sends[2].gpu_s == pytest.approx(2 * ROUNDS * STEPS * 50e-6)
    assert sends[1].peer_s == pytest.approx(2 * ROUNDS * STEPS * 5 * 400e-6)
    assert sends[2].peer_s == pytest.approx(2 * ROUNDS * STEPS * 5e-6)
    for row in sends.values():
        assert (row.transfers, row.operations) == (2 * ROUNDS * STEPS, 2 * ROUNDS)
        assert row.size == 2 * ROUNDS * STEPS * BYTES
        assert 2 * ROUNDS * STEPS * 300e-6 < row.network_s < 2 * ROUNDS * STEPS * 313e-6


def test_what_is_told_again_and_again_is_recorded_once(built, tmp_path):
    play(built, tmp_path, "none", 0)
    processes, _ = read_ranks(sorted(tmp_path.glob(f"*{SUFFIX}")))
    assert len(processes) == RANKS
    for process in processes.values():
        assert process.dropped == 0
        waits = process.records[(process.records["what"] == 2) & (process.records["state"] == 20)]
        assert len(waits) == len(np.unique(waits["handle"])) == 2 * ROUNDS * STEPS


@pytest.mark.parametrize(("what", "plugin"), [(0, "IB"), (3, "Socket")])
def test_events_of_the_network_plugin_are_read_and_unknown_ones_kept(built, tmp_path, what, plugin):
    play(built, tmp_path, "none", what)
    processes, _ = read_ranks(sorted(tmp_path.glob(f"*{SUFFIX}")))
    of_rank_4 = [one for one in plugin_events(processes) if one.rank == 4]
    devices = (0, 1) if plugin == "IB" else (-1,)
    each = 2 * ROUNDS * 2 // len(devices)
    assert [(one.plugin, one.device, one.direction, one.events, one.size) for one in of_rank_4] == [
        ("0x77777", -1, "send", 2 * ROUNDS, 0),
        *[(plugin, device, "send", each, each * BYTES) for device in devices],
    ]
    assert of_rank_4[1].bytes_per_s == pytest.approx(BYTES / 306e-6, rel=0.03)


def test_without_steps_the_command_says_that_it_cannot_tell(built, tmp_path, capsys):
    play(built, tmp_path, "send", 5, events="0x4f")
    assert run(["nccl", "waits", str(tmp_path)]) == 0
    assert "is unknown: the proxies" in capsys.readouterr().out
    assert run(["nccl", "waits", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nics"] == []


def write_log(folder, log):
    """What NCCL says of the channels of the job whose files are in the folder."""
    processes, _ = read_ranks(sorted(folder.glob(f"*{SUFFIX}")))
    lines = ["not a line of NCCL's\n"]
    for rank, process in processes.items():
        head = f"{process.meta['host']}.lan:{process.meta['pid']}:7 [0] NCCL INFO Channel"
        for peer in range(RANKS):
            way = f": {rank}[{rank % HOST}] -> {peer}[0] [send] via NET/IB/{rank % HOST}/GDRDMA"
            back = f": {peer}[0] -> {rank}[0] [receive] via NET/IB/{rank % HOST}(2)/GDRDMA/Shared"
            lines += [f"{head} {channel:02}/0 {one}\n" for channel in (0, 1) for one in (way, back)]
    log.write_text("".join(lines))
    return log


def test_the_command_names_nics_as_nccls_log_does(built, tmp_path, capsys):
    log = write_log(play(built, tmp_path, "send", 5), tmp_path / "nccl.log")
    assert run(["nccl", "waits", str(tmp_path), "--nccl-log", str(log)]) == 0
    assert "IB/1 of node1, send: slow" in capsys.readouterr().out


def test_a_log_that_names_no_channel_is_refused(tmp_path):
    path = tmp_path / "log"
    path.write_text("a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    with pytest.raises(TraceError, match="NCCL_DEBUG=INFO"):
        read_channels([path])


def test_the_lines_of_old_and_new_versions_are_read(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "10-9-4-1:120:121 [2] NCCL INFO Channel 01 : 3[ca000] -> 0[87000] [receive] via NET/IB/5\n"
        "h1:9:8 [7] NCCL INFO Channel 07/0 : 47[7] -> 39[7] [send] via NET/IBext_v8/2/GDRDMA\n"
    )
    old, new = read_channels([path])
    assert (old.pid, old.channel, old.place, old.peer, old.is_send) == (120, 1, 0, 3, False)
    assert (new.host, new.place, new.peer, new.is_send, new.nic) == (
        "h1",
        47,
        39,
        True,
        "IBext_v8/2",
    )


# By hand: operations (from, to, bytes, seconds), told by their senders.


def of_links(rows) -> tuple[Operations, list[Nic], list[Nic]]:
    source, target, size, seconds = map(np.array, zip(*rows, strict=True))
    n, zero = len(rows), np.zeros(len(rows))
    told = Operations(
        rank=source, peer=target, place=source, peer_place=target, is_send=np.ones(n, dtype=bool),
        channel=np.zeros(n, dtype=int), size=size, steps=np.ones(n, dtype=int),
        network_s=seconds.astype(float), gpu_s=zero, peer_s=zero,
    )  # fmt: skip
    nics = [Nic(f"h{rank}", "IB/0", "IB/0") for rank in range(9)]
    return told, [nics[a] for a in source], [nics[b] for b in target]


def ring(slow, n=4, count=6):
    return [
        (a, (a + 1) % n, 1000, 3e-3 if (a, (a + 1) % n) == slow else 1e-3)
        for a in range(n)
        for _ in range(count)
    ]


def test_in_a_ring_the_link_is_named_and_which_end_cannot_be_told():
    (slow,) = network(*of_links(ring((1, 2)))).slow
    assert (slow.kind, slow.send.host, slow.recv.host) == ("link", "h1", "h2")
    assert "the slow end is unknown" in slow.to_text()


def test_another_link_of_an_end_clears_it():
    rows = [*ring((1, 2)), *[(0, 2, 1000, 1e-3)] * 6]
    (slow,) = network(*of_links(rows)).slow
    assert (slow.kind, slow.send.host, slow.recv) == ("nic", "h1", None)
    rows += [(1, 3, 1000, 1e-3)] * 6
    (slow,) = network(*of_links(rows)).slow
    assert slow.kind == "path"


def test_few_operations_or_links_tell_nothing():
    for rows in (ring((1, 2), count=5), ring((0, 1), n=2)):
        found = network(*of_links(rows))
        assert found.slow == ()
        assert "no NIC can be judged" in found.notes[0]
        assert all(np.isnan(row.ratio) for row in found.rows)


def test_links_that_move_other_sizes_are_not_like():
    rows = [*ring(None), *[(a, b, 9, 1e-3) for a, b, _, _ in ring(None)]]
    assert network(*of_links(rows)).slow == ()
