import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import TraceError
from paceline.sources.call_logs.table import read_calls
from paceline.trace.calls import CallLog

HEAD = "rank,time_s,op,size,communicator"
ROWS = ["1,0.5,AllReduce,8,dp", "0,0.25,AllGather,4,tp", "0,0.5,AllReduce,8,dp"]


def save(tmp_path, rows=ROWS, head=HEAD):
    path = tmp_path / "calls.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_csv_and_parquet_say_the_same(tmp_path):
    table = {
        "rank": [1, 0, 0],
        "time": [0.5, 0.25, 0.5],
        "op": pa.array(["AllReduce", "AllGather", "AllReduce"]).dictionary_encode(),
        "size": pa.array([8, 4, 8], pa.uint32()),
        "communicator": ["dp", "tp", "dp"],
        "more": [1, 2, 3],
    }
    pq.write_table(pa.table(table), tmp_path / "calls.parquet")
    for path in (save(tmp_path), tmp_path / "calls.parquet"):
        log = read_calls(path)
        assert log.rank.tolist() == [1, 0, 0]
        assert log.time_s.tolist() == [0.5, 0.25, 0.5]
        assert [log.ops[op] for op in log.op] == ["AllReduce", "AllGather", "AllReduce"]
        assert [log.communicators[at] for at in log.communicator] == ["dp", "tp", "dp"]
        assert log.duration_s is None
        assert [(rank, rows.tolist()) for rank, rows in log.of_ranks()] == [(0, [1, 2]), (1, [0])]
        codes = log.codes()
        assert codes[0] == codes[2] != codes[1]


def test_numbered_communicators_and_durations(tmp_path):
    rows = ["0,1,AllReduce,8,94021,0.5", "0,2,AllReduce,8,7,0.25"]
    log = read_calls(save(tmp_path, rows, HEAD + ",duration_s"))
    assert log.communicators == ("94021", "7")
    assert log.duration_s is not None
    assert log.duration_s.tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("-1,1,AllReduce,8,dp", "line 5: rank is -1.0; give a whole number from 0"),
        ("0.5,1,AllReduce,8,dp", "line 5: rank is 0.5"),
        ("0,nan,AllReduce,8,dp", "line 5: time_s is empty"),
        ("0,soon,AllReduce,8,dp", "line 5: time_s is soon; give a number"),
        ("0,,AllReduce,8,dp", "line 5: time_s is empty"),
        ("0,1,AllReduce,-8,dp", "line 5: size is -8.0"),
        ("0,0.1,AllReduce,8,dp", "call 3 .rank 0. is at 0.100000 s, before"),
        ("0,1,AllReduce", "is not a readable CSV file"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    with pytest.raises(TraceError, match=message):
        read_calls(save(tmp_path, [*ROWS, row]))


def test_bad_files_are_named(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        read_calls(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="is a folder"):
        read_calls(tmp_path)
    with pytest.raises(TraceError, match="lacks the columns op, communicator"):
        read_calls(save(tmp_path, ["0,1,2"], "rank,time_s,size"))
    with pytest.raises(TraceError, match="has no rows"):
        read_calls(save(tmp_path, []))
    with pytest.raises(TraceError, match="more than one column called op"):
        read_calls(save(tmp_path, ["0,1,a,2,b,c"], HEAD + ",op"))
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(TraceError, match="is not a readable parquet file"):
        read_calls(tmp_path / "x.parquet")


def test_columns_belong_together():
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(TraceError, match="differ in length: rank 1, time_s 2"):
        CallLog(one, np.zeros(2), one, one, one, ("a",), ("b",))
    with pytest.raises(TraceError, match="call 0 has the op 3; there are 1 names"):
        CallLog(one, np.zeros(1), one + 3, one, one, ("a",), ("b",))


def test_a_head_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_bytes(b"rank,time_s,op,size,\xff\xfe\n0,1,a,2,b\n")
    with pytest.raises(TraceError, match="is not a readable CSV file"):
        read_calls(path)
