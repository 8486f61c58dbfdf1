"""Slow ranks and links from times that are given."""

import json

import numpy as np
import pytest

from paceline.detect.passes import ring_passes, tree_passes
from paceline.detect.verdict import Measurements, Place, judge


def measured(gemm_ms=(), link_ms=None, hosts=None, devices=None, backend="gloo"):
    """Times in ms, one number or a list of rounds each; all on one host of CPUs unless said."""

    def rounds(value):
        return [v / 1e3 for v in (value if isinstance(value, list) else [value])]

    links = link_ms or {}
    n = max([len(gemm_ms), *(rank + 1 for link in links for rank in link)])
    places = {
        rank: Place((hosts or ["a"] * n)[rank], (devices or ["CPU"] * n)[rank]) for rank in range(n)
    }
    return Measurements(
        gemm_s={rank: rounds(value) for rank, value in enumerate(gemm_ms)},
        link_s={link: rounds(value) for link, value in links.items()},
        places=places,
        gemm=384,
        message_bytes=1 << 20,
        backend=backend,
    )


def ring(n, slow=(), ms=2.0, slow_ms=4.0):
    links = [link for each in ring_passes(range(n)) for link in each]
    return {link: slow_ms if link in slow else ms for link in links}


def names(slow):
    return [each.ranks for each in slow]


def test_a_slow_rank_in_words():
    verdict = judge(measured([8.7] * 5 + [12.3] + [8.6, 8.8]))
    (slow,) = verdict.slow_ranks
    assert slow.ranks == (5,)
    assert slow.factor == pytest.approx(12.3 / 8.7)
    assert verdict.lines() == [
        "rank 5: GEMM 1.41x its peers' median (12.3 ms against 8.7 ms, bound 9.57 ms)"
    ]


def test_the_slowest_first():
    assert names(judge(measured([1, 1, 1.5, 1, 2, 1, 1])).slow_ranks) == [(4,), (2,)]


def test_within_the_floor_nothing_is_slow():
    verdict = judge(measured([1, 1, 1, 1, 1.09], ring(4, {(0, 1)}, slow_ms=2.4)))
    assert verdict.lines() == ["no slow rank or link"]


def test_where_peers_scatter_the_bound_grows():
    """Deviations of 5%: five robust standard deviations are 37%."""
    scattered = [0.95, 1.0, 1.05, 0.95, 1.05, 1.0, 0.95, 1.05]
    assert judge(measured([*scattered, 1.3])).slow_ranks == ()
    assert names(judge(measured([*scattered, 1.5])).slow_ranks) == [(8,)]


def test_where_a_rank_differs_from_itself_the_bound_grows():
    """Peers agree by chance; their own rounds say that they need not have."""
    shaky, slow = [1.0, 1.2, 1.4], [1.3, 1.4, 1.5]
    assert judge(measured([shaky, shaky, shaky, slow])).slow_ranks == ()
    assert names(judge(measured([[1.0, 1.01, 1.02]] * 3 + [slow])).slow_ranks) == [(3,)]


def test_cpus_count_with_their_least_gpus_with_their_median():
    rounds = [[1.0, 1.01, 1.02]] * 5 + [[1.0, 1.6, 1.6]]
    assert judge(measured(rounds)).slow_ranks == ()
    assert names(judge(measured(rounds, backend="nccl")).slow_ranks) == [(5,)]


def test_half_of_the_peers_may_be_slow():
    """The two links of one port out of the four of a ring."""
    verdict = judge(measured([1, 1, 2, 2], ring(4, {(1, 2), (2, 3)})))
    assert names(verdict.slow_ranks) == [(2,), (3,)]
    assert names(verdict.slow_links) == [(1, 2), (2, 3)]
    assert verdict.suspects == (2,)
    assert "rank 2: all its links are slow: its port?" in verdict.lines()
    assert verdict.notes == ()


def test_one_slow_link_accuses_nobody():
    verdict = judge(measured(link_ms=ring(8, {(3, 4)})))
    assert names(verdict.slow_links) == [(3, 4)]
    assert verdict.suspects == ()
    assert "without a suspect" in verdict.notes[0]
    assert "link 3 -> 4: message 2.00x" in verdict.lines()[0]


def test_a_leaf_of_a_tree_is_not_accused_by_its_only_link():
    links = {link: 2.0 for each in tree_passes(range(8)) for link in each}
    assert judge(measured(link_ms={**links, (1, 2): 9.0})).suspects == ()
    both = [link for each in tree_passes(range(8), both_ways=True) for link in each]
    slow = {link: 9.0 if 1 in link else 2.0 for link in both}
    assert judge(measured(link_ms=slow)).suspects == (1,)


