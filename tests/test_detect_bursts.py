"""Which onsets of a file were bursts."""

import pytest

from paceline.detect.bursts import bursts_of
from paceline.detect.event import Estimate, Event


def event(kind, rank, refined=None):
    estimate = None if refined is None else Estimate(refined, refined, refined, 9)
    return Event(kind, rank, 10, 8, 1.5, 1.0, 1.0, refined=estimate)


@pytest.mark.parametrize(
    ("events", "bursts"),
    [
        ([event("onset", 0, 1.01), event("relief", 0)], {0}),
        ([event("onset", 0, 1.30), event("relief", 0)], set()),
        ([event("onset", 0, 1.01), event("faster", 0, 0.7)], {0}),
        ([event("onset", 0, 1.01)], set()),  # it goes on
        ([event("onset", 0), event("relief", 0)], set()),  # BOCD has no factor in the end
        ([event("onset", 0, 1.01), event("worsening", 0, 1.4), event("relief", 0)], set()),
        (
            [
                event("onset", 0, 1.4),
                event("onset", 1, 1.0),
                event("relief", 1),
                event("relief", 0),
            ],
            {1},
        ),
    ],
)
def test_bursts(events, bursts):
    assert bursts_of(events) == bursts
