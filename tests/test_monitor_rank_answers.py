"""The API's ranks over time: which ranks, in which groups, and who may see them."""

import numpy as np
import pytest

import requires

requires.installed("starlette")

import monitor_site
from monitor_web import eventually
from paceline.client import Client
from paceline.monitor.rank_groups import by_host, by_number, fewer_bins, hosts_of, some_ranks
from paceline.monitor.rank_map import BIN, Ratios

site, lines = monitor_site.site, monitor_site.lines


def ratios(values, ranks=None, steps=None):
    values = np.array(values, np.float32)
    bins = np.zeros(len(values), BIN)
    bins["steps"] = 1 if steps is None else steps
    bins["last"] = np.cumsum(bins["steps"]) - 1
    bins["first"] = bins["last"] - bins["steps"] + 1
    ranks = np.arange(values.shape[1]) if ranks is None else ranks
    return Ratios(np.array(ranks, np.int32), bins, values)


class TestGroups:
    def test_few_ranks_are_a_row_each(self):
        rows = by_number(ratios([[1.0, 2.0, 0.5], [1.0, np.nan, 3.0]]), 3)
        assert not rows.is_grouped
        assert [ranks.tolist() for ranks in rows.ranks] == [[0], [1], [2]]
        wanted = np.array([[1.0, 1.0], [2.0, np.nan], [0.5, 3.0]], np.float32)
        assert np.array_equal(rows.values, wanted, equal_nan=True)
        assert rows.slowest.tolist() == [[0, 0], [1, -1], [2, 2]]

    def test_many_are_grouped_by_their_numbers_and_the_slowest_tells(self):
        values = [[1.0, 1.1, 1.2, 1.3, 0.9], [1.5, 1.1, np.nan, np.nan, 1.0]]
        rows = by_number(ratios(values, ranks=[0, 1, 2, 3, 9]), 3)
        assert rows.is_grouped
        assert [ranks.tolist() for ranks in rows.ranks] == [[0, 1], [2, 3], [9]]
        wanted = np.array([[1.1, 1.5], [1.3, np.nan], [0.9, 1.0]], np.float32)
        assert np.array_equal(rows.values, wanted, equal_nan=True)
        assert rows.slowest.tolist() == [[1, 0], [3, -1], [9, 9]]

    def test_a_host_is_a_group_where_all_are_known(self):
        found = ratios([[1.0, 1.4, 1.1]])
        hosts = {0: ("b", "0"), 1: ("a", "0"), 2: ("b", "1")}
        rows = by_host(found, hosts, 2)
        assert (rows.names, [ranks.tolist() for ranks in rows.ranks]) == (("b", "a"), [[0, 2], [1]])
        assert rows.slowest.tolist() == [[2], [1]]
        assert by_host(found, hosts, 1) is None
        assert by_host(found, {0: ("b", "0")}, 9) is None

    def test_bins_are_merged_by_their_steps(self):
        values = [[1.0, 2.0], [4.0, np.nan], [1.0, 1.0]]
        found = fewer_bins(ratios(values, steps=[3, 1, 5]), 2)
        assert found.bins[["first", "last", "steps"]].tolist() == [(0, 3, 4), (4, 8, 5)]
        assert found.values.tolist() == [[1.75, 2.0], [1.0, 1.0]]
        assert fewer_bins(found, 2) is found

    def test_nothing_is_no_row(self):
        none = some_ranks(ratios([[1.0, 2.0]]), [(5, 9)])
        rows = by_number(none, 4)
        assert (rows.ranks, rows.values.shape, rows.is_grouped) == ((), (0, 1), False)
        assert by_host(none, {}, 4) is None

    @pytest.mark.parametrize("meta", [None, [], {"hosts": [1]}, {"hosts": {"x": ["a", "b"]}}])
    def test_what_is_no_host_is_left_out(self, meta):
        assert hosts_of(meta) == {}
        assert hosts_of({"hosts": {"3": ["n", "0"], "4": "n"}}) == {3: ("n", "0")}


@pytest.fixture
def filled(site):
    """A job of 20 ranks and 6 steps; rank 13 takes 1.5 times as long from step 3 on."""
    seconds = np.ones((6, 20))
    seconds[3:, 13] = 1.5
    samples = [[n, rank, seconds[n, rank]] for n in range(6) for rank in range(20)]
    body = {"source": "a", "batch": 1, "world": 20, "samples": samples}
    token = site.token("push", "llm")
    assert site.ask("POST", "/api/v1/jobs/job/steps", token=token, body=body).status == 200
    read = site.token("read", "llm")
    path = "/api/v1/jobs/job/ranks"
    eventually(lambda: len(site.ask("GET", path, token=read).json["first"]) == 6)
    return lambda query="": site.ask("GET", f"{path}{query}", token=read)


class TestApi:
    def test_ranks_and_groups(self, site, filled):
        all_ranks = filled().json
        assert all_ranks["ranks"] == all_ranks["last_ranks"] == list(range(20))
        assert (all_ranks["first"], all_ranks["steps"]) == (list(range(6)), [1] * 6)
        assert all_ranks["values"][13] == [1.0, 1.0, 1.0, 1.5, 1.5, 1.5]
        assert (all_ranks["grouped"], all_ranks["slowest"]) == (False, None)
        groups = filled("?rows=5").json
        assert (groups["ranks"], groups["last_ranks"]) == ([0, 4, 8, 12, 16], [3, 7, 11, 15, 19])
        assert groups["grouped"] is True
        assert groups["values"][3] == [1.0, 1.0, 1.0, 1.5, 1.5, 1.5]
        assert groups["slowest"][3][3:] == [13, 13, 13]
        some = filled("?ranks=2,12-13&first=2&last=3").json
        assert (some["ranks"], some["first"]) == ([2, 12, 13], [2, 3])
        assert filled("?ranks=99").json["ranks"] == []

    def test_the_client_asks_for_them(self, site, filled):
        client = Client(f"http://127.0.0.1:{site.port}", site.token("read", "llm"))
        assert client.ranks("job", ranks="13", first=5)["values"] == [[1.5]]

    @pytest.mark.parametrize(
        "query", ["ranks=", "ranks=a", "ranks=1-", "ranks=1,,2", "ranks=-1", "rows=1025", "first=x"]
    )
    def test_what_is_no_question_is_refused(self, filled, query):
        assert filled(f"?{query}").status == 400

    def test_a_user_of_another_project_sees_nothing(self, site, filled):
        theirs = site.token("read", "vision")
        for query in ("", "?project=llm"):
            answer = site.ask("GET", f"/api/v1/jobs/job/ranks{query}", token=theirs)
            other = site.ask("GET", f"/api/v1/jobs/job/steps{query}", token=theirs)
            assert (answer.status, answer.json["error"]) == (other.status, other.json["error"])
            assert answer.status == 404
        assert site.ask("GET", "/api/v1/jobs/job/ranks").status == 401