def test_two_slow_ports_side_by_side():
    slow = {(2, 3), (3, 4), (4, 5)}
    assert judge(measured(link_ms=ring(8, slow))).suspects == (3, 4)


def test_links_between_hosts_are_compared_with_each_other():
    """Two hosts of four: links 3->4 and 7->0 cross, ten times as slow as those that do not."""
    hosts = ["a"] * 4 + ["b"] * 4
    verdict = judge(measured(link_ms=ring(8, {(3, 4), (7, 0)}, slow_ms=20), hosts=hosts))
    assert verdict.slow_links == ()
    assert "took 1.00x as long as link 3 -> 4" in verdict.notes[0]
    assert "of two nothing says which is usual" in verdict.notes[0]


def test_a_slow_network_card_of_one_rank_per_host():
    hosts = list("abcdefgh")
    verdict = judge(measured(link_ms=ring(8, {(6, 7), (7, 0)}), hosts=hosts))
    assert verdict.suspects == (7,)


def test_devices_of_one_kind_are_compared():
    times, devices = [1, 1, 1, 3, 3, 3, 3.9], ["H100"] * 3 + ["A100"] * 4
    assert names(judge(measured(times, devices=devices, backend="nccl")).slow_ranks) == [(6,)]


@pytest.mark.parametrize(
    ("gemm_ms", "words"),
    [
        ([9.0], "one rank on CPU (9 ms), no peer"),
        ([9.0, 18.0], "rank 1 took 2.00x as long as rank 0 (9 ms); of two"),
        ([9.0, 18.0, 18.0], "rank 0 took 9 ms, far below the median (18 ms): perhaps most"),
    ],
)
def test_few_peers_and_what_they_cannot_tell(gemm_ms, words):
    verdict = judge(measured(gemm_ms))
    assert verdict.slow_ranks == ()
    assert words in verdict.notes[0]


def test_of_three_one_slow_is_told():
    assert names(judge(measured([9.0, 18.0, 9.0])).slow_ranks) == [(1,)]


def test_nothing_measured():
    assert judge(measured()).lines() == ["no slow rank or link"]


def test_healthy_ranks_that_scatter_are_not_accused():
    """4,096 ranks of 1% and of 4% scatter."""
    for scatter in (0.01, 0.04):
        times = np.random.default_rng(0).normal(10.0, 10.0 * scatter, 4096).tolist()
        assert judge(measured(times, backend="nccl")).slow_ranks == ()
        times[77] = 10.0 * 1.45
        assert names(judge(measured(times, backend="nccl")).slow_ranks) == [(77,)]


def fleet(rng, gpus=16, slow=1.0, spread=0.01, noise=0.01):
    """Rounds of GPUs that differ, with noise; 3% of the rounds are disturbed."""
    times = (1 + spread * rng.standard_normal(gpus))[:, None]
    times = times * (1 + noise * rng.standard_normal((gpus, 5)))
    times *= np.where(rng.random(times.shape) < 0.03, 1.3, 1.0)
    times[0] *= slow
    return times.tolist()


def test_one_validation_finds_a_gpu_that_is_a_tenth_slow():
    """The bar: 95% of the trials, within 30 s."""
    rng, trials = np.random.default_rng(5), 200
    found = wrong = 0
    for _ in range(trials):
        slow = names(judge(measured(fleet(rng, slow=1.1), backend="nccl")).slow_ranks)
        found += (0,) in slow
        wrong += len(set(slow) - {(0,)})
        wrong += len(judge(measured(fleet(rng), backend="nccl")).slow_ranks)
    assert found >= 0.95 * trials
    assert wrong <= 0.002 * trials * 31


def test_json():
    result = measured([1, 1, 1, 2], ring(4, {(0, 1)}))
    mapping = json.loads(json.dumps([judge(result).to_mapping(), result.to_mapping()]))
    (rank,), (link,) = mapping[0]["slow_ranks"], mapping[0]["slow_links"]
    assert (rank["rank"], rank["seconds"], rank["factor"]) == (3, 0.002, 2.0)
    assert (link["source"], link["destination"], link["median_s"]) == (0, 1, 0.002)
    assert mapping[1]["ranks"][3] == {"rank": 3, "host": "a", "device": "CPU", "gemm_s": 0.002}
    assert mapping[1]["links"][0] == {"source": 0, "destination": 1, "seconds": 0.004}
