"""Numbers with their units."""

import pytest

from paceline.units import duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.0693, "69.3 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (1.444, "1.44 s"),
        (24.0, "24 s"),
        (119.9, "120 s"),
        (120.0, "2.0 minutes"),
        (9000.0, "2.5 hours"),
        (1e8, "1,157.4 days"),
        (-0.02, "−20.0 ms"),
        (float("nan"), "–"),
    ],
)
def test_seconds_that_are_lost_have_one_form(value, text):
    assert duration(value) == text
