"""Who has not arrived, from statuses that NCCL 2.28.9 gave on GPUs.

The files are test data of ray-project/ray (Apache-2.0), below ``python/ray/train/v2/tests``: a job
of four A10G with one rank held back on purpose (commit e9aa0dd), and three of 2026-06-19 that stand
as constants in a test (commit 0365b56), one of them with a process that does not answer. NVIDIA's
documentation of NCCL v2.30.7-1 prints one, too. Of jobs that a test makes up, NCCL's own functions
print the text and the JSON (``ras_writer.py``).
"""

import ast
import random
import textwrap
from pathlib import Path

import pytest

import ras_writer
import requires
from paceline.detect.not_arrived import NotArrived, not_arrived
from paceline.detect.not_arrived_text import lates
from paceline.sources import nccl_ras, nccl_ras_text

FOLDER = "python/ray/train/v2/tests"


def constant(name: str) -> str:
    file = f"{FOLDER}/test_nccl_ras_callback.py"
    path = requires.public("ray-project/ray", "0365b56", file, "ray")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return str(ast.literal_eval(node.value))
    raise AssertionError(name)


def read(folder: Path, text: str) -> NotArrived:
    path = folder / "status.json"
    path.write_text(text)
    assert nccl_ras.matches(path)
    return not_arrived([nccl_ras.read(path)])


def test_the_rank_that_was_held_back_is_behind() -> None:
    file = f"{FOLDER}/data/health/ncclras_a10g_mismatch.json"
    path = requires.public("ray-project/ray", "e9aa0dd", file, "ray")
    result = not_arrived([nccl_ras.read(path), nccl_ras.read(path)])
    ((lag,),) = (standing.lags for standing in result.standings)
    assert (lag.rank, lag.behind, lag.launched) == (1, {"AllReduce": 1}, 0)
    assert result.moves is False
    assert [(who.host, who.pid) for who in result.who] == [("10.0.109.86", 6247)]


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("HEALTHY_RAS_JSON", []),
        ("DEAD_RANK_RAS_JSON", [("10.0.77.184", 10017)]),
        ("MULTI_COMM_RAS_JSON", [("10.0.77.184", 10207)]),
    ],
)
def test_statuses_of_june(tmp_path: Path, name: str, who: list[tuple[str, int]]) -> None:
    result = read(tmp_path, constant(name))
    assert [(process.host, process.pid) for process in result.who] == who
    assert sum(not standing.is_level for standing in result.standings) == len(who)


def test_the_documentation_s_status(tmp_path: Path) -> None:
    page = requires.source(
        "NVIDIA/nccl", "v2.30.7-1", "docs/userguide/source/troubleshooting/ras.rst"
    )
    text = page[page.index('  {\n    "nccl_version"') :].partition("\n\n")[0]
    result = read(tmp_path, textwrap.dedent(text))
    (standing,) = result.standings
    assert [(rank.rank, rank.why) for rank in standing.gone] == [(1, "unresponsive")]
    assert [who.pid for who in result.who] == [1524345]


def made_up_job(rng: random.Random, most: int = 5) -> str:
    """Nodes of 8 processes, some of which do not answer, and communicators of some of them."""
    n = 8 * rng.choice((1, 2, 4))
    state = {peer: rng.choices(("here", "mute", "dead"), (20, 1, 1))[0] for peer in range(n)}
    state[0] = "here"
    lines = [
        f"peer 10.0.0.{1 + peer // 8} {100 + peer} {peer % 8} {here:d} {dead:d}"
        for peer in range(n)
        for here, dead in [(state[peer] == "here", state[peer] == "dead")]
    ]
    for comm in range(rng.randint(1, most)):
        members = sorted([*rng.sample(range(1, n), rng.randint(2, n) - 1), 0])
        lines.append(f"comm {rng.getrandbits(60) | comm + 1:x} {len(members)}")
        calls = [rng.randint(0, 50) for _ in range(5)]
        lost = [rank for rank, peer in enumerate(members) if state[peer] != "here"]
        lost += [rank for rank, _ in enumerate(members) if rank and rng.random() < 0.03]
        for rank, peer in enumerate(members):
            if rank not in lost:
                late = [max(0, k - (rng.random() < 0.1) * rng.randint(1, 3)) for k in calls]
                flags = [rng.choices((0, 7, 6), (30, 1, 1))[0] for _ in range(2)]
                ends = [int(rng.random() < 0.05) for _ in range(2)]
                lines.append(" ".join(map(str, ["rank", rank, peer, *flags, *ends, *late])))
        lines += [f"missing {rank} {members[rank]}" for rank in dict.fromkeys(lost)]
    return "\n".join(lines)


