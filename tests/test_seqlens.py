import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import requires

requires.installed("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import OutputError, SynthError, TraceError
from paceline.sources.seqlens import read_seqlens, write_seqlens
from paceline.synth import draw_seqlens
from paceline.synth.sequences import microbatch_costs
from paceline.trace.seqlens import SeqLens

ROWS = [(5, 0, 0, [3, 4]), (5, 0, 1, [7]), (5, 1, 0, [1]), (5, 1, 1, [2, 2])]


def table(rows, integers="int64", lists=None, **replaced) -> pa.Table:
    kind = getattr(pa, integers)()
    columns = {
        name: pa.array([row[i] for row in rows], kind)
        for i, name in enumerate(("step", "dp_rank", "mb_id"))
    }
    columns["lengths"] = pa.array([row[3] for row in rows], lists or pa.list_(kind))
    return pa.table(columns | replaced)


def save(tmp_path, content: pa.Table, **options):
    pq.write_table(content, tmp_path / "s.parquet", **options)
    return tmp_path / "s.parquet"


def listed(seqlens: SeqLens) -> dict:
    return {
        (int(seqlens.steps[s]), int(d), int(m)): seqlens.of(s, d, m).tolist()
        for s, d, m in np.argwhere(seqlens.exists)
    }


@pytest.mark.parametrize(
    ("integers", "lists"),
    [
        ("int64", None),
        ("uint8", pa.large_list(pa.int16())),
        ("int32", pa.list_(pa.uint64())),
        ("uint64", None),
    ],
)
def test_rows_in_any_order_and_of_any_width_are_read(tmp_path, integers, lists):
    found = read_seqlens(save(tmp_path, table(ROWS[::-1], integers, lists), row_group_size=3))
    assert listed(found) == {(s, d, m): lengths for s, d, m, lengths in ROWS}
    assert found.counts.tolist() == [[2, 2]]
    tokens, squares = found.moments()
    assert tokens.tolist() == [[[7.0, 7.0], [1.0, 4.0]]]
    assert squares.tolist() == [[[25.0, 49.0], [1.0, 8.0]]]


def test_lists_of_fixed_size_are_read(tmp_path):
    rows = [(0, 0, 0, [3, 4]), (0, 0, 1, [7, 1])]
    found = read_seqlens(save(tmp_path, table(rows, lists=pa.list_(pa.int32(), 2))))
    assert listed(found) == {(0, 0, 0): [3, 4], (0, 0, 1): [7, 1]}


def test_what_is_written_is_read_again(tmp_path):
    drawn = draw_seqlens(3, (4, 2, 4), 2, 1000, seed=3)
    write_seqlens(drawn, tmp_path / "s.parquet")
    again = read_seqlens(tmp_path / "s.parquet")
    assert listed(again) == listed(drawn)
    assert again.counts.tolist() == [[4, 2, 4]] * 2
    with pytest.raises(OutputError, match="exists already"):
        write_seqlens(drawn, tmp_path / "s.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table(ROWS).drop(["lengths"]), "lacks the column lengths; sequence lengths have step"),
        (table([]), "has no rows"),
        (table(ROWS[:3]), "step 5, dp_rank 1.*|far more"),
        (table([*ROWS, (6, 0, 0, [1])]), "rows of step 6, dp_rank 1 are missing"),
        (table([(5, 1, 0, [1])]), "rows of step 5, dp_rank 0 are missing"),
        (table([(5, -1, 0, [1])]), "rows of step 5, dp_rank 0 are missing"),
        (table([(5, 0, 1, [1])]), "step 5, dp_rank 0, mb_id 0 is missing"),
        (table([*ROWS, ROWS[2]]), "step 5, dp_rank 1, mb_id 0 is there twice"),
        (table([(5, 0, 0, [3]), (5, 0, 1, [2, 0])]), r"row 1 \(step 5, dp_rank 0, mb_id 1\).* 0 t"),
        (table([(5, 0, 0, [2**40])]), "length of 1099511627776 tokens"),
        (table([(5, 0, 0, [])]), r"row 0 \(step 5, dp_rank 0, mb_id 0\) has no lengths"),
        (table([(5, 0, 0, [1, None])]), "column lengths has 1 empty values"),
        (table([(5, 0, 0, None)]), "column lengths has 1 empty values"),
        (table([(5, None, 0, [1])]), "column dp_rank has 1 empty values"),
        (table([(5, 0, 0, [1])], lists=pa.list_(pa.float32())), "holds float, not whole numbers"),
        (table(ROWS, step=pa.array([0.5] * 4)), "column step holds double, not whole numbers"),
        (table(ROWS, lengths=pa.array([1] * 4)), "column lengths holds int64, not lists"),
        (table(ROWS, step=pa.array([2**63] * 4, pa.uint64())), "step has numbers above"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, content, message):
    if "far more" in message:  # a replica with fewer microbatches is no error
        assert read_seqlens(save(tmp_path, content)).counts.tolist() == [[2, 1]]
        return
    with pytest.raises(TraceError, match=message):
        read_seqlens(save(tmp_path, content))


def test_columns_twice_folders_and_other_files(tmp_path):
    twice = pa.table([pa.array([0])] * 5, names=["step", "dp_rank", "mb_id", "lengths", "step"])
    with pytest.raises(TraceError, match="more than one column called step"):
        read_seqlens(save(tmp_path, twice))
    with pytest.raises(TraceError, match="is a folder"):
        read_seqlens(tmp_path)
    with pytest.raises(TraceError, match="does not exist"):
        read_seqlens(tmp_path / "none")
    (tmp_path / "text").write_text("PAR1 no")
    with pytest.raises(TraceError, match="not a readable parquet file"):
        read_seqlens(tmp_path / "text")


def test_one_replica_with_far_too_many_microbatches_is_refused(tmp_path):
    rows = [(0, dp, 0, [1]) for dp in range(500)]
    rows += [(0, 0, i, [1]) for i in range(1, 500)]
    with pytest.raises(TraceError, match="dp_rank 0 has 500 microbatches, far more than"):
        read_seqlens(save(tmp_path, table(rows)))


def test_lengths_of_other_steps_are_left_out():
    drawn = draw_seqlens(2, 3, 4, 100)
    found = drawn.select(np.array([1, 3]), np.array([3, 3]))
    assert found.of(1, 1, 2).tolist() == drawn.of(3, 1, 2).tolist()


@pytest.mark.parametrize(
    ("steps", "counts", "message"),
    [
        ([1, 7, 9], [3, 3], "lack step 7 and 1 more of the trace; they hold 4 steps, 0 to 3"),
        ([1], [3, 3, 3], "are of 2 dp ranks, the trace has 3"),
        ([2], [3, 2], "first step 2, dp rank 1: 3 microbatches with lengths, 2 in the trace"),
    ],
)
def test_lengths_that_do_not_match_the_trace_are_refused(steps, counts, message):
    with pytest.raises(TraceError, match=message):
        draw_seqlens(2, 3, 4, 100).select(np.array(steps), np.array(counts))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(16, 5000),
    st.integers(0, 1000),
)
def test_drawn_microbatches_are_full_and_never_overfull(counts, steps, max_tokens, seed):
    drawn = draw_seqlens(len(counts), tuple(counts), steps, max_tokens, seed)
    assert drawn.counts.tolist() == [counts] * steps
    tokens = drawn.moments()[0]
    assert tokens.max() <= max_tokens
    assert drawn.lengths.min() >= 16
    # What did not fit opens the next microbatch.
    for step, dp, microbatch in np.argwhere(drawn.exists[:, :, 1:]):
        first = drawn.of(step, dp, microbatch + 1)[0]
        assert tokens[step, dp, microbatch] + first > max_tokens


def test_drawn_lengths_are_long_tailed_and_seeded():
    lengths = draw_seqlens(8, 16, 4, 32_768).lengths
    assert lengths.max() == 32_768
    assert 2 * np.median(lengths) < lengths.mean() < 5000
    assert (draw_seqlens(8, 16, 4, 32_768).lengths == lengths).all()
    assert len(draw_seqlens(8, 16, 4, 32_768, seed=1).lengths) != len(lengths)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, 1, 1, 100), "no sequences for 0 dp ranks"),
        ((2, (1, 1, 1), 1, 100), "no sequences for 2 dp ranks"),
        ((1, 0, 1, 100), "no sequences"),
        ((1, 1, 1, 8), "at least 16 tokens, not 8"),
    ],
)
def test_lengths_that_cannot_be_drawn(args, message):
    with pytest.raises(SynthError, match=message):
        draw_seqlens(*args)


def test_costs_have_mean_1_and_the_mix_asked_for():
    ptr = np.array([[[[0, 1], [1, 3]]]])
    lens = SeqLens(np.zeros(1, dtype=np.int64), ptr, np.array([4, 2, 2]))
    # As many tokens in both; 16 and 8 squares: 0.6 of the mean cost is 16/12 and 8/12 of itself.
    np.testing.assert_allclose(microbatch_costs(lens, 0.6), [[[0.4 + 0.8, 0.4 + 0.4]]])
    np.testing.assert_allclose(microbatch_costs(lens, 0.0), [[[1.0, 1.0]]])
