"""The pause's protocol, by exhaustive search over all interleavings of three ranks.

A wrong protocol is caught: each of the last tests takes one of its rules away.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pause_model
from pause_model import Model, Rank, search

#: Without deaths, deadlines and stale looks at the helper's word.
CALM = {"killed": 0, "asker_dies": False, "deadlines": False, "blind": False}


def test_three_ranks_one_killed_at_any_moment_and_the_asker_too() -> None:
    found = search(Model(plans=(1, 2)))
    assert found.states > 70_000
    assert found.held
    assert found.missed
    assert found.undisturbed


def test_all_of_two_ranks_may_be_killed() -> None:
    assert search(Model(ranks=2, plans=(1, 2, 1), killed=2)).undisturbed


def test_without_deaths_no_deadline_is_needed() -> None:
    found = search(Model(plans=(1, 2, 1), **CALM))
    assert found.undisturbed
    assert found.missed


def test_an_asker_that_does_not_wait_for_all_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_model, "judge", lambda phase, places: "held")
    pause_model.decide.cache_clear()
    with pytest.raises(AssertionError, match="a rank never stopped"):
        search(Model(ranks=2, plans=(1, 2), **CALM))
    pause_model.decide.cache_clear()


def test_a_margin_that_no_rank_reaches_holds_nobody() -> None:
    found = search(Model(plans=(1, 2), margin=9, killed=0))
    assert found.held == 0


#: Ranks 0 and 1 are all ranks of a smaller communicator; rank 2 is in that of all only.
GROUPED = {**CALM, "plans": (1, 2), "groups": (1, 1, 0)}


def test_slots_that_come_one_after_the_other_and_smaller_groups() -> None:
    found = search(Model(**GROUPED))
    assert found.undisturbed
    assert found.missed
    assert search(Model(**{**GROUPED, "killed": 1, "deadlines": True})).held


def test_an_asker_that_takes_a_group_for_the_job_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once did, where the slots of a group's ranks came first."""
    monkeypatch.setattr(pause_model.asker, "_largest", lambda slots: 0)
    pause_model.choose.cache_clear()
    with pytest.raises(AssertionError, match="a rank never stopped"):
        search(Model(**GROUPED))
    pause_model.choose.cache_clear()


def test_before_there_is_a_communicator_of_all_the_launchers_number_of_ranks_counts() -> None:
    """Without it, nothing says that two groups of two are one job of four."""
    early = {**CALM, "plans": (1, 2), "ranks": 3, "groups": (1, 1, 2), "world": False}
    assert search(Model(**early, named=3)).held == 0
    with pytest.raises(AssertionError, match="a rank never stopped"):
        search(Model(**early))


class StopsLater(Model):
    """A rank that saw the number too late stops at the next plan instead."""

    def _issue(self, world, rank: Rank) -> Iterator[Rank]:
        for issued in super()._issue(world, rank):
            if rank.helper == "armed" and issued.helper == "missed":
                after = self.issued(issued)
                stopped = issued._replace(stopped_at=after, slot=rank.slot, read=rank.read)
                yield self._to(stopped, "arrived", number=after, signature="")
            else:
                yield issued


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (StopsLater(plans=(1, 1, 1), killed=0, asker_dies=False), "two ranks stopped"),
        (Model(killed=0, asker_dies=False, deadlines=False), "stands for ever"),
        (Model(**{**CALM, "killed": 1}), "stands for ever"),
    ],
)
def test_a_protocol_without_one_of_its_rules_is_caught(model: Model, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        search(model)