#: Up to 2.28.9 NCCL misreads communicators behind one that lacks ranks; see the test below.
@pytest.mark.parametrize(("revision", "most"), [("v2.28.9-1", 1), ("v2.30.7-1", 5)])
def test_a_text_says_what_the_json_of_the_same_job_says(
    revision: str, most: int, tmp_path: Path
) -> None:
    writer = ras_writer.writer(revision, tmp_path)
    rng = random.Random(revision)
    n_named = n_groups = 0
    for _ in range(100):
        job = made_up_job(rng, most)
        path = tmp_path / "status"
        path.write_text(writer(job, "json"))
        whole = not_arrived([nccl_ras.read(path)])
        text = writer(job, rng.choice(("text", "verbose")))
        path.write_text(text)
        assert nccl_ras_text.matches(path)
        status = nccl_ras_text.read(path)
        assert not status.misread
        assert status.n_communicators == len(whole.standings)
        in_trouble = {t.hash: t for t in status.troubles.values()}
        for standing in whole.standings:
            trouble = in_trouble.pop(standing.communicator.hash, None)
            if trouble is None:
                assert standing.is_level
                continue
            assert trouble.size == standing.communicator.size
            lags = [
                (op, n, lag.rank, lag.process)
                for lag in standing.lags
                for op, n in lag.behind.items()
            ]
            late = lates(trouble)
            for item in late:
                alike = [lag for lag in lags if lag[:2] == (item.op, item.behind)]
                assert len(alike) == item.group.size
                named = [(item.op, item.behind, r.rank, r.process) for r in item.group.named]
                assert sorted(named) in ([], sorted(alike))
                n_named += len(named)
            assert sum(item.group.size for item in late) == len(lags)
            gone = standing.gone
            assert (0 if trouble.missing is None else trouble.missing.size) == len(gone)
            if trouble.missing is not None and trouble.missing.named:
                assert [r.rank for r in trouble.missing.named] == [rank.rank for rank in gone]
            n_groups += len(trouble.topics)
        assert not in_trouble
        mute = [line for line in job.splitlines() if line.startswith("peer") and line[-3:] == "0 0"]
        dead = [line for line in job.splitlines() if line.startswith("peer") and line[-3:] == "0 1"]
        assert (status.unresponsive[0], status.dead[0]) == (len(mute), len(dead))
        assert len(status.unresponsive[1]) in (0, len(mute))
    assert n_named > 50
    assert n_groups > 100


def test_every_release_prints_the_same_text(tmp_path: Path) -> None:
    job = made_up_job(random.Random(3), 1)
    texts = []
    for revision in ("v2.27.3-1", "v2.28.9-1", "v2.29.7-1", "v2.30.7-1"):
        folder = tmp_path / revision
        folder.mkdir()
        texts.append(ras_writer.writer(revision, folder)(job, "text").partition("\nGroup")[2])
    assert texts[0]
    assert len(set(texts)) == 1


def test_what_nccl_takes_from_a_wrong_place_is_left_out(tmp_path: Path) -> None:
    """Two communicators, the first without a rank, the second with another that is behind."""
    peers = [f"peer 10.0.0.1 {100 + n} {n} {n < 3:d} 0" for n in range(4)]
    ranks = [f"rank {n} {n} 0 0 0 0 0 0 0 0 {7 - (n == 1)}" for n in range(3)]
    comms = ["comm ab 4", *ranks, "missing 3 3", "comm cd 3", *ranks]
    job = "\n".join([*peers, *comms])
    path = tmp_path / "status"
    for revision, hashes in (("v2.30.7-1", ["0xab", "0xcd"]), ("v2.28.9-1", [])):
        path.write_text(ras_writer.writer(revision, tmp_path)(job, "text"))
        status = nccl_ras_text.read(path)
        assert [trouble.hash for trouble in status.troubles.values()] == hashes
        assert [process.pid for process in status.unresponsive[1]] == [103]
        assert status.misread == (not hashes)
