"""Who is waited for, from files that NCCL Inspector's own writer made for Prometheus.

NVIDIA/nccl v2.30.7-1, ``plugins/profiler/inspector/inspector_prom.cc``, compiled without CUDA
(``inspector_writers.py``); its README's example lines are read, too.
"""

import random

import pytest

import inspector_writers
import requires
from paceline.cli.main import run
from paceline.detect.mean_waits import mean_waits
from paceline.sources import nccl_metrics

NCCL = "v2.30.7-1"
RANKS, TP, CALLS, BYTES = 16, 4, 20, 5 << 20


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    return inspector_writers.writer(NCCL, tmp_path_factory.mktemp("inspector") / "build")


def groups_of(rank: int) -> list[tuple[str, list[int]]]:
    """Tensor-parallel groups of neighbours, and data-parallel ones across them."""
    tp = rank // TP
    return [
        (f"tp-{tp}", [tp * TP + n for n in range(TP)]),
        (f"dp-{rank % TP}", list(range(rank % TP, RANKS, TP))),
    ]


def job(arrival_us, transfer_us, *, per_node=8, names=True) -> str:
    """What each rank's Inspector measured: from its own arrival to the common end.

    Args:
        arrival_us: (rank, group's name, call) -> when the rank comes.
        transfer_us: group's name -> what the transfer takes once all are there.
        per_node: ranks on a node.
        names: whether the program names its communicators.
    """
    lines = []
    for rank in range(RANKS):
        lines.append(f"gpu node-{rank // per_node} {rank:08x}-uuid {rank % per_node}")
        for name, members in groups_of(rank):
            n_nodes = len({member // per_node for member in members})
            lines.append(f"comm {name if names else '-'} {len(members)} {n_nodes}")
            for call in range(CALLS):
                last = max(arrival_us(member, name, call) for member in members)
                took = round(last - arrival_us(rank, name, call) + transfer_us(name))
                lines.append(f"call AllReduce {BYTES} {took} {BYTES / took / 1e3:.6f} RING SIMPLE")
    return "\n".join(lines) + "\n"


def judged(paths):
    means, notes = nccl_metrics.read(paths)
    return mean_waits(means), notes


def jitter(seed):
    rng = random.Random(seed)
    drawn: dict = {}
    return lambda rank, name, call: drawn.setdefault((rank, name, call), rng.uniform(0, 20))


def test_the_slow_rank_is_waited_for(write, tmp_path) -> None:
    noise = jitter(1)

    def arrival(rank, name, call):
        # Rank 6 is late for its tensor-parallel group; that group is late for the gradients.
        slow = 400 if rank == 6 else 0
        return noise(rank, name, call) + (slow if name == "tp-1" else 1000 * (rank // TP == 1))

    paths = write(job(arrival, lambda _: 300), tmp_path / "files")
    result, notes = judged(paths)
    assert not notes
    assert (result.n_gpus, result.n_judged) == (RANKS, 8)
    assert [(gpu.node, gpu.name) for gpu in result.who] == [("node-0", "GPU6")]
    # The four data-parallel groups wait a millisecond for a rank of group 1, that group for rank 6.
    assert {wait.bucket.communicator for wait in result.waits} == {
        "tp-1", *(f"dp-{n}" for n in range(TP)),
    }  # fmt: skip
    of_tp = next(wait for wait in result.waits if wait.bucket.communicator == "tp-1")
    assert of_tp.others_us - of_tp.late_us == pytest.approx(400, abs=20)
    assert not result.slow


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_job_has_nobody_late_and_no_slow_link(write, tmp_path, seed) -> None:
    paths = write(job(jitter(seed), lambda _: 300), tmp_path / "files")
    result, _ = judged(paths)
    assert result.n_judged == 8
    assert not result.waits
    assert not result.slow
    assert not result.who


def test_a_slow_rail_is_told_from_the_communicators_alike(write, tmp_path) -> None:
    paths = write(job(jitter(2), lambda name: 600 if name == "dp-2" else 300), tmp_path / "files")
    result, _ = judged(paths)
    (slow,) = result.slow
    assert slow.bucket.communicator == "dp-2"
    assert slow.alike_gbs / slow.bandwidth_gbs == pytest.approx(2, rel=0.1)
    assert {gpu.name for gpu in slow.gpus} == {"GPU2", "GPU6"}
    assert not result.who


def test_communicators_without_names_are_not_judged(write, tmp_path) -> None:
    paths = write(job(jitter(3), lambda _: 300, names=False), tmp_path / "files")
    result, notes = judged(paths)
    assert result.n_judged == 0
    assert not result.who
    # Means of two communicators of four ranks on one node stand in a file under one name.
    text = " ".join((*notes, *result.notes))
    assert "several communicators share the name" in text


def test_of_some_files_no_communicator_is_judged(write, tmp_path) -> None:
    paths = write(job(jitter(4), lambda _: 300), tmp_path / "files")
    result, _ = judged(paths[:6])
    assert {wait.bucket.communicator for wait in result.waits} <= {"tp-0"}
    assert result.n_judged == 1
    assert "give the files of all GPUs" in " ".join(result.notes)


def test_processes_that_see_one_gpu_each_are_told_apart_by_the_files(write, tmp_path) -> None:
    text = job(jitter(5), lambda _: 300)
    lines = [f"{line[:-1]}0" if line.startswith("gpu") else line for line in text.splitlines()]
    result, _ = judged(write("\n".join(lines) + "\n", tmp_path / "files"))
    assert result.n_gpus == RANKS
    assert result.n_judged == 8


def test_the_command(write, tmp_path, capsys) -> None:
    def arrival(rank, name, call):
        return 500.0 * (rank == 9)

    write(job(arrival, lambda _: 200), tmp_path / "files", "77")
    assert run(["detect", "--collectives", str(tmp_path / "files")]) == 0
    assert "waited for: GPU1 of node-1 (00000009-uuid)" in capsys.readouterr().out


def test_the_readme_s_lines(tmp_path) -> None:
    page = requires.source("NVIDIA/nccl", NCCL, "plugins/profiler/inspector/README.md")
    lines = [line for line in page.splitlines() if line.startswith("nccl_")]
    assert len(lines) == 4
    path = tmp_path / "nccl_inspector_metrics_x.prom"
    path.write_text("\n".join(lines) + "\n")
    collective, sent = nccl_metrics.read([path])[0]
    assert (collective.time_us, collective.bandwidth_gbs) == (9498.47, 678.263)
    assert (sent.bucket.operation, sent.bucket.size) == ("Send", "512-513MB")
