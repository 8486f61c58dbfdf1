"""Numbers among equal rows, against counting in a loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.occurrence import count_in_runs, occurrence


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_as_counted_one_by_one(rows):
    one, other = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    order = np.lexsort((other, one))
    seen: dict = {}
    expected = np.zeros(len(rows), dtype=np.int64)
    for place in order.tolist():
        expected[place] = seen.setdefault(rows[place], 0)
        seen[rows[place]] += 1
    assert occurrence((one, other), order).tolist() == expected.tolist()


def test_a_run_ends_where_any_key_changes():
    assert count_in_runs((np.array([1, 1, 1, 2, 1]), np.array([0, 0, 5, 5, 5]))).tolist() == [
        *(0, 1, 0, 0, 0)
    ]
